"""Equations for states of several tensors: every solver and adjoint, torch.func, single samples, failure."""

import pickle
from collections import OrderedDict
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

import resolvent as rs
from manufactured import LINEAR_SOLVERS, SOLVERS
from resolvent.extending import Solver
from structured_states import Multiscale, Pair, images, joined, pair, rows

CLOSE = rs.Stopping(rtol=1e-11, atol=1e-12, max_steps=5000)
ADJOINTS = [
    *(rs.ImplicitAdjoint(solver=solver) for solver in LINEAR_SOLVERS),
    rs.adjoints.NeumannAdjoint(60),
    rs.UnrolledAdjoint(),
]


def manufactured(F: Any, tau: float = 1.0) -> tuple[Any, Any]:
    """A solution that was chosen, and the right-hand side that it belongs to."""
    solution = images()
    with torch.no_grad():
        b = [w - tau * image for w, image in zip(solution, F(solution), strict=True)]
    return solution, b


@pytest.mark.parametrize("solver", SOLVERS, ids=repr)
def test_every_solver_finds_the_solution(solver: Solver) -> None:
    F = Multiscale()
    solution, b = manufactured(F)
    found = rs.resolve(F, b, 1.0, solver=solver, stopping=rs.Stopping(rtol=1e-8, max_steps=5000))
    assert type(found.value) is list
    torch.testing.assert_close(found.value, solution, rtol=1e-6, atol=1e-6)
    assert found.residual.shape == (3,)


@pytest.mark.parametrize("adjoint", ADJOINTS, ids=repr)
def test_every_adjoint_has_the_gradient_of_the_flat_equation(adjoint: rs.extending.Adjoint) -> None:
    F = Multiscale()
    _, b = manufactured(F)
    weights, cotangent = list(F.parameters()), images()

    def gradients(structured: bool, by: rs.extending.Adjoint) -> list[Tensor]:
        leaves = [part.clone().requires_grad_() for part in b]
        if structured:
            value = rs.resolve(F, leaves, 1.0, solver=rs.Picard(), stopping=CLOSE, adjoint=by).value
        else:
            sizes = [part[0].numel() for part in b]

            def flat(w: Tensor) -> Tensor:
                parts = zip(w.split(sizes, 1), b, strict=True)
                return joined(F([part.reshape(like.shape) for part, like in parts]))

            found = rs.resolve(flat, joined(leaves), 1.0, solver=rs.Picard(), stopping=CLOSE, adjoint=by).value
            value = [part.reshape(like.shape) for part, like in zip(found.split(sizes, 1), b, strict=True)]
        loss = sum((part * g).sum() for part, g in zip(value, cotangent, strict=True))
        return list(torch.autograd.grad(loss, [*leaves, *weights]))  # type: ignore[arg-type]

    expected = gradients(False, rs.ImplicitAdjoint())
    torch.testing.assert_close(gradients(True, adjoint), expected, rtol=1e-7, atol=1e-7)


@pytest.mark.slow
def test_gradients_agree_with_finite_differences_twice() -> None:
    W = (0.3 * torch.randn(4, 4)).requires_grad_()
    tau = torch.tensor(0.4, requires_grad=True)

    def solve(position: Tensor, velocity: Tensor, tau: Tensor, W: Tensor) -> Tensor:
        def F(w: Pair) -> Pair:
            return Pair(torch.tanh(w.velocity @ W[:2, :2]), torch.sin(torch.cat(w, 1) @ W[:, 2:]))

        adjoint = rs.ImplicitAdjoint(order=2)
        return joined(rs.resolve(F, Pair(position, velocity), tau, stopping=CLOSE, adjoint=adjoint).value)

    inputs = (*(part.requires_grad_() for part in pair(2)), tau, W)
    assert torch.autograd.gradcheck(solve, inputs)
    assert torch.autograd.gradgradcheck(solve, inputs)


CONTAINERS = {
    "tuple": lambda q, p: (q, p),
    "list": lambda q, p: [q, p],
    "dictionary": lambda q, p: {"q": q, "p": p},
    "ordered": lambda q, p: OrderedDict(q=q, p=p),
    "named tuple": Pair,
    "nested": lambda q, p: {"outer": [q, (p,)]},
}


@pytest.mark.parametrize("container", CONTAINERS.values(), ids=CONTAINERS)
def test_containers_come_back(container: Any) -> None:
    state = container(torch.randn(3, 2), torch.randn(3, 4, 1))

    def F(w: Any) -> Any:
        assert type(w) is type(state)
        return tree_map(torch.cos, w)

    found = rs.resolve(F, state, 0.5, w0=tree_map(torch.zeros_like, state), stopping=CLOSE).value
    assert type(found) is type(state)
    for value, b in zip(tree_leaves(found), tree_leaves(state), strict=True):
        assert value.shape == b.shape
        torch.testing.assert_close(value, b + 0.5 * value.cos())


