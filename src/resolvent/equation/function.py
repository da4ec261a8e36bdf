"""`Function` and `VectorField`: F as the solvers and the schemes call it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from resolvent.equation.linear_part import LinearPart
from resolvent.equation.mixing import Mixing
from resolvent.equation.torch_func import forward_mode, outside_inference, transforming

ValueAndJacobian = Callable[..., tuple[Tensor, Tensor]]

ROWS = 4096
"""The rows of one part of a large batch. Smaller parts take longer to call than they save."""


def has_value(value: Callable[..., Tensor]) -> Callable[[ValueAndJacobian], ValueAndJacobian]:
    """Marks a `value_and_jacobian` whose value has the graph of F where autograd records: F need not be evaluated again
    for its derivative. `value` computes it alone, from the same arguments."""

    def mark(closed_form: ValueAndJacobian) -> ValueAndJacobian:
        closed_form.value = value  # type: ignore[attr-defined]
        return closed_form

    return mark


def value_of(closed_form: ValueAndJacobian | None) -> Callable[..., Tensor] | None:
    """The value alone of a function marked by `has_value`, else None. Arguments may be bound to it."""
    if isinstance(closed_form, partial):
        value = value_of(closed_form.func)
        return None if value is None else partial(value, *closed_form.args)
    return getattr(closed_form, "value", None)


@dataclass(frozen=True)
class Function:
    """F(w) = call(w, *conditions), with its declared properties.

    A sample may stack several stages or layers, W (batch, rows, *shape). Then the same f acts on every row, and a
    matrix mixes the results: F(W)_i = sum_j m_ij f(W_j). One call of f evaluates all rows, and the Jacobian of F
    follows from that of f, which is small.

    Attributes:
        call: F, or f if there is a mix. It then takes the rows of all samples, (batch * rows, *shape).
        conditions: tensors (batch, ...) with one row per sample, or (batch, rows, ...) if there is a mix.
        rowwise: whether F treats each sample alone and all alike, so that it may be called with any number of rows. A
            plain callable is always called with the whole batch: it may close over tensors with one row per sample.
        linear_part: c in F(w) = c w + N(w), a number or a tensor that broadcasts to the shape of one sample, or a
            `LinearPart`.
        value_and_jacobian: called like `call` for vector states (batch, n). Returns the value and the Jacobian
            (batch, n, n), both without a graph unless `has_value`; for functions with a Jacobian in closed form.
        mix: combines the rows of a sample; None if there is one.
        split: for F(w) = max(0, W w + offset), called with the conditions. Returns W, (n, n), and the offset,
            (batch, n).
        kept: remembers the images of the rows in the last evaluation, if there is a mix.
        by_rows: whether `call` gets the first rows of all samples before the second ones, if there is a mix. With
            samples as columns (see `resolvent.equation.mixing`) nothing is then copied.
    """

    call: Callable[..., Tensor]
    conditions: tuple[Tensor, ...] = ()
    rowwise: bool = False
    linear_part: float | Tensor | LinearPart | None = None
    value_and_jacobian: ValueAndJacobian | None = None
    mix: Mixing | None = None
    split: Callable[..., tuple[Tensor, Tensor]] | None = None
    kept: "KeptRows | None" = None
    by_rows: bool = False

    def __call__(self, w: Tensor) -> Tensor:
        if self.mix is None:
            return self.call(w, *self.conditions)
        if w.stride(1) == 0 and self._one_is_enough(w):
            image = self.call(w[:, 0])
            if not isinstance(image, Tensor) or image.shape != w[:, 0].shape:
                raise wrong_shape(w[:, 0], image)
            return self.mix(image.unsqueeze(1).expand_as(w))
        return self.mix(self.rows_of(w, self.call(*(self.flatten(x) for x in (w, *self.conditions)))))

    def _one_is_enough(self, w: Tensor) -> bool:
        """Whether one row of each sample is evaluated for all: they are equal in the first guess of a group. With a
        graph or a tangent they are not, and conditions may differ."""
        recorded = torch.is_grad_enabled() or transforming() or forward_mode()
        return w.shape[1] > 1 and not (self.conditions or recorded)

    def flatten(self, x: Tensor) -> Tensor:
        """The rows of all samples, (batch, rows, ...) to (batch * rows, ...), in the order that `call` gets them."""
        return (x.transpose(0, 1) if self.by_rows else x).flatten(0, 1)

    def unflatten(self, x: Tensor, w: Tensor) -> Tensor:
        """The inverse of `flatten`, for as many samples and rows as w has."""
        batch, rows = w.shape[:2]
        if self.by_rows:
            return x.reshape(rows, batch, *x.shape[1:]).transpose(0, 1)
        return x.reshape(batch, rows, *x.shape[1:])

    def rows_of(self, w: Tensor, images: Tensor) -> Tensor:
        """The images f(w_j) of all rows, (batch * rows, *shape), as (batch, rows, *shape); `mix` makes F(w) of them."""
        if not isinstance(images, Tensor) or images.shape != (w.shape[0] * w.shape[1], *w.shape[2:]):
            raise _wrong_rows(self.flatten(w), images, w[:, 0])
        rows = self.unflatten(images, w)
        if self.kept is not None:
            self.kept.keep(w, rows)
        return rows

    def in_parts(self, rows: int) -> Callable[..., Tensor]:
        """`call` for up to so many rows. It divides a large batch on the CPU; needs `rowwise`.

        An elementwise operation on a large batch waits for memory, and so does its derivative. In parts, a batch goes
        through all of F before the next part begins, and the backward pass goes through the parts in turn, so that what
        it stores besides the graph is that of one part.
        """
        # A closed form divides the batch itself, as it knows what it stores.
        value = value_of(self.value_and_jacobian)
        return value or (self.call if rows < 2 * ROWS else partial(_call_in_parts, self.call))

    @property
    def single_rows(self) -> "Function":
        """f on (batch * rows, *shape); the function itself if there is no mix."""
        if self.mix is None:
            return self
        return replace(self, conditions=tuple(self.flatten(c) for c in self.conditions), mix=None)

    def with_mix(self, mix: Mixing) -> "Function":
        """The same f with another mix."""
        return replace(self, mix=mix)

    def take(self, rows: Tensor | slice) -> "Function":
        """The same for the samples `rows` only; needs `rowwise`."""
        return replace(self, conditions=tuple(c[rows] for c in self.conditions))

    def repeat(self, copies: int) -> "Function":
        """The same for the batch stacked `copies` times; needs `rowwise`."""
        return replace(self, conditions=tuple(c.repeat(copies, *(1,) * (c.dim() - 1)) for c in self.conditions))

    def outside_inference(self) -> "Function":
        """The same with copies of tensors made in inference mode, which autograd refuses to save."""
        part, *conditions = (outside_inference(tensor) for tensor in (self.linear_part, *self.conditions))
        mix = None if self.mix is None else self.mix.outside_inference()
        return replace(self, linear_part=part, mix=mix, conditions=tuple(conditions))


def _call_in_parts(call: Callable[..., Tensor], w: Tensor, *conditions: Tensor) -> Tensor:
    if not w.is_cpu or len(w) < 2 * ROWS:
        return call(w, *conditions)
    parts = zip(*(x.split(ROWS) for x in (w, *conditions)), strict=True)
    return torch.cat([call(*part) for part in parts])


def wrong_shape(w: Tensor, image: object) -> ValueError:
    """The error of a function that maps w, (batch, *shape), to something of another shape or type."""
    got = tuple(image.shape) if isinstance(image, Tensor) else type(image).__name__
    return ValueError(f"F must map (batch, *shape) to the same shape: it took {tuple(w.shape)} and gave {got}.")


def _wrong_rows(w: Tensor, images: object, one: Tensor) -> ValueError:
    """The same for the rows w of all samples, (batch * rows, *shape). If their number is right, the message speaks of
    `one` row for each sample, as that is what the user's state is."""
    if not isinstance(images, Tensor):
        return wrong_shape(one, images)
    return wrong_shape(one, images[: len(one)]) if images.shape[:1] == w.shape[:1] else wrong_shape(w, images)


