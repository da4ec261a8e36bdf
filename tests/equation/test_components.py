"""`Stopping(atol=tensor)`: every component of a solution is within its own tolerance."""

import pytest
import torch
from torch import Tensor

import resolvent as rs
from resolvent.extending import Plan
from seeding import shifted

SIZES = torch.tensor([1.0, 1e-5, 1.0], dtype=torch.float64)


def robertson(y: Tensor) -> Tensor:
    a, b, c = y.unbind(1)
    slow, back, fast = 0.04 * a, 1e4 * b * c, 3e7 * b * b
    return torch.stack([back - slow, slow - back - fast, fast], 1)


def starts(count: int) -> Tensor:
    generator = torch.Generator().manual_seed(shifted(3))
    a = 0.5 + 0.5 * torch.rand(count, 1, generator=generator, dtype=torch.float64)
    return torch.cat([a, torch.zeros_like(a), 1 - a], 1)


def test_the_small_component_of_robertsons_reaction() -> None:
    """A step of backward Euler of length 1e-4: y2 is a few 1e-6, which a root mean square of 1e-6 does not see."""
    b = starts(5)
    exact = rs.resolve(robertson, b, 1e-4, solver=rs.Newton(), stopping=rs.Stopping(rtol=1e-14, atol=1e-15)).value
    by_norm = rs.resolve(robertson, b, 1e-4, solver=rs.Newton(), stopping=rs.Stopping(rtol=1e-6, atol=1e-6)).value
    each = rs.Stopping(rtol=1e-6, atol=1e-6 * SIZES)
    by_component = rs.resolve(robertson, b, 1e-4, solver=rs.Newton(), stopping=each)
    assert ((by_norm - exact).abs() / exact.abs()).max() > 1e-3
    torch.testing.assert_close(by_component.value, exact, rtol=1e-4, atol=0)
    residual = (by_component.value - b - 1e-4 * robertson(by_component.value)).abs()
    assert (residual <= 1e-6 * SIZES + 1e-6 * torch.maximum(b.abs(), by_component.value.abs())).all()


def scaled_cosine(w: Tensor) -> Tensor:
    """Components of sizes 1, 1e-5 and 1, each a contraction by itself."""
    return SIZES * torch.cos(w / SIZES)


@pytest.mark.parametrize(
    "solver", [rs.Picard(), rs.Anderson(), rs.Broyden(), rs.Newton(), rs.NewtonKrylov(), rs.Auto()]
)
def test_every_solver_meets_it(solver: Plan) -> None:
    b, tau = SIZES * starts(4), 0.7
    stopping = rs.Stopping(rtol=1e-8, atol=1e-8 * SIZES)
    solution = rs.resolve(scaled_cosine, b, tau, solver=solver, stopping=stopping)
    residual = (solution.value - b - tau * scaled_cosine(solution.value)).abs()
    within = 1e-8 * SIZES + 1e-8 * torch.maximum(b.abs(), solution.value.abs())
    assert (residual <= within).all()


@pytest.mark.parametrize("count", [7, 6000])
def test_a_sample_does_not_depend_on_its_batch(count: int) -> None:
    """6000 samples are enough to drop those that are done."""
    b = starts(count) * SIZES
    b[::2] *= 3.0
    stopping = rs.Stopping(rtol=1e-9, atol=1e-9 * SIZES)
    F = rs.Rowwise(scaled_cosine)
    together = rs.resolve(F, b, 0.7, solver=rs.Picard(), stopping=stopping)
    for i in (0, 1, count - 1):
        alone = rs.resolve(F, b[i : i + 1], 0.7, solver=rs.Picard(), stopping=stopping)
        assert alone.steps[0] == together.steps[i]
        torch.testing.assert_close(alone.value[0], together.value[i], rtol=1e-14, atol=0)
    assert together.steps.unique().numel() > 1


def test_equal_components_are_judged_alike_by_both() -> None:
    """With one component, the norm and the component are the same."""
    b = torch.linspace(-1, 1, 5, dtype=torch.float64)[:, None]
    number = rs.resolve(torch.cos, b, 0.7, stopping=rs.Stopping(rtol=1e-7, atol=1e-7))
    tensor = rs.resolve(torch.cos, b, 0.7, stopping=rs.Stopping(rtol=1e-7, atol=torch.full((1,), 1e-7)))
    assert torch.equal(number.value, tensor.value)
    assert torch.equal(number.steps, tensor.steps)


def test_stages_and_gradients() -> None:
    """A fully implicit scheme stacks its stages; the backward pass takes rtol."""
    field = lambda t, y: robertson(y)  # noqa: E731
    x = starts(3).requires_grad_()
    scheme = rs.schemes.RungeKutta(rs.schemes.tableaux.RADAU5)
    exact = rs.Block(field, scheme, 2, 1.0, solver=rs.Newton(), stopping=rs.Stopping(rtol=1e-13, atol=1e-16))
    block = rs.Block(field, scheme, 2, 1.0, solver=rs.Newton(), stopping=rs.Stopping(rtol=1e-8, atol=1e-9 * SIZES))
    torch.testing.assert_close(block(x), exact(x), rtol=1e-6, atol=0)
    for name in (block, exact):
        (g,) = torch.autograd.grad((name(x) / SIZES).sum(), x)
        assert g.isfinite().all()
    theta = rs.ThetaBlock(rs.Autonomous(robertson, rowwise=True), stopping=rs.Stopping(atol=1e-9 * SIZES), horizon=0.1)
    assert theta(x).isfinite().all()  # "auto" solves layer by layer


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: rs.Stopping(atol=torch.tensor([1e-3, -1e-3])), "atol as a tensor must have finite numbers"),
        (lambda: rs.Stopping(atol=torch.tensor([1, 2])), "atol as a tensor must have finite numbers"),
        (lambda: rs.Stopping(rtol=0.0, atol=torch.tensor([1e-3, 0.0])), "both 0"),
        (lambda: rs.FixedSteps(3, atol=torch.ones(2)), "takes a number as atol"),
        (
            lambda: rs.resolve(torch.cos, torch.zeros(2, 3), 1.0, stopping=rs.Stopping(atol=torch.ones(2))),
            "the shape of",
        ),
        (
            lambda: rs.ThetaBlock(
                rs.Autonomous(robertson, rowwise=True), mode="parallel", stopping=rs.Stopping(atol=1e-9 * SIZES)
            ),
            "takes one number as the absolute tolerance",
        ),
    ],
)
def test_wrong_tolerances_are_refused(make: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()  # type: ignore[operator]
