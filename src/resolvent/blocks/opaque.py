"""The operations that `torch.compile` sees in place of a pass and of its backward pass. Both run in eager mode.

The forward operation keeps the graph of its pass under a ticket, a tensor that the compiler saves for the backward
operation. The graph is freed together with the ticket. The compiler may overwrite the arguments and results of an
operation after their last use that it knows of. So a pass that keeps its graph works with copies of its arguments, and
returns copies of its results.
"""

import ast
import itertools
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from resolvent.blocks.closed_over import closed_over
from resolvent.blocks.packing import Packed, pack, unpack
from resolvent.blocks.trajectory import Trajectory
from resolvent.blocks.weights import with_weights
from resolvent.equation.numbered import module_of
from resolvent.errors import ResolventError

_tickets = itertools.count(1)
_graphs: dict[int, "_Graph"] = {}
# The layers whose graphs were searched for tensors that the compiler did not find.
_searched: "weakref.WeakSet[Any]" = weakref.WeakSet()


class Call(NamedTuple):
    """What a pass depends on besides tensors and numbers. Its `repr` is a literal.

    Attributes:
        method: of the layer.
        arguments: packed; the first is the state.
        tensors: their number in the state.
        points: of a trajectory; 0 for the last state alone.
        weights: the number of parameters of the layer.
        recording: whether gradients are recorded.
        autocast: the name of its dtype; empty if autocast is off.
        needs: whether the gradient is needed, for each tensor of the arguments, then for each of the other tensors.
    """

    method: str
    arguments: tuple[Packed, ...]
    tensors: int
    points: int
    weights: int
    recording: bool
    autocast: str
    needs: tuple[bool, ...]


class _Graph(NamedTuple):
    """A pass to be differentiated: its results, and the tensors whose gradients are needed."""

    results: list[Tensor]
    leaves: list[Tensor]


@lru_cache
def _parsed(call: str) -> Call:
    return Call(*ast.literal_eval(call))


# A pass may draw random numbers, so two passes are never one. It waits for the device, which a CUDA graph cannot.
_TAGS = [
    getattr(torch.Tag, name) for name in ("nondeterministic_seeded", "cudagraph_unsafe") if hasattr(torch.Tag, name)
]


@torch.library.custom_op("resolvent::run", mutates_args=(), tags=_TAGS)
def run(
    tensors: list[Tensor], others: list[Tensor], numbers: list[float], call: str, layer: Tensor, apart: Tensor
) -> list[Tensor]:
    """A pass.

    Arguments:
        tensors, numbers: those of the arguments.
        others: the parameters of the layer, and what functions close over.
        call: the `repr` of a `Call`.
        layer: 0-d, its number.
        apart: any new tensor: the compiler merges operations with equal arguments, but two passes may draw different
            random numbers.

    Returns:
        The results, and a ticket for the backward pass. The results are the tensors of the last state; for a
        trajectory its times and the tensors of its states.
    """
    known, own = _parsed(call), module_of(layer)
    with _as_called(known, tensors[0].device.type):
        given, weights = _leaves(known, tensors, others)
        names = [name for name, _ in own.named_parameters(remove_duplicate=False)]
        used = with_weights(own, dict(zip(names, weights, strict=True)))
        unpacked = (iter(given), iter(numbers))
        found = getattr(used, known.method)(*(unpack(argument, *unpacked) for argument in known.arguments))
        if used._checked and not own._checked:
            own._checked = True
        if used._rows_checked and not own._rows_checked:
            own._rows_checked = True
        results = _flat(found)
    _check(known, own, tensors, results)
    # What is closed over cannot be replaced by leaves. The layer's own: the compiler may pass copies of another layout.
    every = (*given, *weights, *_without_hooks(closed_over(own)))
    leaves = [leaf for leaf, need in zip(every, known.needs, strict=True) if need]
    if not any(result.requires_grad for result in results):
        return [*_unshared(results, tensors), torch.tensor(0)]
    if own not in _searched:
        _refuse_unknown_leaves(results, leaves)
        _searched.add(own)
    ticket = next(_tickets)
    _graphs[ticket] = _Graph(results, leaves)
    kept = torch.tensor(ticket)
    weakref.finalize(kept, _graphs.pop, ticket, None).atexit = False
    return [*(_copy(result) for result in results), kept]


