"""Stability functions of methods, for y' = lambda y and z = h lambda, and the paper's test system, an oscillator."""

from collections.abc import Sequence

import torch
from torch import Tensor

from resolvent.analysis.growth import stability_matrix
from resolvent.equation.torch_func import all_true
from resolvent.schemes import VERLET, Scheme, Theta
from resolvent.schemes.linear_form import Scalars, as_complex


def theta_stability(theta: float | Tensor, z: Scalars) -> Tensor:
    """The stability function of the theta scheme, in either of its forms:

        R(z) = (1 + (1 - theta) z) / (1 - theta z).

    A step multiplies an eigenvector of F' with the eigenvalue lambda by R(h lambda).

    Arguments:
        theta: in [0, 1]; a tensor broadcasts with z.
        z: numbers or a tensor of any shape.

    Returns:
        complex128, as theta and z broadcast; infinite at the pole z = 1/theta.

    Reference: Reshniak & Webster, Robust learning with implicit residual networks, equation (12).
    """
    theta, z = _checked(theta), as_complex(z)
    return _ratio(1 + (1 - theta) * z, 1 - theta * z)


def theta_stability_inverse(theta: float | Tensor, rho: Scalars) -> Tensor:
    """The z at which the stability function of the theta scheme has the value rho:

        R(z) = rho      <=>      z = (rho - 1) / (1 + theta (rho - 1)).

    It shows what a theta network learns: to reproduce a flow that multiplies by rho = exp(h lambda) per step, its field
    must have the eigenvalue z/h, which is lambda only to the order of the scheme.

    Arguments:
        theta: in [0, 1]; a tensor broadcasts with rho.
        rho: numbers or a tensor of any shape.

    Returns:
        complex128, as theta and rho broadcast; infinite at rho = 1 - 1/theta, the value of R at infinity.
    """
    theta, rho = _checked(theta), as_complex(rho)
    return _ratio(rho - 1, 1 + theta * (rho - 1))


def runge_kutta_stability(A: Sequence[Sequence[float]] | Tensor, b: Sequence[float] | Tensor, z: Scalars) -> Tensor:
    """The stability function of a Runge-Kutta method, a polynomial if the method is explicit:

        R(z) = det(I - z A + z 1 b^T) / det(I - z A).

    Arguments:
        A: (stages, stages), the coefficients a_ij.
        b: (stages,), the weights.
        z: numbers or a tensor of any shape.

    Returns:
        complex128, shaped like z; infinite at the poles, the inverse eigenvalues of A.

    Reference: Hairer & Wanner, Solving ordinary differential equations II, section IV.3.
    """
    A, b, z = as_complex(A), as_complex(b), as_complex(z)
    if b.dim() != 1 or A.shape != (len(b), len(b)):
        raise ValueError(
            f"A must be square with a row for each weight of b, got {tuple(A.shape)} and {tuple(b.shape)}."
        )
    A, b, z = A.to(z.device), b.to(z.device), z[..., None, None]
    one = torch.eye(len(b)).to(A)
    # A - b is formed before the product with a large z: their difference may be all that remains.
    return _ratio(torch.linalg.det(one - z * (A - b)), torch.linalg.det(one - z * A))


