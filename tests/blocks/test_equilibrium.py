"""Equilibrium layers: known fixed points, gradients, first guesses, warm starts, single samples, failure."""

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

import resolvent as rs
from manufactured import SOLVERS
from resolvent.extending import Adjoint, Solver
from structured_states import Multiscale, images, joined, rows

CLOSE = rs.Stopping(rtol=1e-11, atol=1e-12, max_steps=5000)
UNKNOWNS, FEATURES = 4, 2


class Cell(nn.Module):
    """A contraction with an input of another size."""

    def __init__(self, size: float = 0.8) -> None:
        super().__init__()
        self.recur, self.inject = nn.Linear(UNKNOWNS, UNKNOWNS), nn.Linear(FEATURES, UNKNOWNS)
        with torch.no_grad():
            self.recur.weight.mul_(size / torch.linalg.matrix_norm(self.recur.weight, 2))

    def forward(self, z: Tensor, x: Tensor) -> Tensor:
        return torch.tanh(self.recur(z) + self.inject(x))


def zeros(x: Tensor, *_: Any) -> Tensor:
    return x.new_zeros(len(x), UNKNOWNS)


def make(f: Any = None, **options: Any) -> rs.Equilibrium:
    return rs.Equilibrium(f or Cell(), zeros, **({"stopping": CLOSE} | options))


