"""Nonlinear equations with one root, several or none: smooth and not, at folds and poles, at all scales."""

import torch
from torch import Tensor

import resolvent as rs
from equations import (
    ATOL,
    BRAIN,
    DEFAULT,
    DOUBLE,
    HALF,
    PRECISIONS,
    RTOL,
    SINGLE,
    Draw,
    Equations,
    Samples,
    bisect,
    lipschitz,
    nearest,
    nowhere,
    product,
)

NAN = float("nan")
RELATIVE = rs.Stopping(atol=0.0)
# Half precision has too few exponents for numbers whose squares are out of range.
WIDE = (DOUBLE, SINGLE, BRAIN)


def _saturating(d: Draw, warm: bool) -> Samples:
    """w = b + s tanh(2 w / s): a root near -b, and two near +-0.957 s that are as well conditioned."""
    s = d.powers(1e2, 1e3 if d.dtype == HALF else 1e6)

    def roots(b: Tensor, tau: Tensor, s: Tensor) -> list[Tensor]:
        def f(w: Tensor) -> Tensor:
            return w - b - s * torch.tanh(2 * w / s)

        small = bisect(lambda w: -f(w), -0.2 * s, 0.2 * s)
        return [small, bisect(f, 0.5 * s, 1.2 * s), bisect(f, -1.2 * s, -0.5 * s)]

    w0 = s * d.signs() * d.uniform(0.8, 1.1) if warm else None
    return Samples(lambda w, s: s * torch.tanh(2 * (w / s)), d.uniform(-1, 1), d.tau(), (s,), nearest(roots), w0)


def _tau_zero(d: Draw) -> Samples:
    return Samples(lambda w: w**3 + 1, d.normal(), d.tau(0, 0), (), nearest(lambda b, tau: [b]))


def _tau_negative(d: Draw) -> Samples:
    return Samples(lambda w: w + torch.tanh(3 * w), d.normal(), d.tau(-5, -0.1), (), lipschitz(1.0))


def _network(w: Tensor, inner: Tensor, outer: Tensor) -> Tensor:
    return product(torch.tanh(product(w, inner)), outer)


def _networks(d: Draw, slope: float) -> tuple[Tensor, Tensor]:
    inner, outer = d.normal(d.dim, d.dim), d.normal(d.dim, d.dim)
    norms = torch.linalg.matrix_norm(torch.stack([inner, outer]), 2)[..., None, None]
    return slope * inner / norms[0], outer / norms[1]


def _contraction(d: Draw) -> Samples:
    return Samples(_network, d.normal(), d.tau(0.1), _networks(d, 0.8), lipschitz(0.15))


def _expansion(d: Draw) -> Samples:
    return Samples(_network, d.normal(), d.tau(), _networks(d, 5.0))


def _monotone_network(d: Draw) -> Samples:
    k = d.normal(d.dim, d.dim) / d.dim**0.5
    return Samples(
        lambda w, k: -product(torch.tanh(product(w, k)), k.mT), d.normal(), d.tau(0.1, 5), (k,), lipschitz(0.9)
    )


def _relu(d: Draw, b: Tensor, w0: Tensor | None = None) -> Samples:
    roots = nearest(lambda b, tau: [torch.where(b <= 0, b, NAN)])
    return Samples(lambda w: torch.relu(w), b, d.tau(), (), roots, w0)


def _relu_one_component(d: Draw) -> Samples:
    b = -d.uniform(0.2, 1)
    b[:, 0] = d.uniform(1, 3, 1)[:, 0]
    return _relu(d, b)


def _absolute(d: Draw, b: Tensor) -> Samples:
    return Samples(lambda w: w.abs(), b, d.tau(), (), nearest(lambda b, tau: [torch.where(b <= 0, b / 2, NAN)]))


def _softplus(d: Draw, b: Tensor) -> Samples:
    roots = nearest(lambda b, tau: [torch.where(b < 0, -torch.log(torch.expm1(-b)), NAN)])
    return Samples(lambda w: torch.nn.functional.softplus(w), b, d.tau(), (), roots)


def _decaying(d: Draw) -> Samples:
    return Samples(lambda w: w + 1 + torch.exp(-w), d.uniform(-0.5, 3), d.tau(), (), nowhere)


def _tail(d: Draw, b: Tensor) -> Samples:
    """w = b + w + 1 / (1 + w^2): roots at w^2 = -1/b - 1, far out on a flat tail where b is small."""

    def roots(b: Tensor, tau: Tensor) -> list[Tensor]:
        w = (-1 / b - 1).sqrt()
        return [w, -w]

    return Samples(lambda w: w + 1 / (1 + w * w), b, d.tau(), (), nearest(roots))


def _quadratic(d: Draw, b: Tensor, c: Tensor) -> Samples:
    def roots(b: Tensor, tau: Tensor, c: Tensor) -> list[Tensor]:
        root = (1 - 4 * c * b).sqrt()
        return [(1 + root) / (2 * c), (1 - root) / (2 * c)]

    return Samples(lambda w, c: c * w * w, b, d.tau(), (c,), nearest(roots))


