"""Monotone networks and splitting methods: equilibria that were chosen first, for weights that do not contract."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import resolvent as rs
from resolvent.extending import Solver
from resolvent.fields import Monotone
from resolvent.solvers import ForwardBackward, PeacemanRachford

CLOSE = rs.Stopping(rtol=1e-10, atol=1e-11, max_steps=20_000)
SPLITTING = [ForwardBackward(), PeacemanRachford(), PeacemanRachford(1.0)]


def network(size: int, scale: float, margin: float = 0.5) -> Monotone:
    """With the offset as its input, and weights of any size."""
    f = Monotone(size, nn.Identity(), margin)
    with torch.no_grad():
        for parameter in f.parameters():
            parameter.normal_().mul_(scale / size**0.5)
    return f


def manufactured(f: Monotone, batch: int) -> tuple[Tensor, Tensor]:
    """A solution that was chosen, half of it zero, and the input that it belongs to."""
    size = f.recur.in_features
    z = torch.relu(torch.randn(batch, size))
    with torch.no_grad():
        image = z - z @ f.recur.weight.mT
    return z, torch.where(z > 0, image, image - torch.rand(batch, size))


@pytest.mark.parametrize("scale", [0.3, 2.0])
@pytest.mark.parametrize("solver", [*SPLITTING, rs.Newton(), rs.Auto()], ids=repr)
def test_the_solution_that_was_chosen(solver: Solver, scale: float) -> None:
    f = network(12, scale)
    z, x = manufactured(f, 5)
    layer = rs.Equilibrium(f, solver=solver, stopping=CLOSE)
    torch.testing.assert_close(layer(x), z, rtol=1e-7, atol=1e-7)


def test_the_equilibrium_is_unique_where_the_fixed_point_diverges() -> None:
    f = network(12, 3.0)
    z, x = manufactured(f, 4)
    with pytest.raises(rs.ConvergenceError):
        rs.Equilibrium(f, solver=rs.Picard())(x)
    layer = rs.Equilibrium(f, solver=PeacemanRachford(), stopping=CLOSE)
    for _ in range(3):
        torch.testing.assert_close(layer(x, z0=10 * torch.randn(4, 12)), z, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("margin", [0.1, 2.0])
def test_the_margin_holds_for_all_weights(margin: float) -> None:
    A = torch.eye(12) - network(12, 5.0, margin).recur.weight.detach()
    least = torch.linalg.eigvalsh((A + A.mT) / 2)[0].item()
    assert least >= margin - 1e-10
    f = network(12, 5.0, margin)
    layer = rs.Equilibrium(f, solver=PeacemanRachford(), stopping=CLOSE)
    x, y = torch.randn(2, 6, 12)
    change = (layer(x) - layer(y)).norm(dim=1)
    assert (change <= (x - y).norm(dim=1) / margin + 1e-8).all()


def test_the_step_of_the_fixed_point() -> None:
    """A step of 1 is the plain iteration."""
    f = network(6, 0.3)
    x = torch.randn(3, 6)
    steps = rs.FixedSteps(4)
    plain = rs.Equilibrium(f, solver=rs.Picard(), stopping=steps, on_failure="ignore")
    split = rs.Equilibrium(f, solver=ForwardBackward(1.0), stopping=steps, on_failure="ignore")
    torch.testing.assert_close(split(x), plain(x))


@pytest.mark.parametrize("solver", SPLITTING, ids=repr)
def test_gradients_agree_with_finite_differences(solver: Solver) -> None:
    f = Monotone(3, nn.Linear(2, 3), margin=0.8)
    layer = rs.Equilibrium(f, lambda x: x.new_zeros(len(x), 3), solver=solver, stopping=CLOSE)
    names, weights = zip(*layer.named_parameters(), strict=True)

    def call(x: Tensor, *weights: Tensor) -> Tensor:
        return torch.func.functional_call(layer, dict(zip(names, weights, strict=True)), (x,))

    assert torch.autograd.gradcheck(call, (torch.randn(2, 2, requires_grad=True), *weights))


def test_a_sample_alone_and_in_its_batch() -> None:
    """Large enough for finished samples to be dropped from the batch."""
    f = network(40, 1.0)
    _, x = manufactured(f, 600)
    x[::3] *= 1e-3
    for solver in (ForwardBackward(), PeacemanRachford()):
        layer = rs.Equilibrium(f, solver=solver)
        assert layer.rowwise
        together = layer.solution(x)
        for i in (0, 1, 599):
            alone = layer.solution(x[i : i + 1])
            torch.testing.assert_close(alone.value[0], together.value[i], rtol=1e-7, atol=1e-9)
            assert abs(int(alone.steps[0]) - int(together.steps[i])) <= 1


def test_weights_are_computed_once_a_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    f = network(6, 0.5)
    parametrization: Any = f.recur.parametrizations.weight[0]  # type: ignore[union-attr, index]
    calls = []
    forward = type(parametrization).forward
    monkeypatch.setattr(type(parametrization), "forward", lambda *a: calls.append(1) or forward(*a))
    layer = rs.Equilibrium(f, solver=PeacemanRachford())
    layer(torch.randn(3, 6)).sum().backward()
    assert len(calls) == 1


def test_vmap() -> None:
    f = network(6, 0.5)
    layer = rs.Equilibrium(f, solver=PeacemanRachford(), stopping=CLOSE).eval()
    x = torch.randn(2, 3, 6)
    torch.testing.assert_close(torch.func.vmap(layer)(x)[1], layer(x[1]))


WRONG: dict[str, Any] = {
    "step_size must be a positive number, or None, got 0": lambda: ForwardBackward(0),
    "step_size must be a positive number, or None, got nan": lambda: PeacemanRachford(float("nan")),
    "ForwardBackward needs a function that says how it is split": lambda: rs.Equilibrium(
        lambda z, x: z / 2 + x, solver=ForwardBackward()
    )(torch.ones(2, 2)),
    "PeacemanRachford solves z = F": lambda: rs.resolve(
        rs.Rowwise(network(2, 0.5), torch.ones(2, 2)), torch.ones(2, 2), 1.0, solver=PeacemanRachford()
    ),
    "ForwardBackward solves z = F": lambda: rs.resolve(
        rs.Rowwise(network(2, 0.5), torch.ones(2, 2)), torch.zeros(2, 2), 0.5, solver=ForwardBackward()
    ),
    "size must be a whole number, 1 or more, got 0": lambda: Monotone(0, nn.Identity()),
    "inject must be a module such as": lambda: Monotone(2, 3),  # type: ignore[arg-type]
    "margin must be a positive number, got 0": lambda: Monotone(2, nn.Identity(), 0),
}


@pytest.mark.parametrize(("message", "call"), WRONG.items())
def test_wrong_arguments_are_named(message: str, call: Any) -> None:
    with pytest.raises(ValueError, match=message):
        call()
