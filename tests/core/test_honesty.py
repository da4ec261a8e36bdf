"""No solver may claim a solution that it has not found.

Every solver meets every class of equations in every precision, and what it calls converged is judged anew, in double
precision, from the values it returned. The seed changes from run to run; RESOLVENT_HONESTY_SEED repeats one.
"""

import os
import random
import zlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

import resolvent as rs
from equation_classes import CLASSES
from equations import ATOL, DOUBLE, RTOL, SINGLE, Equations, Samples, product, rms
from manufactured import LINEAR_SOLVERS, SOLVERS

# A residual within so many tolerances at the scale of the equation itself, of b and the first residual, is evidence.
EARNED = 10.0
# One that is small beside abs(w) alone is none: a solution has to be within this fraction of the value.
NEAR = 0.5
# These take many or costly steps, and get fewer of them and fewer samples.
COSTLY = (rs.NewtonKrylov, rs.GradientDescent, rs.ConjugateGradient, rs.LBFGS)
# Systems A w = b, whose transposes the backward pass solves.
SYSTEMS = [
    e for e in CLASSES if e.name.startswith(("affine", "rotation", "skew", "singular", "nearly", "large solution, r"))
]


def seed() -> str:
    return os.environ["RESOLVENT_HONESTY_SEED"]


@dataclass(frozen=True)
class Trial:
    """One class of equations, one solver, one precision."""

    equations: Equations
    solver: rs.Solver
    dtype: torch.dtype
    count: int
    max_steps: int | None = None

    def run(self) -> "Verdict":
        samples = self.draw()
        stopping = replace(samples.stopping, max_steps=self.max_steps)
        with torch.no_grad():
            solution = rs.resolve(
                samples.F, samples.b, samples.tau, samples.w0, self.solver, stopping, on_failure="ignore"
            )
        return Verdict(self, samples, solution)

    def run_backward(self) -> "Verdict":
        """The solver on the transposed system u = g + tau M^T u, which the backward pass judges by rtol alone."""
        forward, solutions = self.draw(), list[rs.Solution]()
        transposed = (forward.conditions[0].mT.contiguous(),)
        samples = replace(forward, function=product, conditions=transposed, stopping=rs.Stopping(atol=0.0))
        b = torch.zeros_like(forward.b).requires_grad_()
        adjoint = rs.ImplicitAdjoint(self.solver, callback=solutions.append)
        options = {"stopping": rs.Stopping(max_steps=1), "adjoint": adjoint, "on_failure": "ignore"}
        rs.resolve(forward.F, b, forward.tau, solver=rs.Picard(), **options).value.backward(forward.b)
        return Verdict(self, samples, solutions[0])

    def draw(self) -> Samples:
        name = f"{seed()}/{self.equations.name}/{self.solver}/{self.dtype}"
        generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
        dimensions = self.equations.dimensions
        dim = dimensions[int(torch.randint(len(dimensions), (), generator=generator))]
        return self.equations.draw(generator, self.count, dim, self.dtype)


class Verdict:
    """What is false in a solution, found in float64 from the returned values and the rounded coefficients."""

    def __init__(self, trial: Trial, samples: Samples, solution: rs.Solution) -> None:
        exact, dtype = samples.to(DOUBLE), samples.b.dtype
        value = solution.value.detach().to(DOUBLE)
        atol = ATOL[dtype] if samples.stopping.atol is None else samples.stopping.atol
        first = exact.b if exact.w0 is None else exact.w0
        scale = torch.stack([rms(exact.b), rms(first), rms(exact.defect(first))]).amax(0)
        small = atol + RTOL[dtype] * scale
        self.trial, self.b, self.value, self.steps = trial, exact.b, value, solution.steps
        self.converged = solution.status == rs.Status.CONVERGED
        self.residual, self.reported = rms(exact.defect(value)), solution.residual.to(DOUBLE)
        self.tolerance = atol + RTOL[dtype] * torch.maximum(rms(exact.b), rms(value))
        self.rounding = _rounding(samples, exact, solution.value.detach())
        self.distance = torch.zeros_like(self.residual) if exact.distance is None else exact.distance(exact, value)
        near = self.distance <= NEAR * rms(value)
        self.reasons = {
            "not finite": ~value.isfinite().all(1),
            "residual above its tolerance": ~(self.residual <= self.tolerance + self.rounding),
            "no solution": (self.distance == torch.inf) & ~(self.residual <= small),
            "far from every solution": ~(self.residual <= EARNED * small) & ~near,
        }

    def false(self) -> dict[str, Tensor]:
        """The indices of the samples with a false claim, by its first reason."""
        found, left = {}, self.converged
        for reason, holds in self.reasons.items():
            if (left & holds).any():
                found[reason] = (left & holds).nonzero()[:, 0]
            left = left & ~holds
        return found

    def misreported(self) -> Tensor:
        """The indices of the samples whose residual, as it is reported, is not that of their value."""
        finite = self.residual.isfinite() & self.reported.isfinite() & self.rounding.isfinite()
        return (finite & ((self.reported - self.residual).abs() > self.rounding + 1e-6 * self.residual)).nonzero()[:, 0]

    def describe(self, index: int) -> str:
        def shown(x: Tensor) -> str:
            numbers = [f"{v:.6g}" for v in x[index].flatten().tolist()]
            return " ".join(numbers[:6]) + (f" ... ({len(numbers)} unknowns)" if len(numbers) > 6 else "")

        return (
            f"sample {index}: b = {shown(self.b)}; value = {shown(self.value)}; residual {shown(self.residual)}, "
            f"reported {shown(self.reported)}, tolerance {shown(self.tolerance)}, rounding {shown(self.rounding)}, "
            f"distance from a solution {shown(self.distance)}, {shown(self.steps)} steps"
        )


