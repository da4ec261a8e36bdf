"""The normalised weight: its bound, its gradient, and that it moves only when the weight does."""

import copy
import pickle
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from threading import Event

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from resolvent.spectral import layer_operator, norm_bound, operator_norm, spectral_norm
from resolvent.spectral.parametrization import SpectralNorm

CASES = {
    "linear": (lambda: nn.Linear(6, 5), (6,)),
    "conv1d": (lambda: nn.Conv1d(2, 3, 3, padding=1, padding_mode="circular"), (2, 8)),
    "conv2d": (lambda: nn.Conv2d(2, 4, 3, stride=2, padding=1, groups=2), (2, 6, 6)),
    "conv3d": (lambda: nn.Conv3d(1, 2, 3, padding="same", padding_mode="replicate"), (1, 4, 4, 4)),
    "transpose": (lambda: nn.ConvTranspose2d(2, 2, 3, stride=2, output_padding=1, dilation=2), (2, 4, 4)),
}
every_layer = pytest.mark.parametrize("case", CASES)


def build(case: str, scale: float = 10.0, **options: object) -> tuple[nn.Module, tuple[int, ...]]:
    make, shape = CASES[case]
    layer = make()
    with torch.no_grad():
        layer.weight.mul_(scale)
    return spectral_norm(layer, shape, **options), shape


def original(layer: nn.Module) -> nn.Parameter:
    return layer.parametrizations.weight.original


def vector(layer: nn.Module) -> Tensor:
    return layer.parametrizations.weight[0].vector


@pytest.fixture
def norm(assemble):
    return lambda layer, shape: float(torch.linalg.matrix_norm(assemble(layer, shape), 2))


@every_layer
def test_the_bound_holds_before_first_use(norm, case):
    layer, shape = build(case, bound=0.7)
    assert norm(layer, shape) == pytest.approx(0.7, rel=1e-6)


def test_a_training_goes_on_exactly():
    def step(layer):
        with torch.no_grad():
            original(layer).add_(torch.linspace(-1, 1, 30).reshape(5, 6))
        return layer.weight

    layer = spectral_norm(nn.Linear(6, 5))
    step(layer)
    step(layer)
    exact, plain = spectral_norm(nn.Linear(6, 5)), spectral_norm(nn.Linear(6, 5))
    for other in (exact, plain):
        other.load_state_dict(layer.state_dict())
    exact.parametrizations.weight[0].load_training_state(layer.parametrizations.weight[0].training_state())
    expected = step(layer)
    assert torch.equal(step(exact), expected)
    assert torch.equal(vector(exact), vector(layer))
    assert not torch.equal(step(plain), expected), "the norm is computed in full"
    exact.parametrizations.weight[0].load_training_state({})
    assert exact.parametrizations.weight[0].training_state() == {}


@every_layer
def test_a_small_weight_is_left_alone_unless_asked(norm, case):
    layer, shape = build(case, scale=1e-2)
    assert torch.equal(layer.weight, original(layer))
    layer, shape = build(case, scale=1e-2, always=True)
    assert norm(layer, shape) == pytest.approx(1.0, rel=1e-6)


@every_layer
@pytest.mark.parametrize("always", [False, True])
def test_the_gradient_is_that_of_the_exact_norm(assemble, case, always):
    layer, shape = build(case, always=always)
    probe = torch.randn_like(layer.weight)
    (ours,) = torch.autograd.grad((layer.weight * probe).sum(), original(layer))

    operator = layer_operator(CASES[case][0](), shape)
    weight = original(layer).detach().requires_grad_()
    basis = torch.eye(probe.new_empty(shape).numel()).reshape(-1, *shape)
    sigma = torch.linalg.matrix_norm(operator(weight, basis).flatten(1), 2)
    (exact,) = torch.autograd.grad((weight / sigma * probe).sum(), weight)
    assert torch.allclose(ours, exact, rtol=1e-4, atol=1e-6)


@every_layer
def test_gradcheck_with_the_norm_measured_anew_at_each_point(case):
    layer, shape = build(case)
    operator = layer_operator(CASES[case][0](), shape)

    def normalised(weight: Tensor) -> Tensor:
        _, v = operator_norm(partial(operator, weight.detach()), vector(layer), rtol=1e-12)
        return weight / torch.linalg.vector_norm(operator(weight, v)).clamp(min=1.0)

    assert torch.allclose(normalised(original(layer)), layer.weight, rtol=1e-5)
    assert torch.autograd.gradcheck(normalised, original(layer).detach().requires_grad_())


@every_layer
@pytest.mark.parametrize("training", [True, False])
def test_reading_the_weight_changes_nothing(case, training):
    layer, shape = build(case)
    layer.train(training)
    with torch.no_grad():
        original(layer).add_(torch.randn_like(original(layer)))
    x = torch.randn(3, *shape)
    first = layer(x)
    first.square().sum().backward()
    for _ in range(5):
        assert torch.equal(layer(x), first)


