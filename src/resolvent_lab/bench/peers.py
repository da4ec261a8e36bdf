"""Other libraries. Each is a file outside the package, and is measured with its best settings."""

import importlib.util
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import resolvent as rs
from resolvent_lab.bench.contender import KINDS, Contender, StepResult
from resolvent_lab.bench.measure import gradient_error, residual
from resolvent_lab.bench.records import ROOM
from resolvent_lab.bench.task import Task


def load(name: str, folder: Path) -> ModuleType:
    """Imports the file for a library. Raises ImportError if the library is not installed."""
    path = folder / f"{name}.py"
    if not path.exists():
        known = sorted(file.stem for file in folder.glob("*.py"))
        raise ValueError(f"there is no {path}: choose among {known}, or give another folder with --peers-from.")
    spec = importlib.util.spec_from_file_location(f"resolvent_peer_{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def best(
    module: ModuleType, task: Task, exact: StepResult, kinds: Sequence[str] = KINDS
) -> tuple[Contender | None, list[dict[str, Any]]]:
    """The fastest settings of a library that reach the tolerance of a task with finite gradients, and a report on all
    settings.

    A library whose KIND, "eager" if it names none, is not asked for is left out.

    A library that cannot solve the equations of theta layers sets SAME_EQUATIONS = False. Its fastest settings then
    count, whatever their residual.
    """
    if getattr(module, "KIND", "eager") not in kinds:
        return None, []
    limit = ROOM * task.tolerance if getattr(module, "SAME_EQUATIONS", True) else math.inf
    fastest: Contender | None = None
    least = math.inf
    report: list[dict[str, Any]] = []
    for setting, make in module.candidates(task).items():
        contender: Contender = make()
        report.append({"setting": setting, **_try(contender, task, exact, limit)})
        if report[-1]["fit"] and report[-1]["seconds"] < least:
            contender, fastest, least = fastest or contender, contender, report[-1]["seconds"]
        if contender is not fastest:
            contender.close()
    return fastest, report


def _try(contender: Contender, task: Task, exact: StepResult, limit: float) -> dict[str, Any]:
    try:
        outcome = contender.outcome()
        reached = residual(task, outcome.states)
        error = gradient_error(outcome.gradients, exact.gradients)
        if not (reached <= limit and math.isfinite(error)):
            return {"residual": reached, "gradient_error": error, "fit": False}
        seconds = min(contender.seconds("train", 1) for _ in range(2))  # The first one warms up.
        contender.seconds("infer", 20)  # A method may fail on other data.
    except (RuntimeError, ValueError, rs.errors.ResolventError) as failure:
        return {"failure": (str(failure).splitlines() or [type(failure).__name__])[0], "fit": False}
    return {"residual": reached, "gradient_error": error, "seconds": seconds, "fit": True}
