"""The results of a folder: the runs that were finished, and the notes of those that failed.

results.json collects what lies in the folders of the runs.
"""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from resolvent_lab.experiments import strict_json
from resolvent_lab.experiments.catalogue import EXPERIMENTS
from resolvent_lab.experiments.claim import Outcome, judge
from resolvent_lab.experiments.experiment import Experiment
from resolvent_lab.experiments.network import Config
from resolvent_lab.experiments.run import Run, folder_of, load


@dataclass(frozen=True)
class Failure:
    """A run, and what went wrong with it."""

    experiment: str
    config: Config
    error: str

    def __str__(self) -> str:
        return f"{self.experiment} {self.config.name}: {self.error}"


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
    return Results(runs, tuple(_failure(note) for note in content["failures"]))


def judged(results: Results) -> Iterator[tuple[Experiment, Results, list[Outcome]]]:
    """Each experiment that has runs, with its part of the results and what becomes of its claims."""
    for experiment in EXPERIMENTS.values():
        part = results.of(experiment.name)
        if part.runs:
            yield experiment, part, judge(experiment.claims, part)


def note_of(experiment: str, config: Config, out: Path) -> Path:
    """Where a failed run leaves its note, until it succeeds: beside the folders of the finished ones."""
    return folder_of(experiment, config, out).parent / f"{config.name}.failed.json"


def write_note(failure: Failure, out: Path) -> None:
    note = note_of(failure.experiment, failure.config, out)
    note.parent.mkdir(parents=True, exist_ok=True)
    strict_json.dump(dataclasses.asdict(failure), note)


def _record(run: Run, out: Path) -> dict[str, Any]:
    return {**dataclasses.asdict(run), "folder": str(run.folder.relative_to(out))}


def _restored(record: dict[str, Any], out: Path) -> Run:
    config = EXPERIMENTS[record["experiment"]].config(**record["config"])
    return Run(**{**record, "config": config, "folder": out / record["folder"]})


def _failure(note: dict[str, Any]) -> Failure:
    return Failure(note["experiment"], EXPERIMENTS[note["experiment"]].config(**note["config"]), note["error"])
