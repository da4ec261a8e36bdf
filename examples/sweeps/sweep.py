"""Trains one configuration with several settings, in local processes or as a SLURM array, through submitit.

    python examples/sweeps/sweep.py CONFIG.yaml --out runs model.theta=0,0.5,1 seed=0,1,2
    python examples/sweeps/sweep.py CONFIG.yaml --out runs model.theta=0,0.5,1 --cluster slurm --partition cpu

Each combination is a run in a folder of its own. A run that fails is tried again, and at last reported; the others go
on. Start the same command again to go on with a sweep that was interrupted: finished runs are not repeated, and others
go on from their last checkpoint.
"""

import argparse
import csv
import itertools
import sys
from pathlib import Path
from typing import Any


def runs_of(grid: list[str]) -> list[dict[str, str]]:
    """All combinations of key=value,value,... as settings by key."""
    pairs = [entry.partition("=") for entry in grid]
    if not pairs or not all(key and values for key, _, values in pairs):
        raise SystemExit(f"give settings as key=value,value,..., got {grid}")
    choices = [[(key, value) for value in values.split(",")] for key, _, values in pairs]
    return [dict(combination) for combination in itertools.product(*choices)]


def name_of(settings: dict[str, str]) -> str:
    return "-".join(f"{key.rpartition('.')[2]}{value}" for key, value in settings.items())


def train_one(config: str, out: str, settings: dict[str, str]) -> dict[str, Any]:
    """Trains, or goes on with, one run. This is what a job does."""
    from resolvent_lab.training.configuration import parse
    from resolvent_lab.training.fit import train

    quiet = ["--trainer.enable_progress_bar", "false"]
    overrides = [part for key, value in settings.items() for part in (f"--{key}", value)]
    return train(parse(config, *overrides, *quiet, "--out", out))


def job(config: str, out: str, settings: dict[str, str]) -> dict[str, Any]:
    """The metrics of a run, or its error, and whether another try may help."""
    try:
        return train_one(config, out, settings)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}", "wrong input": isinstance(error, ValueError)}


def attempt(executor: Any, arguments: list[tuple[str, str, dict[str, str]]], at_once: int) -> list[dict[str, Any]]:
    """What each job returned, or how it died."""
    outcomes: list[dict[str, Any]] = []
    for first in range(0, len(arguments), at_once):
        for started in executor.map_array(job, *zip(*arguments[first : first + at_once], strict=True)):
            died = started.exception()
            outcomes.append(started.result() if died is None else {"error": str(died).strip().splitlines()[0]})
    return outcomes


def write_table(path: Path, rows: list[dict[str, Any]]) -> None:
    columns = list(dict.fromkeys(key for row in rows for key in row))
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config")
    parser.add_argument("grid", nargs="+", metavar="key=value,value")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--cluster", choices=("local", "slurm"), default="local")
    parser.add_argument("--partition", help="of SLURM")
    parser.add_argument("--at-once", type=int, default=2, help="runs in parallel")
    parser.add_argument("--retries", type=int, default=1)
    parser.add_argument("--minutes", type=int, default=60, help="of each job")
    options = parser.parse_args()

    import submitit

    executor = submitit.AutoExecutor(options.out / "jobs", cluster=options.cluster)
    executor.update_parameters(timeout_min=options.minutes)
    if options.cluster == "slurm":
        executor.update_parameters(slurm_partition=options.partition, slurm_array_parallelism=options.at_once)
    settings = runs_of(options.grid)
    at_once = options.at_once if options.cluster == "local" else len(settings)  # an array limits itself
    left = {name_of(each): each for each in settings}
    rows: list[dict[str, Any]] = []
    failed: dict[str, str] = {}
    for _ in range(1 + options.retries):
        arguments = [(options.config, str(options.out / name), each) for name, each in left.items()]
        for name, outcome in zip(list(left), attempt(executor, arguments, at_once), strict=True):
            failed.pop(name, None)
            if "error" in outcome:
                failed[name] = outcome["error"]
            else:
                numbers = {key: value for key, value in outcome.items() if isinstance(value, float | int)}
                rows.append({"run": name, **left[name], **numbers})
            if "error" not in outcome or outcome.get("wrong input"):
                del left[name]
        if not left:
            break
    write_table(options.out / "sweep.csv", rows)
    print(f"{len(rows)} runs finished; the table: {options.out / 'sweep.csv'}")
    for name, error in failed.items():
        print(f"failed: {name}: {error}", file=sys.stderr)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
