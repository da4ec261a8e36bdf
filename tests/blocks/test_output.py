"""The output of a block is a tensor of its own: it may be changed in place, viewed and kept, as that of any module."""

import copy
import dataclasses
import io
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import resolvent as rs
from seeding import shifted

SETTINGS: dict[str, dict[str, Any]] = {
    "together": {},
    "together, stages": {"theta": 1.0},
    "a last group of one layer": {"num_steps": 5, "mode": rs.blocks.AllTogether(most_unknowns=32)},
    "sequential": {"mode": "sequential"},
    "sequential, stages": {"mode": "sequential", "theta": 1.0},
    "trapezoid": {"form": "trapezoid"},
    "explicit": {"theta": 0.0},
    "checkpoint": {"memory": "checkpoint"},
    "checkpoint, stages": {"memory": "checkpoint", "theta": 1.0},
    "reversible": {"memory": "reversible"},
    "mask": {"on_failure": "mask"},
}


def vectors(width: int = 8) -> nn.Module:
    torch.manual_seed(shifted(0))
    return nn.Sequential(nn.Linear(width, 16), nn.Tanh(), nn.Linear(16, width))


def images() -> nn.Module:
    torch.manual_seed(shifted(0))
    return nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.Tanh(), nn.Conv2d(4, 2, 3, padding=1))


def gradients(net: nn.Module, x: Tensor) -> list[Tensor]:
    x = x.clone().requires_grad_()
    (net(x) ** 2).sum().backward()
    assert x.grad is not None
    return [x.grad, *(weight.grad for weight in net.parameters() if weight.grad is not None)]


@pytest.mark.parametrize("width", [2, 8])
@pytest.mark.parametrize("name", SETTINGS)
def test_it_may_be_changed_in_place(name: str, width: int) -> None:
    block = rs.ThetaBlock(rs.Autonomous(vectors(width)), **SETTINGS[name])
    x = torch.randn(6, width)
    plain = nn.Sequential(copy.deepcopy(block), nn.ReLU(), nn.Linear(width, 1))
    inplace = copy.deepcopy(plain)
    inplace[1] = nn.ReLU(inplace=True)
    for expected, found in zip(gradients(plain, x), gradients(inplace, x), strict=True):
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("scheme", [rs.schemes.RungeKutta(rs.schemes.tableaux.RADAU5), rs.schemes.BDF2])
def test_schemes_with_stages_and_past_states(scheme: rs.schemes.Scheme) -> None:
    plain = nn.Sequential(rs.Block(rs.Autonomous(vectors()), scheme), nn.ReLU())
    inplace = nn.Sequential(copy.deepcopy(plain[0]), nn.ReLU(inplace=True))
    x = torch.randn(6, 8)
    for expected, found in zip(gradients(plain, x), gradients(inplace, x), strict=True):
        torch.testing.assert_close(found, expected)


def test_a_skip_connection_added_in_place() -> None:
    block, x = rs.ThetaBlock(rs.Autonomous(vectors())), torch.randn(6, 8)
    y = block(x)
    expected = y.detach() + x
    y += x
    torch.testing.assert_close(y, expected)


def test_a_change_leaves_what_a_monitor_recorded() -> None:
    block = rs.ThetaBlock(rs.Autonomous(vectors()), theta=1.0, mode="sequential")
    solutions: list[rs.Solution] = []
    block.options = dataclasses.replace(block.options, observe=solutions.append)
    with torch.no_grad():
        y = block(torch.randn(6, 8))
    before = y.clone()
    y.zero_()
    torch.testing.assert_close(solutions[-1].value, before)


@pytest.mark.parametrize("mode", ["no_grad", "grad", "inference"])
@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("shape", [(1, 8), (64, 2), (300, 2), (64, 8), (16, 2, 4, 4)], ids=str)
def test_it_is_contiguous_and_holds_no_other_states(name: str, shape: tuple[int, ...], mode: str) -> None:
    field = images() if len(shape) == 4 else vectors(shape[1])
    block = rs.ThetaBlock(rs.Autonomous(field), **SETTINGS[name])
    with torch.inference_mode(mode == "inference"), torch.set_grad_enabled(mode == "grad"):
        y = block(torch.randn(shape))
    assert y.view(-1).shape == (y.numel(),)
    assert y.untyped_storage().nbytes() == y.nbytes
    file = io.BytesIO()
    torch.save(y.detach(), file)
    assert file.tell() < y.nbytes + 2500


@pytest.mark.parametrize("name", SETTINGS)
def test_channels_last_stays(name: str) -> None:
    block = rs.ThetaBlock(rs.Autonomous(images().to(memory_format=torch.channels_last)), **SETTINGS[name])
    x = torch.randn(16, 2, 4, 4).to(memory_format=torch.channels_last)
    assert block(x).is_contiguous(memory_format=torch.channels_last)


def test_every_part_of_a_structure_is_a_tensor_of_its_own() -> None:
    class Pair(nn.Module):
        rowwise = autonomous = True

        def forward(self, t: float, y: dict[str, Tensor]) -> dict[str, Tensor]:
            return {"q": y["p"].sum((1, 2))[:, None] - y["q"], "p": -y["p"]}

    x = {"q": torch.randn(6, 3), "p": torch.randn(6, 2, 2)}
    y = rs.ThetaBlock(Pair())({name: part.requires_grad_() for name, part in x.items()})
    for part in y.values():
        assert part.is_contiguous()
        assert part.untyped_storage().nbytes() == part.nbytes
        part.relu_()
    (y["q"].sum() + y["p"].sum()).backward()


def test_no_copy_of_a_tensor_of_its_own() -> None:
    """The copy of the last state would be the only one in this pass."""
    block = rs.ThetaBlock(rs.Autonomous(vectors()), mode="sequential")
    y = block(torch.randn(6, 8))
    assert y.grad_fn is not None
    assert "Clone" not in y.grad_fn.name()


def test_under_transforms() -> None:
    block, x = rs.ThetaBlock(rs.Autonomous(vectors()), theta=1.0), torch.randn(6, 8)

    def loss(x: Tensor) -> Tensor:
        return (block(x).relu_() ** 2).sum()

    expected = x.clone().requires_grad_()
    (block(expected).relu() ** 2).sum().backward()
    torch.testing.assert_close(torch.func.grad(loss)(x), expected.grad)


def test_an_equilibrium() -> None:
    torch.manual_seed(shifted(1))
    linear = nn.Linear(8, 8)
    nn.init.orthogonal_(linear.weight, gain=0.5)
    layer = rs.Equilibrium(lambda z, x: torch.tanh(linear(z) + x))
    x = torch.randn(6, 8)
    plain, inplace = nn.Sequential(layer, nn.ReLU()), nn.Sequential(layer, nn.ReLU(inplace=True))
    torch.testing.assert_close(gradients(inplace, x)[0], gradients(plain, x)[0])
