"""Phase diagrams, fields, spectra and curves: what is drawn is what was computed, legibly."""

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from matplotlib.patches import Polygon
from torch import nn

from plotting.legibility import check, check_print_size
from resolvent import plotting, schemes
from resolvent.analysis import jacobian_spectrum
from resolvent.blocks import ThetaBlock
from resolvent.fields import MLP
from resolvent.schemes import Theta


def orbit(ax: plt.Axes) -> tuple[np.ndarray, np.ndarray]:
    (line,) = [line for line in ax.lines if line.get_label() == "computed"]
    return np.asarray(line.get_xdata()), np.asarray(line.get_ydata())


def test_the_style_leaves_interactive_mode_as_it_became_inside() -> None:
    """The first figure of a notebook turns it on; without it the notebook shows no later figure."""
    before = plt.isinteractive()
    try:
        plt.ioff()
        with plotting.paper_style():
            plt.ion()
            assert plt.rcParams["axes.linewidth"] == 0.6
        assert plt.isinteractive()
        assert plt.rcParams["axes.linewidth"] == plt.rcParamsDefault["axes.linewidth"]
    finally:
        plt.interactive(before)


def test_phase_diagrams() -> None:
    axes = plotting.phase_diagrams()
    assert [ax.get_title() for ax in axes] == ["Forward Euler", "Trapezoidal", "Backward Euler", "Verlet"]
    energy = {}
    for ax in axes:
        z, y = orbit(ax)
        assert len(z) == 64  # two periods at h omega = 0.2
        assert (z[0], y[0]) == (1, 0)
        energy[ax.get_title()] = z**2 + y**2
        assert max(abs(z).max(), abs(y).max()) < ax.get_xlim()[1]
    assert (np.diff(energy["Forward Euler"]) > 0).all()
    assert (np.diff(energy["Backward Euler"]) < 0).all()
    assert abs(energy["Trapezoidal"] - 1).max() < 1e-10
    assert 1e-6 < abs(energy["Verlet"] - 1).max() < 0.02
    assert r"\omega=50" in axes[0].figure.legends[0].get_title().get_text()
    check(axes[0].figure)
    check_print_size(axes[0].figure)


def test_phase_diagram_of_one_scheme() -> None:
    ax = plt.figure().add_subplot()
    assert plotting.phase_diagram(schemes.VERLET, ax, omega=2.0, h=0.05, periods=1.0, start=(0.5, 0.5)) is ax
    z, y = orbit(ax)
    assert (z[0], y[0]) == (0.5, 0.5)
    assert len(z) == 64
    check(plotting.phase_diagram(Theta(0.0)).figure)
    with pytest.raises(ValueError, match=r"must be positive, got 0\.1, -1"):
        plotting.phase_diagram(Theta(0.0), h=0.1, omega=-1)


def test_vector_field() -> None:
    field = MLP(2, 10, 2, activation=nn.Tanh())
    block = ThetaBlock(field, 0.5, 10, 2.0)
    states = block.trajectory(torch.rand(6, 2) - 0.5).states
    regions = [torch.tensor([[-0.5, -0.1], [0.5, -0.1], [0.5, 0.1], [-0.5, 0.1]]) + shift for shift in (0.0, 0.2)]
    ax = plotting.vector_field(field, trajectories=states, regions=regions, arrows=10)
    (arrows,) = [c for c in ax.collections if hasattr(c, "U")]
    directions = np.stack((arrows.U, arrows.V), axis=1)
    slopes = field(0.0, torch.from_numpy(np.asarray(arrows.get_offsets()))).detach().numpy()
    cosine = (directions * slopes).sum(1) / np.linalg.norm(directions, axis=1) / np.linalg.norm(slopes, axis=1)
    np.testing.assert_allclose(cosine, 1, atol=1e-10)
    np.testing.assert_allclose(np.linalg.norm(directions, axis=1) ** 2, np.linalg.norm(slopes, axis=1))
    paths = [np.stack(line.get_data(), axis=1) for line in ax.lines[:6]]
    np.testing.assert_allclose(np.stack(paths, axis=1), states.detach().numpy())
    polygons = [patch for patch in ax.patches if isinstance(patch, Polygon)]
    np.testing.assert_allclose(polygons[1].get_xy()[:4], regions[1].numpy())
    assert polygons[0].get_alpha() < polygons[1].get_alpha()
    check(ax.figure)
    check_print_size(ax.figure)


