"""MLP, Conv and Autonomous: their form, their initial weights and their bounds."""

import math
from functools import partial

import pytest
import torch
from torch import Tensor, nn

import resolvent as rs
from resolvent.fields import MLP, Autonomous, Bounded, Conv, Field, Piecewise, Sin
from resolvent.spectral import norm_bound


def parameters(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def quotients(field: Field, count: int = 2000, reach: float = 1e-3) -> Tensor:
    """Difference quotients at random places, near and far."""
    u = 3 * torch.randn(count, *field.shape)
    v = u + reach * torch.randn_like(u)
    return (field(0.0, u) - field(0.0, v)).flatten(1).norm(dim=1) / (u - v).flatten(1).norm(dim=1)


@pytest.mark.parametrize(("dim", "width", "depth", "count"), [(2, 10, 3, 380), (1, 4, 2, 52), (2, 20, 4, 1780)])
def test_the_mlp_has_the_parameters_of_the_papers_formula(dim, width, depth, count):
    assert parameters(MLP(dim, width, depth)) == count
    assert parameters(MLP(dim, width, depth, bound=1.0)) == count


def test_the_mlp_is_the_papers_formula():
    field = MLP(2, 5, 2, nn.Tanh())
    (w_in, w1, w2, w_out) = (layer.weight for layer in field.layers)
    b0, b1, b2 = (layer.bias for layer in field.layers[:-1])
    for b in (b0, b1, b2):
        nn.init.normal_(b)
    y = torch.randn(7, 2)
    by_hand = torch.tanh(torch.tanh(torch.tanh(y @ w_in.T + b0) @ w1.T + b1) @ w2.T + b2) @ w_out.T
    assert torch.allclose(field(0.0, y), by_hand)
    assert field.layers[-1].bias is None


def test_xavier_uniform_and_zero_biases():
    field = MLP(50, 400, 1)
    for layer in field.layers:
        limit = math.sqrt(6 / sum(layer.weight.shape))
        assert layer.weight.abs().max() <= limit
        assert layer.weight.detach().std() == pytest.approx(limit / math.sqrt(3), rel=0.05)
        assert layer.bias is None or not layer.bias.any()


def test_the_unit_initialisation_has_unit_frobenius_norms():
    for layer in MLP(20, 40, 2, init="xavier_unit").layers:
        assert layer.weight.detach().norm() == pytest.approx(1.0, rel=0.1)
    with pytest.raises(ValueError, match="got 'kaiming'"):
        MLP(2, 2, 1, init="kaiming")


def test_conv_activates_first():
    field = Conv(2, 2, 3, size=(5, 5))
    y = torch.randn(4, 2, 5, 5)
    first, second = field.layers
    assert torch.allclose(field(0.0, y), second(torch.relu(first(torch.relu(y)))))
    assert torch.equal(field(0.0, -y.abs()), field(0.0, torch.zeros_like(y)))


@pytest.mark.parametrize("size", [(9,), (6, 5), (4, 3, 5)])
@pytest.mark.parametrize("depth", [1, 3])
def test_conv_in_one_two_and_three_dimensions(size, depth):
    field = Conv(2, depth, 3, size=size, bound=1.0, padding_mode="circular")
    y = torch.randn(3, 2, *size)
    assert field(0.0, y).shape == y.shape
    assert len(field.layers) == depth
    assert field.lipschitz() <= 1 + 1e-6


def test_a_conv_without_a_size_takes_any():
    field = Conv(3, dims=1)
    for n in (4, 9):
        assert field(0.0, torch.randn(2, 3, n)).shape == (2, 3, n)
    with pytest.raises(ValueError, match="size="):
        field.lipschitz()


def test_a_conv_with_a_size_takes_no_other():
    with pytest.raises(ValueError, match=r"made for states \(2, 4, 4\), got \(2, 5, 4\)"):
        Conv(2, size=(4, 4))(0.0, torch.randn(1, 2, 5, 4))


ACTIVATIONS = [nn.ReLU(), nn.Tanh(), nn.GELU(), nn.GELU("tanh"), nn.SiLU(), nn.SELU(), nn.ELU(2.0), Sin(), nn.Sigmoid()]
FIELDS = {
    "mlp": partial(MLP, 3, 6, 2),
    "conv": partial(Conv, 2, 2, 3, size=(4, 4)),
    "circular": partial(Conv, 2, 2, 3, size=(4, 4), padding_mode="circular"),
    "reflect": partial(Conv, 2, 1, size=(4, 4), padding_mode="reflect"),
}


def large(make: partial[Field], **options: object) -> Field:
    """A field with weights far above its bound, so that the bound is really at work."""
    field = make(**options)
    with torch.no_grad():
        for layer in field.layers:
            weight = layer.parametrizations.weight.original if "bound" in options else layer.weight
            weight.mul_(10)
    return field.eval()


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=str)
@pytest.mark.parametrize("kind", FIELDS)
def test_the_bound_holds_with_every_activation(kind, activation):
    field = large(FIELDS[kind], activation=activation, bound=1.0)
    assert quotients(field).max() <= 1 + 1e-6
    assert field.lipschitz() <= 1 + 1e-6


def test_gelu_would_break_the_bound_if_it_were_not_scaled():
    """One layer at the steepest place of GELU: what the division by 1.129 is for."""
    field = MLP(1, 1, 0, nn.GELU(), bound=1.0)
    with torch.no_grad():
        field.layers[0].weight = torch.ones(1, 1)
        field.layers[1].weight = torch.ones(1, 1)
    u = torch.tensor([[math.sqrt(2)]])
    slope = (field(0.0, u + 1e-4) - field(0.0, u - 1e-4)) / 2e-4
    assert float(slope.detach()) == pytest.approx(1.0, abs=1e-6)
    field.activation = field.activation.activation
    slope = (field(0.0, u + 1e-4) - field(0.0, u - 1e-4)) / 2e-4
    assert float(slope.detach()) == pytest.approx(1.1289, abs=1e-4)