def multistep_roots(alpha: Sequence[float], beta: Sequence[float], z: Scalars) -> Tensor:
    """The roots of the characteristic polynomial of a linear multistep method,

        (1 - z beta_0) r^k = sum_j (alpha_j + z beta_{j+1}) r^{k-1-j},      j = 0, ..., k-1,

    whose powers span its solutions. z is in the stability region if the root condition holds: no root lies outside the
    unit disc, and those on the unit circle are simple.

    Arguments:
        alpha: weights of the states, the latest first, as in `resolvent.schemes.Multistep`.
        beta: weights of the slopes, that of the new state first.
        z: numbers or a tensor of any shape.

    Returns:
        complex128, (*z.shape, k), the largest modulus first; infinite at the pole z = 1/beta_0.

    Reference: Hairer, Norsett & Wanner, Solving ordinary differential equations I, section III.3; Hairer & Wanner,
    Solving ordinary differential equations II, section V.1.
    """
    if not alpha or not beta:
        raise ValueError(f"alpha and beta must not be empty, got alpha={alpha!r} and beta={beta!r}.")
    z = as_complex(z)
    k = max(len(alpha), len(beta) - 1)
    states, slopes = z.new_zeros(k), z.new_zeros(k)
    states[: len(alpha)] = torch.as_tensor(alpha, dtype=z.dtype)
    slopes[: len(beta) - 1] = torch.as_tensor(beta[1:], dtype=z.dtype)
    lead = 1 - z * beta[0]
    companion = torch.diag(z.new_ones(k - 1), -1).repeat(*z.shape, 1, 1)
    companion[..., 0, :] = (states + z[..., None] * slopes) / torch.where(lead == 0, 1.0, lead)[..., None]
    roots = torch.linalg.eigvals(companion)
    roots = torch.where((lead == 0)[..., None], torch.inf, roots)
    return roots.gather(-1, roots.abs().argsort(dim=-1, descending=True))


def _checked(theta: float | Tensor) -> Tensor:
    value = torch.as_tensor(theta, dtype=torch.float64)
    if not all_true((value >= 0) & (value <= 1)):
        raise ValueError(f"theta must lie in [0, 1], got {theta}.")
    return value


def _ratio(numerator: Tensor, denominator: Tensor) -> Tensor:
    """The quotient, with infinity for a division by zero, where torch returns nan."""
    pole = denominator == 0
    return torch.where(pole, torch.inf, numerator / torch.where(pole, 1.0, denominator))


OSCILLATOR_SCHEMES: dict[str, Scheme] = {
    "Forward Euler": Theta(0.0),
    "Trapezoidal": Theta(0.5),
    "Backward Euler": Theta(1.0),
    "Verlet": VERLET,
}
"""The four schemes of the paper's Figure 2, in its order."""


def oscillator_matrix(scheme: Scheme, h: float, omega: float) -> Tensor:
    """The stability matrix of a one-step scheme for the oscillator y' = -omega^2 z, z' = y:

        (y_n, z_n) = M^n (y_0, z_0).

    The eigenvalues of M are 1 +- i h omega for forward Euler, 1/(1 -+ i h omega) for backward Euler, of modulus one
    for the trapezoidal rule, and the roots of r^2 - (2 - h^2 omega^2) r + 1 for Verlet, which are of modulus one if and
    only if |h omega| <= 2; the powers of M stay bounded only for |h omega| < 2.

    Arguments:
        scheme: a one-step scheme, such as those of `OSCILLATOR_SCHEMES`.
        h: step.
        omega: frequency, other than 0.

    Returns:
        float64 (2, 2), acting on (y, z).

    Reference: Reshniak & Webster, Robust learning with implicit residual networks, equation (8).
    """
    if omega == 0:
        raise ValueError("omega must not be 0: without a frequency there is no oscillator.")
    if not scheme.one_step:
        raise ValueError("a stability matrix on (y, z) needs a one-step scheme: a multistep scheme has no such matrix.")
    z = 1j * h * omega
    M = stability_matrix(scheme, z)
    if M.shape == (1, 1):
        # q' = lambda p, p' = lambda q has q + p and q - p for eigenvectors.
        plus, minus = M[0, 0], stability_matrix(scheme, -z)[0, 0]
        M = torch.stack((plus + minus, plus - minus, plus - minus, plus + minus)).reshape(2, 2) / 2
    # In the oscillator q is z and p is y / (i omega).
    units = torch.tensor([1.0, 1j * omega], dtype=M.dtype)
    return (units[:, None] * M / units).real.flip(0, 1)


def oscillator_eigenvalues(scheme: Scheme, h: float, omega: float) -> Tensor:
    """The eigenvalues of `oscillator_matrix`: complex128 (2,), that with the smaller imaginary part first."""
    eigenvalues = torch.linalg.eigvals(oscillator_matrix(scheme, h, omega))
    return eigenvalues[eigenvalues.imag.argsort()]