def test_vector_field_that_vanishes_somewhere_and_in_single_precision() -> None:
    ax = plt.figure().add_subplot()
    assert plotting.vector_field(lambda t, y: y * y.abs(), ax, arrows=5, labels=("prey", "predators")) is ax
    assert ax.get_xlabel() == "prey"
    plotting.vector_field(MLP(2, 4, 1).float(), ax)
    with pytest.raises(ValueError, match=r"maps \(batch, 2\) to \(batch, 2\), got \(441, 1\)"):
        plotting.vector_field(lambda t, y: y[:, :1], ax)
    with pytest.raises(ValueError, match=r"trajectories must be \(T, batch, 2\), got \(4, 2\)"):
        plotting.vector_field(lambda t, y: y, ax, trajectories=torch.zeros(4, 2))


def test_spectrum() -> None:
    field = MLP(2, 10, 2)
    train = jacobian_spectrum(field, 0.0, torch.randn(20, 2))
    test = jacobian_spectrum(field, 0.0, 3 * torch.randn(20, 2))
    ax = plotting.spectrum({"training": train, "test": test}, Theta(0.5), h=2.0)
    drawn = [c.get_offsets() for c in ax.collections if len(c.get_offsets()) == 40]
    for points, eigenvalues in zip(drawn, (train, test), strict=True):
        z = 2 * eigenvalues.flatten().numpy()
        np.testing.assert_allclose(np.asarray(points), np.stack((z.real, z.imag), axis=1))
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["training", "test"]
    check(ax.figure)
    check_print_size(ax.figure)


def test_stiff_spectrum_is_shown_in_full() -> None:
    eigenvalues = torch.tensor([-25.0 + 0j, -0.1 + 0.2j])
    ax = plotting.spectrum(eigenvalues, Theta(1.0))
    assert ax.get_xlim()[0] < -25
    assert ax.get_legend() is None
    check(ax.figure)
    own = plt.figure().add_subplot()
    assert plotting.spectrum(eigenvalues, schemes.BDF2, own, xlim=(-3, 1), ylim=(-2, 2), resolution=61) is own
    assert own.get_xlim() == (-3, 1)


def test_spectrum_refused() -> None:
    with pytest.raises(ValueError, match="finite and at least one"):
        plotting.spectrum(torch.tensor([complex("nan")]), Theta(0.5))
    with pytest.raises(ValueError, match="1 to 3 named spectra"):
        plotting.spectrum({}, Theta(0.5))


def test_training_curves() -> None:
    loss = torch.exp(-torch.linspace(0, 4, 50))
    seeds = torch.stack([loss**2, 2 * loss**2, 5 * loss**2])
    ax = plotting.training_curves({r"$\theta=0$": loss, r"$\theta=1/2$": seeds, r"$\theta=1$": loss.tolist()})
    np.testing.assert_allclose(ax.lines[0].get_ydata(), loss.numpy())
    np.testing.assert_allclose(ax.lines[1].get_ydata(), seeds[1].numpy())
    np.testing.assert_allclose(ax.lines[0].get_xdata(), np.arange(1, 51))
    assert len(ax.collections) == 1  # the range of seeds
    assert ax.get_yscale() == "log"
    assert len({(line.get_color(), line.get_linestyle()) for line in ax.lines}) == 3
    check(ax.figure)
    check_print_size(ax.figure)


def test_training_curves_refused() -> None:
    ax = plt.figure().add_subplot()
    assert plotting.training_curves({"a": [1.0, -1.0]}, ax, log=False, ylabel="divergence") is ax
    assert ax.get_ylabel() == "divergence"
    with pytest.raises(ValueError, match="'a' holds values that are not positive, down to -1"):
        plotting.training_curves({"a": [1.0, -1.0]}, ax)
    with pytest.raises(ValueError, match="curves is empty"):
        plotting.training_curves({}, ax)


def test_saved_in_two_formats(tmp_path: object) -> None:
    ax = plotting.training_curves({"a": [1.0, 2.0]})
    png, pdf = plotting.save(ax, f"{tmp_path}/deep/name.v1")
    assert (png.name, pdf.name) == ("name.v1.png", "name.v1.pdf")
    assert png.read_bytes().startswith(b"\x89PNG")
    assert pdf.read_bytes().startswith(b"%PDF")
    first = pdf.read_bytes()
    assert b"CreationDate" not in first  # the file depends on the figure alone
    plotting.save(ax.figure, f"{tmp_path}/deep/name.v1")
    assert pdf.read_bytes() == first