def test_a_dictionary_may_come_back_in_another_order() -> None:
    b = {"q": torch.randn(2, 3), "p": torch.randn(2, 3)}
    found = rs.resolve(lambda w: {"p": -w["q"], "q": w["p"]}, b, 0.5, stopping=CLOSE).value
    assert list(found) == ["q", "p"]
    torch.testing.assert_close(found["q"], (b["q"] + 0.5 * b["p"]) / 1.25)


def test_parts_with_no_dimensions_and_with_no_entries() -> None:
    b = (torch.randn(3), torch.randn(3, 0), torch.randn(3, 2))
    found = rs.resolve(lambda w: tuple(torch.sin(part) for part in w), b, 0.5, stopping=CLOSE).value
    assert [part.shape for part in found] == [(3,), (3, 0), (3, 2)]
    torch.testing.assert_close(found[0], b[0] + 0.5 * found[0].sin())


@pytest.mark.parametrize("c", [-30.0, {"fast": torch.tensor([-20.0, -40.0]), "slow": 0.0}])
def test_a_linear_part_helps_the_fixed_point(c: Any) -> None:
    """Without it the fixed point would diverge: the slope is far below -1."""
    rates = {"fast": torch.tensor([-20.0, -40.0]), "slow": torch.tensor(-0.1)}

    def F(w: dict[str, Tensor]) -> dict[str, Tensor]:
        return {name: rates[name] * part + 0.1 * part.sin() for name, part in w.items()}

    F.linear_part = c  # type: ignore[attr-defined]
    b = {"slow": torch.randn(3), "fast": torch.randn(3, 2)}
    found = rs.resolve(F, b, 1.0, solver=rs.Picard(), stopping=CLOSE)
    for name, part in found.value.items():
        torch.testing.assert_close(part, b[name] + F(found.value)[name])


def test_rowwise_functions_get_their_conditions() -> None:
    """They are called with fewer and with repeated rows, and their conditions follow."""
    b, c = pair(40, 8), torch.rand(40, 1)
    seen: set[int] = set()

    def F(w: Pair, c: Tensor) -> Pair:
        seen.add(len(c))
        return Pair(c * w.velocity.sin(), c * w.position.cos())

    found = rs.resolve(rs.Rowwise(F, c), b, 0.8, solver=rs.Newton(), stopping=CLOSE).value
    assert max(seen) == 16 * 40
    torch.testing.assert_close(found.position, b.position + 0.8 * c * found.velocity.sin())


def test_a_sample_alone_and_in_its_batch() -> None:
    F = Multiscale()
    b = [3 * part for part in images(5)]
    for solver in (rs.Anderson(), rs.Newton()):
        together = rs.resolve(F, b, 1.0, solver=solver)
        for i in range(5):
            alone = rs.resolve(F, rows(b, slice(i, i + 1)), 1.0, solver=solver)
            torch.testing.assert_close(alone.value, rows(together.value, slice(i, i + 1)), rtol=1e-9, atol=1e-9)
            assert abs(int(alone.steps[0]) - int(together.steps[i])) <= 1


def test_function_transforms() -> None:
    W = 0.4 * torch.randn(2, 2)

    def value(W: Tensor, b: Pair) -> Pair:
        return rs.resolve(lambda w: Pair(torch.tanh(w.velocity @ W), w.position.sin()), b, 0.5, stopping=CLOSE).value

    def loss(W: Tensor, b: Pair) -> Tensor:
        return joined(value(W, b)).square().sum()

    b, leaf = pair(3), W.clone().requires_grad_()
    (expected,) = torch.autograd.grad(loss(leaf, b), leaf)
    torch.testing.assert_close(torch.func.grad(loss)(W, b), expected)
    outputs, tangents = torch.func.jvp(lambda W: value(W, b), (W,), (torch.ones_like(W),))
    assert isinstance(tangents, Pair)
    slope = sum((2 * y * v).sum() for y, v in zip(outputs, tangents, strict=True))
    torch.testing.assert_close(slope, expected.sum())
    many = torch.stack([W, 0.5 * W, -W])
    together = torch.func.vmap(value, in_dims=(0, None))(many, b)
    for k in range(3):
        torch.testing.assert_close(Pair(*(part[k] for part in together)), value(many[k], b))
    gradients = torch.func.vmap(torch.func.grad(loss), in_dims=(0, None))(many, b)
    torch.testing.assert_close(gradients[0], expected)


