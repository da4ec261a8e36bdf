"""`Equilibrium`: a layer whose output is a fixed point of a function."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from resolvent.blocks.changing_modules import refuse_changing_modules
from resolvent.blocks.check_field import (
    can_check,
    check_row_alone,
    check_values,
    evaluate_on_copies,
    leaving_no_trace,
)
from resolvent.blocks.in_graph import InGraph
from resolvent.blocks.memory import own_tensor
from resolvent.blocks.warm_start import WarmStart
from resolvent.blocks.weights import frozen_weights, outside_inference
from resolvent.equation.adjoint import Adjoint
from resolvent.equation.failure import Policy
from resolvent.equation.function import Function, as_function
from resolvent.equation.solution import Solution
from resolvent.equation.solver import Plan
from resolvent.equation.stopping import StoppingRule
from resolvent.equation.structure import Structured, describe, structure_of
from resolvent.fields.samples_alone import SamplesAlone
from resolvent.solvers.resolve import resolve_with, solve_options


class Equilibrium(InGraph):
    """A layer whose output is a fixed point of f, given the inputs:

        z = f(z, *inputs),      for every sample of a batch.

    It is the resolvent of f(., *inputs) with b = 0 and tau = 1. Gradients flow to the inputs and to everything f
    depends on, exactly by default, and memory does not depend on the number of iterations. The value, gradient and
    step count of a sample do not depend on the other samples of its batch.

    All weights are those of f. They do not change during a pass: parametrized weights are computed once. The first call
    in training mode checks f, see `rs.check_field`; that takes three evaluations, and one of a single sample. Modules
    that change with each call, such as dropout, are refused in every call.

        layer = rs.Equilibrium(lambda z, x: torch.tanh(linear(z) + x))
        z = layer(x)

    Arguments:
        f: a module or a function, called as f(z, *inputs). It returns the like of z and treats each sample alone.
        z0: a function of the inputs that gives the first guess, and with it shape, dtype and structure of z, which may
            be a tensor (batch, *shape) or a structure of several; see `rs.resolve`. None takes zeros like the first
            input.
        solver: None takes `Auto()`.
        stopping: the tolerance for z - f(z, *inputs); None takes `Stopping()`.
        adjoint: how the equilibrium is differentiated; None takes `ImplicitAdjoint()`.
        on_failure: "raise", "warn", "ignore" or "mask" for samples that do not converge, see `rs.resolve`.
        rowwise: whether f treats each sample alone and all alike, so that it may be called with fewer or repeated rows
            of z and of all inputs. None proves it where possible, see `rs.Autonomous`; otherwise it is not assumed.
        warm: the number of samples in the data set, to start each solve from the last equilibrium of the sample; None
            starts each solve from z0. This needs memory for a state of each sample. A warm start changes the cost, and
            the result only within the tolerance if the equilibrium is unique. If f has several, it selects the one near
            the last.

    Reference: Bai, Kolter & Koltun, Deep equilibrium models, 2019.
    """

    def __init__(
        self,
        f: Callable[..., Any],
        z0: Callable[..., Structured] | None = None,
        *,
        solver: Plan | None = None,
        stopping: StoppingRule | None = None,
        adjoint: Adjoint | None = None,
        on_failure: Policy = "raise",
        rowwise: bool | None = None,
        warm: int | None = None,
    ) -> None:
        super().__init__()
        if not callable(f):
            raise ValueError(f"f must be a module or a function f(z, *inputs), got {f!r}.")
        if z0 is not None and not callable(z0):
            raise ValueError(
                f"z0 must be a function of the inputs, or None, got {describe(z0)}: give a state to a call, as in "
                "layer(x, z0=state)."
            )
        self.f, self.z0 = f, z0
        self.options = solve_options(solver, stopping, adjoint, on_failure)
        self._declared = rowwise is not None
        self._samples_alone = SamplesAlone(f, rowwise)
        self.warm = None if warm is None else WarmStart(warm)

    @property
    def rowwise(self) -> bool:
        """Whether f is known to treat each sample alone and all alike."""
        return self._samples_alone.holds_for(cast(nn.Module, self.f), self.f)

    def forward(self, *inputs: Any, z0: Structured | None = None, samples: Tensor | None = None) -> Structured:
        """The equilibrium.

        Arguments:
            inputs: of f, after z. Each tensor among them, also inside tuples, lists and dictionaries, is (batch, ...).
                What all samples share belongs into f.
            z0: the first guess of this call. No gradient flows into it.
            samples: (batch,), the numbers of the samples in the data set, for a warm start.

        Returns:
            Like z0.
        """
        if torch.compiler.is_dynamo_compiling():
            first = self._first_guess(inputs) if z0 is None else z0
            return self._in_graph("_value", tree_map(torch.detach, first), inputs, samples)
        return self._value(z0, inputs, samples)

    def _value(self, z0: Structured | None, inputs: tuple[Any, ...], samples: Tensor | None) -> Structured:
        """The equilibrium, as a tensor of its own: the backward pass reads that of the solution."""
        value = self.solution(*inputs, z0=z0, samples=samples).value
        return tree_map(lambda part: own_tensor(part, part, shared=True), value)

    def solution(self, *inputs: Any, z0: Structured | None = None, samples: Tensor | None = None) -> Solution:
        """The equilibrium with the statistics of its solve; the arguments are those of `forward`."""
        if samples is not None and self.warm is None:
            raise ValueError("samples are for warm starts: make the layer with warm=, the number of samples.")
        if isinstance(self.f, nn.Module):
            refuse_changing_modules(self.f)
        with outside_inference(inputs, z0) as (inputs, z0), frozen_weights(self.f) as f:
            first = self._first_guess(inputs) if z0 is None else z0
            structure = None if isinstance(first, Tensor) else structure_of(first, "z0")
            if structure is None:
                return self._solve(self._function(f, inputs, first), first.detach(), samples)
            z = structure.flatten(first, "z0").detach()
            function = structure.function(self._function(f, inputs, z))
            with structure.restored_errors():
                return structure.solution(self._solve(function, z, samples))

    def _first_guess(self, inputs: tuple[Any, ...]) -> Structured:
        if self.z0 is not None:
            return self.z0(*inputs)
        if not inputs:
            raise ValueError("there is no input whose shape z could take: give z0, a function of the inputs.")
        first = tree_map(lambda part: torch.zeros_like(part) if isinstance(part, Tensor) else part, inputs[0])
        if isinstance(first, Tensor) and not first.is_floating_point():
            raise ValueError(f"z cannot be like the first input, of {first.dtype}: give z0, a function of the inputs.")
        return first

    def _function(self, f: Callable[..., Any], inputs: tuple[Any, ...], z: Tensor) -> Function:
        """f(., *inputs) as the solvers call it. The tensors among the inputs follow the rows of z."""
        leaves, spec = tree_flatten(inputs)
        at = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
        for i in at:
            if leaves[i].shape[:1] != z.shape[:1]:
                raise ValueError(
                    f"each tensor among the inputs must have one row for each of the {len(z)} samples of z, got shape "
                    f"{tuple(leaves[i].shape)}: let f hold what all samples share."
                )

        plain = len(at) == len(leaves) == len(inputs)
        # The proof is for tensors with as many dimensions as z: with fewer they may meet other samples where they
        # broadcast.
        alike = plain and z.dim() >= self._samples_alone.least_rank and all(leaf.dim() == z.dim() for leaf in leaves)
        rowwise = self.rowwise and (self._declared or alike)

        def call(z: Any, *tensors: Tensor) -> Any:
            mine = leaves.copy()
            for i, tensor in zip(at, tensors, strict=True):
                mine[i] = tensor
            return f(z, *tree_unflatten(mine, spec))

        known = as_function(f)
        conditions = tuple(leaves[i] for i in at)
        split = known.split if plain else None
        return Function(f if plain else call, conditions, rowwise, known.linear_part, split=split)

    def _solve(self, function: Function, z: Tensor, samples: Tensor | None) -> Solution:
        self._check_once(function, z)
        numbers = None if samples is None or self.warm is None else self.warm.numbers(samples, z)
        start = z if numbers is None or self.warm is None else self.warm.guess(numbers, z)
        found = resolve_with(self.options, function, torch.zeros_like(z), 1.0, start)
        if numbers is not None and self.warm is not None:
            self.warm.keep(numbers, found.value, found.converged)
        return found

    def _check_once(self, function: Function, z: Tensor) -> None:
        """Checks f on the first call in training mode; in evaluation mode only a proof that it treats samples alone."""
        if self._checked or not (self.training or self._may_check_proof(z)) or len(z) < 2 or not can_check(z):
            return
        if self.training or (self._samples_alone.proved and function.rowwise):
            check = check_values if self.training else check_row_alone
            field, conditions = _AsField(function, self.f), list(function.conditions)
            with leaving_no_trace(z):
                # Not at z0: where states are zero, much that depends on other samples vanishes.
                check(field, evaluate_on_copies(field, z, conditions), conditions)
        self._checked, self._rows_checked = self.training, True

    def extra_repr(self) -> str:
        options = self.options
        warm = "" if self.warm is None else f", warm={self.warm.count}"
        return f"solver={options.solver}, adjoint={options.adjoint}, on_failure={options.on_failure!r}{warm}"


class _AsField:
    """f as `check_values` calls it, with its conditions in place of the time."""

    def __init__(self, function: Function, f: Callable[..., Any]) -> None:
        self.function, self.rowwise = function, function.rowwise
        self.__name__ = getattr(f, "__name__", type(f).__name__)

    def __call__(self, conditions: list[Tensor], z: Tensor) -> Tensor:
        return replace(self.function, conditions=tuple(conditions))(z)
