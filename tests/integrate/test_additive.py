"""Additive methods: the linear part of a field is implicit, the rest explicit."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck

import resolvent as rs
from resolvent.integrate.method import as_method
from resolvent.schemes import AdditiveTableau, tableaux
from resolvent.schemes.dense_output import dense_order
from resolvent.schemes.linear_form import stage_weights, tree_order, trees

TABLES = {"KENCARP3": (3, 2), "KENCARP4": (4, 3)}


class Reaction(rs.fields.Field):
    """y' = L y + N(t, y) with a solution in closed form: N(t, y) = sin(y) + what is missing."""

    rowwise = True

    def __init__(self, part: Any) -> None:
        super().__init__()
        self.part = part

    @property
    def linear_part(self) -> Any:
        return self.part

    def linear(self, y: Tensor) -> Tensor:
        return self.part.product(y) if isinstance(self.part, rs.fields.LinearPart) else self.part * y

    def solution(self, t: float | Tensor, like: Tensor) -> Tensor:
        t = torch.as_tensor(t, dtype=like.dtype).reshape(-1, 1)
        x = torch.arange(like.shape[1], dtype=like.dtype) / like.shape[1]
        return torch.cos(2 * torch.pi * x + t) * torch.exp(-0.5 * t)

    def slope(self, t: float | Tensor, like: Tensor) -> Tensor:
        t = torch.as_tensor(t, dtype=like.dtype).reshape(-1, 1)
        x = torch.arange(like.shape[1], dtype=like.dtype) / like.shape[1]
        return -(torch.sin(2 * torch.pi * x + t) + 0.5 * torch.cos(2 * torch.pi * x + t)) * torch.exp(-0.5 * t)

    def forward(self, t: float | Tensor, y: Tensor) -> Tensor:
        exact = self.solution(t, y)
        return self.slope(t, y) + self.linear(y - exact) + torch.sin(y) - torch.sin(exact)


def laplacian(cells: int) -> rs.fields.FourierPart:
    return rs.fields.FourierPart.laplacian((cells,), 1 / cells, 0.02)


@pytest.mark.parametrize("name", TABLES)
def test_the_orders_by_trees_of_two_colours(name: str) -> None:
    pair, (order, embedded) = getattr(tableaux, name), TABLES[name]
    tables = (pair.implicit, pair.explicit)
    assert tree_order([(table.A, table.b) for table in tables]) == order == pair.order
    assert tree_order([(table.A, table.embedded) for table in tables]) == embedded
    matrices = [torch.tensor(table.A) for table in tables]
    for p in range(1, order + 1):
        for tree in trees(p, 2):
            assert abs(float(torch.tensor(pair.implicit.b) @ stage_weights(tree, matrices)) - 1 / tree.density) < 1e-14
    assert dense_order(pair.implicit, pair.explicit) == 3
    assert not as_method(pair).keeps_slope


@pytest.mark.parametrize("name", TABLES)
def test_a_step_and_its_dense_output_have_their_orders(name: str) -> None:
    field, like = Reaction(-3.0), torch.zeros(1, 4)

    def errors(h: float) -> Tensor:
        times = torch.tensor([0.0, 0.3, 0.6, 1.0]) * h
        start = field.solution(0.0, like)
        result = rs.odeint(field, start, times, getattr(tableaux, name), rtol=0.9, atol=1.0, first_step=h)
        assert int(result.accepted) == 1
        exact = torch.cat([field.solution(t, like) for t in times[1:]])
        return (result.states[1:, 0] - exact).abs().amax(1)

    observed = torch.log2(errors(0.1) / errors(0.05))
    assert float(observed[-1]) > TABLES[name][0] + 1 - 0.4
    assert float(observed[:2].mean()) > 4 - 0.4


