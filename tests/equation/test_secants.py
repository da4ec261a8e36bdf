"""The acceleration of the fixed point."""

import pytest
import torch
from torch import Tensor

from resolvent.equation.secants import Secants
from seeding import shifted


def iterated(slopes: Tensor, b: Tensor, steps: int) -> Tensor:
    """Iterates of w = b + slopes w by the accelerated fixed point, from b."""
    secants, w = Secants(), b
    for _ in range(steps):
        image = b + slopes * w
        w = secants.next(image - w, image)
    return w


@pytest.mark.parametrize("shape", [(6,), (2, 3)], ids=str)
def test_two_slopes_are_solved_for_by_two_secants(shape: tuple[int, ...]) -> None:
    """Two changes span the residuals of a linear problem with two slopes, whatever these are."""
    torch.manual_seed(shifted(1))
    slopes = torch.tensor([[0.9, -0.4], [0.3, 0.6], [-2.0, 0.5]]).repeat_interleave(3, 1).reshape(3, *shape)
    b = torch.randn(3, *shape)
    torch.testing.assert_close(iterated(slopes, b, 4), b / (1 - slopes), rtol=1e-9, atol=1e-9)


def test_a_sample_does_not_depend_on_the_others() -> None:
    torch.manual_seed(shifted(2))
    slopes, b = torch.rand(5, 20) * torch.rand(5, 1), torch.randn(5, 20)
    together = iterated(slopes, b, 6)
    for n in range(5):
        alone = iterated(slopes[n : n + 1], b[n : n + 1], 6)
        torch.testing.assert_close(alone[0], together[n], rtol=1e-9, atol=1e-9)


def test_a_sample_that_stands_still_stays_where_it_is() -> None:
    """The changes of a converged sample are zero, and so is what they say about its slopes."""
    slopes, b = torch.zeros(2, 4), torch.randn(2, 4)
    assert torch.equal(iterated(slopes, b, 5), b)
