"""The kernels of `FusedDirections`.

Program (i, k) treats the entries of sample i from k * BLOCK on. Its part of a sum goes to (i, number, k) of an array
(batch, numbers, chunks); the next kernel adds the parts. The ring of changes is (memory, batch, n). A sample that fits
into one block has one program, and one kernel, `leap`, does what takes four otherwise.
"""

import triton
import triton.language as tl

from resolvent.equation.solution import Status

NUMBERS = 3
"""How many sums `start` and `finish` leave for `verdict`: the squares of the residual, of w and of b."""

# These vary from call to call: no kernels are made for some of their values.
_COUNTS = ("chunks", "memory", "held", "slot")
_CONVERGED = tl.constexpr(Status.CONVERGED.value)
_MAX_STEPS = tl.constexpr(Status.MAX_STEPS.value)
_DIVERGED = tl.constexpr(Status.DIVERGED.value)
_NON_FINITE = tl.constexpr(Status.NON_FINITE.value)


@triton.jit
def _put(sums, numbers, number, chunks, values):
    place = (tl.program_id(0) * numbers + number) * chunks + tl.program_id(1)
    tl.store(sums + place, tl.sum(values.to(tl.float64)))


@triton.jit
def _get(sums, numbers, number, chunks, WIDTH: tl.constexpr):
    part = tl.arange(0, WIDTH)
    parts = tl.load(sums + (tl.program_id(0) * numbers + number) * chunks + part, part < chunks, 0.0)
    return tl.sum(parts)


@triton.jit
def _put_squares(sums, chunks, r, w, b):
    r, w, b = r.to(tl.float64), w.to(tl.float64), b.to(tl.float64)
    _put(sums, 3, 0, chunks, r * r)
    _put(sums, 3, 1, chunks, w * w)
    _put(sums, 3, 2, chunks, b * b)


@triton.jit(do_not_specialize=_COUNTS)
def start(w, y, b, done, moved, sums, tau, scale, chunks, n, BLOCK: tl.constexpr, MASKED: tl.constexpr):
    """The first step, w + scale (b + tau y - w), and the squares of the residual, of w and of b."""
    entry = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    at, inside = tl.program_id(0).to(tl.int64) * n + entry, entry < n
    here, right = tl.load(w + at, inside, 0.0), tl.load(b + at, inside, 0.0)
    r = right + tau * tl.load(y + at, inside, 0.0) - here
    result = here + scale * r
    if MASKED:
        result = tl.where(tl.load(done + tl.program_id(0)) == 0, result, here)
    tl.store(moved + at, result, inside)
    _put_squares(sums, chunks, r, here, right)


@triton.jit(do_not_specialize=_COUNTS)
def finish(w, y, b, sums, tau, chunks, n, BLOCK: tl.constexpr):
    """The squares of the residual, of w and of b."""
    entry = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    at, inside = tl.program_id(0).to(tl.int64) * n + entry, entry < n
    here, right = tl.load(w + at, inside, 0.0), tl.load(b + at, inside, 0.0)
    _put_squares(sums, chunks, right + tau * tl.load(y + at, inside, 0.0) - here, here, right)


@triton.jit(do_not_specialize=_COUNTS)
def measure(
    w, y, b, last_w, last_g, g, df, dg, sums, tau, scale, chunks, memory, held, slot, n, BLOCK: tl.constexpr
):  # fmt: skip
    """The image g, the changes of f = g - w and of g, which go into the ring, and the products of f and its change with
    the rows of the ring."""
    entry = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    at, inside = tl.program_id(0).to(tl.int64) * n + entry, entry < n
    here = tl.load(w + at, inside, 0.0)
    step = scale * (tl.load(b + at, inside, 0.0) + tau * tl.load(y + at, inside, 0.0) - here)
    image, before = here + step, tl.load(last_g + at, inside, 0.0)
    change = step - (before - tl.load(last_w + at, inside, 0.0))
    tl.store(g + at, image, inside)
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
    tl.store(dg + slot * row + at, image - before, inside)


@triton.jit
def _subtract(change, image_change, result, left, product, own, along, onto, other, image):
    """Subtracts what the newest change and the residual have along another row of the ring."""
    part, gamma = own * along, own * onto
    change -= part.to(tl.float32) * other
    image_change -= part.to(tl.float32) * image
    result -= gamma.to(tl.float32) * image
    return change, image_change, result, left - part * along, product - gamma * along


@triton.jit
def _along_newest(result, image_change, square, left, product, least):
    """Subtracts what the residual has along the newest change, and returns the inverse of the square of the latter."""
    usable = left > least * square
    reciprocal = tl.where(usable, 1.0 / tl.where(usable, left, 1.0), 0.0)
    return result - (reciprocal * product).to(tl.float32) * image_change, reciprocal


