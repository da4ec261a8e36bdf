"""Existing networks made implicit, with the weights they have."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import resolvent as rs
from resolvent.blocks import ThetaBlock, make_implicit
from resolvent.fields import Autonomous


class Branch(nn.Sequential):
    def __init__(self, channels: int, norm: nn.Module | None = None) -> None:
        super().__init__(
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1),
            norm or nn.Identity(),
            nn.Tanh(),
            nn.Conv2d(channels, channels, 3, padding=1),
        )
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.mul_(0.5)


class Residual(nn.Module):
    def __init__(self, channels: int, norm: nn.Module | None = None) -> None:
        super().__init__()
        self.branch = Branch(channels, norm)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.branch(x)


def network(norm: nn.Module | None = None) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1),
        nn.Sequential(Residual(4), Residual(4, norm)),
        nn.Conv2d(4, 6, 3, stride=2, padding=1),
        Residual(6),
        nn.Flatten(),
        nn.Linear(6 * 9, 3),
    )


def residual(name: str, module: nn.Module) -> bool:
    return isinstance(module, Residual)


def branch(name: str, module: nn.Module) -> bool:
    return isinstance(module, Branch)


CHOICES = [("block", residual), ("branch", branch)]


@pytest.mark.parametrize(("kind", "predicate"), CHOICES)
def test_layers_satisfy_the_implicit_equation(kind: str, predicate: object) -> None:
    model = network()
    implicit = make_implicit(model, theta=1.0, predicate=predicate, kind=kind)
    x = torch.randn(2, 4, 6, 6)
    y = implicit[1][0](x)
    torch.testing.assert_close(y, x + model[1][0].branch(y), atol=1e-8, rtol=0)
    layer = implicit[1][0] if kind == "block" else implicit[1][0].branch
    assert isinstance(layer.block, ThetaBlock)
    image = torch.randn(2, 1, 6, 6)
    assert implicit(image).shape == (2, 3)
    assert (implicit(image) - model(image)).abs().max() > 1e-4


@pytest.mark.parametrize(("kind", "predicate"), CHOICES)
def test_zero_is_the_model_itself(kind: str, predicate: object) -> None:
    model, image = network(), torch.randn(2, 1, 6, 6)
    implicit = make_implicit(model, theta=0.0, predicate=predicate, kind=kind)
    torch.testing.assert_close(implicit(image), model(image), atol=1e-13, rtol=0)


@pytest.mark.parametrize(("kind", "predicate"), CHOICES)
def test_weights_are_shared_and_the_model_is_left_alone(kind: str, predicate: object) -> None:
    model, image = network(), torch.randn(2, 1, 6, 6)
    before, structure = model(image), repr(model)
    implicit = make_implicit(model, theta=0.5, predicate=predicate, kind=kind)
    assert repr(model) == structure
    assert torch.equal(model(image), before)
    assert {id(p) for p in implicit.parameters()} == {id(p) for p in model.parameters()}
    implicit(image).sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    with torch.no_grad():
        model[5].weight.zero_()
    assert torch.equal(implicit[5].weight, model[5].weight)


@pytest.mark.parametrize(("kind", "predicate"), CHOICES)
def test_state_dicts_load_both_ways(kind: str, predicate: object) -> None:
    explicit, image = network(nn.GroupNorm(2, 4)), torch.randn(2, 1, 6, 6)
    implicit = make_implicit(network(nn.GroupNorm(2, 4)), theta=0.5, predicate=predicate, kind=kind)
    assert list(implicit.state_dict()) == list(explicit.state_dict())

    implicit.load_state_dict(explicit.state_dict())
    expected = make_implicit(explicit, theta=0.5, predicate=predicate, kind=kind)(image)
    torch.testing.assert_close(implicit(image), expected, atol=1e-12, rtol=0)

    back = network(nn.GroupNorm(2, 4))
    back.load_state_dict(implicit.state_dict())
    assert torch.equal(back(image), explicit(image))
    again = copy.deepcopy(implicit)
    again.load_state_dict(implicit.state_dict())
    assert torch.equal(again(image), implicit(image))


def test_state_dict_with_a_learned_theta_round_trips() -> None:
    options = {"predicate": residual, "theta": 0.4, "learn_theta": True}
    implicit, other = make_implicit(network(), **options), make_implicit(network(), **options)
    image = torch.randn(2, 1, 6, 6)
    with torch.no_grad():
        implicit[3].block.raw_theta.fill_(1.0)
    other.load_state_dict(implicit.state_dict())
    assert torch.equal(other(image), implicit(image))
    missing, unexpected = other.load_state_dict(network().state_dict(), strict=False)
    assert [name for name in missing if "raw_theta" not in name] == []
    assert unexpected == []


def test_a_wrong_state_dict_is_still_refused() -> None:
    implicit = make_implicit(network(), predicate=residual)
    state = network().state_dict()
    state["1.0.branch.9.weight"] = state.pop("1.0.branch.1.weight")
    with pytest.raises(RuntimeError, match=r"Missing key|Unexpected key"):
        implicit.load_state_dict(state)


def test_the_root_can_be_converted() -> None:
    model, x = Residual(4), torch.randn(2, 4, 5, 5)
    implicit = make_implicit(model, theta=0.5, predicate=lambda name, module: name == "")
    y = implicit(x)
    torch.testing.assert_close(y, x + model.branch((x + y) / 2), atol=1e-8, rtol=0)
    assert list(implicit.state_dict()) == list(model.state_dict())


def test_options_reach_the_blocks() -> None:
    options = {"num_steps": 3, "horizon": 1.5, "solver": rs.Anderson(), "memory": "reversible", "form": "trapezoid"}
    implicit = make_implicit(network(), theta=0.5, predicate=residual, rowwise=True, **options)
    block = implicit[1][0].block
    assert (block.num_steps, block.horizon, block.form) == (3, 1.5, "trapezoid")
    assert block.field.rowwise
    implicit(torch.randn(2, 1, 6, 6)).sum().backward()


def test_what_cannot_be_converted_says_so() -> None:
    image = torch.randn(2, 1, 6, 6)
    with pytest.raises(ValueError, match=r"chose none of the modules; the first of their names are \['0', '1', '1.0'"):
        make_implicit(network(), predicate=lambda name, module: False)
    changes_shape = make_implicit(network(), predicate=lambda name, module: name == "2")
    with pytest.raises(ValueError, match=r"Conv2d maps \(2, 4, 6, 6\) to \(2, 6, 3, 3\).* let the predicate skip it"):
        changes_shape(image)
    with pytest.raises(ValueError, match=r"kind must be one of .* got 'layer'"):
        make_implicit(network(), predicate=residual, kind="layer")


@pytest.mark.parametrize("make", [lambda: nn.BatchNorm2d(4), lambda: nn.Dropout2d(0.2)])
def test_what_is_not_a_function_in_training_says_so(make: Callable[[], nn.Module]) -> None:
    module = make()
    implicit = make_implicit(network(module), predicate=residual)
    image = torch.randn(2, 1, 6, 6)
    name = type(module).__name__
    with pytest.raises(ValueError, match=rf"branch.2, a {name}, gives another result each time .* GroupNorm"):
        implicit(image)
    implicit.eval()
    assert implicit(image).isfinite().all()
    with pytest.raises(ValueError, match="gives another result"):
        implicit.train()(image)
    for inner in implicit.modules():
        if isinstance(inner, type(module)):
            inner.eval()
    assert implicit(image).isfinite().all()


def test_any_module_through_autonomous_shares_state_with_the_explicit_one() -> None:
    explicit = nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 3))
    block = ThetaBlock(Autonomous(nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 3))), 1.0, 1)
    block.field.module.load_state_dict(explicit.state_dict())
    x = torch.randn(4, 3)
    y = block(x)
    torch.testing.assert_close(y, x + explicit(y), atol=1e-8, rtol=0)
