"""Fields whose operations cannot be differentiated twice: fused attention."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import resolvent as rs
from resolvent.extending import Function, Linearization, NonlinearProblem
from seeding import shifted


class Fused(nn.Module):
    """Self-attention by torch's fused kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.project, self.out = nn.Linear(8, 24), nn.Linear(8, 8)

    def forward(self, y: Tensor) -> Tensor:
        q, k, v = self.project(y).unflatten(2, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        return self.out(functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class MultiHead(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(8), nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, y: Tensor) -> Tensor:
        y = self.norm(y)
        return self.attention(y, y, y, need_weights=False)[0]


def encoder() -> nn.Module:
    return nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True, norm_first=True)


FIELDS = {"scaled dot products": Fused, "multi-head": MultiHead, "encoder layer": encoder}


@pytest.mark.parametrize("solver", [rs.NewtonKrylov(), rs.Anderson(), rs.Auto()], ids=lambda s: type(s).__name__)
@pytest.mark.parametrize("make", FIELDS.values(), ids=FIELDS)
def test_values_and_gradients_agree_with_a_kernel_that_is_differentiable_twice(make, solver) -> None:
    torch.manual_seed(shifted(0))
    module, x = make(), torch.randn(3, 5, 8)
    found = []
    for backends in ([torch.nn.attention.SDPBackend.FLASH_ATTENTION], [torch.nn.attention.SDPBackend.MATH]):
        with torch.nn.attention.sdpa_kernel([*backends, torch.nn.attention.SDPBackend.MATH]):
            leaf = x.clone().requires_grad_()
            y = rs.ThetaBlock(rs.Autonomous(module), 0.5, 2, 1.0, solver=solver)(leaf)
            found.append((y, *torch.autograd.grad(y.square().sum(), (leaf, *module.parameters()))))
    for fused, plain in zip(*found, strict=True):
        torch.testing.assert_close(fused, plain, rtol=1e-6, atol=1e-7)


def test_a_product_by_differences_is_near_the_exact_one() -> None:
    torch.manual_seed(shifted(1))
    module, w, v = Fused(), torch.randn(3, 5, 8), torch.randn(3, 5, 8)
    exact = torch.autograd.functional.jvp(_twice(module), w, v)[1]
    problem = NonlinearProblem(Function(module), w, 1.0, w.dtype, w.dtype)
    product = Linearization(problem, w).product(v)
    torch.testing.assert_close(product, v - exact, rtol=1e-6, atol=1e-8)


def _twice(module: nn.Module):
    def call(y: Tensor) -> Tensor:
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            return module(y)

    return call
