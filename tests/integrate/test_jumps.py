"""Jumps: steps end at them exactly, and the state changes there."""

from typing import Any

import pytest
import torch
from torch import Tensor

import resolvent as rs
from resolvent.integrate import Jumps
from resolvent.schemes import tableaux

SCHEMES = {"auto": "auto", "explicit": tableaux.TSITOURAS5, "implicit": tableaux.KVAERNO5}


@pytest.fixture(params=SCHEMES)
def scheme(request: pytest.FixtureRequest) -> Any:
    return SCHEMES[request.param]


def switched(t: Tensor, y: Tensor) -> Tensor:
    """Decay towards 1 until t = 0.7, then with ten times the rate towards -2."""
    early = (t < 0.7)[:, None]
    return torch.where(early, 1 - y, -10 * (2 + y))


def exact(t: Tensor) -> Tensor:
    """The solution from 0."""
    until = 1 - torch.exp(-t.clamp(max=0.7))
    return torch.where(t < 0.7, until, -2 + (until + 2) * torch.exp(-10 * (t - 0.7)))


def test_a_field_that_jumps_at_a_time_that_is_said(scheme: Any) -> None:
    times = torch.tensor([0.0, 0.5, 0.7, 0.75, 2.0])
    y0 = torch.zeros(2, 1)
    told = rs.odeint(switched, y0, times, scheme, jumps=[0.7])
    torch.testing.assert_close(told.states[:, 0, 0], exact(times), rtol=3e-6, atol=3e-6)
    untold = rs.odeint(switched, y0, times, scheme)
    assert (told.rejected < untold.rejected).all()


def test_no_stage_sees_the_other_side_of_a_jump(scheme: Any) -> None:
    seen: list[Tensor] = []

    def field(t: Tensor, y: Tensor) -> Tensor:
        seen.append(t.clone())
        return -y

    jumps = torch.tensor([0.3, 0.9])
    rs.odeint(field, torch.ones(1, 1), [0.0, 1.0], scheme, jumps=jumps)
    assert not torch.isin(torch.cat(seen), jumps).any()
    # In the order of the spans, up to what is evaluated at their starts to choose a step.
    sides = torch.bucketize(torch.cat(seen), jumps)
    assert (sides.diff() >= 0).all()


def test_back_in_time_through_a_jump(scheme: Any) -> None:
    times = torch.tensor([1.0, 0.8, 0.7, 0.2])
    y0 = exact(times[:1])[:, None]
    states = rs.odeint(switched, y0, times, scheme, jumps=[0.7], rtol=1e-9).states
    torch.testing.assert_close(states[:, 0, 0], exact(times), rtol=1e-6, atol=1e-6)


def test_doses(scheme: Any) -> None:
    """y' = -y with doses: a sum of exponentials. The state at the time of a dose is that before it."""
    times = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0])
    at = torch.tensor([1.0, 2.0])
    amounts = torch.tensor([[0.5], [2.0]])
    result = rs.odeint(
        lambda t, y: -y, torch.ones(2, 1), times, scheme, jumps=Jumps(at, lambda t, y: y + amounts), rtol=1e-8
    )
    for i, amount in enumerate(amounts[:, 0]):
        expected = torch.exp(-times)
        for dose in at:
            expected = expected + torch.where(times > dose, amount * torch.exp(-(times - dose)), 0.0)
        torch.testing.assert_close(result.states[:, i, 0], expected, rtol=1e-6, atol=1e-7)


def test_each_sample_has_its_own_jumps() -> None:
    at = torch.tensor([[1.5, 0.5], [0.5, torch.inf]])  # two for the first sample, one for the second
    changes = [lambda t, y: y + 1, lambda t, y: 3 * y]
    times = torch.tensor([0.0, 2.0])
    states = rs.odeint(lambda t, y: 0 * y, torch.ones(2, 1), times, jumps=Jumps(at, changes)).states
    torch.testing.assert_close(states[-1, :, 0], torch.tensor([4.0, 2.0]))


def test_jumps_at_the_first_time_count_and_those_at_the_last_or_outside_do_not() -> None:
    states = rs.odeint(
        lambda t, y: 0 * y,
        torch.ones(1, 1),
        [0.0, 0.5, 1.0],
        jumps=Jumps([-1.0, 0.0, 1.0, 7.0], lambda t, y: y + 1),
    ).states
    torch.testing.assert_close(states[:, 0, 0], torch.tensor([1.0, 2.0, 2.0]))


def test_gradients_by_the_times_and_the_amounts_of_doses(scheme: Any) -> None:
    at = torch.tensor([0.4, 1.1], requires_grad=True)
    amount = torch.tensor(0.7, requires_grad=True)
    y0 = torch.ones(1, 1, requires_grad=True)
    states = rs.odeint(
        lambda t, y: -y, y0, [0.0, 0.8, 2.0], scheme, jumps=Jumps(at, lambda t, y: y + amount), rtol=1e-8
    ).states
    by_at, by_amount, by_y0 = torch.autograd.grad(states[-1].sum(), (at, amount, y0))
    expected = torch.exp(-(2.0 - at.detach()))
    torch.testing.assert_close(by_at, amount.detach() * expected, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(by_amount, expected.sum(), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(by_y0[0, 0], torch.exp(torch.tensor(-2.0)), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("jumps", "message"),
    [
        (lambda: Jumps([0.5], 3), "change must be a function"),
        (lambda: Jumps([0.5], [torch.sin, torch.cos]), "one function for each of the 1 times"),
        (lambda: Jumps([0.5], lambda t, y: y[:, :0]), "must return states like its argument"),
    ],
)
def test_wrong_changes_are_refused(jumps: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        rs.odeint(lambda t, y: -y, torch.ones(1, 2), [0.0, 1.0], jumps=jumps())
