"""The kernels of `FusedDirections`.

Program (i, k) treats the entries of sample i from k * BLOCK on. Its part of a sum goes to (i, number, k) of an array
(batch, numbers, chunks); the next kernel adds the parts. The ring of changes is (memory, batch, n).
"""

import triton
import triton.language as tl

NUMBERS = 3
"""How many sums `start` and `finish` leave for `verdict`: the squares of the residual, of w and of b."""

# These vary from call to call: no kernels are made for some of their values.
_COUNTS = ("chunks", "memory", "held", "slot")
_CONVERGED = tl.constexpr(1)
_MAX_STEPS = tl.constexpr(2)
_DIVERGED = tl.constexpr(4)
_NON_FINITE = tl.constexpr(5)


@triton.jit
def _put(sums, numbers, number, chunks, values):
    place = (tl.program_id(0) * numbers + number) * chunks + tl.program_id(1)
    tl.store(sums + place, tl.sum(values.to(tl.float64)))


@triton.jit
def _get(sums, numbers, number, chunks, WIDTH: tl.constexpr):
    part = tl.arange(0, WIDTH)
    parts = tl.load(sums + (tl.program_id(0) * numbers + number) * chunks + part, part < chunks, 0.0)
    return tl.sum(parts)


@triton.jit(do_not_specialize=_COUNTS)
def start(
    w, y, b, f, g, moved, sums, tau, scale, chunks, n,
    BLOCK: tl.constexpr, KEEP: tl.constexpr,
):  # fmt: skip
    """f = scale (b + tau y - w) and g = w + f, the first step, and the squares of the residual, of w and of b."""
    entry = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    at, inside = tl.program_id(0).to(tl.int64) * n + entry, entry < n
    here, right = tl.load(w + at, inside, 0.0), tl.load(b + at, inside, 0.0)
    r = right + tau * tl.load(y + at, inside, 0.0) - here
    step = scale * r
    tl.store(moved + at, here + step, inside)
    if KEEP:
        tl.store(f + at, step, inside)
        tl.store(g + at, here + step, inside)
    r, here, right = r.to(tl.float64), here.to(tl.float64), right.to(tl.float64)
    _put(sums, 3, 0, chunks, r * r)
    _put(sums, 3, 1, chunks, here * here)
    _put(sums, 3, 2, chunks, right * right)


@triton.jit(do_not_specialize=_COUNTS)
def finish(
    w, y, b, sums, tau, chunks, n, BLOCK: tl.constexpr
):  # fmt: skip
    """The squares of the residual, of w and of b."""
    entry = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    at, inside = tl.program_id(0).to(tl.int64) * n + entry, entry < n
    here, right = tl.load(w + at, inside, 0.0), tl.load(b + at, inside, 0.0)
    r = (right + tau * tl.load(y + at, inside, 0.0) - here).to(tl.float64)
    here, right = here.to(tl.float64), right.to(tl.float64)
    _put(sums, 3, 0, chunks, r * r)
    _put(sums, 3, 1, chunks, here * here)
    _put(sums, 3, 2, chunks, right * right)


@triton.jit(do_not_specialize=_COUNTS)
def measure(
    w, y, b, f, g, df, dg, sums, tau, scale, chunks,
    memory, held, slot, n, BLOCK: tl.constexpr,
):  # fmt: skip
    """Replaces f and g, puts their changes into the ring, and multiplies f and its change by the rows of the ring."""
    entry = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    at, inside = tl.program_id(0).to(tl.int64) * n + entry, entry < n
    here = tl.load(w + at, inside, 0.0)
    step = scale * (tl.load(b + at, inside, 0.0) + tau * tl.load(y + at, inside, 0.0) - here)
    change = step - tl.load(f + at, inside, 0.0)
    image_change = here + step - tl.load(g + at, inside, 0.0)
    tl.store(f + at, step, inside)
    tl.store(g + at, here + step, inside)
    row = tl.num_programs(0).to(tl.int64) * n
    numbers = 2 * memory + 2
    step, wide = step.to(tl.float64), change.to(tl.float64)
    for j in range(held):
        # The row that is replaced counts as zero.
        other = tl.load(df + j * row + at, inside & (j != slot), 0.0).to(tl.float64)
        _put(sums, numbers, 2 * j, chunks, wide * other)
        _put(sums, numbers, 2 * j + 1, chunks, step * other)
    _put(sums, numbers, 2 * memory, chunks, wide * wide)
    _put(sums, numbers, 2 * memory + 1, chunks, wide * step)
    tl.store(df + slot * row + at, change, inside)
    tl.store(dg + slot * row + at, image_change, inside)


