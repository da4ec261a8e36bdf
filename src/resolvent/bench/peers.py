"""Other libraries: each is a small file outside of the package, and shows the best of its settings."""

import importlib.util
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import ModuleType
from typing import Any

import resolvent as rs
from resolvent.bench.accuracy import gradient_error, residual
from resolvent.bench.contender import Contender, Outcome
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


def best(module: ModuleType, task: Task, exact: Outcome) -> tuple[Contender | None, list[dict[str, Any]]]:
    """The fastest of a library's settings that reaches the tolerance of a task, and what each of them did.

    A library that cannot solve the equations of theta layers says so by SAME_EQUATIONS = False: the fastest of its
    settings then counts, whatever its residual.
    """
    same = getattr(module, "SAME_EQUATIONS", True)
    candidates: dict[str, Make] = module.candidates(task)
    report: list[dict[str, Any]] = []
    for setting, make in candidates.items():
        entry = _try(make, task, exact)
        fit = "seconds" in entry and (not same or entry["residual"] <= ROOM * task.tolerance)
        report.append({"setting": setting, **entry, "fit": fit})
    fit = [entry for entry in report if entry["fit"]]
    if not fit:
        return None, report
    return candidates[min(fit, key=lambda entry: entry["seconds"])["setting"]](), report


def _try(make: Make, task: Task, exact: Outcome) -> dict[str, Any]:
    try:
        with closing(make()) as contender:
            outcome = contender.outcome()
            contender.seconds("train", 1)
            return {
                "residual": residual(task, outcome.states),
                "gradient_error": gradient_error(outcome.gradients, exact.gradients),
                "seconds": min(contender.seconds("train", 1) for _ in range(3)),
            }
    except (RuntimeError, ValueError, rs.ResolventError) as failure:
        return {"failure": str(failure).splitlines()[0]}
