"""Other libraries: each is a small file outside of the package, and shows the best of its settings."""

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import resolvent as rs
from resolvent.bench.accuracy import gradient_error, residual
from resolvent.bench.contender import Contender, Outcome, TorchContender
from resolvent.bench.task import Task

Make = Callable[[], Contender]
# Rounding of the states is in what is measured, too.
ROOM = 1.25


def load(name: str, folder: Path) -> ModuleType:
    """The file that knows how to use a library; an ImportError tells that the library is not installed."""
    path = folder / f"{name}.py"
    if not path.exists():
        known = sorted(file.stem for file in folder.glob("*.py"))
        raise ValueError(f"there is no {path}: choose among {known}, or name their folder with --peers-from.")
    spec = importlib.util.spec_from_file_location(f"resolvent_peer_{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def best(name: str, module: ModuleType, task: Task, exact: Outcome) -> tuple[Contender | None, list[dict[str, Any]]]:
    """The fastest of a library's settings that reaches the tolerance of a task, and what each of them did."""
    report: list[dict[str, Any]] = []
    for setting, convert in module.candidates(task).items():
        contender = TorchContender(name, task, convert)
        report.append({"setting": setting, **_try(contender, task, exact)})
    fit = [entry for entry in report if entry.get("fit")]
    if not fit:
        return None, report
    fastest = min(fit, key=lambda entry: entry["seconds"])["setting"]
    return TorchContender(name, task, module.candidates(task)[fastest]), report


def _try(contender: Contender, task: Task, exact: Outcome) -> dict[str, Any]:
    try:
        outcome = contender.outcome()
        reached = residual(task, outcome.states)
        error = gradient_error(outcome.gradients, exact.gradients)
        contender.seconds("train", 1)
        seconds = min(contender.seconds("train", 1) for _ in range(3))
    except (RuntimeError, ValueError, rs.ResolventError) as failure:
        return {"failure": str(failure).splitlines()[0]}
    return {
        "residual": reached,
        "gradient_error": error,
        "seconds": seconds,
        "fit": reached <= ROOM * task.tolerance,
    }
