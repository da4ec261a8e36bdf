"""The default plan, on problems that its quick attempt does not solve."""

import pytest
import torch
from torch import Tensor

import resolvent as rs


@pytest.mark.parametrize("points", [40, 100, 300])
def test_diffusion_is_solved_forward_and_backward(points: int) -> None:
    """Slopes over four orders of magnitude, and nothing declared."""
    kernel = torch.tensor([[[1.0, -2.0, 1.0]]]) * (points + 1) ** 2
    rate = torch.ones((), requires_grad=True)
    b, weights = torch.randn(2, 1, points), torch.randn(2, 1, points)

    def diffusion(w: Tensor) -> Tensor:
        return rate * torch.nn.functional.conv1d(w, kernel, padding=1)

    value = rs.resolve(diffusion, b, 0.2).value
    (gradient,) = torch.autograd.grad((weights * value).sum(), rate)
    laplacian = diffusion(torch.eye(points)[:, None]).squeeze(1).detach()
    inverse = torch.linalg.inv(torch.eye(points) - 0.2 * laplacian)
    exact = b @ inverse
    torch.testing.assert_close(value, exact, rtol=1e-5, atol=1e-8)
    torch.testing.assert_close(gradient, (weights * (0.2 * exact @ laplacian @ inverse)).sum(), rtol=1e-5, atol=1e-6)
