"""States of two halves (q, p), and what a field has to offer for the schemes that treat the halves apart."""

from typing import Protocol, TypeGuard

from torch import Tensor

from resolvent.schemes.interval import Number


class Halved(Protocol):
    """A field whose states (batch, *shape) consist of two halves."""

    def split(self, y: Tensor) -> tuple[Tensor, Tensor]: ...

    def join(self, q: Tensor, p: Tensor) -> Tensor: ...


class Separable(Halved, Protocol):
    """A field in which each half moves by the other alone: q' = velocity(t, p), p' = force(t, q)."""

    def velocity(self, t: Number, p: Tensor) -> Tensor: ...

    def force(self, t: Number, q: Tensor) -> Tensor: ...


def as_halved(field: object) -> Halved:
    """The field, if its states have halves."""
    if not _is_halved(field):
        raise ValueError(f"the scheme needs states of two halves, {_EXAMPLES}, got {type(field).__name__}.")
    return field


def as_separable(field: object) -> Separable:
    """The field, if each of its halves moves by the other alone."""
    if not _is_separable(field):
        raise ValueError(
            f"the scheme needs a field of two halves of which each moves by the other alone, {_EXAMPLES}, "
            f"got {type(field).__name__}."
        )
    return field


# By hasattr: since Python 3.12 isinstance with a protocol does not see the submodules of an nn.Module.
def _is_halved(field: object) -> TypeGuard[Halved]:
    return all(callable(getattr(field, name, None)) for name in ("split", "join"))


def _is_separable(field: object) -> TypeGuard[Separable]:
    return _is_halved(field) and all(callable(getattr(field, name, None)) for name in ("velocity", "force"))


_EXAMPLES = "such as rs.fields.Hamiltonian(...) or rs.blocks.Halves(velocity, force)"