@pytest.mark.parametrize("name", [pytest.param("KENCARP3", marks=pytest.mark.slow), "KENCARP4"])
def test_diffusion_and_reaction_with_a_thousand_unknowns(name: str) -> None:
    """The largest eigenvalue is -80,000: an explicit method would take 30,000 steps."""
    field = Reaction(laplacian(1000))
    y0 = field.solution(0.0, torch.zeros(1, 1000))
    result = rs.odeint(field, y0, [0.0, 0.5, 1.0], getattr(tableaux, name), rtol=1e-5)
    exact = torch.stack([field.solution(t, y0) for t in (0.0, 0.5, 1.0)])
    torch.testing.assert_close(result.states, exact, rtol=0, atol=1e-4)
    assert result.accepted < 150


def test_kinds_of_linear_parts_agree() -> None:
    """A number, a tensor, a matrix and a Fourier multiplier, where they are the same map."""
    part, like = laplacian(6), torch.zeros(2, 6)
    matrix = rs.fields.MatrixPart(part.product(torch.eye(6)).mT)
    fourier = rs.fields.FourierPart(torch.full((4,), -2.0))
    pairs = [(part, matrix), (-2.0, torch.full((6,), -2.0)), (-2.0, fourier)]
    start = Reaction(part).solution(torch.tensor([0.0, 1.0]), like)
    for one, other in pairs:
        first, second = (
            rs.odeint(Reaction(kind), start, [0.0, 0.7], tableaux.KENCARP4, rtol=1e-7).states for kind in (one, other)
        )
        torch.testing.assert_close(first, second, rtol=1e-9, atol=1e-9)


def test_two_dimensional_grids() -> None:
    part = rs.fields.FourierPart.laplacian((4, 6), 0.5, torch.tensor([1.0, 3.0]).reshape(2, 1, 1))
    y, tau = torch.randn(3, 2, 4, 6), torch.tensor([0.1, 0.2, 1.0]).reshape(3, 1, 1, 1)
    expected = sum(y.roll(s, d) - y for s in (1, -1) for d in (-1, -2)) * 4 * torch.tensor([1.0, 3.0]).reshape(2, 1, 1)
    torch.testing.assert_close(part.product(y), expected)
    torch.testing.assert_close(part.solve(y - tau * part.product(y), tau), y)


@pytest.mark.parametrize("memory", ["store", pytest.param("checkpoint", marks=pytest.mark.slow)])
def test_gradients(memory: str) -> None:
    rates = torch.tensor([-40.0, -3.0, -0.5], requires_grad=True)
    y0 = torch.tensor([[1.0, 0.3, 0.2], [0.2, 0.6, -0.4]], requires_grad=True)
    times = torch.tensor([0.0, 0.2, 0.5], requires_grad=True)

    class Field(rs.fields.Field):
        @property
        def linear_part(self) -> Tensor:
            return rates

        def forward(self, t: float | Tensor, y: Tensor) -> Tensor:
            return rates * y + torch.sin(y.roll(1, 1)) + torch.as_tensor(t).reshape(-1, 1)

    found = []
    for scheme, rtol, kind in ((tableaux.KENCARP4, 1e-6, memory), (tableaux.DORMAND_PRINCE5, 1e-8, "store")):
        states = rs.odeint(Field(), y0, times, scheme, rtol=rtol, memory=kind).states
        found.append(torch.autograd.grad(states.sin().sum(), (rates, y0, times)))
    for g, exact in zip(*found, strict=True):
        torch.testing.assert_close(g, exact, rtol=1e-5, atol=1e-5)


def test_gradcheck_of_a_step_with_a_matrix() -> None:
    """Also of second derivatives: autograd sees the whole step."""

    def one_step(matrix: Tensor, y0: Tensor) -> Tensor:
        field = rs.Autonomous(
            lambda y: y @ matrix.mT + torch.sin(y), rowwise=True, linear_part=rs.fields.MatrixPart(matrix)
        )
        result = rs.odeint(field, y0, [0.0, 0.3], tableaux.KENCARP3, rtol=0.5, atol=10.0, first_step=1.0)
        assert result.accepted.tolist() == [1, 1]
        return result.states[-1]

    matrix = torch.tensor([[-3.0, 1.0], [0.5, -1.0]], requires_grad=True)
    y0 = torch.tensor([[1.0, 0.2], [-0.3, 0.6]], requires_grad=True)
    assert gradcheck(one_step, (matrix, y0))
    assert torch.autograd.gradgradcheck(one_step, (matrix, y0), fast_mode=True)


