"""JSON that every reader accepts: infinities and nan, which JSON does not have, are written as text."""

import json
import math
from pathlib import Path
from typing import Any

from resolvent_lab import atomic

_NAMES = {"Infinity": math.inf, "-Infinity": -math.inf, "NaN": math.nan}


def dump(value: Any, path: Path) -> None:
    """Writes a file that is complete or not there."""
    atomic.write(path, (json.dumps(_encode(value), indent=1, allow_nan=False) + "\n").encode())


def load(path: Path) -> Any:
    try:
        return _decode(json.loads(path.read_text()))
    except ValueError as error:
        raise ValueError(f"{path} is not valid JSON: {error}") from None


def _encode(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return _map(_encode, value)


def _decode(value: Any) -> Any:
    return _NAMES.get(value, value) if isinstance(value, str) else _map(_decode, value)


def _map(change: Any, value: Any) -> Any:
    if isinstance(value, dict):
        return {key: change(item) for key, item in value.items()}
    return [change(item) for item in value] if isinstance(value, list | tuple) else value
