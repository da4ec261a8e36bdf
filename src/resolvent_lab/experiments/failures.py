"""Runs that failed: each leaves a note beside the folders of the finished ones, until it succeeds."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path

from resolvent_lab.experiments import strict_json
from resolvent_lab.experiments.catalogue import EXPERIMENTS
from resolvent_lab.experiments.network import Config
from resolvent_lab.experiments.run import folder_of


@dataclass(frozen=True)
class Failure:
    """A run, and what went wrong with it."""

    experiment: str
    config: Config
    error: str

    def __str__(self) -> str:
        return f"{self.experiment} {self.config.name}: {self.error}"


def note_of(experiment: str, config: Config, out: Path) -> Path:
    return folder_of(experiment, config, out).parent / f"{config.name}.failed.json"


def record(failure: Failure, out: Path) -> None:
    note = note_of(failure.experiment, failure.config, out)
    note.parent.mkdir(parents=True, exist_ok=True)
    strict_json.dump(dataclasses.asdict(failure), note)


def restore(described: dict[str, object]) -> Failure:
    """The failure that `dataclasses.asdict` has made this of."""
    experiment, config, error = str(described["experiment"]), described["config"], str(described["error"])
    assert isinstance(config, dict)
    return Failure(experiment, EXPERIMENTS[experiment].config(**config), error)