def _rounding(samples: Samples, exact: Samples, value: Tensor) -> Tensor:
    """How far the residual in the precision of the solve may be from the one in float64, at the same value.

    The solver keeps w in at least single precision; F sees it rounded to the precision of b, and so is the value that
    is returned. That moves w alone, by half an epsilon. F was evaluated at this very value, so its rounding is measured
    here; twice, because a vectorised function may differ in the last place with the row's position in the batch. The
    product with tau, the sum with b and the difference from w round once each, in the working precision.
    """
    w, tau = value.to(DOUBLE), exact.tau[:, None]
    image = exact.F(w)
    error = rms(tau * (samples.F(value).to(DOUBLE) - image))
    working = torch.promote_types(value.dtype, torch.float32)
    returned = 0.0 if value.dtype == working else torch.finfo(value.dtype).eps / 2
    terms = rms(exact.b) + rms(tau * image) + rms(w)
    return 2 * error + returned * rms(w) + torch.finfo(working).eps * terms


class Table:
    """Counts of samples, claims and false claims by class, solver and precision, with an example of each kind."""

    def __init__(self, verdicts: Iterable[Verdict] = ()) -> None:
        self.samples, self.claims = Counter[tuple[str, ...]](), Counter[tuple[str, ...]]()
        self.false, self.examples = Counter[tuple[str, ...]](), dict[tuple[str, ...], str]()
        for verdict in verdicts:
            self.add(verdict)

    def add(self, verdict: Verdict) -> None:
        trial = verdict.trial
        key = (trial.equations.name, str(trial.solver), str(trial.dtype).removeprefix("torch."))
        self.samples[key] += trial.count
        self.claims[key] += int(verdict.converged.sum())
        for reason, rows in [*verdict.false().items(), ("misreported residual", verdict.misreported())]:
            if len(rows):
                self.false[*key, reason] += len(rows)
                self.examples.setdefault((*key, reason), verdict.describe(int(rows[0])))

    def __str__(self) -> str:
        lines = [
            f"{self.false.total()} faults in {self.samples.total()} samples, {self.claims.total()} of which claim "
            f"convergence; RESOLVENT_HONESTY_SEED={seed()} repeats them."
        ]
        for key, count in sorted(self.false.items()):
            name, solver, dtype, reason = key
            lines.append(f"{name} | {solver} | {dtype}: {reason} in {count} of {self.samples[key[:3]]}")
            lines.append(f"    {self.examples[key]}")
        return "\n".join(lines)


def crossed(solver: rs.Solver, count: int) -> list[Trial]:
    """Every class in every precision."""
    steps, count = (100, max(count // 3, 1)) if isinstance(solver, COSTLY) else (None, count)
    return [Trial(e, solver, dtype, count, steps) for e in CLASSES for dtype in e.precisions]


def picked(solver: rs.Solver, count: int) -> list[Trial]:
    """Every class in one precision; for a costly solver a part of the classes."""
    choice = random.Random(f"{seed()}/{solver}")
    if isinstance(solver, COSTLY):
        return [Trial(e, solver, choice.choice(e.precisions), count, 50) for e in choice.sample(CLASSES, 16)]
    return [Trial(e, solver, choice.choice(e.precisions), count) for e in CLASSES]


@pytest.mark.parametrize("solver", SOLVERS, ids=str)
def test_no_claim_of_convergence_is_false(solver: rs.Solver) -> None:
    table = Table(trial.run() for trial in picked(solver, 8))
    assert not table.false, str(table)


@pytest.mark.slow
@pytest.mark.parametrize("solver", SOLVERS, ids=str)
def test_no_claim_of_convergence_is_false_in_a_hundred_thousand(solver: rs.Solver) -> None:
    table = Table(trial.run() for trial in crossed(solver, 42))
    assert not table.false, str(table)


@pytest.mark.parametrize("solver", LINEAR_SOLVERS, ids=str)
@pytest.mark.parametrize("count", [4, pytest.param(40, marks=pytest.mark.slow)])
def test_no_claim_of_the_backward_pass_is_false(solver: rs.Solver, count: int) -> None:
    trials = [Trial(e, solver, dtype, count) for e in SYSTEMS for dtype in (DOUBLE, SINGLE)]
    table = Table(trial.run_backward() for trial in trials)
    assert not table.false, str(table)


@pytest.mark.parametrize("count", [4, pytest.param(100, marks=pytest.mark.slow)])
def test_the_default_solves_what_can_be_solved(count: int) -> None:
    """A judge that refused everything would make no false claim either."""
    table = Table(Trial(e, rs.Auto(), dtype, count).run() for e in CLASSES for dtype in e.solvable)
    refused = [
        f"{' | '.join(key)}: {table.claims[key]} of {n}" for key, n in table.samples.items() if table.claims[key] < n
    ]
    assert not refused, f"RESOLVENT_HONESTY_SEED={seed()}, solved:\n" + "\n".join(refused)
