"""The contenders of this library, and the explicit networks they are compared with, by kind of execution."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import cycle

import torch
from torch import nn

import resolvent as rs
from resolvent_lab.bench.contender import TorchContender
from resolvent_lab.bench.layers import as_own_network, explicit, remade
from resolvent_lab.bench.task import Convert, Task, with_layers

Offers = dict[str, Callable[[], TorchContender]]

SMALL_SYSTEMS = ("B1", "B2")
"""Rows of few unknowns around an `rs.fields.MLP`, for which `mode="compiled"` is made."""

BACKEND = "inductor"
"""Of `torch.compile`."""

RECORDS_ON = "cuda"


def offers(task: Task, kinds: Sequence[str], skip: Sequence[str] = ()) -> Offers:
    """What makes the contenders for a task of these kinds, except those with a word of `skip` in the name."""
    found = {name: make for kind in kinds for name, make in _OFFERS[kind](task).items()}
    return {name: make for name, make in found.items() if not any(word in name for word in skip)}


def eager(task: Task) -> Offers:
    plain = _plain(task)
    converts: dict[str, Convert] = {"explicit": _explicit(task), "resolvent": plain}
    own = partial(as_own_network, stopping=_stopping(task))
    if task.network:
        pass
    elif task.theta is None:
        converts["resolvent, Picard and Neumann"] = partial(
            plain, solver=rs.Picard(), adjoint=rs.ImplicitAdjoint(rs.Neumann())
        )
    elif task.row in SMALL_SYSTEMS:
        converts["resolvent, own network"] = own
        converts["resolvent, own network, rowwise=True"] = partial(own, rowwise=True)
        converts["resolvent, own network, layer by layer"] = partial(own, mode="sequential")
    elif task.row == "B7":
        converts["resolvent, rowwise=True"] = partial(own, rowwise=True)
    elif task.row in ("B3", "B4"):
        converts["resolvent, checkpoint"] = partial(plain, memory="checkpoint")
    return {name: partial(TorchContender, name, task, convert) for name, convert in converts.items()}


def compiled(task: Task) -> Offers:
    """The explicit network under `torch.compile`, and ours: for small systems and own networks by `mode="compiled"`,
    else under `torch.compile`, which compiles all but the layers. The explicit network is compiled in two modes, unless
    it is one of many."""
    if task.states is not None:
        return {}
    torch.compiler.reset()  # It limits how often the same code is compiled.
    whole = partial(torch.compile, fullgraph=True, backend=BACKEND)
    make = partial(TorchContender, task=task, kind="compiled")
    found: Offers = {"explicit, torch.compile": partial(make, "explicit, torch.compile", convert=explicit, wrap=whole)}
    if not task.network:
        found["explicit, max-autotune"] = partial(
            make, "explicit, max-autotune", convert=explicit, wrap=partial(whole, mode="max-autotune")
        )
    if task.row in SMALL_SYSTEMS or task.network:
        by_mode = partial(_plain(task), mode="compiled")
        found['resolvent, mode="compiled"'] = partial(make, 'resolvent, mode="compiled"', convert=by_mode)
    else:
        found["resolvent, torch.compile"] = partial(make, "resolvent, torch.compile", convert=_plain(task), wrap=whole)
    return found


def graphs(task: Task) -> Offers:
    """Recorded as CUDA graphs; none on a CPU. The numbers of solver steps are learned, and may also be given."""
    if task.network or task.theta is None or task.row in SMALL_SYSTEMS or task.batch[0].device.type != RECORDS_ON:
        return {}

    def ours(name: str, steps: int | None) -> TorchContender:
        learned = record(task, with_layers(task.model, _plain(task)), steps).steps
        wrap = partial(record, task, steps=steps)
        return TorchContender(name, task, _plain(task), "graph", wrap, twin=fixed(task, learned))

    name = "explicit, CUDA graph"
    found: Offers = {name: partial(TorchContender, name, task, _explicit(task), "graph", partial(record, task))}
    name = "resolvent, CUDA graph"
    found[name] = partial(ours, name, None)
    if task.graph_steps is not None:
        name = f"resolvent, CUDA graph of {task.graph_steps} steps"
        found[name] = partial(ours, name, task.graph_steps)
    return found


def record(task: Task, model: nn.Module, steps: int | None = None) -> rs.blocks.CudaGraph:
    return rs.blocks.cuda_graph(model, task.batch[: task.inputs], steps)


def fixed(task: Task, steps: Sequence[tuple[int, int]]) -> Convert:
    """Layers in eager mode that make the steps of a recorded pass: for each block those of its layers, and of linear
    systems."""
    numbers = cycle(steps)  # The blocks of a model are converted in their order.

    def convert(old: rs.ThetaBlock) -> nn.Module:
        layers, linear = next(numbers)
        stopping = rs.FixedSteps(layers, rtol=task.tolerance, atol=0.0)
        adjoint = rs.ImplicitAdjoint(stopping=rs.FixedSteps(linear, rtol=task.tolerance))
        return remade(old, stopping=stopping, adjoint=adjoint, on_failure="ignore", mode="sequential")

    return convert


_OFFERS: dict[str, Callable[[Task], Offers]] = {"eager": eager, "compiled": compiled, "graph": graphs}


def _explicit(task: Task) -> Convert:
    # `rs.jvp` goes through a block in fewer operations than `torch.func.jvp` through a loop.
    return explicit if task.states is None else partial(remade, theta=0.0)


def _plain(task: Task) -> "partial[nn.Module]":
    return partial(remade, stopping=_stopping(task))


def _stopping(task: Task) -> rs.Stopping:
    return rs.Stopping(rtol=task.tolerance, atol=0.0)
