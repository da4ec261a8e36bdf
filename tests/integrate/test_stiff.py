"""Stiff problems: right to 1e-4 with the default call, and "auto" finds out which ones are."""

from typing import Any

import pytest
import torch
from torch import Tensor

import resolvent as rs
from integrate.stiff_problems import PROBLEMS, Problem, brusselator, brusselator_start, heat, robertson
from resolvent.schemes import tableaux

SLOW = {"van der Pol, mu = 1e3", "van der Pol, eps = 1e-6", "Oregonator", "HIRES", "POLLU", "E5"}
# Published, at t = 0.4, 4, 40, ... (Hairer & Wanner; Mazzia & Magherini).
ROBERTSON = [3.3864e-05, 2.2404e-05, 9.1855e-06, 3.2229e-06, 8.9424e-07]

# E5 begins at 1.76e-3 and ends at 1e-16 with a linear invariant: linear systems round it by eps times the start.
ROUNDING = {"E5": 1.76e-3 * torch.finfo(torch.float64).eps}


def solve(problem: Problem, scheme: Any, **options: Any) -> rs.integrate.Integration:
    y0 = torch.tensor([problem.y0])
    return rs.odeint(problem.field, y0, [0.0, problem.end], scheme, **({"atol": problem.atol} | options))


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow if n in SLOW else ()) for n in PROBLEMS])
def test_each_component_is_right_with_the_default_call(name: str) -> None:
    problem = PROBLEMS[name]
    result = solve(problem, "auto")
    atol = max(problem.atol, ROUNDING.get(name, 0.0))
    torch.testing.assert_close(result.states[-1, 0], torch.tensor(problem.state), rtol=1e-4, atol=atol)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Robertson", "HIRES", "Brusselator"])
def test_radau(name: str) -> None:
    """Of order 5 with coupled stages: more accurate than asked for, with about as many evaluations as KVAERNO5."""
    problem = PROBLEMS[name]
    result = solve(problem, tableaux.RADAU5)
    torch.testing.assert_close(result.states[-1, 0], torch.tensor(problem.state), rtol=3e-6, atol=problem.atol)
    assert result.evaluations < 1.2 * solve(problem, tableaux.KVAERNO5).evaluations


def test_radau_needs_a_matrix() -> None:
    with pytest.raises(ValueError, match="coupled stages needs a matrix"):
        rs.odeint(brusselator(4), torch.tensor([brusselator_start(4)]), [0.0, 0.3], tableaux.RADAU5, matrix=False)


@pytest.mark.slow
@pytest.mark.parametrize("table", ["KVAERNO3", "KVAERNO4", "KVAERNO5", "TRBDF2"])
@pytest.mark.parametrize("name", ["Robertson", "HIRES", "Brusselator"])
def test_the_implicit_methods_agree(name: str, table: str) -> None:
    problem = PROBLEMS[name]
    rtol = 1e-5 if table in ("KVAERNO3", "TRBDF2") else 1e-6
    result = solve(problem, getattr(tableaux, table), rtol=rtol, max_steps=30_000)
    torch.testing.assert_close(result.states[-1, 0], torch.tensor(problem.state), rtol=3e-3, atol=problem.atol)


def test_small_components_are_right_between_the_steps() -> None:
    times = torch.tensor([0.0, 0.4, 4.0, 40.0, 400.0, 4000.0])
    states = rs.odeint(robertson, torch.tensor([[1.0, 0.0, 0.0]]), times, atol=1e-11).states
    torch.testing.assert_close(states[1:, 0, 1], torch.tensor(ROBERTSON), rtol=1e-4, atol=0)
    torch.testing.assert_close(states.sum(2), torch.ones(6, 1), rtol=1e-6, atol=0)