def _cubic(d: Draw) -> Samples:
    def roots(b: Tensor, tau: Tensor) -> list[Tensor]:
        def f(w: Tensor) -> Tensor:
            return w**3 - w + b

        turn, end = torch.full_like(b, 3**-0.5), 2 + b.abs()
        return [bisect(f, -end, -turn), bisect(lambda w: -f(w), -turn, turn), bisect(f, turn, end)]

    return Samples(lambda w: w**3, d.uniform(-1, 1), d.tau(), (), nearest(roots))


def _monotone_cubic(d: Draw) -> Samples:
    return Samples(lambda w: -(w**3), d.normal(), d.tau(0.1, 10), (), lipschitz(1.0))


def _exponential(d: Draw, b: Tensor) -> Samples:
    """w = b + exp(w): two roots for b < -1, which meet in a fold at w = 0, and none beyond."""

    def roots(b: Tensor, tau: Tensor) -> list[Tensor]:
        def f(w: Tensor) -> Tensor:
            return w - b - w.exp()

        zero = torch.zeros_like(b)
        return [bisect(f, b, zero), bisect(lambda w: -f(w), zero, 3 + (1 - b).clamp_min(1).log())]

    return Samples(lambda w: torch.exp(w), b, d.tau(), (), nearest(roots))


def _beside_fold(d: Draw, side: float) -> Samples:
    """The gap, which is the least residual where there is no root, is ten tolerances and more."""
    gap = d.powers(10, 100) * (RTOL[d.dtype] + ATOL[d.dtype])
    return _exponential(d, -1 + side * gap)


def _reciprocal(d: Draw, c: Tensor) -> Samples:
    def roots(b: Tensor, tau: Tensor, c: Tensor) -> list[Tensor]:
        root = (b * b + 4 * c).sqrt()
        return [(b + root) / 2, (b - root) / 2]

    return Samples(lambda w, c: c / w, d.signs() * d.uniform(0.2, 1), d.tau(), (c,), nearest(roots))


def _logarithm(d: Draw) -> Samples:
    return Samples(lambda w: torch.log(w), d.uniform(0.1, 0.7), d.tau(), (), nowhere)


def _square_root(d: Draw) -> Samples:
    roots = nearest(lambda b, tau: [((tau + (tau * tau + 4 * b).sqrt()) / 2) ** 2])
    return Samples(lambda w: w.sqrt(), d.powers(0.01, 10), d.tau(0.1, 3), (), roots)


def _tangent(d: Draw) -> Samples:
    return Samples(lambda w: torch.tan(w), d.uniform(-3, 3), d.tau(0.1, 1))


def _sine(d: Draw) -> Samples:
    return Samples(lambda w: torch.sin(3 * w), d.normal(), d.tau(1, 3))


def _jump(d: Draw, c: Tensor) -> Samples:
    """w = b + c sign(w): no root for c < -|b|, one for |c| < |b|, two for c > |b|."""

    def roots(b: Tensor, tau: Tensor, c: Tensor) -> list[Tensor]:
        up, down = b + c, b - c
        return [torch.where(up > 0, up, NAN), torch.where(down < 0, down, NAN)]

    return Samples(lambda w, c: c * w.sign(), d.signs() * d.uniform(0.2, 0.7), d.tau(), (c,), nearest(roots))


def _floor(d: Draw, fraction: Tensor) -> Samples:
    """w + floor(w) = b has a root where b mod 2 < 1."""
    roots = nearest(lambda b, tau: [torch.where(b.remainder(2) < 1, b - (b / 2).floor(), NAN)])
    return Samples(lambda w: -w.floor(), 2 * d.integers(-1, 1) + fraction, d.tau(), (), roots)


def _scales(d: Draw, huge: bool, beyond: bool) -> Tensor:
    """One scale for all unknowns of a sample; beyond: the square of it is no longer a number of the precision."""
    if d.dtype == HALF:
        return d.powers(1e2, 1e3, 1) if huge else d.powers(1e-4, 1e-2, 1)
    low, high = {False: (1e6, 1e15), True: (1e22, 1e30)}[beyond]
    if d.dtype == DOUBLE:
        low, high = (1e160, 1e250) if beyond else (1e6, 1e30)
    return d.powers(low, high, 1) if huge else 1 / d.powers(low, high, 1)


def _scaled_sine(d: Draw, huge: bool, beyond: bool = False, stopping: rs.Stopping = DEFAULT) -> Samples:
    s = _scales(d, huge, beyond).expand(-1, d.dim)
    return Samples(
        lambda w, s: s * torch.sin(w / s + 0.3),
        s * d.normal(),
        d.tau(0.1, 0.9),
        (s,),
        lipschitz(0.08),
        stopping=stopping,
    )


def _scaled_relu(d: Draw, huge: bool, beyond: bool = False, stopping: rs.Stopping = DEFAULT) -> Samples:
    b = _scales(d, huge, beyond) * d.uniform(0.5, 2)
    return Samples(lambda w: torch.relu(w), b, d.tau(), (), nowhere, stopping=stopping)


