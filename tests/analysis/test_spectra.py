"""Eigenvalues, logarithmic norms and numerical ranges: Arnoldi against dense, and both against closed forms."""

import math

import pytest
import torch
from torch import Tensor, nn

from resolvent import analysis
from resolvent.analysis import Jacobian, extreme_eigenvalues, jacobian_spectrum, numerical_range, one_sided_lipschitz
from resolvent.blocks import ThetaBlock
from resolvent.fields import MLP, Autonomous, Conv, GradientFlow, Hamiltonian, Piecewise


class Matrix:
    """The field y' = A y, with A (n, n), on states of any shape with n entries."""

    def __init__(self, A: Tensor) -> None:
        self.A = A

    def __call__(self, t: float | Tensor, y: Tensor) -> Tensor:
        return (y.flatten(1) @ self.A.T).reshape(y.shape)


def as_set(eigenvalues: Tensor) -> Tensor:
    """Sorted by real and then imaginary part, rounding put aside."""
    keys = (eigenvalues.real * 1e6).round() * 1e9 + (eigenvalues.imag * 1e6).round()
    return eigenvalues[keys.argsort()]


def dense(field: object, y: Tensor) -> Tensor:
    """The Jacobian of each sample by forward differences in all directions, (batch, n, n)."""
    n, step = y[0].numel(), 1e-6
    columns = []
    for e in torch.eye(n):
        shift = step * e.reshape(y.shape[1:])
        columns.append(((field(0.0, y + shift) - field(0.0, y - shift)) / (2 * step)).flatten(1))
    return torch.stack(columns, dim=2).detach()


@pytest.fixture
def image() -> tuple[Conv, Tensor]:
    return Conv(8, 2, size=(6, 6), activation=nn.Tanh()), torch.randn(3, 8, 6, 6)  # 288 unknowns


def test_matrix_and_products() -> None:
    field, y = MLP(5, 7, 2, activation=nn.Tanh()), torch.randn(4, 5)
    jacobian = Jacobian(lambda state: field(0.0, state), y)
    J = dense(field, y)
    torch.testing.assert_close(jacobian.matrix(), J, atol=1e-8, rtol=0)
    v = torch.randn(4, 5)
    torch.testing.assert_close(jacobian.product(v), torch.einsum("bij,bj->bi", J, v), atol=1e-8, rtol=0)
    torch.testing.assert_close(jacobian.transposed_product(v), torch.einsum("bji,bj->bi", J, v), atol=1e-8, rtol=0)
    constant = Jacobian(lambda state: torch.ones(4, 3), y)
    assert constant.matrix().shape == (4, 3, 5)
    assert not constant.product(v).any()


def test_small_spectra_are_exact() -> None:
    A = torch.tensor([[0.0, -2.0, 0.0], [2.0, 0.0, 0.0], [0.0, 0.0, -5.0]])
    found = jacobian_spectrum(Matrix(A), 0.0, torch.randn(4, 3))
    assert found.shape == (4, 3)
    torch.testing.assert_close(found[:, 0], torch.full((4,), -5.0 + 0j))
    torch.testing.assert_close(as_set(found[0, 1:]), torch.tensor([-2j, 2j]))
    right = jacobian_spectrum(Matrix(A), 0.0, torch.randn(4, 3), which="rightmost")
    torch.testing.assert_close(right[:, -1], torch.full((4,), -5.0 + 0j))
    left = jacobian_spectrum(Matrix(A), 0.0, torch.randn(4, 3), which="leftmost", count=1)
    torch.testing.assert_close(left, torch.full((4, 1), -5.0 + 0j))


def test_along_a_trajectory() -> None:
    """Each state at its own time, where the field depends on it."""
    pieces = [Autonomous(nn.Linear(2, 2)) for _ in range(4)]
    block = ThetaBlock(Piecewise(pieces, 1.0), 0.5, 4, 1.0)
    trajectory = block.trajectory(torch.randn(3, 2))
    found = jacobian_spectrum(block.field, trajectory.times, trajectory.states)
    assert found.shape == (5, 3, 2)
    for n, row in enumerate(found):
        expected = torch.linalg.eigvals(pieces[min(n, 3)].module.weight.detach())
        for sample in row:
            torch.testing.assert_close(as_set(sample), as_set(expected))
    own_times = trajectory.times[:, None].expand(5, 3)
    torch.testing.assert_close(jacobian_spectrum(block.field, own_times, trajectory.states), found)


def test_structured_fields_have_the_spectra_they_promise() -> None:
    flow = jacobian_spectrum(GradientFlow(nn.Linear(4, 6)), 0.0, torch.randn(5, 4))
    assert flow.imag.abs().max() < 1e-12
    assert flow.real.max() < 1e-12
    assert flow.real.min() < -1e-3
    conservative = jacobian_spectrum(Hamiltonian(nn.Linear(3, 5), nn.Linear(3, 5)), 0.0, torch.randn(5, 6))
    assert conservative.real.abs().max() < 1e-7
    assert conservative.imag.abs().max() > 1e-3


