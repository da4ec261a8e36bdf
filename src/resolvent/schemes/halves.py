"""States of two halves (q, p), and what a field has to offer for the schemes that treat the halves apart."""

from typing import Protocol, runtime_checkable

from torch import Tensor

from resolvent.schemes.interval import Number


@runtime_checkable
class Halved(Protocol):
    """A field whose states (batch, *shape) consist of two halves."""

    def split(self, y: Tensor) -> tuple[Tensor, Tensor]: ...

    def join(self, q: Tensor, p: Tensor) -> Tensor: ...


@runtime_checkable
class Separable(Halved, Protocol):
    """A field in which each half moves by the other alone: q' = velocity(t, p), p' = force(t, q)."""

    def velocity(self, t: Number, p: Tensor) -> Tensor: ...

    def force(self, t: Number, q: Tensor) -> Tensor: ...


def as_halved(field: object) -> Halved:
    """The field, if its states have halves."""
    if not isinstance(field, Halved):
        raise ValueError(f"the scheme needs states of two halves, {_EXAMPLES}, got {type(field).__name__}.")
    return field


def as_separable(field: object) -> Separable:
    """The field, if each of its halves moves by the other alone."""
    if not isinstance(field, Separable):
        raise ValueError(
            f"the scheme needs a field of two halves of which each moves by the other alone, {_EXAMPLES}, "
            f"got {type(field).__name__}."
        )
    return field


_EXAMPLES = "such as rs.fields.Hamiltonian(...) or rs.Halves(velocity, force)"