def test_a_sample_alone_equals_itself_in_a_batch() -> None:
    field = Reaction(laplacian(16))
    y0 = field.solution(torch.tensor([0.0, 0.5, 1.0]), torch.zeros(3, 16)) * torch.tensor([[1.0], [2.0], [0.3]])
    together = rs.odeint(field, y0, [0.0, 0.4, 0.8], tableaux.KENCARP4)
    for i in range(3):
        alone = rs.odeint(field, y0[i : i + 1], [0.0, 0.4, 0.8], tableaux.KENCARP4)
        assert alone.accepted[0] == together.accepted[i]
        torch.testing.assert_close(alone.states[:, 0], together.states[:, i], rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("solver", [rs.Picard(), rs.Anderson(), rs.NewtonKrylov()])
def test_solvers_profit_from_a_linear_part_with_its_own_solve(solver: Any) -> None:
    """Without it, the fixed point of a step of length 1 through a diffusion with 80,000 would not contract."""
    part = laplacian(1000)

    def F(w: Tensor) -> Tensor:
        return part.product(w) + 0.3 * torch.sin(w)

    b = torch.randn(2, 1000, requires_grad=True)
    F.linear_part = part  # type: ignore[attr-defined]
    solution = rs.resolve(F, b, 1.0, solver=solver, adjoint=rs.ImplicitAdjoint(solver=rs.GMRES()))
    assert int(solution.steps.max()) < 20
    (g,) = torch.autograd.grad(solution.value.square().sum(), b)
    w = solution.value.detach()
    exact = part.solve(2 * w, 1.0)  # The first term of the series, and then its rest by iteration.
    for _ in range(60):
        exact = part.solve(2 * w + 0.3 * torch.cos(w) * exact, 1.0)
    torch.testing.assert_close(g, exact, rtol=1e-6, atol=1e-7)


def test_the_backward_pass_takes_the_transpose() -> None:
    matrix = torch.tensor([[-50.0, 30.0], [-2.0, -1.0]])
    part = rs.fields.MatrixPart(matrix)

    def F(w: Tensor) -> Tensor:
        return part.product(w) + 0.1 * torch.sin(w)

    F.linear_part = part  # type: ignore[attr-defined]
    b = torch.tensor([[1.0, 2.0], [0.3, -1.0]], requires_grad=True)
    counts: list[int] = []
    adjoint = rs.ImplicitAdjoint(solver=rs.Neumann(), callback=lambda s: counts.append(int(s.steps.max())))
    value = rs.resolve(F, b, 1.0, solver=rs.Picard(), adjoint=adjoint).value
    (g,) = torch.autograd.grad(value.sum(), b)
    for i in range(2):
        A = torch.eye(2) - matrix - 0.1 * torch.diag(torch.cos(value[i].detach()))
        torch.testing.assert_close(g[i], torch.linalg.solve(A.mT, torch.ones(2)), rtol=1e-7, atol=1e-9)
    assert counts[0] < 20


WRONG: dict[str, Any] = {
    "this field declares none": lambda: rs.odeint(
        rs.fields.MLP(2, 4, 1), torch.ones(1, 2), [0.0, 1.0], tableaux.KENCARP4
    ),
    "diagonally implicit and the second one explicit": lambda: AdditiveTableau(tableaux.RADAU5, tableaux.RADAU5),
    "the same weights": lambda: AdditiveTableau(tableaux.KVAERNO3, tableaux.RK4),
    r"matrix must be a tensor \(n, n\)": lambda: rs.fields.MatrixPart(torch.ones(2, 3)),
    "symbol must be a tensor with 2": lambda: rs.fields.FourierPart(torch.ones(3), dims=2),
}


@pytest.mark.parametrize("message", WRONG)
def test_wrong_arguments_are_refused(message: str) -> None:
    with pytest.raises(ValueError, match=message):
        WRONG[message]()
