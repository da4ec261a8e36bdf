"""The continuous adjoint: close to the exact gradients for tight tolerances, and lost where the flow contracts."""

from typing import Any

import pytest
import torch
from torch import Tensor

import resolvent as rs
from resolvent.errors import DerivativeOrderError
from resolvent.schemes import tableaux


def problem(rowwise: bool) -> tuple[Any, tuple[Tensor, ...]]:
    """A field, and the tensors that its solution depends on; one of its rates is computed from a leaf."""
    leaf = torch.tensor([0.3, 0.7], requires_grad=True)
    rates = leaf.exp()
    y0 = torch.tensor([[1.0, 0.3], [0.2, 0.6], [0.5, -0.5]], requires_grad=True)
    times = torch.tensor([0.0, 0.2, 0.35, 0.8], requires_grad=True)

    def field(t: Tensor, y: Tensor) -> Tensor:
        a, b = y.unbind(1)
        return torch.stack([rates[0] * b - a * a * b + torch.sin(2 * t), -rates[1] * a - 2 * b**3], 1)

    field.rowwise = rowwise  # type: ignore[attr-defined]
    return field, (leaf, y0, times)


@pytest.mark.parametrize(
    ("name", "rowwise"),
    [
        ("TSITOURAS5", True),
        ("TSITOURAS5", False),
        *(pytest.param("KVAERNO5", r, marks=pytest.mark.slow) for r in (True, False)),
    ],
)
def test_close_to_exact_gradients_for_a_tight_tolerance(name: str, rowwise: bool) -> None:
    field, inputs = problem(rowwise)
    weights, found = torch.randn(4, 3, 2), []
    for memory, rtol in (("adjoint", 1e-8), ("store", 1e-10)):
        states = rs.odeint(field, inputs[1], inputs[2], getattr(tableaux, name), rtol, memory=memory).states
        found.append(torch.autograd.grad((weights * states).sum(), inputs, retain_graph=True))
    for g, exact in zip(*found, strict=True):
        torch.testing.assert_close(g, exact, rtol=1e-5, atol=1e-6)


def test_the_error_follows_the_tolerance() -> None:
    """Exact gradients are those of the computed states; the adjoint has an error of its own."""
    field, inputs = problem(True)
    errors = []
    exact = rs.odeint(field, inputs[1], inputs[2], tableaux.TSITOURAS5, 1e-10).states[-1].sum()
    exact_gradients = torch.autograd.grad(exact, inputs, retain_graph=True)
    for rtol in (1e-3, 1e-5, 1e-6):
        states = rs.odeint(field, inputs[1], inputs[2], tableaux.TSITOURAS5, rtol, memory="adjoint").states
        gradients = torch.autograd.grad(states[-1].sum(), inputs, retain_graph=True)
        errors.append(max(float((g - e).abs().max()) for g, e in zip(gradients, exact_gradients, strict=True)))
    assert errors[0] > 3 * errors[1] > 9 * errors[2] > 0


def test_spans_of_samples_backward_in_time_and_other_shapes() -> None:
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh())
    field = rs.Autonomous(lambda y: module(y.flatten(1)).reshape(y.shape), rowwise=True)
    y0 = torch.randn(3, 2, 2, requires_grad=True)
    times = torch.tensor([[0.0, 1.0, 0.5], [0.5, 2.5, 0.1], [1.0, 4.0, 0.0]])
    found = []
    for memory in ("adjoint", "store"):
        result = rs.odeint(field, y0, times, rtol=1e-9, memory=memory)
        loss = result.states.square().sum() + result.final.sum()
        found.append(torch.autograd.grad(loss, [y0, *module.parameters()]))
    for g, exact in zip(*found, strict=True):
        torch.testing.assert_close(g, exact, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_it_fails_loudly_where_the_flow_contracts_and_exact_gradients_do_not() -> None:
    rate = torch.tensor(50.0, requires_grad=True)

    def field(t: Tensor, y: Tensor) -> Tensor:
        return -rate * (y - torch.cos(t)[:, None]) - y**3

    y0 = torch.ones(1, 1)
    exact = rs.odeint(field, y0, [0.0, 3.0], tableaux.KVAERNO5).states[-1].sum()
    (gradient,) = torch.autograd.grad(exact, rate)
    assert abs(gradient) < 1e-2
    with pytest.raises(rs.ConvergenceError, match="unstable where the flow contracts"):
        rs.odeint(field, y0, [0.0, 3.0], tableaux.KVAERNO5, memory="adjoint").states[-1].sum().backward()


def test_it_keeps_nothing_of_the_steps() -> None:
    module = rs.fields.MLP(2, 50, 2, activation=torch.nn.Tanh())
    saved = {}
    for memory in ("store", "adjoint"):
        count = [0]

        def pack(x: Tensor, count: list[int] = count) -> Tensor:
            count[0] += x.numel()
            return x

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
            rs.odeint(module, torch.ones(4, 2), [0.0, 2.0], tableaux.TSITOURAS5, memory=memory)
        saved[memory] = count[0]
    # One evaluation of the field, which finds its weights, and the states at the output times.
    assert saved["adjoint"] < 0.1 * saved["store"]


def test_samples_that_failed_get_no_gradient() -> None:
    rate = torch.tensor(1.0, requires_grad=True)
    result = rs.odeint(
        lambda t, y: rate * y * y, torch.tensor([[2.0], [0.1]]), [0.0, 1.0], on_failure="ignore", memory="adjoint"
    )
    assert result.done.tolist() == [False, True]
    (gradient,) = torch.autograd.grad(result.states[-1, 1].sum(), rate)
    torch.testing.assert_close(gradient, torch.tensor(0.1**2 / 0.9**2), rtol=1e-4, atol=0)


def test_a_second_derivative_is_refused() -> None:
    k = torch.tensor(0.7, requires_grad=True)
    states = rs.odeint(lambda t, y: -k * y, torch.ones(1, 1), [0.0, 1.0], memory="adjoint").states
    with pytest.raises(DerivativeOrderError):
        torch.autograd.grad(states.sum(), k, create_graph=True)


@pytest.mark.parametrize("options", [{"jumps": [0.5]}, {"event": lambda t, y: y[:, 0]}, {"derivatives": 2}])
def test_what_it_does_not_take_is_refused(options: Any) -> None:
    with pytest.raises(ValueError, match="takes neither jumps nor events"):
        rs.odeint(lambda t, y: -y, torch.ones(1, 1), [0.0, 1.0], memory="adjoint", **options)
    part = rs.Autonomous(lambda y: -y, linear_part=-1.0)
    with pytest.raises(ValueError, match="takes no additive scheme"):
        rs.odeint(part, torch.ones(1, 1), [0.0, 1.0], tableaux.KENCARP4, memory="adjoint")
