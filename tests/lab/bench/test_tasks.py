"""Every row runs with small settings, and its contenders compute the same thing."""

import copy
import dataclasses
from functools import partial

import pytest
import torch

import resolvent as rs
from resolvent_lab.bench.contender import StepResult, TorchContender, exact
from resolvent_lab.bench.equilibria import Transformer
from resolvent_lab.bench.layers import Explicit, as_own_network, explicit, remade
from resolvent_lab.bench.measure import gradient_error, residual
from resolvent_lab.bench.networks import (
    convolutions,
    convolutions_bfloat16,
    lotka_volterra,
    regression,
    resnet,
    sequence,
)
from resolvent_lab.bench.ours import fixed, offers
from resolvent_lab.bench.own import own_convolutions
from resolvent_lab.bench.penalized import recipe
from resolvent_lab.bench.records import accurate, cost
from resolvent_lab.bench.rows import NAMES, ROWS, tasks
from resolvent_lab.bench.suite import Effort, run
from resolvent_lab.bench.tables import tables as tables_of
from resolvent_lab.bench.task import Task, blocks, with_layers

SMALL = {
    "regression": partial(regression, training=2),
    "lotka_volterra": partial(lotka_volterra, training=1),
    "resnet": partial(resnet, count=2),
    "convolutions": partial(convolutions, count=2, channels=2, size=4),
    "convolutions_bfloat16": partial(convolutions_bfloat16, count=2, channels=2, size=4),
    "own_convolutions": partial(own_convolutions, count=2, channels=2, size=4),
}
QUICK = Effort(rounds=1, seconds=0.0)
OWN = "resolvent, own network"
PLANE = {"resolvent", OWN, f"{OWN}, rowwise=True", f"{OWN}, layer by layer"}
EXPECTED = {
    "regression": {*PLANE, 'resolvent, mode="compiled"'},
    "lotka_volterra": PLANE,
    "resnet": {"resolvent", "resolvent, checkpoint"},
    "convolutions": {"resolvent", "resolvent, checkpoint"},
    "convolutions_bfloat16": {"resolvent", "resolvent, checkpoint"},
    "own_convolutions": {"resolvent", "resolvent, rowwise=True", "resolvent, torch.compile"},
}
COMPILED = [name for name, expected in EXPECTED.items() if any("compile" in each for each in expected)]


def small(name, theta=0.5) -> Task:
    return SMALL[name](theta, "cpu")


# torch's compiler looks at the .grad of all that it is given.
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
@pytest.mark.parametrize("name", SMALL)
def test_rows_run_without_peers(name, monkeypatch):
    monkeypatch.setattr("resolvent.blocks.strategies.compiling.BACKEND", "eager")
    monkeypatch.setattr("resolvent_lab.bench.ours.BACKEND", "eager")
    kinds = ("eager", "compiled") if name in COMPILED else ("eager",)
    record = run(small(name), {}, QUICK, kinds)
    assert record["failures"] == {}
    entries = record["contenders"]
    references = {"explicit", "explicit, torch.compile", "explicit, max-autotune"} & set(entries)
    assert len(references) == (3 if name in COMPILED else 1)
    assert set(entries) == references | EXPECTED[name]
    assert cost(record, "explicit") == [1.0, 1.0, 1.0]
    for each, entry in entries.items():
        assert entry["peak_bytes"] > 0
        assert all(seconds > 0 for action in ("train", "infer") for seconds in entry[action])
        assert entry["kind"] == ("compiled" if "compile" in each or "max" in each else "eager")
        if each not in references:
            assert accurate(record, each)
            assert entry["gradient_error"] < 10 * record["tolerance"]


def test_contenders_can_be_left_out():
    record = run(small("regression"), {}, QUICK, kinds=("eager",), skip=("own",))
    assert set(record["contenders"]) == {"explicit", "resolvent"}


