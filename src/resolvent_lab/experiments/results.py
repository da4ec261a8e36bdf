"""The results in a folder: finished runs, and notes of failed ones. results.json collects them."""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from resolvent_lab import strict_json
from resolvent_lab.experiments.catalogue import experiments
from resolvent_lab.experiments.claim import ClaimResult, judge_claims
from resolvent_lab.experiments.experiment import Experiment
from resolvent_lab.experiments.network import RunConfig
from resolvent_lab.experiments.run import Run, finished_runs, folder_of


@dataclass(frozen=True)
class Failure:
    """A run that failed, and its error."""

    experiment: str
    config: RunConfig
    error: str

    def __str__(self) -> str:
        return f"{self.experiment} {self.config.name}: {self.error}"


@dataclass(frozen=True)
class Results:
    """Finished runs and failed runs."""

    runs: tuple[Run, ...]
    failures: tuple[Failure, ...] = ()

    def of(self, experiment: str) -> "Results":
        """The results of one experiment."""
        return Results(
            tuple(run for run in self.runs if run.experiment == experiment),
            tuple(failure for failure in self.failures if failure.experiment == experiment),
        )

    def for_claims(self, experiment: Experiment) -> "Results":
        """The results that the claims of the experiment are about."""
        return Results(
            tuple(run for run in self.runs if experiment.claims_apply(run.config)),
            tuple(failure for failure in self.failures if experiment.claims_apply(failure.config)),
        )


def collect(out: Path) -> Results:
    """Writes results.json from the folders of finished runs and the notes of failed ones, and reads it."""
    runs = [_record(run, out) for run in finished_runs(out)]
    notes = [strict_json.load(path) for path in sorted((out / "runs").glob("[!.]*/[!.]*.failed.json"))]
    strict_json.dump({"runs": runs, "failures": notes}, out / "results.json")
    return read(out)


def read(out: Path) -> Results:
    """Reads results.json."""
    path = out / "results.json"
    if not path.exists():
        raise ValueError(f"there is no {path}: give a folder that `resolvent reproduce` has written to.")
    content = strict_json.load(path)
    runs = tuple(_restored(record, out) for record in content["runs"])
    return Results(runs, tuple(_failure(note) for note in content["failures"]))


def judged(results: Results) -> Iterator[tuple[Experiment, Results, list[ClaimResult]]]:
    """Each experiment that has runs, with its results and the outcomes of its claims.

    If the claims are about none of the runs, there are no outcomes.
    """
    for experiment in experiments().values():
        part = results.of(experiment.name)
        if part.runs:
            relevant = part.for_claims(experiment)
            shortened = _are_shortened(experiment, relevant)
            yield experiment, part, judge_claims(experiment.claims, relevant, shortened) if relevant.runs else []


def _are_shortened(experiment: Experiment, results: Results) -> bool:
    """Whether some run had fewer epochs than any run of the full sweep."""
    full = min(config.epochs for config in experiment.configs(False, None, 1))
    return any(run.config.epochs < full for run in results.runs)


def note_of(experiment: str, config: RunConfig, out: Path) -> Path:
    """The note of a failed run, beside the folders of finished runs. It is removed when the run succeeds."""
    return folder_of(experiment, config, out).parent / f"{config.name}.failed.json"


def write_note(failure: Failure, out: Path) -> None:
    note = note_of(failure.experiment, failure.config, out)
    note.parent.mkdir(parents=True, exist_ok=True)
    strict_json.dump(dataclasses.asdict(failure), note)


def _record(run: Run, out: Path) -> dict[str, Any]:
    return {**dataclasses.asdict(run), "folder": str(run.folder.relative_to(out))}


def _restored(record: dict[str, Any], out: Path) -> Run:
    config = experiments()[record["experiment"]].config(**record["config"])
    return Run(**{**record, "config": config, "folder": out / record["folder"]})


def _failure(note: dict[str, Any]) -> Failure:
    return Failure(note["experiment"], experiments()[note["experiment"]].config(**note["config"]), note["error"])
