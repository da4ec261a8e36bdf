"""The equation of a group of theta layers for `torch.compile`: tensors and numbers, with no decisions."""

from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from resolvent.blocks.strategies.group_tolerance import group_amplification
from resolvent.equation.function import time_columns
from resolvent.equation.linear_part import LinearPart
from resolvent.equation.mixing import LayerMixing, running_sums
from resolvent.equation.problem import divided_by_linear_part
from resolvent.equation.solution import Status
from resolvent.equation.stopping import StoppingRule
from resolvent.schemes.interval import Number

if TYPE_CHECKING:
    from resolvent.blocks.pass_ import Pass

# Up to so many rows, sums over all of them take no longer than running sums, which are not fused.
_FEW_ROWS = 8


class Group(NamedTuple):
    """The equation w = x + h M F(w) of `AllTogether`, M lower triangular with theta on its diagonal and ones below.

    Attributes:
        field: F(t, y), of single rows.
        times: (batch * rows,), of the rows of all samples; a number if the field does not depend on time.
        h: the step.
        theta: of the layers.
        rtol, atol: for the residual of a sample, see `Stopping`.
        layer_rtol, layer_atol: for a single layer, for the error of its state, and for backward systems.
        linear_part: that of the field, a number or a tensor, if there is one layer.
    """

    field: Any
    times: Number
    h: Number
    theta: float
    rtol: float
    atol: float
    layer_rtol: float
    layer_atol: float
    linear_part: Number | None = None

    def slopes(self, w: Tensor) -> Tensor:
        """F of every row of w, (batch, rows, *shape)."""
        if w.stride(1) == 0 and not isinstance(self.times, Tensor):
            # The rows are one, as in a first guess.
            one: Tensor = self.field(self.times, w[:, 0])
            return one.unsqueeze(1).expand_as(w)
        value: Tensor = self.field(self.times, w.flatten(0, 1)).reshape(w.shape)
        return value

    def value_and_jacobian(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """F of single rows y, (batch * rows, n), and its Jacobian, (batch * rows, n, n); by forward mode where the
        field has none in closed form."""
        known = getattr(self.field, "value_and_jacobian", None)
        if known is not None:
            both: tuple[Tensor, Tensor] = known(self.times, y)
            return both
        columns = []
        for unit in torch.eye(y.shape[1], dtype=y.dtype, device=y.device):
            value, column = torch.func.jvp(partial(self.field, self.times), (y,), (unit.expand_as(y),))[:2]
            columns.append(column)
        return value, torch.stack(columns, dim=2)

    def precondition(self, r: Tensor) -> Tensor:
        """See `Problem.precondition`."""
        return divided_by_linear_part(r, self.theta * self.h, self.linear_part)


def layer_sums(rows: Tensor, theta: float, transposed: bool = False) -> Tensor:
    """M rows, for rows (batch, rows, *shape), or M^T rows: in M, the sums of all earlier rows, and theta times the row
    itself."""
    if rows.shape[1] > _FEW_ROWS:
        # Not by the mixing itself: the compiler of torch 2.11 cannot call an object that is made in the graph.
        return running_sums(rows, theta, transposed)
    mix = LayerMixing(theta).matrix(rows.shape[1], rows)
    mix = (mix.t() if transposed else mix).reshape(*mix.shape, *(1,) * (rows.dim() - 2))
    # As a sum, the compiler fuses it with its neighbours.
    return (mix * rows.unsqueeze(1)).sum(2)


class Solved(NamedTuple):
    """How a group was solved, per sample as in `Solution`.

    Attributes:
        stages: (batch, rows, *shape), the solution w, without a graph.
        residual, steps, status, solver_index: (batch,).
        good: 0-d, whether all samples converged, and whatever else a graph cannot do without.
    """

    stages: Tensor
    residual: Tensor
    steps: Tensor
    status: Tensor
    solver_index: Tensor
    good: Tensor


def solved(stages: Tensor, residual: Tensor, steps: Tensor, good: Tensor) -> Solved:
    """With the status of samples that converged, made in the graph: outside of it each tensor takes microseconds."""
    status = torch.full_like(steps, Status.CONVERGED.value)
    return Solved(stages, residual, steps, status, torch.zeros_like(status), good)


def group_of(pass_: "Pass", numbers: range, x: Tensor, contracting: bool = False) -> Group:
    """The equation of these layers, from the state x; `contracting` if only samples that contract are solved for."""
    theta: float = pass_.scheme.solved_at
    times: Number = 0.0
    if not pass_.vector_field.autonomous:
        times = time_columns([pass_.interval(n).time(theta) for n in numbers], x).flatten()
    amplification = group_amplification(theta, len(numbers), contracting)
    tolerances = _tolerances(pass_.options.stopping, amplification, x.dtype)
    part = pass_.vector_field.linear_part if len(numbers) == 1 else None
    assert not isinstance(part, LinearPart)
    return Group(pass_.field, times, pass_.h, theta, *tolerances, linear_part=part)


@lru_cache(maxsize=64)
def _tolerances(asked: StoppingRule, amplification: float, precision: torch.dtype) -> tuple[float, float, float, float]:
    """Those of `Group`."""
    tight = asked.tightened(amplification, precision)
    return (
        tight.relative(precision),
        tight.absolute(precision),
        asked.relative(precision),
        asked.absolute(precision),
    )
