"""Linear equations: regular, singular and in between, with solutions of the size of b and far beyond."""

import torch
from torch import Tensor

from equations import (
    BRAIN,
    DIMENSIONS,
    DOUBLE,
    HALF,
    PRECISIONS,
    SINGLE,
    Draw,
    Equations,
    Samples,
    linear,
    lipschitz,
    nearest,
    nowhere,
    product,
    singular,
)

# Restarted Krylov methods, the default's choice for more unknowns, stagnate on rotations and on stiff systems.
FEW = tuple(n for n in DIMENSIONS if n <= 32)
EVEN = (2, 8, 16, 32, 40)
POWERS_OF_TWO = (1, 2, 8, 16, 32)


def _affine(w: Tensor, matrix: Tensor, shift: Tensor) -> Tensor:
    return product(w, matrix) + shift


def _normal(d: Draw) -> Samples:
    q, spectrum = d.orthogonal(), d.uniform(-3, 0.5)
    return Samples(_affine, d.normal(), d.tau(0.1), (q * spectrum[:, None] @ q.mT, d.normal()), linear)


def _non_normal(d: Draw) -> Samples:
    above = torch.triu(d.normal(d.dim, d.dim), 1) / d.dim**0.5
    return Samples(product, d.normal(), d.tau(), (above - 2 * d.identity,), linear)


def _jordan(d: Draw, low: float, high: float) -> Samples:
    """One block, turned so that nobody sees it."""
    shift = torch.diag_embed(torch.ones(d.count, d.dim - 1, dtype=DOUBLE), 1) if d.dim > 1 else 0 * d.identity
    q, eigenvalue = d.orthogonal(), d.uniform(low, high, 1, 1)
    return Samples(product, d.normal(), d.tau(), (q @ (eigenvalue * d.identity + shift) @ q.mT,), linear)


def _rotation(d: Draw) -> Samples:
    return Samples(product, d.normal(), d.tau(0.1, 0.9), (d.orthogonal(),), linear)


def _skew(d: Draw) -> Samples:
    m = d.normal(d.dim, d.dim) / d.dim**0.5
    return Samples(product, d.normal(), d.tau(1, 20), (m - m.mT,), linear)


def _twin_rows(d: Draw) -> Tensor:
    """Whole numbers, and the last row is the first again (zero, if it is the only one): singular in each precision."""
    matrix = d.integers(-2, 2, d.dim, d.dim)
    matrix[:, -1] = matrix[:, 0] if d.dim > 1 else 0.0
    return matrix


def _singular_inconsistent(d: Draw) -> Samples:
    b = d.normal()
    b[:, -1] = (b[:, 0] if d.dim > 1 else 0.0) + d.uniform(1, 3, 1)[:, 0] * d.dim**0.5
    return Samples(product, b, d.tau(), (d.identity - _twin_rows(d),), nowhere)


def _singular_consistent(d: Draw) -> Samples:
    matrix = _twin_rows(d)
    return Samples(product, product(d.integers(-2, 2), matrix), d.tau(), (d.identity - matrix,), singular)


def _nearly_singular(d: Draw, symmetric: bool, consistent: bool) -> Samples:
    values = d.uniform(0.3, 1)
    values[:, 0] = 1 / d.powers(1e4, 1e14, 1)[:, 0]
    u = d.orthogonal()
    v = u if symmetric else d.orthogonal()
    matrix = u * values[:, None] @ v.mT
    b = product(d.normal(), matrix) if consistent else d.normal()
    return Samples(product, b, d.tau(), (d.identity - matrix,), linear)


def _large_linear(d: Draw, matrix: Tensor) -> Samples:
    """A solution far larger than b with a well-conditioned matrix, no smaller than a few tolerances."""
    least = {DOUBLE: 1e-6, SINGLE: 2.5e-6, BRAIN: 0.1, HALF: 0.02}[d.dtype]
    return Samples(product, d.normal(), d.tau(), (d.identity - d.powers(least, 0.5, 1, 1) * matrix,), linear)


def _definite(d: Draw) -> Tensor:
    q = d.orthogonal()
    return q * d.uniform(1, 2)[:, None] @ q.mT


def _average(w: Tensor) -> Tensor:
    return w.mean(1, keepdim=True).expand_as(w)


def _averaging_inconsistent(d: Draw) -> Samples:
    """I - tau F' is a projection, and b has a part that it removes."""
    return Samples(_average, d.normal() / 4 + d.signs()[:, :1] * d.powers(0.5, 5, 1), d.tau(), (), nowhere)


