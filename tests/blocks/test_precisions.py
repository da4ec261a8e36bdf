"""Half precisions: blocks between ordinary layers, converted or under autocast, beside their values in float32."""

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import resolvent as rs

pytestmark = [
    pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"),
]
MODES = ["auto", "sequential", "parallel", "compiled"]
DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")),
]
# A solve may stop at 2.5 roundings of bfloat16 or float16, and errors of several layers add up.
FEW_LAYERS, MANY_LAYERS = 16, 32


@pytest.fixture(autouse=True)
def _single_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_default_dtype(torch.float32)
    monkeypatch.setattr("resolvent.blocks.strategies.compiling.BACKEND", "eager")


def block(dim: int = 4, mode: str = "auto") -> nn.Module:
    return rs.ThetaBlock(rs.fields.MLP(dim, 8, 1, nn.Tanh()), 0.5, 3, 1.0, mode=mode)


def images_block(mode: str) -> nn.Module:
    return rs.ThetaBlock(rs.fields.Conv(2, activation=nn.Tanh()), 0.5, 2, 0.5, mode=mode)


class Explicit(nn.Module):
    """The plain residual layers that a block stands in for: its dtypes are those to be expected."""

    def __init__(self, block: rs.ThetaBlock) -> None:
        super().__init__()
        self.block = block

    def forward(self, x: Tensor) -> Tensor:
        for n in range(self.block.num_steps):
            x = x + self.block.step_size * self.block.field(n * self.block.step_size, x)
        return x


VECTORS: dict[str, Callable[[str], nn.Module]] = {
    "alone": lambda mode: block(mode=mode),
    "behind linear": lambda mode: nn.Sequential(nn.Linear(4, 4), block(mode=mode)),
    "before linear": lambda mode: nn.Sequential(block(mode=mode), nn.Linear(4, 2)),
    "between linear": lambda mode: nn.Sequential(nn.Linear(4, 4), block(mode=mode), nn.Linear(4, 2)),
    "behind layer norm": lambda mode: nn.Sequential(nn.LayerNorm(4), block(mode=mode), nn.Linear(4, 4)),
    "before layer norm": lambda mode: nn.Sequential(nn.Linear(4, 4), block(mode=mode), nn.LayerNorm(4)),
}
IMAGES: dict[str, Callable[[str], nn.Module]] = {
    "between convolutions": lambda mode: nn.Sequential(
        nn.Conv2d(1, 2, 3, padding=1), images_block(mode), nn.Conv2d(2, 1, 3)
    ),
    "alone": lambda mode: nn.Sequential(images_block(mode), nn.Conv2d(2, 1, 1)),
}


def explicit(model: nn.Module) -> nn.Module:
    """The model with plain residual layers in place of its blocks."""
    model = copy.deepcopy(model)
    if isinstance(model, rs.ThetaBlock):
        return Explicit(model)
    for name, module in model.named_children():
        if isinstance(module, rs.ThetaBlock):
            setattr(model, name, Explicit(module))
    return model


def run(model: nn.Module, x: Tensor, context: AbstractContextManager[Any]) -> tuple[Tensor, list[Tensor]]:
    """The outputs, and the gradients of their mean square in the input and the weights."""
    x = x.detach().clone().requires_grad_()
    with context:
        y = model(x)
    loss = (y.float() - 0.5).square().mean()
    gradients = torch.autograd.grad(loss, [x, *model.parameters()])
    return y, list(gradients)


def assert_near(got: list[Tensor], exact: list[Tensor], tolerance: float) -> None:
    """As vectors: where rounding moves an argument of relu across zero, single entries differ by their size."""
    ours, reference = (torch.cat([x.detach().float().flatten() for x in tensors]) for tensors in (got, exact))
    assert ours.isfinite().all()
    assert (ours - reference).norm() <= tolerance * reference.norm()


def check(model: nn.Module, x: Tensor, dtype: torch.dtype, how: str, roundings: int = FEW_LAYERS) -> None:
    tolerance, device = roundings * torch.finfo(dtype).eps, x.device.type
    exact, exact_gradients = run(model, x, nullcontext())
    plain = explicit(model)
    if how == "converted":
        model, plain, x = model.to(dtype), plain.to(dtype), x.to(dtype)

    def context() -> AbstractContextManager[Any]:
        return torch.autocast(device, dtype) if how == "autocast" else nullcontext()

    expected, expected_gradients = run(plain, x, context())
    for _ in range(2):  # The second time, compiled layers are compiled.
        outputs, gradients = run(model, x, context())
        assert outputs.dtype == expected.dtype
        assert [g.dtype for g in gradients] == [g.dtype for g in expected_gradients]
        assert_near([outputs], [exact], tolerance)
        assert_near(gradients, exact_gradients, tolerance)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("how", ["converted", "autocast"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("place", VECTORS)
def test_vectors(place: str, mode: str, dtype: torch.dtype, how: str, device: str) -> None:
    check(VECTORS[place](mode).to(device), torch.randn(5, 4, device=device), dtype, how)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("how", ["converted", "autocast"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("mode", MODES[:3])  # Convolutions have no Jacobian in closed form.
@pytest.mark.parametrize("place", IMAGES)
def test_images(place: str, mode: str, dtype: torch.dtype, how: str, device: str) -> None:
    channels = 1 if place == "between convolutions" else 2
    check(IMAGES[place](mode).to(device), torch.rand(3, channels, 5, 5, device=device), dtype, how)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("how", ["converted", "autocast"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("normalization", ["free", "bounded"])
def test_a_network_for_images(normalization: str, dtype: torch.dtype, how: str, device: str) -> None:
    # With smaller images torch's own gradient of a bfloat16 convolution of 1 x 1 pixels is wrong on some processors.
    options = {"architecture": "authors", "layers": 1, "stem_gain": 1.0, "stopping": rs.Stopping(), "low": -1.0}
    model = rs.models.implicit_resnet18(0.5, 4, input_shape=(1, 16, 16), normalization=normalization, **options)
    check(model.to(device).eval(), torch.rand(3, 1, 16, 16, device=device), dtype, how, MANY_LAYERS)


@pytest.mark.parametrize("layers", [5, 50])
def test_many_short_layers_are_not_the_identity(layers: int) -> None:
    """In bfloat16 a layer may move a state by less than the tolerance. All of them together must not."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 8)).float()
    x = torch.randn(16, 8, dtype=torch.float32)
    block = rs.ThetaBlock(rs.Autonomous(net), 0.5, layers, 1.0).eval()
    exact = block(x)
    with torch.autocast("cpu", torch.bfloat16):
        y = block(x)
    assert (y - exact).norm() < 0.1 * (exact - x).norm()
