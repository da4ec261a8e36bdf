"""Certificates against everything that tries to break them."""

import math

import pytest
import torch
from torch import Tensor, nn

from resolvent.analysis import certified_radius, lipschitz_bound, theta_lipschitz
from resolvent.blocks import ThetaBlock
from resolvent.fields import MLP, Autonomous, Bounded, Conv, Field, GradientFlow, Hamiltonian, Piecewise
from resolvent.spectral import Disc, spectral_norm


class Block(nn.Module):
    """Theta steps with the resolvent found by the fixed point that a disc of slopes makes contract."""

    def __init__(self, field: Field, theta: float, num_steps: int = 1, horizon: float = 1.0, form: str = "midpoint"):
        super().__init__()
        self.field, self.theta, self.num_steps, self.horizon, self.form = field, theta, num_steps, horizon, form

    def resolvent(self, t: float, b: Tensor, tau: float, disc: Disc) -> Tensor:
        w = b
        for _ in range(2000):
            defect = b + tau * self.field(t, w) - w
            w = w + defect / (1 - tau * disc.center)
            if defect.abs().max() < 1e-13:
                return w
        raise AssertionError(f"the reference solver did not converge: {defect.abs().max()}")

    def forward(self, x: Tensor) -> Tensor:
        h, disc = self.horizon / self.num_steps, self.field.disc()
        for n in range(self.num_steps):
            t = n * h
            if self.form == "midpoint":
                w = self.resolvent(t, x, self.theta * h, disc)
                x = w + (1 - self.theta) * h * self.field(t, w)
            else:
                x = self.resolvent(t, x + (1 - self.theta) * h * self.field(t, x), self.theta * h, disc)
        return x


def worst_quotient(model: nn.Module, shape: tuple[int, ...], rounds: int = 12) -> float:
    """The largest difference quotient found at random and by climbing: the power method on the Jacobian."""
    u = 2 * torch.randn(64, *shape)
    direction = torch.randn_like(u)
    worst = 0.0
    for _ in range(rounds):
        unit = direction / direction.flatten(1).norm(dim=1).reshape(-1, *[1] * len(shape))
        v = u + 10 ** float(-4 * torch.rand(())) * unit
        with torch.no_grad():
            quotient = (model(u) - model(v)).flatten(1).norm(dim=1) / (u - v).flatten(1).norm(dim=1)
        worst = max(worst, float(quotient.max()))
        x = u.clone().requires_grad_()
        difference = model(x) - model(u + 1e-3 * unit).detach()
        (direction,) = torch.autograd.grad(difference.square().sum(), x)
        direction = direction + 1e-9 * torch.randn_like(u)
    return worst


def bounded(low: float, high: float, **options: object) -> Bounded:
    field = Bounded(MLP(3, 6, 1, nn.Tanh(), bound=1.0, always=True), low, high, scale=0.9, **options)
    return field.eval()


FIELDS = {
    "stiff": lambda: bounded(-25.0, -15.0),
    "expanding": lambda: bounded(-3.0, 0.9),
    "shifted": lambda: bounded(-6.0, 0.5, learn_shift=True),
    "mlp": lambda: MLP(3, 6, 1, nn.GELU(), bound=0.8),
    "gradient": lambda: GradientFlow(nn.Linear(3, 9)),
    "hamiltonian": lambda: Hamiltonian(nn.Linear(2, 5), nn.Linear(2, 5), bound=0.9),
    "conv": lambda: Bounded(Conv(2, 2, size=(3, 3), bound=1.0), -3.0, 0.9, scale=0.8, per_channel=True),
    "piecewise": lambda: Piecewise([bounded(-4.0, 0.5), bounded(-1.0, 0.2)], 1.0),
}


@pytest.mark.parametrize("kind", FIELDS)
@pytest.mark.parametrize("theta", [0.0, 0.25, 0.5, 1.0])
@pytest.mark.parametrize("form", ["midpoint", "trapezoid"])
def test_the_bound_is_never_below_a_measured_quotient(kind, theta, form):
    block = Block(FIELDS[kind]().eval(), theta, num_steps=2, form=form)
    bound = lipschitz_bound(block)
    measured = worst_quotient(block, block.field.shape, rounds=6)
    assert measured <= bound * (1 + 1e-9)
    assert measured > 0


@pytest.mark.parametrize("theta", [0.0, 0.25, 0.5, 0.75, 1.0])
@pytest.mark.parametrize("slopes", [(-3.0, 0.9), (-25.0, -15.0), (-1.0, 0.5)])
def test_the_midpoint_bound_is_attained(theta, slopes):
    """A linear field with both ends of the disc as eigenvalues."""
    middle, radius = sum(slopes) / 2, (slopes[1] - slopes[0]) / 2
    flip = nn.Linear(2, 2, bias=False)
    with torch.no_grad():
        flip.weight.copy_(torch.diag(torch.tensor([1.0, -1.0])))
    field = Bounded(Autonomous(flip, lipschitz=1.0), *slopes, learn_scale=False)
    assert field.disc() == (middle, radius)
    block = Block(field, theta)
    x = torch.eye(2)
    factors = (block(x) - block(torch.zeros(2, 2))).norm(dim=1)
    assert lipschitz_bound(block) == pytest.approx(float(factors.max().detach()), rel=1e-9)


