"""Exported programs: the results of the model for any batch size, with the residual of each solve."""

import copy
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

import resolvent as rs
from resolvent.blocks.elimination import eliminate
from resolvent.schemes import tableaux

# torch's own exporters warn about themselves.
pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
TIGHT = rs.Stopping(rtol=1e-11, atol=1e-12)
Build = Callable[[], tuple[nn.Module, tuple[Tensor, ...]]]


class Affine(nn.Module):
    """z = tanh(W z / 2 + U x + v)."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(3, 3), nn.Linear(2, 3)

    def forward(self, z: Tensor, x: Tensor, v: Tensor) -> Tensor:
        return torch.tanh(0.5 * self.inner(z) + self.outer(x) + v)


def theta(field: Any = None, x: tuple[int, ...] = (3, 2), **options: Any) -> Build:
    def build() -> tuple[nn.Module, tuple[Tensor, ...]]:
        made = rs.fields.MLP(2, 4, 1) if field is None else field()
        settings = {"num_steps": 1, "horizon": 0.5, "stopping": TIGHT} | {
            name: value() if callable(value) else value for name, value in options.items()
        }
        return rs.ThetaBlock(made, **settings), (torch.randn(*x),)

    return build


def rk(table: Any) -> Build:
    def build() -> tuple[nn.Module, tuple[Tensor, ...]]:
        scheme = rs.schemes.RungeKutta(table)
        return rs.Block(rs.fields.MLP(2, 4, 1), scheme, num_steps=1, horizon=0.3, stopping=TIGHT), (torch.randn(3, 2),)

    return build


def equilibrium() -> tuple[nn.Module, tuple[Tensor, ...]]:
    layer = rs.Equilibrium(Affine(), z0=lambda x, v: torch.zeros_like(v), stopping=TIGHT)
    return layer, (torch.randn(3, 2), torch.randn(3, 3))


def converted() -> tuple[nn.Module, tuple[Tensor, ...]]:
    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(2, 2)

        def forward(self, x: Tensor) -> Tensor:
            return x + 0.3 * torch.tanh(self.linear(x))

    network = nn.Sequential(Residual(), nn.Linear(2, 2))
    chosen = {"predicate": lambda name, module: isinstance(module, Residual), "stopping": TIGHT}
    return rs.make_implicit(network, 0.5, **chosen), (torch.randn(3, 2),)


def mixed() -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Newton's method with a Jacobian by autograd, Anderson's method, and an equilibrium, one after the other."""

    class Inject(nn.Module):
        def forward(self, z: Tensor, x: Tensor) -> Tensor:
            return torch.tanh(0.2 * z + x)

    network = nn.Sequential(
        rs.ThetaBlock(rs.Autonomous(lambda y: -y * y.abs(), rowwise=True), 0.5, 1, 0.5),
        rs.ThetaBlock(rs.fields.MLP(2, 4, 1), 0.5, 1, 0.3, solver=rs.Anderson()),
        rs.Equilibrium(Inject(), solver=rs.Picard()),
    )
    return network, (torch.randn(3, 2),)


def images() -> tuple[nn.Module, tuple[Tensor, ...]]:
    """The default network for images, with three samples: states of more than 4096 numbers."""
    network = rs.models.implicit_resnet18(input_shape=(1, 28, 28), solver=rs.Picard())
    return network, (torch.randn(3, 1, 28, 28),)


def learned() -> nn.Parameter:
    return nn.Parameter(torch.tensor(0.4))


slow = pytest.mark.slow


def known() -> rs.Autonomous:
    return rs.Autonomous(nn.Sequential(nn.Linear(2, 2), nn.Tanh()))


def bounded() -> rs.fields.Bounded:
    return rs.fields.Bounded(rs.fields.MLP(2, 4, 1, bound=1.0), -3, 0.5)


# The network, and the steps that its solves need.
CASES = [
    pytest.param(theta(theta=0.0), 1, id="explicit", marks=slow),
    pytest.param(theta(solver=rs.Picard()), 25, id="Picard", marks=slow),
    pytest.param(theta(known), 5, id="Newton, known Jacobian", marks=slow),
    pytest.param(theta(lambda: lambda t, y: torch.sin(t + y)), 5, id="Newton, function", marks=slow),
    pytest.param(theta(solver=rs.Anderson()), 9, id="Anderson", marks=slow),
    pytest.param(theta(solver=rs.Broyden()), 9, id="Broyden", marks=slow),
    pytest.param(theta(learn_theta=True, horizon=learned, memory="checkpoint"), 5, id="learned", marks=slow),
    pytest.param(
        theta(num_steps=None, horizon=None, times=lambda: torch.tensor([0.0, 0.3])), 5, id="times", marks=slow
    ),
    pytest.param(theta(form="trapezoid", guess="explicit"), 5, id="trapezoid", marks=slow),
    pytest.param(theta(bounded, solver=rs.Picard()), 25, id="bounded", marks=slow),
    pytest.param(theta(lambda: rs.fields.OneSided(nn.Linear(2, 4), 0.5)), 5, id="one-sided", marks=slow),
    pytest.param(theta(lambda: rs.fields.Conv(1), (3, 1, 6, 6)), 9, id="convolution", marks=slow),
    pytest.param(rk(tableaux.RADAU5), 5, id="Radau", marks=slow),
    pytest.param(rk(tableaux.TRBDF2), 5, id="TR-BDF2", marks=slow),
    pytest.param(equilibrium, 6, id="equilibrium", marks=slow),
    pytest.param(converted, 5, id="make_implicit", marks=slow),
]


