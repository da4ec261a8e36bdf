"""Recorded passes: a fixed number of steps, the results of an eager pass, and errors where a replay would be wrong."""

import copy
import gc
from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import resolvent as rs

TIGHT = rs.Stopping(rtol=1e-10, atol=1e-12)
ON_CUDA = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    # torch records on another stream than the one that gradients are accumulated on.
    pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream does not match"),
    pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS:UserWarning"),
]


def network(**options: Any) -> nn.Sequential:
    field = rs.fields.MLP(4, 8, 1, nn.Tanh())
    settings = {"stopping": TIGHT, **options}
    return nn.Sequential(nn.Linear(3, 4), rs.ThetaBlock(field, 0.5, 3, 0.9, **settings), nn.Linear(4, 2))


@torch.no_grad()
def silence(field: nn.Module) -> None:
    """Makes F = 0, in place: then the first guess is the solution."""
    for weight in field.parameters():
        weight.zero_()


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """In place of a recording, the function itself; returns what was recorded."""
    recorded = []

    def stand_in(function: Callable[..., Any], example: Any, **_: Any) -> Callable[..., Any]:
        recorded.append(example)
        return function

    monkeypatch.setattr(torch.cuda, "make_graphed_callables", stand_in)
    monkeypatch.setattr(import_module("resolvent.blocks.cuda_graph"), "_refuse_other_devices", lambda inputs: None)
    return recorded


@pytest.mark.parametrize("mode", ["auto", "sequential", "parallel", "compiled"])
def test_solves_make_the_steps_they_are_told_to(eager: list[Any], mode: str) -> None:
    model, x = network(mode=mode), torch.randn(5, 3)
    fast = rs.blocks.cuda_graph(model, x, steps=1)
    few = fast(x)
    assert 0 < fast.unconverged <= 3 * len(x)
    model[1].strategy = rs.blocks.LayerByLayer()
    assert (few - model(x)).abs().max() > 1e-8
    fast = rs.blocks.cuda_graph(model, x, steps=12)
    torch.testing.assert_close(fast(x), model(x), rtol=1e-9, atol=1e-9)
    assert fast.unconverged == 0


def test_the_fewest_steps_are_learned(eager: list[Any]) -> None:
    model, x = network(), torch.randn(5, 3)
    fast = rs.blocks.cuda_graph(model, x)
    fast(x).sum().backward()
    assert fast.unconverged == 0
    (own,) = fast.steps
    assert own.layers > 1
    assert own.linear == 1  # By a factorization.
    fewer = rs.blocks.cuda_graph(model, x, steps=own.layers - 1)
    fewer(x)
    assert fewer.unconverged > 0


def test_steps_are_raised_when_samples_no_longer_converge(eager: list[Any]) -> None:
    model, x = network(solver=rs.Picard()), torch.randn(5, 3)
    silence(model[1].field)
    fast = rs.blocks.cuda_graph(model, x)
    before, recordings = fast.steps, len(eager)
    model.load_state_dict(network().state_dict())
    for _ in range(60):
        fast(x)
    assert fast.unconverged == 0
    assert fast.steps[0].layers > before[0].layers
    assert len(eager) == recordings + 1  # Learned at once, not number by number.
    fast(x)
    assert len(eager) == recordings + 1


def test_hopeless_solves_make_a_bounded_number_of_steps(eager: list[Any]) -> None:
    model, x = network(solver=rs.Picard()), torch.randn(5, 3)
    with torch.no_grad():
        model[1].field.layers[-1].weight.mul_(1e3)
        fast = rs.blocks.cuda_graph(model, x)
        for _ in range(4):
            fast(x)
    assert fast.steps[0].layers == 64
    assert fast.unconverged > 0
    assert len(eager) == 1


@pytest.mark.parametrize("mode", ["auto", "sequential", "parallel", "compiled"])
def test_blocks_are_as_before_afterwards(eager: list[Any], mode: str) -> None:
    model, x = network(mode=mode), torch.randn(5, 3)
    before = model[1].options, model[1].strategy
    rs.blocks.cuda_graph(model, x, steps=3)(x)
    assert (model[1].options, model[1].strategy) == before
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        rs.blocks.cuda_graph(model, x, steps=3)(x[:, :2])
    assert (model[1].options, model[1].strategy) == before


