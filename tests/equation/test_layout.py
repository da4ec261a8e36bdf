"""The memory layout of states: iterates follow the input, and are not copied into another layout."""

from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import resolvent as rs
from resolvent.equation.norms import dot, length, memory_format, power_of_two, rms

IMAGES = (3, 4, 5, 6)
VOLUMES = (2, 3, 4, 5, 6)
LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


class Decaying(nn.Module):
    """F(y) = steepness * conv(relu(y)) - decay * y."""

    def __init__(self, shape: tuple[int, ...], steepness: float, decay: float) -> None:
        super().__init__()
        channels, kind = shape[1], nn.Conv2d if len(shape) == 4 else nn.Conv3d
        self.conv = kind(channels, channels, 3, padding=1)
        self.steepness, self.decay = steepness, decay

    def forward(self, y: Tensor) -> Tensor:
        return self.steepness * self.conv(torch.relu(y)) - self.decay * y


class Copies(TorchDispatchMode):
    """Counts the tensors of a number of entries that are copied, by the name of the operation."""

    def __init__(self, entries: int) -> None:
        super().__init__()
        self.entries, self.found = entries, Counter[str]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name
        if name in ("aten::clone", "aten::copy_") and args[0].numel() == self.entries:
            self.found[name] += 1
        return func(*args, **(kwargs or {}))


SETTINGS: dict[str, dict[str, Any]] = {
    "default": {},
    "fixed steps": {"stopping": rs.FixedSteps(6, rtol=1e-3), "on_failure": "ignore"},
    "Anderson": {"solver": rs.Anderson()},
}


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize(("steepness", "decay"), [(0.3, 0.0), (0.8, 1.5)], ids=["contracting", "slow"])
@pytest.mark.parametrize("theta", [0.5, 1.0])
@pytest.mark.parametrize("shape", [IMAGES, VOLUMES], ids=["images", "volumes"])
def test_states_follow_the_input_and_gradients_do_not_depend_on_it(
    shape: tuple[int, ...], theta: float, steepness: float, decay: float, setting: str
) -> None:
    field, x = Decaying(shape, steepness, decay), torch.randn(shape)
    block = rs.ThetaBlock(rs.Autonomous(field), theta, 2, 2.0, **SETTINGS[setting])
    weights = torch.randn(shape)  # The cotangent has the usual layout.
    results = []
    for layout in (torch.contiguous_format, LAST[len(shape)]):
        leaf = x.to(memory_format=layout).requires_grad_()
        y = block(leaf)
        gradients = torch.autograd.grad((weights * y).sum(), [leaf, *block.parameters()])
        assert memory_format(y) == layout
        results.append((y, *gradients))
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
def test_a_solve_copies_no_images(layout: torch.memory_format) -> None:
    block = rs.ThetaBlock(rs.Autonomous(Decaying(IMAGES, 0.3, 0.0)), 0.5, 1, 1.0)
    x = torch.randn(IMAGES).to(memory_format=layout).requires_grad_()
    block(x)  # The first call checks the field.
    with Copies(x.numel()) as copies:
        y = block(x)
        torch.autograd.grad(y, x, torch.ones_like(y))
    assert not copies.found


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("setting", ["default", "fixed steps"])
def test_kernels_run_along_memory(setting: str) -> None:
    block = rs.ThetaBlock(rs.Autonomous(Decaying(IMAGES, 0.3, 0.0)), 0.5, 2, 2.0, **SETTINGS[setting]).cuda().float()
    x = torch.randn(IMAGES, device="cuda", dtype=torch.float32)
    images = [x, x.to(memory_format=torch.channels_last), x.transpose(2, 3).contiguous().transpose(2, 3)]
    one, *others = [torch.autograd.grad(block(each).sum(), list(block.parameters())) for each in images]
    for other in others:
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("shape", [(3,), (3, 7), (3, 2, 4), IMAGES, VOLUMES, (0, 4, 5, 6), (3, 0, 5)], ids=str)
def test_norms_are_those_of_every_layout(shape: tuple[int, ...]) -> None:
    x, y = torch.randn(shape), torch.randn(shape)
    rows = x.reshape(shape[0], x[:1].numel() if x.numel() else 0)
    other = x.to(memory_format=LAST[len(shape)]) if len(shape) in LAST else x
    exact = torch.linalg.vector_norm(rows, dim=1)
    for each in (x, other):
        torch.testing.assert_close(length(each), exact)
        torch.testing.assert_close(dot(each, y), (rows * y.reshape(rows.shape)).sum(1))
        if x.numel():
            torch.testing.assert_close(rms(each), exact / rows.shape[1] ** 0.5)
            assert torch.equal(power_of_two(each), torch.exp2(rows.abs().amax(1).log2().floor()))


def test_formats() -> None:
    images, volumes = torch.randn(IMAGES), torch.randn(VOLUMES)
    assert memory_format(images) == memory_format(volumes) == torch.contiguous_format
    assert memory_format(images.to(memory_format=torch.channels_last)) == torch.channels_last
    assert memory_format(volumes.to(memory_format=torch.channels_last_3d)) == torch.channels_last_3d
    assert memory_format(images.transpose(2, 3)) is None
    assert memory_format(images[:, :1].expand(IMAGES)) is None
    assert memory_format(torch.randn(5, 3).t()) is None
