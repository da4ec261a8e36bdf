"""No solver may claim a solution that it has not found.

Every solver meets every class of equations in every precision, and what it calls converged is judged anew. The seed
changes from run to run; RESOLVENT_HONESTY_SEED repeats one.
"""

import os
import random
import zlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

import pytest
import torch

import resolvent as rs
from equations import DOUBLE, SINGLE, Equations, Samples, product, rms, singular
from linear_equations import LINEAR, SYSTEMS
from manufactured import LINEAR_SOLVERS, SOLVERS
from nonlinear_equations import NONLINEAR
from resolvent.extending import Solver
from verdict import Verdict, natural_scale, tolerance

CLASSES = [*LINEAR, *NONLINEAR]
# These take many or costly steps, and get fewer of them and fewer samples.
COSTLY = (rs.NewtonKrylov, rs.GradientDescent, rs.ConjugateGradient, rs.LBFGS)
# Of these some samples end early, so that a large batch shrinks.
SHRINKING = [
    replace(e, dimensions=(40,)) for e in CLASSES if e.name in ("relu, b > 0 in some samples", "tau c near 1", "sin 3w")
]


def seed() -> str:
    return os.environ["RESOLVENT_HONESTY_SEED"]


@dataclass(frozen=True)
class Trial:
    """One class of equations, one solver, one precision."""

    equations: Equations
    solver: Solver
    dtype: torch.dtype
    count: int
    max_steps: int | None = None

    def run(self) -> Verdict:
        samples = self.draw()
        stopping = replace(samples.stopping, max_steps=self.max_steps)
        with torch.no_grad():
            solution = rs.resolve(
                samples.F, samples.b, samples.tau, samples.w0, self.solver, stopping, on_failure="ignore"
            )
        return Verdict(samples, solution)

    def run_backward(self) -> Verdict:
        """The solver on the transposed system u = g + tau M^T u, which the backward pass judges by rtol alone."""
        forward, solutions = self.draw(), list[rs.Solution]()
        b = torch.zeros_like(forward.b).requires_grad_()
        adjoint = rs.ImplicitAdjoint(self.solver, callback=solutions.append)
        options = {"stopping": rs.Stopping(max_steps=1), "adjoint": adjoint, "on_failure": "ignore"}
        rs.resolve(forward.F, b, forward.tau, solver=rs.Picard(), **options).value.backward(forward.b)
        transposed = replace(
            forward,
            function=product,
            conditions=(forward.conditions[0].mT.contiguous(),),
            distance=singular if self.equations.kind == "pole" else forward.distance,
            stopping=rs.Stopping(atol=0.0),
        )
        return Verdict(transposed, solutions[0])

    def draw(self) -> Samples:
        generator = torch.Generator().manual_seed(zlib.crc32(f"{seed()}/{self.key}".encode()))
        dimensions = self.equations.dimensions
        dim = dimensions[int(torch.randint(len(dimensions), (), generator=generator))]
        return self.equations.draw(generator, self.count, dim, self.dtype)

    @property
    def key(self) -> tuple[str, str, str]:
        return self.equations.name, str(self.solver), str(self.dtype).removeprefix("torch.")


class Table:
    """Counts of samples, claims and faults by class, solver and precision, with an example of each kind of fault."""

    def __init__(self) -> None:
        self.samples, self.claims = Counter[tuple[str, ...]](), Counter[tuple[str, ...]]()
        self.faults, self.examples = Counter[tuple[str, ...]](), dict[tuple[str, ...], str]()

    def add(self, trial: Trial, verdict: Verdict) -> None:
        self.samples[trial.key] += trial.count
        self.claims[trial.key] += int(verdict.converged.sum())
        for reason, rows in verdict.faults().items():
            self.faults[*trial.key, reason] += len(rows)
            self.examples.setdefault((*trial.key, reason), verdict.describe(int(rows[0])))

    def __str__(self) -> str:
        lines = [
            f"{self.faults.total()} faults in {self.samples.total()} samples, of which {self.claims.total()} claim "
            f"convergence; RESOLVENT_HONESTY_SEED={seed()} repeats them."
        ]
        for key, count in sorted(self.faults.items()):
            name, solver, dtype, reason = key
            lines.append(f"{name} | {solver} | {dtype}: {reason} in {count} of {self.samples[key[:3]]}")
            lines.append(f"    {self.examples[key]}")
        return "\n".join(lines)


def tabulate(trials: Iterable[Trial], backward: bool = False) -> Table:
    table = Table()
    for trial in trials:
        table.add(trial, trial.run_backward() if backward else trial.run())
    return table


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
    shrinking = [Trial(e, solver, dtype, 420) for e in SHRINKING for dtype in (DOUBLE, SINGLE)]
    return [*shrinking, *(Trial(e, solver, dtype, 40) for e in CLASSES for dtype in e.precisions)]


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