def test_one_power_iteration_for_each_change_in_training():
    layer, _ = build("linear")
    with torch.no_grad():
        original(layer).copy_(torch.randn_like(original(layer)))
    W, v = original(layer).detach(), vector(layer).clone()
    layer.weight, layer.weight  # noqa: B018 - the second reading must not advance anything
    step = v @ W.T @ W
    assert torch.allclose(vector(layer), step / step.norm())


@pytest.mark.parametrize("options", [{}, {"foreach": True}, {"fused": True}])
def test_the_steps_of_every_optimiser_are_noticed(options):
    layer, shape = build("linear")
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.1, **options)
    before = vector(layer)
    layer(torch.randn(3, *shape)).square().sum().backward()
    assert vector(layer) is before
    optimizer.step()
    layer(torch.randn(3, *shape))
    assert vector(layer) is not before


def test_evaluation_measures_in_full_and_once(norm):
    layer, shape = build("conv2d")
    with torch.no_grad():
        original(layer).copy_(torch.randn_like(original(layer)))
    after_one_step = norm(layer, shape)
    layer.eval()
    assert norm(layer, shape) == pytest.approx(1.0, rel=1e-6)
    assert after_one_step > 1.001
    frozen = vector(layer)
    layer(torch.randn(1, *shape))
    assert vector(layer) is frozen
    assert layer.train()(torch.randn(1, *shape)).isfinite().all()
    assert vector(layer) is frozen


def test_a_checkpoint_brings_the_vector_and_the_norm_is_right_after_loading(norm):
    source, shape = build("conv2d")
    target, _ = build("conv2d", scale=3.0)
    assert not torch.equal(vector(source), vector(target))
    assert "parametrizations.weight.0.vector" in source.state_dict()
    target.load_state_dict(source.state_dict())
    assert torch.equal(vector(source), vector(target))
    assert norm(target, shape) == pytest.approx(1.0, rel=1e-6)
    assert torch.allclose(target.weight, source.weight, rtol=1e-6)


def test_a_checkpoint_with_a_vector_that_has_not_converged(norm):
    source, shape = build("conv2d")
    state = {name: value.clone() for name, value in source.state_dict().items()}
    state["parametrizations.weight.0.vector"] = nn.functional.normalize(torch.randn(1, *shape).flatten(), dim=0).view(
        1, *shape
    )
    source.load_state_dict(state)
    assert source.training
    assert norm(source, shape) == pytest.approx(1.0, rel=1e-6)


def test_loading_by_assignment(norm):
    source, shape = build("linear")
    target, _ = build("linear")
    target.load_state_dict({name: value.clone() for name, value in source.state_dict().items()}, assign=True)
    assert norm(target, shape) == pytest.approx(1.0, rel=1e-6)


@every_layer
@pytest.mark.parametrize("training", [True, False])
def test_a_copy_is_equal_and_independent(case, training):
    layer, shape = build(case)
    with torch.no_grad():
        original(layer).add_(torch.randn_like(original(layer)))
    x = torch.randn(2, *shape)
    layer.train(training)(x)
    twin = copy.deepcopy(layer)
    assert torch.equal(twin(x), layer(x))
    with torch.no_grad():
        original(twin).add_(1.0)
    before = vector(layer)
    twin(x)
    assert vector(layer) is before