@pytest.mark.parametrize("solver", SOLVERS, ids=repr)
def test_the_fixed_point_of_an_affine_map(solver: Solver) -> None:
    A = torch.randn(4, 4)
    A = 0.7 * A / torch.linalg.matrix_norm(A, 2)
    x = torch.randn(5, 4)
    layer = rs.Equilibrium(lambda z, x: z @ A.mT + x, solver=solver, stopping=rs.Stopping(rtol=1e-9, max_steps=5000))
    torch.testing.assert_close(layer(x), torch.linalg.solve(torch.eye(4) - A, x.mT).mT, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize(
    ("adjoint", "order"),
    [(rs.ImplicitAdjoint(), 1), (rs.ImplicitAdjoint(order=2), 2), (rs.UnrolledAdjoint(), 1)],
    ids=str,
)
def test_gradients_agree_with_finite_differences(adjoint: Adjoint, order: int) -> None:
    cell = Cell()
    layer = make(cell, adjoint=adjoint, solver=rs.Newton() if order == 2 else rs.Picard())
    names, weights = zip(*cell.named_parameters(), strict=True)
    x = torch.randn(2, FEATURES, requires_grad=True)

    def call(x: Tensor, *weights: Tensor) -> Tensor:
        named = {f"f.{name}": weight for name, weight in zip(names, weights, strict=True)}
        return torch.func.functional_call(layer, named, (x,))

    assert torch.autograd.gradcheck(call, (x, *weights))
    if order == 2:
        assert torch.autograd.gradgradcheck(lambda x: call(x, *weights), (x,))


def test_the_statistics_of_a_solve() -> None:
    x = torch.randn(5, FEATURES)
    found = make().solution(x)
    assert isinstance(found, rs.Solution)
    assert found.converged.all()
    assert found.steps.min() > 0


def test_a_monitor_records_its_solves() -> None:
    model = nn.Sequential(nn.Linear(FEATURES, FEATURES), make())
    with rs.blocks.Monitor(model) as monitor:
        model(torch.randn(5, FEATURES)).sum().backward()
    assert monitor.records["1", "forward"].samples == 5
    assert monitor.records["1", "backward"].failed == 0


def test_first_guesses() -> None:
    cell, x = Cell(), torch.randn(5, FEATURES)
    seen: list[Tensor] = []

    def watched(z: Tensor, x: Tensor) -> Tensor:
        seen.append(z.detach().clone())
        return cell(z, x)

    cold = make(watched).eval()
    expected = cold.solution(x)
    assert torch.equal(seen[0], torch.zeros(5, UNKNOWNS))
    seen.clear()
    given = torch.randn(5, UNKNOWNS, requires_grad=True)
    warm = cold.solution(x, z0=given)
    assert torch.equal(seen[0], given)
    torch.testing.assert_close(warm.value, expected.value, rtol=1e-9, atol=1e-9)
    assert torch.autograd.grad(warm.value.sum(), given, allow_unused=True) == (None,)
    like_the_input = rs.Equilibrium(lambda z, x: torch.cos(z) / 2 + x, stopping=CLOSE)
    assert like_the_input(x).shape == x.shape
    assert int(cold.solution(x, z0=expected.value).steps.max()) == 0


def test_inputs_of_every_kind() -> None:
    def f(z: Tensor, x: Tensor, options: dict[str, Any], scale: float, skip: Tensor | None = None) -> Tensor:
        z = scale * torch.sin(z) + x + options["shift"]
        return z if skip is None else z + skip

    x, shift = torch.randn(4, 3), torch.randn(4, 1, requires_grad=True)
    layer = rs.Equilibrium(f, stopping=CLOSE, rowwise=True)
    for solver in (rs.Newton(), rs.Anderson()):  # The one calls f with repeated rows.
        with rs.blocks.solved_with(layer, solver=solver):
            z = layer(x, {"shift": shift}, 0.5, None)
        torch.testing.assert_close(z, 0.5 * z.sin() + x + shift)
    (gradient,) = torch.autograd.grad(z.sum(), shift)
    torch.testing.assert_close(gradient, (1 / (1 - 0.5 * z.cos())).sum(1, keepdim=True))


def test_states_of_several_tensors() -> None:
    scales = Multiscale()
    x = images(4)
    layer = rs.Equilibrium(lambda z, x: [a + b for a, b in zip(scales(z), x, strict=True)], stopping=CLOSE)
    z = layer(x)
    torch.testing.assert_close(z, [a + b for a, b in zip(scales(z), x, strict=True)])
    expected = rs.resolve(scales, x, 1.0, stopping=CLOSE).value
    torch.testing.assert_close(z, expected)
    alone = layer(rows(x, slice(1, 2)))
    torch.testing.assert_close(alone, rows(z, slice(1, 2)))
    warm = rs.Equilibrium(layer.f, stopping=CLOSE, warm=4)
    warm(x, samples=torch.arange(4))
    again = warm.solution(rows(x, slice(2, 4)), samples=torch.arange(2, 4))
    assert int(again.steps.max()) == 0
    torch.testing.assert_close(joined(again.value), joined(z)[2:])


def test_a_sample_alone_and_in_its_batch() -> None:
    layer = make(Cell(0.99), stopping=None)
    x = 2 * torch.randn(40, FEATURES)
    together = layer.solution(x)
    for i in range(0, 40, 8):
        alone = layer.solution(x[i : i + 1])
        torch.testing.assert_close(alone.value[0], together.value[i], rtol=1e-7, atol=1e-7)
        assert abs(int(alone.steps[0]) - int(together.steps[i])) <= 1


def test_warm_starts_save_steps_and_change_no_result() -> None:
    cell, x = Cell(0.95), torch.randn(12, FEATURES)
    cold, warm = make(cell, solver=rs.Anderson()), make(cell, solver=rs.Anderson(), warm=20)
    order = torch.randperm(12)
    numbers = torch.arange(12) + 5
    warm(x, samples=numbers)
    with torch.no_grad():
        cell.inject.bias += 1e-4
    again = warm.solution(x[order], samples=numbers[order])
    fresh = cold.solution(x[order])
    assert int(again.steps.max()) < int(fresh.steps.min())
    torch.testing.assert_close(again.value, fresh.value, rtol=1e-8, atol=1e-8)


def test_warm_starts_can_be_saved() -> None:
    cell, x = Cell(0.95), torch.randn(4, FEATURES)
    warm, other = make(cell, warm=9), make(cell, warm=9)
    assert warm.warm is not None
    assert other.warm is not None
    assert warm.warm.state_dict() == {}
    warm(x, samples=torch.tensor([0, 2, 4, 6]))
    other.warm.load_state_dict(warm.warm.state_dict())
    for layer in (warm, other):
        steps = layer.solution(x, samples=torch.tensor([0, 1, 4, 5])).steps
        assert (steps > 0).tolist() == [False, True, False, True]
    other.warm.load_state_dict({})
    assert int(other.solution(x, samples=torch.tensor([0, 2, 4, 6])).steps.min()) > 0
    smaller = make(cell, warm=8)
    with pytest.raises(ValueError, match=r"a table of \(9, .* for 8 samples"):
        smaller.warm.load_state_dict(warm.warm.state_dict())  # type: ignore[union-attr]


def test_new_samples_start_from_the_guess() -> None:
    warm, x = make(warm=9), torch.randn(4, FEATURES)
    warm(x, samples=torch.tensor([0, 2, 4, 6]))
    steps = warm.solution(x, samples=torch.tensor([0, 1, 4, 5])).steps
    assert (steps > 0).tolist() == [False, True, False, True]
    assert int(warm.solution(x).steps.min()) > 0


def test_failed_samples_are_not_kept() -> None:
    def f(z: Tensor, x: Tensor) -> Tensor:  # No fixed point where x is not zero.
        return z + x

    layer = rs.Equilibrium(f, solver=rs.Picard(), on_failure="ignore", warm=2)
    x = torch.tensor([[0.0], [1.0]])
    layer(x, samples=torch.arange(2))
    assert layer.warm is not None
    assert layer.warm._known is not None
    assert layer.warm._known.tolist() == [True, False]


def test_gradients_after_a_warm_start() -> None:
    cell, x = Cell(), torch.randn(3, FEATURES)
    warm = make(cell, warm=3)
    expected = torch.autograd.grad(make(cell)(x).sum(), cell.recur.weight)[0]
    for _ in range(2):
        (found,) = torch.autograd.grad(warm(x, samples=torch.arange(3)).sum(), cell.recur.weight)
        torch.testing.assert_close(found, expected)


def test_warm_starts_are_part_of_no_copy_and_no_state_dict() -> None:
    layer, x = make(warm=3), torch.randn(3, FEATURES)
    layer(x, samples=torch.arange(3))
    assert set(layer.state_dict()) == {f"f.{name}" for name, _ in layer.f.named_parameters()}  # type: ignore[attr-defined]
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert int(other.solution(x, samples=torch.arange(3)).steps.min()) > 0


def test_warm_starts_begin_anew_with_another_dtype() -> None:
    layer, x = make(warm=3, stopping=None), torch.randn(3, FEATURES)
    layer(x, samples=torch.arange(3))
    found = layer.float().solution(x.float(), samples=torch.arange(3))
    assert found.value.dtype == torch.float32
    assert int(found.steps.min()) > 0


WRONG_SAMPLES = {
    "make the layer with warm=": (None, torch.arange(3)),
    r"whole numbers, got torch\.float64": (3, torch.zeros(3, dtype=torch.float64)),
    "whole numbers, got list": (3, [0, 1, 2]),
    r"one number for each of the 3 samples, got shape \(2,\)": (3, torch.arange(2)),
    "from 0 to 2, as warm=3 says, got 0 to 3": (3, torch.tensor([0, 1, 3])),
}


@pytest.mark.parametrize(("message", "given"), WRONG_SAMPLES.items())
def test_wrong_samples_are_named(message: str, given: tuple[int | None, Any]) -> None:
    with pytest.raises(ValueError, match=message):
        make(warm=given[0])(torch.randn(3, FEATURES), samples=given[1])


@pytest.mark.parametrize("count", [0, -1, True, 2.0])
def test_wrong_counts_are_named(count: Any) -> None:
    with pytest.raises(ValueError, match="warm is the number of samples"):
        make(warm=count)


def test_failure_is_loud() -> None:
    layer = rs.Equilibrium(lambda z, x: 2 * z.square() + x)
    x = torch.tensor([[0.05], [2.0]])  # z = 2 z^2 + 2 has no solution.
    with pytest.raises(rs.ConvergenceError, match="1 of 2"):
        layer(x)
    with rs.blocks.solved_with(layer, on_failure="mask"):
        leaf = x.clone().requires_grad_()
        layer(leaf).sum().backward()
    assert leaf.grad is not None
    assert leaf.grad[0] > 1
    assert leaf.grad[1] == 0


def test_weights_are_computed_once_a_pass() -> None:
    class Counted(nn.Module):
        calls = 0

        def forward(self, weight: Tensor) -> Tensor:
            Counted.calls += 1
            return 0.5 * weight

    cell = Cell()
    parametrize.register_parametrization(cell.recur, "weight", Counted())
    layer, x = make(cell), torch.randn(3, FEATURES)
    Counted.calls = 0
    z = layer(x)
    assert Counted.calls == 1
    z.sum().backward()
    assert Counted.calls == 1
    assert cell.recur.parametrizations.weight.original.grad is not None  # type: ignore[union-attr]


def test_function_transforms() -> None:
    layer, x = make().eval(), torch.randn(3, FEATURES)
    weights = dict(layer.named_parameters())

    def call(weights: dict[str, Tensor], x: Tensor) -> Tensor:
        return torch.func.functional_call(layer, weights, (x,))

    expected = torch.autograd.grad(layer(x).sum(), list(weights.values()))
    found = torch.func.grad(lambda weights: call(weights, x).sum())({k: w.detach() for k, w in weights.items()})
    torch.testing.assert_close(list(found.values()), list(expected))
    leaf = x.clone().requires_grad_()
    v = torch.randn(3, FEATURES)
    _, tangent = torch.func.jvp(layer, (x,), (v,))
    (gradient,) = torch.autograd.grad(layer(leaf).sum(), leaf)
    torch.testing.assert_close(tangent.sum(), (gradient * v).sum())
    many = torch.stack([x, -x])
    torch.testing.assert_close(torch.func.vmap(layer)(many)[1], layer(-x))
    warm = make(warm=3)
    with pytest.raises(ValueError, match=r"inside torch\.func transforms"):
        torch.func.vmap(lambda x: warm(x, samples=torch.arange(3)))(many)


def test_what_is_proved_about_samples() -> None:
    assert make().rowwise
    assert not make(lambda z, x: z).rowwise
    assert make(lambda z, x: z, rowwise=True).rowwise
    assert not make(rowwise=False).rowwise


def test_an_input_that_could_meet_other_samples_is_no_proof() -> None:
    """z (batch, 3, 2) + x (batch, 2) would add the row of another sample, if there are three samples."""

    class Sum(nn.Module):
        def forward(self, z: Tensor, x: Tensor) -> Tensor:
            return 0.5 * torch.sin(z) + x

    layer = rs.Equilibrium(Sum(), lambda x: x.new_zeros(3, 3, 2))
    assert layer.rowwise
    z = torch.zeros(3, 3, 2)
    assert not layer._function(layer.f, (torch.randn(3, 2),), z).rowwise
    assert layer._function(layer.f, (torch.randn(3, 1, 2),), z).rowwise
    with pytest.raises(ValueError, match="Sum couples the samples"):
        layer(torch.randn(3, 2))


REFUSED = {
    "couples the samples": lambda z, x: 0.1 * (z - z.mean(0)) + x,
    "another result when it is called again": lambda z, x: 0.1 * z + torch.rand_like(x),
}


@pytest.mark.parametrize(("message", "f"), REFUSED.items())
def test_what_is_no_function_of_a_sample_is_refused(message: str, f: Any) -> None:
    x = torch.randn(4, 2)
    with pytest.raises(ValueError, match=message):
        rs.Equilibrium(f)(x)


def test_dropout_and_batch_norm_are_refused_in_training() -> None:
    for module in (nn.Dropout(0.5), nn.BatchNorm1d(2)):
        layer = rs.Equilibrium(Injected(module))
        with pytest.raises(ValueError, match=rf"inner, a {type(module).__name__}, gives another result"):
            layer(torch.randn(4, 2))
        layer.eval()(torch.randn(4, 2))


def test_a_wrong_declaration_is_found() -> None:
    weights = torch.rand(4, 1) / 2

    def f(z: Tensor, x: Tensor) -> Tensor:
        return weights[: len(z)] * z + x

    with pytest.raises(ValueError, match="f has rowwise=True, but a sample alone"):
        rs.Equilibrium(f, rowwise=True)(torch.randn(4, 2))
    rs.Equilibrium(f)(torch.randn(4, 2))


class Injected(nn.Module):
    """inner(z) / 2 + x."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, z: Tensor, x: Tensor) -> Tensor:
        return self.inner(z) / 2 + x


class Transformer(nn.Module):
    """A post-norm block of attention and an MLP, with the input injected."""

    def __init__(self, size: int, heads: int) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(size, heads, batch_first=True)
        self.norms = nn.ModuleList(nn.LayerNorm(size) for _ in range(2))
        self.mlp = nn.Sequential(nn.Linear(size, 2 * size), nn.GELU(), nn.Linear(2 * size, size))

    def forward(self, z: Tensor, x: Tensor) -> Tensor:
        z = self.norms[0](x + 0.4 * self.attention(z, z, z, need_weights=False)[0])
        return self.norms[1](z + 0.4 * self.mlp(z))


def test_a_transformer_block_as_an_equilibrium() -> None:
    block = Transformer(4, 2)
    layer = rs.Equilibrium(block, stopping=CLOSE)
    x = torch.randn(2, 3, 4, requires_grad=True)
    z = layer(x)
    torch.testing.assert_close(block(z, x), z)
    weight = block.mlp[0].weight

    def call(x: Tensor, weight: Tensor) -> Tensor:
        return torch.func.functional_call(layer, {"f.mlp.0.weight": weight}, (x,))

    assert torch.autograd.gradcheck(call, (x, weight))


WRONG: dict[str, Any] = {
    r"f must be a module or a function f\(z, \*inputs\), got 3": lambda: rs.Equilibrium(3),  # type: ignore[arg-type]
    r"z0 must be a function of the inputs, or None, got \(2, 2\)": lambda: rs.Equilibrium(Cell(), torch.ones(2, 2)),  # type: ignore[arg-type]
    "rowwise must be True, False or None, got 1": lambda: rs.Equilibrium(Cell(), rowwise=1),  # type: ignore[arg-type]
    r"solver must be an object such as rs\.Newton\(\)": lambda: rs.Equilibrium(Cell(), solver="newton"),  # type: ignore[arg-type]
    "no input whose shape": lambda: rs.Equilibrium(torch.cos)(),
    r"like the first input, of torch\.int64": lambda: rs.Equilibrium(torch.cos)(torch.arange(3)),
    r"one row for each of the 3 samples of z, got shape \(2, 3\)": lambda: make()(torch.ones(3, 2), torch.ones(2, 3)),
    r"one row for each of the 3 samples of z, got shape \(\)": lambda: make()(torch.ones(3, 2), torch.tensor(1.0)),
    "F must map": lambda: rs.Equilibrium(lambda z, x: z[:, :2])(torch.ones(3, 3)),
}


@pytest.mark.parametrize(("message", "call"), WRONG.items())
def test_wrong_arguments_are_named(message: str, call: Any) -> None:
    with pytest.raises(ValueError, match=message):
        call()
