"""Attacks, corruptions and certificates for trained networks. They can be run on any machine that has the weights."""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import cast

from resolvent_lab import strict_json
from resolvent_lab.experiments import machine
from resolvent_lab.experiments.mnist.config import MnistConfig
from resolvent_lab.experiments.mnist.network import Mnist
from resolvent_lab.experiments.run import ROBUSTNESS, Run, finished_runs
from resolvent_lab.images import Split
from resolvent_lab.robustness import SIZES, evaluate


def available() -> bool:
    """Whether pyautoattack is installed."""
    return find_spec("pyautoattack") is not None


def attack(out: Path, size: str, count: int) -> None:
    """Attacks the networks in a folder of results. Images found for one network are shown to those of the same seed.

    Results with the same settings and the same networks are kept.

    Arguments:
        out: the folder.
        size: "quick", "full" or "thorough".
        count: number of held-out images to attack.
    """
    if size not in SIZES:
        raise ValueError(f"attacks must be one of {', '.join(SIZES)}, got {size!r}.")
    if not available():
        raise ValueError('attacks need pyautoattack: pip install "resolvent[robustness]", or take --attacks none.')
    runs = finished_runs(out, "mnist")
    for seed in sorted({run.config.seed for run in runs}):
        _attack_seed([run for run in runs if run.config.seed == seed], size, count)


def _attack_seed(runs: Sequence[Run], size: str, count: int) -> None:
    what = {"attacks": size, "images": count, "columns": [cast(MnistConfig, run.config).column for run in runs]}
    if all(run.metrics.get("robustness", {}).get("asked") == what for run in runs):
        return
    print(f"attacking {len(runs)} networks, seed {runs[0].config.seed}", flush=True)
    device = machine.device()
    models = {cast(MnistConfig, run.config).column: cast(Mnist, run.network()).model.to(device) for run in runs}
    held_out = cast(Split, runs[0].batches()).part(cast(MnistConfig, runs[0].config).held_out)
    images, labels = held_out.take(slice(count)).to(device)
    outcome = evaluate(models, images, labels, size=SIZES[size])
    for run in runs:
        record = outcome["models"][cast(MnistConfig, run.config).column]
        content = {"asked": what, "settings": outcome["settings"], **record}
        strict_json.dump(content, run.folder / ROBUSTNESS)