def _averaging_consistent(d: Draw) -> Samples:
    half = d.normal(d.dim // 2)
    return Samples(_average, torch.cat([half, -half], 1), d.tau(), (), lipschitz(1.0))


def _stiff(d: Draw) -> Samples:
    rates = d.powers(1, 1e4 if d.dtype == HALF else 1e6)
    return Samples(
        lambda w, k: -k * w, d.normal(), d.tau(0.1), (rates,), nearest(lambda b, tau, k: [b / (1 + tau * k)])
    )


def _relaxation(d: Draw) -> Samples:
    rates = d.powers(1, 1e4 if d.dtype == HALF else 1e6)
    roots = nearest(lambda b, tau, k, c: [(b + tau * k * c) / (1 + tau * k)])
    return Samples(lambda w, k, c: -k * (w - c), d.normal(), d.tau(0.1), (rates, d.normal()), roots)


def _pole(d: Draw) -> Samples:
    """tau c = 1 exactly, in each precision."""
    tau = 2.0 ** d.integers(-3, 3, 1)[:, 0]
    gains = (1 / tau)[:, None].expand(-1, d.dim)
    return Samples(lambda w, c: c * w, d.signs() * d.powers(0.1, 10), tau, (gains,), nowhere)


def _near_pole(d: Draw) -> Samples:
    gains = 1 - d.signs() * d.powers(1e-14, 1e-2)
    return Samples(lambda w, c: c * w, d.normal(), d.tau(), (gains,), nearest(lambda b, tau, c: [b / (1 - tau * c)]))


def _large_constant(d: Draw) -> Samples:
    shift = d.normal() * (1e3 if d.dtype == HALF else 1e6)
    roots = nearest(lambda b, tau, c: [(b + tau * c) / (1 + 0.5 * tau)])
    return Samples(lambda w, c: c - 0.5 * w, d.normal(), d.tau(), (shift,), roots)


def _constant(d: Draw) -> Samples:
    return Samples(lambda w, c: c, d.normal(), d.tau(-2, 2), (d.normal(),), nearest(lambda b, tau, c: [b + tau * c]))


def _top_of_range(d: Draw) -> Samples:
    """The solution is larger than any number of the precision, for some components."""
    top = torch.finfo(d.dtype).max
    return Samples(lambda w, c: c, top * d.uniform(0.4, 0.9), d.tau(), (top * d.uniform(0.3, 0.9),))


# With a matrix, so that there is a transposed system, too.
SYSTEMS = [
    Equations("affine, normal", "unique", _normal, PRECISIONS),
    Equations("affine, not normal", "unique", _non_normal, (DOUBLE, SINGLE)),
    Equations("affine, defective", "unique", lambda d: _jordan(d, -3, -1), (DOUBLE, SINGLE)),
    Equations("affine, defective, near a pole", "nearly singular", lambda d: _jordan(d, -0.5, 1)),
    Equations("rotation", "unique", _rotation, PRECISIONS),
    Equations("skew, large tau", "unique", _skew, (DOUBLE, SINGLE)),
    Equations("singular, inconsistent", "pole", _singular_inconsistent),
    Equations("singular, consistent", "several", _singular_consistent),
    Equations("nearly singular, symmetric", "nearly singular", lambda d: _nearly_singular(d, True, False)),
    Equations("nearly singular", "nearly singular", lambda d: _nearly_singular(d, False, False)),
    Equations("nearly singular, consistent", "nearly singular", lambda d: _nearly_singular(d, True, True)),
    Equations("large solution, definite", "large", lambda d: _large_linear(d, _definite(d)), PRECISIONS),
    Equations(
        "large solution, rotation",
        "large",
        lambda d: _large_linear(d, d.orthogonal()),
        PRECISIONS,
        dimensions=FEW,
    ),
]

LINEAR = [
    *SYSTEMS,
    Equations("stiff diagonal", "unique", _stiff, (DOUBLE, SINGLE), dimensions=FEW),
    Equations("stiff relaxation", "unique", _relaxation, (DOUBLE,), dimensions=FEW),
    Equations("tau c = 1", "pole", _pole),
    Equations("tau c near 1", "nearly singular", _near_pole),
    Equations("averaging, inconsistent", "pole", _averaging_inconsistent, dimensions=POWERS_OF_TWO),
    Equations("averaging, consistent", "several", _averaging_consistent, dimensions=EVEN),
    Equations("large solution, constant", "large", _large_constant, PRECISIONS),
    Equations("constant", "unique", _constant, PRECISIONS),
    Equations("larger than any number", "scale", _top_of_range),
]
