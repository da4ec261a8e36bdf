"""Norms and bounds against the singular values of the assembled map, over every kind of layer."""

from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from resolvent.spectral import layer_operator, norm_bound, operator_norm, power_iteration, schur_bound
from seeding import shifted

# What torch says of its own layer when 'same' has to pad one side more than the other.
pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")

Shape = tuple[int, ...]
CONV = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
TRANSPOSE = {1: nn.ConvTranspose1d, 2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}


def sizes(draw: st.DrawFn, dims: int, low: int, high: int) -> Shape:
    return tuple(draw(st.integers(low, high)) for _ in range(dims))


@st.composite
def convolutions(draw: st.DrawFn) -> tuple[nn.Module, Shape]:
    dims, groups = draw(st.integers(1, 3)), draw(st.integers(1, 2))
    inputs, outputs = groups * draw(st.integers(1, 2)), groups * draw(st.integers(1, 2))
    kernel, dilation = sizes(draw, dims, 1, 3), sizes(draw, dims, 1, 2)
    mode = draw(st.sampled_from(["zeros", "circular", "reflect", "replicate"]))
    kind = draw(st.sampled_from(["sizes", "same", "valid"]))
    stride = sizes(draw, dims, 1, 3) if kind == "sizes" else (1,) * dims
    padding = sizes(draw, dims, 0, 2) if kind == "sizes" else kind
    # Reflection pads less than the size, a circle wraps around once.
    smallest = {"zeros": 1, "replicate": 1, "circular": 2, "reflect": 3}[mode]
    reach = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
    spatial = [max(r + 1, smallest) + draw(st.integers(0, 6 if dims < 3 else 2)) for r in reach]
    torch.manual_seed(shifted(draw(st.integers(0, 2**16))))
    layer = CONV[dims](inputs, outputs, kernel, stride, padding, dilation, groups, padding_mode=mode)
    return layer.double(), (inputs, *spatial)


@st.composite
def transposed_convolutions(draw: st.DrawFn) -> tuple[nn.Module, Shape]:
    dims, groups = draw(st.integers(1, 3)), draw(st.integers(1, 2))
    inputs, outputs = groups * draw(st.integers(1, 2)), groups * draw(st.integers(1, 2))
    kernel, stride, dilation = sizes(draw, dims, 1, 3), sizes(draw, dims, 1, 3), sizes(draw, dims, 1, 2)
    padding = sizes(draw, dims, 0, 1)
    extra = tuple(draw(st.integers(0, max(s, d) - 1)) for s, d in zip(stride, dilation, strict=True))
    spatial = sizes(draw, dims, 3, 6 if dims < 3 else 4)
    torch.manual_seed(shifted(draw(st.integers(0, 2**16))))
    layer = TRANSPOSE[dims](inputs, outputs, kernel, stride, padding, extra, groups, dilation=dilation)
    return layer.double(), (inputs, *spatial)


@st.composite
def dense(draw: st.DrawFn) -> tuple[nn.Module, Shape]:
    inputs, outputs = draw(st.integers(1, 8)), draw(st.integers(1, 8))
    torch.manual_seed(shifted(draw(st.integers(0, 2**16))))
    return nn.Linear(inputs, outputs).double(), (inputs,)


layers = st.one_of(convolutions(), transposed_convolutions(), dense())


@settings(max_examples=150, deadline=None)
@given(layers)
def test_the_norm_is_that_of_the_assembled_map(assemble, case):
    layer, shape = case
    operator = layer_operator(layer, shape)
    exact = torch.linalg.matrix_norm(assemble(layer, shape), 2)
    norm, vector = operator_norm(partial(operator, layer.weight.detach()), (1, *shape))
    assert norm == pytest.approx(float(exact), rel=1e-6)
    assert vector.norm() == pytest.approx(1.0)


@settings(max_examples=150, deadline=None)
@given(layers)
def test_the_bound_is_never_below_the_norm_and_exact_where_it_says_so(assemble, case):
    layer, shape = case
    exact = float(torch.linalg.matrix_norm(assemble(layer, shape), 2))
    assert norm_bound(layer, shape).exact
    assert norm_bound(layer, shape).value == pytest.approx(exact, rel=1e-12)
    bound = norm_bound(layer, shape, assemble=0)
    assert bound.value >= exact * (1 - 1e-12)
    if bound.exact:
        assert bound.value == pytest.approx(exact, rel=1e-12)


@settings(max_examples=100, deadline=None)
@given(layers)
def test_the_adjoint_is_the_transpose(case):
    layer, shape = case
    operator = layer_operator(layer, shape)
    weight = layer.weight.detach()
    x = torch.randn(2, *shape)
    y = operator(weight, x)
    u = torch.randn_like(y)
    assert torch.allclose((y * u).sum(), (x * operator.adjoint(weight, u)).sum(), rtol=1e-12, atol=1e-12)
    assert operator.adjoint(weight, u).shape == x.shape


EXACT = [
    (nn.Linear(5, 3), (5,)),
    (nn.Conv1d(2, 3, 3, padding=1, padding_mode="circular"), (2, 7)),
    (nn.Conv2d(2, 3, (3, 4), padding="same", padding_mode="circular", dilation=2), (2, 7, 8)),
    (nn.Conv2d(2, 4, 3, stride=2, padding=1, padding_mode="circular", groups=2), (2, 8, 6)),
    (nn.Conv3d(2, 2, 3, padding=1, padding_mode="circular"), (2, 4, 5, 3)),
    (nn.Conv2d(3, 4, 1), (3, 4, 4)),
]