@triton.jit(do_not_specialize=_COUNTS)
def move(
    f, g, df, dg, sums, inverse, moved, least, chunks, memory,
    held, slot, n, BLOCK: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Makes the newest change orthogonal to the others, and the next iterate of all of them."""
    sample = tl.program_id(0)
    entry = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    at, inside = sample.to(tl.int64) * n + entry, entry < n
    row = tl.num_programs(0).to(tl.int64) * n
    numbers = 2 * memory + 2
    square = _get(sums, numbers, 2 * memory, chunks, WIDTH)
    product = _get(sums, numbers, 2 * memory + 1, chunks, WIDTH)
    change = tl.load(df + slot * row + at, inside, 0.0)
    image_change = tl.load(dg + slot * row + at, inside, 0.0)
    result = tl.load(g + at, inside, 0.0)
    left = square
    for j in range(held):
        own = tl.load(inverse + sample * memory + j, j != slot, 0.0)
        along = _get(sums, numbers, 2 * j, chunks, WIDTH)
        gamma = own * _get(sums, numbers, 2 * j + 1, chunks, WIDTH)
        part = own * along
        # Of the row that is replaced all products are zero.
        other = tl.load(df + j * row + at, inside & (j != slot), 0.0)
        image = tl.load(dg + j * row + at, inside & (j != slot), 0.0)
        change -= part.to(tl.float32) * other
        image_change -= part.to(tl.float32) * image
        result -= gamma.to(tl.float32) * image
        left -= part * along
        product -= gamma * along
    usable = left > least * square
    reciprocal = tl.where(usable, 1.0 / tl.where(usable, left, 1.0), 0.0)
    result -= (reciprocal * product).to(tl.float32) * image_change
    tl.store(moved + at, result, inside)
    tl.store(df + slot * row + at, change, inside)
    tl.store(dg + slot * row + at, image_change, inside)
    tl.store(inverse + sample * memory + slot, reciprocal, tl.program_id(1) == 0)


@triton.jit(do_not_specialize=_COUNTS)
def verdict(
    first, last, status, residual, ratio, rtol, atol, rounding, far_from,
    divergence, chunks, WIDTH: tl.constexpr,
):  # fmt: skip
    """The status and the residual of a sample, as `Convergence` has them after a fixed number of steps."""
    sample = tl.program_id(0)
    begun = tl.sqrt(_get(first, 3, 0, chunks, WIDTH)) / ratio
    guess, scale = tl.sqrt(_get(first, 3, 1, chunks, WIDTH)), tl.sqrt(_get(first, 3, 2, chunks, WIDTH))
    norm = tl.sqrt(_get(last, 3, 0, chunks, WIDTH)) / ratio
    size = tl.sqrt(_get(last, 3, 1, chunks, WIDTH))
    natural = tl.maximum(tl.maximum(scale, guess), ratio * begun)
    earned = atol + rtol * tl.minimum(tl.maximum(size, scale), natural)
    within = norm <= tl.maximum(earned, rounding * size)
    near = (norm <= earned) & (size <= far_from * natural)
    at_first = atol + rtol * tl.minimum(tl.maximum(guess, scale), natural)
    limit = divergence * tl.maximum(begun, tl.maximum(at_first, rounding * guess))
    code = tl.where(norm < limit, _MAX_STEPS, _DIVERGED)
    code = tl.where(within, tl.where(near, _CONVERGED, _DIVERGED), code)
    total = norm + size + natural
    code = tl.where(total - total == 0, code, _NON_FINITE)
    tl.store(status + sample, code)
    tl.store(residual + sample, norm.to(tl.float32))
