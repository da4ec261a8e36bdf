"""Stability functions against actual steps of every scheme, and against what the literature knows."""

import cmath
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from resolvent import analysis, schemes
from resolvent.schemes import RungeKutta, Theta, tableaux
from schemes.catalogue import MULTISTEP, PAIRS, RUNGE_KUTTA, SYMPLECTIC, THETA, Linear, Manufactured, run, step_matrix

POINTS = [-0.5 + 0j, -3.0 + 0j, -40.0 + 0j, 0.7j, -1.0 + 2.0j, 0.3 - 0.4j]
PLANE = st.complex_numbers(max_magnitude=20, allow_nan=False, allow_infinity=False)


class Coupled(Manufactured):
    """q' = lambda p, p' = lambda q for a complex lambda: q and p have a real and an imaginary part each."""

    def __init__(self, slope: complex) -> None:
        self.slope = Linear(slope)

    def velocity(self, t: float | Tensor, p: Tensor) -> Tensor:
        return self.slope(t, p)

    def force(self, t: float | Tensor, q: Tensor) -> Tensor:
        return self.slope(t, q)

    def split(self, y: Tensor) -> tuple[Tensor, Tensor]:
        return y[:, :2], y[:, 2:]


def as_complex(matrix: Tensor) -> Tensor:
    """A matrix of 2 x 2 blocks that multiply by complex numbers, as the matrix of these numbers."""
    return torch.complex(matrix[0::2, 0::2], matrix[1::2, 0::2])


