"""Layers in a compiled graph: one operation each, with the values and gradients of eager mode."""

import copy
import gc
import pickle
import shutil
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import resolvent as rs
from resolvent.blocks import opaque
from resolvent.blocks.packing import pack, unpack
from resolvent.errors import ResolventError
from seeding import shifted

# torch's compiler uses it.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")


@pytest.fixture(autouse=True)
def fresh_compiler() -> None:
    torch.manual_seed(shifted(0))
    torch.compiler.reset()


def compiled(model: Any, backend: str = "aot_eager") -> Any:
    return torch.compile(model, fullgraph=True, backend=backend)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention, self.norm = nn.MultiheadAttention(4, 2, batch_first=True), nn.LayerNorm(4)

    def forward(self, y: Tensor) -> Tensor:
        z = self.norm(y)
        return 0.3 * self.attention(z, z, z, need_weights=False)[0]


class Closure(nn.Module):
    """The field is a function of a module and a parameter outside of the block."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.matrix = nn.Linear(4, 4), nn.Parameter(0.3 * torch.randn(4, 4))
        self.block = rs.ThetaBlock(lambda t, y: torch.tanh(self.linear(y) @ self.matrix), 0.5, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.block(self.linear(x))


def layers(field: Callable[..., Any], theta: float, **options: Any) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), rs.ThetaBlock(field, theta, 3, **options), nn.ReLU())


def network(activation: nn.Module) -> rs.Autonomous:
    return rs.Autonomous(nn.Sequential(nn.Linear(4, 8), activation, nn.Linear(8, 4)))


def bounded() -> rs.fields.Field:
    return rs.fields.Bounded(rs.fields.MLP(4, 8, 1, nn.Tanh(), bound=1.0), -5.0, 0.5)


def equilibrium() -> nn.Module:
    class Map(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, z: Tensor, x: Tensor) -> Tensor:
            return 0.5 * torch.tanh(self.linear(z) + x)

    return nn.Sequential(nn.Linear(4, 4), rs.Equilibrium(Map()))


def convolution() -> nn.Module:
    field = rs.Autonomous(nn.Sequential(nn.ReLU(), nn.Conv2d(2, 2, 3, padding=1)))
    return nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), rs.ThetaBlock(field, 0.5, 2), nn.Flatten())


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "explicit": (lambda: layers(rs.fields.MLP(4, 8, 1), 0.0), (4,)),
    "midpoint": (lambda: layers(network(nn.GELU()), 0.5), (4,)),
    "backward Euler, recomputed": (lambda: layers(network(nn.Tanh()), 1.0, memory="checkpoint"), (4,)),
    "normalised, learned theta": (lambda: layers(bounded(), 0.4, learn_theta=True), (4,)),
    "convolution": (convolution, (1, 6, 6)),
    "attention": (lambda: nn.Sequential(rs.ThetaBlock(rs.Autonomous(Attention()), 0.5, 2)), (3, 4)),
    "closure": (Closure, (4,)),
    "equilibrium": (equilibrium, (4,)),
}


def results(model: nn.Module, run: Callable[[Tensor], Tensor], x: Tensor) -> list[Tensor]:
    y = run(x)
    return [y, *torch.autograd.grad(y.square().sum(), [x, *model.parameters()])]


_SLOW = ("attention", "backward Euler, recomputed")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name in _SLOW else []) for name in MODELS]
)
def test_values_and_gradients_are_those_of_eager_mode(name: str) -> None:
    make, shape = MODELS[name]
    model, x = make(), torch.randn(5, *shape, requires_grad=True)
    expected = results(model, model, x)
    for ours, reference in zip(results(model, compiled(model), x), expected, strict=True):
        torch.testing.assert_close(ours, reference, atol=1e-12, rtol=1e-12)
    gc.collect()
    assert not opaque._graphs


@pytest.mark.slow
def test_a_residual_network() -> None:
    model = rs.models.implicit_resnet18(
        channels=2, input_shape=(1, 12, 12), normalization="bounded", transition_bound=1.0
    ).eval()
    x = torch.randn(4, 1, 12, 12, requires_grad=True)
    expected = results(model, model, x)
    for ours, reference in zip(results(model, compiled(model), x), expected, strict=True):
        torch.testing.assert_close(ours, reference, atol=1e-12, rtol=1e-12)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None and shutil.which("clang++") is None, reason="needs a C++ compiler")
def test_the_default_compiler() -> None:
    model, x = convolution(), torch.randn(4, 1, 6, 6, requires_grad=True)
    expected = results(model, model, x)
    for ours, reference in zip(results(model, compiled(model, "inductor"), x), expected, strict=True):
        torch.testing.assert_close(ours, reference, atol=1e-9, rtol=1e-9)


def test_one_graph_for_all_layers_and_batches() -> None:
    graphs: list[torch.fx.GraphModule] = []

    def count(graph: torch.fx.GraphModule, _: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    model = nn.Sequential(*[rs.ThetaBlock(network(nn.Tanh()), 0.5, 2) for _ in range(2)])
    run = torch.compile(model, fullgraph=True, backend=count)
    for batch in (3, 7, 9):
        x = torch.randn(batch, 4)
        torch.testing.assert_close(run(x), model(x))
    assert len(graphs) == 2, "one for the first size, one for all others"
    assert sum(node.target is torch.ops.resolvent.run.default for node in graphs[0].graph.nodes) == 2
    for mode in (torch.no_grad(), torch.inference_mode()):
        with mode:
            torch.testing.assert_close(run(x), model(x))


def test_settings_changed_later_are_seen() -> None:
    block, x = rs.ThetaBlock(network(nn.Tanh()), 0.5, 2), torch.randn(3, 4)
    run = compiled(block, "eager")
    before = run(x)
    block.theta = 1.0
    torch.testing.assert_close(run(x), block(x))
    assert (run(x) - before).abs().max() > 1e-6
    torch.testing.assert_close(run(x, 0.3, 2.0), block(x, 0.3, 2.0))


def test_a_copy_is_another_layer() -> None:
    block, x = rs.ThetaBlock(network(nn.Tanh()), 0.5, 2), torch.randn(3, 4)
    run = torch.compile(lambda block, x: block(x), fullgraph=True, backend="eager")
    for other in (copy.deepcopy(block), pickle.loads(pickle.dumps(block))):
        other.theta = 1.0
        torch.testing.assert_close(run(block, x), block(x))
        torch.testing.assert_close(run(other, x), other(x))


def test_trajectories_and_states_of_several_tensors() -> None:
    field = nn.Linear(4, 4)
    block = rs.ThetaBlock(lambda t, y: {"a": torch.tanh(field(y["b"])), "b": -y["a"]}, 0.5, 3)
    x = {"a": torch.randn(3, 4), "b": torch.randn(3, 4, requires_grad=True)}
    t0 = torch.tensor([0.0, 0.1, 0.2])
    ours, expected = compiled(lambda x: block.trajectory(x, t0))(x), block.trajectory(x, t0)
    torch.testing.assert_close((ours.times, ours.states), (expected.times, expected.states))
    assert ours.solutions == ()
    gradients = [
        torch.autograd.grad(trajectory.states["a"].square().sum(), [x["b"], *field.parameters()])
        for trajectory in (ours, expected)
    ]
    torch.testing.assert_close(*gradients, atol=1e-12, rtol=1e-12)


def test_autocast_is_that_of_the_caller() -> None:
    field, x = network(nn.Tanh()).float(), torch.randn(3, 4, dtype=torch.float32)
    block = rs.ThetaBlock(field, 0.5, 2)
    run = compiled(block)
    with torch.autocast("cpu", torch.bfloat16):
        ours, expected = run(x), block(x)
    torch.testing.assert_close(ours, expected)
    assert (ours - block(x)).abs().max() > 1e-4


def test_monitors_and_warm_starts_work() -> None:
    linear = nn.Linear(4, 4)
    layer = rs.Equilibrium(lambda z, x: 0.5 * torch.tanh(linear(z) + x), warm=6)
    x, samples = torch.randn(3, 4), torch.tensor([0, 2, 5])
    run = compiled(lambda x: layer(x, samples=samples), "eager")
    counts = []
    for _ in range(2):
        with rs.blocks.Monitor(layer) as monitor:
            run(x).sum().backward()
        counts.append(monitor.records["", "forward"].max_steps)
        assert monitor.records["", "backward"].samples == 3
    assert counts[1] < counts[0]


def test_random_fields_draw_once_a_pass() -> None:
    dropping = rs.blocks.FrozenRandomness(nn.Sequential(nn.Linear(4, 32), nn.Dropout(0.5), nn.Linear(32, 4)))
    block, x = rs.ThetaBlock(rs.Autonomous(dropping), 0.5, 2), torch.randn(3, 4)
    run = compiled(lambda x: (block(x), block(x)))
    torch.manual_seed(shifted(1))
    one, two = run(x)
    torch.manual_seed(shifted(1))
    torch.testing.assert_close((one, two), (block(x), block(x)))
    assert (one - two).abs().max() > 1e-6


def test_failures_are_as_loud() -> None:
    block = rs.ThetaBlock(lambda t, y: y**2 + 1, 1.0, 1, 4.0)
    with pytest.raises(rs.ConvergenceError, match="did not converge"):
        compiled(block)(torch.ones(2, 1))


def test_gradients_that_would_be_lost_are_refused() -> None:
    hidden = [{"matrix": torch.randn(4, 4, requires_grad=True)}]
    block = rs.ThetaBlock(lambda t, y: torch.tanh(0.3 * y @ hidden[0]["matrix"]), 0.5, 2)
    with pytest.raises(ValueError, match="compile does not find"):
        compiled(block, "eager")(torch.randn(3, 4))
    seen = torch.randn(4, 4, requires_grad=True)
    seen.register_hook(lambda gradient: 2 * gradient)
    block = rs.ThetaBlock(lambda t, y: torch.tanh(0.3 * y @ seen), 0.5, 2)
    with pytest.raises(ValueError, match="hooks on its gradient"):
        compiled(block, "eager")(torch.randn(3, 4))


def test_a_graph_of_derivatives_is_refused() -> None:
    block, x = rs.ThetaBlock(network(nn.Tanh()), 0.5, 2), torch.randn(3, 4, requires_grad=True)
    (gradient,) = torch.autograd.grad(compiled(block, "eager")(x).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match=r"resolvent.+run_backward"):
        gradient.sum().backward()


def test_a_lost_graph_is_an_error() -> None:
    with pytest.raises(ResolventError, match="is gone"):
        opaque.run_backward([torch.ones(1)], torch.tensor(0), [])


def test_packing() -> None:
    tensors: list[Tensor] = []
    numbers: list[float] = []
    value = (torch.ones(2), [1.5, None, True], {"a": 3, "b": ("text", 2.5)})
    packed = pack(value, tensors, numbers)
    assert (len(tensors), numbers) == (1, [1.5, 2.5])
    assert unpack(packed, iter(tensors), iter(numbers)) == value
    with pytest.raises(ValueError, match=r"takes tensors, numbers and text.*got set"):
        pack({1}, [], [])
