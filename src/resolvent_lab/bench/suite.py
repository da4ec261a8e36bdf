"""One task: its contenders are chosen, checked and measured."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import resolvent as rs
from resolvent_lab.bench.contender import KINDS, PASSES_TO_COMPILE, Contender, StepResult, exact
from resolvent_lab.bench.measure import gradient_error, measure, residual
from resolvent_lab.bench.ours import offers
from resolvent_lab.bench.peers import best
from resolvent_lab.bench.records import EXPLICIT
from resolvent_lab.bench.task import Task

Record = dict[str, Any]
FAILURES = (RuntimeError, ValueError, rs.errors.ResolventError)


@dataclass(frozen=True)
class Effort:
    """How much is measured.

    Attributes:
        rounds: number of turns of each contender.
        seconds: approximate length of a turn.
    """

    rounds: int = 9
    seconds: float = 0.15

    def of(self, task: Task) -> "Effort":
        """Half the rounds and a third of the length for one of several networks that share a line of a table."""
        return Effort((self.rounds + 1) // 2, self.seconds / 3) if task.network else self


def run(
    task: Task,
    peers: Mapping[str, ModuleType],
    effort: Effort,
    kinds: Sequence[str] = KINDS,
    skip: Sequence[str] = (),
) -> Record:
    """Measures the contenders of a task of these kinds, except those of ours with a word of `skip` in the name.

    Returns:
        The record that is written to the JSON file.
    """
    failures: dict[str, str] = {}
    tried: dict[str, list[Record]] = {}
    entries: dict[str, Record] = {}
    try:
        right = exact(task)
        able = _able(task, right, peers, kinds, skip, entries, failures, tried)
    except rs.errors.ResolventError as failure:
        failures["double precision"] = _line(failure)
        able = []
    effort = effort.of(task)
    for name, times in (measure(able, effort.rounds, effort.seconds) if able else {}).items():
        entries[name] |= times
    for contender in able:
        contender.close()
    return {
        "row": task.row,
        "title": task.title,
        "network": task.network,
        "theta": task.theta,
        "tolerance": task.tolerance,
        "contenders": entries,
        "failures": failures,
        "tried": tried,
    }


def _able(
    task: Task,
    right: StepResult,
    peers: Mapping[str, ModuleType],
    kinds: Sequence[str],
    skip: Sequence[str],
    entries: dict[str, Record],
    failures: dict[str, str],
    tried: dict[str, list[Record]],
) -> list[Contender]:
    """The contenders that can do a step. Writes what was checked, or the cause of a failure."""
    able: list[Contender] = []
    for name, make in offers(task, kinds, skip).items():
        try:
            contender: Contender = make()
            entries[name] = _checked(contender, task, right)
            able.append(contender)
        except FAILURES as failure:
            failures[name] = _line(failure)
    for name, module in () if task.network else peers.items():
        best_one, tried[name] = best(module, task, right, kinds)
        if best_one is not None:
            entries[name] = _checked(best_one, task, right)
            able.append(best_one)
    return able


def _checked(contender: Contender, task: Task, right: StepResult) -> Record:
    start = time.perf_counter()
    contender.seconds("train", PASSES_TO_COMPILE)
    check: Record = {"kind": contender.kind, "first_steps": time.perf_counter() - start}
    contender.seconds("infer", 1)
    outcome = contender.outcome()
    check["peak_bytes"] = contender.peak()
    if not contender.name.startswith(EXPLICIT):
        check["residual"] = residual(task, outcome.states)
        check["gradient_error"] = gradient_error(outcome.gradients, right.gradients)
    return check


def _line(failure: Exception) -> str:
    return (str(failure).splitlines() or [type(failure).__name__])[0]
