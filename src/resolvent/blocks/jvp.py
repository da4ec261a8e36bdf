"""`jvp`: the outputs of a network and their derivative in a direction."""

import dataclasses
from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from resolvent.blocks.block import Block
from resolvent.blocks.implicit import ImplicitResidual
from resolvent.blocks.trajectory import Trajectory
from resolvent.blocks.weights import outside_inference
from resolvent.equation.function import as_vector_field
from resolvent.equation.jacobian import Jacobian
from resolvent.equation.solution import Solution
from resolvent.equation.structure import Structured, describe, structure_of
from resolvent.schemes.interval import Field, Number
from resolvent.schemes.scheme import Carry


class JvpResult(NamedTuple):
    """The result of `jvp`.

    Attributes:
        outputs: y, (batch, *image), or several such tensors.
        tangents: dy/dx v, of the same shape and structure.
        trajectories: those of the blocks of midpoint form, in order.
        solves: for the tangents, in order; none for explicit layers.
    """

    outputs: Tensor
    tangents: Tensor
    trajectories: tuple[Trajectory, ...] = ()
    solves: tuple[Solution, ...] = ()


def jvp(model: Callable[[Any], Any], x: Structured, v: Structured) -> JvpResult:
    """The outputs of a network and their derivative in the direction v. Both are differentiable.

    A step of a block in the midpoint form, w = x + theta h F(w), y = x + h F(w), has the derivative

        dw = dx + theta h F'(w) dw,      dy = dx + h F'(w) dw,

    a step of the same scheme through the linear field F'(w). It is solved like the step itself and differentiated
    implicitly, which needs only first derivatives of the solves: the default `ImplicitAdjoint()` gives exact gradients.
    The same holds for the layers of `make_implicit`.
    Everything else goes through `torch.func.jvp`, where a solve needs `ImplicitAdjoint(order=2)` for gradients of the
    tangents.

    Arguments:
        model: maps (batch, *shape) to (batch, *image), each sample alone. An `nn.Sequential` is processed module by
            module.
        x: (batch, *shape), or several such tensors in a structure.
        v: like x.
    """
    if not isinstance(x, Tensor):
        structure_of(x, "x").flatten(v, "v")  # Raises if v has another structure.
    elif not isinstance(v, Tensor) or x.shape != v.shape:
        raise ValueError(f"the direction must have the shape {tuple(x.shape)} of the inputs, got {describe(v)}.")
    if isinstance(model, nn.Sequential) and type(model).forward is nn.Sequential.forward:
        result = JvpResult(x, v)
        for module in model:
            outputs, tangents, trajectories, solves = jvp(module, result.outputs, result.tangents)
            result = JvpResult(outputs, tangents, result.trajectories + trajectories, result.solves + solves)
        return result
    if isinstance(model, ImplicitResidual):
        result = jvp(model.block, x, v)
        return result._replace(outputs=result.outputs - x, tangents=result.tangents - v) if model.branch else result
    # In inference mode torch loses the tangents of a solve.
    with outside_inference(x, v) as (x, v):
        if isinstance(model, Block) and model.scheme.chord is not None:
            return _through_steps(model, x, v)
        # torch refuses expanded tensors, whose entries share memory.
        x, v = (tree_map(torch.Tensor.contiguous, each) for each in (x, v))
        return JvpResult(*torch.func.jvp(model, (x,), (v,)))


def _through_steps(block: Block, inputs: Structured, direction: Structured) -> JvpResult:
    scheme = block.scheme
    theta = scheme.chord
    assert theta is not None
    solves: tuple[Solution, ...] = ()
    # States and tangents use the same frozen weights.
    with block._opened(inputs) as (pass_, x):
        structure = pass_.structure
        v = direction if structure is None else structure.flatten(direction, "v")
        trajectory = block._trajectory(pass_, x)
        # The guess is for states, not for tangents.
        pass_ = dataclasses.replace(pass_, guess=None)
        for n, (start, end) in enumerate(pairwise(trajectory.states)):
            interval = pass_.interval(n)
            along = _Linearized(pass_.field, interval.time(theta), start + theta * (end - start))
            step = scheme.step(dataclasses.replace(interval, field=as_vector_field(along)), Carry((v,)))
            v, solves = step.state, solves + step.solutions
    if structure is None:
        return JvpResult(trajectory.states[-1], v, (trajectory,), solves)
    y = structure.unflatten(trajectory.states[-1])
    solves = tuple(structure.solution(solution) for solution in solves)
    return JvpResult(y, structure.unflatten(v), (trajectory.structured(structure),), solves)


class _Linearized:
    """The linear field of the tangents, v to F'(t, w) v with fixed t and w."""

    def __init__(self, field: Field, t: Number, w: Tensor) -> None:
        self.linear_part = as_vector_field(field).linear_part
        self._jacobian = Jacobian(lambda state: field(t, state), w, detach=False)

    def __call__(self, _: Number, v: Tensor) -> Tensor:
        return self._jacobian.product(v)
