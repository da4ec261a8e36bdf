"""`AllTogether`: solves several theta layers as one equation."""

import dataclasses
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from resolvent.blocks.strategies.group_tolerance import accurate, are_stages, group_options, states_of_stages
from resolvent.blocks.strategies.some_in_turn import mixed_steps, solved_apart
from resolvent.blocks.strategies.strategy import Strategy
from resolvent.equation.adjoint import ImplicitAdjoint, UnrolledAdjoint
from resolvent.equation.failure import Mask
from resolvent.equation.function import Function, KeptRows
from resolvent.equation.layer_columns import MIN_BATCH, MOST_UNKNOWNS
from resolvent.equation.mixing import LayerMixing
from resolvent.equation.norms import length, select
from resolvent.equation.options import SolveOptions
from resolvent.equation.problem import changed
from resolvent.equation.solution import Solution
from resolvent.equation.torch_func import forward_mode, transforming
from resolvent.schemes.interval import Number
from resolvent.schemes.scheme import Carry, Step
from resolvent.solvers.auto import Auto, AutoGroup
from resolvent.solvers.resolve import resolve_with

if TYPE_CHECKING:
    from resolvent.blocks.pass_ import Pass

# A fixed-point iteration contracts if the ratio of two successive changes is below this.
_CONTRACTS = 1.0
# The most unknowns of a group by Newton's method alone, and of one by the fixed point.
_MOST_BY_NEWTON, _MOST_BY_FIXED_POINT = 64, 512
# The fixed point contracts too slowly in groups of many layers that span a long time.
_LAYERS, _LAYERS_IF_SHORT, _SHORT = 8, 32, 4.0

FEWEST = 3
"""The fewest layers of a group that gain by being solved together."""