def test_the_papers_interval():
    disc = Disc.spanning(-3.0, 1.0)
    for theta, expected in ((0.0, 2.0), (0.25, 7 / 3), (0.5, 3.0), (0.75, 5.0)):
        assert theta_lipschitz(disc, theta, 1.0) == pytest.approx(expected)
    with pytest.raises(ValueError, match="= 1 >= 1"):
        theta_lipschitz(disc, 1.0, 1.0)


def test_dissipative_fields_do_not_expand_from_theta_one_half_on():
    for theta in (0.5, 0.75, 1.0):
        assert theta_lipschitz(Disc.spanning(-1e6, 0.0), theta, 1.0, 7) == 1.0
    assert theta_lipschitz(Disc.spanning(-1e6, 0.0), 0.25, 1.0) > 1


@pytest.mark.parametrize("theta", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("slope", [-7.0, -0.5, 0.9])
def test_one_slope_makes_every_bound_exact(theta, slope):
    factor = abs((1 + (1 - theta) * slope) / (1 - theta * slope))
    for form in ("midpoint", "trapezoid"):
        assert theta_lipschitz(Disc(2 * slope, 0.0), theta, 0.5, 3, form) == pytest.approx(factor**3)


def test_joining_trapezoid_steps_saves_orders_of_magnitude():
    disc = Disc.spanning(-30.0, -1.0)
    joined = theta_lipschitz(disc, 0.5, 1.0, 10, "trapezoid")
    separate = theta_lipschitz(disc, 0.5, 1.0, 1, "trapezoid") ** 10
    assert joined < 1e-6 * separate


@pytest.mark.parametrize(
    ("arguments", "words"),
    [((2.0, 1.0), "got 2.0"), ((0.5, 0.0), "h > 0"), ((0.5, 1.0, 0), "num_steps"), ((0.5, 1.0, 1, "euler"), "'euler'")],
)
def test_wrong_arguments_are_refused(arguments, words):
    with pytest.raises(ValueError, match=words):
        theta_lipschitz(Disc(0.0, 1.0), *arguments)


@pytest.mark.parametrize("form", ["midpoint", "trapezoid"])
@pytest.mark.parametrize("learn_theta", [False, True])
def test_the_blocks_of_the_library_are_theta_blocks(form, learn_theta):
    field = bounded(-3.0, 0.9)
    block = ThetaBlock(field, 0.5, num_steps=2, horizon=1.0, form=form, learn_theta=learn_theta)
    assert lipschitz_bound(block) == pytest.approx(lipschitz_bound(Block(field, 0.5, 2, 1.0, form)))
    network = nn.Sequential(nn.Linear(2, 3), block, nn.Linear(3, 4))
    assert worst_quotient(network, (2,), rounds=4) <= lipschitz_bound(network, (2,)) * (1 + 1e-6)


LAYERS = {
    "linear": (nn.Linear(4, 3), (4,)),
    "conv": (nn.Conv2d(2, 3, 3, stride=2, padding=1), (2, 5, 6)),
    "transpose": (nn.ConvTranspose1d(2, 3, 3, stride=2), (2, 5)),
    "relu": (nn.ReLU(), (4,)),
    "gelu": (nn.GELU(), (4,)),
    "flatten": (nn.Flatten(), (2, 3)),
    "average": (nn.AvgPool2d(3, stride=2, padding=1), (2, 7, 6)),
    "uneven average": (nn.AvgPool2d(3, 1, 1, count_include_pad=False), (1, 4, 4)),
    "global average": (nn.AdaptiveAvgPool2d(1), (2, 4, 5)),
    "adaptive average": (nn.AdaptiveAvgPool1d(3), (2, 7)),
    "maximum": (nn.MaxPool2d(2), (2, 6, 6)),
    "overlapping maximum": (nn.MaxPool2d(3, stride=1, padding=1), (1, 4, 4)),
    "dilated maximum": (nn.MaxPool1d(3, stride=2, dilation=2), (1, 12)),
    "dropout": (nn.Dropout(0.5), (4,)),
    "batch normalisation": (nn.BatchNorm2d(3), (3, 4, 4)),
    "network": (nn.Sequential(nn.Conv1d(2, 4, 3), nn.Sequential(nn.SiLU(), nn.MaxPool1d(2)), nn.Flatten()), (2, 8)),
}


@pytest.mark.parametrize("kind", LAYERS)
def test_the_bound_of_every_known_module_holds(kind):
    module, shape = LAYERS[kind]
    module = module.double().eval()
    if kind == "batch normalisation":
        module.running_var.copy_(torch.tensor([0.2, 1.0, 3.0]))
        nn.init.normal_(module.weight)
    assert worst_quotient(module, shape) <= lipschitz_bound(module, shape) * (1 + 1e-6)


@pytest.mark.parametrize(("kind", "constant"), [("global average", 20**-0.5), ("maximum", 1.0), ("flatten", 1.0)])
def test_constants_that_are_known_exactly(kind, constant):
    module, shape = LAYERS[kind]
    assert lipschitz_bound(module, shape) == pytest.approx(constant)


def test_an_overlapping_maximum_attains_its_bound():
    x = torch.zeros(1, 1, 9)
    spike = x.clone()
    spike[..., 4] = 1.0
    pool = nn.MaxPool1d(3, stride=1)
    assert (pool(spike) - pool(x)).norm() == pytest.approx(lipschitz_bound(pool, (1, 9)))


class Doubled(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


@pytest.mark.parametrize(
    ("module", "shape", "words"),
    [
        (nn.LayerNorm(3), (3,), "LayerNorm"),
        (nn.Sequential(nn.Linear(3, 3), nn.Softmax(1)), (3,), "Softmax"),
        (Doubled(3, 3), (3,), "Doubled"),
        (nn.MaxPool2d(2), None, "give input_shape"),
        (nn.Sequential(nn.Conv2d(1, 1, 3)), None, "give input_shape"),
        (nn.Dropout(), (3,), r"model\.eval"),
        (nn.BatchNorm1d(3), (3,), r"model\.eval"),
        (nn.BatchNorm1d(3, track_running_stats=False).eval(), (3,), "running statistics"),
        (Block(Autonomous(nn.Tanh()), 0.5), None, "no guaranteed Lipschitz"),
        (Block(nn.Tanh(), 0.5), None, "slopes of Tanh"),
    ],
)
def test_what_is_not_known_is_refused(module, shape, words):
    with pytest.raises(ValueError, match=words):
        lipschitz_bound(module, shape)


def attack(model: nn.Module, x: Tensor, radius: Tensor, steps: int = 25) -> Tensor:
    """Climb from each sample towards another class on the sphere of its radius; return the worst points."""
    view = (-1, *[1] * (x.ndim - 1))
    radius = radius.reshape(view)
    labels = model(x).argmax(1)
    move = torch.randn_like(x)
    for _ in range(steps):
        move = (radius * move / move.flatten(1).norm(dim=1).reshape(view)).requires_grad_()
        loss = nn.functional.cross_entropy(model(x + move), labels, reduction="sum")
        (gradient,) = torch.autograd.grad(loss, move)
        step = gradient / gradient.flatten(1).norm(dim=1).clamp(min=1e-30).reshape(view)
        move = move.detach() + 0.3 * radius * step
    return x + radius * move / move.flatten(1).norm(dim=1).reshape(view)


def dense_classifier() -> nn.Sequential:
    block = Block(bounded(-3.0, 0.5), 0.5, num_steps=2)
    return nn.Sequential(nn.Linear(2, 3), block, nn.GELU(), spectral_norm(nn.Linear(3, 3)))


def conv_classifier() -> nn.Sequential:
    field = Bounded(Conv(3, 1, size=(4, 4), bound=1.0, padding_mode="circular"), -2.0, 0.5, scale=0.5)
    block = Block(field, 0.75)
    head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 4))
    return nn.Sequential(nn.Conv2d(1, 3, 3, stride=2, padding=1), block, nn.Tanh(), head)


