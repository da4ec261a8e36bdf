"""Facts about a scheme: order, A-, L- and B-stability, intervals of stability, contractivity."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from resolvent.analysis.growth import ROUNDING, amplification, power_bounded
from resolvent.schemes import Scheme

# The largest |z| sampled, for which rounding times z is still below the tolerance; and the |z| used for infinity.
_FAR, _INFINITY = 1e4, 1e8


@dataclass(frozen=True)
class Facts:
    """The stability of a scheme, computed from its coefficients.

    Attributes:
        order: by the order conditions.
        zero_stable: whether it is stable for h = 0; one-step schemes always are.
        a_stable: whether it is stable for all Re z <= 0.
        l_stable: whether it is A-stable and damps z = -infinity completely.
        b_stable: whether it is non-expansive for every dissipative nonlinear field and every step; None for schemes
            that are not of Runge-Kutta type.
        at_infinity: the amplification for z -> -infinity.
        real_interval: the largest x such that all z in [-x, 0] are stable.
        imaginary_interval: the largest y such that all z in i [-y, y] are stable.
        contractive_radius: see `contractive_radius`.
    """

    order: int
    zero_stable: bool
    a_stable: bool
    l_stable: bool
    b_stable: bool | None
    at_infinity: float
    real_interval: float
    imaginary_interval: float
    contractive_radius: float

    def __str__(self) -> str:
        def said(fact: bool | None) -> str:
            return "does not apply" if fact is None else "yes" if fact else "no"

        rows = {
            "order": str(self.order),
            "zero-stable": said(self.zero_stable),
            "A-stable": said(self.a_stable),
            "L-stable": said(self.l_stable),
            "B-stable": said(self.b_stable),
            "growth at z = -inf": f"{self.at_infinity:.4g}",
            "stable on the real axis": _interval(self.real_interval, "-{0:.6g} <= z <= 0"),
            "stable on the imaginary axis": _interval(self.imaginary_interval, "|z| <= {0:.6g}"),
            "fixed point contractive": _interval(self.contractive_radius, "|z| < {0:.4g}"),
        }
        width = max(map(len, rows))
        return "\n".join(f"{name:<{width}}  {value}" for name, value in rows.items())


def _interval(length: float, finite: str) -> str:
    return "nowhere" if length == 0 else "everywhere" if math.isinf(length) else finite.format(length)


def scheme_facts(scheme: Scheme) -> Facts:
    """Computes the order and the stability properties of a scheme.

    The spectral radius of M(z) is subharmonic wherever M has no pole, so over the left half plane it is largest on the
    imaginary axis, and A-stability is checked only there. For partitioned schemes the test equation is q' = lambda p,
    p' = lambda q, which has the eigenvalues +lambda and -lambda; only their imaginary interval is meaningful.

    Arguments:
        scheme: of the library.

    Reference: Hairer & Wanner, Solving ordinary differential equations II, sections IV.3, IV.12 and V.1.
    """
    at_infinity = _at_infinity(scheme)
    a_stable = _is_a_stable(scheme)
    return Facts(
        order=scheme_order(scheme),
        zero_stable=bool(power_bounded(scheme.linear_form.V)),
        a_stable=a_stable,
        l_stable=a_stable and at_infinity == 0,
        b_stable=scheme.algebraically_stable,
        at_infinity=at_infinity,
        real_interval=stability_interval(scheme, -1.0),
        imaginary_interval=stability_interval(scheme, 1j),
        contractive_radius=contractive_radius(scheme),
    )


def scheme_order(scheme: Scheme) -> int:
    """The order of a scheme by the order conditions, from its coefficients alone; at most 6 is computed.

    Arguments:
        scheme: of the library, or your own with `order_by_conditions`.

    Reference: Hairer, Norsett & Wanner, Solving ordinary differential equations I, sections II.2, II.15 and III.2.
    """
    return scheme.order_by_conditions()


def stability_interval(scheme: Scheme, direction: complex = -1.0) -> float:
    """The length of the interval of stability: the largest s such that no z between 0 and s * direction amplifies.

    Found to about nine digits by bisection. An interval shorter than 0.1 counts as 0: close to z = 0 the
    amplification differs from 1 only by rounding.

    Arguments:
        scheme: of the library.
        direction: -1 for the negative real axis, 1j for the imaginary axis.

    Returns:
        A number, zero or more; infinite if the whole ray is stable.
    """
    if abs(direction) == 0 or not math.isfinite(abs(direction)):
        raise ValueError(f"direction must be a finite number other than 0, such as -1 or 1j, got {direction!r}.")

    def grows(s: Tensor) -> Tensor:
        return amplification(scheme, s * direction) > 1 + ROUNDING

    samples = _samples() / abs(direction)
    unstable = grows(samples).nonzero()
    if len(unstable) == 0:
        return math.inf
    first = int(unstable[0])
    if first == 0:
        return 0.0
    stable, growing = samples[first - 1], samples[first]
    for _ in range(60):
        middle = (stable + growing) / 2
        stable, growing = (stable, middle) if bool(grows(middle)) else (middle, growing)
    return float(stable)


def contractive_radius(scheme: Scheme) -> float:
    """The radius of the disc |z| < r in which the fixed-point iteration for the stages of a step contracts.

    For the theta scheme it is 1/theta, for a diagonally implicit one 1/max |a_ii|, for stages that are solved together
    1/|A|_2, for a multistep scheme 1/|beta_0|; infinite if there is nothing to solve. For a field with h |F'|_2 < r,
    `Picard` and `Neumann` converge. This is about the iteration; the layer itself need not be contractive.

    Arguments:
        scheme: of the library.

    Reference: Reshniak & Webster, Robust learning with implicit residual networks, section "fpResNet".
    """
    return 1 / scheme.stage_norm if scheme.stage_norm > 0 else math.inf


def _samples() -> Tensor:
    """Distances from 0, dense where methods differ and geometric beyond."""
    near = torch.linspace(0.1, 20, 400, dtype=torch.float64)
    return torch.cat((near, torch.logspace(math.log10(20), math.log10(_FAR), 200, dtype=torch.float64)))


def _at_infinity(scheme: Scheme) -> float:
    # M is accurate to eps * z, but a multiple eigenvalue only to a root of that. So M is rounded, not its eigenvalues.
    M = scheme.linear_form.matrix(-_INFINITY).real.round(decimals=6)
    radius = float(torch.linalg.eigvals(M).abs().max())
    return math.inf if radius > math.sqrt(_INFINITY) else radius


def _is_a_stable(scheme: Scheme) -> bool:
    poles, on_axis = scheme.linear_form.poles, amplification(scheme, 1j * _samples())
    return bool((poles.real > 0).all() and (on_axis <= 1 + ROUNDING).all())