@pytest.mark.parametrize(("build", "steps"), CASES)
def test_a_program_does_what_the_model_does(build: Build, steps: int) -> None:
    model, inputs = build()
    program = rs.blocks.export(model.eval(), inputs, steps=steps).module()
    for batch in (1, 3, 6):
        x = tuple(torch.randn(batch, *part.shape[1:]) for part in inputs)
        value, residuals, converged = program(*x)
        assert_close(value, model(*x), rtol=1e-8, atol=1e-8)
        assert residuals.shape == converged.shape
        assert len(residuals) == batch
        assert bool(converged.all())
        assert bool((residuals < 1e-9).all())
    explicit = isinstance(model, rs.Block) and not model.scheme.implicit
    assert residuals.shape[1] == 0 if explicit else residuals.shape[1] >= 1


def test_too_few_steps_are_seen() -> None:
    model, inputs = theta(lambda: rs.fields.MLP(2, 4, 1), solver=rs.Picard)()
    program = rs.blocks.export(model.eval(), inputs, steps=2).module()
    value, residuals, converged = program(*inputs)
    assert not bool(converged.any())
    assert bool((residuals > 1e-9).all())
    w = inputs[0] + 0.5 * (value - inputs[0])  # The stage of theta = 1/2.
    with torch.no_grad():
        defect = inputs[0] + 0.25 * model.field(0.0, w) - w
    assert_close(residuals[:, 0], defect.square().mean(1).sqrt())


def test_the_model_is_not_changed() -> None:
    model, inputs = theta(solver=rs.Picard(), learn_theta=True, horizon=learned)()
    model.eval()
    options, state = model.options, copy.deepcopy(model.state_dict())
    rs.blocks.export(model, inputs, steps=1)
    assert model.options is options
    assert model.learn_theta
    assert_close(dict(model.state_dict()), dict(state))
    assert all(weight.requires_grad for weight in model.parameters())


@slow
def test_a_program_is_saved_and_loaded() -> None:
    model, inputs = theta(solver=rs.Picard())()
    file = io.BytesIO()
    torch.export.save(rs.blocks.export(model.eval(), inputs, steps=25), file)
    file.seek(0)
    loaded = torch.export.load(file).module()
    assert_close(loaded(*inputs)[0], model(*inputs), rtol=1e-8, atol=1e-8)


@slow
@pytest.mark.parametrize(("build", "steps"), [(mixed, 6), (images, 10)], ids=["mixed", "images"])
def test_onnxruntime_gives_the_same(build: Build, steps: int, tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    torch.set_default_dtype(torch.float32)
    model, inputs = build()
    program = rs.blocks.export(model.eval(), inputs, steps=steps)
    torch.onnx.export(program, f=tmp_path / "model.onnx", optimize=False, verbose=False, input_names=["x"])
    options = runtime.SessionOptions()
    options.log_severity_level = 3
    session = runtime.InferenceSession(tmp_path / "model.onnx", options)
    for batch in (1, 3, 6):
        x = torch.randn(batch, *inputs[0].shape[1:])
        value, residuals, converged = (torch.from_numpy(part) for part in session.run(None, {"x": x.numpy()}))
        with torch.no_grad():
            assert_close(value, model(x), rtol=1e-4, atol=1e-4)
        assert residuals.shape == converged.shape
        assert bool((residuals < 1e-3).all())
        # Where a residual is at its tolerance, rounding decides: those of the program may differ.
        assert_close(residuals, program.module()(x)[1], rtol=1e-2, atol=1e-5)


def test_models_that_cannot_be_exported_are_refused() -> None:
    model, inputs = theta()()
    with pytest.raises(ValueError, match="training mode"):
        rs.blocks.export(model, inputs, steps=3)
    model.eval()
    with pytest.raises(ValueError, match="one batch size"):
        rs.blocks.export(model, (torch.randn(2, 2), torch.randn(3, 2)), steps=3)
    with pytest.raises(ValueError, match="must be tensors"):
        rs.blocks.export(model, (0.0,), steps=3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"must be an nn\.Module"):
        rs.blocks.export(torch.relu, inputs, steps=3)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "build",
    [theta(solver=rs.NewtonKrylov), theta(lambda: lambda t, y: -y if float(y.sum()) > 0 else y, solver=rs.Picard)],
    ids=["solver", "field"],
)
def test_decisions_by_the_data_are_refused(build: Build) -> None:
    model, inputs = build()
    with pytest.raises(ValueError, match="decides by the data"):
        rs.blocks.export(model.eval(), inputs, steps=2)


def test_elimination_solves_linear_systems() -> None:
    A, B = torch.randn(5, 4, 4), torch.randn(5, 4, 2)
    A[0, 0, 0] = 0.0  # Needs a pivot.
    A[1] = 0.0
    found, usable = eliminate(A, B)
    assert usable.tolist() == [True, False, True, True, True]
    assert_close(found[usable], torch.linalg.solve(A[usable], B[usable]))