def test_assigning_a_weight_measures_it(norm):
    layer, shape = build("linear")
    layer.weight = 5 * torch.randn(5, 6)
    assert norm(layer, shape) == pytest.approx(1.0, rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_change_of_dtype_keeps_the_bound(dtype):
    layer, shape = build("conv2d")
    layer.to(dtype)
    assert layer.weight.dtype == vector(layer).dtype == dtype
    weight = layer.weight.detach().double()
    sigma, _ = operator_norm(partial(layer_operator(CASES["conv2d"][0](), shape), weight), (1, *shape))
    assert sigma == pytest.approx(1.0, rel=1e-5)


def test_the_null_weight_has_finite_value_and_gradient():
    for always in (False, True):
        layer, _ = build("linear", scale=0.0, always=always)
        layer.weight.sum().backward()
        assert torch.equal(layer.weight, torch.zeros(5, 6))
        assert original(layer).grad.isfinite().all()


def test_a_graph_survives_the_next_measurement():
    layer, shape = build("conv2d")
    with torch.no_grad():
        original(layer).copy_(torch.randn_like(original(layer)))
    loss = layer(torch.randn(1, *shape)).square().sum()
    before = vector(layer)
    layer.eval()(torch.randn(1, *shape))
    assert vector(layer) is not before
    loss.backward()
    assert original(layer).grad.isfinite().all()


def test_functional_calls_and_transforms_leave_no_trace():
    layer, shape = build("linear")
    x = torch.randn(3, *shape)
    state = {name: value.detach().clone() for name, value in layer.state_dict().items()}
    frozen = vector(layer)
    call = partial(torch.func.functional_call, layer)
    assert torch.allclose(call(state, (x,)), layer(x))

    def loss(weight: Tensor) -> Tensor:
        return call({**state, "parametrizations.weight.original": weight}, (x,)).square().sum()

    weight = state["parametrizations.weight.original"]
    layer(x).square().sum().backward()
    assert torch.allclose(torch.func.grad(loss)(weight), original(layer).grad)
    stacked = torch.stack([weight, 2 * weight])
    assert torch.allclose(torch.func.vmap(loss)(stacked), loss(weight).expand(2))
    assert vector(layer) is frozen


@pytest.mark.parametrize("transform", [lambda f: f, lambda f: torch.func.jacrev(f)], ids=["call", "jacrev"])
def test_the_norm_of_weights_from_outside_is_kept_within_the_bound(transform):
    layer, shape = build("linear")
    eye = torch.eye(*shape, *shape)
    for _ in range(3):
        weight = 5 * torch.randn_like(original(layer))
        weights = {"parametrizations.weight.original": weight, "bias": torch.zeros(5)}
        found = transform(lambda x, weights=weights: torch.func.functional_call(layer, weights, (x,)))(eye)
        matrix = found.T if found.dim() == 2 else torch.stack([found[0, i, 0] for i in range(5)])
        assert torch.linalg.matrix_norm(matrix, 2) == pytest.approx(1.0, rel=1e-9)


def test_inference_mode_leaves_a_vector_that_can_be_differentiated():
    layer, shape = build("linear")
    with torch.inference_mode():
        layer.eval()
        with torch.no_grad():
            original(layer).mul_(2.0)
        layer(torch.randn(1, *shape))
    assert not vector(layer).is_inference()
    layer(torch.randn(1, *shape)).sum().backward()


def test_a_thread_waits_for_another_that_measures_the_norm(monkeypatch):
    """Weights are new, the norm is the old one still, and another thread reads."""
    layer, _ = build("linear")
    layer.eval()
    layer.weight  # noqa: B018 - the norm is known
    layer.load_state_dict({**layer.state_dict(), "parametrizations.weight.original": 7 * torch.randn(5, 6)})
    expected = copy.deepcopy(layer).weight
    measured, go_on = Event(), Event()
    replace = SpectralNorm._replace

    def wait_and_replace(self: SpectralNorm, vector: Tensor) -> None:
        measured.set()
        assert go_on.wait(60)
        replace(self, vector)

    monkeypatch.setattr(SpectralNorm, "_replace", wait_and_replace)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(lambda: layer.weight)
        assert measured.wait(60)
        second = pool.submit(lambda: layer.weight)
        # A thread that does not wait for the other has its weight by now; one that does is not disturbed.
        wait([second], timeout=0.2)
        go_on.set()
        for read in (first, second):
            torch.testing.assert_close(read.result(60), expected)


def test_a_layer_can_be_copied_while_its_norm_is_known():
    layer, shape = build("linear")
    layer.weight  # noqa: B018
    x = torch.randn(2, *shape)
    torch.testing.assert_close(copy.deepcopy(layer)(x), layer(x))
    parametrization = pickle.loads(pickle.dumps(layer.parametrizations.weight[0]))
    torch.testing.assert_close(parametrization(original(layer)), layer.weight)


def test_caching_gives_the_same_weight():
    layer, shape = build("conv2d")
    x = torch.randn(2, *shape)
    with parametrize.cached():
        assert layer.weight is layer.weight
        cached = layer(x)
    assert torch.equal(cached, layer(x))


def test_half_precision_regions_do_not_touch_the_norm():
    layer, _ = build("conv2d")
    layer.float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = layer.weight
    assert torch.equal(inside, layer.weight)


@pytest.mark.parametrize("case", ["linear", "conv2d"])
@pytest.mark.parametrize(("rate", "tolerance"), [(1e-3, 1e-3), (1e-2, 0.2)])
def test_training_keeps_the_bound_within_the_documented_tolerance(norm, case, rate, tolerance):
    layer, shape = build(case)
    optimizer = torch.optim.Adam(layer.parameters(), lr=rate)
    x = torch.randn(32, *shape)
    target = 3 * torch.randn_like(layer(x))
    worst = 0.0
    for _ in range(300):
        optimizer.zero_grad()
        (layer(x) - target).square().mean().backward()
        optimizer.step()
        worst = max(worst, norm(layer, shape))
    assert worst <= 1 + tolerance
    assert norm(layer.eval(), shape) <= 1 + 1e-6


@pytest.mark.parametrize(
    ("options", "words"),
    [({"bound": 0.0}, "bound"), ({"bound": float("inf")}, "bound"), ({"power_iterations": 0}, "power_iterations")],
)
def test_wrong_options_are_refused(options, words):
    with pytest.raises(ValueError, match=words):
        spectral_norm(nn.Linear(2, 2), **options)


def test_a_weight_that_is_computed_is_refused():
    layer = spectral_norm(nn.Linear(2, 2))
    with pytest.raises(ValueError, match="parametrized already"):
        spectral_norm(layer)


@pytest.mark.parametrize("crowded", [True, False])
def test_single_precision_is_measured_as_far_as_it_goes(crowded):
    """Crowded singular values, without a warning."""
    layer, shape = (nn.Conv1d(1, 1, 3, padding=1), (1, 801)) if crowded else (nn.Conv2d(4, 4, 3), (4, 9, 9))
    layer = spectral_norm(layer.float(), shape, always=True)
    assert norm_bound(layer, shape).value == pytest.approx(1.0, abs=1e-5)
