"""One task: its contenders are chosen, checked and measured."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import resolvent as rs
from resolvent_lab.bench.contender import Contender, StepResult, TorchContender, exact, graphed
from resolvent_lab.bench.layers import ours
from resolvent_lab.bench.measure import KINDS, gradient_error, measure, residual
from resolvent_lab.bench.peers import best
from resolvent_lab.bench.task import Task

Record = dict[str, Any]


@dataclass(frozen=True)
class Effort:
    """How much is measured.

    Attributes:
        rounds: number of turns of each contender.
        seconds: approximate length of a turn.
    """

    rounds: int = 15
    seconds: float = 0.3


def run(task: Task, peers: Mapping[str, ModuleType], effort: Effort, skip: Sequence[str] = ()) -> Record:
    """Measures all contenders of a task, except those of ours with a word of `skip` in the name.

    Returns:
        The record that is written to the JSON file.
    """
    right = exact(task)
    own = [TorchContender(name, task, convert) for name, convert in ours(task).items()]
    contenders: list[Contender] = [each for each in (*own, *graphed(task)) if not any(w in each.name for w in skip)]
    tried: dict[str, list[Record]] = {}
    for name, module in peers.items():
        contender, tried[name] = best(module, task, right)
        if contender is not None:
            contenders.append(contender)
    checks = {contender.name: _check(contender, task, right) for contender in contenders}
    able = [contender for contender in contenders if "failure" not in checks[contender.name]]
    times = measure(able, effort.rounds, effort.seconds)
    for contender in contenders:
        contender.close()
    return {
        "row": task.row,
        "title": task.title,
        "theta": task.theta,
        "tolerance": task.tolerance,
        "contenders": {contender.name: checks[contender.name] | times[contender.name] for contender in able},
        "failures": {name: check["failure"] for name, check in checks.items() if "failure" in check},
        "tried": tried,
    }


def _check(contender: Contender, task: Task, right: StepResult) -> Record:
    try:
        outcome = contender.outcome()
        check: Record = {"peak_bytes": contender.peak()}
        for kind in KINDS:
            contender.seconds(kind, 1)
    except (RuntimeError, ValueError, rs.errors.ResolventError) as failure:
        return {"failure": str(failure).splitlines()[0]}
    if not contender.name.startswith("explicit"):
        check["residual"] = residual(task, outcome.states)
        check["gradient_error"] = gradient_error(outcome.gradients, right.gradients)
    return check
