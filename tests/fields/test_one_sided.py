"""OneSided: slopes below the limit that its docstring proves, however steep the field is to the left."""

import pytest
import torch
from torch import nn

import resolvent as rs
from resolvent.fields import OneSided
from seeding import shifted

LAYERS = {
    "linear": (lambda: nn.Linear(4, 7), (4,)),
    "narrow": (lambda: nn.Linear(4, 2), (4,)),
    "conv1d": (lambda: nn.Conv1d(2, 3, 3, padding=1), (2, 5)),
    "conv2d": (lambda: nn.Conv2d(1, 3, 3, padding=1), (1, 4, 4)),
    "strided": (lambda: nn.Conv2d(2, 4, 3, stride=2, groups=2), (2, 6, 4)),
}
every_layer = pytest.mark.parametrize("kind", LAYERS)


@pytest.fixture(autouse=True)
def double_precision():
    torch.manual_seed(shifted(0))
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


def field_of(kind: str, high: float, steep: float = 1.0, activation: nn.Module | None = None) -> OneSided:
    layer, shape = LAYERS[kind]
    field = OneSided(layer(), high, activation, input_shape=shape)
    with torch.no_grad():
        field.layer.weight.mul_(steep)
        field.mixing.parametrizations.weight.original.mul_(100.0)
        field.log_scale.normal_()
    return field


def largest_slope(field: OneSided, spread: float = 2.0) -> float:
    return rs.analysis.one_sided_lipschitz(field, 0.0, spread * torch.randn(16, *field.shape)).max().item()


@every_layer
@pytest.mark.parametrize("activation", [nn.Softplus(), nn.ReLU(), nn.SELU()], ids=str)
@pytest.mark.parametrize("steep", [1.0, 30.0])
def test_slopes_stay_below_the_limit(kind, activation, steep):
    assert largest_slope(field_of(kind, 2.0, steep, activation)) <= 2.0 * (1 + 1e-6)


def test_the_limit_is_sharp():
    field = OneSided(nn.Linear(1, 1), 2.0, nn.Identity())
    with torch.no_grad():
        field.log_scale.zero_()
        field.layer.weight.fill_(2.0**0.5)
        field.mixing.parametrizations.weight.original.fill_(1.0)
    assert largest_slope(field) == pytest.approx(2.0)


def test_the_norm_is_free():
    field = field_of("linear", 1.0, steep=100.0)
    J = rs.analysis.Jacobian(lambda y: field(0.0, y), torch.randn(8, 4)).matrix()
    assert torch.linalg.matrix_norm(J, 2).max() > 100
    assert torch.linalg.matrix_norm(J, 2).max() <= field.lipschitz()


def test_every_step_below_the_limit_has_its_solution():
    field = field_of("linear", 2.0, steep=30.0)
    block = rs.ThetaBlock(field, theta=1.0, num_steps=3, horizon=3 * 0.9 / 2.0)
    assert all(bool(solution.converged.all()) for solution in block.trajectory(torch.randn(32, 4)).solutions)


@pytest.mark.parametrize("activation", [nn.Softplus(), nn.SELU(), nn.Tanh()], ids=str)
def test_the_jacobian_in_closed_form(activation):
    field, y = field_of("linear", 2.0, activation=activation), torch.randn(5, 4)
    known = field.value_and_jacobian
    if known is None:
        assert isinstance(activation, nn.SELU)
        return
    value, jacobian = known(0.0, y)
    torch.testing.assert_close(value, field(0.0, y))
    torch.testing.assert_close(jacobian, rs.analysis.Jacobian(lambda x: field(0.0, x), y).matrix())


def test_all_of_its_weights_are_learned():
    field = field_of("conv2d", 1.0)
    field(0.0, torch.randn(3, 1, 4, 4)).square().sum().backward()
    assert all(weight.grad is not None and bool(weight.grad.any()) for weight in field.parameters())
    assert len(list(field.parameters())) == 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"high": 0.0}, "high must be a positive number"),
        ({"scale": -1.0}, "scale must be a positive number"),
        ({"activation": nn.GELU()}, "non-decreasing"),
        ({"layer": nn.Tanh()}, "layer must be a Linear"),
    ],
)
def test_wrong_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        OneSided(**{"layer": nn.Linear(2, 3), "high": 1.0, **arguments})
