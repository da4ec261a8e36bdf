"""Equations at which Newton's method was caught in real trainings.

Four are from two moons, five layers in the plane with theta = 1 and free fields; four from an equilibrium model
z = tanh(W z + u + c) on digits; two from the perceptron branch of a transformer.
Each has the weights of that moment. They were recorded in float32.
"""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy
import pytest
import torch
from torch import Tensor, nn

import resolvent as rs


class Equation(NamedTuple):
    function: Callable[[Tensor], Tensor]
    b: Tensor
    tau: float


def _moons(weights: list[Tensor]) -> Callable[[Tensor], Tensor]:
    field = rs.fields.MLP(2, 16, 2).to(weights[0].dtype)
    for parameter, value in zip(field.parameters(), weights, strict=True):
        parameter.data = value
    return lambda w: field(0.0, w)


def _perceptron(weights: list[Tensor]) -> Callable[[Tensor], Tensor]:
    norm_weight, norm_bias, *layers = weights

    def function(w: Tensor) -> Tensor:
        normal = nn.functional.layer_norm(w, w.shape[-1:], norm_weight, norm_bias)
        return nn.functional.linear(nn.functional.gelu(nn.functional.linear(normal, *layers[:2])), *layers[2:])

    return function


def _recorded(dtype: torch.dtype) -> dict[str, Equation]:
    equations = {}
    with numpy.load(Path(__file__).parent / "failing_equations.npz") as file:
        for name in sorted({key.rsplit("/", 1)[0] for key in file.files}):
            parts = {key.rsplit("/", 1)[1]: torch.tensor(file[key]).to(dtype) for key in file.files if name in key}
            weights = [parts[key] for key in sorted(parts) if key.startswith("w")]
            b, tau = parts["b"][None], float(parts["tau"])
            if "moons" in name:
                equations[name] = Equation(_moons(weights), b, tau)
            elif "transformer" in name:
                equations[name] = Equation(_perceptron(weights), b, tau)
            else:
                inner, u = weights, b
                function = lambda z, inner=inner, u=u: torch.tanh(nn.functional.linear(z, *inner) + u)  # noqa: E731
                equations[name] = Equation(function, torch.zeros_like(b), tau)
    return equations


EQUATIONS = {dtype: _recorded(dtype) for dtype in (torch.float32, torch.float64)}

NAMES = list(EQUATIONS[torch.float32])
SOLVED = [(name, solver) for name in NAMES for solver in (rs.solvers.Homotopy(), rs.Auto())]
# The flow circles around the solutions of the transformer.
SOLVED += [(name, rs.PseudoTransient()) for name in NAMES if "transformer" not in name]


@pytest.mark.parametrize("dtype", EQUATIONS, ids=str)
@pytest.mark.parametrize(("name", "solver"), SOLVED, ids=str)
def test_continuation_and_the_default_solve_them(name: str, solver: rs.Auto, dtype: torch.dtype) -> None:
    equation = EQUATIONS[dtype][name]
    solution = rs.resolve(equation.function, equation.b, equation.tau, solver=solver)
    w = solution.value
    defect = w - equation.b - equation.tau * equation.function(w)
    rtol = 1e-5 if dtype == torch.float32 else 1e-8
    assert defect.norm() <= rtol * w.norm()


@pytest.mark.parametrize("solver", [rs.Newton(), rs.Anderson(), rs.NewtonKrylov(), rs.LBFGS()], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_who_fails_says_so(name: str, solver: rs.Newton) -> None:
    equation = EQUATIONS[torch.float64][name]
    solution = rs.resolve(equation.function, equation.b, equation.tau, solver=solver, on_failure="ignore")
    w = solution.value
    defect = w - equation.b - equation.tau * equation.function(w)
    assert bool(solution.converged) == bool(defect.norm() <= 1e-8 * max(w.norm(), equation.b.norm()))
