"""Gradients: those of the discrete solution, with the accepted steps held fixed."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck

import resolvent as rs
from resolvent.schemes import tableaux

METHODS = ["DORMAND_PRINCE5", "KVAERNO5", pytest.param("RADAU5", marks=pytest.mark.slow)]
Y0 = [[1.0, 0.3], [0.2, 0.6], [0.5, -0.5]]


def field_with(k: Tensor, rowwise: bool = False) -> Any:
    def field(t: Tensor, y: Tensor) -> Tensor:
        a, b = y.unbind(1)
        return torch.stack([k[0] * b - a * a * b + torch.sin(k[2] * t), -k[1] * a - 2 * b**3], 1)

    field.rowwise = rowwise  # type: ignore[attr-defined]
    return field


def leaves() -> tuple[Tensor, Tensor, Tensor]:
    return (
        torch.tensor(Y0, requires_grad=True),
        torch.tensor([1.3, 0.7, 2.0], requires_grad=True),
        torch.tensor([0.0, 0.2, 0.35, 0.5], requires_grad=True),
    )


def integrate(y0: Tensor, k: Tensor, times: Tensor, name: str, rowwise: bool = False, **options: Any) -> Tensor:
    options = {"rtol": 1e-7, "atol": 1e-9} | options
    return rs.odeint(field_with(k, rowwise), y0, times, getattr(tableaux, name), **options).states


@pytest.mark.parametrize("rowwise", [True, False])
@pytest.mark.parametrize("memory", ["store", "checkpoint"])
@pytest.mark.parametrize("name", METHODS)
def test_gradients_of_states_by_all_that_they_depend_on(name: str, memory: str, rowwise: bool) -> None:
    """Against the solution with a far tighter tolerance, whose derivatives are those of the flow."""
    inputs = leaves()
    weights = torch.randn(4, 3, 2)
    got = torch.autograd.grad((weights * integrate(*inputs, name, rowwise, memory=memory)).sum(), inputs)
    exact = torch.autograd.grad((weights * integrate(*inputs, "DORMAND_PRINCE5", rtol=1e-12, atol=1e-13)).sum(), inputs)
    for g, e in zip(got, exact, strict=True):
        torch.testing.assert_close(g, e, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["DORMAND_PRINCE5", "KVAERNO5", "RADAU5"])
def test_gradcheck_with_steps_that_do_not_change(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A loose tolerance and a first step that spans all leave one step, which differences then see as it is."""
    monkeypatch.setattr(rs.integrate.control.Tolerance, "newton", lambda self, dtype: 1e-13)
    monkeypatch.setattr("resolvent.integrate.newton._MOST_ITERATIONS", 60)

    def one_step(y0: Tensor, k: Tensor, times: Tensor) -> Tensor:
        table = getattr(tableaux, name)
        result = rs.odeint(field_with(k), y0, times, table, rtol=0.5, atol=10.0, first_step=1.0)
        assert result.accepted.tolist() == [1, 1, 1]
        return result.states

    inputs = leaves()
    with torch.no_grad():
        exact = integrate(*inputs, name)
    assert (one_step(*inputs) - exact).abs().max() > 1e-7, "the step is not that of the flow"
    assert gradcheck(one_step, inputs, eps=1e-6, atol=1e-6, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["TSITOURAS5", "KVAERNO4", "KVAERNO5"])
def test_gradcheck_through_adaptive_runs(name: str) -> None:
    run = partial(integrate, name=name, rtol=1e-10, atol=1e-12)
    assert gradcheck(run, leaves(), eps=1e-5, atol=1e-5, rtol=1e-4, fast_mode=True)


@pytest.mark.parametrize("name", METHODS)
def test_memory_and_rows_do_not_change_the_values(name: str) -> None:
    inputs = leaves()
    with torch.no_grad():
        plain = integrate(*inputs, name)
    for rowwise in (True, False):
        for memory in ("store", "checkpoint"):
            torch.testing.assert_close(integrate(*inputs, name, rowwise, memory=memory), plain, rtol=1e-12, atol=1e-13)


