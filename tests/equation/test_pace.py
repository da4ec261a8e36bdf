"""Which samples of a fixed point go on: as decided for each of them alone, with or without a mask."""

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor

import resolvent as rs
from resolvent.equation.norms import extremes
from resolvent.equation.pace import Limits, Pace
from seeding import shifted

UNIT, RATE, LEAD, LOOKS = 3.0, 0.5, 2.0, (1, 4)


def goes_on(history: list[float], chosen: bool) -> tuple[list[bool], int]:
    """Whether a sample with these residuals goes on after each of them, and its steps; the tolerance is one."""
    on, going, steps = [], chosen, 0
    for step, residual in enumerate(history):
        steps += going and step > 0
        going = going and residual > UNIT and (step == 0 or residual < LEAD * RATE**step * history[0])
        on.append(going)
    return on, steps


residuals = st.lists(st.lists(st.floats(0.5, 300.0, width=32), min_size=6, max_size=6), min_size=1, max_size=5)


@given(residuals, st.booleans(), st.booleans(), st.lists(st.booleans(), min_size=5, max_size=5))
def test_samples_are_judged_alone(histories: list[list[float]], moving: bool, some: bool, chosen: list[bool]) -> None:
    norms = torch.tensor(histories).unbind(1)
    wanted = chosen[: len(histories)] if some else [True] * len(histories)
    mask = torch.tensor(wanted) if some else None
    expected = [goes_on(history, may) for history, may in zip(histories, wanted, strict=True)]
    pace = Pace(Limits(UNIT, RATE, LEAD, math.inf, moving, math.inf, False, LOOKS), norms[0], norms[0], mask)
    for step, norm in enumerate(norms):
        if step > 0:
            if pace.done:
                break
            pace.update(norm, norm, read=True)
        going = [on[step] for on, _ in expected]
        found = [not pace.done] * len(going) if pace.mask is None or pace.done else pace.mask.tolist()
        assert found == going
        assert pace.count == sum(going)
        assert pace.converged == (max(norm.tolist()) <= UNIT)
        assert pace.most == pytest.approx(max(norm.tolist()) / UNIT)
        if pace.done:
            break
    steps = pace.steps if isinstance(pace.steps, Tensor) else torch.full((len(histories),), pace.steps)
    assert steps.tolist() == [steps for _, steps in expected]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_is_not_finite_does_not_converge(bad: float) -> None:
    norms = torch.tensor([1.0, bad, 9.0])
    pace = Pace(Limits(UNIT, RATE, LEAD, math.inf, False, math.inf, False, LOOKS), norms, norms, None)
    assert not pace.converged
    assert pace.mask is not None
    assert pace.mask.tolist() == [False, math.isinf(bad), True]


@given(residuals, st.sampled_from([1, 3, 8]), st.booleans())
def test_slow_samples_are_found_alone(histories: list[list[float]], most: int, read: bool) -> None:
    """After the first and fourth step, by the rate of the last one; whether residuals are read or not."""
    norms = torch.tensor(histories).unbind(1)
    pace = Pace(Limits(1.0, 2.0, 1e9, math.inf, False, most, True, LOOKS), norms[0], norms[0], None)
    slow = [False] * len(histories)
    for step, (before, now) in enumerate(pairwise(norms), start=1):
        pace.update(now, now, read=read)
        if step in (1, 4):
            pairs = zip(before.double().tolist(), now.double().tolist(), strict=True)
            power = 1 + 1 / max(1, most - step)
            margins = [math.log(max(x, 1e-30)) * power - math.log(y) for y, x in pairs]
            assume(all(abs(margin) > 1e-5 for margin in margins))
            slow = [old or margin > 0 for old, margin in zip(slow, margins, strict=True)]
        found = [False] * len(slow) if pace.slow is None else pace.slow.tolist()
        assert found == slow
        assert not pace.all_slow or all(slow)
        if pace.done:
            break


@pytest.mark.parametrize("kept", [True, False])
def test_slow_samples_are_kept_or_given_up(kept: bool) -> None:
    pace = Pace(
        Limits(1.0, 0.9, 10.0, math.inf, False, 5, kept, LOOKS), torch.full((3,), 1e6), torch.full((3,), 1e6), None
    )
    now = torch.tensor([1e3, 5e5, 0.5])
    pace.update(now, now, read=True)
    assert pace.slow is not None
    assert pace.slow.tolist() == [False, True, False]
    assert pace.mask is not None
    assert pace.mask.tolist() == [True, kept, False]


def test_extremes() -> None:
    assert extremes(torch.tensor([2.0, -1.0, 5.0])) == (-1.0, 5.0)
    assert extremes(torch.empty(0)) == (0.0, 0.0)
    assert all(map(math.isnan, extremes(torch.tensor([1.0, math.nan]))))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_zero_samples_are_solved_beside_others(dtype: torch.dtype) -> None:
    """A right-hand side or a cotangent of zero has a tolerance of its own."""
    torch.manual_seed(shifted(0))
    weights, b = torch.randn(20, 20, dtype=dtype) / 9, torch.randn(4, 20, dtype=dtype)
    b[1] = 0
    b.requires_grad_()
    solution = rs.resolve(lambda w: torch.tanh(w @ weights + 0.1), b, 0.7)
    value = solution.value
    assert type(solution.solvers[-1]) is rs.Picard
    g = torch.randn_like(b)
    g[2] = 0
    (gradient,) = torch.autograd.grad(value, b, g)
    assert (gradient[2] == 0).all()
    for n in range(4):
        alone = b[n : n + 1].detach().requires_grad_()
        own = rs.resolve(lambda w: torch.tanh(w @ weights + 0.1), alone, 0.7).value
        digits = 20 * torch.finfo(dtype).eps
        torch.testing.assert_close(own[0], value[n], rtol=digits, atol=digits)
        if n != 2:
            (one,) = torch.autograd.grad(own, alone, g[n : n + 1])
            torch.testing.assert_close(one[0], gradient[n], rtol=digits, atol=digits)
