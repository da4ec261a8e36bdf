"""The grid of a pass: equal steps, the same for all samples or with a horizon for each, or given times."""

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from resolvent.blocks.pass_ import Pass
from resolvent.blocks.trajectory import hermite
from resolvent.equation.norms import per_sample
from resolvent.schemes.interval import Number

Times = tuple[float, ...] | Tensor


def as_grid(num_steps: object, horizon: object, times: object) -> tuple[Times | None, int, Number]:
    """The times, the number of steps and the horizon of a block, from its arguments; the times are None for equal
    steps."""
    if times is None:
        count = 5 if num_steps is None else num_steps
        if not isinstance(count, int) or isinstance(count, bool) or count < 1:
            raise ValueError(f"num_steps must be a whole number, 1 or more, got {num_steps!r}.")
        return None, count, as_horizon(1.0 if horizon is None else horizon)
    if num_steps is not None or horizon is not None:
        raise ValueError(
            f"times are given in place of num_steps and horizon, got num_steps={num_steps!r} and horizon={horizon!r} "
            "beside them."
        )
    grid = as_times(times)
    first, last = ends_of(grid)
    return grid, len(grid) - 1, last - first


def ends_of(times: Times) -> tuple[float, float]:
    """The first and the last of the times, as numbers."""
    values = times.detach().tolist() if isinstance(times, Tensor) else times
    return values[0], values[-1]


def as_horizon(horizon: object) -> Number:
    """The horizon of a block, checked: a number or a 0-d tensor."""
    if isinstance(horizon, Tensor):
        if horizon.dim() > 0 or not horizon.is_floating_point():
            raise ValueError(
                f"horizon as a tensor must be 0-d and of a floating-point type, got {horizon.dtype} of "
                f"shape {tuple(horizon.shape)}. One horizon per sample is an argument of the call: "
                "block(x, horizon=...)."
            )
        value = 1.0 if horizon.is_meta else float(horizon.detach())
        if not math.isfinite(value) or value == 0:
            raise ValueError(f"horizon must be a finite number other than 0, got {value}.")
        return horizon
    if not isinstance(horizon, int | float) or not math.isfinite(horizon) or horizon == 0:
        raise ValueError(f"horizon must be a finite number other than 0, got {horizon!r}.")
    return float(horizon)


def horizon_of_samples(horizon: object, x: Tensor) -> Number:
    """The horizon given to a pass, checked; that of samples, (batch,), is shaped to multiply states."""
    if not isinstance(horizon, Tensor) or horizon.dim() == 0:
        return as_horizon(horizon)
    if horizon.shape != x.shape[:1] or not horizon.is_floating_point():
        raise ValueError(
            f"horizon must be one number or one for each of the {len(x)} samples, of a floating-point type, got "
            f"{horizon.dtype} of shape {tuple(horizon.shape)}."
        )
    wrong = ~horizon.detach().isfinite() | (horizon.detach() == 0)
    if bool(wrong.any()):
        raise ValueError(f"horizon must be finite and not 0 for each sample, got {horizon[wrong][0].item()}.")
    return per_sample(horizon.to(x), x)


def as_times(times: object) -> Times:
    """The grid points, checked: numbers, or a tensor (count,)."""
    if isinstance(times, Tensor):
        if times.dim() != 1 or not times.is_floating_point():
            raise ValueError(
                f"times as a tensor must be (count,) of a floating-point type, got {times.dtype} of shape "
                f"{tuple(times.shape)}."
            )
        values = times.detach().tolist()
    elif isinstance(times, Sequence) and all(isinstance(t, int | float) for t in times):
        values = [float(t) for t in times]
    else:
        raise ValueError(f"times must be a list of numbers or a tensor (count,), got {times!r}.")
    gaps = [after - before for before, after in pairwise(values)]
    monotone = all(gap > 0 for gap in gaps) or all(gap < 0 for gap in gaps)
    if not gaps or not monotone or not all(map(math.isfinite, values)):
        raise ValueError(
            "times must be two or more finite numbers that increase or decrease strictly, got "
            f"{[round(value, 6) for value in values[:8]]}."
        )
    return times if isinstance(times, Tensor) else tuple(values)


def grid_points(pass_: Pass, x: Tensor) -> Tensor:
    """The times of the grid points, (num_steps + 1,), or (num_steps + 1, batch) if samples have their own."""
    if pass_.grid is None and not (isinstance(pass_.t0, Tensor) or isinstance(pass_.h, Tensor)):
        # In double precision these are the numbers of `Pass.time`.
        counts = torch.arange(pass_.num_steps + 1, dtype=torch.float64, device=x.device)
        return (pass_.t0 + pass_.h * counts).to(x.dtype)
    numbers = [pass_.time(n) for n in range(pass_.num_steps + 1)]
    if all(isinstance(number, Tensor) for number in numbers):
        return torch.stack(numbers).to(x)  # type: ignore[arg-type]
    # Filled, not copied from the CPU, which would wait for the device.
    return torch.stack(
        [
            number.to(x) if isinstance(number, Tensor) else torch.full((), number, dtype=x.dtype, device=x.device)
            for number in numbers
        ]
    )


def bracket(times: Tensor, points: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The step that contains each time, the fraction of it, and its length.

    Arguments:
        times: (count,), or (count, batch).
        points: (num_steps + 1,), or (num_steps + 1, batch), the grid, increasing or decreasing for each sample.

    Returns:
        (count, 1) each, or (count, batch) if the times or the grid are those of samples.
    """
    times, points = (grid[:, None] if grid.dim() == 1 else grid for grid in (times, points))
    columns = max(times.shape[1], points.shape[1])
    times, points = times.expand(-1, columns), points.expand(-1, columns)
    direction = torch.where(points[-1] < points[0], -1.0, 1.0).to(points)
    keys, grid = (direction * times).detach(), (direction * points).detach()
    slack = torch.finfo(points.dtype).eps ** 0.5 * grid.diff(dim=0).amax(0)
    outside = (keys < grid[0] - slack) | (keys > grid[-1] + slack)
    if bool(outside.any()):
        sample = int(outside.any(0).nonzero()[0, 0])
        raise ValueError(
            f"{int(outside.sum())} of the {outside.numel()} requested times lie outside the pass, which covers "
            f"{points[0, sample].item():g} to {points[-1, sample].item():g}; the first is "
            f"{times[outside][0].item():g}."
        )
    step = torch.searchsorted(grid.T.contiguous(), keys.T.contiguous(), right=True).T - 1
    step = step.clamp(0, len(points) - 2)
    left, right = points.gather(0, step), points.gather(0, step + 1)
    return step, (times - left) / (right - left), right - left


def states_between(pass_: Pass, states: Tensor, left: Tensor, right: Tensor, times: Tensor) -> Tensor:
    """The states (count, batch, *shape) at times (count,) or (count, batch), from those at the grid points and the
    slopes of the field at both ends of each step."""
    like = states[0]
    step, s, h = (found.expand(-1, len(like)) for found in bracket(times, grid_points(pass_, like)))
    rows = torch.arange(len(like), device=like.device)
    s, h = (value.reshape(*value.shape, *[1] * (like.dim() - 1)) for value in (s, h))
    return hermite(s, h, (states[step, rows], states[step + 1, rows]), (left[step, rows], right[step, rows]))