@pytest.mark.parametrize(
    ("make", "shape"), [(dense_classifier, (2,)), pytest.param(conv_classifier, (1, 8, 8), marks=pytest.mark.slow)]
)
def test_no_attack_within_the_radius_changes_the_class(make, shape):
    model = make().eval()  # In training, norms lag behind.
    x = torch.randn(48, *shape)
    labels = (x.flatten(1)[:, 0] > 0).long()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-2)
    for _ in range(40):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), labels).backward()
        optimizer.step()
    radius = certified_radius(model, x)
    assert radius.shape == (48,)
    assert (radius > 0).all()
    classes = model(x).argmax(1)
    inside = radius * (1 - 1e-9)
    assert torch.equal(model(attack(model, x, inside)).argmax(1), classes)
    for _ in range(10):
        noise = torch.randn_like(x)
        noise = noise * (inside / noise.flatten(1).norm(dim=1)).reshape(-1, *[1] * len(shape))
        assert torch.equal(model(x + noise).argmax(1), classes)
    # The attack is worth its name: not much further out it succeeds.
    assert not torch.equal(model(attack(model, x, 30 * radius)).argmax(1), classes)


def test_the_radius_is_sharp_for_two_opposite_classes():
    model = nn.Linear(2, 2, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[3.0, 0.0], [-3.0, 0.0]]))
    x = torch.tensor([[0.5, 2.0], [-0.25, 1.0]])
    assert torch.allclose(certified_radius(model, x), x[:, 0].abs())
    assert torch.allclose(certified_radius(model, x, lipschitz=6 * math.sqrt(2)), x[:, 0].abs() / 2)


def test_equal_classes_have_no_radius_and_one_class_is_no_classifier():
    model = nn.Linear(2, 2)
    with torch.no_grad():
        model.weight.fill_(1.0)
        model.bias.fill_(0.0)
    assert torch.equal(certified_radius(model, torch.randn(3, 2)), torch.zeros(3))
    with pytest.raises(ValueError, match="two classes or more"):
        certified_radius(nn.Linear(2, 1), torch.randn(3, 2))
