"""Trials of a solver on a class of equations, judged anew, and tables of what they claim."""

import os
import zlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch

import resolvent as rs
from equations import Equations, Samples, product, singular
from linear_equations import LINEAR
from nonlinear_equations import NONLINEAR
from resolvent.extending import Solver
from verdict import Verdict

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
        return Verdict(transposed, solutions[0], backward=True)

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
