"""The weights of a pass: computed once, in a copy of the field that shares all else with it."""

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize

import resolvent as rs
from resolvent.blocks.weights import frozen_weights
from resolvent.solvers.resolve import solve_options

SHARP = rs.Stopping(rtol=1e-13, atol=1e-14)
POLICIES = ["store", "checkpoint", "reversible"]


class Times(nn.Module):
    """A parametrization; counts how often it is computed."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor, self.calls = factor, 0

    def forward(self, weight: Tensor) -> Tensor:
        self.calls += 1
        return self.factor * weight


class Net(rs.fields.Field):
    """Normalised and ordinary layers, a shared one, and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.plain, self.last = nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3)
        self.shared = nn.Sequential(self.plain, self.first)
        self.register_buffer("calls", torch.zeros(()))
        for times in (0.5, -0.3):
            parametrize.register_parametrization(self.first, "weight", Times(times))
        parametrize.register_parametrization(self.first, "bias", Times(0.2))
        parametrizations.weight_norm(self.last)

    def forward(self, t: float | Tensor, y: Tensor) -> Tensor:
        self.calls += 1
        return self.last(torch.tanh(self.shared(y) + self.first(y)))

    def computed(self) -> list[int]:
        return [module.calls for module in self.modules() if isinstance(module, Times)]


def block(field: rs.fields.Field, memory: str = "store", **options: object) -> rs.ThetaBlock:
    return rs.ThetaBlock(field, 0.5, 3, 0.6, memory=memory, stopping=SHARP, **options)


def gradients(model: nn.Module, x: Tensor) -> list[Tensor | None]:
    return torch.autograd.grad(model(x).square().sum(), list(model.parameters()), allow_unused=True)


def assert_same(ours: list[Tensor | None], theirs: list[Tensor | None]) -> None:
    for a, b in zip(ours, theirs, strict=True):
        assert a is not None
        torch.testing.assert_close(a, b, atol=1e-9, rtol=1e-9)


def test_what_has_no_computed_weights_is_not_copied() -> None:
    for field in (rs.fields.MLP(3, 4, 1), torch.sin):
        with frozen_weights(field) as frozen:
            assert frozen is field


def test_the_copy_computes_the_same_and_shares_what_is_not_computed() -> None:
    field, y = Net(), torch.randn(4, 3)
    names = list(field.state_dict())
    expected = field(0.0, y)
    before = field.computed()
    with frozen_weights(field) as frozen:
        assert field.computed() == [calls + 1 for calls in before]
        for _ in range(2):
            torch.testing.assert_close(frozen(0.0, y), expected)
        assert field.computed() == [calls + 1 for calls in before]
    assert [type(module) for module in (frozen, frozen.first, frozen.last)] == [Net, nn.Linear, nn.Linear]
    assert frozen.plain is field.plain
    assert frozen.shared[1] is frozen.first
    assert frozen.calls is field.calls
    assert field.calls == 3
    assert list(field.state_dict()) == names
    with frozen_weights(frozen) as again:
        assert again is frozen


def test_the_copy_has_the_gradients_of_the_field() -> None:
    field, y = Net(), torch.randn(4, 3)
    expected = torch.autograd.grad(field(0.0, y).square().sum(), list(field.parameters()))
    with frozen_weights(field) as frozen, torch.no_grad():
        frozen(0.0, y)
    assert_same(torch.autograd.grad(frozen(0.0, y).square().sum(), list(field.parameters())), expected)


def test_the_closed_jacobian_of_a_field_is_that_of_its_copy() -> None:
    field, y = rs.fields.Bounded(rs.fields.MLP(3, 4, 1, bound=1.0), -2.0, 0.5, learn_shift=True), torch.randn(4, 3)
    with frozen_weights(field) as frozen:
        for ours, theirs in zip(frozen.with_jacobian(0.0, y), field.with_jacobian(0.0, y), strict=True):
            torch.testing.assert_close(ours, theirs)
        assert torch.equal(frozen.linear_part, field.linear_part)


@pytest.mark.parametrize("memory", POLICIES)
def test_weights_are_computed_once_a_pass_and_never_in_the_backward_pass(memory: str) -> None:
    field, x = Net(), torch.randn(4, 3)
    before = field.computed()
    results = gradients(block(field, memory), x)
    assert field.computed() == [calls + 1 for calls in before]
    plain = x
    for n in range(3):
        interval = rs.schemes.Interval(field, n * 0.2, 0.2, solve_options(None, SHARP, None, "raise"))
        plain = rs.schemes.Theta(0.5).step(interval, rs.schemes.Carry((plain,))).state
    assert_same(results, torch.autograd.grad(plain.square().sum(), list(field.parameters())))


