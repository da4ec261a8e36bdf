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
from resolvent.equation.function import Function
from resolvent.equation.norms import rms, select
from resolvent.equation.options import SolveOptions
from resolvent.equation.solution import Solution, joined
from resolvent.equation.torch_func import forward_mode, transforming
from resolvent.schemes.interval import Number
from resolvent.schemes.scheme import Carry, Step
from resolvent.solvers.auto import Auto
from resolvent.solvers.newton import Newton
from resolvent.solvers.resolve import resolve_with

if TYPE_CHECKING:
    from resolvent.blocks.pass_ import Pass

# The ratio of two changes below which a fixed-point iteration is worth following.
_CONTRACTS = 1.0
# What h F' is allowed for. Where it is larger, states may be too inaccurate, and are then solved for layer by layer.
_SLOPES = 1e3
# A stage cannot be asked to be more accurate than so many roundings of the states.
_ROUNDINGS = 4.0


@dataclass(frozen=True)
class AllTogether(Strategy):
    """Solves for all layers of the midpoint form at once, in groups of a limited number of unknowns.

    The stages w_n of the layers satisfy

        w_n = x + h (F(w_0) + ... + F(w_{n-1}) + theta F(w_n)),

    a resolvent of as many times the unknowns, in which every evaluation of the field serves all layers. Newton's method
    solves it, with a block triangular matrix. For theta = 1 the states are the stages; otherwise they follow from the
    slopes at the stages, y_n = x + h (F(w_0) + ... + F(w_n)). To recover them from the stages alone,
    y_n = y_{n-1} + (w_n - y_{n-1}) / theta, was tried: it saves that evaluation, but rounding adds up over the layers.
    For few unknowns an evaluation of the field costs the same for one layer and for many, so that the block is several
    times as fast.

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
    solution, states, kept = _solve(pass_, numbers, x, None)
    if bool(kept.all()):
        return _as_steps(solution, states)
    good, bad = kept.nonzero().squeeze(1), (~kept).nonzero().squeeze(1)
    slow = list(pass_.take(bad).in_turn(numbers, x[bad]))
    rest = torch.stack([step.state for step in slow], dim=1)
    if len(good) == 0:
        states, stages = rest, None
    else:
        # Once more for the good ones alone: the gradient must not pass through what the others left.
        again, quick, _ = _solve(pass_.take(good), numbers, x[good], solution.value[good].detach())
        order = torch.cat([good, bad]).argsort()
        states, stages = torch.cat([quick, rest])[order], again.value
    return _mixed_steps(solution, states, stages, good, bad, slow)


def _solve(pass_: "Pass", numbers: range, x: Tensor, w0: Tensor | None) -> tuple[Solution, Tensor, Tensor]:
    """The stages of the layers as the solution of one equation, the states that follow, (batch, layers, *shape), and
    (batch,) whether both are as accurate as asked for."""
    theta, count = pass_.scheme.chord, len(numbers)
    assert theta is not None
    first = pass_.interval(numbers[0])
    first = dataclasses.replace(first, options=_group_options(first.options, numbers))
    lower = torch.ones(count, count, dtype=x.dtype, device=x.device).tril()
    mix = lower - (1 - theta) * torch.eye(count, dtype=x.dtype, device=x.device)
    F = pass_.vector_field.together([pass_.interval(n).time(theta) for n in numbers], mix, x, triangular=True)
    b = x.unsqueeze(1).expand(-1, count, *x.shape[1:])
    start = _sweep(F, b.detach(), first.step) if w0 is None else w0
    options = first.options.tightened(group_amplification(theta, count), b)
    solution = resolve_with(options, F, b, first.step, start)
    if _are_stages(theta):
        return solution, solution.value, solution.converged
    states = b + first.step * F.with_mix(lower)(solution.value)
    return solution, states, solution.converged & _accurate(pass_, F, x, solution.value, states)


def _group_options(options: SolveOptions, numbers: range) -> SolveOptions:
    """Samples that fail together are solved for in turn, which reports failures. The backward solve has no second try,
    and keeps the policy of the block."""
    adjoint, place = options.adjoint, options.place
    if isinstance(adjoint, ImplicitAdjoint) and adjoint.on_failure is None:
        adjoint = dataclasses.replace(adjoint, on_failure=options.on_failure)
    if place is not None:
        place = dataclasses.replace(place, last=numbers[-1])
    return dataclasses.replace(options, solver=Newton(), adjoint=adjoint, on_failure="ignore", place=place)


def group_amplification(theta: Number, layers: int) -> float:
    """By how much the tolerance of a group is tighter than that of a layer: its norm is a mean over the layers, and the
    slopes that states are made of enlarge an error of the stages. Newton's method takes about one step for it."""
    return layers * (1.0 if _are_stages(theta) else _SLOPES)


def _are_stages(theta: Number | None) -> bool:
    """Whether the states are the stages."""
    return not isinstance(theta, Tensor) and theta == 1


@torch.no_grad()
def _accurate(pass_: "Pass", F: Function, x: Tensor, solved: Tensor, states: Tensor) -> Tensor:
    """(batch,), whether the states satisfy the equation of every layer to the tolerance,

        y_n = y_{n-1} + h F((1 - theta) y_{n-1} + theta y_n),

    or the stages that were `solved` for are those of this equation to rounding. Where h F' is large, small errors of
    the stages make large ones of the states.
    """
    theta, stopping = pass_.scheme.chord, pass_.options.stopping
    assert theta is not None
    ends = states.detach()
    starts = torch.cat([x.detach().unsqueeze(1), ends[:, :-1]], dim=1)
    stages = starts + theta * (ends - starts)
    size = torch.maximum(_largest(starts), _largest(ends))
    kept = _largest(stages - solved.detach()) <= _ROUNDINGS * torch.finfo(x.dtype).eps * size
    if bool(kept.all()):
        return kept
    slopes = F.single_rows(stages.flatten(0, 1)).reshape(stages.shape)
    defect = _largest(ends - starts - pass_.h * slopes)
    return kept | (defect <= stopping.absolute(x.dtype) + stopping.relative(x.dtype) * size)


def _largest(rows: Tensor) -> Tensor:
    """(batch,), the largest norm of a layer; `rows` has shape (batch, layers, *shape)."""
    return rms(rows.flatten(0, 1)).reshape(rows.shape[:2]).amax(1)


@torch.no_grad()
def _sweep(F: Function, b: Tensor, h: Number) -> Tensor:
    """Two steps of the fixed point from b, for the samples where it contracts; b itself for the others.

    They are cheap beside the steps of Newton's method that they save, which come with a Jacobian.
    """
    first = b + h * F(b)
    second = b + h * F(first)
    return select(rms(second - first) < _CONTRACTS * rms(first - b), second, b)


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
