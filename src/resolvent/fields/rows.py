"""What a value in the graph of a module is: it has one row per sample, or does not depend on the input."""

from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor


class NotProvedError(Exception):
    """Something in a graph is not known to treat samples alone."""


class HigherRankNeededError(NotProvedError):
    """The proof succeeds at most for inputs with so many dimensions."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.rank = rank


class OfInput:
    """What depends on the input. Anything else in a graph is a constant: a weight, a number."""


@dataclass(frozen=True)
class Rows(OfInput):
    """A tensor whose i-th row depends on the i-th row of the input alone, in the same way for each i.

    Attributes:
        rank: its number of dimensions, beyond that of the input if `relative`.
        floor: the least number of dimensions that an input has in this proof.
    """

    rank: int = 0
    relative: bool = True
    floor: int = 2

    @property
    def least(self) -> int:
        """A lower bound of the number of dimensions."""
        return self.rank + self.floor if self.relative else self.rank

    def grown(self, dimensions: int) -> "Rows":
        return replace(self, rank=self.rank + dimensions)

    def inside(self, dimension: int) -> bool:
        """Whether this dimension is not that of the batch."""
        return self._has(dimension + 1) if dimension >= 1 else -self.least < dimension < 0

    def ends_inside(self, dimensions: int) -> bool:
        """Whether so many last dimensions do not reach that of the batch. Of an input, a layer tells by them what it
        takes."""
        return dimensions < self.least or (self.relative and self.rank == 0 and self._has(dimensions + 1))

    def takes(self, constant: object) -> bool:
        """Whether a constant that is combined with this tensor entry by entry cannot have one row per sample."""
        if not isinstance(constant, Tensor) or constant.dim() == 0 or constant.dim() < self.least:
            return True
        if constant.shape[0] != 1 or constant.dim() == self.least:
            return constant.shape[0] == 1
        return self.relative and self.rank >= 0 and self._has(constant.dim())

    def _has(self, dimensions: int) -> bool:
        """Whether there are so many dimensions. What an input must have for that is supposed of it."""
        if dimensions > self.least and self.relative:
            raise HigherRankNeededError(dimensions - self.rank)
        return dimensions <= self.least


@dataclass(frozen=True)
class Several(OfInput):
    """Any number of tensors like this one, as a tuple."""

    each: Rows


@dataclass(frozen=True)
class Shape(OfInput):
    """The shape of a tensor."""

    of: Rows


@dataclass(frozen=True)
class BatchSize(OfInput):
    """The number of samples."""


@dataclass(frozen=True)
class Length(OfInput):
    """A number that depends on the shape of a sample alone."""


def expect(condition: object) -> None:
    """Raises `NotProvedError` unless the condition holds."""
    if not condition:
        raise NotProvedError


def is_constant(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(map(is_constant, value))
    if isinstance(value, slice):
        return is_constant((value.start, value.stop, value.step))
    return not isinstance(value, OfInput)


def is_fixed(value: Any) -> bool:
    """Whether a value is the same for all samples, however many there are: a constant, or the size of a sample."""
    if isinstance(value, list | tuple):
        return all(map(is_fixed, value))
    if isinstance(value, slice):
        return is_fixed((value.start, value.stop, value.step))
    return isinstance(value, Length) or is_constant(value)


def rows_of(value: Any) -> Rows:
    expect(isinstance(value, Rows))
    rows: Rows = value
    return rows


def number(value: Any) -> int:
    expect(type(value) is int)
    found: int = value
    return found


def numbers(value: Any) -> list[int]:
    """One or several numbers, such as dimensions."""
    return [number(part) for part in (value if isinstance(value, list | tuple) else (value,))]