def test_failures_of_the_backward_pass_are_counted(eager: list[Any]) -> None:
    model = network(solver=rs.Newton(), adjoint=rs.ImplicitAdjoint(rs.Neumann(), stopping=rs.Stopping()))
    x = torch.randn(5, 3)
    fast = rs.blocks.cuda_graph(model, x, steps=6)
    value = fast(x)
    assert fast.unconverged == 0
    value.sum().backward()
    assert fast.unconverged == 15


def test_the_count_is_that_of_the_last_call(eager: list[Any]) -> None:
    model, x = network(), torch.randn(5, 3)
    fast = rs.blocks.cuda_graph(model, x, steps=1)
    fast(x)
    some = fast.unconverged
    assert some > 0
    silence(model[1].field)
    fast(x)
    assert fast.unconverged == 0
    assert some > 0


def test_gradients_and_structures(eager: list[Any]) -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = network()

        def forward(self, x: Tensor, scale: Tensor) -> dict[str, Tensor]:
            y = self.inner(x)
            return {"y": y, "scaled": scale * y}

    model, inputs = Two(), (torch.randn(5, 3, requires_grad=True), torch.randn(5, 1, requires_grad=True))
    fast = rs.blocks.cuda_graph(model, inputs, steps=12)
    leaves = [*inputs, *model.parameters()]
    results = []
    for function in (fast, model):
        outputs = function(*inputs)
        assert set(outputs) == {"y", "scaled"}
        results.append(torch.autograd.grad(outputs["y"].sum() + outputs["scaled"].square().sum(), leaves))
    for ours, reference in zip(*results, strict=True):
        torch.testing.assert_close(ours, reference, rtol=1e-8, atol=1e-9)


def test_one_recording_for_each_kind_of_call(eager: list[Any]) -> None:
    model, x = network(), torch.randn(5, 3)
    fast = rs.blocks.cuda_graph(model, x, steps=3)
    assert len(eager) == 1
    fast(x)
    fast(x + 1)
    assert len(eager) == 1
    fast(x[:3])
    fast(x.clone().requires_grad_())
    model[2].eval()
    fast(x)
    with torch.no_grad():
        fast(x)
    with torch.inference_mode():
        fast(1 * x)
    for weight in model[0].parameters():
        weight.requires_grad_(False)
    fast(x)
    assert len(eager) == 6
    fast(x)
    assert len(eager) == 6


def test_weights_that_moved_are_recorded_anew(eager: list[Any]) -> None:
    model, x = network(), torch.randn(5, 3)
    fast = rs.blocks.cuda_graph(model, x, steps=12)
    model.load_state_dict(network().state_dict())
    fast(x)
    assert len(eager) == 1
    model[0].weight.data = torch.randn(4, 3)
    torch.testing.assert_close(fast(x), model(x), rtol=1e-9, atol=1e-9)
    assert len(eager) == 2


def test_a_call_is_differentiated_once_and_before_the_next(eager: list[Any]) -> None:
    x = torch.randn(5, 3)
    fast = rs.blocks.cuda_graph(network(), x, steps=4)
    first, second = fast(x), fast(x)
    with pytest.raises(rs.errors.ResolventError, match="before the next call"):
        first.sum().backward()
    second.sum().backward(retain_graph=True)
    with pytest.raises(rs.errors.ResolventError, match="at most once"):
        second.sum().backward()
    with pytest.raises(rs.errors.DerivativeOrderError, match="first derivatives"):
        fast(x).sum().backward(create_graph=True)


def test_outputs_outlive_the_next_call(eager: list[Any]) -> None:
    buffer = torch.zeros(2)

    class Writes(nn.Module):  # As a replay does, to the same place each time.
        def forward(self, x: Tensor) -> Tensor:
            return buffer.copy_(x)

    fast = rs.blocks.cuda_graph(Writes(), torch.zeros(2), steps=1)
    first = fast(torch.ones(2))
    fast(torch.zeros(2))
    assert torch.equal(first, torch.ones(2))


