"""Events: samples stop where a function passes zero, and both time and state there have derivatives."""

from typing import Any

import pytest
import torch
from torch import Tensor

import resolvent as rs
from resolvent.integrate import IntegrationStatus as Status
from resolvent.integrate import Jumps
from resolvent.schemes import tableaux

SCHEMES = {"auto": "auto", "explicit": tableaux.TSITOURAS5, "implicit": tableaux.KVAERNO5}


@pytest.fixture(params=SCHEMES)
def scheme(request: pytest.FixtureRequest) -> Any:
    return SCHEMES[request.param]


def fall(gravity: Tensor, rowwise: bool = False) -> Any:
    """The height and the speed of a stone."""

    def field(t: Tensor, y: Tensor) -> Tensor:
        return torch.stack([y[:, 1], -gravity.expand(len(y))], 1)

    field.rowwise = rowwise  # type: ignore[attr-defined]
    return field


@pytest.mark.parametrize(("rowwise", "memory"), [(True, "store"), (False, "store"), (True, "checkpoint")])
def test_stones_hit_the_ground(scheme: Any, rowwise: bool, memory: str) -> None:
    gravity = torch.tensor(9.81, requires_grad=True)
    height = torch.tensor([10.0, 3.0, 50.0], requires_grad=True)
    y0 = torch.stack([height, torch.zeros(3)], 1)
    result = rs.odeint(
        fall(gravity, rowwise), y0, [0.0, 0.5, 1.0, 2.0], scheme, event=lambda t, y: y[:, 0], rtol=1e-8, memory=memory
    )
    assert result.status.tolist() == [Status.STOPPED, Status.STOPPED, Status.DONE]
    assert result.done.all()
    assert result.states[:, :, 0].isnan().tolist() == [
        3 * [False],
        3 * [False],
        [False, True, False],
        [True, True, False],
    ]
    duration, speed = torch.sqrt(2 * height / gravity)[:2], -torch.sqrt(2 * height * gravity)[:2]
    torch.testing.assert_close(result.reached[:2], duration, rtol=1e-7, atol=0)
    assert result.reached[2] == 2
    torch.testing.assert_close(result.final[:2, 1], speed, rtol=1e-7, atol=0)
    torch.testing.assert_close(result.final[:2, 0], torch.zeros(2), atol=1e-10, rtol=0)
    for got, expected in ((result.reached[:2], duration), (result.final[:2, 1], speed)):
        g = torch.autograd.grad(got.sum(), (gravity, height), retain_graph=True)
        e = torch.autograd.grad(expected.sum(), (gravity, height), retain_graph=True)
        for a, b in zip(g, e, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-9)


def test_derivatives_by_what_the_event_closes_over(scheme: Any) -> None:
    """y' = -y falls below a level at t = -log(level), also where the field itself has no gradient."""
    level = torch.tensor([0.5, 0.2], requires_grad=True)
    result = rs.odeint(
        lambda t, y: -y, torch.ones(2, 1), [0.0, 3.0], scheme, event=lambda t, y: y[:, 0] - level, rtol=1e-9
    )
    torch.testing.assert_close(result.reached, -torch.log(level), rtol=1e-7, atol=0)
    (by_level,) = torch.autograd.grad(result.reached.sum(), level)
    torch.testing.assert_close(by_level, -1 / level.detach(), rtol=1e-6, atol=0)


def test_events_in_time_and_back_in_time(scheme: Any) -> None:
    result = rs.odeint(lambda t, y: 0 * y, torch.ones(1, 1), [0.0, 3.0], scheme, event=lambda t, y: t - 1.25)
    torch.testing.assert_close(result.reached, torch.tensor([1.25]))
    result = rs.odeint(
        lambda t, y: y, torch.ones(1, 1), [0.0, -3.0], scheme, event=lambda t, y: y[:, 0] - 0.5, rtol=1e-8
    )
    torch.testing.assert_close(result.reached, -torch.log(torch.tensor([2.0])), rtol=1e-6, atol=0)


def test_an_event_at_the_start_does_not_count() -> None:
    """A ball that leaves the ground comes back to it."""
    y0 = torch.tensor([[0.0, 5.0]])
    result = rs.odeint(fall(torch.tensor(10.0)), y0, [0.0, 4.0], event=lambda t, y: y[:, 0])
    torch.testing.assert_close(result.reached, torch.tensor([1.0]), rtol=1e-6, atol=0)


def test_a_stopped_sample_sees_no_further_jumps() -> None:
    result = rs.odeint(
        lambda t, y: -y,
        torch.tensor([[1.0], [10.0]]),
        [0.0, 4.0],
        jumps=Jumps([1.0], lambda t, y: y + 1),
        event=lambda t, y: y[:, 0] - 0.5,
    )
    expected = torch.stack([torch.log(torch.tensor(2.0)), 1 + torch.log(2 * (10 * torch.exp(torch.tensor(-1.0)) + 1))])
    torch.testing.assert_close(result.reached, expected, rtol=1e-5, atol=0)


@pytest.mark.parametrize("event", [3, lambda t, y: y, lambda t, y: 1.0])
def test_wrong_events_are_refused(event: Any) -> None:
    with pytest.raises(ValueError, match="event must"):
        rs.odeint(lambda t, y: -y, torch.ones(2, 1), [0.0, 1.0], event=event)
