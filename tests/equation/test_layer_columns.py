"""Substitution in columns against dense matrices."""

import pytest
import torch

from resolvent.equation.layer_columns import MIN_BATCH
from resolvent.equation.layer_matrix import LayerMatrix, coupled_matrix
from resolvent.equation.mixing import LayerMixing, MatrixMixing, running_sums
from resolvent.equation.norms import in_columns, length, put, row_lengths, take

BATCH, LAYERS = MIN_BATCH + 6, 4


def columns(*shape: int) -> torch.Tensor:
    """(batch, ...) stored with samples as columns."""
    return torch.randn(*reversed(shape)).permute(*reversed(range(len(shape))))


@pytest.mark.parametrize("stored", [columns, torch.randn], ids=["columns", "rows"])
@pytest.mark.parametrize("theta", [0.3, 0.5, 1.0, torch.tensor(0.7)], ids=str)
@pytest.mark.parametrize("k", [1, 2])
@pytest.mark.parametrize("per_sample", [False, True])
def test_solves_and_products(k: int, theta: float, stored: type, per_sample: bool) -> None:
    tau = torch.rand(BATCH) if per_sample else 0.4
    matrix = coupled_matrix(LayerMixing(theta), 0.5 * stored(BATCH, LAYERS, k, k), tau)
    assert isinstance(matrix, LayerMatrix)
    dense, r = matrix.dense(), stored(BATCH, LAYERS, k)
    for transposed in (False, True):
        A = dense.mT if transposed else dense
        found, regular = matrix.solve(r, transposed)
        assert bool(regular.all())
        torch.testing.assert_close(found.flatten(1), torch.linalg.solve(A, r.flatten(1)))
        torch.testing.assert_close(matrix.product(r, transposed).flatten(1), (A @ r.flatten(1)[:, :, None])[:, :, 0])


def test_singular_matrices_are_found() -> None:
    blocks = torch.zeros(BATCH, LAYERS, 2, 2)
    blocks[3, 1] = torch.eye(2)
    _, regular = coupled_matrix(LayerMixing(1.0), blocks, 1.0).solve(torch.ones(BATCH, LAYERS, 2))
    assert regular.tolist() == [n != 3 for n in range(BATCH)]


@pytest.mark.parametrize(
    "mix", [LayerMixing(0.5), LayerMixing(1.0), MatrixMixing(torch.randn(LAYERS, LAYERS))], ids=str
)
def test_mixings(mix: LayerMixing | MatrixMixing) -> None:
    rows = columns(BATCH, LAYERS, 2)
    assert in_columns(rows)
    assert not in_columns(rows.contiguous())
    torch.testing.assert_close(mix(rows), mix(rows.contiguous()))


@pytest.mark.parametrize("shape", [(6, 6, 16), (6, 6, 4, 5)], ids=str)
@pytest.mark.parametrize("theta", [0.3, 0.5, 1.0])
def test_long_rows_are_mixed_by_a_product(
    theta: float, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, g = torch.randn(shape, requires_grad=True), torch.randn(shape)
    mix = LayerMixing(theta)
    sums = running_sums(rows, theta, transposed=False)
    monkeypatch.setattr("resolvent.equation.mixing.running_sums", _refuse)
    product = mix(rows)
    torch.testing.assert_close(product, sums)
    torch.testing.assert_close(*(torch.autograd.grad(y, rows, g) for y in (product, sums)))


def test_long_rows_are_summed_where_products_have_fewer_digits(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, mix = torch.randn(6, 6, 16), LayerMixing(0.5)
    exact = mix(rows)
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: "medium")
    monkeypatch.setattr(torch, "bmm", _refuse)
    torch.testing.assert_close(mix(rows), exact)


def _refuse(*_: object, **__: object) -> None:
    raise AssertionError("this must not be called.")


@pytest.mark.parametrize("theta", [0.5, 0.6, 0.9, 1.0])
def test_cotangents_that_leave_every_row_alone(theta: float) -> None:
    mix = LayerMixing(theta)
    v = mix.inverse_of_ones(torch.zeros(1, 32, 2))
    assert v is not None
    torch.testing.assert_close(mix.matrix(32, v).mT @ v, torch.ones(32))
    assert LayerMixing(0.4).inverse_of_ones(torch.zeros(1, 32, 2)) is None


def test_norms_and_samples() -> None:
    x, rows = columns(BATCH, LAYERS, 2), torch.tensor([5, 1, 60])
    plain = x.contiguous()
    with torch.no_grad():
        torch.testing.assert_close(length(x), length(plain))
        torch.testing.assert_close(row_lengths(x), row_lengths(plain))
    assert in_columns(take(x, rows))
    assert in_columns(put(x, rows, x[:3]))
    torch.testing.assert_close(take(x, rows), plain[rows])
    torch.testing.assert_close(put(x, rows, x[:3]), plain.index_copy(0, rows, plain[:3]))
