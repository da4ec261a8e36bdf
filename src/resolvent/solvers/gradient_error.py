"""`gradient_error`: the error of an adjoint's gradient on the user's problem."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from resolvent.equation.adjoint import Adjoint, ImplicitAdjoint
from resolvent.equation.function import as_function
from resolvent.equation.modes import refuse_transforms, without_inference_tensors
from resolvent.equation.solver import Solver
from resolvent.equation.stopping import Stopping
from resolvent.equation.structure import Structured, structure_of
from resolvent.equation.torch_func import outside_inference
from resolvent.solvers.resolve import resolve


@dataclass(frozen=True)
class GradientComparison:
    """The deviation of a gradient g from the exact one, g*.

    Attributes:
        relative: |g - g*| / |g*| over all inputs together.
        cosine: of the angle between g and g*; if positive, -g is a descent direction.
        by_input: the relative error for each input.
    """

    relative: float
    cosine: float
    by_input: Mapping[str, float]


def gradient_error(
    adjoint: Adjoint,
    F: Callable[[Any], Any],
    b: Structured,
    tau: float | Tensor,
    parameters: Iterable[Tensor] | None = None,
    cotangent: Structured | None = None,
    solver: Solver | None = None,
    stopping: Stopping | None = None,
) -> GradientComparison:
    """Compares the gradient of `adjoint` with the exact one of `ImplicitAdjoint()`.

    Arguments:
        adjoint: e.g. `OneStepAdjoint()`.
        F, b, tau, solver, stopping: as for `resolve`.
        parameters: the tensors to differentiate by, besides b and tau; None takes F.parameters() if F is a module.
        cotangent: like b, the gradient of a loss with respect to the solution; None draws a normal one with a fixed
            seed.

    Returns:
        A `GradientComparison`.
    """
    refuse_transforms("gradient_error")
    if parameters is None:
        parameters = F.parameters() if isinstance(F, nn.Module) else ()
    if not isinstance(b, Tensor):
        structure = structure_of(b, "b")
        cotangent = None if cotangent is None else structure.flatten(cotangent, "cotangent")
        F, b = structure.function(as_function(F)), structure.flatten(b, "b")
    inputs = {f"parameters[{i}]": p for i, p in enumerate(parameters) if p.requires_grad}
    made_in_inference = [name for name, p in inputs.items() if p.is_inference()]
    if made_in_inference:
        raise ValueError(f"{made_in_inference} were made in inference mode and have no gradient: make them outside.")
    # Gradients are needed in every mode of the caller.
    with torch.inference_mode(False), torch.enable_grad():
        function = without_inference_tensors(F)
        inputs["b"] = b = outside_inference(b).detach().requires_grad_()
        if isinstance(tau, Tensor):
            inputs["tau"] = tau = outside_inference(tau).detach().requires_grad_()
        g = _normal_like(b) if cotangent is None else outside_inference(cotangent)

        def gradients(by: Adjoint) -> dict[str, Tensor]:
            value = resolve(function, b, tau, solver=solver, stopping=stopping, adjoint=by).value
            found = torch.autograd.grad(value, list(inputs.values()), g, materialize_grads=True)
            return {name: gradient.double() for name, gradient in zip(inputs, found, strict=True)}

        return _compare(gradients(adjoint), gradients(ImplicitAdjoint()))


def _normal_like(b: Tensor) -> Tensor:
    """Normal numbers in the shape of b, with a fixed seed."""
    return torch.randn(b.shape, generator=torch.Generator().manual_seed(0), dtype=b.dtype).to(b.device)


def _compare(got: dict[str, Tensor], exact: dict[str, Tensor]) -> GradientComparison:
    by_input = {name: _ratio((got[name] - exact[name]).norm(), exact[name].norm()) for name in exact}
    g = torch.cat([got[name].flatten() for name in exact])
    e = torch.cat([exact[name].flatten() for name in exact])
    return GradientComparison(_ratio((g - e).norm(), e.norm()), _ratio(g @ e, g.norm() * e.norm()), by_input)


def _ratio(a: Tensor, b: Tensor) -> float:
    if b == 0:
        return 0.0 if a == 0 else math.inf
    return (a / b).item()
