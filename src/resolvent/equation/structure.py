"""`Structure`: states of several tensors, which the library solves for as one tensor."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import TreeSpec, keystr, tree_flatten_with_path, tree_map, tree_unflatten

from resolvent.equation.function import Function, as_vector_field
from resolvent.equation.solution import Solution
from resolvent.errors import ConvergenceError

Structured = Any
"""A tensor (batch, *shape), or a tuple, list, dictionary or named tuple of such tensors, nested as you like. A union of
these would have to be narrowed wherever a result is used."""


@dataclass(frozen=True)
class Structure:
    """The containers and shapes of a state of several tensors; made by `structure_of`.

    Inside the library a state is one tensor (batch, n): the entries of all tensors of a sample, side by side. F gets
    the structure back whenever it is called, and the user gets it back in every result.

    Attributes:
        spec: the containers.
        shapes: of a sample of each tensor.
        names: of the tensors, such as "['velocity']", for messages.
    """

    spec: TreeSpec
    shapes: tuple[torch.Size, ...]
    names: tuple[str, ...]

    def flatten(self, state: Any, name: str, leading: int = 1) -> Tensor:
        """A state of this structure as one tensor (*leading, n). Raises if it has another structure.

        Arguments:
            state: the state.
            name: what messages call it.
            leading: the number of dimensions in front of those of a sample: 1, or 2 for the states of a trajectory.
        """
        try:
            parts = self.spec.flatten_up_to(state)
        except (ValueError, TypeError) as error:
            raise ValueError(f"{name} must have the structure {self}, got {describe(state)}.") from error
        for part, shape, own in zip(parts, self.shapes, self.names, strict=True):
            if not isinstance(part, Tensor) or part.shape[leading:] != shape:
                raise ValueError(f"{name}{own} must have the shape {_sample(shape)}, got {describe(part)}.")
        leads = [part.shape[:leading] for part in parts]
        _refuse_others(name, self.names, "batch", leads)
        if not torch.is_autocast_enabled(parts[0].device.type):  # It gives some operations another dtype.
            _refuse_others(name, self.names, "dtype", [part.dtype for part in parts])
        columns = zip(parts, leads, self.shapes, strict=True)
        return torch.cat([part.reshape(*lead, math.prod(shape)) for part, lead, shape in columns], -1)

    def unflatten(self, flat: Tensor) -> Any:
        """The state with these entries, (*leading, n), for any number of leading dimensions."""
        parts = zip(flat.split([math.prod(shape) for shape in self.shapes], -1), self.shapes, strict=True)
        return tree_unflatten([part.reshape(*flat.shape[:-1], *shape) for part, shape in parts], self.spec)

    def function(self, F: Function) -> Function:
        """F, a function of structured states, as one of flat states."""

        def call(w: Tensor, *conditions: Tensor) -> Tensor:
            return self.flatten(F.call(self.unflatten(w), *conditions), "the value of F")

        linear_part = self.sample(F.linear_part, "linear_part")
        return replace(F, call=call, linear_part=linear_part, value_and_jacobian=None, split=None)

    def field(self, field: Callable[..., Any]) -> "FlatField":
        """A field of structured states, as one of flat states."""
        return FlatField(field, self)

    def sample(self, values: Any, name: str) -> float | Tensor | None:
        """One value for each entry of a sample, (n,): from a structure of numbers or tensors that broadcast to those
        of a sample. One number for all entries, or None, is returned as it is."""
        if values is None or isinstance(values, int | float) or (isinstance(values, Tensor) and values.dim() == 0):
            return values
        try:
            parts = [torch.as_tensor(part) for part in self.spec.flatten_up_to(values)]
            return torch.cat([part.expand(shape).flatten() for part, shape in zip(parts, self.shapes, strict=True)])
        except (ValueError, TypeError, RuntimeError) as error:
            raise ValueError(
                f"{name} must be a number, or have the structure {self} with numbers or tensors that broadcast to a "
                f"sample, got {describe(values)}."
            ) from error

    def solution(self, solution: Solution) -> Solution:
        """The solution of a flat problem, with its value in the structure."""
        return replace(solution, value=self.unflatten(solution.value))

    @contextmanager
    def restored_errors(self) -> Iterator[None]:
        """Gives the solution of a `ConvergenceError` that passes its structure."""
        try:
            yield
        except ConvergenceError as error:
            if isinstance(error.solution, Solution):
                error.solution = self.solution(error.solution)
            raise

    def __str__(self) -> str:
        return str(tree_unflatten([_sample(shape) for shape in self.shapes], self.spec))


class FlatField(nn.Module):
    """A field of structured states, as one of flat states. Keeps what the field declares about samples and time.

    Arguments:
        field: F(t, y); other arguments may come before y.
        structure: of y.
    """

    shape = None
    value_and_jacobian = None

    def __init__(self, field: Callable[..., Any], structure: Structure) -> None:
        super().__init__()
        self.field, self.structure = field, structure

    @property
    def rowwise(self) -> bool:
        return as_vector_field(self.field).rowwise

    @property
    def autonomous(self) -> bool:
        return as_vector_field(self.field).autonomous

    @property
    def linear_part(self) -> float | Tensor | None:
        return self.structure.sample(as_vector_field(self.field).linear_part, "linear_part")

    def forward(self, *arguments: Any) -> Tensor:
        *others, y = arguments
        return self.structure.flatten(self.field(*others, self.structure.unflatten(y)), "the value of F")


def flattened(function: Callable[[Any], Any], point: Any) -> tuple[Callable[[Tensor], Tensor], Tensor]:
    """A function of structured inputs as one of flat inputs, and the point as a flat one. Its values become flat, too,
    if they have a structure."""
    structure = structure_of(point, "the point")

    def flat(x: Tensor) -> Tensor:
        value = function(structure.unflatten(x))
        return value if isinstance(value, Tensor) else structure_of(value, "the value").flatten(value, "the value")

    return flat, structure.flatten(point, "the point")


def structure_of(state: Any, name: str, leading: int = 1) -> Structure:
    """The structure of a state of several tensors. Raises if they are not of one dtype, device and batch.

    Arguments:
        state: a tuple, list, dictionary or named tuple of tensors (*leading, *shape), nested as you like.
        name: what messages call it.
        leading: the number of dimensions in front of those of a sample, see `Structure.flatten`.
    """
    pairs, spec = tree_flatten_with_path(state)
    names, parts = tuple(keystr(path) for path, _ in pairs), [part for _, part in pairs]
    if not any(isinstance(part, Tensor) for part in parts):
        raise ValueError(
            f"{name} must be a tensor (batch, *shape), or a tuple, list or dictionary of such tensors, got a "
            f"{type(state).__name__}: make a tensor of it, torch.tensor({name})."
        )
    for own, part in zip(names, parts, strict=True):
        if not isinstance(part, Tensor) or part.dim() < leading:
            raise ValueError(f"{name}{own} must be a tensor (batch, *shape), got {describe(part)}.")
    _refuse_others(name, names, "batch", [part.shape[:leading] for part in parts])
    _refuse_others(name, names, "dtype", [part.dtype for part in parts])
    _refuse_others(name, names, "device", [part.device for part in parts])
    return Structure(spec, tuple(part.shape[leading:] for part in parts), names)


def describe(value: Any) -> str:
    """The shapes of a structure of tensors, and the types of all else, for messages."""

    def shown(leaf: Any) -> Any:
        return _Shown(tuple(leaf.shape) if isinstance(leaf, Tensor) else type(leaf).__name__)

    return str(tree_map(shown, value))


class _Shown:
    """Prints without quotes inside of containers."""

    def __init__(self, text: object) -> None:
        self.text = text

    def __repr__(self) -> str:
        return str(self.text)


def _sample(shape: torch.Size) -> Any:
    return _Shown(f"(batch, {', '.join(map(str, shape))})" if shape else "(batch,)")


def _refuse_others(name: str, names: Sequence[str], what: str, values: Sequence[Any]) -> None:
    """Raises if the tensors of a state differ in `what`, a key of `_ADVICE`."""
    for own, value in zip(names, values, strict=True):
        if value != values[0]:
            first, other = (tuple(v) if isinstance(v, torch.Size) else v for v in (values[0], value))
            raise ValueError(
                f"the tensors of a state must have the same {what}, but that of {name}{names[0]} is {first}, and that "
                f"of {name}{own} is {other}: {_ADVICE[what]}."
            )


_ADVICE = {
    "batch": "each needs one row for each sample",
    "dtype": "convert one of them, as with .to(dtype)",
    "device": "move one of them, as with .to(device)",
}
