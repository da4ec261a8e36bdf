"""Theta layers that are solved for together, as one equation."""

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from resolvent.blocks.strategies.strategy import Strategy
from resolvent.equation.adjoint import ImplicitAdjoint, UnrolledAdjoint
from resolvent.equation.function import Function, mixed
from resolvent.equation.norms import rms, select
from resolvent.equation.options import SolveOptions
from resolvent.equation.solution import Solution, joined
from resolvent.equation.torch_func import forward_mode, transforming
from resolvent.schemes.interval import Number
from resolvent.schemes.scheme import Carry, Step
from resolvent.solvers.auto import Auto
from resolvent.solvers.newton import Newton

if TYPE_CHECKING:
    from resolvent.blocks.pass_ import Pass

# The ratio of two changes below which a fixed-point iteration is worth following.
_CONTRACTS = 1.0


@dataclass(frozen=True)
class AllTogether(Strategy):
    """Solves for all layers of the midpoint form at once, in groups of a limited number of unknowns.

    The stages w_n of the layers satisfy

        w_n = x + h (F(w_0) + ... + F(w_{n-1}) + theta F(w_n)),

    a resolvent of as many times the unknowns, in which every evaluation of the field serves all layers. Newton's method
    solves it, with a block triangular matrix. For theta >= 1/2 the states follow from the stages with no further
    evaluation, y_n = y_{n-1} + (w_n - y_{n-1}) / theta. For a smaller or a learned theta errors would grow that way,
    and the states follow from the slopes at the stages. For few unknowns an evaluation of the field costs the same for
    one layer and for many, so that the block is several times as fast.

    The groups follow from the number of layers and the unknowns of a sample. A sample whose group does not converge is
    solved for layer by layer, whatever becomes of the others.

    Arguments:
        most_unknowns: of a group; beyond, its matrix costs more than the evaluations that it saves.

    Reference: Lim et al., Parallelizing non-linear sequential models over the sequence length, 2024.
    """

    most_unknowns: int = 64

    def check(self, pass_: "Pass") -> None:
        obstacle = self.obstacle(pass_)
        if obstacle:
            raise ValueError(f"layers are solved for together by Newton's method, which {obstacle}.")

    def obstacle(self, pass_: "Pass") -> str | None:
        """What keeps the layers of a pass from being solved for together."""
        scheme, options = pass_.scheme, pass_.options
        if scheme.chord is None:
            return "takes theta layers in the midpoint form"
        if not pass_.vector_field.rowwise:
            return f"takes a field that treats samples alone; {type(pass_.field).__name__} does not say that it does"
        if options.solver != Auto() or pass_.reuse or pass_.guess is not None:
            return "leaves no choice of the solver, of its starting guess or of its reuse"
        if isinstance(options.adjoint, UnrolledAdjoint):
            return "is not differentiated through its iterations"
        if not pass_.stores:
            return "keeps all layers in memory: take memory='store'"
        if options.stopping.fixed:
            return "has to check whether it has converged, got rs.FixedSteps(...)"
        return None

    def group(self, pass_: "Pass", x: Tensor) -> int:
        """How many layers are solved for together."""
        most = max(1, self.most_unknowns // max(1, math.prod(x.shape[1:])))
        # Groups of like size: the last one is not to be a lone layer.
        return math.ceil(pass_.num_steps / math.ceil(pass_.num_steps / most))

    def steps(self, pass_: "Pass", x: Tensor) -> Iterator[Step]:
        size = self.group(pass_, x)
        if size == 1 or not applies(pass_, x):
            yield from pass_.in_turn(range(pass_.num_steps), x)
            return
        for start in range(0, pass_.num_steps, size):
            steps = together(pass_, range(start, min(start + size, pass_.num_steps)), x)
            yield from steps
            x = steps[-1].state


def applies(pass_: "Pass", x: Tensor) -> bool:
    """Whether this call can be served: explicit layers need no solve, `torch.func` cannot split a batch, and half
    precisions gain nothing."""
    half = x.dtype.itemsize < 4 or (torch.is_autocast_enabled(x.device.type) and x.dtype != torch.float64)
    return not (not pass_.scheme.implicit or transforming() or forward_mode() or half)


def together(pass_: "Pass", numbers: range, x: Tensor) -> tuple[Step, ...]:
    """The layers of these numbers, from the state x. Samples that do not converge together are solved for in turn."""
    solution, states = _solve(pass_, numbers, x, None)
    recovered_at_once = recovers(pass_.scheme.chord)
    kept = solution.converged if recovered_at_once else solution.converged & _accurate(pass_, solution)
    if (recovered_at_once and solution.all_converged) or bool(kept.all()):
        return _as_steps(solution, states)
    good, bad = kept.nonzero().squeeze(1), (~kept).nonzero().squeeze(1)
    slow = list(pass_.take(bad).in_turn(numbers, x[bad]))
    rest = torch.stack([step.state for step in slow], dim=1)
    if len(good) == 0:
        states, stages = rest, None
    else:
        # Once more for the good ones alone: the gradient must not pass through what the others left.
        again, quick = _solve(pass_.take(good), numbers, x[good], solution.value[good].detach())
        order = torch.cat([good, bad]).argsort()
        states, stages = torch.cat([quick, rest])[order], again.value
    return _mixed_steps(solution, states, stages, good, bad, slow)


def _solve(pass_: "Pass", numbers: range, x: Tensor, w0: Tensor | None) -> tuple[Solution, Tensor]:
    """The stages of the layers as the solution of one equation, and the states that follow, (batch, layers, *shape)."""
    theta, count = pass_.scheme.chord, len(numbers)
    assert theta is not None
    first = pass_.interval(numbers[0])
    first = dataclasses.replace(first, options=_group_options(first.options, numbers))
    lower = torch.ones(count, count, dtype=x.dtype, device=x.device).tril()
    mix = lower - (1 - theta) * torch.eye(count, dtype=x.dtype, device=x.device)
    F = pass_.vector_field.together([pass_.interval(n).time(theta) for n in numbers], mix, x, triangular=True)
    b = x.unsqueeze(1).expand(-1, count, *x.shape[1:])
    start = _sweep(F, b.detach(), first.step) if w0 is None else w0
    # An error of a stage enters the equations of all later layers, divided by theta.
    solution = first.solve(F, b, first.step, start, amplification=count / pass_.scheme.solved_at)
    if recovers(theta):
        return solution, recovered(float(theta), x, solution.value)
    return solution, b + first.step * F.with_mix(lower)(solution.value)


def _group_options(options: SolveOptions, numbers: range) -> SolveOptions:
    """Samples that fail together are solved for in turn, which reports failures. The backward solve has no second try,
    and keeps the policy of the block."""
    adjoint, place = options.adjoint, options.place
    if isinstance(adjoint, ImplicitAdjoint) and adjoint.on_failure is None:
        adjoint = dataclasses.replace(adjoint, on_failure=options.on_failure)
    if place is not None:
        place = dataclasses.replace(place, last=numbers[-1])
    return dataclasses.replace(options, solver=Newton(), adjoint=adjoint, on_failure="ignore", place=place)


def recovers(theta: Number | None) -> bool:
    """Whether the states are recovered from the stages alone: an error of a stage must not grow from layer to layer."""
    return theta is not None and not isinstance(theta, Tensor) and theta >= 0.5


def _accurate(pass_: "Pass", solution: Solution) -> Tensor:
    """(batch,), whether an error of the stages, times h F', is within the tolerance of the states."""
    assert solution.matrix is not None
    size, stopping = rms(solution.value.detach()), pass_.options.stopping
    tolerance = stopping.absolute(size.dtype) + stopping.relative(size.dtype) * size
    return solution.matrix.dense().abs().amax(dim=(1, 2)) * solution.residual <= tolerance


@torch.no_grad()
def _sweep(F: Function, b: Tensor, h: Number) -> Tensor:
    """Two steps of the fixed point from b, for the samples where it contracts; b itself for the others.

    They are cheap beside the steps of Newton's method that they save, which come with a Jacobian.
    """
    first = b + h * F(b)
    second = b + h * F(first)
    return select(rms(second - first) < _CONTRACTS * rms(first - b), second, b)


def recovered(theta: float, x: Tensor, stages: Tensor) -> Tensor:
    """y_n = (1 - 1/theta) y_{n-1} + w_n / theta for all layers, (batch, layers, *shape)."""
    if theta == 1:
        return stages
    count, ratio = stages.shape[1], 1 - 1 / theta
    powers = torch.tensor([ratio**n for n in range(count + 1)], dtype=x.dtype, device=x.device)
    differences = torch.arange(count, device=x.device)[:, None] - torch.arange(count, device=x.device)
    weights = powers[differences.clamp(min=0)].tril() / theta
    return mixed(weights, stages) + powers[1:].reshape(-1, *(1,) * (x.dim() - 1)) * x.unsqueeze(1)


def _as_steps(solution: Solution, states: Tensor) -> tuple[Step, ...]:
    return tuple(Step(Carry((y,)), (solution,) if n == 0 else ()) for n, y in enumerate(states.unbind(1)))


def _mixed_steps(
    solution: Solution, states: Tensor, stages: Tensor | None, good: Tensor, bad: Tensor, slow: list[Step]
) -> tuple[Step, ...]:
    """The steps of a batch in which some samples were solved for in turn, with one solution for each layer.

    What the solve of all layers cost every sample counts in the first.
    """
    steps = []
    for n, (y, step) in enumerate(zip(states.unbind(1), slow, strict=True)):
        quick = None if stages is None else stages[:, n]
        steps.append(Step(Carry((y,)), (joined(solution, good, quick, bad, step.solutions[0], n == 0),)))
    return tuple(steps)