@triton.jit(do_not_specialize=_COUNTS)
def move(
    w, g, df, dg, sums, inverse, done, moved, least, chunks, memory, held, slot, n,
    BLOCK: tl.constexpr, WIDTH: tl.constexpr, MASKED: tl.constexpr,
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
        onto = _get(sums, numbers, 2 * j + 1, chunks, WIDTH)
        # Of the row that is replaced all products are zero.
        other = tl.load(df + j * row + at, inside & (j != slot), 0.0)
        image = tl.load(dg + j * row + at, inside & (j != slot), 0.0)
        change, image_change, result, left, product = _subtract(
            change, image_change, result, left, product, own, along, onto, other, image
        )
    result, reciprocal = _along_newest(result, image_change, square, left, product, least)
    if MASKED:
        result = tl.where(tl.load(done + sample) == 0, result, tl.load(w + at, inside, 0.0))
    tl.store(moved + at, result, inside)
    tl.store(df + slot * row + at, change, inside)
    tl.store(dg + slot * row + at, image_change, inside)
    tl.store(inverse + sample * memory + slot, reciprocal, tl.program_id(1) == 0)


@triton.jit
def _tolerances(first, last, ratio, rtol, atol, far_from, chunks, WIDTH: tl.constexpr):
    """The first and the last residual, the lengths of b, of the first and of the last iterate, the largest at the
    start, the tolerance that needs no error estimate, and whether the last residual is within it."""
    squares = _get(last, 3, 0, chunks, WIDTH), _get(last, 3, 1, chunks, WIDTH)
    return _tolerances_of(first, squares[0], squares[1], ratio, rtol, atol, far_from, chunks, WIDTH)


@triton.jit
def _tolerances_of(first, norm, size, ratio, rtol, atol, far_from, chunks, WIDTH: tl.constexpr):
    """The same from the squares of the last residual and of the last iterate."""
    begun = tl.sqrt(_get(first, 3, 0, chunks, WIDTH)) / ratio
    guess, scale = tl.sqrt(_get(first, 3, 1, chunks, WIDTH)), tl.sqrt(_get(first, 3, 2, chunks, WIDTH))
    norm, size = tl.sqrt(norm) / ratio, tl.sqrt(size)
    natural = tl.maximum(tl.maximum(scale, guess), ratio * begun)
    earned = atol + rtol * tl.minimum(tl.maximum(size, scale), natural)
    near = (norm <= earned) & (size <= far_from * natural)
    return begun, norm, scale, guess, size, natural, earned, near


@triton.jit(do_not_specialize=_COUNTS)
def verdict(
    first, last, status, residual, ratio, rtol, atol, rounding, far_from, divergence, chunks, far,
    WIDTH: tl.constexpr,
):  # fmt: skip
    """The status and the residual of a sample, as `Convergence` has them at the end. `far` is the status of those that
    need an error estimate."""
    begun, norm, scale, guess, size, natural, earned, near = _tolerances(
        first, last, ratio, rtol, atol, far_from, chunks, WIDTH
    )
    within = norm <= tl.maximum(earned, rounding * size)
    at_first = atol + rtol * tl.minimum(tl.maximum(guess, scale), natural)
    limit = divergence * tl.maximum(begun, tl.maximum(at_first, rounding * guess))
    code = tl.where(norm < limit, _MAX_STEPS, _DIVERGED)
    code = tl.where(within, tl.where(near, _CONVERGED, far), code)
    total = norm + size + natural
    code = tl.where(total - total == 0, code, _NON_FINITE)
    tl.store(status + tl.program_id(0), code)
    tl.store(residual + tl.program_id(0), norm.to(tl.float32))


@triton.jit(do_not_specialize=_COUNTS)
def judge(
    first, before, last, done, steps, report, residual, ratio, rtol, atol, far_from, pace, chunks,
    WIDTH: tl.constexpr, FOLLOWS: tl.constexpr,
):  # fmt: skip
    """Whether a sample takes another step: its residual is not within the tolerance, and below `pace` times the first.

    A sample that took no further step keeps its measurement, since the same evaluation may be rounded in another way.
    Adds to the report: how many take another step, how many have converged, and the largest residual of the former in
    units of their tolerance, before and after the last step, as the bits of a float.
    """
    sample = tl.program_id(0)
    was = tl.load(done + sample) == 0
    measured = last
    if not was:
        measured = before
        part = tl.arange(0, WIDTH)
        for number in tl.static_range(3):
            place = (sample * 3 + number) * chunks + part
            tl.store(last + place, tl.load(before + place, part < chunks), part < chunks)
    begun, norm, scale, _guess, _size, _natural, earned, near = _tolerances(
        first, measured, ratio, rtol, atol, far_from, chunks, WIDTH
    )
    then = tl.sqrt(_get(before, 3, 0, chunks, WIDTH)) / ratio
    _goes_on(was, begun, then, norm, scale, earned, near, done, steps, report, residual, rtol, atol, pace, FOLLOWS)


@triton.jit
def _goes_on(
    was, begun, then, norm, scale, earned, near, done, steps, report, residual, rtol, atol, pace, FOLLOWS: tl.constexpr
):  # fmt: skip
    """Whether the sample takes another step. Writes it down, with its residual, and adds to the report."""
    sample = tl.program_id(0)
    tolerance = atol + rtol * scale
    if FOLLOWS:
        tolerance = tl.where(scale == 0, earned, tolerance)
    on = was & (norm > tolerance) & (norm < pace * begun)
    tl.store(residual + sample, norm.to(tl.float32))
    tl.store(done + sample, 1 - on.to(tl.int32))
    tl.store(steps + sample, tl.load(steps + sample) + was.to(tl.int32))
    tl.atomic_add(report, on.to(tl.int32))
    tl.atomic_add(report + 1, near.to(tl.int32))
    tl.atomic_max(report + 2, (then / tolerance).to(tl.float32).to(tl.int32, bitcast=True), on)
    tl.atomic_max(report + 3, (norm / tolerance).to(tl.float32).to(tl.int32, bitcast=True), on)
    return on


@triton.jit(do_not_specialize=("memory", "held", "slot"))
def leap(
    w, y, b, tau, scale, n, first, before, last, done, steps, report, residual, ratio, rtol, atol, far_from, pace,
    last_w, last_g, g, df, dg, inverse, moved, least, memory, held, slot,
    BLOCK: tl.constexpr, JUDGES: tl.constexpr, MOVES: tl.constexpr, MASKED: tl.constexpr, FOLLOWS: tl.constexpr,
):  # fmt: skip
    """`finish` and `judge` if it JUDGES, then `measure` and `move` if it MOVES, for samples of one block. Sums stay
    where they are made."""
    sample, entry = tl.program_id(0), tl.arange(0, BLOCK)
    at, inside = sample.to(tl.int64) * n + entry, entry < n
    here, right = tl.load(w + at, inside, 0.0), tl.load(b + at, inside, 0.0)
    r = right + tau * tl.load(y + at, inside, 0.0) - here
    if JUDGES:
        was = tl.load(done + sample) == 0
        then, place = tl.load(before + 3 * sample), 3 * sample
        norm = tl.sum(r.to(tl.float64) * r.to(tl.float64))
        size = tl.sum(here.to(tl.float64) * here.to(tl.float64))
        # As in `judge`, a sample that took no further step keeps its measurement.
        norm, size = tl.where(was, norm, then), tl.where(was, size, tl.load(before + place + 1))
        tl.store(last + place, norm)
        tl.store(last + place + 1, size)
        tl.store(last + place + 2, tl.load(before + place + 2))
        begun, norm, length, _guess, _size, _natural, earned, near = _tolerances_of(
            first, norm, size, ratio, rtol, atol, far_from, 1, 1
        )
        then = tl.sqrt(then) / ratio
        on = _goes_on(
            was, begun, then, norm, length, earned, near, done, steps, report, residual, rtol, atol, pace, FOLLOWS
        )  # fmt: skip
    elif MASKED:
        on = tl.load(done + sample) == 0
    if MOVES:
        step = scale * r
        result, old = here + step, tl.load(last_g + at, inside, 0.0)
        tl.store(g + at, result, inside)
        change = step - (old - tl.load(last_w + at, inside, 0.0))
        image_change = result - old
        step64, wide = step.to(tl.float64), change.to(tl.float64)
        square, product = tl.sum(wide * wide), tl.sum(wide * step64)
        left, row = square, tl.num_programs(0).to(tl.int64) * n
        for j in range(held):
            own = tl.load(inverse + sample * memory + j, j != slot, 0.0)
            # The row that is replaced counts as zero.
            other = tl.load(df + j * row + at, inside & (j != slot), 0.0)
            image = tl.load(dg + j * row + at, inside & (j != slot), 0.0)
            along, onto = tl.sum(wide * other.to(tl.float64)), tl.sum(step64 * other.to(tl.float64))
            change, image_change, result, left, product = _subtract(
                change, image_change, result, left, product, own, along, onto, other, image
            )
        result, reciprocal = _along_newest(result, image_change, square, left, product, least)
        if MASKED:
            result = tl.where(on, result, here)
        tl.store(moved + at, result, inside)
        tl.store(df + slot * row + at, change, inside)
        tl.store(dg + slot * row + at, image_change, inside)
        tl.store(inverse + sample * memory + slot, reciprocal)