@pytest.mark.parametrize("which", ["largest", "rightmost", "leftmost"])
def test_arnoldi_against_dense(image: tuple[Conv, Tensor], which: str) -> None:
    field, y = image
    found = jacobian_spectrum(field, 0.0, y, count=3, which=which, max_size=288)
    everything = torch.linalg.eigvals(Jacobian(lambda state: field(0.0, state), y).matrix().detach())
    measure = {"largest": everything.abs(), "rightmost": everything.real, "leftmost": -everything.real}[which]
    ours = {"largest": found.abs(), "rightmost": found.real, "leftmost": -found.real}[which]
    torch.testing.assert_close(ours, measure.sort(dim=1, descending=True).values[:, :3], atol=1e-5, rtol=0)
    distance = (found[:, :, None] - everything[:, None, :]).abs().amin(2)
    assert distance.max() < 1e-5


def test_images_give_sixteen_unless_told_otherwise(image: tuple[Conv, Tensor]) -> None:
    field, y = image
    found = jacobian_spectrum(field, torch.tensor([0.0, 1.0]), torch.stack((y, y)), max_size=288)
    assert found.shape == (2, 3, 16)
    torch.testing.assert_close(found[0], found[1])


def test_arnoldi_on_matrices_that_end_early() -> None:
    """A multiple of the identity plus a map of rank two: the space is invariant after three vectors."""
    n = 40
    u = torch.linalg.qr(torch.randn(n, 2)).Q
    A = -2 * torch.eye(n) + u @ torch.diag(torch.tensor([7.0, 5.0])) @ u.T
    found = extreme_eigenvalues(lambda v: v @ A.T, torch.zeros(2, n), 4, "rightmost")
    torch.testing.assert_close(found.real, torch.tensor([[5.0, 3.0, -2.0, -2.0]]).expand(2, 4), atol=1e-10, rtol=0)
    nothing = extreme_eigenvalues(torch.zeros_like, torch.zeros(2, n), 3)
    assert not nothing.any()


def test_arnoldi_with_the_whole_space_is_a_similarity() -> None:
    A = torch.randn(12, 12)
    found = extreme_eigenvalues(lambda v: v @ A.T, torch.zeros(1, 12), 12)
    torch.testing.assert_close(as_set(found[0]), as_set(torch.linalg.eigvals(A)), atol=1e-9, rtol=0)


def test_samples_do_not_depend_on_their_batch(image: tuple[Conv, Tensor]) -> None:
    field, y = image
    together = jacobian_spectrum(field, 0.0, y, count=1, max_size=288)
    alone = torch.cat([jacobian_spectrum(field, 0.0, row[None], count=1, max_size=288) for row in y])
    torch.testing.assert_close(together.abs(), alone.abs(), atol=1e-5, rtol=0)


def test_too_small_a_space_is_said(image: tuple[Conv, Tensor]) -> None:
    with pytest.warns(RuntimeWarning, match="in a space of 20 vectors: increase max_size"):
        jacobian_spectrum(image[0], 0.0, image[1], max_size=20)


def test_single_precision(image: tuple[Conv, Tensor]) -> None:
    field, y = image
    double = jacobian_spectrum(field, 0.0, y, count=1, which="rightmost", max_size=288)
    single = jacobian_spectrum(field.float(), 0.0, y.float(), count=1, which="rightmost", max_size=288)
    assert single.dtype == torch.complex64
    torch.testing.assert_close(single.real.double(), double.real, atol=1e-4, rtol=0)


def test_logarithmic_norm() -> None:
    A = torch.tensor([[-1.0, 10.0], [0.0, -1.0]])
    y = torch.randn(3, 2)
    torch.testing.assert_close(one_sided_lipschitz(Matrix(A), 0.0, y), torch.full((3,), 4.0))
    assert jacobian_spectrum(Matrix(A), 0.0, y).real.max() == pytest.approx(-1, abs=1e-7)
    # It is the rate at which the norm of exp(tA) starts.
    rate = (torch.linalg.matrix_norm(torch.matrix_exp(1e-7 * A), 2) - 1) / 1e-7
    assert float(rate) == pytest.approx(4, abs=1e-5)


def test_logarithmic_norm_of_images(image: tuple[Conv, Tensor]) -> None:
    field, y = image
    J = Jacobian(lambda state: field(0.0, state), y).matrix().detach()
    exact = torch.linalg.eigvalsh((J + J.mT) / 2)[:, -1]
    torch.testing.assert_close(one_sided_lipschitz(field, 0.0, y), exact, atol=1e-6, rtol=0)


