"""How wrong a gradient is that an adjoint gives, measured on the user's own problem."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from resolvent.equation.adjoint import Adjoint, ImplicitAdjoint
from resolvent.equation.solver import Solver
from resolvent.equation.stopping import Stopping
from resolvent.solvers.resolve import resolve


@dataclass(frozen=True)
class GradientError:
    """The deviation of a gradient g from the exact one, g*.

    Attributes:
        relative: |g - g*| / |g*| over all inputs together.
        cosine: of the angle between the two; positive means that g still points downhill.
        by_input: the relative error of each input alone.
    """

    relative: float
    cosine: float
    by_input: Mapping[str, float]


def gradient_error(
    adjoint: Adjoint,
    F: Callable[[Tensor], Tensor],
    b: Tensor,
    tau: float | Tensor,
    parameters: Iterable[Tensor] | None = None,
    cotangent: Tensor | None = None,
    solver: Solver | None = None,
    stopping: Stopping | None = None,
) -> GradientError:
    """Compares the gradient that `adjoint` gives with the exact one of `ImplicitAdjoint()`.

    Arguments:
        adjoint: e.g. `OneStepAdjoint()`.
        F, b, tau, solver, stopping: as for `resolve`.
        parameters: the tensors to differentiate by, beside b and tau; None takes F.parameters() if F is a module.
        cotangent: (batch, *shape), the gradient of a loss with respect to the solution; None draws a normal one, the
            same each time.

    Returns:
        A `GradientError`.
    """
    if parameters is None:
        parameters = F.parameters() if isinstance(F, nn.Module) else ()
    inputs = {f"parameters[{i}]": p for i, p in enumerate(parameters) if p.requires_grad}
    b = b.detach().requires_grad_()
    inputs["b"] = b
    if isinstance(tau, Tensor):
        tau = tau.detach().requires_grad_()
        inputs["tau"] = tau
    if cotangent is None:
        generator = torch.Generator().manual_seed(0)
        cotangent = torch.randn(b.shape, generator=generator, dtype=b.dtype).to(b.device)

    def gradients(by: Adjoint) -> dict[str, Tensor]:
        with torch.enable_grad():
            value = resolve(F, b, tau, solver=solver, stopping=stopping, adjoint=by).value
        found = torch.autograd.grad(value, list(inputs.values()), cotangent, materialize_grads=True)
        return {name: gradient.double() for name, gradient in zip(inputs, found, strict=True)}

    return _compare(gradients(adjoint), gradients(ImplicitAdjoint()))


def _compare(got: dict[str, Tensor], exact: dict[str, Tensor]) -> GradientError:
    by_input = {name: _ratio((got[name] - exact[name]).norm(), exact[name].norm()) for name in exact}
    g = torch.cat([got[name].flatten() for name in exact])
    e = torch.cat([exact[name].flatten() for name in exact])
    return GradientError(_ratio((g - e).norm(), e.norm()), _ratio(g @ e, g.norm() * e.norm()), by_input)


def _ratio(a: Tensor, b: Tensor) -> float:
    if b == 0:
        return 0.0 if a == 0 else math.inf
    return (a / b).item()