class KeptRows:
    """The images f(w_j) of the last evaluation, before they are mixed."""

    def __init__(self) -> None:
        self._last: tuple[Tensor, Tensor] | None = None

    def keep(self, w: Tensor, rows: Tensor) -> None:
        self._last = w.detach(), rows.detach()

    def take(self, w: Tensor) -> Tensor | None:
        """The images for w, (batch, rows, *shape), if the last evaluation was there. They are not kept any longer."""
        last, self._last = self._last, None
        return None if last is None or not torch.equal(last[0], w) else last[1]


def Rowwise(
    function: Callable[..., Tensor],
    *conditions: Tensor,
    linear_part: float | Tensor | LinearPart | None = None,
    value_and_jacobian: ValueAndJacobian | None = None,
) -> Function:
    """Declares that F treats each sample alone and all alike, so that it may be called with any number of rows.

    The solvers may then drop finished samples from the batch, and compute Jacobians from one call with repeated rows.

    Arguments:
        function: called as function(w, *conditions).
        conditions: tensors (batch, ...) with one row per sample (a condition, a time), indexed along with w.
        linear_part: c in F(w) = c w + N(w), see `Function`.
        value_and_jacobian: called like the function for vector states, see `Function`.
    """
    split = as_function(function).split
    return Function(function, conditions, True, linear_part, value_and_jacobian, split=split)


