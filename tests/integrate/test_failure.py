"""Failure: each sample has a status of its own, and nothing is silently NaN."""

from typing import Any

import pytest
import torch
from torch import Tensor

import resolvent as rs
from resolvent.errors import ConvergenceWarning
from resolvent.integrate import IntegrationStatus as Status
from resolvent.schemes import tableaux

IMPLICIT = tableaux.KVAERNO5
EXPLICIT = tableaux.TSITOURAS5


def growth(t: Tensor, y: Tensor) -> Tensor:
    """y' = y^2 from y0 > 0 is infinite at t = 1 / y0."""
    return y * y


def only_positive(t: Tensor, y: Tensor) -> Tensor:
    """y' = -1 while y > 0; NaN beyond."""
    return torch.where(y > 0, -1.0, torch.nan)


def failing(field: Any, y0: list[float], end: float, scheme: Any, **options: Any) -> rs.integrate.Integration:
    """The result for samples with one component, of which some fail."""
    start = torch.tensor(y0)[:, None]
    result = rs.odeint(field, start, [0.0, 0.5 * end, end], scheme, 1e-5, on_failure="ignore", **options)
    assert not bool(result.done.all())
    assert bool(result.states[:, result.done].isfinite().all())
    return result


def test_failure_is_loud_unless_it_is_to_be_ignored() -> None:
    arguments = only_positive, torch.tensor([[1.0], [5.0]]), [0.0, 2.0], EXPLICIT
    with pytest.raises(rs.ConvergenceError, match="The integration failed for 1 of 2") as caught:
        rs.odeint(*arguments)
    with pytest.warns(ConvergenceWarning, match="The integration failed for 1 of 2"):
        warned = rs.odeint(*arguments, on_failure="warn")
    ignored = rs.odeint(*arguments, on_failure="ignore")
    for result in (caught.value.solution, warned, ignored):
        assert result.status.tolist() == [Status.NON_FINITE, Status.DONE]


@pytest.mark.parametrize("scheme", [EXPLICIT, IMPLICIT, "auto"])
def test_blow_up_in_finite_time(scheme: Any) -> None:
    result = failing(growth, [1.0, 0.1, 0.9], 2.0, scheme)
    assert result.status[1] == Status.DONE
    # The last steps overflow, or need to be tiny: it depends on the method which comes first.
    assert set(result.status[[0, 2]].tolist()) <= {Status.STEP_TOO_SMALL, Status.NON_FINITE, Status.NOT_SOLVED}
    torch.testing.assert_close(result.reached, torch.tensor([1.0, 2.0, 1 / 0.9]), rtol=1e-3, atol=0)
    torch.testing.assert_close(result.states[-1, 1, 0], torch.tensor(0.125), rtol=1e-4, atol=0)
    assert result.states[-1, 0].isnan().all()
    torch.testing.assert_close(result.states[1, 2, 0], torch.tensor(9.0), rtol=1e-3, atol=0)


@pytest.mark.parametrize("scheme", [EXPLICIT, IMPLICIT])
def test_a_field_that_is_not_finite_beyond_a_boundary(scheme: Any) -> None:
    result = failing(only_positive, [1.0, 5.0], 2.0, scheme)
    assert result.status.tolist() == [Status.NON_FINITE, Status.DONE]
    torch.testing.assert_close(result.reached[0], torch.tensor(1.0), rtol=1e-6, atol=0)
    torch.testing.assert_close(result.states[:, 1, 0], torch.tensor([5.0, 4.0, 3.0]))


def test_a_field_that_is_not_finite_at_the_start() -> None:
    result = failing(only_positive, [-1.0, 5.0], 1.0, "auto")
    assert result.status.tolist() == [Status.NON_FINITE, Status.DONE]
    assert result.accepted[0] == 0
    assert result.reached[0] == 0


def test_too_many_steps() -> None:
    result = failing(lambda t, y: torch.cos(50 * t)[:, None] * y, [1.0, 0.0], 10.0, EXPLICIT, max_steps=20)
    assert result.status.tolist() == [Status.MAX_STEPS, Status.DONE]
    assert result.accepted[0] + result.rejected[0] == 20
    assert 0 < result.reached[0] < 10


def test_steps_below_the_least_one() -> None:
    result = failing(lambda t, y: torch.cos(50 * t)[:, None] * y, [1.0, 0.0], 10.0, EXPLICIT, min_step=0.05)
    assert result.status.tolist() == [Status.STEP_TOO_SMALL, Status.DONE]


def test_a_stage_that_cannot_be_solved_for() -> None:
    """A Newton iteration with the slope far from a steep front goes back and forth over it."""
    result = failing(
        lambda t, y: -1e3 * torch.atan(50 * (y - 0.5)), [5.0, 0.5], 1.0, IMPLICIT, first_step=0.8, min_step=0.5
    )
    assert result.status.tolist() == [Status.NOT_SOLVED, Status.DONE]
    assert result.rejected[0] > 0


def test_a_jacobian_that_is_not_finite() -> None:
    class Wrong(rs.fields.Field):
        rowwise = autonomous = True

        def forward(self, t: Any, y: Tensor) -> Tensor:
            return -1e3 * y

        @property
        def value_and_jacobian(self) -> Any:
            return lambda t, y: (self(t, y), torch.full((len(y), 1, 1), torch.inf, dtype=y.dtype))

    result = failing(Wrong(), [1.0], 1.0, IMPLICIT)
    assert result.status.tolist() == [Status.NON_FINITE]


def test_the_message_says_how_many_where_and_what_to_do() -> None:
    with pytest.raises(rs.ConvergenceError) as caught:
        rs.odeint(only_positive, torch.tensor([[1.0], [5.0], [1.5]]), [0.0, 2.0], EXPLICIT)
    message = str(caught.value)
    assert "failed for 2 of 3 samples (2 met a value that is not finite), at t = 1 to 1.5" in message
    assert "a look at the field" in message
    assert 'on_failure="warn"' in message


def test_gradients_of_what_was_reached() -> None:
    k = torch.tensor(1.0, requires_grad=True)
    result = rs.odeint(
        lambda t, y: k * y * y, torch.tensor([[1.0], [0.1]]), [0.0, 0.5, 2.0], EXPLICIT, on_failure="ignore"
    )
    (grad,) = torch.autograd.grad(result.states[1].sum(), k)
    exact = sum(0.5 * y0**2 / (1 - 0.5 * y0) ** 2 for y0 in (1.0, 0.1))
    torch.testing.assert_close(grad, torch.tensor(exact), rtol=1e-4, atol=0)