def test_failure_reports_the_structure() -> None:
    b = Pair(torch.tensor([[0.5], [0.5]]), torch.zeros(2, 1))

    def F(w: Pair) -> Pair:  # w = b + w has no solution for the first part.
        return Pair(w.position, w.velocity)

    with pytest.raises(rs.ConvergenceError, match="2 of 2") as raised:
        rs.resolve(F, b, 1.0, solver=rs.Picard())
    assert isinstance(raised.value.solution.value, Pair)
    assert str(pickle.loads(pickle.dumps(raised.value))) == str(raised.value)
    kept = rs.resolve(F, b, 1.0, solver=rs.Picard(), on_failure="mask")
    assert not kept.converged.any()
    assert isinstance(kept.value, Pair)


def test_reuse_of_an_earlier_solution() -> None:
    F = Multiscale()
    _, b = manufactured(F)
    first = rs.resolve(F, b, 1.0, solver=rs.Broyden())
    again = rs.resolve(F, b, 1.0, w0=first.value, solver=rs.Broyden(), reuse=first)
    assert int(again.steps.max()) == 0
    torch.testing.assert_close(again.value, first.value)


def test_autocast_may_round_some_parts_and_not_others() -> None:
    torch.set_default_dtype(torch.float32)
    layer = torch.nn.Linear(2, 2)

    def F(w: Pair) -> Pair:  # Autocast rounds the product alone.
        return Pair(0.2 * layer(w.position), 0.2 * w.velocity)

    b = pair()
    with torch.autocast("cpu", torch.bfloat16):
        rounded = rs.resolve(F, b, 1.0).value
    assert rounded.position.dtype == torch.float32
    torch.testing.assert_close(rounded, rs.resolve(F, b, 1.0).value, rtol=3e-2, atol=3e-2)


Q = torch.ones(2, 3, dtype=torch.float64)


def identity(w: Any) -> Any:
    return w


WRONG = {
    r"the same batch, but that of b\['q'\] is \(2,\), and that of b\['p'\] is \(3,\)": (
        {"q": Q, "p": torch.ones(3)},
        None,
    ),
    r"the same dtype, .* b\['p'\] is torch\.float32: convert": ({"q": Q, "p": Q.float()}, None),
    r"the same device, .* b\[1\] is meta: move": ((Q, Q.to("meta")), None),
    r"b\[1\] must be a tensor \(batch, \*shape\), got float": ((Q, 1.0), None),
    r"b\[1\] must be a tensor \(batch, \*shape\), got NoneType": ((Q, None), None),
    r"b\[1\] must be a tensor \(batch, \*shape\), got \(\)": ((Q, torch.tensor(1.0)), None),
    r"b must be a tensor .*, got a dict: make": ({}, None),
    r"floating-point type, got torch\.int64": ((Q.long(), Q.long()), None),
    r"at least one unknown": ((Q[:, :0], Q[:, :0]), None),
    r"w0 must have the structure \(\(batch, 3\), \(batch, 3\)\), got \[\(2, 3\), \(2, 3\)\]": ((Q, Q), [Q, Q]),
    r"w0\[1\] must have the shape \(batch, 3\), got \(2, 4\)": ((Q, Q), (Q, torch.ones(2, 4))),
}


@pytest.mark.parametrize(("message", "state"), WRONG.items())
def test_wrong_states_are_named(message: str, state: tuple[Any, Any]) -> None:
    with pytest.raises(ValueError, match=message):
        rs.resolve(identity, state[0], 0.5, w0=state[1])


WRONG_VALUES = {
    r"the value of F must have the structure \(\(batch, 3\), \(batch, 3\)\), got \(2, 3\)": lambda w: w[0],
    r"the value of F must have the structure .*, got \(\(2, 3\),\)": lambda w: w[:1],
    r"the value of F\[1\] must have the shape \(batch, 3\), got \(2, 1\)": lambda w: (w[0], w[1][:, :1]),
    r"the value of F\[0\] must have the shape \(batch, 3\), got \[\(2, 3\)\]": lambda w: ([w[0]], w[1]),
    r"of the value of F\[0\] is torch\.float64, and that of the value of F\[1\]": lambda w: (w[0], w[1].float()),
    r"F must keep the dtype": lambda w: (w[0].float(), w[1].float()),
}


@pytest.mark.parametrize(("message", "F"), WRONG_VALUES.items())
def test_wrong_values_of_the_function_are_named(message: str, F: Any) -> None:
    with pytest.raises(ValueError, match=message):
        rs.resolve(F, (Q, Q), 0.5)


def test_a_wrong_linear_part_is_named() -> None:
    F = rs.Rowwise(identity, linear_part=(1.0, torch.ones(4)))  # type: ignore[arg-type]
    with pytest.raises(
        ValueError, match=r"linear_part must be a number, or have the structure .*, got \(float, \(4,\)\)"
    ):
        rs.resolve(F, (Q, Q), 0.5)
