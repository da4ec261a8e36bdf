"""The inverse scheme on the reversed interval undoes a step."""

import pytest
import torch

from resolvent import schemes
from resolvent.schemes import Carry, Interval, RungeKutta, Theta, tableaux
from schemes.catalogue import MULTISTEP, ONE_STEP, SHARP, Linear, Manufactured, Oscillator, step_matrix

SYMMETRIC = {
    "midpoint 0.5": Theta(0.5),
    "trapezoid 0.5": Theta(0.5, "trapezoid"),
    "GAUSS4": RungeKutta(tableaux.GAUSS4),
    "VERLET": schemes.VERLET,
    "LEAPFROG": schemes.LEAPFROG,
    "LOBATTO pair": ONE_STEP["LOBATTO pair"],
}
NOT_SYMMETRIC = {
    "EULER": Theta(0.0),
    "backward Euler": Theta(1.0),
    "RADAU3": RungeKutta(tableaux.RADAU3),
    "REVNET": schemes.REVNET,
}


@pytest.mark.parametrize("name", ONE_STEP)
def test_inverse_step_undoes_a_step(name: str) -> None:
    scheme, problem = ONE_STEP[name], Manufactured()
    x, t = torch.randn(5, 2), torch.linspace(0.0, 2.0, 5)
    interval = Interval(problem, t, 0.2, SHARP)
    y = scheme.step(interval, Carry((x,))).state
    assert (y - x).norm() > 0.1
    back = scheme.inverse.step(interval.reversed(y), Carry((y,))).state
    torch.testing.assert_close(back, x, atol=1e-12, rtol=0)


@pytest.mark.parametrize("name", ONE_STEP)
def test_inverse_of_the_inverse_is_the_scheme(name: str) -> None:
    scheme, problem = ONE_STEP[name], Manufactured()
    x = torch.randn(4, 2)
    interval = Interval(problem, 0.3, 0.2, SHARP)
    there = scheme.step(interval, Carry((x,))).state
    twice = scheme.inverse.inverse.step(interval.reversed().reversed(), Carry((x,))).state
    torch.testing.assert_close(twice, there, atol=1e-13, rtol=0)


@pytest.mark.parametrize("theta", [0.0, 0.3, 0.5, 1.0])
@pytest.mark.parametrize("form", ["midpoint", "trapezoid"])
def test_inverse_of_theta_is_one_minus_theta_with_minus_h(theta: float, form: str) -> None:
    problem, t, h = Manufactured(), 0.3, 0.2
    x = torch.randn(4, 2)
    y = Theta(theta, form).step(Interval(problem, t, h, SHARP), Carry((x,))).state
    back = Theta(1 - theta, form).step(Interval(problem, t + h, -h, SHARP), Carry((y,))).state
    torch.testing.assert_close(back, x, atol=1e-13, rtol=0)


@pytest.mark.parametrize("name", [*SYMMETRIC, *NOT_SYMMETRIC])
def test_symmetry(name: str) -> None:
    """M(h) M(-h) = I for the symmetric schemes, and not for the others."""
    scheme = {**SYMMETRIC, **NOT_SYMMETRIC}[name]
    product = step_matrix(scheme, Oscillator(3.0), 0.2, 2) @ step_matrix(scheme, Oscillator(3.0), -0.2, 2)
    gap = (product - torch.eye(2)).abs().max()
    assert gap < 1e-13 if name in SYMMETRIC else gap > 1e-3


def test_backward_euler_is_the_inverse_of_forward_euler() -> None:
    field = Linear(torch.randn(3, 3))
    product = step_matrix(Theta(0.0), field, -0.1, 3) @ step_matrix(Theta(1.0), field, 0.1, 3)
    torch.testing.assert_close(product, torch.eye(3), atol=1e-13, rtol=0)


@pytest.mark.parametrize("name", MULTISTEP)
def test_multistep_has_no_inverse(name: str) -> None:
    with pytest.raises(ValueError, match="multistep scheme has no inverse"):
        _ = MULTISTEP[name].inverse
