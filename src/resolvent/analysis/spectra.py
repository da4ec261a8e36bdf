"""Eigenvalues, logarithmic norm and numerical range of the Jacobians of a field along a trajectory."""

import cmath
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from resolvent.analysis.krylov import check_wanted, extreme_eigenvalues, rank
from resolvent.equation.jacobian import Jacobian, field_jacobian
from resolvent.equation.modes import derivatives_allowed
from resolvent.equation.structure import Structured, structure_of
from resolvent.fields import Time

DENSE = 256
"""Up to this many unknowns the Jacobian of a sample is formed and results are exact; beyond, Arnoldi is used."""

_COUNT = 16
# The error of an eigenvalue of a Hermitian matrix is about the square of its residual.
_HERMITIAN = 1e-4


def jacobian_spectrum(
    field: Callable[[Time, Any], Any],
    t: Time,
    states: Structured,
    *,
    count: int | None = None,
    which: str = "largest",
    max_size: int = 200,
) -> Tensor:
    """The eigenvalues of the Jacobian of a field, F_y(t, y), at given states.

    `jacobian_spectrum(block.field, trajectory.times, trajectory.states)` computes them along a trajectory. Times the
    step h they are to be compared with the stability region of the scheme. The field must treat each sample alone.

    Arguments:
        field: F(t, y).
        t: a number for states (batch, *shape); (T,) or (T, batch) for states (T, batch, *shape).
        states: where the Jacobians are taken; each may be a structure of several tensors.
        count: the number of eigenvalues of each Jacobian. None takes all of them up to 256 unknowns, where they are
            exact, and 16 beyond, by the Arnoldi method, see `extreme_eigenvalues`.
        which: "largest" in modulus, "rightmost" or "leftmost"; the order in which they are returned.
        max_size: the largest space of the Arnoldi method.

    Returns:
        Complex (batch, count) or (T, batch, count), without a graph.
    """
    return _along(field, t, states, lambda jacobian: eigenvalues(jacobian, count, which, max_size=max_size))


def eigenvalues(
    jacobian: Jacobian, count: int | None, which: str, *, rtol: float | None = None, max_size: int = 200
) -> Tensor:
    """The eigenvalues of a Jacobian as in `jacobian_spectrum`, complex (batch, count)."""
    size = jacobian.value.shape[1:].numel()
    wanted = count or (size if size <= DENSE else _COUNT)
    check_wanted(wanted, size, which)
    if size > DENSE:
        return extreme_eigenvalues(jacobian.product, jacobian.value, wanted, which, rtol=rtol, max_size=max_size)
    found = torch.linalg.eigvals(jacobian.matrix())
    return found.gather(1, rank(found, which)[:, :wanted])


def one_sided_lipschitz(field: Callable[[Time, Any], Any], t: Time, states: Structured) -> Tensor:
    """The one-sided Lipschitz constant of a field at given states, the logarithmic norm of its Jacobian J:

        nu = max Re <v, J v> / |v|^2,      the largest eigenvalue of (J + J^T) / 2.

    Neighbouring solutions of y' = F(t, y) separate at most like exp(nu t), and an implicit step has one solution if
    theta h nu < 1 everywhere. It bounds the real parts of the eigenvalues from above.

    Arguments:
        field: F(t, y), treating each sample alone.
        t: a number for states (batch, *shape); (T,) or (T, batch) for states (T, batch, *shape).
        states: where it is taken; each may be a structure of several tensors.

    Returns:
        (batch,) or (T, batch), exact up to 256 unknowns; beyond, from below by the Lanczos method.

    Reference: Hairer, Norsett & Wanner, Solving ordinary differential equations I, section I.10.
    """

    def constant(jacobian: Jacobian) -> Tensor:
        if _is_small(jacobian):
            J = jacobian.matrix()
            return torch.linalg.eigvalsh((J + J.mT) / 2)[:, -1]

        def symmetric(v: Tensor) -> Tensor:
            return (jacobian.product(v) + jacobian.transposed_product(v)) / 2

        return extreme_eigenvalues(symmetric, jacobian.value, which="rightmost", rtol=_HERMITIAN).real.squeeze(1)

    return _along(field, t, states, constant)


