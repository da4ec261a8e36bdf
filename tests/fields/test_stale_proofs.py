"""A proof is of a module as it was: what changes later is noticed, and so is what a graph does not show."""

import copy
import types
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook

import resolvent as rs
from resolvent.models.layer_field import Scaled


class Own(nn.Module):
    """A module with some attributes and a `forward` that is given."""

    def __init__(self, body: Callable[[Any, Tensor], Tensor], **attributes: Any) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.body = body
        for name, value in attributes.items():
            if type(value) is Tensor:
                self.register_buffer(name, value)
            else:
                setattr(self, name, value)

    def forward(self, y: Tensor) -> Tensor:
        return self.body(self, y)


def mixed(y: Tensor) -> Tensor:
    return y - y.mean(0)


def chosen(own: Own, y: Tensor, flag: bool) -> Tensor:
    return mixed(own.linear(y)) if flag else own.linear(y)


def with_default(own: Own, y: Tensor) -> Tensor:
    added = getattr(own, "added", None)
    return own.linear(y) if added is None else own.linear(y) + added


def in_order(own: Own, y: Tensor) -> Tensor:
    for name in own.order:
        y = mixed(y) if name == "mix" else own.linear(y)
    return y


def patch(module: nn.Module) -> None:
    module.forward = types.MethodType(lambda own, y: mixed(y), module)  # type: ignore[method-assign]


def with_bias(module: Any) -> None:
    module.linear.bias = nn.Parameter(torch.randn(3, 4))


def setting(name: str, value: Any) -> Callable[[nn.Module], None]:
    return lambda module: setattr(module, name, value)


class Options:
    mix = False

    def __init__(self) -> None:
        self.inner = {"mix": False}


