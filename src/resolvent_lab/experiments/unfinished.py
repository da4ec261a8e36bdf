"""`Unfinished`: what is kept of a run until it is finished."""

import shutil
from pathlib import Path
from typing import Any

from resolvent_lab import atomic, strict_json
from resolvent_lab.fitting.checkpoints import LAST

CONFIG = "config.json"


class Unfinished:
    """The last checkpoint of a run and its settings, in a hidden folder beside that of the finished run.

    Arguments:
        folder: of the finished run.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder.with_name(f".unfinished-{folder.name}")

    def begin(self, settings: dict[str, Any]) -> None:
        """Writes the settings. Removes what a killed process has left half done."""
        self.path.mkdir(parents=True, exist_ok=True)
        atomic.remove_drafts(self.path)
        strict_json.dump(settings, self.path / CONFIG)

    @property
    def last(self) -> Path | None:
        """The last checkpoint, or None."""
        path = self.path / LAST
        return path if path.exists() else None

    def settings(self) -> dict[str, Any]:
        found: dict[str, Any] = strict_json.load(self.path / CONFIG)
        return found

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
