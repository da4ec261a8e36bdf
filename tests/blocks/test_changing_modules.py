"""Modules that are another function in each call are refused in every pass, whatever was checked before."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import resolvent as rs
from resolvent.blocks import FrozenRandomness
from resolvent.blocks.changing_modules import refuse_changing_modules

REFUSED = r"a \w+, gives another result each time it is called in training mode"

CHANGING: dict[str, Callable[[], nn.Module]] = {
    "batch norm": lambda: nn.BatchNorm1d(4),
    "batch norm without running statistics": lambda: nn.BatchNorm1d(4, track_running_stats=False),
    "running statistics of samples": lambda: nn.InstanceNorm1d(4, track_running_stats=True),
    "dropout": lambda: nn.Dropout(0.1),
    "alpha dropout": lambda: nn.AlphaDropout(0.1),
    "random slopes": nn.RReLU,
    "attention with dropout": lambda: nn.MultiheadAttention(4, 2, dropout=0.1),
    "recurrent with dropout": lambda: nn.GRU(4, 4, 2, dropout=0.1),
}
STEADY: dict[str, Callable[[], nn.Module]] = {
    "dropout of nothing": lambda: nn.Dropout(0.0),
    "instance norm": lambda: nn.InstanceNorm1d(4),
    "fixed slopes": lambda: nn.RReLU(0.2, 0.2),
    "attention": lambda: nn.MultiheadAttention(4, 2),
    "recurrent, with one layer": lambda: nn.GRU(4, 4),
    "group norm": lambda: nn.GroupNorm(2, 4),
    "frozen dropout": lambda: FrozenRandomness(nn.Dropout(0.5)),
    "frozen attention": lambda: FrozenRandomness(nn.MultiheadAttention(4, 2, dropout=0.1)),
}


def network(layer: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), layer, nn.Tanh())


class Injected(nn.Module):
    """A function of an equilibrium."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, z: Tensor, x: Tensor) -> Tensor:
        return 0.2 * self.inner(z) + x


LAYERS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "implicit": lambda net: rs.ThetaBlock(rs.Autonomous(net), 0.5, 2, 0.5),
    "recomputed": lambda net: rs.ThetaBlock(rs.Autonomous(net), 0.0, 2, 0.5, memory="checkpoint"),
    "stages": lambda net: rs.Block(rs.Autonomous(net), rs.schemes.RungeKutta(rs.schemes.tableaux.SDIRK3), 2, 0.5),
    "equilibrium": lambda net: rs.Equilibrium(Injected(net)),
    "converted": lambda net: rs.make_implicit(net, predicate=lambda name, _: name == "", kind="branch"),
}


def second_module(layer: nn.Module) -> nn.Module:
    """That of the `network` in a layer; a conversion copies the modules."""
    (net,) = (module for module in layer.modules() if type(module) is nn.Sequential)
    return net[1]


@pytest.mark.parametrize("name", CHANGING)
def test_a_module_that_changes_is_named(name: str) -> None:
    with pytest.raises(ValueError, match=rf"1, {REFUSED}"):
        refuse_changing_modules(network(CHANGING[name]()))
    refuse_changing_modules(network(CHANGING[name]()).eval())


@pytest.mark.parametrize("name", STEADY)
def test_a_module_that_does_not_change_passes(name: str) -> None:
    refuse_changing_modules(network(STEADY[name]()))


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("make", [lambda: nn.BatchNorm1d(4), lambda: nn.Dropout(0.1)])
def test_the_next_call_of_train_is_noticed(kind: str, make: Callable[[], nn.Module]) -> None:
    """The mode is set again in each epoch, and the exception for one module is forgotten."""
    layer, x = LAYERS[kind](network(make())), torch.randn(6, 4)
    changing = second_module(layer)
    layer.train()
    changing.eval()
    layer(x).sum().backward()
    layer.train()
    with pytest.raises(ValueError, match=REFUSED):
        layer(x)
    changing.eval()
    assert layer(x).isfinite().all()


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("rows", [1, 6])
def test_the_first_batch_may_have_any_size(kind: str, rows: int) -> None:
    with pytest.raises(ValueError, match=REFUSED):
        LAYERS[kind](network(nn.Dropout(0.3)))(torch.randn(rows, 4))


@pytest.mark.parametrize("kind", LAYERS)
def test_a_probability_that_is_raised_is_noticed(kind: str) -> None:
    layer, x = LAYERS[kind](network(nn.Dropout(0.0))), torch.randn(6, 4)
    assert layer(x).isfinite().all()
    second_module(layer).p = 0.2
    with pytest.raises(ValueError, match=REFUSED):
        layer(x)


def test_one_module_that_stays_in_training_mode_is_noticed() -> None:
    drop = nn.Dropout(0.2)
    block = rs.ThetaBlock(rs.Autonomous(network(drop)), 0.5).eval()
    drop.train()
    with pytest.raises(ValueError, match=rf"module\.1, {REFUSED}"):
        block(torch.randn(6, 4))


def test_states_of_several_tensors_are_no_exception() -> None:
    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.drop = nn.Dropout(0.3)

        def forward(self, t: float | Tensor, y: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
            return self.drop(y[1]), -y[0]

    with pytest.raises(ValueError, match=f"drop, {REFUSED}"):
        rs.ThetaBlock(Pair(), 0.5)((torch.randn(3, 2), torch.randn(3, 2)))


def test_explicit_layers_may_change_in_every_pass() -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))
    for layer in (
        rs.ThetaBlock(rs.Autonomous(net), 0.0, 2, 0.5),
        rs.make_implicit(net, 0.0, predicate=lambda name, _: name == "", kind="branch"),
    ):
        for _ in range(2):
            assert layer.train()(torch.randn(6, 4)).isfinite().all()


def test_a_theta_that_leaves_zero_is_noticed() -> None:
    block, x = rs.ThetaBlock(rs.Autonomous(network(nn.BatchNorm1d(4))), 0.0), torch.randn(6, 4)
    block(x)
    block.theta = 0.25
    with pytest.raises(ValueError, match=REFUSED):
        block(x)


def test_frozen_dropout_is_drawn_in_every_pass() -> None:
    block, x = rs.ThetaBlock(rs.Autonomous(FrozenRandomness(network(nn.Dropout(0.5)))), 0.5), torch.randn(6, 4)
    one, other = block(x), block.train()(x)
    assert not torch.equal(one, other)