def test_the_backward_pass_on_a_grid_is_not_alarmed_by_rounding() -> None:
    """Fixed steps of SDIRK3 on a logarithmic grid, with a tolerance near rounding: its linear systems, with condition
    numbers of 1e10, stop at residuals of some 1e-14, which is as far as they can get."""
    torch.manual_seed(0)
    rates = (torch.tensor([0.04, 1e4, 3e7]) * 10 ** (torch.rand(3, 3) - 0.5)).requires_grad_()

    def field(t: float | Tensor, y: Tensor) -> Tensor:
        a, b, c = y.unbind(1)
        slow, back, fast = rates[:, 0] * a, rates[:, 1] * b * c, rates[:, 2] * b * b
        return torch.stack([back - slow, slow - back - fast, fast], 1)

    times = torch.cat([torch.zeros(1), torch.logspace(-4, 8, 16)])
    for rtol in (None, 1e-12):
        y = rs.Block(
            field,
            rs.schemes.RungeKutta(tableaux.SDIRK3),
            times=times,
            stopping=rs.Stopping(rtol=rtol, atol=1e-14),
            on_failure="ignore",
            adjoint=rs.ImplicitAdjoint(on_failure="raise"),
        )(torch.tensor([[1.0, 0.0, 0.0]]).repeat(3, 1))
        (gradient,) = torch.autograd.grad(y[:, 2].sum(), rates)
        # What is left of the first species, 1 - y3, falls with rates 1 and 3 and grows with rate 2.
        assert (gradient[:, [0, 2]] > 0).all()
        assert (gradient[:, 1] < 0).all()


def test_rates_of_each_sample() -> None:
    """Samples of one batch, by a field that closes over their rates, against each of them alone."""
    rates = torch.tensor([[0.04, 1e4, 3e7], [0.4, 1e3, 3e6], [0.01, 1e5, 1e8]])

    def field_of(k: Tensor) -> Any:
        def field(t: Tensor, y: Tensor) -> Tensor:
            a, b, c = y.unbind(1)
            slow, back, fast = k[:, 0] * a, k[:, 1] * b * c, k[:, 2] * b * b
            return torch.stack([back - slow, slow - back - fast, fast], 1)

        return field

    y0, times = torch.tensor([[1.0, 0.0, 0.0]]), [0.0, 1.0, 100.0]
    together = rs.odeint(field_of(rates), y0.expand(3, 3), times)
    for i in range(3):
        alone = rs.odeint(field_of(rates[i : i + 1]), y0, times)
        torch.testing.assert_close(alone.states[:, 0], together.states[:, i], rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("mu", [0.5, 100.0])
def test_auto_stays_explicit_until_a_sample_is_stiff(mu: float) -> None:
    def field(t: Tensor, y: Tensor) -> Tensor:
        return torch.stack([y[:, 1], mu * (1 - y[:, 0] ** 2) * y[:, 1] - y[:, 0]], 1)

    y0, times = torch.tensor([[2.0, -0.6]]), [0.0, 3.0]
    auto = rs.odeint(field, y0, times, "auto")
    explicit = rs.odeint(field, y0, times, tableaux.TSITOURAS5)
    torch.testing.assert_close(auto.states, explicit.states, rtol=1e-4, atol=1e-6)
    if mu < 1:
        assert torch.equal(auto.states, explicit.states)
    else:
        assert auto.accepted < 0.5 * explicit.accepted


@pytest.mark.parametrize(
    ("cells", "matrix"),
    [(300, True), *(pytest.param(*case, marks=pytest.mark.slow) for case in ((1000, True), (60, False)))],
)
def test_diffusion(cells: int, matrix: bool) -> None:
    field = heat(cells)
    field.rowwise = True  # type: ignore[attr-defined]
    y0 = torch.sin(torch.pi * torch.arange(1, cells + 1) / (cells + 1))[None]
    times = torch.tensor([0.0, 0.5, 1.0])
    result = rs.odeint(field, y0, times, tableaux.KVAERNO5, rtol=1e-5, matrix=matrix)
    torch.testing.assert_close(result.states, torch.exp(-times)[:, None, None] * y0, rtol=1e-5, atol=1e-7)
    assert result.accepted < 30


def test_products_in_place_of_a_matrix_lead_to_the_same() -> None:
    field, y0 = brusselator(4), torch.tensor([brusselator_start(4)], requires_grad=True)
    found = []
    for matrix in (True, False):
        states = rs.odeint(field, y0, [0.0, 0.3], tableaux.KVAERNO5, matrix=matrix).states
        found.append((states, *torch.autograd.grad(states[-1].square().sum(), y0)))
    for dense, products in zip(*found, strict=True):
        torch.testing.assert_close(products, dense, rtol=1e-5, atol=1e-6)