def inside(points: Tensor, corners: Tensor) -> Tensor:
    """Whether points lie inside of a convex polygon with corners counter-clockwise, up to rounding."""
    sides = corners.roll(-1) - corners
    return ((points[:, None] - corners).conj() * sides).imag.le(1e-9).all(1)


def test_numerical_range_holds_all_quotients() -> None:
    A = torch.randn(6, 6)
    corners = numerical_range(Matrix(A), 0.0, torch.zeros(1, 6), num_angles=40)[0]
    v = torch.randn(500, 6, dtype=torch.complex128)
    quotients = torch.einsum("bi,ij,bj->b", v.conj(), A + 0j, v) / v.abs().square().sum(1)
    assert inside(quotients, corners).all()
    assert inside(torch.linalg.eigvals(A), corners).all()
    assert corners.real.max() == pytest.approx(float(one_sided_lipschitz(Matrix(A), 0.0, torch.zeros(1, 6))))


def test_numerical_range_of_a_jordan_block_is_a_disc() -> None:
    """Its radius is cos(pi/(n+1)), though the only eigenvalue is 0; the polygon touches it from outside."""
    corners = numerical_range(Matrix(torch.diag(torch.ones(4), 1)), 0.0, torch.zeros(1, 5), num_angles=200)[0]
    radius = math.cos(math.pi / 6)
    torch.testing.assert_close(corners.abs(), torch.full((200,), radius / math.cos(math.pi / 200)))


def test_numerical_range_of_images(image: tuple[Conv, Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    field, y = image
    krylov = numerical_range(field, 0.0, y[:1], num_angles=6)
    monkeypatch.setattr("resolvent.analysis.spectra.DENSE", 1000)
    torch.testing.assert_close(krylov, numerical_range(field, 0.0, y[:1], num_angles=6), atol=1e-6, rtol=0)


def test_refused() -> None:
    field, y = MLP(3, 4, 1), torch.randn(2, 3)
    with pytest.raises(ValueError, match=r"which must be one of .* got 'smallest'"):
        jacobian_spectrum(field, 0.0, y, which="smallest")
    with pytest.raises(ValueError, match="between 1 and the 3 unknowns of a sample, got 4"):
        jacobian_spectrum(field, 0.0, y, count=4)
    with pytest.raises(ValueError, match=r"times \(T,\) or \(T, batch\)"):
        jacobian_spectrum(field, torch.zeros(5), y)
    with pytest.raises(ValueError, match=r"it took \(2, 3\) and gave \(2, 1\)"):
        jacobian_spectrum(lambda t, y: y[:, :1], 0.0, y)
    with pytest.raises(ValueError, match="num_angles must be 3 or more"):
        numerical_range(field, 0.0, y, num_angles=2)
    with pytest.raises(ValueError, match="nan or inf"):
        extreme_eigenvalues(lambda v: v * math.nan, y)


def test_no_graph_is_left() -> None:
    assert not jacobian_spectrum(MLP(3, 4, 1), 0.0, torch.randn(2, 3, requires_grad=True)).requires_grad


def test_spectra_travel_in_checkpoints(tmp_path: object) -> None:
    path = f"{tmp_path}/model.ckpt"
    spectrum = analysis.Spectrum(torch.tensor([-1.0 + 2j]), h=0.1)
    torch.save({"state_dict": nn.Linear(2, 2).state_dict(), "epoch": 3, **spectrum.to_checkpoint()}, path)
    loaded = analysis.load_spectrum(path)
    assert loaded.h == 0.1
    torch.testing.assert_close(loaded.eigenvalues, spectrum.eigenvalues)
    spectrum.save(path)
    torch.testing.assert_close(analysis.load_spectrum(path).eigenvalues, spectrum.eigenvalues)


def test_other_files_are_refused(tmp_path: object) -> None:
    path = f"{tmp_path}/model.ckpt"
    with pytest.raises(ValueError, match="there is no checkpoint"):
        analysis.load_spectrum(path)
    torch.save(nn.Linear(2, 2).state_dict(), path)
    with pytest.raises(ValueError, match=r"holds no spectrum, but \['bias', 'weight'\].*jacobian_spectrum"):
        analysis.load_spectrum(path)
    torch.save(nn.Linear(2, 2), path)  # a pickled module could run code
    with pytest.raises(ValueError, match="could run code"):
        analysis.load_spectrum(path)
    with open(path, "wb") as file:
        file.write(b"not a checkpoint")
    with pytest.raises(ValueError, match="not a checkpoint of tensors"):
        analysis.load_spectrum(path)
    with pytest.raises(ValueError, match="h must be positive"):
        analysis.Spectrum(torch.ones(1), h=0.0)
    with pytest.raises(ValueError, match="not empty"):
        analysis.Spectrum(torch.ones(0))
