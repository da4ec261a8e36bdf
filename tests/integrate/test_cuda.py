"""odeint on a CUDA device: the states, statuses and gradients of the CPU, for every kind of method."""

from typing import Any

import pytest
import torch
from torch import Tensor

import resolvent as rs
from resolvent.schemes import tableaux

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

DEVICES = ("cpu", "cuda")


class Decay(rs.fields.Field):
    """y' = L y + sin(y) with rates of 1 to 1000, in double precision."""

    rowwise = autonomous = True

    def __init__(self) -> None:
        super().__init__()
        self.rates = torch.nn.Parameter(torch.tensor([1.0, 30.0, 1000.0], dtype=torch.float64))

    @property
    def linear_part(self) -> Tensor:
        return -self.rates.detach()

    def forward(self, t: Tensor | float, y: Tensor) -> Tensor:
        return -self.rates * y + torch.sin(y.roll(1, dims=1))


def solved(device: str, scheme: Any, **options: Any) -> list[Tensor]:
    """States, numbers of steps and gradients, on the CPU."""
    field = Decay().to(device)
    y0 = torch.linspace(-1, 1, 15, dtype=torch.float64, device=device).reshape(5, 3).requires_grad_()
    ends = torch.linspace(0.5, 1.5, 5, dtype=torch.float64, device=device)
    result = rs.odeint(field, y0, torch.stack([0 * ends, 0.3 * ends, ends]), scheme, **options)
    assert {x.device.type for x in (result.states, result.status, result.accepted, result.reached)} == {device}
    gradients = torch.autograd.grad(result.states.square().sum(), [y0, field.rates])
    return [x.detach().cpu() for x in (result.states, *gradients)]


@pytest.mark.parametrize("memory", ["store", "checkpoint"])
@pytest.mark.parametrize("scheme", ["auto", "DORMAND_PRINCE5", "KVAERNO5", "RADAU5", "TRBDF2", "KENCARP4"])
def test_a_device_gives_the_states_and_gradients_of_the_cpu(scheme: str, memory: str) -> None:
    table = scheme if scheme == "auto" else getattr(tableaux, scheme)
    here, there = (solved(device, table, memory=memory) for device in DEVICES)
    for one, other in zip(here, there, strict=True):
        # A step that is rejected on one device by rounding changes results within the tolerance, not more.
        torch.testing.assert_close(other, one, rtol=1e-4, atol=1e-6)


def test_products_in_place_of_a_matrix() -> None:
    here, there = (solved(device, tableaux.KVAERNO5, matrix=False) for device in DEVICES)
    for one, other in zip(here, there, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-4, atol=1e-6)


def test_jumps_and_events() -> None:
    def run(device: str) -> list[Tensor]:
        gravity = torch.tensor(9.81, dtype=torch.float64, device=device, requires_grad=True)

        def stone(t: Tensor, y: Tensor) -> Tensor:
            return torch.stack([y[:, 1], -gravity.expand_as(y[:, 1])], 1)

        y0 = torch.tensor([[10.0, 0.0], [50.0, 0.0]], dtype=torch.float64, device=device)
        kick = rs.integrate.Jumps([0.5], lambda t, y: y + torch.tensor([0.0, 1.0], dtype=y.dtype, device=y.device))
        fall = rs.odeint(stone, y0, [0.0, 2.0], jumps=kick, event=lambda t, y: y[:, 0])
        (slope,) = torch.autograd.grad(fall.reached[0], gravity)
        return [x.detach().cpu() for x in (fall.status, fall.reached, fall.final, slope)]

    for one, other in zip(run("cpu"), run("cuda"), strict=True):
        torch.testing.assert_close(other, one, rtol=1e-8, atol=1e-8)


def test_failure_is_reported_by_sample() -> None:
    y0 = torch.tensor([[1.0], [0.1]], dtype=torch.float64, device="cuda")
    result = rs.odeint(lambda t, y: y * y, y0, [0.0, 0.5, 2.0], on_failure="ignore")
    assert result.done.tolist() == [False, True]
    assert bool(result.states[-1, 0].isnan().all())
