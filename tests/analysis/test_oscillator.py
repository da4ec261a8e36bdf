"""The paper's four schemes on its test system."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from resolvent import analysis, schemes
from resolvent.analysis import OSCILLATOR_SCHEMES, oscillator_eigenvalues, oscillator_matrix
from resolvent.schemes import RungeKutta, Theta, tableaux
from schemes.catalogue import ONE_STEP, Oscillator, step_matrix

STEPS = st.floats(1e-3, 4.0)  # h omega
OMEGA = 50.0


@pytest.mark.parametrize("h_omega", [0.1, 0.5, 1.5, 3.0])
@pytest.mark.parametrize("name", ONE_STEP)
def test_matrix_is_that_of_an_actual_step(name: str, h_omega: float) -> None:
    omega = 7.0
    step = step_matrix(ONE_STEP[name], Oscillator(omega), h_omega / omega, 2).flip(0, 1)  # (q, p) = (z, y)
    torch.testing.assert_close(oscillator_matrix(ONE_STEP[name], h_omega / omega, omega), step, atol=1e-9, rtol=0)


@given(h_omega=STEPS)
def test_euler(h_omega: float) -> None:
    h = h_omega / OMEGA
    exact = 1 + 1j * h_omega * torch.tensor([-1.0, 1.0])
    torch.testing.assert_close(oscillator_eigenvalues(Theta(0.0), h, OMEGA), exact, atol=1e-12, rtol=0)
    torch.testing.assert_close(oscillator_eigenvalues(Theta(1.0), h, OMEGA), (1 / exact).flip(0), atol=1e-12, rtol=0)


@given(h_omega=st.floats(1e-3, 1e3))
def test_trapezoid_stays_on_the_unit_circle(h_omega: float) -> None:
    eigenvalues = oscillator_eigenvalues(Theta(0.5), h_omega / OMEGA, OMEGA)
    torch.testing.assert_close(eigenvalues.abs(), torch.ones(2), atol=1e-10, rtol=0)


@given(h_omega=STEPS)
def test_verlet_is_stable_up_to_two(h_omega: float) -> None:
    M = oscillator_matrix(schemes.VERLET, h_omega / OMEGA, OMEGA)
    assert float(M.trace()) == pytest.approx(2 - h_omega**2, abs=1e-12)
    assert float(torch.linalg.det(M)) == pytest.approx(1, abs=1e-9)
    if abs(h_omega - 2) > 1e-6:
        assert bool(analysis.is_stable(schemes.VERLET, 1j * h_omega)) == (h_omega < 2)
        assert (float(analysis.amplification(schemes.VERLET, 1j * h_omega)) <= 1 + 1e-9) == (h_omega < 2)


def test_verlet_at_the_limit_grows_linearly() -> None:
    """All eigenvalues have modulus one, yet powers are not bounded."""
    assert float(analysis.amplification(schemes.VERLET, 2j)) == pytest.approx(1, abs=1e-7)
    assert not analysis.is_stable(schemes.VERLET, 2j)
    M = oscillator_matrix(schemes.VERLET, 2.0, 1.0)
    norms = [float(torch.linalg.matrix_norm(torch.linalg.matrix_power(M, n), 2)) for n in (100, 200)]
    assert norms[1] == pytest.approx(2 * norms[0], rel=1e-2)


def test_numbers_at_half() -> None:
    radius = {name: float(oscillator_eigenvalues(s, 0.01, 50.0).abs().max()) for name, s in OSCILLATOR_SCHEMES.items()}
    assert radius["Forward Euler"] == pytest.approx(math.sqrt(1.25), abs=1e-12)
    assert radius["Backward Euler"] == pytest.approx(1 / math.sqrt(1.25), abs=1e-12)
    assert radius["Trapezoidal"] == pytest.approx(1, abs=1e-12)
    assert float(oscillator_matrix(schemes.VERLET, 0.01, 50.0).trace()) == pytest.approx(1.75, abs=1e-12)


def test_symmetry() -> None:
    def residue(scheme: schemes.Scheme) -> float:
        forward, back = (oscillator_matrix(scheme, h, 3.0) for h in (0.2, -0.2))
        return float((forward @ back - torch.eye(2)).abs().max())

    assert residue(Theta(0.5)) < 1e-12
    assert residue(schemes.VERLET) < 1e-12
    assert residue(schemes.LEAPFROG) < 1e-12
    assert residue(Theta(0.0)) > 0.1
    assert residue(Theta(1.0)) > 0.1
    forward = oscillator_matrix(Theta(0.0), -0.2, 3.0)
    torch.testing.assert_close(torch.linalg.inv(forward), oscillator_matrix(Theta(1.0), 0.2, 3.0))


def test_energy() -> None:
    """Grows by forward Euler, falls by backward Euler, is kept by the trapezoidal rule and nearly so by Verlet."""
    omega, h = 50.0, 0.004
    weight = torch.tensor([1.0, omega])
    for name, scheme in OSCILLATOR_SCHEMES.items():
        state, energies = torch.tensor([0.0, 1.0]), []
        for _ in range(200):
            state = oscillator_matrix(scheme, h, omega) @ state
            energies.append(float((weight * state).square().sum()) / omega**2)
        change = torch.tensor(energies).diff()
        if name == "Forward Euler":
            assert (change > 0).all()
        elif name == "Backward Euler":
            assert (change < 0).all()
        else:
            assert max(abs(energy - 1) for energy in energies) < (1e-10 if name == "Trapezoidal" else 0.02)


def test_refused() -> None:
    with pytest.raises(ValueError, match="needs a one-step scheme"):
        oscillator_matrix(schemes.BDF2, 0.1, 1.0)
    with pytest.raises(ValueError, match="omega must not be 0"):
        oscillator_matrix(RungeKutta(tableaux.RK4), 0.1, 0.0)
