"""Fields that change their argument in place are refused, in every mode; what they compute may be changed."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import resolvent as rs
from resolvent.equation.in_place import explain

REFUSED = r"changes its argument in place; .*write x = x \+ f\(x\), .*nn\.ReLU\(inplace=False\)"


class Doubles(nn.Module):
    """Begins with a product in place."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, y: Tensor) -> Tensor:
        return torch.tanh(self.linear(y.mul_(2)))


class AddsTo(Doubles):
    """The residual block x + f(x), written in place."""

    def forward(self, x: Tensor) -> Tensor:
        x += torch.tanh(self.linear(x))
        return x


class Adds(Doubles):
    def forward(self, x: Tensor) -> Tensor:
        return x + torch.tanh(self.linear(x))


class OnTheWay(Doubles):
    """Changes what it computes, and not its argument."""

    def forward(self, y: Tensor) -> Tensor:
        value = self.linear(y)
        value *= 0.5
        value += y
        return nn.functional.relu_(value)


def begins_with_relu() -> nn.Module:
    return nn.Sequential(nn.ReLU(inplace=True), nn.Linear(4, 4), nn.Tanh())


def converted(module: nn.Module, theta: float = 0.5, kind: str = "block") -> nn.Module:
    return rs.make_implicit(nn.Sequential(module), theta, predicate=lambda name, _: name == "0", kind=kind)


FIELDS: dict[str, Callable[[], nn.Module]] = {"product": Doubles, "activation": begins_with_relu, "sum": AddsTo}
UNROLLED = rs.adjoints.UnrolledAdjoint()
LAYERS: dict[str, Callable[[nn.Module], Callable[[Tensor], Tensor]]] = {
    "implicit": lambda f: rs.ThetaBlock(rs.Autonomous(f), 1.0),
    "midpoint, several layers": lambda f: rs.ThetaBlock(rs.Autonomous(f), 0.5, 5, 1.0),
    "declared rowwise": lambda f: rs.ThetaBlock(rs.Autonomous(f, rowwise=True), 0.5, 5, 1.0),
    "layer by layer": lambda f: rs.ThetaBlock(rs.Autonomous(f), 0.5, 5, 1.0, mode="sequential"),
    "explicit": lambda f: rs.ThetaBlock(rs.Autonomous(f), 0.0),
    "newton": lambda f: rs.ThetaBlock(rs.Autonomous(f), 1.0, solver=rs.Newton()),
    "newton, rowwise": lambda f: rs.ThetaBlock(rs.Autonomous(f, rowwise=True), 1.0, solver=rs.Newton()),
    "newton with products": lambda f: rs.ThetaBlock(rs.Autonomous(f), 1.0, solver=rs.NewtonKrylov()),
    "fixed point": lambda f: rs.ThetaBlock(rs.Autonomous(f), 1.0, 1, 0.1, solver=rs.Picard()),
    "unrolled": lambda f: rs.ThetaBlock(
        rs.Autonomous(f), 1.0, 1, 0.1, solver=rs.Newton(), adjoint=rs.adjoints.UnrolledAdjoint()
    ),
    "stages": lambda f: rs.Block(rs.Autonomous(f), rs.schemes.RungeKutta(rs.schemes.tableaux.RADAU5)),
    "recomputed": lambda f: rs.ThetaBlock(rs.Autonomous(f), 0.5, 2, memory="checkpoint"),
    "equilibrium": lambda f: rs.Equilibrium(lambda z, x: 0.3 * f(z) + x),
    "converted branch": lambda f: converted(f, kind="branch"),
    "resolve": lambda f: lambda x: rs.resolve(f, x, 0.3).value,
    "odeint": lambda f: lambda x: rs.odeint(rs.Autonomous(f), x, [0.0, 1.0]).states[-1],
}


@pytest.mark.parametrize("name", FIELDS)
@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("way", ["train", "eval", "one sample", "no grad", "inference", "leaf", "view of a leaf"])
def test_a_field_that_changes_its_argument_is_refused(name: str, kind: str, way: str) -> None:
    layer, x = LAYERS[kind](FIELDS[name]()), -torch.rand(1 if way == "one sample" else 6, 4)
    if way == "eval" and isinstance(layer, nn.Module):
        layer.eval()
    if "leaf" in way:
        x.requires_grad_()
    if "view" in way:
        x = x[:]
    mode = {"no grad": torch.no_grad, "inference": torch.inference_mode}.get(way, torch.enable_grad)
    with mode(), pytest.raises(ValueError, match=REFUSED):
        layer(x)


