"""The paper's linear test system, an oscillator, under four schemes."""

import torch
from torch import Tensor

from resolvent.analysis.growth import stability_matrix
from resolvent.schemes import VERLET, Scheme, Theta

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