@pytest.mark.parametrize(
    ("example", "steps", "message"),
    [
        (torch.ones(5, 3), 4, r"the inputs are on cpu: move the model and its inputs there with \.cuda\(\)"),
        (torch.ones(5, 3), 0, "steps must be a whole number, 1 or more, got 0"),
        ((torch.ones(5, 3), 1.0), 4, "must be tensors"),
        ((), 4, "must be tensors"),
    ],
)
def test_what_cannot_be_recorded(example: Any, steps: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        rs.blocks.cuda_graph(network(), example, steps=steps)


def test_only_modules_are_recorded() -> None:
    with pytest.raises(ValueError, match=r"must be an nn\.Module"):
        rs.blocks.cuda_graph(torch.tanh, torch.ones(5, 3), steps=4)  # type: ignore[arg-type]


def test_there_is_no_replay_inside_of_transforms() -> None:
    model = network()
    with pytest.raises(ValueError, match=r"torch\.func"):
        torch.func.vmap(lambda x: rs.blocks.cuda_graph(model, x, steps=3)(x))(torch.ones(2, 5, 3))


def test_no_garbage_is_collected_while_a_pass_is_recorded(eager: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be an earlier recording, which must not be destroyed then."""
    enabled = []
    recorder = torch.cuda.make_graphed_callables

    def watch(*arguments: Any, **options: Any) -> Any:
        enabled.append(gc.isenabled())
        return recorder(*arguments, **options)

    monkeypatch.setattr(torch.cuda, "make_graphed_callables", watch)
    rs.blocks.cuda_graph(network(), torch.randn(5, 3), steps=2)
    assert enabled == [False]
    assert gc.isenabled()


@pytest.mark.parametrize("error", ["operation not permitted when stream is capturing", "out of memory"])
def test_what_waits_for_the_device_is_explained(eager: list[Any], monkeypatch: pytest.MonkeyPatch, error: str) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise RuntimeError(error)

    monkeypatch.setattr(torch.cuda, "make_graphed_callables", fails)
    with pytest.raises(ValueError if "captur" in error else RuntimeError, match=r"learned theta|out of memory"):
        rs.blocks.cuda_graph(network(), torch.ones(5, 3), steps=3)


class WithTangents(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return rs.jvp(self.model, x, v)[:2]


def test_derivatives_of_a_network_can_be_recorded(eager: list[Any]) -> None:
    model, x, v = WithTangents(network()), torch.randn(5, 3), torch.randn(5, 3)
    fast = rs.blocks.cuda_graph(model, (x, v), steps=12)
    for ours, reference in zip(fast(x, v), model(x, v), strict=True):
        torch.testing.assert_close(ours, reference, rtol=1e-9, atol=1e-9)
    assert fast.unconverged == 0
    fast = rs.blocks.cuda_graph(model, (x, v), steps=1)
    fast(x, v)
    assert fast.unconverged > 0


def resnet(normalization: str) -> nn.Module:
    return rs.models.implicit_resnet18(
        0.5, 4, input_shape=(1, 8, 8), normalization=normalization, stopping=rs.Stopping(rtol=1e-6)
    )


class TestOnCuda:
    pytestmark = ON_CUDA

    @pytest.mark.parametrize("memory", ["store", "checkpoint"])
    def test_outputs_and_gradients_of_a_block(self, memory: str) -> None:
        model = network(memory=memory).cuda()
        fast = rs.blocks.cuda_graph(model, torch.randn(5, 3, device="cuda"), steps=12)
        for size in (5, 5, 3, 5):
            results = []
            x = torch.randn(size, 3, device="cuda", requires_grad=True)
            for function in (fast, model):
                outputs = function(x)
                results.append([outputs, *torch.autograd.grad(outputs.square().sum(), [x, *model.parameters()])])
            for ours, reference in zip(*results, strict=True):
                torch.testing.assert_close(ours, reference, rtol=1e-7, atol=1e-8)
            assert fast.unconverged == 0

    @pytest.mark.parametrize("normalization", ["free", "bounded", "gradient"])
    def test_training_of_a_network(self, normalization: str) -> None:
        model = resnet(normalization).cuda()
        images = torch.rand(6, 1, 8, 8, device="cuda")
        model(images)  # Norms are measured in full before their first use.
        plain = copy.deepcopy(model)
        fast = rs.blocks.cuda_graph(model, images, steps=30)
        losses = []
        for function, weights in ((fast, model), (plain, plain)):
            optimizer = torch.optim.SGD(weights.parameters(), lr=0.05)
            losses.append([])
            for n in range(4):
                optimizer.zero_grad()
                loss = (function(images + 0.1 * n) - 1).square().mean()
                loss.backward()
                optimizer.step()
                losses[-1].append(float(loss.detach()))
        assert losses[0] == pytest.approx(losses[1], rel=1e-4)
        assert len(set(losses[0])) == 4

    def test_gradients_are_accumulated_and_kept(self) -> None:
        model, x = network().cuda(), torch.randn(5, 3, device="cuda")
        fast, other = rs.blocks.cuda_graph(model, x, steps=12), torch.randn(5, 3, device="cuda")
        results = []
        for function in (fast, model):
            model.zero_grad()
            outputs = []
            for inputs in (x, other):
                outputs.append(function(inputs))
                outputs[-1].square().sum().backward()
            results.append([*outputs, *(weight.grad.clone() for weight in model.parameters())])
        for ours, reference in zip(*results, strict=True):
            torch.testing.assert_close(ours, reference, rtol=1e-7, atol=1e-8)

    def test_derivatives_of_a_network(self) -> None:
        model = WithTangents(network()).cuda()
        x, v = torch.randn(2, 5, 3, device="cuda")
        fast = rs.blocks.cuda_graph(model, (x, v), steps=12)
        results = []
        for function in (fast, model):
            outputs, tangents = function(v, x)
            loss = outputs.sum() + tangents.square().sum()
            results.append([outputs, tangents, *torch.autograd.grad(loss, list(model.parameters()))])
        for ours, reference in zip(*results, strict=True):
            torch.testing.assert_close(ours, reference, rtol=1e-7, atol=1e-8)
        assert fast.unconverged == 0

    def test_failures_are_counted(self) -> None:
        model, x = network().cuda(), torch.randn(5, 3, device="cuda")
        fast = rs.blocks.cuda_graph(model, x, steps=1)
        fast(x)
        some = fast.unconverged
        silence(model[1].field)
        fast(x)
        assert fast.unconverged == 0
        assert some > 0

    def test_no_grad_and_autocast(self) -> None:
        torch.set_default_dtype(torch.float32)
        model, x = resnet("free").cuda(), torch.rand(6, 1, 8, 8, device="cuda")
        with torch.no_grad():
            fast = rs.blocks.cuda_graph(model, x, steps=30)
            torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-5)
        large = 30 * x  # Its states are beyond the absolute tolerance of bfloat16.
        with torch.autocast("cuda", torch.bfloat16):
            ours, reference = fast(large), model(large)
        assert ours.dtype == reference.dtype == torch.bfloat16
        assert (ours - reference).abs().max() < 0.05 * reference.abs().max()
        ours.float().square().sum().backward()
        assert all(weight.grad.isfinite().all() for weight in model.parameters())

    def test_what_waits_for_the_device(self) -> None:
        model, x = network(learn_theta=True).cuda(), torch.randn(5, 3, device="cuda")
        with pytest.raises(ValueError, match="a learned theta"):
            rs.blocks.cuda_graph(model, x, steps=3)
        assert model(x).isfinite().all()
        # Random numbers can still be drawn.
        assert torch.randn(3, device="cuda").isfinite().all()

    def test_earlier_recordings_are_not_destroyed_during_a_later_one(self) -> None:
        """A reference cycle is destroyed whenever the garbage collector runs, such as in the middle of a recording."""
        model = network().cuda()
        for size in range(1, 6):
            fast = rs.blocks.cuda_graph(model, torch.randn(size, 3, device="cuda"), steps=4)
            fast.itself = fast
            del fast
            before = gc.get_threshold()
            gc.set_threshold(100, 1, 1)
            try:
                rs.blocks.cuda_graph(model, torch.randn(size, 3, device="cuda"), steps=4)
            finally:
                gc.set_threshold(*before)
