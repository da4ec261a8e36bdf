"""The results of a folder: results.json collects what lies in the folders of its runs."""

import json
from dataclasses import asdict
from pathlib import Path

from resolvent.experiments.catalogue import EXPERIMENTS
from resolvent.experiments.run import Run, load


def collect(out: Path) -> list[Run]:
    """Write results.json from the folders of finished runs, and read it."""
    runs = [load(path.parent) for path in sorted((out / "runs").glob("[!.]*/[!.]*/metrics.json"))]
    records = [
        {
            "experiment": run.experiment,
            "config": asdict(run.config),
            "metrics": run.metrics,
            "versions": run.versions,
            "seconds": run.seconds,
            "folder": str(run.folder.relative_to(out)),
        }
        for run in runs
    ]
    (out / "results.json").write_text(json.dumps({"runs": records}, indent=1) + "\n")
    return read(out)


def read(out: Path) -> list[Run]:
    """The runs in results.json."""
    path = out / "results.json"
    if not path.exists():
        raise ValueError(f"there is no {path}: give a folder that `resolvent reproduce` has written to.")
    records = json.loads(path.read_text())["runs"]
    return [
        Run(
            experiment=record["experiment"],
            config=EXPERIMENTS[record["experiment"]].config(**record["config"]),
            metrics=record["metrics"],
            versions=record["versions"],
            seconds=record["seconds"],
            folder=out / record["folder"],
        )
        for record in records
    ]