def test_weights_are_computed_once_for_an_interpolation() -> None:
    field = Net()
    before = field.computed()
    block(field).interpolate(torch.randn(4, 3), [0.1, 0.5])
    assert field.computed() == [calls + 1 for calls in before]


@pytest.mark.parametrize("memory", POLICIES)
def test_a_power_iteration_that_moves_with_every_call_moves_once_a_pass(memory: str) -> None:
    """The one of torch, which every computation in training mode moves on."""
    field = rs.Autonomous(parametrizations.spectral_norm(nn.Linear(3, 3)), rowwise=True).train()
    x, twin = torch.randn(4, 3), copy.deepcopy(field)
    results = gradients(block(field, memory), x)
    moved = twin.module.weight
    by_hand = rs.Autonomous(nn.Linear(3, 3), rowwise=True)
    by_hand.load_state_dict({"module.weight": moved, "module.bias": twin.module.bias})
    by_weight, by_bias = gradients(block(by_hand), x)
    expected = torch.autograd.grad(moved, [*twin.module.parametrizations.parameters()], by_weight)
    assert_same(results, [by_bias, *expected])
    assert torch.equal(field.module.parametrizations.weight[0]._u, twin.module.parametrizations.weight[0]._u)


@pytest.mark.parametrize("memory", POLICIES)
def test_a_copied_layer_has_weights_of_its_own(memory: str) -> None:
    """torch gives both one place in its cache."""
    piece = rs.fields.MLP(3, 4, 1, bound=1.0)
    other = copy.deepcopy(piece)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(-0.5)
    both = block(rs.fields.Piecewise([piece, piece, other], 0.6), memory, mode="sequential")
    x = torch.randn(4, 3)
    with frozen_weights(piece) as first, frozen_weights(other) as last:
        expected = block(rs.fields.Piecewise([first, first, last], 0.6), mode="sequential")(x)
    torch.testing.assert_close(both(x), expected)


def test_normalised_layers_in_a_closure_have_gradients() -> None:
    layer, x = rs.spectral.spectral_norm(nn.Linear(3, 3)), torch.randn(4, 3)
    options = {"solver": rs.Picard(), "stopping": SHARP}
    closed = rs.ThetaBlock(lambda t, y: torch.tanh(layer(y)), 0.5, 2, 0.5, **options)
    inside = rs.ThetaBlock(rs.Autonomous(nn.Sequential(layer, nn.Tanh())), 0.5, 2, 0.5, **options)
    results = torch.autograd.grad(closed(x).square().sum(), list(layer.parameters()))
    assert_same(results, gradients(inside, x))


@pytest.mark.parametrize("memory", POLICIES)
def test_a_cache_of_the_users_changes_nothing(memory: str) -> None:
    field, x = rs.fields.MLP(3, 4, 1, bound=1.0), torch.randn(4, 3)
    expected = gradients(block(field), x)
    with parametrize.cached():
        with torch.no_grad():
            block(field)(x)
        assert_same(gradients(block(field, memory), x), expected)


@pytest.mark.parametrize("memory", POLICIES)
def test_a_parameter_with_two_names(memory: str) -> None:
    class Tied(rs.fields.Field):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.outer = nn.Linear(3, 3, bias=False), nn.Linear(3, 3)
            self.outer.weight = self.inner.weight

        def forward(self, t: float | Tensor, y: Tensor) -> Tensor:
            return 0.5 * self.outer(torch.tanh(self.inner(y)))

    field, x = Tied(), torch.randn(4, 3)
    assert_same(gradients(block(field, memory), x), gradients(block(field), x))


def test_weights_of_a_functional_call() -> None:
    model, x = block(rs.fields.MLP(3, 4, 1, bound=1.0).eval()), torch.randn(4, 3)
    model(x)
    own = {name: value.detach() for name, value in model.state_dict().items()}
    other = {name: -0.5 * value if name.endswith("original") else value for name, value in own.items()}

    def call(weights: dict[str, Tensor]) -> Tensor:
        return torch.func.functional_call(model, weights, (x,))

    both = torch.func.vmap(call)({name: torch.stack([own[name], other[name]]) for name in own})
    for ours, weights in zip(both, (own, other), strict=True):
        torch.testing.assert_close(ours, call(weights), atol=1e-9, rtol=1e-9)
    assert not torch.allclose(both[0], both[1])