def test_an_own_network_has_the_weights_and_values_of_the_field():
    task = small("regression")
    (block,) = blocks(task.model).values()
    own, x = as_own_network(block), task.batch[0]
    assert torch.equal(own.field(0.0, x), block.field(0.0, x))
    pairs = zip(own.parameters(), block.parameters(), strict=True)
    assert all(ours is theirs for ours, theirs in pairs)


def test_each_of_several_networks_is_measured_beside_one_compiled_explicit_network():
    assert tuple(f"B{n}" for n in range(1, 13)) == NAMES
    drawn = [make for make in ROWS["B8"] if not make.keywords["kind"].training]
    networks = [make(0.5, "cpu") for make in (*drawn, *ROWS["B10"][:6])]
    eager = {"explicit", "resolvent"}
    compiled = {"explicit, torch.compile", 'resolvent, mode="compiled"'}
    assert all(set(offers(task, ("eager", "compiled", "graph"))) == eager | compiled for task in networks)
    assert len({(task.row, task.title, task.network) for task in networks}) == len(networks)
    trained = next(make for make in ROWS["B9"] if make.keywords["kind"].training)
    kind = dataclasses.replace(trained.keywords["kind"], training=1)
    task = trained(0.5, "cpu", kind=kind, samples=3)
    record = run(task, {"never asked": None}, QUICK, ("eager",))
    assert accurate(record, "resolvent")
    assert record["network"] == "3 hidden layers of 10, GELU, seed 0"
    assert task.batch[0].shape == (3, 2)
    fresh = kind.build()
    moved = [torch.equal(a, b) for a, b in zip(fresh.parameters(), task.model.parameters(), strict=True)]
    assert not any(moved)


@pytest.mark.parametrize(("which", "shape"), [(0, (3, 8)), (4, (2, 4, 6, 6)), (6, (2, 3, 16))])
def test_decaying_fields_are_solved_by_the_accelerated_fixed_point(which: int, shape: tuple[int, ...]):
    task = ROWS["B12"][which](1.0, "cpu", shape=shape)
    record = run(task, {}, QUICK, ("eager",))
    assert accurate(record, "resolvent")
    assert record["contenders"]["resolvent"]["gradient_error"] < 1e-3
    with rs.blocks.Monitor(task.model) as monitor:
        task.loss(task.model, task.batch).backward()
    assert all(solves.fallbacks == 0 for solves in monitor.records.values())


def test_a_network_without_a_solution_is_reported():
    shift = torch.nn.Linear(2, 2)  # y = x + y + 2 has no solution
    shift.load_state_dict({"weight": torch.eye(2), "bias": torch.full((2,), 2.0)})
    block = rs.ThetaBlock(rs.Autonomous(shift), 1.0, 1, 1.0)
    task = small("regression", theta=1.0)
    task = dataclasses.replace(task, model=with_layers(task.model, lambda old: block))
    record = run(task, {}, QUICK, kinds=("eager",))
    assert record["contenders"] == {}
    assert "double precision" in record["failures"]


@pytest.mark.slow
def test_the_recipe_with_penalty_runs():
    task = recipe("cpu", count=2)
    record = run(task, {}, QUICK)
    assert set(record["contenders"]) == {"explicit", "resolvent"}
    assert accurate(record, "resolvent")
    assert record["contenders"]["resolvent"]["gradient_error"] < 1e-1
    twelve = TorchContender("recorded", task, fixed(task, [(12, 12)] * 4))
    assert residual(task, twelve.outcome().states) <= 1e-3


class Replay:
    """Stands in for a CUDA graph: calls the model."""

    def __init__(self, model, example, steps):
        self.steps = [(steps or 6, steps or 6) for _ in blocks(model)]
        self.model, self.number = model, len(example)

    def __call__(self, *inputs):
        assert len(inputs) == self.number
        return self.model(*inputs)


