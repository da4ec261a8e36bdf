"""A large batch goes through the field in parts, and its samples are stored as columns. It shows in no result."""

import pytest
import torch
from torch import Tensor, nn

import resolvent as rs
from resolvent.blocks import ThetaBlock
from resolvent.equation import function
from resolvent_lab.bench.measure import peak_bytes

LARGE = 2200  # In five layers, more than two parts.
TIGHT = rs.Stopping(rtol=1e-12, atol=1e-13)
# Solutions agree to the rounding that is left when a solve has converged quadratically.
ROUNDING = {"atol": 1e-8, "rtol": 1e-8}


class Gated(nn.Module):
    """Its Jacobian is not known in closed form."""

    def __init__(self) -> None:
        super().__init__()
        self.value, self.gate, self.out = nn.Linear(2, 8), nn.Linear(2, 8), nn.Linear(8, 2)

    def forward(self, y: Tensor) -> Tensor:
        value: Tensor = self.out(torch.tanh(self.value(y)) * torch.sigmoid(self.gate(y)))
        return value


def chain(activation: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(2, 12), activation, nn.Linear(12, 12), activation, nn.Linear(12, 2))


NETWORKS = {
    "tanh": lambda: chain(nn.Tanh()),
    "gelu": lambda: chain(nn.GELU()),
    "relu": lambda: chain(nn.ReLU()),
    "forward of its own": Gated,
}


def outcome(block: ThetaBlock, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """States, gradients by the input, and numbers of steps, sample by sample."""
    x = x.clone().requires_grad_()
    trajectory = block.trajectory(x)
    (gradient,) = torch.autograd.grad(trajectory.states[-1].square().sum(), x)
    return trajectory.states.detach().transpose(0, 1), gradient, trajectory.solutions[0].steps


@pytest.mark.parametrize("theta", [0.3, 0.5, 1.0])
@pytest.mark.parametrize("make", NETWORKS.values(), ids=NETWORKS.keys())
def test_a_sample_of_a_large_batch_is_solved_for_as_in_a_small_one(make: type[nn.Module], theta: float) -> None:
    torch.manual_seed(0)
    block = ThetaBlock(rs.Autonomous(make()), theta, 5, 5.0)
    x = 2 * torch.randn(LARGE, 2)
    chosen = torch.tensor([0, 7, 1000, 1639, LARGE - 1])
    large, small = outcome(block, x), outcome(block, x[chosen])
    for ours, reference in zip(large[:2], small[:2], strict=True):
        torch.testing.assert_close(ours[chosen], reference, **ROUNDING)
    # Rounding may decide whether a residual is just within or just beyond its tolerance.
    assert (large[2][chosen] - small[2]).abs().max() <= 1


@pytest.mark.parametrize("theta", [0.3, 0.5, 1.0])
@pytest.mark.parametrize("make", NETWORKS.values(), ids=NETWORKS.keys())
def test_gradients_are_those_of_layers_solved_in_turn(make: type[nn.Module], theta: float) -> None:
    torch.manual_seed(1)
    field, x = rs.Autonomous(make()), torch.randn(LARGE, 2, requires_grad=True)
    found = []
    for mode in ("auto", "sequential"):
        y = ThetaBlock(field, theta, 5, 2.5, stopping=TIGHT, mode=mode)(x)
        found.append(torch.autograd.grad(y.sin().sum(), (x, *field.parameters())))
    for ours, reference in zip(*found, strict=True):
        torch.testing.assert_close(ours, reference, atol=1e-7, rtol=1e-7)


def test_parts_of_a_batch_count_as_one_evaluation(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(2)
    block, x = ThetaBlock(rs.Autonomous(Gated()), 0.5, 5, 5.0), torch.randn(LARGE, 2)
    divided = block.trajectory(x).solutions[0]
    for module in ("function", "linearization"):
        monkeypatch.setattr(f"resolvent.equation.{module}.ROWS", 10**6)
    whole = block.trajectory(x).solutions[0]
    assert (divided.evaluations, divided.vjps) == (whole.evaluations, whole.vjps)
    torch.testing.assert_close(divided.value, whole.value, **ROUNDING)


def test_the_field_sees_parts() -> None:
    class Seen(Gated):
        def forward(self, y: Tensor) -> Tensor:
            sizes.append(len(y))
            return super().forward(y)

    sizes: list[int] = []
    field = rs.Autonomous(Seen(), rowwise=True)
    ThetaBlock(field, 0.5, 5, 1.0)(torch.randn(4 * LARGE, 2)).sum().backward()
    # The first guess is evaluated for one layer; a Jacobian takes the rows of a part twice.
    assert max(sizes) <= max(2 * function.ROWS, 4 * LARGE)
    assert sizes.count(function.ROWS) > 10


class Steep(rs.fields.Field):
    """Newton's method for all layers at once fails for starts far from zero."""

    rowwise = True
    autonomous = True

    def forward(self, t: float | Tensor, y: Tensor) -> Tensor:
        return -20 * torch.atan(30 * y)


def test_samples_that_fail_in_a_large_batch_are_solved_layer_by_layer() -> None:
    x = torch.cat([torch.linspace(-8.0, 8.0, 7), torch.linspace(-1e-4, 1e-4, LARGE)])[:, None].requires_grad_()
    runs = [
        ThetaBlock(Steep(), 0.5, 8, 1.6, stopping=TIGHT, mode=mode).trajectory(x) for mode in ("auto", "sequential")
    ]
    together, apart = runs
    assert len(together.solutions) == 8
    assert all(bool(solution.converged.all()) for solution in together.solutions)
    torch.testing.assert_close(together.states, apart.states, atol=1e-9, rtol=1e-9)
    ours, reference = (torch.autograd.grad(run.states[-1].sum(), x)[0] for run in runs)
    torch.testing.assert_close(ours, reference, atol=1e-9, rtol=1e-7)


def test_second_derivatives_of_samples_in_columns() -> None:
    torch.manual_seed(3)
    field = rs.Autonomous(chain(nn.Tanh()))
    x = torch.randn(70, 2, requires_grad=True)
    found = []
    for mode in ("auto", "sequential"):
        block = ThetaBlock(field, 0.5, 4, 1.0, stopping=TIGHT, adjoint=rs.ImplicitAdjoint(order=2), mode=mode)
        (first,) = torch.autograd.grad(block(x).sin().sum(), x, create_graph=True)
        found.append(torch.autograd.grad(first.square().sum(), (x, *field.parameters()), allow_unused=True))
    for ours, reference in zip(*found, strict=True):
        assert (ours is None) == (reference is None)
        if ours is not None:
            torch.testing.assert_close(ours, reference, atol=1e-8, rtol=1e-8)


@pytest.mark.parametrize("make", NETWORKS.values(), ids=NETWORKS.keys())
@pytest.mark.parametrize("theta", [0.5, 1.0])
def test_memory_of_a_large_batch(make: type[nn.Module], theta: float) -> None:
    """A training step keeps the activations of all layers, as the explicit network does, and little besides."""
    torch.manual_seed(4)
    net, x = make(), torch.randn(8192, 2, dtype=torch.float32)
    field = rs.Autonomous(net.float())

    def step(block: ThetaBlock) -> None:
        block(x).square().sum().backward()

    implicit, explicit = (ThetaBlock(field, value, 5, 5.0) for value in (theta, 0.0))
    step(explicit)  # The gradients of the weights are there afterwards.
    ours, reference = (peak_bytes(lambda block=block: step(block), x.device) for block in (implicit, explicit))
    assert ours < 2.6 * reference
