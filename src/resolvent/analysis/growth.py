"""Growth of one step of any scheme on the linear test equation: its matrix, spectral radius and boundedness."""

import torch
from torch import Tensor

from resolvent.schemes import LinearForm, Scheme
from resolvent.schemes.linear_form import Scalars

# Tolerances: simple eigenvalues are accurate to rounding, double ones to its square root.
ROUNDING, NEAR = 1e-10, 1e-6


def linear_form(scheme: Scheme) -> LinearForm:
    """The linear form of a scheme, one step on the linear test equation. It is `scheme.linear_form`."""
    return scheme.linear_form


def stability_matrix(scheme: Scheme, z: Scalars) -> Tensor:
    """The matrix M(z) by which a step multiplies the carried states, for y' = lambda y and z = h lambda.

    Arguments:
        scheme: of the library, or your own with a `linear_form`.
        z: numbers or a tensor of any shape.

    Returns:
        complex128 (*z.shape, k, k). For a Runge-Kutta scheme k = 1 and M is the stability function R(z); for a
        multistep scheme its eigenvalues are the roots of the characteristic polynomial; for a partitioned scheme it is
        that of q' = lambda p, p' = lambda q, see `LinearForm`.
    """
    return scheme.linear_form.matrix(z)


def amplification(scheme: Scheme, z: Scalars) -> Tensor:
    """The factor by which solutions grow in a step: the spectral radius of `stability_matrix`.

    Arguments:
        scheme: of the library, or your own with a `linear_form`.
        z: numbers or a tensor of any shape.

    Returns:
        float64, shaped like z: |R(z)| for a one-step scheme; infinite at a pole.
    """
    return _radius(stability_matrix(scheme, z))


def is_stable(scheme: Scheme, z: Scalars) -> Tensor:
    """Whether solutions stay bounded: no eigenvalue of M(z) lies outside the unit disc, and those on the unit circle
    have as many eigenvectors as their multiplicity. For a multistep scheme this is the root condition.

    It differs from `amplification` <= 1 for multiple eigenvalues on the unit circle: Verlet at h omega = 2 grows
    linearly.

    Arguments:
        scheme: of the library, or your own with a `linear_form`.
        z: numbers or a tensor of any shape.

    Returns:
        bool, shaped like z.
    """
    return power_bounded(stability_matrix(scheme, z))


def power_bounded(M: Tensor) -> Tensor:
    """Whether the powers of matrices (..., k, k) stay bounded, up to rounding: bool (...)."""
    finite = M.isfinite().all(-1).all(-1)
    M = torch.where(finite[..., None, None], M, 0.0)
    eigenvalues = torch.linalg.eigvals(M)
    inside = eigenvalues.abs() <= 1 + ROUNDING
    on_rim = eigenvalues.abs() >= 1 - NEAR
    multiplicity = ((eigenvalues[..., :, None] - eigenvalues[..., None, :]).abs() < NEAR).sum(-1)
    shifted = M[..., None, :, :] - eigenvalues[..., None, None] * torch.eye(M.shape[-1]).to(eigenvalues)
    eigenvectors = M.shape[-1] - torch.linalg.matrix_rank(shifted, atol=NEAR, rtol=0.0)
    return finite & (inside & (~on_rim | (eigenvectors >= multiplicity))).all(-1)


def _radius(M: Tensor) -> Tensor:
    finite = M.isfinite().all(-1).all(-1)
    if M.shape[-1] == 1:
        radius = M[..., 0, 0].abs()
    else:
        radius = torch.linalg.eigvals(torch.where(finite[..., None, None], M, 0.0)).abs().amax(-1)
    return torch.where(finite, radius, torch.inf)
