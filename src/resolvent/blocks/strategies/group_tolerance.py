"""The tolerance of a group of layers: every layer must be as accurate as if it had been solved alone."""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from resolvent.equation.function import Function
from resolvent.equation.mixing import LayerMixing, MatrixMixing
from resolvent.equation.norms import row_lengths, take
from resolvent.equation.options import SolveOptions, precision_of
from resolvent.equation.parts import PartTest
from resolvent.equation.problem import changed
from resolvent.equation.stopping import Stopping, StoppingRule
from resolvent.equation.torch_func import all_true, any_true
from resolvent.schemes.interval import Number

if TYPE_CHECKING:
    from resolvent.blocks.pass_ import Pass
    from resolvent.equation.problem import Problem
    from resolvent.equation.solver import State

# The largest h F' that the tolerance of a group allows for. Beyond it states may be inaccurate; such samples are solved
# layer by layer.
_SLOPES = 1e3
# A stage is accurate if its error is at most this many roundings of the states.
_ROUNDINGS = 4.0


@dataclass(frozen=True)
class LayerTest(PartTest):
    """Whether the equation of every layer n, w_n = y_{n-1} + theta h F(w_n), is solved to the tolerance of a layer,
    which is relative to the larger one of w_n and y_{n-1}.

    Its defect is that of the group in row n, if the states y follow from the slopes at the stages w. If they are the
    stages, theta = 1, it is the difference from the row before.
    """

    rtol: float
    atol: float
    theta: float

    final = True

    @property
    def are_stages(self) -> bool:
        return self.theta == 1

    def size(self, r: Tensor) -> Tensor:
        return _longest(r)

    def unit(self, r: Tensor) -> float:
        return math.sqrt(max(1, math.prod(r.shape[2:])))

    def within(self, wanted: Tensor, problem: "Problem", state: "State") -> Tensor:
        if not any_true(wanted):
            return wanted
        assert state.r is not None
        # Most solves end well below the tolerance, where the extremes decide.
        largest = (1 + self.are_stages) * row_lengths(state.r).amax(1)
        surely = wanted & (largest <= self._tolerance(row_lengths(state.w).amin(1), state.w))
        return surely if torch.equal(surely, wanted) else self.each(wanted, state.r, problem.b, state.w)

    def each(self, wanted: Tensor, r: Tensor, b: Tensor, w: Tensor, states: Tensor | None = None) -> Tensor:
        """The same with no decision on the way; r is the defect of w. The `states` that follow may be known."""
        own = row_lengths(w)
        if self.are_stages:
            lengths = own
        elif states is None:
            lengths = own if self.theta < 0.5 else row_lengths(states_of_stages(self.theta, b, w))
        else:
            lengths = row_lengths(states)
        size = torch.maximum(own, torch.cat([row_lengths(b[:, :1]), lengths[:, :-1]], 1))
        if self.are_stages:
            r = torch.cat([r[:, :1], r[:, 1:] - r[:, :-1]], 1)
        return wanted & (row_lengths(r) <= self._tolerance(size, w)).all(1)

    def _tolerance(self, lengths: Tensor, w: Tensor) -> Tensor:
        return self.rtol * lengths + self.atol * math.sqrt(max(1, math.prod(w.shape[2:])))


@dataclass(frozen=True)
class GroupStopping(Stopping):
    """The rule for a group. Its norm is a mean over the layers; `layers` tests each of them. `quick` is the rule for
    samples that contract, whose errors are amplified less."""

    layers: LayerTest | None = None
    quick: StoppingRule | None = None

    def parts(self, b: Tensor, precision: torch.dtype) -> PartTest | None:
        return self.layers

    def for_contraction(self) -> StoppingRule:
        return self.quick or self


def group_options(options: SolveOptions, theta: Number, count: int, contracting: bool, b: Tensor) -> SolveOptions:
    """The options with the tolerance of a group of `count` layers; `contracting` if only samples that contract are
    solved for."""
    theta = float(theta.detach() if isinstance(theta, Tensor) else theta)
    rule = _group_stopping(options.stopping, theta, count, contracting, precision_of(b))
    return changed(options, stopping=rule, asked=options.asked or options.stopping)


@lru_cache(maxsize=64)
def _group_stopping(
    rule: StoppingRule, theta: float, count: int, contracting: bool, precision: torch.dtype
) -> StoppingRule:
    tight = rule.tightened(group_amplification(theta, count, contracting), precision)
    if not isinstance(rule, Stopping):  # A rule of the user's own.
        return tight
    others = (rule.max_steps, rule.patience, rule.divergence, rule.check_every)
    test = LayerTest(rule.relative(precision), rule.absolute(precision), theta)
    quick = None if contracting else _group_stopping(rule, theta, count, True, precision)
    return GroupStopping(tight.rtol, tight.atol, *others, test, quick)


def group_amplification(theta: Number, layers: int, contracting: bool = False) -> float:
    """The factor by which the tolerance of a group is tighter than that of a layer: its norm is a mean over the layers,
    and the slopes in the states amplify an error of the stages by h F'. That is at most 1 / theta for samples that
    contract, as in a single layer."""
    if are_stages(theta):
        return float(layers)
    return layers / float(theta) if contracting else layers * _SLOPES


def are_stages(theta: Number | None) -> bool:
    """Whether the states are the stages."""
    return not isinstance(theta, Tensor) and theta == 1


def states_of_stages(theta: Number, b: Tensor, stages: Tensor) -> Tensor:
    """The states of the layers from their stages. With L lower triangular of ones and M that of the layers,
    w = b + h M f gives y = b + h L f = b + L M^{-1} (w - b). For theta below 1/2, rounding grows from layer to layer.
    """
    L, M = (LayerMixing(each).matrix(b.shape[1], b) for each in (1.0, theta))
    return b + MatrixMixing(torch.linalg.solve_triangular(M, L, upper=False, left=False))(stages - b)


@torch.no_grad()
def accurate(pass_: "Pass", F: Function, x: Tensor, solved: Tensor, states: Tensor) -> Tensor:
    """(batch,), whether the states satisfy the equation of every layer to the tolerance,

        y_n = y_{n-1} + h F((1 - theta) y_{n-1} + theta y_n),

    or the `solved` stages are those of this equation to rounding. If h F' is large, small errors of the stages cause
    large errors of the states.
    """
    theta, stopping = pass_.scheme.chord, pass_.options.stopping
    assert theta is not None
    points = torch.cat([x.detach().unsqueeze(1), states.detach()], dim=1)
    starts, ends = points[:, :-1], points[:, 1:]
    stages = torch.lerp(starts, ends, theta.to(ends) if isinstance(theta, Tensor) else theta)
    size = _longest(points)
    kept = _longest(stages - solved.detach()) <= (_ROUNDINGS * torch.finfo(x.dtype).eps) * size
    if all_true(kept):
        return kept
    rows = (~kept).nonzero().squeeze(1)
    stages = take(stages, rows)
    part = F.take(rows)
    slopes = part.unflatten(part.single_rows(part.flatten(stages)), stages)
    defect = _longest(take(ends, rows) - take(starts, rows) - pass_.h * slopes)
    unit = math.sqrt(max(1, math.prod(x.shape[1:])))
    within = unit * stopping.absolute(x.dtype) + stopping.relative(x.dtype) * size[rows]
    return kept.index_copy(0, rows, defect <= within)


def _longest(rows: Tensor) -> Tensor:
    """(batch,), the largest length of a row; `rows` has shape (batch, layers, *shape)."""
    return row_lengths(rows).amax(1)