def test_recorded_contenders_are_checked_with_their_numbers_of_steps(monkeypatch):
    monkeypatch.setattr("resolvent_lab.bench.ours.RECORDS_ON", "cpu")
    monkeypatch.setattr(rs.blocks, "cuda_graph", Replay)
    task = dataclasses.replace(small("own_convolutions"), graph_steps=1)
    record = run(task, {}, QUICK, kinds=("graph",))
    assert record["failures"] == {}
    names = ["explicit, CUDA graph", "resolvent, CUDA graph", "resolvent, CUDA graph of 1 steps"]
    assert list(record["contenders"]) == names
    assert accurate(record, names[1])
    assert not accurate(record, names[2])
    assert cost(record, names[1]) is not None


@pytest.mark.parametrize("theta", [0.5, 1.0])
def test_the_papers_method_agrees_with_ours(theta):
    task = small("regression", theta)
    stopping = rs.Stopping(rtol=task.tolerance, atol=0.0)
    adjoint = rs.ImplicitAdjoint(solver=rs.GMRES())
    convert = partial(remade, solver=rs.LBFGS(memory=10), stopping=stopping, adjoint=adjoint)
    outcome = TorchContender("paper", task, convert).outcome()
    assert residual(task, outcome.states) <= 1.25e-6
    assert gradient_error(outcome.gradients, exact(task).gradients) < 1e-5


def test_explicit_layers_are_theta_layers_at_zero():
    task = small("resnet")
    loop = with_layers(task.model, Explicit)
    block = with_layers(task.model, lambda old: rs.ThetaBlock(old.field, 0.0, old.num_steps, old.horizon))
    images = task.batch[0]
    torch.testing.assert_close(loop(images), block(images), rtol=1e-12, atol=1e-12)


def test_the_residual_is_that_of_the_layers_equation():
    task = small("regression", theta=1.0)
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
    task = small("regression")
    before = copy.deepcopy(task.model.state_dict())
    contender = offers(task, ("eager",))["resolvent"]()
    contender.seconds("train", 3)
    assert all(torch.equal(before[name], value) for name, value in task.model.state_dict().items())
    assert all(parameter.grad is None for parameter in task.model.parameters())
    assert len(blocks(task.model)) == 1


def test_weights_move_between_steps_and_data_between_passes():
    task = small("regression")
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
    task = small("resnet")
    outcome = exact(task)
    assert isinstance(outcome, StepResult)
    shapes = [parameter.shape for parameter in task.model.parameters()]
    assert [gradient.shape for gradient in outcome.gradients] == shapes
    assert len(outcome.states) == 4


def small_sequence() -> Task:
    return sequence("cpu", count=3, tokens=4, size=8)


@pytest.mark.slow
def test_the_row_of_equilibria_runs_and_is_tabled():
    record = run(small_sequence(), {}, QUICK, kinds=("eager",))
    assert list(record["contenders"]) == ["explicit", "resolvent", "resolvent, Picard and Neumann"]
    assert record["failures"] == {}
    for name, entry in record["contenders"].items():
        assert entry["peak_bytes"] > 0
        if name != "explicit":
            assert entry["residual"] <= 1.25 * record["tolerance"]
            assert entry["gradient_error"] < 1e-2
    text = tables_of({"records": [record | {"machine": "a test", "absent": []}], "growth": {}})
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
    torch.testing.assert_close(with_layers(task.model, explicit)(x), z)


def test_gradients_of_an_equilibrium_are_compared_in_one_order():
    task = small_sequence()
    outcome = TorchContender("explicit", task, explicit).outcome()
    shapes = [parameter.shape for parameter in task.model.parameters()]
    assert [gradient.shape for gradient in outcome.gradients] == shapes
    assert [gradient.shape for gradient in exact(task).gradients] == shapes


def test_only_theta_layers_are_measured_for_each_theta(monkeypatch):
    monkeypatch.setitem(ROWS, "B1", (partial(regression, training=0),))
    assert [task.theta for task in tasks("B1", (0.5, 1.0), "cpu")] == [0.5, 1.0]
    assert [task.theta for task in tasks("B6", (0.5, 1.0), "cpu")] == [None]
