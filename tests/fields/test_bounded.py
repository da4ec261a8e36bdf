"""F^{low,high}: eigenvalues in the disc, the limits, the pole."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from resolvent.fields import MLP, Autonomous, Bounded, Conv, Field, GradientFlow, Piecewise


def jacobians(field: Field, y: Tensor, t: float = 0.0) -> Tensor:
    """(batch, size, size), one sample at a time through reverse mode."""
    size = y[0].numel()
    rows = [torch.autograd.functional.jacobian(lambda x: field(t, x[None])[0], x) for x in y]
    return torch.stack([row.reshape(size, size) for row in rows])


def stability(theta: float, z: float) -> float:
    return (1 + (1 - theta) * z) / (1 - theta * z)


INNER = {
    "mlp": lambda: MLP(3, 8, 2, nn.Tanh(), bound=1.0),
    "gelu": lambda: MLP(3, 8, 2, nn.GELU(), bound=1.0, always=True),
    "conv": lambda: Conv(2, 2, 3, size=(3, 3), bound=1.0),
    "strided padding": lambda: Conv(2, 1, size=(4,), bound=1.0, padding_mode="replicate", activation=nn.SiLU()),
    "gradient": lambda: GradientFlow(nn.Linear(3, 5), bound=1.0),
    "piecewise": lambda: Piecewise([MLP(3, 8, 1, bound=1.0) for _ in range(2)], 1.0),
}


def amplified(kind: str) -> Field:
    """Weights and biases far from where they start."""
    field = INNER[kind]()
    with torch.no_grad():
        for parameter in field.parameters():
            parameter.mul_(20).add_(torch.randn_like(parameter))
    return field.eval()


@pytest.mark.parametrize("kind", INNER)
@pytest.mark.parametrize(("low", "high"), [(-25.0, -15.0), (-3.0, 1.0), (-1.0, 1.0)])
@pytest.mark.parametrize("learn_shift", [False, True])
def test_the_eigenvalues_lie_in_the_disc_for_random_weights(kind, low, high, learn_shift):
    field = Bounded(amplified(kind), low, high, learn_shift=learn_shift, scale=0.9).eval()
    with torch.no_grad():
        field.raw_scale.normal_(2.0, 3.0)
        if learn_shift:
            field.raw_shift.normal_(0.0, 3.0)
    J = jacobians(field, 2 * torch.randn(6, *field.shape))
    center, radius = (low + high) / 2, (high - low) / 2
    eigenvalues = torch.linalg.eigvals(J)
    assert (eigenvalues - center).abs().max() <= radius * (1 + 1e-6)
    disc = field.disc()
    shifted = J - disc.center * torch.eye(J.shape[-1])
    assert torch.linalg.matrix_norm(shifted, 2).max() <= disc.radius * (1 + 1e-9)
    assert low - 1e-4 <= disc.low <= disc.high <= high + 1e-4


@pytest.mark.parametrize("kind", ["mlp", "conv"])
def test_training_leaves_the_eigenvalues_in_the_disc(kind):
    field = Bounded(INNER[kind](), -3.0, 1.0, learn_shift=True)
    y = torch.randn(16, *field.shape)
    target = 20 * torch.randn_like(y)
    optimizer = torch.optim.Adam(field.parameters(), lr=1e-2)
    start = field.scale.detach().clone()
    for _ in range(200):
        optimizer.zero_grad()
        (field(0.0, y) - target).square().mean().backward()
        optimizer.step()
    assert (field.scale.detach() - start).abs().max() > 0.2
    training = torch.linalg.eigvals(jacobians(field, y[:4]))
    assert (training + 1).abs().max() <= 2 * 1.2
    evaluated = torch.linalg.eigvals(jacobians(field.eval(), y[:4]))
    assert (evaluated + 1).abs().max() <= 2 * (1 + 1e-6)


def test_the_formula():
    inner = MLP(2, 4, 1, bound=1.0)
    field = Bounded(inner, -5.0, 1.0)
    y = torch.randn(3, 2)
    assert torch.allclose(field(0.0, y), -2 * y + 3 * field.scale * inner(0.0, y))
    assert field.linear_part == -2.0
    assert field.bound == 5.0
    assert field.scale.shape == (2,)
    assert torch.allclose(field.scale, torch.tensor(0.1))


def test_the_linear_part_is_the_rest_of_a_small_field():
    field = Bounded(MLP(2, 4, 1, bound=1.0), -40.0, 0.0, learn_shift=True)
    with torch.no_grad():
        field.raw_shift.fill_(1.3)
    y, v = torch.randn(2, 3, 2)
    rest = lambda x: field(0.0, x) - field.linear_part * x  # noqa: E731
    assert (rest(y) - rest(v)).norm(dim=1).div((y - v).norm(dim=1)).max() <= 20 * 0.1 * (1 + 1e-6)


def test_scales_by_entry_by_channel_and_constant():
    conv = lambda: Conv(3, size=(4, 5), bound=1.0)  # noqa: E731
    assert Bounded(conv(), -1, 1).scale.shape == (3, 4, 5)
    assert Bounded(conv(), -1, 1, per_channel=True).scale.shape == (3, 1, 1)
    assert Bounded(conv(), -1, 1, scale=0.3).scale.detach().mean() == pytest.approx(0.3)
    constant = Bounded(conv(), -1, 1, learn_scale=False)
    assert float(constant.scale) == 1.0
    assert "raw_scale" not in dict(constant.named_parameters())
    assert float(Bounded(conv(), -1, 1, learn_scale=False, scale=0.4).scale) == 0.4


def test_the_scale_is_learned_and_saved():
    field = Bounded(MLP(2, 4, 1, bound=1.0), -1, 1, learn_shift=True)
    field(0.0, torch.randn(5, 2)).square().sum().backward()
    assert field.raw_scale.grad.abs().max() > 0
    assert field.raw_shift.grad.abs() > 0
    assert {"raw_scale", "raw_shift"} <= set(field.state_dict())


@given(
    st.floats(-1e3, 1e3),
    st.floats(1e-3, 1e3),
    st.floats(-50, 50),
    st.floats(-20, 20),
)
@settings(max_examples=100, deadline=None)
def test_a_learned_shift_never_leaves_the_limits(low, width, raw_shift, raw_scale):
    field = Bounded(Autonomous(nn.Identity(), lipschitz=1.0, shape=(2,)), low, low + width, learn_shift=True)
    with torch.no_grad():
        field.raw_shift.fill_(raw_shift)
        field.raw_scale.copy_(torch.tensor([raw_scale, -1.0]))
    disc = field.disc()
    slack = 1e-12 * (abs(low) + width)
    assert low - slack <= disc.low <= disc.high <= low + width + slack


@given(st.floats(0, 1), st.floats(0.01, 10), st.floats(0.01, 3), st.floats(0.01, 3))
@settings(max_examples=100, deadline=None)
def test_limits_from_desired_values_of_the_stability_function(theta, h, above, width):
    low = max(1 - 1 / theta if theta > 0 else -2.0, -2.0) + above
    field = Bounded.from_stability(MLP(1, 2, 0, bound=1.0), theta, h, low, low + width)
    assert stability(theta, h * field.low) == pytest.approx(low, rel=1e-6, abs=1e-9)
    assert stability(theta, h * field.high) == pytest.approx(low + width, rel=1e-6, abs=1e-9)
    field.check_pole(theta, h)


def test_unreachable_values_of_the_stability_function_are_refused():
    inner = MLP(1, 2, 0, bound=1.0)
    with pytest.raises(ValueError, match=r"theta=0.5 takes values above -1"):
        Bounded.from_stability(inner, 0.5, 1.0, -1.0, 0.5)
    with pytest.raises(ValueError, match=r"got low=0\.5 and high=0\.2"):
        Bounded.from_stability(inner, 1.0, 1.0, 0.5, 0.2)
    with pytest.raises(ValueError, match=r"theta must lie in \[0, 1\], got 2"):
        Bounded.from_stability(inner, 2.0, 1.0, 0.5, 0.8)


def test_a_reachable_pole_is_an_error_that_says_what_to_do():
    field = Bounded(MLP(2, 2, 0, bound=1.0), -3.0, 1.0)
    field.check_pole(0.0, 100.0)
    field.check_pole(0.5, 1.0)
    with pytest.raises(ValueError, match=r"= 2 >= 1: .*high < 1/\(theta\*h\) = 0\.5, or h < 1, or theta < 0\.5"):
        field.check_pole(1.0, 2.0)
    with pytest.raises(ValueError, match="step h must be a positive"):
        field.check_pole(1.0, 0.0)


def test_the_limit_itself_is_admitted_while_the_scale_is_below_one():
    field = Bounded(MLP(2, 2, 0, bound=1.0), -3.0, 1.0)
    field.check_pole(1.0, 1.0)
    field.check_pole(1 / 3, 3.0)
    with torch.no_grad():
        field.raw_scale.fill_(50.0)  # the sigmoid rounds to 1
    with pytest.raises(ValueError, match=">= 1"):
        field.check_pole(1.0, 1.0)
    with pytest.raises(ValueError, match=">= 1"):
        Bounded(MLP(2, 2, 0, bound=1.0), -3.0, 1.0, learn_scale=False).check_pole(1.0, 1.0)


def test_a_constant_scale_reaches_less_far():
    field = Bounded(MLP(2, 2, 0, bound=1.0), -3.0, 1.0, learn_scale=False, scale=0.5)
    field.check_pole(1.0, 1.5)
    shifting = Bounded(MLP(2, 2, 0, bound=1.0), -3.0, 1.0, learn_scale=False, learn_shift=True, scale=0.5)
    with pytest.raises(ValueError, match=">= 1"):
        shifting.check_pole(1.0, 1.5)


def test_dissipative_fields_have_no_pole():
    Bounded(MLP(2, 2, 0, bound=1.0), -25.0, -15.0).check_pole(1.0, 1e6)
    Bounded(MLP(2, 2, 0, bound=1.0), -2.0, 0.0).check_pole(1.0, 1e6)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Bounded(MLP(2, 2, 0), -1, 1), "MLP promises nothing: make it with bound=1.0"),
        (lambda: Bounded(MLP(2, 2, 0, bound=2.0), -1, 1), "promises 2.0"),
        (lambda: Bounded(MLP(2, 2, 0, bound=1.0), 1, -1), "got low=1 and high=-1"),
        (lambda: Bounded(MLP(2, 2, 0, bound=1.0), -1, 1, scale=1.0), r"in \(0, 1\), got 1.0"),
        (lambda: Bounded(MLP(2, 2, 0, bound=1.0), -1, 1, learn_scale=False, scale=0.0), "got 0.0"),
        (lambda: Bounded(Autonomous(nn.Tanh(), lipschitz=1.0), -1, 1), r"give shape="),
    ],
)
def test_wrong_arguments_are_refused(make, words):
    with pytest.raises(ValueError, match=words):
        make()


def test_bounds_in_bounds_and_in_pieces():
    inner = Bounded(MLP(2, 4, 1, bound=1.0), -1.0, 0.5)
    outer = Bounded(inner, -4.0, 0.0)
    assert torch.linalg.eigvals(jacobians(outer, torch.randn(3, 2))).real.max() <= 1e-6
    pieces = Piecewise([Bounded(MLP(1, 4, 2, bound=1.0), -25.0, -15.0) for _ in range(20)], 2.0)
    assert pieces.linear_part == -20.0
    assert -25 <= pieces.disc().low < pieces.disc().high <= -15
    assert sum(p.numel() for p in pieces.parameters()) == 20 * 53