def as_function(F: Any) -> Function:
    """Wraps a user's callable. Reads its attributes `linear_part` and `split` if it has them."""
    if isinstance(F, Function):
        return F
    if not callable(F):
        raise ValueError(f"F must be callable, (batch, *shape) -> (batch, *shape), got {F!r}.")
    return Function(F, **{name: getattr(F, name) for name in ("linear_part", "split") if hasattr(F, name)})


@dataclass(frozen=True)
class VectorField:
    """A field F(t, y) as the schemes call it, with its declared properties.

    Attributes:
        call: called with the time (a number, a 0-d tensor or (batch,)) and the state (batch, *shape).
        rowwise, linear_part, value_and_jacobian: as for `Function`; the latter is called with (t, y).
        autonomous: whether F does not depend on t.
    """

    call: Callable[[Any, Tensor], Tensor]
    rowwise: bool = False
    autonomous: bool = False
    linear_part: float | Tensor | LinearPart | None = None
    value_and_jacobian: ValueAndJacobian | None = None

    def __call__(self, t: Any, y: Tensor) -> Tensor:
        return self.call(t, y)

    def at(self, t: float | Tensor) -> Function:
        """F(t, .), where t may be one time per sample."""
        if self.rowwise and isinstance(t, Tensor) and t.dim() > 0:
            return self._of_rows((t,))
        known = None if self.value_and_jacobian is None else partial(self.value_and_jacobian, t)
        return Function(partial(self.call, t), (), self.rowwise, self.linear_part, known)

    def together(self, times: Sequence[float | Tensor], mix: Mixing, like: Tensor) -> Function:
        """Maps W to the sums over j of m_ij F(t_j, W_j), for W (batch, stages, *shape); needs `rowwise`."""
        # An autonomous field ignores the time.
        single = self.at(0.0) if self.autonomous else self._of_rows((time_columns(times, like),))
        return replace(single, linear_part=None, mix=mix)

    def _of_rows(self, times: tuple[Tensor]) -> Function:
        """F with the time as a condition."""
        both = self.value_and_jacobian
        known = None if both is None else lambda w, t: both(t, w)
        return Function(lambda w, t: self.call(t, w), times, True, self.linear_part, known)


_NOT_DECLARED: Any = object()


def as_vector_field(field: Any) -> VectorField:
    """Wraps a user's field. A plain callable (t, y) declares nothing."""
    if isinstance(field, VectorField):
        return field
    names = ("rowwise", "autonomous", "linear_part", "value_and_jacobian")
    # Each is read once: a property may have to look at all modules of the field.
    declared = {name: getattr(field, name, _NOT_DECLARED) for name in names}
    return VectorField(field, **{name: value for name, value in declared.items() if value is not _NOT_DECLARED})


def time_columns(times: Sequence[float | Tensor], like: Tensor) -> Tensor:
    """The times of all stages of all samples, (batch, stages)."""
    columns = [torch.as_tensor(t, dtype=like.dtype, device=like.device).expand(like.shape[0]) for t in times]
    return torch.stack(columns, dim=1)
