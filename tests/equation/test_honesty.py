"""No solver may claim a solution that it has not found.

Every solver meets every class of equations in every precision, and what it calls converged is judged anew. The seed is
RESOLVENT_HONESTY_SEED, or else RESOLVENT_TEST_SEED, or else 0. `make soak` takes another one in each of its rounds.
"""

import random

import pytest
import torch

import resolvent as rs
from equations import DOUBLE, SINGLE, Equations, rms
from honesty import CLASSES, COSTLY, SHRINKING, Trial, seed, tabulate
from linear_equations import SYSTEMS
from manufactured import LINEAR_SOLVERS, SOLVERS
from resolvent.extending import Solver
from verdict import natural_scale, tolerance


def few(solver: Solver) -> list[Trial]:
    """Every class in one precision; for a costly solver a part of the classes."""
    choice = random.Random(f"{seed()}/{solver}")
    if isinstance(solver, (*COSTLY, rs.Auto)):
        return [Trial(e, solver, choice.choice(e.precisions), 8, 50) for e in choice.sample(CLASSES, 16)]
    shrinking = Trial(choice.choice(SHRINKING), solver, SINGLE, 420, 100)
    return [shrinking, *(Trial(e, solver, choice.choice(e.precisions), 8, 100) for e in CLASSES)]


def many(solver: Solver) -> list[Trial]:
    """Every class in every precision: a hundred thousand samples for all solvers together."""
    if isinstance(solver, COSTLY):
        return [Trial(e, solver, dtype, 16, 100) for e in CLASSES for dtype in e.precisions]
    # The default tries four or five methods on what has no solution.
    shrunk, count = (100, 16) if isinstance(solver, rs.Auto) else (420, 40)
    shrinking = [Trial(e, solver, dtype, shrunk) for e in SHRINKING for dtype in (DOUBLE, SINGLE)]
    return [*shrinking, *(Trial(e, solver, dtype, count) for e in CLASSES for dtype in e.precisions)]


@pytest.mark.parametrize("trials", [few, pytest.param(many, marks=pytest.mark.slow)])
@pytest.mark.parametrize("solver", SOLVERS, ids=str)
def test_no_claim_of_convergence_is_false(solver: Solver, trials) -> None:  # type: ignore[no-untyped-def]
    table = tabulate(trials(solver))
    assert not table.faults, str(table)


@pytest.mark.parametrize("count", [4, pytest.param(40, marks=pytest.mark.slow)])
@pytest.mark.parametrize("solver", LINEAR_SOLVERS, ids=str)
def test_no_claim_of_the_backward_pass_is_false(solver: Solver, count: int) -> None:
    table = tabulate((Trial(e, solver, dtype, count) for e in SYSTEMS for dtype in (DOUBLE, SINGLE)), backward=True)
    assert not table.faults, str(table)


@pytest.mark.parametrize("count", [4, pytest.param(100, marks=pytest.mark.slow)])
def test_the_default_solves_what_can_be_solved(count: int) -> None:
    """A judge that refused everything would make no false claim either."""
    table = tabulate(Trial(e, rs.Auto(), dtype, count) for e in CLASSES for dtype in e.solvable)
    refused = [
        f"{' | '.join(key)}: {table.claims[key]} of {n}" for key, n in table.samples.items() if table.claims[key] < n
    ]
    assert not refused, f"RESOLVENT_HONESTY_SEED={seed()}, converged:\n" + "\n".join(refused)


@pytest.mark.parametrize("equations", [e for e in CLASSES if e.kind in ("none", "pole")], ids=lambda e: e.name)
def test_what_is_said_to_have_no_solution_has_none(equations: Equations) -> None:
    """In each precision: whatever w is, its residual exceeds the tolerance at the scale of the equation."""
    for dtype in equations.precisions:
        samples = Trial(equations, rs.Auto(), dtype, 20).draw()
        exact, allowed = samples.to(DOUBLE), tolerance(samples, natural_scale(samples.to(DOUBLE)))
        assert exact.distance(exact, exact.b).isinf().all()
        for size in torch.logspace(-3, 3, 200):
            w = exact.b + size * torch.randn(exact.b.shape)
            assert not (rms(exact.defect(w)) <= 2 * allowed).any(), (dtype, size)