@run.register_fake
def _shapes(
    tensors: list[Tensor], others: list[Tensor], numbers: list[float], call: str, layer: Tensor, apart: Tensor
) -> list[Tensor]:
    known = _parsed(call)
    states, rest = tensors[: known.tensors], tensors[known.tensors :]
    points = (known.points,) if known.points else ()
    results = [torch.empty((*points, *state.shape), dtype=state.dtype, device=state.device) for state in states]
    if known.points:
        batch = states[0].shape[:1] if any(tensor.dim() > 0 for tensor in rest) else ()
        results.insert(0, torch.empty((*points, *batch), dtype=states[0].dtype, device=states[0].device))
    return [*results, torch.empty((), dtype=torch.int64)]


@torch.library.custom_op("resolvent::run_backward", mutates_args=(), tags=_TAGS)
def run_backward(cotangents: list[Tensor], ticket: Tensor, like: list[Tensor]) -> list[Tensor]:
    """The gradients of a pass with respect to tensors of the shapes `like`."""
    graph = _graphs.get(int(ticket))
    if graph is None:
        raise ResolventError(
            "the graph of a compiled pass is gone: a backend of torch.compile has copied the ticket under which it was "
            "kept. Call the layer outside of the compiled function, or take another backend."
        )
    with torch.inference_mode(False):
        pairs = [
            (result, cotangent.clone())
            for result, cotangent in zip(graph.results, cotangents, strict=True)
            if result.requires_grad
        ]
        outputs, arriving = zip(*pairs, strict=True)
        grads = torch.autograd.grad(outputs, graph.leaves, arriving, retain_graph=True, allow_unused=True)
    filled = [torch.zeros_like(t) if grad is None else grad for grad, t in zip(grads, graph.leaves, strict=True)]
    return _unshared(filled, cotangents)


@run_backward.register_fake
def _gradient_shapes(cotangents: list[Tensor], ticket: Tensor, like: list[Tensor]) -> list[Tensor]:
    return [torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device) for tensor in like]


def _save(ctx: Any, inputs: Any, output: Any) -> None:
    tensors, others, numbers, call, *_ = inputs
    ctx.known, ctx.split, ctx.numbers = _parsed(call), len(tensors), len(numbers)
    *results, ticket = output
    # The state is like the results, and need not be kept for its shape.
    kept = [
        tensor
        for tensor, need in list(zip((*tensors, *others), ctx.known.needs, strict=True))[ctx.known.tensors :]
        if need
    ]
    ctx.save_for_backward(ticket, *kept)
    ctx.shapes = [(result.shape, result.dtype, result.device) for result in results]


def _pull(ctx: Any, cotangents: list[Tensor | None]) -> Any:
    ticket, *kept = ctx.saved_tensors
    known: Call = ctx.known
    filled = [
        torch.zeros(shape, dtype=dtype, device=device) if cotangent is None else cotangent
        for cotangent, (shape, dtype, device) in zip(cotangents, ctx.shapes, strict=False)
    ]
    states = [state[0] for state in filled[1:]] if known.points else filled
    like = [state for state, need in zip(states, known.needs, strict=False) if need]
    grads = iter(run_backward(filled, ticket, [*like, *kept]))
    placed = [next(grads) if need else None for need in known.needs]
    return placed[: ctx.split], placed[ctx.split :], None if ctx.numbers else [], None, None, None


run.register_autograd(_pull, setup_context=_save)


