"""Trains examples 1 and 2 of the paper with other settings, to see which claims depend on them.

    python benchmarks/paper_settings.py --seeds 3 --jobs 16

The regression is trained for theta = 0 and 1 and four weights of the divergence:

    paper       as in the paper: Xavier uniform, 3000 epochs, one probe, a learning rate reduced on plateaus
    unit        with the initialisation of the authors' program
    exact       with the exact divergence and Jacobian
    constant    with a constant learning rate
    long        6000 epochs

The stiff system is trained for theta = 1/2 and 1 and 10 points, 50 epochs as in the paper and 200 epochs (long).
"""

import argparse
import tempfile
from pathlib import Path
from typing import Any

import runs
from resolvent_lab.experiments.catalogue import experiments
from resolvent_lab.experiments.claim import judge_claims
from resolvent_lab.experiments.network import Config
from resolvent_lab.experiments.results import Results
from resolvent_lab.experiments.run import Run, finished_runs
from resolvent_lab.experiments.train import train

SETTINGS: dict[str, dict[str, dict[str, Any]]] = {
    "regression": {
        "paper": {},
        "unit": {"init": "xavier_unit"},
        "exact": {"exact": True},
        "constant": {"schedule": "constant"},
        "long": {"epochs": 6000},
    },
    "stiff": {"paper": {}, "long": {"epochs": 200}},
}
CELLS: dict[str, list[dict[str, float]]] = {
    "regression": [{"theta": theta, "alpha_div": alpha} for alpha in (0.0, 0.25, 0.5, 1.0) for theta in (0.0, 1.0)],
    "stiff": [{"theta": theta, "points": 10} for theta in (0.5, 1.0)],
}
Combination = tuple[str, str, int, int]
"""The experiment, the name of its settings, the number of its cell, and the seed."""


def config_of(experiment: str, name: str, cell: int, seed: int) -> Config:
    return experiments()[experiment].config(**CELLS[experiment][cell], **SETTINGS[experiment][name], seed=seed)


def trained(experiment: str, name: str, cell: int, seed: int) -> runs.Found:
    with tempfile.TemporaryDirectory() as folder:
        train(experiment, config_of(experiment, name, cell, seed), Path(folder), lambda epoch: None)
        (run,) = finished_runs(Path(folder))
        return {"metrics": run.metrics, "seconds": run.seconds}


def combinations(experiment: str, names: list[str], seeds: int) -> list[Combination]:
    return [
        (experiment, name, cell, seed)
        for name in names
        for seed in range(seeds)
        for cell in range(len(CELLS[experiment]))
    ]


def table(experiment: str, names: list[str], seeds: int, out: Path) -> str:
    """Each claim that the cells decide, with its value for each seed, by settings."""
    columns = {}
    for name in names:
        found = []
        for each in combinations(experiment, [name], seeds):
            for record in runs.collect([each], out).get(each[:-1], []):
                config = config_of(*each)
                found.append(Run(experiment, config, record["metrics"], {}, record["seconds"], Path()))
        columns[name] = judge_claims(experiments()[experiment].claims, Results(tuple(found)))
    lines = [["measured is", "criterion", *columns]]
    for n, claim in enumerate(experiments()[experiment].claims):
        values = [", ".join(f"{value:.3g}" for value in judged[n].values) for judged in columns.values()]
        if any(values):
            lines.append([claim.quantity, claim.criterion, *values])
    rows = [" | ".join(cell.replace("|", "\\|") for cell in line) for line in lines]
    return "\n".join(f"| {row} |" for row in (rows[0], " | ".join(["---"] * len(lines[0])), *rows[1:]))


def main() -> None:
    parser = runs.parser(__doc__, seeds=3, out="build/paper-settings")
    parser.add_argument("--only", nargs="+", help="names of settings; by default all")
    parser.add_argument("--experiment", choices=list(SETTINGS), help="by default both")
    options: argparse.Namespace = parser.parse_args()
    chosen = {
        experiment: [name for name in named if not options.only or name in options.only]
        for experiment, named in SETTINGS.items()
        if options.experiment in (None, experiment)
    }
    every = [each for experiment, names in chosen.items() for each in combinations(experiment, names, options.seeds)]
    runs.run_all(trained, every, options.out, options.jobs)
    for experiment, names in chosen.items():
        print(f"\n{table(experiment, names, options.seeds, options.out)}")


if __name__ == "__main__":
    main()
