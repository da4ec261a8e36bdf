"""Passes without a graph: the backward pass recomputes their steps from stored or reconstructed states.

`torch.utils.checkpoint` is not suitable. It recomputes whenever a saved tensor is unpacked, and an implicit layer does
that for every product with its Jacobian. The Function in this file recomputes every step exactly once. The state at the
end of the step is known by then, and so are the solutions of its solves: no solve is repeated.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from resolvent.blocks.pass_ import Pass
from resolvent.blocks.reconstruction import ADVICE, Reconstruction
from resolvent.blocks.weights import weights_of, with_weights
from resolvent.equation.solution import Solution
from resolvent.errors import ConvergenceError, DerivativeOrderError, ReconstructionError
from resolvent.schemes.scheme import Carry, Step

T = TypeVar("T")


def run(pass_: Pass, x: Tensor, reconstruction: Reconstruction | None = None) -> list[Step]:
    """Makes the steps of a pass without a graph. The result can be differentiated once.

    Arguments:
        pass_: the steps, with a field whose weights are frozen.
        x: (batch, *shape), the first state.
        reconstruction: recovers all states from the last one; None keeps them instead.

    Returns:
        The steps; with `reconstruction`, only the last one.
    """
    # The backward pass must use the same parameters and buffers, including normalised weights, which are not computed
    # again.
    weights = weights_of(pass_.field)
    # Without weights: autograd saves them, and detects in-place changes.
    bare = dataclasses.replace(pass_, field=with_weights(pass_.field, dict.fromkeys(weights)))
    replay = Replay(bare, reconstruction, tuple(pass_.tensors), tuple(weights), _autocast(x.device.type))
    inputs = (x, *pass_.tensors.values(), *weights.values())
    solutions: list[tuple[Solution, ...]] = []
    states: tuple[Tensor, ...] = _Recomputed.apply(pass_, replay, solutions, *inputs)
    return [Step(Carry((state,)), solves) for state, solves in zip(states, solutions, strict=True)]


@dataclasses.dataclass(frozen=True)
class Replay:
    """A pass to be recomputed.

    Attributes:
        pass_: the steps, with a field that has no weights.
        reconstruction: recovers the states from the last one; None if they are stored.
        numbers: names of the pass's tensors.
        weights: names of the field's parameters and buffers.
        autocast: restores the autocast mode of the forward pass.
    """

    pass_: Pass
    reconstruction: Reconstruction | None
    numbers: tuple[str, ...]
    weights: tuple[str, ...]
    autocast: Callable[[], torch.autocast]

    def again(self, tensors: Sequence[Tensor], action: Callable[[Pass], T]) -> T:
        """Calls `action` with the pass that has `tensors`, numbers then weights."""
        count = len(self.numbers)
        pass_ = self.pass_.with_tensors(dict(zip(self.numbers, tensors[:count], strict=True)))
        field = with_weights(pass_.field, dict(zip(self.weights, tensors[count:], strict=True)))
        with self.autocast():
            return action(dataclasses.replace(pass_, field=field))

    def back(self, tensors: Sequence[Tensor], n: int, end: Tensor, x: Tensor) -> Tensor:
        """The state at the start of the n-th step, from the one at its end; x is the state at the start of the pass."""
        assert self.reconstruction is not None
        with torch.no_grad():
            try:
                state = self.again(tensors, lambda pass_: pass_.back(n, end))
            except ConvergenceError as error:
                raise ReconstructionError(f"the inverse of step {n} could not be solved. {ADVICE}") from error
            self.reconstruction.check(n, state, end, x)
        # The input is stored; it was recovered only for the check.
        return x if n == 0 else state


class _Recomputed(torch.autograd.Function):
    """Maps the input to the states; differentiable in the input, the numbers of the pass and the field's weights."""

    @staticmethod
    def forward(
        ctx: Any, pass_: Pass, replay: Replay, solutions: list[tuple[Solution, ...]], x: Tensor, *tensors: Tensor
    ) -> tuple[Tensor, ...]:
        carries: list[Carry] = []
        for step in pass_.strategy.steps(pass_, x):
            if replay.reconstruction is not None:
                replay.reconstruction.note(step.state)
                carries.clear()
                solutions.clear()
            carries.append(step.carry)
            solutions.append(step.solutions)
        ctx.replay, ctx.count = replay, len(tensors)
        ctx.layout = [(len(carry.states), len(carry.slopes)) for carry in carries]
        ctx.save_for_backward(x, *tensors, *(tensor for carry in carries for tensor in _flat(carry)))
        return tuple(carry.states[0] for carry in carries)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor | None, ...]:
        replay: Replay = ctx.replay
        x, *tensors = ctx.saved_tensors[: 1 + ctx.count]
        ends = _restore(ctx.saved_tensors[1 + ctx.count :], ctx.layout)
        _refuse_hidden_dependence(replay, x, tensors)

        steps = replay.pass_.num_steps
        arriving: list[Tensor | None] = [None] * (steps - len(cotangents)) + list(cotangents)
        sums: list[Tensor | None] = [None] * len(tensors)
        pulled: list[Tensor | None] = [None] * len(_flat(ends[-1]))
        end = ends[-1]
        for n in reversed(range(steps)):
            if replay.reconstruction is None:
                start = ends[n - 1] if n > 0 else Carry((x,))
            else:
                start = Carry((replay.back(tensors, n, end.states[0], x),))
            pulled = [_add(pulled[0], arriving[n]), *pulled[1:]]
            pulled, grads = _pull(replay, n, start, end, pulled, tensors)
            sums = [_add(total, grad) for total, grad in zip(sums, grads, strict=True)]
            end = start
        grads = [pulled[0], *sums]
        if torch.is_grad_enabled():
            grads = [None if grad is None else _Once.apply(grad, x, *tensors, *cotangents) for grad in grads]
        return None, None, None, *grads