@contextmanager
def _as_called(known: Call, device: str) -> Iterator[None]:
    """The modes in which the pass was called, as far as the compiler has replaced them by its own."""
    # Outside inference mode autograd works even inside an operation.
    with torch.inference_mode(False), torch.set_grad_enabled(known.recording):
        if not known.autocast:
            yield
            return
        with torch.autocast(device, getattr(torch, known.autocast)):
            yield


def _leaves(
    known: Call, tensors: Sequence[Tensor], others: Sequence[Tensor]
) -> tuple[list[Tensor], list[nn.Parameter]]:
    """The arguments and the parameters as leaves of a graph of its own."""
    needs = iter(known.needs)
    given = [_leaf(tensor, next(needs), any(known.needs)) for tensor in tensors]
    # Parameters stay such: normalisations distinguish them from computed weights.
    weights = [nn.Parameter(_leaf(weight, False, False), next(needs)) for weight in others[: known.weights]]
    return given, weights


def _without_hooks(tensors: list[Tensor]) -> list[Tensor]:
    for tensor in tensors:
        if tensor._backward_hooks:
            raise ValueError(
                f"a tensor of shape {tuple(tensor.shape)} that the field closes over has hooks on its gradient, which "
                "would be called twice in a compiled graph: make it a parameter of a module, and that module the field."
            )
    return tensors


def _leaf(tensor: Tensor, need: bool, copy: bool) -> Tensor:
    alone = tensor.detach()
    alone = alone.clone() if copy or tensor.is_inference() else alone
    return alone.requires_grad_(need)


def _flat(found: Any) -> list[Tensor]:
    results: list[Tensor] = []
    pack([found.times, found.states] if isinstance(found, Trajectory) else found, results, [])
    return results


def _check(known: Call, layer: Any, tensors: Sequence[Tensor], results: Sequence[Tensor]) -> None:
    """Raises if results are not what the compiler was told."""
    states = results[1:] if known.points else results
    for tensor, result in zip(tensors[: known.tensors], states, strict=True):
        if result.dtype != tensor.dtype:
            raise ValueError(
                f"{type(layer).__name__} takes a state of {tensor.dtype} to one of {result.dtype}, which a compiled "
                "graph does not allow for: convert the state before the call."
            )
    if any(result.requires_grad for result in results) and not any(known.needs):
        _refuse_unknown_leaves(results, [])


def _refuse_unknown_leaves(results: Iterable[Tensor], leaves: Iterable[Tensor]) -> None:
    """Raises if the results depend on tensors, other than `leaves`, that require gradients: these would be lost."""
    known = {id(leaf) for leaf in leaves}
    waiting = [result.grad_fn for result in results if result.grad_fn is not None]
    seen = set(waiting)
    while waiting:
        node = waiting.pop()
        variable = getattr(node, "variable", None)
        if variable is not None and variable.numel() > 0 and id(variable) not in known:
            raise ValueError(
                f"the field depends on a tensor of shape {tuple(variable.shape)} that requires a gradient, and that "
                "torch.compile does not find: it is neither a parameter of the layer nor closed over by its function. "
                "Make it a parameter of a module, and that module the field."
            )
        for next_node, _ in node.next_functions:
            if next_node is not None and next_node not in seen:
                seen.add(next_node)
                waiting.append(next_node)


def _unshared(results: Iterable[Tensor], inputs: Iterable[Tensor]) -> list[Tensor]:
    """The results, contiguous; those whose memory is that of an input or of an earlier result are copied."""
    used = {tensor.untyped_storage().data_ptr() for tensor in inputs}
    unshared = []
    for result in results:
        alone = result.detach().contiguous()
        if alone.untyped_storage().data_ptr() in used:
            alone = _copy(result)
        used.add(alone.untyped_storage().data_ptr())
        unshared.append(alone)
    return unshared


def _copy(result: Tensor) -> Tensor:
    return result.detach().clone(memory_format=torch.contiguous_format)
