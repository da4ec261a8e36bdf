"""`check_field`: checks that a field is a function and treats each sample alone."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from resolvent.blocks.changing_modules import refuse_changing_modules
from resolvent.blocks.weights import frozen_weights, outside_inference
from resolvent.equation.function import as_vector_field
from resolvent.equation.in_place import change_error, changes_of
from resolvent.equation.modes import refuse_transforms
from resolvent.equation.structure import FlatField, Structured, structure_of
from resolvent.equation.torch_func import transforming
from resolvent.fields import Piecewise
from resolvent.fields.samples_alone import is_proved
from resolvent.schemes.interval import Field, Number

Call = Callable[[Any, Tensor], Tensor]


def check_field(field: Field, x: Structured, t: Number = 0.0) -> None:
    """Raises a ValueError with the cause if F is not suitable for an implicit layer.

    A solver evaluates F many times and treats each sample alone. So F must give the same result each time (no dropout,
    no noise, no state that calls change), and a row of its result must depend only on the same row of the state (no
    batch statistics). It must not change the state in place. If a field declares `rowwise`, a row alone must also give
    the same result as in its batch.

    Batch norms and dropout in training mode are found among the modules. (Dropout may be in an
    `rs.blocks.FrozenRandomness`.) Everything else is found by values: F is
    evaluated at x, again with some rows of x and t replaced by others, and, if `rowwise` is declared, at a single row.
    Relative differences above the square root of the precision of F count. The pieces of a `Piecewise` field are
    checked one by one. The check does not change random numbers, gradients or normalised weights.

    `Block` does this for implicit layers on its first call in training mode. The modules, and whether the state is
    changed in place, are checked in every call.

    Arguments:
        field: F(t, y).
        x: (batch, *shape), typical states, or several such tensors in a structure. With a single row only the modules
            are checked.
        t: time, a number, a 0-d tensor or (batch,).
    """
    refuse_transforms("check_field")
    if not isinstance(x, Tensor):
        structure = structure_of(x, "x")
        field, x = structure.field(field), structure.flatten(x, "x")
    if isinstance(field, nn.Module):
        refuse_changing_modules(field)
    if len(x) < 2:
        return
    with outside_inference(x, t) as (x, t), leaving_no_trace(x), frozen_weights(field) as frozen:
        for piece in _pieces(frozen):
            check_values(piece, x.detach(), t)


def check_proof(field: Field, x: Tensor, t: Number, proved: bool = False) -> None:
    """Raises if the field is proved to treat samples alone, and a row alone does not get the result that it gets in its
    batch. A proof is wrong where Python code tells a tensor from what stands for it, as by isinstance(y, Tensor).

    Arguments:
        field: with weights that are computed.
        x, t: as for `check_field`.
        proved: whether there is a proof that the field itself does not know of.
    """
    if not (proved or is_proved(field)):
        return
    with leaving_no_trace(x):
        for piece in _pieces(field):
            if proved or as_vector_field(piece).rowwise:
                check_row_alone(piece, x.detach(), t)


@contextmanager
def leaving_no_trace(x: Tensor) -> Iterator[None]:
    """For evaluations that must change neither gradients nor the random numbers drawn after them."""
    with torch.random.fork_rng([x.device] if x.is_cuda else []), torch.no_grad(), _no_autocast_cache(x):
        yield


def _pieces(field: Field) -> tuple[Field, ...]:
    """The fields that are evaluated: the pieces of a `Piecewise` field, or the field itself."""
    if isinstance(field, FlatField):
        return tuple(field.structure.field(piece) for piece in _pieces(field.field))
    return tuple(dict.fromkeys(field.pieces)) if isinstance(field, Piecewise) else (field,)


def can_check(x: Tensor) -> bool:
    """Whether values may be read: not in `torch.func` transforms, while compiling or while capturing a CUDA graph."""
    if torch.compiler.is_compiling() or transforming():
        return False
    return not (x.is_cuda and torch.cuda.is_current_stream_capturing())


def check_values(field: Call, x: Tensor, t: Any) -> None:
    """Raises if values of the field change with the call or with other samples.

    Arguments:
        field: F(t, y).
        x: (batch, *shape), typical states.
        t: the time, or anything else that F depends on; its tensors have one row per sample or no dimension.
    """
    first = evaluate_on_copies(field, x, t)
    if not isinstance(first, Tensor) or first.shape != x.shape:
        return  # The solver raises for that.
    # Rows 1, 3, ... stay; the others, including the first and the last, become copies of row 1, so that a dependence
    # on either is found.
    kept = slice(1, max(2, len(x) - 1), 2)

    def with_others(part: Any) -> Any:
        if not isinstance(part, Tensor) or part.dim() == 0:
            return part
        changed = part[1:2].expand_as(part).clone()
        changed[kept] = part[kept]
        return changed

    changed = with_others(x)
    if torch.equal(changed, x):
        changed += 1
        changed[kept] = x[kept]
    if _differ(first[kept], field(tree_map(with_others, t), changed)[kept], first):
        _refuse(field, repeats=not _differ(first, field(t, x), first))
    if as_vector_field(field).rowwise:
        check_row_alone(field, x, t, first)


def evaluate_on_copies(field: Call, x: Tensor, t: Any) -> Any:
    """The field at copies of its arguments, which may share memory with tensors of the user. Raises if it changes them
    in place. The arguments are those of `check_values`."""
    given = tree_map(lambda part: part.clone() if isinstance(part, Tensor) else part, (t, x))
    tensors = [part for part in tree_leaves(given) if isinstance(part, Tensor)]
    before = [changes_of(part) for part in tensors]
    value = field(*given)
    if [changes_of(part) for part in tensors] != before:
        raise change_error(_name(field))
    return value


def _refuse(field: Call, repeats: bool) -> None:
    if repeats:
        raise ValueError(
            f"{_name(field)} couples the samples of a batch: some rows of its result change with other rows of its "
            "arguments, as with batch statistics (a mean over the batch, say). An implicit layer solves for each "
            "sample alone: take statistics over the entries of a sample (LayerNorm, GroupNorm), or running ones "
            "(batch norm in evaluation mode)."
        )
    raise ValueError(
        f"{_name(field)} gives another result when it is called again with the same state: it draws random numbers "
        "(dropout, noise), or its calls change its state. An implicit layer calls it many times: draw the numbers "
        "once per pass, with rs.blocks.FrozenRandomness(...), and change state only between passes."
    )


def check_row_alone(field: Call, x: Tensor, t: Any, together: Tensor | None = None) -> None:
    """Raises if a row alone does not get the result that it gets in its batch, `together`; None evaluates that."""
    together = evaluate_on_copies(field, x, t) if together is None else together
    if not isinstance(together, Tensor) or together.shape != x.shape:
        return  # The solver raises for that.
    cause = None
    try:
        last = tree_map(lambda part: part[-1:] if isinstance(part, Tensor) and part.dim() > 0 else part, t)
        alone = field(last, x[-1:])
        if alone.shape == x[-1:].shape and not _differ(together[-1:], alone, together):
            return
    except (RuntimeError, ValueError, IndexError) as error:
        cause = error
    raise ValueError(
        f"{_name(field)} has rowwise=True, but a sample alone does not get the result that it gets in its batch: "
        "the field uses batch statistics, or closes over tensors that have a row for each sample. Leave rowwise False, "
        "which is the default, or declare rowwise=False where the default is a proof."
    ) from cause


def _differ(expected: Tensor, value: Tensor, scale: Tensor) -> bool:
    """Whether two results differ by more than rounding, relative to the largest entry of `scale`."""
    precision, device = expected.dtype, expected.device.type
    if torch.is_autocast_enabled(device) and precision != torch.float64:
        precision = torch.get_autocast_dtype(device)
    elif device == "cuda" and precision == torch.float32:
        precision = torch.float16  # TF32 rounds like this.
    finite = expected.isfinite()  # The solver reports values that are not finite.
    largest = torch.where(scale.isfinite(), scale, 0.0).abs().max()
    close = (expected - value).abs() <= torch.finfo(precision).eps ** 0.5 * largest
    return bool((finite & ~close).any())


def _name(field: object) -> str:
    field = field.field if isinstance(field, FlatField) else field
    return getattr(field, "__name__", type(field).__name__)


def _no_autocast_cache(x: Tensor) -> AbstractContextManager[object]:
    """Keeps autocast from caching weights that were cast without a graph."""
    device = x.device.type
    if not torch.is_autocast_enabled(device):
        return nullcontext()
    return torch.autocast(device, dtype=torch.get_autocast_dtype(device), cache_enabled=False)
