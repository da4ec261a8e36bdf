"""One step on a linear equation multiplies by the stability function of the scheme."""

import math

import pytest
import torch
from torch import Tensor

from resolvent.schemes import Carry, Interval, RungeKutta, Theta, tableaux
from schemes.catalogue import MULTISTEP, RUNGE_KUTTA, SHARP, Linear, Oscillator, step_matrix

POINTS = [-0.5 + 0j, -3.0 + 0j, -40.0 + 0j, 0.7j, -1.0 + 2.0j, 0.3 - 0.4j]


def determinant_formula(A: Tensor, b: Tensor, z: complex) -> complex:
    """det(I - zA + z 1 b^T) / det(I - zA)."""
    one, A, b = torch.eye(len(b), dtype=torch.complex128), A.to(torch.complex128), b.to(torch.complex128)
    ratio = torch.linalg.det(one - z * A + z * b.expand_as(A)) / torch.linalg.det(one - z * A)
    return complex(ratio.item())


def amplification(scheme: object, z: complex) -> complex:
    matrix = step_matrix(scheme, Linear(z / 0.25), 0.25, 2)
    return complex(matrix[0, 0].item(), matrix[1, 0].item())


@pytest.mark.parametrize("name", RUNGE_KUTTA)
@pytest.mark.parametrize("z", POINTS)
def test_runge_kutta_step_is_its_stability_function(name: str, z: complex) -> None:
    table = RUNGE_KUTTA[name].tableau
    expected = determinant_formula(torch.tensor(table.A), torch.tensor(table.b), z)
    assert amplification(RUNGE_KUTTA[name], z) == pytest.approx(expected, abs=1e-10, rel=1e-10)


@pytest.mark.parametrize("form", ["midpoint", "trapezoid"])
@pytest.mark.parametrize("theta", [0.0, 0.25, 0.5, 0.75, 1.0])
@pytest.mark.parametrize("z", POINTS)
def test_theta_step_is_its_stability_function(form: str, theta: float, z: complex) -> None:
    expected = (1 + (1 - theta) * z) / (1 - theta * z)
    assert amplification(Theta(theta, form), z) == pytest.approx(expected, abs=1e-10, rel=1e-10)
    tables = {
        "midpoint": (torch.tensor([[theta]]), torch.ones(1)),
        "trapezoid": (torch.tensor([[0.0, 0.0], [1 - theta, theta]]), torch.tensor([1 - theta, theta])),
    }
    assert determinant_formula(*tables[form], z) == pytest.approx(expected, abs=1e-12, rel=1e-12)


@pytest.mark.parametrize("name", MULTISTEP)
@pytest.mark.parametrize("z", [-0.5 + 0j, -2.0 + 0j, 0.4j, -1.0 + 0.5j])
def test_multistep_recursion_has_the_roots_of_its_polynomial(name: str, z: complex) -> None:
    """A root r of r^k = sum alpha_j r^(k-1-j) + z sum beta_j r^(k-j) makes y_n = r^n a solution of the recursion."""
    scheme, h = MULTISTEP[name], 0.25
    k = max(len(scheme.alpha), len(scheme.beta) - 1)
    polynomial = torch.zeros(k + 1, dtype=torch.complex128)
    polynomial[0] = 1
    for j, alpha in enumerate(scheme.alpha):
        polynomial[j + 1] -= alpha
    for j, beta in enumerate(scheme.beta):
        polynomial[j] -= z * beta
    companion = torch.diag(torch.ones(k - 1, dtype=torch.complex128), -1)
    companion[0] = -polynomial[1:] / polynomial[0]
    field = Linear(z / h)

    def plane(value: Tensor) -> Tensor:
        return torch.stack((value.real, value.imag))[None]

    for root in torch.linalg.eigvals(companion):
        states = tuple(plane(root ** (-j)) for j in range(len(scheme.alpha)))
        slopes = tuple(field(0.0, plane(root ** (-j))) for j in range(1, len(scheme.beta) - 1))
        y = scheme.step(Interval(field, 0.0, h, SHARP), Carry(states, slopes)).state
        torch.testing.assert_close(y, plane(root), atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("name", ["SDIRK2", "TRBDF2", "SDIRK3", "GAUSS2", "GAUSS4", "RADAU3", "RADAU5"])
def test_implicit_tables_are_stable_in_the_left_half_plane(name: str) -> None:
    table = RUNGE_KUTTA[name].tableau
    A, b = torch.tensor(table.A), torch.tensor(table.b)
    for y in torch.logspace(-2, 3, 200).tolist():
        assert abs(determinant_formula(A, b, complex(0, y))) <= 1 + 1e-10
    at_infinity = abs(determinant_formula(A, b, complex(-1e8, 0)))
    assert at_infinity == pytest.approx(1.0 if "GAUSS" in name else 0.0, abs=1e-6)


@pytest.mark.parametrize("h_omega", [0.1, 0.5, 1.5, 3.0])
def test_amplification_of_the_oscillator(h_omega: float) -> None:
    """The eigenvalues that the paper gives for its four schemes."""
    field, h = Oscillator(50.0), h_omega / 50.0

    def spectrum(scheme: object) -> Tensor:
        eigenvalues = torch.linalg.eigvals(step_matrix(scheme, field, h, 2))
        return eigenvalues[eigenvalues.imag.argsort()]

    exact = torch.tensor([-1.0, 1.0]) * h_omega * 1j + 1
    torch.testing.assert_close(spectrum(Theta(0.0)), exact, atol=1e-10, rtol=0)
    torch.testing.assert_close(spectrum(Theta(1.0)), (1 / exact).flip(0), atol=1e-10, rtol=0)
    for scheme in (Theta(0.5), Theta(0.5, "trapezoid"), RungeKutta(tableaux.GAUSS4)):
        torch.testing.assert_close(spectrum(scheme).abs(), torch.ones(2), atol=1e-10, rtol=0)


@pytest.mark.parametrize("name", RUNGE_KUTTA)
def test_oscillator_step_is_the_stability_function_of_its_matrix(name: str) -> None:
    table, omega, h = RUNGE_KUTTA[name].tableau, 7.0, 0.1
    R = determinant_formula(torch.tensor(table.A), torch.tensor(table.b), complex(0, h * omega))
    expected = torch.tensor([[R.real, R.imag / omega], [-omega * R.imag, R.real]])
    torch.testing.assert_close(step_matrix(RUNGE_KUTTA[name], Oscillator(omega), h, 2), expected, atol=1e-10, rtol=0)


def test_numbers_of_the_paper_at_half() -> None:
    field, h = Oscillator(50.0), 0.01
    assert abs(torch.linalg.eigvals(step_matrix(Theta(0.0), field, h, 2))[0]).item() == pytest.approx(math.sqrt(1.25))
    assert abs(torch.linalg.eigvals(step_matrix(Theta(1.0), field, h, 2))[0]).item() == pytest.approx(
        1 / math.sqrt(1.25)
    )
