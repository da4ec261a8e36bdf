"""The matrix of consecutive layers: solves, products and norms without the matrix of all layers."""

import pytest
import torch

from resolvent.equation.layer_matrix import LayerMatrix
from resolvent.equation.matrix import Dense
from resolvent.equation.mixing import LayerMixing

SIZES = (1, 2, 3, 7)


# The matrix of all layers solves for few layers of few unknowns, substitution for more.
LAYERS = (4, 22)


def matrix(k: int, theta: float, tau: float | torch.Tensor, layers: int = 4) -> LayerMatrix:
    torch.manual_seed(k)
    return LayerMatrix(LayerMixing(theta), torch.randn(5, layers, k, k) / k**0.5, tau)


TAUS = {
    "a number": lambda: 0.3,
    "0-d": lambda: torch.tensor(0.3),
    "one per sample": lambda: torch.linspace(0.1, 0.5, 5).reshape(-1, 1, 1, 1),
}


@pytest.mark.parametrize("tau", TAUS)
@pytest.mark.parametrize("theta", [0.3, 0.5, 1.0])
@pytest.mark.parametrize("k", SIZES)
@pytest.mark.parametrize("layers", LAYERS)
def test_it_agrees_with_the_dense_matrix(layers: int, k: int, theta: float, tau: str) -> None:
    A = matrix(k, theta, TAUS[tau](), layers)
    dense = Dense(A.dense())
    v = torch.randn(5, layers, k)
    for transposed in (False, True):
        found, regular = A.solve(v, transposed)
        assert regular.all()
        assert found.shape == v.shape
        # Of 22 layers the solution, and with it its rounding, has grown by some orders of magnitude.
        exact = dense.solve(v, transposed)[0]
        assert (found - exact).abs().max() <= 1e-10 * exact.abs().max()
        torch.testing.assert_close(A.product(v, transposed), dense.product(v, transposed), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(A.norm(), dense.norm(), rtol=1e-12, atol=0)
    torch.testing.assert_close(A.inverse_norm(), dense.inverse_norm(), rtol=1e-10, atol=0)


@pytest.mark.parametrize("k", SIZES)
@pytest.mark.parametrize("layers", LAYERS)
def test_a_singular_layer_is_reported(layers: int, k: int) -> None:
    A = matrix(k, 1.0, 1.0, layers)
    blocks = A.blocks.clone()
    blocks[2, 1] = torch.eye(k)
    found, regular = LayerMatrix(A.mix, blocks, 1.0).solve(torch.randn(5, layers, k))
    assert regular.tolist() == [True, True, False, True, True]
    assert found[[0, 1, 3, 4]].isfinite().all()
    assert LayerMatrix(A.mix, blocks, 1.0).inverse_norm().isfinite().tolist() == regular.tolist()
