"""`RunFolder`: the files of a run.

config.yaml            all settings
facts.json             what the network knows of its data
checkpoints/last.ckpt  to go on from
checkpoints/best.ckpt  of the epoch with the best monitored metric
best.safetensors       weights of the best epoch, once the run is finished
last.safetensors       weights of the last epoch, once the run is finished
metrics.json           of the best epoch, once the run is finished
history.csv            metrics of each epoch, once the run is finished
logs/                  of the loggers
"""

import csv
import io
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from resolvent_lab import atomic, strict_json
from resolvent_lab.fitting.checkpoints import BEST, LAST, load_state, read_checkpoint
from resolvent_lab.fitting.weights import read_weights, write_weights
from resolvent_lab.training.facts import Facts

WEIGHTS = ("best", "last")


class RunFolder:
    """The folder of a run. Every file in it is complete or not there."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = path / "checkpoints"
        self.config, self.logs = path / "config.yaml", path / "logs"

    @property
    def last(self) -> Path:
        return self.checkpoints / LAST

    @property
    def best(self) -> Path:
        return self.checkpoints / BEST

    def require(self) -> None:
        """Raises if this is no folder of a run."""
        if not self.config.is_file() or not (self.path / "facts.json").is_file():
            raise ValueError(f"{self.path} is no folder of a run: give the --out of `resolvent train`.")

    def clean(self) -> None:
        """Removes the drafts of a process that was killed."""
        for folder in (self.path, self.checkpoints):
            atomic.remove_drafts(folder)

    def write_config(self, text: str) -> None:
        atomic.write(self.config, text.encode())

    def write_facts(self, facts: Facts) -> None:
        self.write_json("facts.json", asdict(facts))

    def facts(self) -> Facts:
        try:
            return Facts.restored(strict_json.load(self.path / "facts.json"))
        except (OSError, ValueError, TypeError) as error:
            raise ValueError(f"{self.path / 'facts.json'} cannot be read: {error}") from None

    def metrics(self) -> dict[str, Any] | None:
        """The metrics of a finished run, or None if it is not finished."""
        path = self.path / "metrics.json"
        if not path.exists():
            return None
        found: dict[str, Any] = strict_json.load(path)
        return found

    def write_json(self, name: str, content: Any) -> Path:
        path = self.path / name
        strict_json.dump(content, path)
        return path

    def write_history(self, history: list[dict[str, float]]) -> None:
        columns = list(dict.fromkeys(name for row in history for name in row))
        text = io.StringIO()
        writer = csv.DictWriter(text, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(history)
        atomic.write(self.path / "history.csv", text.getvalue().encode())

    def write_weights(self, which: str, state: dict[str, Tensor]) -> None:
        """Writes the weights of the "best" or of the "last" epoch."""
        write_weights(self.path / f"{which}.safetensors", state)

    def load_weights(self, module: nn.Module, which: str) -> Path:
        """Loads the weights of the "best" or of the "last" epoch into a module, also of a run that is not finished."""
        source = self.path / f"{which}.safetensors"
        if source.exists():
            state = read_weights(source)
        else:
            source = self.best if which == "best" else self.last
            if not source.exists():
                raise ValueError(f"{self.path} has no {which} weights yet: train longer.")
            state = read_checkpoint(source)["state_dict"]
        load_state(module, state, source)
        return source
