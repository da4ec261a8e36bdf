"""check_field: what it refuses and names, what it lets pass, and what it leaves as it was."""

import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import resolvent as rs
from resolvent.fields import MLP, Bounded, Conv, Field, GradientFlow, Hamiltonian, Piecewise


class Centre(nn.Module):
    """y - mean over the batch."""

    def forward(self, y: Tensor) -> Tensor:
        return torch.tanh(y - y.mean(0))


class Relative(Field):
    """Each sample relative to one of them."""

    def __init__(self, reference: int) -> None:
        super().__init__()
        self.reference = reference

    def forward(self, t: float | Tensor, y: Tensor) -> Tensor:
        return torch.tanh(y[self.reference] - y)


class Noisy(Field):
    def forward(self, t: float | Tensor, y: Tensor) -> Tensor:
        return -y + 0.1 * torch.randn_like(y)


class Counting(Field):
    """Its calls change its state."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, t: float | Tensor, y: Tensor) -> Tensor:
        self.calls += 1
        return -y / self.calls


class Conditioned(Field):
    """Closes over a tensor that has a row for each sample."""

    def __init__(self, rowwise: bool) -> None:
        super().__init__()
        self.condition, self.rowwise = torch.randn(6, 3), rowwise

    def forward(self, t: float | Tensor, y: Tensor) -> Tensor:
        return self.condition[: len(y)] - y


class FixedSize(Field):
    """Takes six samples, and no other number of them."""

    rowwise = True

    def forward(self, t: float | Tensor, y: Tensor) -> Tensor:
        return -y.reshape(6, 3)


class Potential(Field):
    """The gradient of a potential, by autograd within the field."""

    rowwise = True

    def forward(self, t: float | Tensor, y: Tensor) -> Tensor:
        with torch.enable_grad():
            point = y if y.requires_grad else y.detach().requires_grad_()
            (slope,) = torch.autograd.grad(point.pow(4).sum(), point, create_graph=True)
        return -slope


class Timed(Field):
    rowwise = True

    def forward(self, t: float | Tensor, y: Tensor) -> Tensor:
        return torch.cos(torch.as_tensor(t, dtype=y.dtype).reshape(-1, 1)) - y


class NormField(nn.BatchNorm1d):
    def forward(self, t: float | Tensor, y: Tensor) -> Tensor:
        return super().forward(y)


def hooked() -> nn.Module:
    with warnings.catch_warnings(action="ignore", category=FutureWarning):
        return nn.utils.spectral_norm(nn.Linear(3, 3))


COUPLED, CHANGES = "couples the samples of a batch", "gives another result when it is called again"
FAULTS: dict[str, tuple[Callable[[], object], str]] = {
    "batch statistics": (lambda: rs.Autonomous(Centre()), rf"Autonomous {COUPLED}.*LayerNorm"),
    "batch statistics, declared rowwise": (lambda: rs.Autonomous(Centre(), rowwise=True), COUPLED),
    "batch statistics in a function": (lambda: lambda t, y: torch.tanh(y - y.mean(0)), rf"<lambda> {COUPLED}"),
    "batch statistics in a later piece": (lambda: Piecewise([MLP(3, 4, 1), rs.Autonomous(Centre())]), COUPLED),
    "batch norm": (
        lambda: rs.Autonomous(nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))),
        r"module\.1, a BatchNorm1d, gives another result .* GroupNorm",
    ),
    "batch norm as the field": (lambda: NormField(3), "the field, a NormField, gives another result"),
    "batch norm without running statistics": (
        lambda: rs.Autonomous(nn.BatchNorm1d(3, track_running_stats=False)).eval(),
        COUPLED,
    ),
    "the first sample": (lambda: Relative(0), COUPLED),
    "the last sample": (lambda: Relative(-1), COUPLED),
    "dropout": (lambda: rs.Autonomous(nn.Dropout(0.5)), r"module, a Dropout, gives another result .*eval\(\)"),
    "dropout as a function": (lambda: lambda t, y: nn.functional.dropout(y, 0.5), f"{CHANGES}.*dropout, noise"),
    "noise": (Noisy, f"Noisy {CHANGES}"),
    "hidden state": (Counting, f"Counting {CHANGES}.*calls change its state"),
    "spectral norm by hooks": (lambda: rs.Autonomous(hooked()), f"{CHANGES}.*calls change its state"),
    "a condition, declared rowwise": (
        lambda: Conditioned(rowwise=True),
        "Conditioned has rowwise=True, but a sample alone .* Leave rowwise False",
    ),
    "a fixed number of samples, declared rowwise": (FixedSize, "FixedSize has rowwise=True"),
}

SOUND: dict[str, tuple[Callable[[], object], tuple[int, ...]]] = {
    "mlp": (lambda: MLP(3, 8, 2), (3,)),
    "normalised": (lambda: MLP(3, 8, 2, bound=1.0, always=True), (3,)),
    "normalised by torch": (lambda: rs.Autonomous(nn.utils.parametrizations.spectral_norm(nn.Linear(3, 3))), (3,)),
    "normalised pieces": (lambda: Piecewise([MLP(3, 4, 1, bound=1.0), MLP(3, 4, 1, bound=1.0)]), (3,)),
    "bounded": (lambda: Bounded(MLP(3, 8, 2, bound=1.0), -25.0, -15.0), (3,)),
    "conv": (lambda: Conv(2, size=(5, 4)), (2, 5, 4)),
    "gradient flow": (lambda: GradientFlow(nn.Linear(3, 6)), (3,)),
    "hamiltonian": (lambda: Hamiltonian(nn.Linear(2, 6), nn.Linear(2, 6)), (4,)),
    "partitioned": (lambda: rs.fields.Partitioned(MLP(2, 4, 1), MLP(2, 4, 1)), (4,)),
    "pieces": (lambda: Piecewise([MLP(3, 4, 1), Timed()]), (3,)),
    "batch norm in evaluation mode": (lambda: rs.Autonomous(nn.BatchNorm1d(3)).eval(), (3,)),
    "dropout of nothing": (lambda: rs.Autonomous(nn.Dropout(0.0)), (3,)),
    "group norm": (lambda: rs.Autonomous(nn.GroupNorm(1, 3), rowwise=True), (3,)),
    "condition": (lambda: Conditioned(rowwise=False), (3,)),
    "potential": (Potential, (3,)),
    "own times": (Timed, (3,)),
    "function": (lambda: lambda t, y: -y, (3,)),
    "zero": (lambda: rs.Autonomous(torch.zeros_like, rowwise=True), (3,)),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_named(name: str) -> None:
    make, message = FAULTS[name]
    with pytest.raises(ValueError, match=message):
        rs.check_field(make(), torch.randn(6, 3))


@pytest.mark.parametrize("rows", [2, 3, 4, 5, 64])
@pytest.mark.parametrize(
    "make", [lambda: rs.Autonomous(Centre()), lambda: Relative(0), lambda: lambda t, y: y.cumsum(0)]
)
def test_samples_that_depend_on_others_are_found_in_every_batch(make: Callable[[], object], rows: int) -> None:
    with pytest.raises(ValueError, match=COUPLED):
        rs.check_field(make(), torch.randn(rows, 3))


def test_equal_samples_are_told_apart() -> None:
    with pytest.raises(ValueError, match=COUPLED):
        rs.check_field(rs.Autonomous(Centre()), torch.zeros(4, 3))


@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.parametrize("way", ["forward", "trajectory", "interpolate"])
def test_a_block_checks_its_field_in_the_first_training_call(name: str, way: str) -> None:
    make, message = FAULTS[name]
    block, x = rs.ThetaBlock(make(), 0.5, 2, 0.1), torch.randn(6, 3)
    with pytest.raises(ValueError, match=message):
        block.interpolate(x, [0.05]) if way == "interpolate" else getattr(block, way)(x)


@pytest.mark.parametrize("name", SOUND)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_a_sound_field_passes(name: str, dtype: torch.dtype) -> None:
    make, shape = SOUND[name]
    torch.set_default_dtype(dtype)
    for scale in (1e-3, 1.0, 30.0):
        x = (scale * torch.randn(6, *shape)).requires_grad_()
        for t in (0.0, torch.tensor(0.3), torch.linspace(0.0, 1.0, 6)):
            rs.check_field(make(), x, t)


@pytest.mark.parametrize("make", [lambda: MLP(3, 8, 2), lambda: Bounded(MLP(3, 8, 2, bound=1.0), -3.0, 1.0)])
def test_a_sound_field_passes_under_autocast_and_its_weights_get_gradients(make: Callable[[], Field]) -> None:
    torch.set_default_dtype(torch.float32)
    block = rs.ThetaBlock(make(), 0.5, 2, 0.5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = block(torch.randn(6, 3)).square().sum()
    loss.backward()
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in block.parameters())


def test_one_sample_is_not_checked_and_the_next_batch_is() -> None:
    block = rs.ThetaBlock(rs.Autonomous(Centre()), 0.5)
    assert block(torch.randn(1, 3)).isfinite().all()
    with pytest.raises(ValueError, match=COUPLED):
        block(torch.randn(2, 3))


def test_blocks_in_evaluation_mode_are_not_checked() -> None:
    calls: list[int] = []
    field = rs.Autonomous(nn.Linear(3, 3))
    field.register_forward_hook(lambda *_: calls.append(1))
    block = rs.ThetaBlock(field, 1.0, 1, 0.1, solver=rs.Picard())
    x = torch.randn(4, 3)
    block.eval()(x)
    plain = len(calls)
    block.train()(x)
    assert len(calls) == 2 * plain + 2
    block(x)
    assert len(calls) == 3 * plain + 2


def test_nothing_but_the_evaluations_tells_that_a_field_was_checked() -> None:
    """Neither the random numbers to come, nor the power iteration of a normalised field, nor the gradients."""
    x = torch.randn(6, 3)

    def outcome(checked: bool) -> list[Tensor]:
        torch.manual_seed(3)
        block = rs.ThetaBlock(Bounded(MLP(3, 8, 2, bound=1.0), -3.0, 1.0), 0.5)
        block._checked = checked
        loss = block(x).square().sum()
        loss.backward()
        gradients = [parameter.grad for parameter in block.parameters()]
        return [loss, torch.randn(5), *block.state_dict().values(), *gradients]

    assert all(torch.equal(one, other) for one, other in zip(outcome(False), outcome(True), strict=True))


@pytest.mark.parametrize("scheme", [rs.schemes.Theta(0.0), rs.schemes.RungeKutta(rs.schemes.tableaux.RK4)])
def test_explicit_layers_may_have_batch_norm_and_dropout(scheme: rs.schemes.Scheme) -> None:
    module = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Dropout(0.5))
    assert rs.Block(rs.Autonomous(module), scheme)(torch.randn(6, 3)).isfinite().all()
    with pytest.raises(ValueError, match="gives another result each time"):
        rs.Block(rs.Autonomous(module), scheme, memory="checkpoint")(torch.randn(6, 3))


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # torch's own forward mode
def test_the_check_waits_for_a_call_that_can_be_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    block, x = rs.ThetaBlock(MLP(3, 4, 1), 0.5), torch.randn(4, 3)
    monkeypatch.setattr("resolvent.blocks.block.check_field", lambda *_: calls.append(1))
    torch.func.grad(lambda x: block(x).sum())(x)
    torch.func.vmap(lambda x: block(x[None])[0])(x)
    with monkeypatch.context() as compiling:
        compiling.setattr(torch.compiler, "is_compiling", lambda: True)
        block(x)
    assert calls == []
    with torch.inference_mode():
        block(x)
    block(x)
    assert calls == [1]


def test_the_check_works_without_gradients() -> None:
    normalised = MLP(3, 8, 2, bound=1.0)
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            x = torch.randn(6, 3)
            rs.check_field(Potential(), x, torch.rand(6))
            rs.check_field(normalised, x)
            with pytest.raises(ValueError, match=COUPLED):
                rs.check_field(rs.Autonomous(Centre()), x)


def test_what_is_not_finite_is_left_to_the_solver() -> None:
    rs.check_field(lambda t, y: y / 0, torch.randn(6, 3))
    with pytest.raises(rs.ConvergenceError):
        rs.ThetaBlock(lambda t, y: y.log(), 0.5)(-torch.rand(6, 3))