@dataclass(frozen=True)
class AllTogether(Strategy):
    """Solves all layers of the midpoint form at once, in groups of a limited number of unknowns.

    The stages w_n of the layers satisfy

        w_n = x + h (F(w_0) + ... + F(w_{n-1}) + theta F(w_n)),

    one resolvent equation for the unknowns of all layers, in which each evaluation of the field covers all layers. It
    is solved by Newton's method with a block triangular matrix if a state has one or two unknowns. If it has more, the
    fixed point solves the samples that contract quickly; for up to 24 unknowns Newton's method solves the others. For
    theta = 1 the states are the stages; otherwise they follow from the slopes at the stages,
    y_n = x + h (F(w_0) + ... + F(w_n)). Recovering them from the stages alone, y_n = y_{n-1} + (w_n - y_{n-1}) / theta,
    would save that evaluation, but rounding accumulates over the layers. For few unknowns an evaluation of the field
    costs the same for one layer and for many, so the block is several times as fast.

    The groups depend on the number of layers, their step and the unknowns of a sample. A sample whose group does not
    converge is solved layer by layer, independently of the others.

    Arguments:
        most_unknowns: of a group. None takes 64 for states of one or two unknowns, and 512 for larger ones, in at most
            eight layers, or 32 if they span a time of no more than four.

    Reference: Lim et al., Parallelizing non-linear sequential models over the sequence length, 2024.
    """

    most_unknowns: int | None = None

    def __post_init__(self) -> None:
        most = self.most_unknowns
        if most is not None and (not isinstance(most, int) or isinstance(most, bool) or most < 1):
            raise ValueError(f"most_unknowns must be 1 or more, or None, got {most!r}.")

    def check(self, pass_: "Pass") -> None:
        obstacle = self.obstacle(pass_)
        if obstacle:
            raise ValueError(f"layers are solved together by Newton's method, which {obstacle}.")

    def obstacle(self, pass_: "Pass") -> str | None:
        """Why the layers of a pass cannot be solved together, or None."""
        scheme, options = pass_.scheme, pass_.options
        if scheme.chord is None:
            return "takes theta layers in the midpoint form"
        if not pass_.equal:
            return 'takes equal steps, the same for all samples: take mode="sequential"'
        if not pass_.vector_field.rowwise:
            return f"takes a field that treats samples alone; {type(pass_.field).__name__} does not declare rowwise"
        if options.solver != Auto() or pass_.reuse or pass_.guess is not None:
            return "accepts no other solver, no starting guess and no reuse"
        if isinstance(options.adjoint, UnrolledAdjoint):
            return "cannot be unrolled here: take adjoint=rs.ImplicitAdjoint()"
        if not pass_.stores:
            return "keeps all layers in memory: take memory='store'"
        if options.stopping.fixed:
            return "must check convergence, got rs.FixedSteps(...)"
        if isinstance(options.stopping.atol, Tensor):
            return "takes one number as the absolute tolerance, got a tensor"
        return None

    def group(self, pass_: "Pass", x: Tensor) -> int:
        """The number of layers that are solved together."""
        unknowns = max(1, math.prod(x.shape[1:]))
        most = _most_layers(unknowns, pass_.h) if self.most_unknowns is None else max(1, self.most_unknowns // unknowns)
        # Groups of similar size, so that the last is not a single layer.
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


def _most_layers(unknowns: int, h: Number) -> int:
    """The size of the groups that were fastest on batches of 5 to 256 samples of this many unknowns."""
    if AutoGroup(unknowns).newton_alone:
        return _MOST_BY_NEWTON // unknowns
    # A learned step may change, and to read it may take time.
    layers = _LAYERS if isinstance(h, Tensor) or h == 0 else int(_SHORT / abs(h))
    return max(1, min(max(_LAYERS, min(layers, _LAYERS_IF_SHORT)), _MOST_BY_FIXED_POINT // unknowns))


def applies(pass_: "Pass", x: Tensor) -> bool:
    """Whether this call can be solved in groups: explicit layers need no solve, `torch.func` cannot split a batch, and
    half precision gains nothing."""
    half = x.dtype.itemsize < 4 or (torch.is_autocast_enabled(x.device.type) and x.dtype != torch.float64)
    return not (not pass_.scheme.implicit or transforming() or forward_mode() or half)


def together(pass_: "Pass", numbers: range, x: Tensor, plan: AutoGroup | None = None) -> tuple[Step, ...]:
    """The layers with these numbers, from the state x. Samples that do not converge are solved layer by layer."""
    plan = AutoGroup(max(1, math.prod(x.shape[1:]))) if plan is None else plan
    solution, states, kept = _solve(pass_, numbers, x, plan, None)
    if isinstance(policy := pass_.options.on_failure, Mask):
        # The other samples are counted when they are solved layer by layer.
        policy.count_converged(int(kept.sum()) * len(numbers))
    if bool(kept.all()):
        return group_steps(solution, states)
    good, bad = kept.nonzero().squeeze(1), (~kept).nonzero().squeeze(1)
    slow = solved_apart(pass_, numbers, x, solution, good, bad)
    rest = torch.stack([step.state for step in slow], dim=1)
    if len(good) == 0:
        states, stages = rest, None
    else:
        # Again for the good samples alone: their gradient must not involve the failed ones.
        again, quick, _ = _solve(pass_.take(good, len(x)), numbers, x[good], plan, solution.value[good].detach())
        order = torch.cat([good, bad]).argsort()
        states, stages = torch.cat([quick, rest])[order], again.value
    return mixed_steps(solution, states, stages, good, bad, slow)


def _solve(
    pass_: "Pass", numbers: range, x: Tensor, plan: AutoGroup, w0: Tensor | None
) -> tuple[Solution, Tensor, Tensor]:
    """The stages of the layers as the solution of one equation, the states that follow, (batch, layers, *shape), and
    (batch,) whether both meet the tolerance."""
    theta = pass_.scheme.chord
    assert theta is not None
    F, b, h, options = pose(pass_, numbers, x, plan)
    start = _sweep(F, b.detach(), h) if w0 is None and plan.newton_alone else w0
    solution = resolve_with(options, F, b, h, start)
    if are_stages(theta):
        return solution, solution.value, solution.converged
    states = _states(F, b, h, solution.value, theta)
    if solution.quick and len(solution.solvers) == 1:
        return solution, states, solution.converged
    accurate_states = accurate(pass_, F, b[:, 0], solution.value, states)
    if solution.quick:
        # These have contracted, so that errors of their stages are not amplified.
        accurate_states = accurate_states | (solution.solver_index == 0)
    return solution, states, solution.converged & accurate_states


def pose(pass_: "Pass", numbers: range, x: Tensor, plan: AutoGroup) -> tuple[Function, Tensor, Number, SolveOptions]:
    """The equation of the stages, w = b + h F(w), and how it is solved: F, b, h and the options."""
    theta, count, field = pass_.scheme.chord, len(numbers), pass_.vector_field
    assert theta is not None
    first = pass_.interval(numbers[0])
    # Autonomous fields do not see the times, and fifty of them take longer than a Newton step.
    times = [] if field.autonomous else [pass_.interval(n).time(theta) for n in numbers]
    kept = None if are_stages(theta) else KeptRows()
    columns = x.dim() == 2 and x.shape[1] <= MOST_UNKNOWNS and len(x) >= MIN_BATCH
    F = field.together(times, LayerMixing(theta), x)
    # A chain of wider layers takes longer in columns than as the modules that it is made of.
    call = F.in_parts(len(x) * count) if x.dim() == 2 and x.shape[1] <= MOST_UNKNOWNS else F.call
    F = changed(F, call=call, kept=kept, by_rows=columns)
    # A large batch of small states is stored with samples as columns, and so is all that is computed from it.
    x = x.t().contiguous().t() if columns else x
    b = x.unsqueeze(1).expand(-1, count, *x.shape[1:])
    options = group_options(_for_group(first.options, numbers, plan), theta, count, plan.contracting, b)
    return F, b, first.step, changed(options, solver=plan.to_tolerance(options.stopping.relative(b.dtype)))


def _states(F: Function, b: Tensor, h: Number, stages: Tensor, theta: Number) -> Tensor:
    """The states from the slopes at the stages, y = b + h L f(w), L lower triangular with ones.

    At a solution they are also linear in the stages: w = b + h M f(w) gives y = b + L M^{-1} (w - b). Their derivative
    is that of this formula, which saves the graph of F, except for theta below 1/2, where the entries of that matrix
    grow from layer to layer.
    """
    sums = LayerMixing(1.0)
    recording = torch.is_grad_enabled()
    assert F.kept is not None
    slopes = F.kept.take(stages)
    if recording and (isinstance(theta, Tensor) or theta < 0.5 or not stages.requires_grad):
        return b + h * F.with_mix(sums)(stages)
    with torch.no_grad():
        states = b + h * (F.with_mix(sums)(stages) if slopes is None else sums(slopes))
    if not recording:
        return states
    recovered = states_of_stages(theta, b, stages)
    return states + (recovered - recovered.detach())


def _for_group(options: SolveOptions, numbers: range, plan: AutoGroup) -> SolveOptions:
    """The options for a group. They ignore failures: failed samples are solved layer by layer, which reports failures.
    The backward solve has no fallback, and keeps the policy of the block."""
    adjoint, place = options.adjoint, options.place
    if isinstance(adjoint, ImplicitAdjoint) and adjoint.on_failure is None:
        adjoint = dataclasses.replace(adjoint, on_failure=options.on_failure)
    if place is not None:
        place = dataclasses.replace(place, last=numbers[-1])
    observe = None if options.observe is None else partial(_observe_solved, options.observe)
    return dataclasses.replace(options, solver=plan, adjoint=adjoint, on_failure="ignore", place=place, observe=observe)


def _observe_solved(observe: Callable[[Solution], None], solution: Solution) -> None:
    """Passes on what was solved. The other samples are observed when they are solved layer by layer."""
    if not (solution.linear or solution.all_converged):
        solution = solution.take(solution.converged.nonzero().squeeze(1))
    observe(solution)


@torch.no_grad()
def _sweep(F: Function, b: Tensor, h: Number) -> Tensor:
    """Two fixed-point steps from b, for the samples where they contract; b itself for the others.

    They cost less than the Newton steps they save, which need a Jacobian.
    """
    first = b + h * F(b)
    second = b + h * F(first)
    return select(length(second - first) < _CONTRACTS * length(first - b), second, b)


def group_steps(solution: Solution, states: Tensor) -> tuple[Step, ...]:
    """The steps of a group that was solved as one, with its solution in the first."""
    return tuple(Step(Carry((y,)), (solution,) if n == 0 else ()) for n, y in enumerate(states.unbind(1)))