@pytest.mark.parametrize("z", POINTS)
@pytest.mark.parametrize("name", [*THETA, *RUNGE_KUTTA])
def test_one_step(name: str, z: complex) -> None:
    scheme = {**THETA, **RUNGE_KUTTA}[name]
    step = as_complex(step_matrix(scheme, Linear(z / 0.25), 0.25, 2))
    torch.testing.assert_close(analysis.stability_matrix(scheme, z), step, atol=1e-10, rtol=1e-10)
    if isinstance(scheme, Theta):
        formula = analysis.theta_stability(scheme.theta, z)
    else:
        formula = analysis.runge_kutta_stability(scheme.tableau.A, scheme.tableau.b, z)
    torch.testing.assert_close(formula, step[0, 0], atol=1e-10, rtol=1e-10)
    torch.testing.assert_close(analysis.amplification(scheme, z), step[0, 0].abs(), atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("z", [0.5 + 0j, 0.7j, -1.0 + 2.0j, 0.3 - 0.4j])
@pytest.mark.parametrize("name", [*SYMPLECTIC, *PAIRS])
def test_step_of_two_halves(name: str, z: complex) -> None:
    scheme = {**SYMPLECTIC, **PAIRS}[name]
    step = as_complex(step_matrix(scheme, Coupled(z / 0.25), 0.25, 4))
    torch.testing.assert_close(analysis.stability_matrix(scheme, z), step, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("z", [-0.5 + 0j, -2.0 + 0j, 0.4j, -1.0 + 0.5j])
@pytest.mark.parametrize("name", MULTISTEP)
def test_multistep(name: str, z: complex) -> None:
    """The matrix advances the last states of an actual run, and its eigenvalues are the roots."""
    scheme = MULTISTEP[name]
    states = run(scheme, Linear(z / 0.25), torch.tensor([[1.0, 0.0]]), 0.25, 9)
    values = torch.complex(states[:, 0, 0], states[:, 0, 1])
    M = analysis.stability_matrix(scheme, z)
    for n in range(len(M) + 1, 9):
        torch.testing.assert_close(M @ values[n - len(M) : n].flip(0), values[n - len(M) + 1 : n + 1].flip(0))
    roots = analysis.multistep_roots(scheme.alpha, scheme.beta, z)
    assert roots.abs().tolist() == sorted(roots.abs().tolist(), reverse=True)
    torch.testing.assert_close(_polynomial(roots), _characteristic(M))
    assert float(analysis.amplification(scheme, z)) == pytest.approx(float(roots.abs().max()), abs=1e-12)


def _polynomial(roots: Tensor) -> Tensor:
    coefficients = torch.ones(1, dtype=roots.dtype)
    for root in roots:
        shifted = torch.cat((coefficients, torch.zeros(1, dtype=roots.dtype)))
        shifted[1:] -= root * coefficients
        coefficients = shifted
    return coefficients


def _characteristic(M: Tensor) -> Tensor:
    """The characteristic polynomial by the traces of powers (Faddeev and LeVerrier), independent of eigenvalues."""
    coefficients, power = [torch.ones((), dtype=M.dtype)], torch.zeros_like(M)
    for k in range(1, len(M) + 1):
        power = M @ power + coefficients[-1] * torch.eye(len(M), dtype=M.dtype)
        coefficients.append(-(M @ power).trace() / k)
    return torch.stack(coefficients)


@given(theta=st.floats(0, 1), z=PLANE)
def test_inverse_of_theta(theta: float, z: complex) -> None:
    rho = analysis.theta_stability(theta, z)
    # Near the pole, and near the value at infinity, one of the two is not known to rounding.
    if rho.abs() < 1e3 and abs(1 + theta * (complex(rho) - 1)) > 1e-3:
        assert complex(analysis.theta_stability_inverse(theta, rho)) == pytest.approx(z, abs=1e-9, rel=1e-9)


def test_inverse_tells_what_a_network_learns() -> None:
    """The slopes that fit exp(-2) exactly at h = 0.1, from the paper's stiff example."""
    learned = analysis.theta_stability_inverse(torch.tensor([0.0, 0.5, 1.0]), math.exp(-2.0)).real / 0.1
    torch.testing.assert_close(learned, torch.tensor([-8.6466, -15.2319, -63.8906]), atol=1e-4, rtol=0)


@given(theta=st.floats(0, 1), z=PLANE)
def test_region_of_theta_is_a_disc_a_half_plane_or_the_outside_of_a_disc(theta: float, z: complex) -> None:
    if abs(2 * theta - 1) < 1e-6:
        outside = z.real
    elif theta < 0.5:
        radius = 1 / (1 - 2 * theta)
        outside = abs(z + radius) - radius
    else:
        radius = 1 / (2 * theta - 1)
        outside = radius - abs(z - radius)
    if abs(outside) > 1e-4:
        assert (float(analysis.amplification(Theta(theta), z)) <= 1) == (outside < 0)


def test_points_of_the_figure() -> None:
    assert complex(analysis.theta_stability(0.25, -4)) == pytest.approx(-1)
    assert analysis.theta_stability(1.0, [0, 2]).abs().tolist() == pytest.approx([1, 1])
    assert analysis.theta_stability(0.5, [3j, -0.2j]).abs().tolist() == pytest.approx([1, 1])


@given(z=PLANE)
def test_known_functions(z: complex) -> None:
    known = {
        "EULER": 1 + z,
        "EXPLICIT_MIDPOINT": 1 + z + z**2 / 2,
        "RK4": sum(z**k / math.factorial(k) for k in range(5)),
        "GAUSS4": (1 + z / 2 + z**2 / 12) / (1 - z / 2 + z**2 / 12),
        "RADAU3": (1 + z / 3) / (1 - 2 * z / 3 + z**2 / 6),
        "RADAU5": (1 + 2 * z / 5 + z**2 / 20) / (1 - 3 * z / 5 + 3 * z**2 / 20 - z**3 / 60),
        "LOBATTO_IIIA": (1 + z / 2) / (1 - z / 2) if z != 2 else cmath.inf,
    }
    for name, value in known.items():
        tableau = getattr(tableaux, name)
        if abs(value) < 1e4:
            computed = complex(analysis.runge_kutta_stability(tableau.A, tableau.b, z))
            assert computed == pytest.approx(value, abs=1e-9, rel=1e-9)


def test_two_forms_of_theta_have_one_stability_function() -> None:
    theta, z = 0.3, torch.randn(5, dtype=torch.complex128)
    midpoint = analysis.runge_kutta_stability([[theta]], [1.0], z)
    trapezoid = analysis.runge_kutta_stability([[0, 0], [1 - theta, theta]], [1 - theta, theta], z)
    torch.testing.assert_close(midpoint, analysis.theta_stability(theta, z))
    torch.testing.assert_close(trapezoid, midpoint)


def test_shapes_and_numbers() -> None:
    z = torch.zeros(2, 3)
    assert analysis.theta_stability(0.5, z).shape == (2, 3)
    assert analysis.theta_stability(torch.rand(2, 1), z).shape == (2, 3)
    assert analysis.runge_kutta_stability([[0.5]], [1.0], z).shape == (2, 3)
    assert analysis.multistep_roots((4 / 3, -1 / 3), (2 / 3,), z).shape == (2, 3, 2)
    assert analysis.stability_matrix(schemes.BDF3, z).shape == (2, 3, 3, 3)
    assert analysis.theta_stability(1, -1).dtype == torch.complex128
    torch.set_default_dtype(torch.float32)
    assert complex(analysis.theta_stability(0.3, 0.1)) == pytest.approx(1.07 / 0.97, rel=1e-15)
    assert complex(analysis.stability_matrix(RungeKutta(tableaux.GAUSS4), 1.0)[0, 0]) == pytest.approx(
        19 / 7, rel=1e-14
    )


def test_poles_are_infinite() -> None:
    assert torch.isinf(analysis.theta_stability(0.5, 2.0).real)
    assert torch.isinf(analysis.theta_stability_inverse(0.5, -1.0).real)
    assert torch.isinf(analysis.runge_kutta_stability([[0.5]], [1.0], 2.0).real)
    assert torch.isinf(analysis.multistep_roots((1.0,), (0.5, 0.5), 2.0).real).all()
    assert analysis.amplification(Theta(0.5), 2.0) == math.inf
    assert analysis.amplification(schemes.BDF2, 1.5) == math.inf
    assert not analysis.is_stable(Theta(0.5), 2.0)


def test_derivatives_flow_through() -> None:
    z = torch.tensor([-0.3 + 0.2j], requires_grad=True)
    assert torch.autograd.gradcheck(
        lambda z: analysis.runge_kutta_stability(tableaux.SDIRK2.A, tableaux.SDIRK2.b, z), z
    )


@pytest.mark.parametrize("theta", [-0.1, 1.5, math.nan])
def test_theta_outside_of_its_range(theta: float) -> None:
    with pytest.raises(ValueError, match=r"theta must lie in \[0, 1\]"):
        analysis.theta_stability(theta, 1.0)
    with pytest.raises(ValueError, match=r"theta must lie in \[0, 1\]"):
        analysis.theta_stability_inverse(theta, 1.0)


def test_wrong_coefficients() -> None:
    with pytest.raises(ValueError, match=r"got \(1, 2\) and \(1,\)"):
        analysis.runge_kutta_stability([[1.0, 2.0]], [1.0], 0.0)
    with pytest.raises(ValueError, match="must not be empty"):
        analysis.multistep_roots((), (1.0,), 0.0)