plain = partial(Own, lambda m, y: m.linear(y))
CHANGES: dict[str, tuple[Callable[[], nn.Module], Callable[[Any], object]]] = {
    "a flag": (lambda: Own(lambda m, y: chosen(m, y, m.mix), mix=False), setting("mix", True)),
    "a dimension": (lambda: Own(lambda m, y: torch.softmax(y, m.dim), dim=1), setting("dim", 0)),
    "a function": (lambda: Own(lambda m, y: m.act(m.linear(y)), act=torch.tanh), setting("act", mixed)),
    "arguments of a function": (
        lambda: Own(lambda m, y: m.act(y), act=partial(torch.softmax, dim=1)),
        lambda m: m.act.keywords.update(dim=0),
    ),
    "a number that becomes a tensor": (
        lambda: Own(lambda m, y: m.linear(y) + m.c, c=0.0),
        setting("c", torch.randn(3, 4)),
    ),
    "an attribute that was not there": (lambda: Own(with_default), setting("added", torch.randn(3, 4))),
    "a list": (lambda: Own(in_order, order=["linear"]), lambda m: m.order.append("mix")),
    "an object": (lambda: Own(lambda m, y: chosen(m, y, m.o.mix), o=Options()), lambda m: setattr(m.o, "mix", True)),
    "an object inside": (
        lambda: Own(lambda m, y: chosen(m, y, m.o.inner["mix"]), o=Options()),
        lambda m: m.o.inner.update(mix=True),
    ),
    "the shape of a buffer": (
        lambda: Own(lambda m, y: m.linear(y) + m.c, c=torch.zeros(1, 4)),
        setting("c", torch.randn(3, 4)),
    ),
    "the shape of a parameter": (
        lambda: Own(lambda m, y: m.linear(y) * m.c, c=nn.Parameter(torch.ones(4))),
        setting("c", nn.Parameter(torch.randn(3, 4))),
    ),
    "a tensor in a choice": (
        lambda: Own(lambda m, y: chosen(m, y, bool(m.o[0])), o=[torch.tensor(False)]),
        lambda m: m.o[0].fill_(True),
    ),
    "the bias of a layer": (plain, with_bias),
    "the shape of a layer norm": (
        lambda: nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)),
        lambda m: m.append(nn.LayerNorm((3, 4))).__delitem__(1),
    ),
    "the order of layers": (
        lambda: nn.Sequential(nn.Flatten(1), nn.Linear(4, 4)),
        lambda m: setattr(m, "_modules", dict(reversed(m._modules.items()))),
    ),
    "running statistics": (
        lambda: nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).eval(),
        lambda m: [setattr(m[1], name, None) for name in ("running_mean", "running_var")],
    ),
    "a patched module": (plain, patch),
    "a patched layer": (plain, lambda m: patch(m.linear)),
    "a slice": (
        lambda: Own(lambda m, y: m.linear(y) + y[m.where].sum(1, keepdim=True), where=[slice(None), slice(1, 2)]),
        lambda m: m.where.__setitem__(0, slice(0, 1)),
    ),
    "one mode for parts": (
        lambda: nn.Sequential(plain(), nn.Linear(4, 4)),
        lambda m: m[0].eval(),
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_changes_are_noticed(name: str) -> None:
    make, change = CHANGES[name]
    module = make()
    field = rs.Autonomous(module)
    assert field.rowwise
    assert copy.deepcopy(field).rowwise or name == "a tensor in a choice"
    change(module)
    assert not field.rowwise


class Calling(nn.Linear):
    def __call__(self, y: Tensor) -> Tensor:
        return mixed(super().__call__(y))


class Counting(nn.Module):
    """Mixes samples from the third call on."""

    def __init__(self, buffer: bool) -> None:
        super().__init__()
        self.linear, self.buffer, self.number = nn.Linear(4, 4), buffer, 0
        self.register_buffer("calls", torch.tensor(0))

    def forward(self, y: Tensor) -> Tensor:
        if self.buffer:
            self.calls += 1
            return mixed(y) if self.calls > 2 else self.linear(y)
        self.number += 1
        return mixed(y) if self.number > 2 else self.linear(y)


class Remembering(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.last = nn.Linear(4, 4), None

    def forward(self, y: Tensor) -> Tensor:
        value = self.linear(y)
        value = value if self.last is None else value + self.last
        self.last = y.detach()
        return value


def by_length(own: Own, y: Tensor) -> Tensor:
    try:
        return own.linear(y) / len(y)
    except Exception:
        return own.linear(y)


def by_value(own: Own, y: Tensor) -> Tensor:
    try:
        return mixed(y) if y.sum() > 0 else own.linear(y)
    except Exception:
        return own.linear(y)


def by_data(own: Own, y: Tensor) -> Tensor:
    value = own.linear(y)
    value.data = own.rows
    return value


HIDDEN: dict[str, Callable[[], nn.Module]] = {
    "a call of its own": lambda: Calling(4, 4),
    "a layer with a call of its own": lambda: nn.Sequential(Calling(4, 4), nn.Tanh()),
    "a choice by a buffer": lambda: Own(lambda m, y: chosen(m, y, m.on), on=torch.tensor(False)),
    "a choice by a count": lambda: Counting(buffer=False),
    "a choice by a count in a buffer": lambda: Counting(buffer=True),
    "the samples of the last call": Remembering,
    "an exception for the length": lambda: Own(by_length),
    "an exception for a choice": lambda: Own(by_value),
    "data that is set": lambda: Own(by_data, rows=torch.randn(3, 4)),
    "statistics that are None": lambda: nn.BatchNorm1d(4, track_running_stats=False).eval(),
}


@pytest.mark.parametrize("name", HIDDEN)
def test_what_a_graph_does_not_show(name: str) -> None:
    assert not rs.Autonomous(HIDDEN[name]()).rowwise


def test_a_hook_for_all_modules() -> None:
    field = rs.Autonomous(nn.Sequential(nn.Linear(4, 4), nn.Tanh()))
    handle = register_module_forward_hook(lambda module, inputs, output: None)
    try:
        assert not field.rowwise
        assert field.value_and_jacobian is None
    finally:
        handle.remove()
    assert field.rowwise


def test_an_attribute_that_cannot_be_compared_must_not_be_read() -> None:
    many = [0.0] * 100_000
    assert rs.Autonomous(Own(lambda m, y: m.linear(y), many=many, table=bytearray(3))).rowwise
    assert not rs.Autonomous(Own(lambda m, y: chosen(m, y, m.many[0] > 0), many=many)).rowwise
    assert not rs.Autonomous(Own(lambda m, y: chosen(m, y, m.table[0] > 0), table=bytearray(3))).rowwise


class Backwards(rs.Autonomous):
    def forward(self, t: float | Tensor, y: Tensor) -> Tensor:
        return -mixed(super().forward(t, y))


def test_a_derived_field_with_its_own_forward() -> None:
    network = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    assert not Backwards(network).rowwise
    assert Backwards(network).value_and_jacobian is None
    assert Backwards(network, rowwise=True).rowwise


@pytest.mark.parametrize("change", [patch, lambda layer: setattr(layer, "__class__", Calling)])
def test_the_jacobian_is_not_of_a_layer_that_does_more(change: Callable[[nn.Module], None]) -> None:
    network = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    change(network[0])
    assert rs.Autonomous(network).value_and_jacobian is None


def normalised() -> rs.Autonomous:
    return rs.Autonomous(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), shape=(4,), lipschitz=1.0)


OUTER: dict[str, Callable[[], rs.fields.Field]] = {
    "Bounded": lambda: rs.fields.Bounded(normalised(), -1.0, 0.5),
    "Partitioned": lambda: rs.fields.Partitioned(normalised(), normalised()),
    "Piecewise": lambda: rs.fields.Piecewise([normalised(), normalised()]),
    "Scaled": lambda: Scaled(normalised()),
}


@pytest.mark.parametrize("name", OUTER)
def test_a_field_around_a_field_follows_its_claim(name: str) -> None:
    field = OUTER[name]()
    for training in (True, False, True):
        assert field.train(training).rowwise is not training


def test_a_part_in_evaluation_mode_keeps_its_mode_in_the_claim() -> None:
    frozen = nn.Sequential(plain(), nn.BatchNorm1d(4))
    frozen[1].eval()
    assert rs.Autonomous(frozen).rowwise


@pytest.mark.parametrize("kind", [nn.Linear, nn.Conv2d])
def test_the_proof_does_not_change_the_module(kind: type[nn.Module]) -> None:
    layer = nn.Linear(4, 4) if kind is nn.Linear else nn.Conv2d(2, 2, 3, padding=1)
    weight = nn.utils.parametrizations.spectral_norm(layer)
    counting = Own(lambda m, y: m.linear(y) * torch.relu_(m.c), c=nn.Parameter(-torch.ones(4), requires_grad=False))
    before = copy.deepcopy([weight.state_dict(), counting.state_dict()])
    assert rs.Autonomous(nn.Sequential(weight, nn.Tanh())).rowwise
    assert not rs.Autonomous(counting).rowwise
    for state, module in zip(before, (weight, counting), strict=True):
        for name, value in module.state_dict().items():
            assert torch.equal(value, state[name])


class Told(nn.Module):
    """Tells a tensor from what stands for it in a graph."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, z: Tensor) -> Tensor:
        return 0.1 * self.linear(z - z.mean(0) if isinstance(z, Tensor) else z)


class ToldWithInput(Told):
    def forward(self, z: Tensor, x: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(z) + x


@pytest.mark.parametrize("training", [True, False])
def test_layers_check_a_proof(training: bool) -> None:
    y = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    field = rs.Autonomous(Told())
    assert field.rowwise
    message = "couples the samples" if training else "a sample alone does not get the result"
    with pytest.raises(ValueError, match=message):
        rs.ThetaBlock(field, 0.5, 2, 1.0).train(training)(y)
    layer = rs.Equilibrium(ToldWithInput())
    assert layer.rowwise
    with pytest.raises(ValueError, match=message):
        layer.train(training)(y)
    with pytest.raises(ValueError, match="a sample alone does not get the result"):
        rs.odeint(field, y, torch.linspace(0, 1, 3))
