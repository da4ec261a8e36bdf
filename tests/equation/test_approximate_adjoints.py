"""Phantom gradients and SHINE: what they compute, and that a sample's gradient is its own."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import resolvent as rs
from resolvent.adjoints import PhantomAdjoint, ShineAdjoint
from resolvent.extending import Adjoint

CLOSE = rs.Stopping(rtol=1e-12, atol=1e-13, max_steps=2000)


def weight(n: int, norm: float = 0.8) -> Tensor:
    W = torch.randn(n, n)
    return (norm * W / torch.linalg.matrix_norm(W, 2)).requires_grad_()


def gradients(adjoint: Adjoint, W: Tensor, b: Tensor, solver: Any = None) -> tuple[Tensor, Tensor]:
    """By b and by the weight, of a sum with weights of its own for every entry."""
    leaf = b.clone().requires_grad_()
    value = rs.resolve(lambda w: torch.tanh(w @ W.mT), leaf, 1.0, solver=solver, stopping=CLOSE, adjoint=adjoint).value
    by_b, by_weight = torch.autograd.grad((value * torch.cos(torch.arange(b.shape[1]) + b)).sum(), (leaf, W))
    return by_b, by_weight


@pytest.mark.parametrize("damping", [0.3, 1.0])
def test_phantom_gradients_are_those_of_damped_steps_from_the_solution(damping: float) -> None:
    W, b = weight(5), torch.randn(3, 5)
    with torch.no_grad():
        solution = rs.resolve(lambda w: torch.tanh(w @ W.mT), b, 1.0, stopping=CLOSE).value
    leaf = b.clone().requires_grad_()
    w = solution
    for _ in range(4):
        w = (1 - damping) * w + damping * (leaf + torch.tanh(w @ W.mT))
    expected = torch.autograd.grad((w * torch.cos(torch.arange(5) + b)).sum(), (leaf, W))
    torch.testing.assert_close(gradients(PhantomAdjoint(4, damping), W, b), expected)


@pytest.mark.parametrize(
    ("phantom", "same"),
    [(PhantomAdjoint(1, 1.0), rs.OneStepAdjoint()), (PhantomAdjoint(4, 1.0), rs.adjoints.NeumannAdjoint(3))],
)
def test_phantom_gradients_contain_the_one_step_and_the_neumann_series(phantom: Adjoint, same: Adjoint) -> None:
    W, b = weight(5), torch.randn(3, 5)
    torch.testing.assert_close(gradients(phantom, W, b), gradients(same, W, b))


def test_more_steps_approach_the_gradient() -> None:
    W, b = weight(5), torch.randn(3, 5)

    def error(steps: int) -> float:
        F: Callable[[Tensor], Tensor] = lambda w: torch.tanh(w @ W.mT)  # noqa: E731
        return rs.analysis.gradient_error(PhantomAdjoint(steps), F, b, 1.0, [W], stopping=CLOSE).relative

    errors = [error(steps) for steps in (1, 4, 16, 64)]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 1e-3 < errors[0]


def test_damping_helps_where_slopes_are_steep() -> None:
    """For F(w) = -1.5 w the series diverges; damped by a half it contracts by 1/4."""
    b = torch.ones(1, 1, requires_grad=True)

    def gradient(damping: float) -> float:
        value = rs.resolve(lambda w: -1.5 * w, b, 1.0, adjoint=PhantomAdjoint(30, damping)).value
        return torch.autograd.grad(value.sum(), b)[0].item()

    assert gradient(0.5) == pytest.approx(1 / 2.5)
    assert abs(gradient(1.0)) > 1e3


@pytest.mark.parametrize("rtol", [1e-10, 0.2])
def test_shine_meets_its_tolerance(rtol: float) -> None:
    """The residual that it reports, and the true one of the system with A^T."""
    W, b = weight(40), torch.randn(6, 40)
    seen: list[rs.Solution] = []
    leaf = b.clone().requires_grad_()
    adjoint = ShineAdjoint(rtol, callback=seen.append)
    value = rs.resolve(
        lambda w: torch.tanh(w @ W.mT), leaf, 1.0, solver=rs.Broyden(), stopping=CLOSE, adjoint=adjoint
    ).value
    g = torch.randn(6, 40)
    (u,) = torch.autograd.grad(value, leaf, g)
    slopes = 1 - (value.detach() @ W.detach().mT).tanh().square()
    A = torch.eye(40) - slopes[:, :, None] * W.detach()
    residual = g - (A.mT @ u[:, :, None]).squeeze(2)
    assert (residual.norm(dim=1) <= 1.01 * rtol * g.norm(dim=1)).all()
    torch.testing.assert_close(seen[0].residual * 40**0.5, residual.norm(dim=1), rtol=1e-6, atol=1e-12)


def test_shine_is_exact_with_a_small_tolerance() -> None:
    W, b = weight(40), torch.randn(6, 40)
    exact = gradients(rs.ImplicitAdjoint(), W, b, rs.Broyden())
    torch.testing.assert_close(gradients(ShineAdjoint(1e-12), W, b, rs.Broyden()), exact, rtol=1e-9, atol=1e-9)


def test_shine_needs_no_solve_where_the_forward_pass_has_learned_all() -> None:
    """A linear equation of one unknown: Broyden's correction is the whole inverse."""
    seen: list[rs.Solution] = []
    b = torch.randn(3, 1, requires_grad=True)
    adjoint = ShineAdjoint(1e-10, solver=rs.GMRES(), callback=seen.append)
    value = rs.resolve(lambda w: -3.0 * w, b, 0.5, solver=rs.Broyden(), stopping=CLOSE, adjoint=adjoint).value
    (u,) = torch.autograd.grad(value.sum(), b)
    assert int(seen[0].steps.max()) == 0
    torch.testing.assert_close(u, torch.full((3, 1), 1 / 2.5))