NONLINEAR = [
    Equations("large solution, saturating", "large", lambda d: _saturating(d, False), PRECISIONS),
    Equations("large solution, warm start", "large", lambda d: _saturating(d, True), PRECISIONS),
    Equations("tau = 0", "unique", _tau_zero, PRECISIONS),
    Equations("tau negative", "unique", _tau_negative, PRECISIONS),
    Equations("contractive network", "unique", _contraction, PRECISIONS),
    Equations("expansive network", "several", _expansion),
    Equations("monotone network", "unique", _monotone_network, (DOUBLE, SINGLE)),
    Equations("relu, b < 0", "unique", lambda d: _relu(d, -d.powers(0.1, 10)), PRECISIONS),
    Equations("relu, b < 0, from w > 0", "unique", lambda d: _relu(d, -d.powers(0.1, 10), d.uniform(0.1, 1))),
    Equations("relu, b > 0", "none", lambda d: _relu(d, d.powers(0.1, 10))),
    Equations("relu, one b > 0", "none", _relu_one_component),
    Equations("relu, b > 0 in some samples", "several", lambda d: _relu(d, d.signs()[:, :1] * d.powers(0.1, 10))),
    Equations("|w|, b < 0", "unique", lambda d: _absolute(d, -d.powers(0.1, 10)), PRECISIONS),
    Equations("|w|, b > 0", "none", lambda d: _absolute(d, d.powers(0.1, 10))),
    Equations("softplus, b < 0", "unique", lambda d: _softplus(d, -d.powers(0.1, 10)), (DOUBLE, SINGLE)),
    Equations("softplus, b > 0", "none", lambda d: _softplus(d, d.powers(0.1, 3))),
    Equations("w + 1 + exp(-w)", "none", _decaying),
    Equations("flat tail, b < 0", "several", lambda d: _tail(d, -d.powers(1e-4, 0.1)), precisions=(DOUBLE, SINGLE)),
    Equations("flat tail, b > 0", "none", lambda d: _tail(d, d.powers(0.1, 10))),
    Equations("quadratic", "several", lambda d: _quadratic(d, d.uniform(-2, 2), d.uniform(0.02, 0.1)), PRECISIONS),
    Equations("quadratic, complex roots", "none", lambda d: _quadratic(d, d.uniform(0.5, 3), d.uniform(0.8, 2))),
    Equations("cubic", "several", _cubic),
    Equations("monotone cubic", "unique", _monotone_cubic, (DOUBLE, SINGLE)),
    Equations("exp, b < -1", "several", lambda d: _exponential(d, -d.uniform(1.2, 5)), PRECISIONS),
    Equations("exp, b > -1", "none", lambda d: _exponential(d, d.uniform(-0.5, 3))),
    Equations("exp, before the fold", "several", lambda d: _beside_fold(d, -1.0)),
    Equations("exp, behind the fold", "none", lambda d: _beside_fold(d, 1.0)),
    Equations("1/w", "several", lambda d: _reciprocal(d, d.uniform(0.5, 2))),
    Equations("-1/w", "none", lambda d: _reciprocal(d, -d.uniform(0.5, 2))),
    Equations("log", "none", _logarithm),
    Equations("sqrt", "unique", _square_root),
    Equations("tan", "several", _tangent),
    Equations("sin 3w", "several", _sine),
    Equations("sign, no root", "discontinuous", lambda d: _jump(d, -d.uniform(0.9, 2))),
    Equations("sign, one root", "discontinuous", lambda d: _jump(d, -d.uniform(0.01, 0.15)), PRECISIONS),
    Equations("sign, two roots", "discontinuous", lambda d: _jump(d, d.uniform(0.9, 2)), PRECISIONS),
    Equations("floor, no root", "discontinuous", lambda d: _floor(d, d.uniform(1.25, 1.75))),
    Equations("floor, one root", "discontinuous", lambda d: _floor(d, d.uniform(0.25, 0.75))),
    Equations("huge", "scale", lambda d: _scaled_sine(d, True), PRECISIONS),
    Equations("huge, relu, b > 0", "scale", lambda d: _scaled_relu(d, True)),
    Equations("tiny", "scale", lambda d: _scaled_sine(d, False), PRECISIONS),
    Equations("tiny, atol = 0", "scale", lambda d: _scaled_sine(d, False, stopping=RELATIVE), (DOUBLE, SINGLE)),
    Equations("tiny, relu, b > 0, atol = 0", "scale", lambda d: _scaled_relu(d, False, stopping=RELATIVE)),
    Equations("squares overflow", "scale", lambda d: _scaled_sine(d, True, True), precisions=WIDE),
    Equations(
        "squares underflow, atol = 0", "scale", lambda d: _scaled_sine(d, False, True, RELATIVE), precisions=WIDE
    ),
    Equations(
        "squares underflow, relu, atol = 0", "scale", lambda d: _scaled_relu(d, False, True, RELATIVE), precisions=WIDE
    ),
]