@pytest.mark.parametrize(("layer", "shape"), EXACT, ids=lambda value: str(value)[:60])
def test_what_is_promised_to_be_exact_is(assemble, layer, shape):
    layer = layer.double()
    bound = norm_bound(layer, shape, assemble=0)
    assert bound.exact
    assert bound.value == pytest.approx(float(torch.linalg.matrix_norm(assemble(layer, shape), 2)), rel=1e-12)


@pytest.mark.parametrize("stride", [1, 2])
def test_the_bound_for_zero_padding_is_tight_on_a_picture(stride):
    layer = nn.Conv2d(4, 4, 3, stride=stride, padding=1)
    norm, _ = operator_norm(partial(layer_operator(layer, (4, 24, 24)), layer.weight.detach()), (1, 4, 24, 24))
    bound = norm_bound(layer, (4, 24, 24))
    assert not bound.exact
    assert norm <= bound.value <= 1.03 * norm


def test_the_torus_has_room_for_the_padding():
    """On the circle of three points the second difference has norm 3, between zeros 2 + sqrt(2)."""
    layer = nn.Conv1d(1, 1, 3, padding=1, bias=False)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[[-1.0, 2.0, -1.0]]]))
    assert 2 + 2**0.5 <= norm_bound(layer, (1, 3), assemble=0).value <= 4


def test_the_reshaped_weight_has_another_norm():
    """Why the operator: normalising the reshaped kernel would leave this layer three times too large."""
    layer = nn.Conv2d(1, 1, 3, padding=1, bias=False)
    nn.init.constant_(layer.weight, 1 / 3)
    assert torch.linalg.matrix_norm(layer.weight.detach().flatten(1), 2) == pytest.approx(1.0)
    assert norm_bound(layer, (1, 32, 32)).value == pytest.approx(3.0, rel=1e-2)


def test_the_power_method_converges_from_below_at_its_rate():
    A = torch.diag(torch.tensor([3.0, 2.0, 1.0]))
    start = torch.ones(3)
    estimates = torch.stack([power_iteration(lambda v: A @ v, start, k)[0] for k in range(1, 9)])
    errors = 9 - estimates.square()
    assert (errors > 0).all()
    # A Rayleigh quotient converges with the square of the vector's rate (2/3)^2.
    assert torch.allclose(errors[1:] / errors[:-1], torch.tensor((2 / 3) ** 4), rtol=0.15)
    assert errors[-1] / errors[-2] == pytest.approx((2 / 3) ** 4, rel=1e-3)


def test_the_power_method_keeps_its_start_where_it_is_asked_for_no_step():
    norm, v = power_iteration(lambda v: 2 * v, torch.tensor([3.0, 4.0]), 0)
    assert norm == pytest.approx(2.0)
    assert torch.allclose(v, torch.tensor([0.6, 0.8]))


def test_clustered_singular_values_do_not_mislead():
    """The top of a long difference stencil's spectrum is crowded; the power method would take a million steps."""
    layer = nn.Conv1d(1, 1, 3, padding=1, bias=False)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[[-1.0, 2.0, -1.0]]]))
    norm, _ = operator_norm(partial(layer_operator(layer, (1, 400)), layer.weight.detach()), (1, 1, 400))
    exact = 2 + 2 * torch.cos(torch.tensor(torch.pi / 401))
    assert norm == pytest.approx(float(exact), rel=1e-6)


def test_the_null_map_has_norm_zero():
    assert operator_norm(lambda x: 0 * x, (3,))[0] == 0
    assert power_iteration(lambda x: 0 * x, torch.ones(3), 2)[0] == 0


def test_too_few_sweeps_are_said():
    A = torch.diag(torch.linspace(1, 1.01, 300))
    with pytest.warns(RuntimeWarning, match="max_sweeps"):
        operator_norm(lambda v: A @ v, (300,), max_sweeps=1, rtol=1e-12)


def test_a_weight_with_nan_is_an_error():
    with pytest.raises(ValueError, match="not finite"):
        operator_norm(lambda x: x * float("nan"), (3,))


def test_measuring_leaves_the_random_state_alone():
    state = torch.get_rng_state()
    operator_norm(lambda x: 2 * x, (3,))
    assert torch.equal(state, torch.get_rng_state())


def test_schur_is_exact_for_an_average():
    assert schur_bound(lambda x: x.mean(-1), (16,)) == pytest.approx(0.25)


@pytest.mark.parametrize(
    ("layer", "shape", "words"),
    [
        (nn.Bilinear(2, 2, 2), (2,), "Bilinear"),
        (nn.Conv2d(2, 2, 3), None, "give input_shape"),
        (nn.Conv2d(2, 2, 3), (3, 8, 8), "2 input channels"),
        (nn.Conv2d(2, 2, 3), (2, 8), "2 spatial sizes"),
        (nn.Conv2d(2, 2, 3), (2, 2, 8), "smaller than the kernel"),
        (nn.ConvTranspose1d(1, 1, 1, padding=2), (1, 4), "empty"),
        (nn.Linear(4, 2), (8, 3), "4 features"),
    ],
)
def test_a_wrong_request_says_what_is_wrong(layer, shape, words):
    with pytest.raises(ValueError, match=words):
        norm_bound(layer, shape)
