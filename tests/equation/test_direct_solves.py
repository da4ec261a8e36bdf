"""Direct backward solves of very stiff systems: exact gradients, and an error that speaks of a singular system."""

import re

import pytest
import torch
from torch import Tensor, nn

import resolvent as rs
from resolvent.errors import ConvergenceWarning
from resolvent.schemes import RungeKutta, Scheme, Theta, tableaux

SCHEMES = {
    "theta=1": Theta(1.0),
    "RADAU5": RungeKutta(tableaux.RADAU5),
    "SDIRK3": RungeKutta(tableaux.SDIRK3),
}


class Robertson(rs.fields.Field):
    """Robertson's chemical kinetics, with rates over nine orders of magnitude; their logarithms are learned.

    Reference: Hairer & Wanner, Solving ordinary differential equations II, section IV.1.
    """

    rowwise = True
    autonomous = True

    def __init__(self) -> None:
        super().__init__()
        self.log_scale = nn.Parameter(torch.zeros(3))

    def forward(self, t: float | Tensor, y: Tensor) -> Tensor:
        slow, fast, back = torch.tensor([0.04, 3e7, 1e4]) * self.log_scale.exp()
        a, b, c = y.unbind(-1)
        return torch.stack([back * b * c - slow * a, slow * a - back * b * c - fast * b * b, fast * b * b], dim=-1)


def loss(block: rs.Block, y: Tensor) -> Tensor:
    return (block(y) * torch.tensor([1.0, 1e4, 2.0])).sum()


CASES = [
    pytest.param(scheme, horizon, steps, id=f"{scheme}-{horizon:g}", marks=pytest.mark.slow if horizon == 1e6 else ())
    for horizon, steps in ((1e2, 4), (1e4, 4), (1e6, 8))
    for scheme in SCHEMES
]


@pytest.mark.parametrize(("scheme", "horizon", "num_steps"), CASES)
def test_gradients_agree_with_differences(scheme: str, horizon: float, num_steps: int) -> None:
    field = Robertson()
    block = rs.Block(field, SCHEMES[scheme], num_steps, horizon)
    y = torch.tensor([[0.9, 2e-5, 0.1], [0.7, 1e-5, 0.3]], requires_grad=True)
    by_state, by_rates = torch.autograd.grad(loss(block, y), [y, field.log_scale])
    assert by_state.isfinite().all()
    step = 1e-4
    with torch.no_grad():
        for n in range(3):
            values = []
            for sign in (1, -1):
                field.log_scale[n] = sign * step
                values.append(loss(block, y))
            field.log_scale[n] = 0.0
            difference = (values[0] - values[1]) / (2 * step)
            assert by_rates[n].item() == pytest.approx(difference.item(), rel=1e-4)


class Growth(rs.fields.Field):
    """F(y) = rate y: with tau = 1 / rate the equation is singular, and zero solves it for b = 0."""

    rowwise = True
    autonomous = True

    def __init__(self, rate: float = 1.0) -> None:
        super().__init__()
        self.rate = nn.Parameter(torch.tensor(rate))

    def forward(self, t: float | Tensor, y: Tensor) -> Tensor:
        return self.rate * y

    @property
    def value_and_jacobian(self):  # type: ignore[no-untyped-def]
        return lambda t, y: (self(t, y), torch.diag_embed(self.rate * torch.ones_like(y)))


@pytest.mark.parametrize("adjoint", [None, rs.ImplicitAdjoint(rs.DenseLU())], ids=["default", "DenseLU"])
@pytest.mark.parametrize("scheme", [Theta(1.0), Theta(1.0, "trapezoid")], ids=["midpoint", "trapezoid"])
def test_a_singular_backward_system_is_called_singular(scheme: Scheme, adjoint: rs.ImplicitAdjoint | None) -> None:
    block = rs.Block(Growth(), scheme, 2, 2.0, adjoint=adjoint)
    value = block(torch.zeros(3, 2, requires_grad=True))
    with pytest.raises(rs.ConvergenceError) as caught:
        value.sum().backward()
    message = str(caught.value)
    assert "met a singular system" in message
    assert "steps" not in message
    assert (caught.value.solution.status == rs.Status.BREAKDOWN).all()


MODES = ["auto", "sequential", "parallel", "compiled"]


@pytest.mark.usefixtures("fast_compiler")
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
class TestFailuresOfABlock:
    @pytest.mark.parametrize("mode", MODES)
    def test_a_jacobian_singular_at_the_solution_raises_and_gives_no_nan(self, mode: str) -> None:
        block = rs.ThetaBlock(Growth(0.5), 1.0, 3, 3.0, mode=mode)
        for rate in (0.5, 1.0, 1.0, 1.0):  # The first pass, at a regular point, teaches what is compiled.
            with torch.no_grad():
                block.field.rate.fill_(rate)
            value = block(torch.zeros(2, 1, requires_grad=True))
            if rate == 0.5:
                value.sum().backward()
                continue
            with pytest.raises(rs.ConvergenceError, match="met a singular system"):
                value.sum().backward()

    @pytest.mark.parametrize("policy", ["raise", "warn"])
    @pytest.mark.parametrize("mode", MODES)
    def test_backward_failures_name_the_layer_and_the_time(self, mode: str, policy: str) -> None:
        block = rs.ThetaBlock(Growth(), 1.0, 3, 3.0, mode=mode, on_failure=policy)
        value = block(torch.zeros(2, 1, requires_grad=True), t0=0.25)
        place = r"layer 3 of 3 \(t = 2\.25\)" if mode == "sequential" else r"layers 1 to 3 of 3 \(t = 0\.25\)"
        expected = rf"backward solve A\^T u = g in {place}[\s\S]*rs\.analysis\.diagnose"
        if policy == "raise":
            with pytest.raises(rs.ConvergenceError, match=expected):
                value.sum().backward()
        else:
            with pytest.warns(ConvergenceWarning) as caught:
                value.sum().backward()
            assert any(_matches(expected, str(warning.message)) for warning in caught)

    @pytest.mark.parametrize("policy", ["raise", pytest.param("warn", marks=pytest.mark.slow)])
    @pytest.mark.parametrize("mode", MODES)
    def test_forward_failures_name_the_layer_and_the_time(self, mode: str, policy: str) -> None:
        """At the pole, where b is not in the range of I - tau F'."""
        block = rs.ThetaBlock(Growth(), 1.0, 3, 3.0, mode=mode, on_failure=policy)
        expected = r"w = b \+ tau F\(w\) in layer 1 of 3 \(t = 0\.25\)[\s\S]*rs\.analysis\.diagnose"
        x = torch.ones(2, 1)
        if policy == "raise":
            with pytest.raises(rs.ConvergenceError, match=expected):
                block(x, t0=0.25)
        else:
            with pytest.warns(ConvergenceWarning) as caught:
                block(x, t0=0.25)
            assert any(_matches(expected, str(warning.message)) for warning in caught)

    def test_compiled_layers_refuse_a_graph_of_derivatives_each_time(self) -> None:
        block = rs.ThetaBlock(rs.fields.MLP(2, 4, 1, nn.Tanh()), 0.5, 3, 1.0, mode="compiled")
        x = torch.randn(4, 2, requires_grad=True)
        messages = set()
        for _ in range(3):
            with pytest.raises(rs.errors.DerivativeOrderError) as caught:
                torch.autograd.grad(block(x).sum(), x, create_graph=True)
            messages.add(str(caught.value))
        assert len(messages) == 1


def _matches(pattern: str, text: str) -> bool:
    return re.search(pattern, text) is not None