def numerical_range(field: Callable[[Time, Any], Any], t: Time, states: Structured, num_angles: int = 32) -> Tensor:
    """The numerical range of the Jacobian J of a field, { v* J v : |v| = 1 }, as an enclosing polygon.

    It is convex and contains the eigenvalues. Its rightmost point is the one-sided Lipschitz constant. It shows the
    transient growth that the eigenvalues of a non-normal matrix do not show. Its extent in a direction exp(i phi) is
    the largest eigenvalue of the Hermitian part of exp(-i phi) J. The polygon has one side for each of `num_angles`
    directions, including 1, and each side touches the numerical range.

    Arguments:
        field: F(t, y), treating each sample alone.
        t: a number for states (batch, *shape); (T,) or (T, batch) for states (T, batch, *shape).
        states: where it is taken; each may be a structure of several tensors.
        num_angles: number of sides.

    Returns:
        Complex128 (batch, num_angles) or (T, batch, num_angles), the corners counter-clockwise; exact up to 256
        unknowns, by the Lanczos method beyond.

    Reference: Horn & Johnson, Topics in matrix analysis, section 1.5.
    """
    if num_angles < 3:
        raise ValueError(f"num_angles must be 3 or more to enclose a region, got {num_angles}.")
    angle = 2 * math.pi / num_angles

    def corners(jacobian: Jacobian) -> Tensor:
        reach_at = _dense_reach(jacobian) if _is_small(jacobian) else _lanczos_reach(jacobian)
        # J is real, so its numerical range is symmetric about the real axis.
        half = [reach_at(k * angle) for k in range(num_angles // 2 + 1)]
        reach = torch.stack([half[min(k, num_angles - k)] for k in range(num_angles)], dim=1)
        along = (reach.roll(-1, 1) - reach * math.cos(angle)) / math.sin(angle)
        directions = torch.exp(1j * angle * torch.arange(num_angles, device=reach.device))
        return torch.complex(reach, along) * directions

    return _along(field, t, states, corners)


def _is_small(jacobian: Jacobian) -> bool:
    return jacobian.value.shape[1:].numel() <= DENSE


def _dense_reach(jacobian: Jacobian) -> Callable[[float], Tensor]:
    """Maps an angle to the largest eigenvalue of the Hermitian part of exp(-i angle) J, float64 (batch,)."""
    J = jacobian.matrix().to(torch.complex128)

    def reach(angle: float) -> Tensor:
        turned = cmath.exp(-1j * angle) * J
        return torch.linalg.eigvalsh((turned + turned.mH) / 2)[:, -1]

    return reach


def _lanczos_reach(jacobian: Jacobian) -> Callable[[float], Tensor]:
    """The same by products with J and its transpose."""
    like = jacobian.value * (1 + 0j)

    def reach(angle: float) -> Tensor:
        turn = cmath.exp(-1j * angle)

        def hermitian(v: Tensor) -> Tensor:
            forward = torch.complex(jacobian.product(v.real), jacobian.product(v.imag))
            back = torch.complex(jacobian.transposed_product(v.real), jacobian.transposed_product(v.imag))
            return (turn * forward + back / turn) / 2

        return extreme_eigenvalues(hermitian, like, which="rightmost", rtol=_HERMITIAN).real.squeeze(1).double()

    return reach


def _along(
    field: Callable[[Time, Any], Any], t: Time, states: Structured, measure: Callable[[Jacobian], Tensor]
) -> Tensor:
    """Measures the Jacobians at states (batch, *shape), or at each time of a trajectory (T, batch, *shape)."""
    if not isinstance(states, Tensor):
        leading = 2 if isinstance(t, Tensor) and t.dim() > 0 else 1
        structure = structure_of(states, "states", leading)
        field, states = structure.field(field), structure.flatten(states, "states", leading)

    def measured(time: Time, y: Tensor) -> Tensor:
        jacobian = field_jacobian(field, time, y)
        with torch.no_grad(), derivatives_allowed(y.device):
            return measure(jacobian)

    if not isinstance(t, Tensor) or t.dim() == 0:
        return measured(t, states)
    if states.dim() < 2 or t.shape not in (states.shape[:1], states.shape[:2]):
        raise ValueError(
            f"times (T,) or (T, batch) go with states (T, batch, *shape), got {tuple(t.shape)} and "
            f"{tuple(states.shape)}; for one time give a number."
        )
    return torch.stack([measured(time, y) for time, y in zip(t, states, strict=True)])
