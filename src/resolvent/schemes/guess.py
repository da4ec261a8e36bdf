"""Starting guesses for the implicit equation of a stage.

A guess is a function (interval, c) that returns the state at the fraction c of the interval. It may read all attributes
of the interval, such as `interval.past`, the states so far, and `interval.slope`, F at the start. It affects the cost
of a solve, and the result only within the tolerance.
"""

from collections.abc import Callable

from torch import Tensor

from resolvent.schemes.interval import Interval, Number

Guess = Callable[[Interval, Number], Tensor]


def previous(interval: Interval, c: Number) -> Tensor:
    """The state at the start of the interval. The paper's choice; costs nothing."""
    return interval.past[0]


def explicit(interval: Interval, c: Number) -> Tensor:
    """The explicit predictor x + c h F(t, x): one evaluation per step. For fields that are not stiff."""
    return interval.past[0] + c * interval.step * interval.slope


def extrapolate(interval: Interval, c: Number) -> Tensor:
    """The polynomial through the last three states (or as many as there are); costs nothing."""
    x, *earlier = interval.past
    if not earlier:
        return x
    if len(earlier) == 1:
        return x + c * (x - earlier[0])
    first, second = x - earlier[0], earlier[0] - earlier[1]
    return x + c * first + 0.5 * c * (1 + c) * (first - second)


_BY_NAME: dict[str, Guess] = {"previous": previous, "explicit": explicit, "extrapolate": extrapolate}


def as_guess(guess: str | Guess | None) -> Guess | None:
    """The guess of this name, or the user's function; None leaves it to `resolve`."""
    if guess is None:
        return None
    if isinstance(guess, str):
        if guess not in _BY_NAME:
            raise ValueError(f"guess must be one of {tuple(_BY_NAME)} or a function (interval, c), got {guess!r}.")
        return _BY_NAME[guess]
    if not callable(guess):
        raise ValueError(f"guess must be one of {tuple(_BY_NAME)} or a function (interval, c), got {guess!r}.")
    return guess