class _Once(torch.autograd.Function):
    """Returns the gradient unchanged; differentiating it with respect to anything raises."""

    @staticmethod
    def forward(ctx: Any, grad: Tensor, *dependence: Tensor) -> Tensor:
        return grad.view_as(grad)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> Any:
        raise DerivativeOrderError(
            "A recomputed pass has first derivatives only, but a second one was requested: take memory='store' with "
            "adjoint=rs.ImplicitAdjoint(order=2)."
        )


def _pull(
    replay: Replay, n: int, start: Carry, end: Carry, cotangents: Sequence[Tensor | None], tensors: Sequence[Tensor]
) -> tuple[list[Tensor | None], list[Tensor | None]]:
    """Recomputes the n-th step and pulls the cotangents of its end back to its start and to the tensors."""
    carry = Carry(*(tuple(tensor.detach().requires_grad_() for tensor in part) for part in start))
    leaves = [tensor.detach().requires_grad_(tensor.requires_grad) for tensor in tensors]
    with torch.enable_grad():
        step = replay.again(leaves, lambda pass_: pass_.repeat(n, carry, end.states[0]))
    pairs = [(o, g) for o, g in zip(_flat(step.carry), cotangents, strict=True) if g is not None and o.requires_grad]
    inputs = [*_flat(carry), *(leaf for leaf in leaves if leaf.requires_grad)]
    grads = iter(torch.autograd.grad([o for o, _ in pairs], inputs, [g for _, g in pairs], allow_unused=True))
    return [next(grads) for _ in _flat(carry)], [next(grads) if leaf.requires_grad else None for leaf in leaves]


def _refuse_hidden_dependence(replay: Replay, x: Tensor, tensors: Sequence[Tensor]) -> None:
    """Raises if F requires a gradient when all known inputs are detached: that gradient would be lost."""
    with torch.enable_grad():
        image = replay.again([t.detach() for t in tensors], lambda pass_: pass_.interval(0).evaluate(0.0, x.detach()))
    if image.requires_grad:
        raise ValueError(
            "the field depends on a tensor that requires a gradient and is not one of its parameters (a closed-over or "
            "computed tensor); recomputation would lose that gradient: take memory='store', or make the tensor a "
            "parameter."
        )


def _autocast(device: str) -> Callable[[], torch.autocast]:
    enabled, dtype = torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)
    return lambda: torch.autocast(device, dtype=dtype, enabled=enabled)


def _flat(carry: Carry) -> tuple[Tensor, ...]:
    return (*carry.states, *carry.slopes)


def _restore(tensors: Sequence[Tensor], layout: Sequence[tuple[int, int]]) -> list[Carry]:
    remaining = iter(tensors)
    return [Carry(*(tuple(next(remaining) for _ in range(count)) for count in counts)) for counts in layout]


def _add(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    if a is None or b is None:
        return b if a is None else a
    return a + b