def test_the_gradient_by_shine_does_not_depend_on_the_batch() -> None:
    """Samples that take many steps fill the memory of the method several times; those that are done keep theirs."""
    W, b = weight(40, 0.99).detach(), torch.randn(4, 40)
    sizes = torch.tensor([[1.0], [0.05], [0.2], [1.0]])

    def solve(rows: slice, adjoint: Adjoint) -> tuple[rs.Solution, Tensor]:
        leaf = b[rows].clone().requires_grad_()

        def F(w: Tensor) -> Tensor:
            return sizes[rows] * torch.tanh(w @ W.mT)

        # The last corrections are quotients of differences: those of a loose solve are less rounded.
        found = rs.resolve(F, leaf, 1.0, solver=rs.Broyden(memory=4), stopping=rs.Stopping(1e-8), adjoint=adjoint)
        (gradient,) = torch.autograd.grad((found.value * torch.cos(torch.arange(40) + b[rows])).sum(), leaf)
        return found, gradient

    together, gradient = solve(slice(0, 4), ShineAdjoint(0.7))
    assert int(together.steps.max()) > int(together.steps.min()) + 12
    _, exact = solve(slice(0, 4), rs.ImplicitAdjoint())
    assert ((gradient - exact).norm(dim=1) > 1e-2 * exact.norm(dim=1)).all()
    for i in range(4):
        _, alone = solve(slice(i, i + 1), ShineAdjoint(0.7))
        torch.testing.assert_close(alone[0], gradient[i], rtol=1e-5, atol=1e-5)


def test_shine_after_its_solution_was_reused() -> None:
    W, b = weight(40), torch.randn(4, 40)
    F: Callable[[Tensor], Tensor] = lambda w: torch.tanh(w @ W.mT)  # noqa: E731
    expected, _ = gradients(ShineAdjoint(0.5), W, b, rs.Broyden())
    leaf = b.clone().requires_grad_()
    first = rs.resolve(F, leaf, 1.0, solver=rs.Broyden(), stopping=CLOSE, adjoint=ShineAdjoint(0.5))
    rs.resolve(F, -b, 1.0, solver=rs.Broyden(), reuse=first)
    (found,) = torch.autograd.grad((first.value * torch.cos(torch.arange(40) + b)).sum(), leaf)
    torch.testing.assert_close(found, expected)


def test_shine_in_forward_mode() -> None:
    W, b = weight(5), torch.randn(3, 5)
    v = torch.randn(3, 5)

    def tangent(adjoint: Adjoint) -> Tensor:
        with torch.autograd.forward_ad.dual_level():
            dual = torch.autograd.forward_ad.make_dual(b, v)
            F: Callable[[Tensor], Tensor] = lambda w: torch.tanh(w @ W.detach().mT)  # noqa: E731
            value = rs.resolve(F, dual, 1.0, solver=rs.Broyden(), stopping=CLOSE, adjoint=adjoint).value
            return torch.autograd.forward_ad.unpack_dual(value).tangent  # type: ignore[return-value]

    torch.testing.assert_close(tangent(ShineAdjoint(1e-12)), tangent(rs.ImplicitAdjoint()), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("adjoint", [PhantomAdjoint(), ShineAdjoint()])
def test_second_derivatives_raise(adjoint: Adjoint) -> None:
    b = torch.randn(2, 3, requires_grad=True)
    value = rs.resolve(torch.cos, b, 0.5, solver=rs.Broyden(), adjoint=adjoint).value
    (gradient,) = torch.autograd.grad(value.sum(), b, create_graph=True)
    with pytest.raises(rs.errors.DerivativeOrderError):
        gradient.sum().backward()


WRONG: dict[str, Callable[[], Any]] = {
    "steps counts fixed-point steps and must be 1 or more, got 0": lambda: PhantomAdjoint(0),
    "damping must be above 0 and at most 1, got 1.5": lambda: PhantomAdjoint(damping=1.5),
    "rtol must be between 0 and 1, got 1": lambda: ShineAdjoint(1),
    "solver must be a solver such as": lambda: ShineAdjoint(solver="gmres"),  # type: ignore[arg-type]
    r"needs a forward solver that approximates the inverse, solver=rs\.Broyden\(\), got Auto": lambda: rs.resolve(
        torch.cos, torch.ones(2, 2), 0.5, adjoint=ShineAdjoint()
    ),
    "needs a forward solver that approximates the inverse, .* got Fallback": lambda: rs.resolve(
        torch.cos, torch.ones(2, 2), 0.5, adjoint=ShineAdjoint(), solver=rs.Fallback((rs.Broyden(), rs.Newton()))
    ),
    r"does not work inside torch\.func": lambda: torch.func.vmap(
        lambda b: rs.resolve(torch.cos, b, 0.5, adjoint=ShineAdjoint(), solver=rs.Broyden()).value
    )(torch.ones(2, 2, 2)),
}


@pytest.mark.parametrize(("message", "call"), WRONG.items())
def test_wrong_arguments_are_named(message: str, call: Callable[[], Any]) -> None:
    with pytest.raises(ValueError, match=message):
        call()