@pytest.mark.parametrize("kind", FIELDS)
@pytest.mark.parametrize("bound", [0.5, 4.0])
def test_any_bound_is_shared_among_the_layers(kind, bound):
    field = large(FIELDS[kind], bound=bound)
    shares = [layer.parametrizations.weight[0].bound for layer in field.layers]
    assert math.prod(shares) == pytest.approx(bound)
    assert quotients(field).max() <= bound * (1 + 1e-6)
    assert field.lipschitz() >= bound * (1 - 1e-5)


@pytest.mark.parametrize("kind", FIELDS)
def test_a_field_without_a_bound_has_a_certified_constant_too(kind):
    field = large(FIELDS[kind])
    assert field.bound is None
    assert quotients(field).max() <= field.lipschitz()


class Cube(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.clamp(x, -1, 1) ** 3


def test_an_unknown_activation_is_refused_or_declared():
    with pytest.raises(ValueError, match=r"slopes of Cube.*slopes=\(smallest, largest\)"):
        MLP(2, 4, 1, Cube(), bound=1.0)
    field = large(partial(MLP, 2, 4, 1, Cube()), bound=1.0, slopes=(0.0, 3.0))
    assert quotients(field).max() <= 1 + 1e-6
    assert field.lipschitz() <= 1 + 1e-6
    with pytest.raises(ValueError, match="slopes of Cube"):
        MLP(2, 4, 1, Cube()).lipschitz()
    with pytest.raises(ValueError, match="slopes of PReLU"):
        MLP(2, 4, 1, nn.PReLU(), bound=1.0)


@pytest.mark.parametrize("kind", ["mlp", "conv"])
def test_training_keeps_the_field_within_its_bound(kind):
    field = FIELDS[kind](bound=1.0)
    y = torch.randn(16, *field.shape)
    target = 5 * torch.randn_like(y)
    optimizer = torch.optim.Adam(field.parameters(), lr=1e-2)
    for step in range(200):
        optimizer.zero_grad()
        (field(0.0, y) - target).square().mean().backward()
        optimizer.step()
        if step % 20 == 0:
            assert quotients(field, 200).max() <= 1.2
    assert quotients(field.eval()).max() <= 1 + 1e-6
    assert max(norm_bound(layer, (layer.weight.shape[1], *field.shape[1:])).value for layer in field.layers) >= 0.9


def test_fields_are_row_by_row():
    for make in FIELDS.values():
        field = make()
        y = torch.randn(4, *field.shape)
        assert field.rowwise
        assert torch.allclose(field(0.0, y)[1:3], field(0.0, y[1:3]))


def test_any_module_is_a_field():
    module = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
    field = Autonomous(module)
    y = torch.randn(2, 3)
    assert torch.equal(field(1.0, y), module(y))
    assert field.rowwise
    assert field.autonomous
    assert field.linear_part is None
    with pytest.raises(ValueError, match="no guaranteed Lipschitz constant"):
        field.lipschitz()


def test_what_is_said_of_a_module_is_known_of_the_field():
    field = Autonomous(nn.Linear(2, 2), rowwise=True, linear_part=-3.0, lipschitz=2.0, shape=(2,))
    assert (field.rowwise, field.linear_part, field.lipschitz(), field.shape) == (True, -3.0, 2.0, (2,))
    tensor = Autonomous(nn.Linear(2, 2), linear_part=torch.tensor([1.0, 2.0])).float().linear_part
    assert tensor.dtype == torch.float32
    with pytest.raises(ValueError, match="got -1"):
        Autonomous(nn.Linear(2, 2), lipschitz=-1.0)


def test_what_is_no_module_or_no_field_is_refused_with_the_fix():
    with pytest.raises(ValueError, match=r"a module or a function .* got 3"):
        Autonomous(3)
    with pytest.raises(ValueError, match="MLP is a field already: use it directly"):
        Autonomous(MLP(2, 3, 1))
    with pytest.raises(ValueError, match="<lambda> is a field already"):
        Autonomous(lambda t, y: y)
    with pytest.raises(
        ValueError, match=r"Bounded takes a field, .* got Linear: wrap a module in rs\.Autonomous\(module, l"
    ):
        Bounded(nn.Linear(2, 2), -1.0, 1.0)
    with pytest.raises(ValueError, match=r"Piecewise takes a field, .* got Linear"):
        Piecewise([MLP(2, 3, 1), nn.Linear(2, 2)])
    with pytest.raises(ValueError, match=r"velocity is called with the two arguments \(t, y\), which Linear cannot"):
        rs.fields.Partitioned(nn.Linear(2, 2), MLP(2, 3, 1))


def test_nothing_is_assumed_of_a_field_that_declares_nothing():
    """Solvers may then call it with the whole batch only."""

    class Plain(Field):
        def forward(self, t, y):
            return -y

    field = Plain()
    assert not field.rowwise
    assert not field.autonomous
    assert (field.shape, field.bound, field.linear_part, field.value_and_jacobian) == (None, None, None, None)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: MLP(0, 2, 1), "got 0, 2 and 1"),
        (lambda: MLP(2, 2, 1, bound=-1.0), "got -1"),
        (lambda: Conv(2, bound=1.0), "give size"),
        (lambda: Conv(2, dims=4), "got 4"),
        (lambda: Conv(2, 0), "got 2, 0"),
    ],
)
def test_wrong_arguments_are_refused(make, words):
    with pytest.raises(ValueError, match=words):
        make()
