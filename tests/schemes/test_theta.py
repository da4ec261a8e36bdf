"""The theta layer: what it solves, how accurately, and what it refuses."""

import pytest
import torch
from torch import Tensor

import resolvent as rs
from resolvent.equation.norms import rms
from resolvent.schemes import Carry, Interval, Theta
from resolvent.solvers.resolve import solve_options
from schemes.catalogue import SHARP, Linear


class Stiff:
    """A nonlinear field with slopes of -200."""

    rowwise = True

    def __call__(self, t: float | Tensor, y: Tensor) -> Tensor:
        return -200 * y + 10 * torch.sin(3 * y) + t


def layer(
    theta: float | Tensor, form: str, field: object, x: Tensor, h: float = 0.7, options: object = SHARP
) -> Tensor:
    return Theta(theta, form).step(Interval(field, 0.2, h, options), Carry((x,))).state


def field(t: float | Tensor, y: Tensor) -> Tensor:
    return torch.sin(2 * y) - y + t * y.roll(1, dims=1)


@pytest.mark.parametrize("theta", [0.1, 0.5, 0.8, 1.0])
def test_equations_of_both_forms_hold(theta: float) -> None:
    x, t, h = torch.randn(6, 3), 0.2, 0.7
    y = layer(theta, "midpoint", field, x)
    torch.testing.assert_close(y, x + h * field(t + theta * h, (1 - theta) * x + theta * y), atol=1e-12, rtol=0)
    y = layer(theta, "trapezoid", field, x)
    slopes = (1 - theta) * field(t, x) + theta * field(t + h, y)
    torch.testing.assert_close(y, x + h * slopes, atol=1e-12, rtol=0)


def test_zero_is_the_residual_layer_to_the_last_bit() -> None:
    x = torch.randn(6, 3)
    for form in ("midpoint", "trapezoid"):
        assert torch.equal(layer(0.0, form, field, x), x + 0.7 * field(0.2, x))
        assert torch.equal(layer(0, form, field, x), x + 0.7 * field(0.2, x))


def test_forms_agree_on_linear_fields_and_not_on_others() -> None:
    A, x, theta, h = torch.randn(3, 3), torch.randn(6, 3), 0.3, 0.7
    expected = x @ torch.linalg.solve(torch.eye(3) - theta * h * A, torch.eye(3) + (1 - theta) * h * A).T
    for form in ("midpoint", "trapezoid"):
        torch.testing.assert_close(layer(theta, form, Linear(A), x), expected, atol=1e-12, rtol=0)
    assert (layer(theta, "midpoint", field, x) - layer(theta, "trapezoid", field, x)).abs().max() > 1e-3


def test_forms_are_conjugate() -> None:
    """Midpoint = A o trapezoid o A^{-1} with A = I - theta h F, for a field that does not depend on time."""
    theta, h = 0.4, 0.7
    x = torch.randn(6, 3)

    def autonomous(t: float | Tensor, y: Tensor) -> Tensor:
        return torch.sin(2 * y) - y

    def A(y: Tensor) -> Tensor:
        return y - theta * h * autonomous(0.0, y)

    through = A(layer(theta, "trapezoid", autonomous, x))
    torch.testing.assert_close(layer(theta, "midpoint", autonomous, A(x)), through, atol=1e-12, rtol=0)


@pytest.mark.parametrize("theta", [1e-4, 1e-2, 0.5, 1.0])
@pytest.mark.parametrize("rtol", [1e-3, 1e-8])
@pytest.mark.parametrize("kind", [Stiff(), field])
def test_tolerance_holds_for_the_equation_of_the_layer(theta: float, rtol: float, kind: object) -> None:
    """Not only for that of the stage, whose residual is theta times smaller."""
    x, h = torch.randn(50, 3), 0.05
    options = solve_options(
        rs.Picard() if theta < 0.02 else rs.Newton(), rs.Stopping(rtol=rtol, atol=0.0), None, "raise"
    )
    y = layer(theta, "midpoint", kind, x, h, options)
    residual = rms(y - x - h * kind(0.2 + theta * h, (1 - theta) * x + theta * y))
    stage = (1 - theta) * x + theta * y
    assert (residual <= 1.01 * rtol * torch.maximum(rms(x), rms(stage)) + 1e-12).all()


def test_tolerance_is_never_below_rounding() -> None:
    """A thousandth of the default tolerance of single precision is out of reach for most of many samples."""
    x = 10 * torch.randn(2000, 3, dtype=torch.float32)
    y = layer(1e-3, "midpoint", field, x, options=solve_options(rs.Newton(), None, None, "raise"))
    assert y.dtype == torch.float32
    assert y.isfinite().all()


def test_order_is_two_only_at_one_half() -> None:
    assert [Theta(theta).order for theta in (0.0, 0.3, 0.5, 1.0)] == [1, 1, 2, 1]
    assert Theta(torch.tensor(0.5)).order == 2


@pytest.mark.parametrize("theta", [-0.1, 1.5, float("nan"), "half", None])
def test_refuses_theta_out_of_range(theta: object) -> None:
    with pytest.raises(ValueError, match=r"theta must lie in \[0, 1\], got"):
        Theta(theta)


@pytest.mark.parametrize("theta", [0.0, 1.2, [0.5, 0.5]])
def test_refuses_tensors_out_of_range(theta: object) -> None:
    with pytest.raises(ValueError, match=r"must be 0-d and lie in \(0, 1\]"):
        Theta(torch.tensor(theta))


def test_refuses_unknown_forms() -> None:
    with pytest.raises(ValueError, match=r"form must be one of .*, got 'euler'"):
        Theta(0.5, "euler")


def test_unconditional_stability_of_dissipative_fields() -> None:
    """theta >= 1/2 never moves two states apart, however large the step; the explicit layer does."""

    def dissipative(t: float | Tensor, y: Tensor) -> Tensor:
        return -(y**3) - y + torch.cat((-5 * y[:, 1:], 5 * y[:, :1]), dim=1)

    x, other = torch.randn(20, 2), torch.randn(20, 2)
    distance = (x - other).norm(dim=1)
    for h in (0.1, 1.0, 100.0):
        for theta in (0.5, 0.75, 1.0):
            y, moved = (layer(theta, "midpoint", dissipative, start, h) for start in (x, other))
            assert ((y - moved).norm(dim=1) <= distance * (1 + 1e-9)).all()
    y, moved = (layer(0.0, "midpoint", dissipative, start, 1.0) for start in (x, other))
    assert ((y - moved).norm(dim=1) > distance).any()
