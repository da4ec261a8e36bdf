"""Every row runs with small settings, and its contenders compute the same thing."""

import copy
from functools import partial

import pytest
import torch

import resolvent as rs
from resolvent_lab.bench.contender import StepResult, TorchContender, exact
from resolvent_lab.bench.equilibria import Transformer
from resolvent_lab.bench.layers import Explicit, ours, remade, unrolled
from resolvent_lab.bench.measure import gradient_error, residual
from resolvent_lab.bench.rows import ROWS, sequence, tasks
from resolvent_lab.bench.suite import Effort, run
from resolvent_lab.bench.tables import markdown
from resolvent_lab.bench.task import Task, blocks, with_layers

SMALL = {
    "regression": {"training": 2},
    "lotka_volterra": {"training": 1},
    "resnet": {"count": 2},
    "convolutions": {"count": 2, "channels": 2, "size": 4},
    "convolutions_bfloat16": {"count": 2, "channels": 2, "size": 4},
}
MAKES = [make for makes in ROWS.values() for make in makes]


def small(make, theta=0.5) -> Task:
    return make(theta, "cpu", **SMALL[make.__name__])


# torch's compiler looks at the .grad of all that it is given.
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
@pytest.mark.parametrize("make", MAKES, ids=lambda make: make.__name__)
def test_rows_run_without_peers(make, monkeypatch):
    monkeypatch.setattr("resolvent.blocks.strategies.compiled.BACKEND", "eager")
    record = run(small(make), {}, Effort(rounds=1, seconds=0.0))
    assert record["contenders"]["explicit"]["train"]["ratio"] == [1.0, 1.0, 1.0]
    implicit = {name: entry for name, entry in record["contenders"].items() if name != "explicit"}
    assert "resolvent" in implicit
    for entry in implicit.values():
        assert entry["residual"] <= 1.25 * record["tolerance"]
        assert entry["gradient_error"] < 10 * record["tolerance"]
        assert entry["peak_bytes"] > 0
        assert all(seconds > 0 for kind in ("train", "infer") for seconds in entry[kind]["seconds"])


def test_contenders_can_be_left_out():
    record = run(small(ROWS["B1"][0]), {}, Effort(rounds=1, seconds=0.0), skip=("compiled", "layer"))
    assert set(record["contenders"]) == {"explicit", "resolvent"}


@pytest.mark.parametrize("theta", [0.5, 1.0])
def test_the_papers_method_agrees_with_ours(theta):
    task = small(ROWS["B1"][0], theta)
    stopping = rs.Stopping(rtol=task.tolerance, atol=0.0)
    adjoint = rs.ImplicitAdjoint(solver=rs.GMRES())
    convert = partial(remade, solver=rs.LBFGS(memory=10), stopping=stopping, adjoint=adjoint)
    outcome = TorchContender("paper", task, convert).outcome()
    assert residual(task, outcome.states) <= 1.25e-6
    assert gradient_error(outcome.gradients, exact(task).gradients) < 1e-5


def test_explicit_layers_are_theta_layers_at_zero():
    task = small(ROWS["B3"][0])
    loop = with_layers(task.model, Explicit)
    block = with_layers(task.model, lambda old: rs.ThetaBlock(old.field, 0.0, old.num_steps, old.horizon))
    images = task.batch[0]
    torch.testing.assert_close(loop(images), block(images), rtol=1e-12, atol=1e-12)


def test_the_residual_is_that_of_the_layers_equation():
    task = small(ROWS["B1"][0], theta=1.0)
    (states,) = exact(task).states
    assert residual(task, [states]) < 1e-8
    wrong = states.clone()
    wrong[3, 7] *= 1.01
    # z - x - h F(z), at theta = 1: an error of one hundredth in z, up to what F makes of it.
    assert 2e-3 < residual(task, [wrong]) < 2e-2


def test_errors_of_gradients_are_relative():
    right = [torch.tensor([3.0]), torch.tensor([[4.0]])]
    assert gradient_error([torch.tensor([3.0]), torch.tensor([[4.5]])], right) == pytest.approx(0.1)


