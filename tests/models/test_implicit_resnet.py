"""The networks for images: what they compute, what they refuse, and that all of them have the same size."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import resolvent as rs
from resolvent.models import implicit_resnet18
from resolvent_lab.experiments.mnist import columns
from seeding import shifted

SHAPE = (1, 12, 12)
EXACT: dict[str, Any] = {"channels": 2, "input_shape": SHAPE, "stopping": rs.Stopping(rtol=1e-11)}
KINDS = [(0.0, "bounded"), (0.5, "bounded"), (1.0, "bounded"), (0.0, "free"), (0.5, "free"), (0.0, "batch")]
GRADIENTS = [(0.0, "bounded-gradient"), (0.0, "gradient"), (0.5, "gradient"), (1.0, "gradient")]


def images(count: int = 3, shape: tuple[int, ...] = SHAPE) -> Tensor:
    return torch.rand(count, *shape)


def count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("learn_scale", [True, False])
@pytest.mark.parametrize(("architecture", "widths"), [("paper", (8, 16, 32, 64)), ("authors", (8, 16, 32))])
def test_one_number_of_parameters_for_all(architecture: str, widths: tuple[int, ...], learn_scale: bool) -> None:
    counts = {
        (theta, kind): count(
            implicit_resnet18(theta, architecture=architecture, normalization=kind, high=0.5, learn_scale=learn_scale)
        )
        for theta, kind in KINDS
    }
    affine = sum(2 * 4 * width for width in widths)  # two layers, two norms with a weight and a bias for each channel
    assert set(counts.values()) == {counts[0.0, "bounded"], counts[0.0, "bounded"] + affine}
    assert counts[0.0, "batch"] == counts[0.0, "bounded"] + affine


def test_parameters_of_the_paper() -> None:
    """Counted by hand: convolutions with biases, a scale for every pixel, the linear map."""
    stem, head = 7 * 7 * 8 + 8, 64 * 10 + 10
    down = sum(9 * n * 2 * n + 2 * n for n in (8, 16, 32))
    convolutions = sum(4 * (9 * n * n + n) for n in (8, 16, 32, 64))
    scales = sum(2 * n * size**2 for n, size in zip((8, 16, 32, 64), (14, 7, 4, 2), strict=True))
    assert count(implicit_resnet18()) == stem + head + down + convolutions
    assert count(implicit_resnet18(learn_scale=True)) == stem + head + down + convolutions + scales
    assert count(implicit_resnet18(normalization="bounded")) == stem + head + down + convolutions + scales


def test_the_default_is_the_recommended_network() -> None:
    """h S is 1, as in the column of the recipe, and both start from the same weights."""
    (recipe,) = columns.configs(False, None, 1, columns="implicit-smooth-0.5")
    networks = []
    for build in (implicit_resnet18, recipe.build):
        torch.manual_seed(shifted(0))
        networks.append(build())
    network, recommended = networks
    named = dict(recommended.named_parameters())
    for name, weights in network.named_parameters():
        torch.testing.assert_close(weights, named[name])
    assert network.stages[0].theta == recommended.stages[0].theta == 0.5
    for ours, theirs in zip(network.stages, recommended.stages, strict=True):
        y = torch.randn(2, *ours.field.shape)
        for n in range(ours.num_steps):
            one, other = (stage.step_size * stage.field((n + 0.5) * stage.step_size, y) for stage in (ours, theirs))
            torch.testing.assert_close(one, other)


@pytest.mark.parametrize(("theta", "normalization"), GRADIENTS)
def test_gradient_flows_have_the_weights_of_two_convolutions(theta: float, normalization: str) -> None:
    """Weights and biases agree; there is no scale."""
    model = implicit_resnet18(theta, normalization=normalization)
    assert count(model) == count(implicit_resnet18(theta))
    scales = sum(2 * n * size**2 for n, size in zip((8, 16, 32, 64), (14, 7, 4, 2), strict=True))
    assert count(model) == count(implicit_resnet18(theta, learn_scale=True)) - scales


@pytest.mark.parametrize(("theta", "normalization"), KINDS + GRADIENTS)
def test_layers_satisfy_their_equation(theta: float, normalization: str) -> None:
    model = implicit_resnet18(theta, normalization=normalization, **EXACT).eval()
    x = images()
    logits, trajectories = model.forward_with_trajectories(x)
    torch.testing.assert_close(model(x), logits)
    for stage, trajectory in zip(model.stages, trajectories, strict=True):
        for piece, start, end in zip(stage.field.pieces, trajectory.states[:-1], trajectory.states[1:], strict=True):
            stage_state = (1 - theta) * start + theta * end
            torch.testing.assert_close(end, start + piece(0.0, stage_state), rtol=1e-9, atol=1e-9)


def test_plain_residual_network() -> None:
    """Free, explicit and without a scale it is what everybody knows."""
    model = implicit_resnet18(0.0, learn_scale=False, **EXACT)
    x = images()
    state = model.stem(x)
    for n, stage in enumerate(model.stages, start=1):
        state = state if n == 1 else model.get_submodule(f"down{n}")(state)
        for piece in stage.field.pieces:
            first, second = piece.field.layers
            state = state + second(torch.relu(first(torch.relu(state))))
    torch.testing.assert_close(model(x), model.head(state.mean((2, 3))))


def test_gradient_flow_layer() -> None:
    """The explicit layer, written out: y = x - h K^T relu(K x + b)."""
    model = implicit_resnet18(0.0, normalization="gradient", step_size=0.7, **EXACT)
    state = model.stem(images())
    first = model.stages[0].field.pieces[0].gradient.layer
    with torch.no_grad():
        first.bias.normal_()
    inner = nn.functional.conv2d(state, first.weight, first.bias, padding=1)
    expected = state - 0.7 * nn.functional.conv_transpose2d(torch.relu(inner), first.weight, padding=1)
    torch.testing.assert_close(model.stages[0].trajectory(state).states[1], expected)


@pytest.mark.parametrize(
    ("theta", "normalization", "step_size"),
    [
        (0.5, "gradient", 50.0),
        pytest.param(1.0, "gradient", 50.0, marks=pytest.mark.slow),
        (0.0, "bounded-gradient", 2.0),
    ],
)
def test_layers_of_gradient_flows_move_no_states_apart(theta: float, normalization: str, step_size: float) -> None:
    model = implicit_resnet18(theta, normalization=normalization, step_size=step_size, always=True, **EXACT).eval()
    for stage in model.stages:
        assert rs.analysis.lipschitz_bound(stage) == pytest.approx(1.0, rel=1e-4)
        x, y = (3 * torch.randn(4, *stage.field.shape) for _ in range(2))
        with torch.no_grad():
            moved = (stage(x) - stage(y)).flatten(1).norm(dim=1) / (x - y).flatten(1).norm(dim=1)
        assert (moved <= 1 + 1e-9).all()
        assert (moved > 0.01).all()
    steep = implicit_resnet18(0.25, normalization="gradient", step_size=50.0, **EXACT).stages[0]
    assert rs.analysis.lipschitz_bound(steep) > 2  # below theta = 1/2 nothing of the kind holds


def test_gain_of_the_stem() -> None:
    models = []
    for gain in (1.0, 0.1):
        torch.manual_seed(shifted(0))
        models.append(implicit_resnet18(stem_gain=gain, **EXACT))
    plain, small = (dict(model.named_parameters()) for model in models)
    torch.testing.assert_close(small["stem.weight"], 0.1 * plain["stem.weight"])
    assert all(torch.equal(plain[name], small[name]) for name in plain if name != "stem.weight")


def test_substeps_share_the_weights_of_their_layer() -> None:
    one = implicit_resnet18(0.0, steps=1, step_size=0.5, **EXACT)
    two = implicit_resnet18(0.0, steps=2, step_size=0.25, **EXACT)
    two.load_state_dict(one.state_dict())
    state = one.stem(images())
    stage = one.stages[0]
    coarse, fine = stage.trajectory(state).states, two.stages[0].trajectory(state).states
    assert (len(coarse), len(fine)) == (3, 5)
    first, second = stage.field.pieces
    halfway = state + 0.25 * first(0.0, state)
    torch.testing.assert_close(fine[2], halfway + 0.25 * first(0.0, halfway))
    torch.testing.assert_close(fine[3], fine[2] + 0.25 * second(0.0, fine[2]))


@pytest.mark.parametrize("shape", [(3, 32, 20), (1, 9, 9)])
@pytest.mark.parametrize("architecture", ["paper", "authors"])
def test_other_images(shape: tuple[int, int, int], architecture: str) -> None:
    model = implicit_resnet18(0.5, 2, 7, shape, architecture=architecture, transition_bound=1.0)
    assert model(images(2, shape)).shape == (2, 7)


def test_an_image_is_classified_alone() -> None:
    model = implicit_resnet18(0.5, **EXACT)
    x = images(5)
    torch.testing.assert_close(model(x)[3:4], model(x[3:4]), rtol=1e-8, atol=1e-8)


def make_smooth(model: nn.Module) -> None:
    """Softplus for ReLU: no unit is dead, whatever the weights, and differences meet no kink."""
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.ReLU):
                setattr(module, name, nn.Softplus())


@pytest.mark.parametrize("normalization", ["bounded", "free", "gradient"])
@pytest.mark.parametrize("learn_theta", [False, True])
def test_gradients_reach_every_parameter(normalization: str, learn_theta: bool) -> None:
    # Tighter than elsewhere: the differences below divide what is left of the residual by the step.
    options = EXACT | {"stopping": rs.Stopping(rtol=1e-13)}
    model = implicit_resnet18(
        0.5, normalization=normalization, learn_theta=learn_theta, learn_shift=normalization == "bounded", **options
    )
    make_smooth(model)
    x, y = images(), torch.tensor([1, 2, 3])
    nn.functional.cross_entropy(model(x), y).backward()
    assert all(parameter.grad is not None and parameter.grad.abs().sum() > 0 for parameter in model.parameters())

    moved = copy.deepcopy(model)
    direction = [torch.randn_like(p) for p in model.parameters()]
    slope = sum(float((p.grad * d).sum()) for p, d in zip(model.parameters(), direction, strict=True))
    losses = []
    for step in (1e-5, -1e-5):
        with torch.no_grad():
            for p, q, d in zip(moved.parameters(), model.parameters(), direction, strict=True):
                p.copy_(q + step * d)
            losses.append(float(nn.functional.cross_entropy(moved.eval()(x), y)))
    # Norms measured to 1e-6 have singular vectors good to 1e-3, and these are what the gradient of a norm is made of.
    accuracy = 2e-3 if normalization == "bounded" else 1e-5
    assert slope == pytest.approx((losses[0] - losses[1]) / 2e-5, rel=accuracy)


def test_penalty_of_all_stages() -> None:
    model = implicit_resnet18(0.5, **EXACT)
    penalise = rs.regularizers.TrajectoryPenalty(divergence=0.01, jacobian=0.1)
    _, trajectories = model.forward_with_trajectories(images())
    total = sum(penalise(stage.field, t).total for stage, t in zip(model.stages, trajectories, strict=True))
    total.backward()
    weights = [p for stage in model.stages for name, p in stage.named_parameters() if not name.endswith("bias")]
    assert all(weight.grad is not None and weight.grad.abs().sum() > 0 for weight in weights)


@pytest.mark.parametrize(("theta", "normalization"), KINDS[:4] + KINDS[5:] + GRADIENTS)
def test_certified_radius_holds_along_the_gradient(theta: float, normalization: str) -> None:
    model = implicit_resnet18(theta, normalization=normalization, low=-2.0, high=0.5, **EXACT)
    model(images(8))
    model.eval()
    x = images(8).requires_grad_()
    radius = rs.analysis.certified_radius(model, x)
    best = model(x).topk(2, dim=1)
    (slope,) = torch.autograd.grad((best.values[:, 0] - best.values[:, 1]).sum(), x)
    unit = slope / slope.flatten(1).norm(dim=1).reshape(-1, 1, 1, 1)
    with torch.no_grad():
        attacked = model(x - 0.999 * radius.reshape(-1, 1, 1, 1) * unit)
    assert (radius > 0).all()
    assert (attacked.argmax(1) == best.indices[:, 0]).all()


@torch.no_grad()
def test_norms_of_bounded_layers_are_those_of_operators() -> None:
    model = implicit_resnet18(0.5, normalization="bounded", always=True, transition_bound=0.7, **EXACT).eval()
    size = tuple(model.stages[0].field.shape)
    for layer in model.stages[0].field.pieces[0].field.layers:
        basis = torch.eye(size[0] * size[1] * size[2]).reshape(-1, *size)
        columns = layer(basis) - layer(torch.zeros_like(basis))
        assert float(torch.linalg.matrix_norm(columns.flatten(1), 2)) == pytest.approx(1.0, rel=1e-5)
    assert float(torch.linalg.matrix_norm(model.head.weight, 2)) <= 0.7 * (1 + 1e-5)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"theta": 0.5, "normalization": "batch"}, "theta=0.5"),
        ({"theta": 0.0, "normalization": "batch", "learn_theta": True}, "theta = 0"),
        ({"normalization": "layer"}, "'layer'"),
        ({"architecture": "resnet50"}, "'resnet50'"),
        ({"channels": 0}, "got 0"),
        ({"steps": 1.5}, "got 1.5"),
        ({"input_shape": (28, 28)}, r"\(28, 28\)"),
        ({"normalization": "free", "learn_shift": True}, "'free'"),
        ({"normalization": "gradient", "learn_shift": True}, "'gradient'"),
        ({"normalization": "gradient", "scale": 0.5}, "scale=0.5"),
        ({"normalization": "bounded-gradient", "per_channel": True}, "per_channel=True"),
        ({"stem_gain": 0.0}, "got 0.0"),
        ({"stem_gain": float("nan")}, "got nan"),
        ({"scale": 1.5, "learn_scale": True}, "got 1.5"),
        ({"normalization": "bounded", "theta": 1.0, "high": 1.5}, "pole"),
        ({"theta": 2.0}, "got 2.0"),
    ],
)
def test_refused_options(options: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        implicit_resnet18(**options)


@pytest.mark.parametrize(
    ("x", "told"),
    [
        (torch.zeros(2, 1, 28, 28), r"\(2, 1, 28, 28\)"),
        (torch.zeros(1, 12, 12), r"\(1, 12, 12\)"),
        (torch.zeros(2, *SHAPE, dtype=torch.uint8), "uint8"),
        ([1.0], "list"),
    ],
)
def test_refused_images(x: Any, told: str) -> None:
    model = implicit_resnet18(**EXACT)
    with pytest.raises(ValueError, match=told):
        model(x)
    with pytest.raises(ValueError, match=told):
        model.forward_with_trajectories(x)


def test_failed_solves_are_loud() -> None:
    stopping = rs.Stopping(rtol=1e-9, max_steps=1)
    model = implicit_resnet18(1.0, 2, input_shape=SHAPE, learn_scale=False, stopping=stopping)
    with pytest.raises(rs.ConvergenceError):
        model(images())