def test_parameters_of_a_module_and_samples_with_spans_of_their_own() -> None:
    torch.manual_seed(0)
    module = rs.fields.MLP(2, 6, 1, activation=torch.nn.Tanh())
    y0 = torch.randn(3, 2, requires_grad=True)
    times = torch.tensor([[0.0, 1.0, 0.5], [0.5, 2.5, 0.1], [1.0, 4.0, 0.0]])

    def gradients(scheme: Any, **options: Any) -> list[Tensor]:
        states = rs.odeint(module, y0, times, scheme, **options).states
        return list(torch.autograd.grad(states.square().sum(), [y0, *module.parameters()]))

    exact = gradients(tableaux.DORMAND_PRINCE5, rtol=1e-12, atol=1e-13)
    for scheme in (tableaux.TSITOURAS5, tableaux.KVAERNO5, "auto"):
        for g, e in zip(gradients(scheme, rtol=1e-8), exact, strict=True):
            torch.testing.assert_close(g, e, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_stiff_gradients_after_a_change_of_method() -> None:
    """Robertson's problem by its three rates: "auto" begins with explicit steps, and the sums stay what they are."""
    rates = torch.tensor([0.04, 1e4, 3e7], requires_grad=True)

    def field(t: Tensor, y: Tensor) -> Tensor:
        a, b, c = y.unbind(1)
        slow, back, fast = rates[0] * a, rates[1] * b * c, rates[2] * b * b
        return torch.stack([back - slow, slow - back - fast, fast], 1)

    y0, times = torch.tensor([[1.0, 0.0, 0.0]]), [0.0, 1.0]
    elasticities = []
    for scheme, rtol in (("auto", 1e-6), (tableaux.KVAERNO5, 1e-6), (tableaux.KVAERNO5, 1e-8)):
        state = rs.odeint(field, y0, times, scheme, rtol=rtol, atol=1e-4 * rtol).states[-1, 0]
        (grad,) = torch.autograd.grad(state[1], rates, retain_graph=True)
        elasticities.append(grad * rates.detach() / state[1].detach())
        (conserved,) = torch.autograd.grad(state.sum(), rates)
        assert (conserved * rates.detach()).abs().max() < 1e-6
    torch.testing.assert_close(elasticities[0], elasticities[2], rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(elasticities[1], elasticities[2], rtol=1e-3, atol=1e-4)


def test_the_derivative_by_the_last_time_is_the_slope() -> None:
    for name in ("DORMAND_PRINCE5", "KVAERNO5"):
        y0, k, times = leaves()
        state = integrate(y0, k, times, name)[-1]
        (by_time,) = torch.autograd.grad(state.sum(), times)
        with torch.no_grad():
            slope = field_with(k)(times[-1].expand(3), state).sum()
        torch.testing.assert_close(by_time[-1], slope, rtol=1e-5, atol=1e-7)
        torch.testing.assert_close(by_time[1:3], torch.zeros(2), atol=1e-12, rtol=0)


def test_a_second_derivative_is_refused_for_implicit_methods_and_exact_for_explicit_ones() -> None:
    k = torch.tensor(0.7, requires_grad=True)
    y0 = torch.tensor([[1.0]])
    (first,) = torch.autograd.grad(
        rs.odeint(lambda t, y: -k * y, y0, [0.0, 1.0], tableaux.TSITOURAS5, 1e-9).states[-1].sum(), k, create_graph=True
    )
    (second,) = torch.autograd.grad(first, k)
    torch.testing.assert_close(second, torch.exp(-k.detach()), rtol=1e-5, atol=0)
    states = rs.odeint(lambda t, y: -k * y * y, y0, [0.0, 1.0], tableaux.KVAERNO5).states
    (first,) = torch.autograd.grad(states[-1].sum(), k, create_graph=True)
    with pytest.raises(rs.errors.DerivativeOrderError):
        torch.autograd.grad(first, k)


@pytest.mark.parametrize(("name", "rowwise"), [("KVAERNO5", True), ("KVAERNO5", False), ("RADAU5", True)])
def test_second_derivatives_that_were_asked_for(name: str, rowwise: bool) -> None:
    y0, k, times = leaves()

    def hessian(name: str, **options: Any) -> Tensor:
        states = integrate(y0, k, times.detach(), name, rowwise, **options)
        (first,) = torch.autograd.grad(states[-1].sin().sum(), k, create_graph=True)
        return torch.stack([torch.autograd.grad(part, k, retain_graph=True)[0] for part in first])

    implicit = hessian(name, derivatives=2)
    torch.testing.assert_close(implicit, hessian("DORMAND_PRINCE5"), rtol=1e-5, atol=1e-6)


def test_without_anything_to_differentiate_there_is_no_graph() -> None:
    states = rs.odeint(lambda t, y: -y, torch.ones(2, 1), [0.0, 1.0]).states
    assert not states.requires_grad
    with torch.no_grad():
        k = torch.tensor(1.0, requires_grad=True)
        assert not rs.odeint(lambda t, y: -k * y, torch.ones(2, 1), [0.0, 1.0]).states.requires_grad


def test_checkpoints_keep_less() -> None:
    """Counted in the numbers that the graph saves."""
    module = rs.fields.MLP(2, 200, 3, activation=torch.nn.Tanh())
    y0, saved = torch.randn(4, 2), {}
    for memory in ("store", "checkpoint"):
        count = [0]

        def pack(x: Tensor, count: list[int] = count) -> Tensor:
            count[0] += x.numel()
            return x

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
            rs.odeint(module, y0, [0.0, 2.0], tableaux.TSITOURAS5, memory=memory)
        saved[memory] = count[0]
    assert saved["checkpoint"] < 0.2 * saved["store"]