@pytest.mark.parametrize("theta", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("leaf", [True, False])
def test_a_residual_block_that_adds_into_its_input_is_refused(theta: float, training: bool, leaf: bool) -> None:
    implicit = converted(AddsTo(), theta).train(training)
    with pytest.raises(ValueError, match=f"AddsTo {REFUSED}"):
        implicit(torch.randn(6, 4, requires_grad=leaf))
    assert converted(Adds(), theta).train(training)(torch.randn(6, 4, requires_grad=leaf)).isfinite().all()


def test_the_check_in_training_mode_leaves_the_input_as_it_was() -> None:
    for layer in (
        rs.ThetaBlock(rs.Autonomous(Doubles()), 0.5),
        rs.Equilibrium(lambda z, x: torch.tanh(x.mul_(2)) - 0.1 * z),
        rs.Equilibrium(lambda z, x: 0.1 * z.mul_(2) + x, lambda x: x),
    ):
        x = torch.randn(6, 4)
        before = x.clone()
        with pytest.raises(ValueError, match=REFUSED):
            layer(x)
        assert torch.equal(x, before)


def test_states_of_several_tensors_are_no_exception() -> None:
    def field(t: float | Tensor, y: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return y[1].sin_(), -y[0]

    for rows in (1, 4):
        with pytest.raises(ValueError, match=REFUSED):
            rs.ThetaBlock(field, 0.5)((torch.randn(rows, 2), torch.randn(rows, 2)))


@pytest.mark.parametrize("kind", LAYERS)
def test_what_is_computed_on_the_way_may_be_changed(kind: str) -> None:
    torch.manual_seed(1)
    layer, x = LAYERS[kind](OnTheWay()), 0.1 * torch.randn(6, 4)
    before = x.clone()
    x.requires_grad_()
    layer(x).sum().backward()
    assert x.grad is not None
    assert torch.equal(x, before)
    with torch.inference_mode():
        assert layer(x.detach()).isfinite().all()


def test_transforms_and_half_precision_work_as_before() -> None:
    block, x = rs.ThetaBlock(rs.Autonomous(OnTheWay()), 0.5), 0.1 * torch.randn(6, 4)
    together = block(x)
    torch.testing.assert_close(torch.func.vmap(lambda row: block(row[None])[0])(x), together, atol=1e-6, rtol=0)
    assert torch.func.grad(lambda x: block(x).sum())(x).shape == x.shape
    with torch.autocast("cpu", dtype=torch.bfloat16), pytest.raises(ValueError, match=REFUSED):
        rs.ThetaBlock(rs.Autonomous(Doubles().float()), 0.5).eval()(x.float())


@pytest.mark.parametrize("theta", [0.0, 0.5, 1.0])
def test_a_change_is_noticed_in_transforms(theta: float) -> None:
    block, x = rs.ThetaBlock(rs.Autonomous(Doubles()), theta, 1, 0.3), torch.randn(6, 4)
    for call in (
        torch.func.vmap(lambda row: block(row[None])[0]),
        torch.func.grad(lambda x: block(x).sum()),
        lambda x: torch.func.jvp(block, (x,), (torch.ones_like(x),)),
        torch.func.vmap(torch.func.grad(lambda row: block(row[None]).sum())),
    ):
        with pytest.raises(ValueError, match=REFUSED):
            call(x)


def test_other_errors_of_torch_are_left_alone() -> None:
    weight = torch.ones(4, requires_grad=True)

    def changes_its_weight(y: Tensor) -> Tensor:
        return y * weight.mul_(0.5)

    with pytest.raises(RuntimeError, match="a leaf Variable that requires grad"):
        rs.ThetaBlock(rs.Autonomous(changes_its_weight), 0.0)(torch.randn(1, 4))
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        rs.resolve(nn.Linear(3, 4), torch.randn(6, 4), 0.1)
    explain(RuntimeError("an in-place operation"), lambda y: y * weight, torch.randn(6, 4))
