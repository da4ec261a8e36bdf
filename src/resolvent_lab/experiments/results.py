"""The results of a folder: results.json collects what lies in the folders of its runs."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from resolvent_lab.experiments import strict_json
from resolvent_lab.experiments.catalogue import EXPERIMENTS
from resolvent_lab.experiments.failures import Failure, restore
from resolvent_lab.experiments.run import Run, load


@dataclass(frozen=True)
class Results:
    """The runs that were finished, and those that failed."""

    runs: tuple[Run, ...]
    failures: tuple[Failure, ...] = ()

    def of(self, experiment: str) -> "Results":
        """The part that belongs to one experiment."""
        return Results(
            tuple(run for run in self.runs if run.experiment == experiment),
            tuple(failure for failure in self.failures if failure.experiment == experiment),
        )


def collect(out: Path) -> Results:
    """Write results.json from the folders of finished runs and the notes of failed ones, and read it."""
    runs = [load(path.parent) for path in sorted((out / "runs").glob("[!.]*/[!.]*/metrics.json"))]
    notes = [strict_json.load(path) for path in sorted((out / "runs").glob("[!.]*/[!.]*.failed.json"))]
    strict_json.dump({"runs": [_record(run, out) for run in runs], "failures": notes}, out / "results.json")
    return read(out)


def read(out: Path) -> Results:
    """What results.json holds."""
    path = out / "results.json"
    if not path.exists():
        raise ValueError(f"there is no {path}: give a folder that `resolvent reproduce` has written to.")
    content = strict_json.load(path)
    runs = tuple(_restored(record, out) for record in content["runs"])
    return Results(runs, tuple(restore(note) for note in content["failures"]))


def _record(run: Run, out: Path) -> dict[str, Any]:
    return {**asdict(run), "folder": str(run.folder.relative_to(out))}


def _restored(record: dict[str, Any], out: Path) -> Run:
    config = EXPERIMENTS[record["experiment"]].config(**record["config"])
    return Run(**{**record, "config": config, "folder": out / record["folder"]})
