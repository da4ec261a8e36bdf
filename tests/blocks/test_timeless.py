"""A user's own module called with (t, y) that ignores t: its layers are solved together, with nothing declared."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import resolvent as rs
from seeding import shifted


class Timeless(nn.Module):
    """What most neural differential equations look like."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 3))

    def forward(self, t: float | Tensor, y: Tensor) -> Tensor:
        return self.net(y)


class Timed(Timeless):
    def forward(self, t: float | Tensor, y: Tensor) -> Tensor:
        return self.net(y) * torch.cos(torch.as_tensor(t))


class Centred(Timeless):
    def forward(self, t: float | Tensor, y: Tensor) -> Tensor:
        return self.net(y - y.mean(0))


class Silent(Timeless):
    rowwise = False


def groups(field: nn.Module, x: Tensor) -> int:
    """How many solves the four layers take."""
    return len(rs.ThetaBlock(field, 0.5, num_steps=4, horizon=1.0).eval().trajectory(x).solutions)


@pytest.mark.parametrize(
    ("make", "solves"), [(Timeless, 1), (Timed, 4), (Centred, 4), (Silent, 4)], ids=lambda value: str(value)
)
def test_layers_are_solved_together_if_the_time_is_ignored(make: Callable[[], nn.Module], solves: int) -> None:
    torch.manual_seed(shifted(0))
    assert groups(make(), torch.randn(5, 3)) == solves


@pytest.mark.parametrize("memory", ["store", "checkpoint", "reversible"])
def test_values_and_gradients_are_those_of_the_wrapped_network(memory: str) -> None:
    torch.manual_seed(shifted(1))
    field, x = Timeless(), torch.randn(6, 3, requires_grad=True)
    stopping = rs.Stopping(rtol=1e-12, atol=0.0)

    def run(field: nn.Module, **options: str) -> tuple[Tensor, ...]:
        y = rs.ThetaBlock(field, 0.5, 4, 1.0, stopping=stopping, **options)(x, t0=0.3)
        return y, *torch.autograd.grad(y.square().sum(), [x, *field.parameters()])

    own = run(field, memory=memory)
    wrapped = run(rs.Autonomous(field.net), mode="sequential")
    for mine, other in zip(own, wrapped, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-8, atol=1e-10)


def test_the_claim_follows_the_module() -> None:
    """It ends with a hook or another attribute, and it is never made for states without features."""
    torch.manual_seed(shifted(2))
    field, x = Timeless(), torch.randn(5, 3)
    block = rs.ThetaBlock(field, 0.5, num_steps=4, horizon=1.0).eval()
    assert len(block.trajectory(x).solutions) == 1
    handle = field.net.register_forward_hook(lambda module, inputs, output: output - output.mean(0))
    assert len(block.trajectory(x).solutions) == 4
    handle.remove()
    assert len(block.trajectory(x).solutions) == 1
    field.scale = 2.0
    assert len(block.trajectory(x).solutions) == 4


def test_a_sample_does_not_depend_on_its_batch() -> None:
    torch.manual_seed(shifted(3))
    block, x = rs.ThetaBlock(Timeless(), 1.0, num_steps=6, horizon=2.0), torch.randn(7, 3)
    together = block(x)
    for n in range(7):
        torch.testing.assert_close(block(x[n : n + 1])[0], together[n], rtol=1e-6, atol=1e-6)


def test_times_of_samples_do_no_harm() -> None:
    torch.manual_seed(shifted(4))
    block, x = rs.ThetaBlock(Timeless(), 0.5, num_steps=4, horizon=1.0), torch.randn(5, 3)
    torch.testing.assert_close(block(x, t0=torch.rand(5)), block(x))


def test_a_wrong_proof_is_found_at_the_first_call() -> None:
    """By a test for tensors a module can tell a trace from a call."""

    class Hidden(Timeless):
        def forward(self, t: float | Tensor, y: Tensor) -> Tensor:
            return self.net(y - y.mean(0) if isinstance(y, Tensor) else y)

    for training in (True, False):
        block = rs.ThetaBlock(Hidden(), 0.5, num_steps=4, horizon=1.0).train(training)
        with pytest.raises(ValueError, match=r"sample|batch"):
            block(torch.randn(5, 3))