def test_contenders_work_on_copies():
    task = small(ROWS["B1"][0])
    before = copy.deepcopy(task.model.state_dict())
    contender = TorchContender("resolvent", task, ours(task)["resolvent"])
    contender.seconds("train", 3)
    assert all(torch.equal(before[name], value) for name, value in task.model.state_dict().items())
    assert all(parameter.grad is None for parameter in task.model.parameters())
    assert len(blocks(task.model)) == 1


def test_weights_move_between_steps_and_data_between_passes():
    task = small(ROWS["B1"][0])
    contender = TorchContender("explicit", task, Explicit)
    start = contender.weights[0][0].clone()
    contender.seconds("train", 1)
    moved = (next(contender.model.parameters()).detach() - start).abs()
    torch.testing.assert_close(moved, torch.full_like(moved, 1e-3), rtol=1e-6, atol=0.0)
    contender.seconds("train", 1)
    torch.testing.assert_close(next(contender.model.parameters()).detach(), start)
    contender.seconds("infer", 1)
    assert not torch.equal(contender.batch[0], task.batch[0])


def test_an_outcome_has_a_gradient_for_every_parameter():
    task = small(ROWS["B3"][0])
    outcome = exact(task)
    assert isinstance(outcome, StepResult)
    shapes = [parameter.shape for parameter in task.model.parameters()]
    assert [gradient.shape for gradient in outcome.gradients] == shapes
    assert len(outcome.states) == 4


def small_sequence() -> Task:
    return sequence("cpu", count=3, tokens=4, size=8)


@pytest.mark.slow
def test_the_row_of_equilibria_runs_and_is_tabled():
    record = run(small_sequence(), {}, Effort(rounds=1, seconds=0.0))
    assert list(record["contenders"]) == ["explicit", "resolvent", "resolvent, Picard and Neumann"]
    assert record["failures"] == {}
    for name, entry in record["contenders"].items():
        assert entry["peak_bytes"] > 0
        if name != "explicit":
            assert entry["residual"] <= 1.25 * record["tolerance"]
            assert entry["gradient_error"] < 1e-2
    text = markdown({"machine": "a test", "absent": [], "rows": [record]})
    assert "### B6: equilibrium of a transformer block, tolerance 1e-04" in text
    assert "theta" not in text


def test_the_residual_of_an_equilibrium_is_that_of_its_equation():
    task = small_sequence()
    (states,) = exact(task).states
    x, z = states
    assert torch.equal(x, task.batch[0].double())
    assert residual(task, [states]) < 1e-8
    f = copy.deepcopy(task.model.layers.f).double()
    defects = (1.01 * z - f(1.01 * z, x)).flatten(1).norm(dim=1) / (1.01 * z).flatten(1).norm(dim=1)
    torch.testing.assert_close(residual(task, [torch.stack([x, 1.01 * z])]), defects.max().item())


def test_the_explicit_counterpart_of_an_equilibrium_applies_the_function_five_times():
    task = small_sequence()
    x, f = task.batch[0], task.model.layers.f
    assert isinstance(f, Transformer)
    z = torch.zeros_like(x)
    for _ in range(5):
        z = f(z, x)
    torch.testing.assert_close(with_layers(task.model, unrolled)(x), z)


def test_gradients_of_an_equilibrium_are_compared_in_one_order():
    task = small_sequence()
    outcome = TorchContender("explicit", task, unrolled).outcome()
    shapes = [parameter.shape for parameter in task.model.parameters()]
    assert [gradient.shape for gradient in outcome.gradients] == shapes
    assert [gradient.shape for gradient in exact(task).gradients] == shapes


def test_only_theta_layers_are_measured_for_each_theta(monkeypatch):
    monkeypatch.setitem(ROWS, "B1", (partial(ROWS["B1"][0], training=0),))
    assert [task.theta for task in tasks("B1", (0.5, 1.0), "cpu")] == [0.5, 1.0]
    assert [task.theta for task in tasks("B6", (0.5, 1.0), "cpu")] == [None]
