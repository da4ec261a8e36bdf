"""Dense output: the solution of a Runge-Kutta method within a step, from the order conditions alone."""

import math
from functools import cache

import torch
from torch import Tensor

from resolvent.schemes.linear_form import stage_weights, trees
from resolvent.schemes.tableau import Tableau

_FEASIBLE = 1e-11
# The weight of the size of the coefficients, relative to the error of the next order.
_SIZE = 1e-3


@cache
def dense_weights(tableau: Tableau, explicit: Tableau | None = None) -> Tensor:
    """The coefficients B of a polynomial through the step, (degree, stages):

        u(s) = x + h sum_j b_j(s) F(t + c_j h, W_j),      b_j(s) = sum_d B_dj s^d,      0 <= s <= 1.

    It has the order of the method, or one less, at every s: for each tree of at most that many nodes its elementary
    weight is s^|tree| / gamma. It ends at the state of the method. If the first stage is the slope at the start and the
    last one that at the end, it also has these slopes. The remaining freedom is used to minimise the error of the next
    order. For an additive method, with a second table that is `explicit`, the trees have nodes of two colours.

    Reference: Hairer, Norsett & Wanner, Solving ordinary differential equations I, section II.6.
    """
    for order, smooth in _attempts(tableau, explicit is not None):
        for degree in (order, order + 1):
            weights = _solve(tableau, explicit, order, degree, smooth)
            if weights is not None:
                return weights
    raise AssertionError("a straight line has order one.")


def dense_order(tableau: Tableau, explicit: Tableau | None = None) -> int:
    """The order of the dense output: that of the method, or one less."""
    B, matrices = dense_weights(tableau, explicit), _matrices(tableau, explicit)

    def holds(p: int) -> bool:
        found = trees(p, len(matrices))
        return all(_power(B @ stage_weights(tree, matrices), p, 1 / tree.density) for tree in found)

    return next(p - 1 for p in range(1, tableau.order + 2) if not holds(p))


def largest_error(tableau: Tableau, explicit: Tableau | None, weights: Tensor, order: int) -> float:
    """The largest error of the trees of an order, for weights (points, stages) at the fractions 0, ..., 1 of a step."""
    s = torch.linspace(0, 1, len(weights), dtype=torch.float64) if len(weights) > 1 else weights.new_ones(1)
    matrices = _matrices(tableau, explicit)
    found = trees(order, len(matrices))
    errors = [weights @ stage_weights(tree, matrices) - s**order / tree.density for tree in found]
    return float(torch.stack(errors).abs().max())


def _power(coefficients: Tensor, p: int, value: float) -> bool:
    """Whether a polynomial without a constant term is `value` s^p."""
    expected = torch.zeros_like(coefficients)
    if p <= len(expected):
        expected[p - 1] = value
    return bool((coefficients - expected).abs().max() < 1e-9) and p <= len(expected)


def _matrices(tableau: Tableau, explicit: Tableau | None) -> list[Tensor]:
    tables = [tableau] if explicit is None else [tableau, explicit]
    return [torch.tensor(table.A, dtype=torch.float64) for table in tables]


def _attempts(tableau: Tableau, additive: bool) -> list[tuple[int, bool]]:
    """The orders to try, and whether to match the slopes at both ends."""
    p, smooth = tableau.order, tableau.stiffly_accurate and not any(tableau.A[0]) and not additive
    good = range(p, max(p - 2, 0), -1)
    return [*((q, True) for q in good if smooth), *((q, False) for q in range(p, 0, -1))]


def _solve(tableau: Tableau, explicit: Tableau | None, order: int, degree: int, smooth: bool) -> Tensor | None:
    """The coefficients with this order and degree, or None if there are none."""
    matrices, stages = _matrices(tableau, explicit), len(tableau.b)
    powers = torch.arange(1, degree + 1, dtype=torch.float64)
    identity, unit = torch.eye(stages, dtype=torch.float64), torch.eye(degree, dtype=torch.float64)
    # Each block of rows acts on the flattened matrix B.
    rows, values = (
        [torch.kron(torch.ones(1, degree, dtype=torch.float64), identity)],
        [torch.tensor(tableau.b, dtype=torch.float64)],
    )
    if smooth:
        rows += [torch.kron(unit[:1], identity), torch.kron(powers[None], identity)]
        values += [identity[0], identity[-1]]
    for p in range(1, order + 1):
        for tree in trees(p, len(matrices)):
            rows.append(torch.kron(unit, stage_weights(tree, matrices)[None]))
            values.append(unit[p - 1] / tree.density)
    C, d = torch.cat(rows), torch.cat(values)
    particular = torch.linalg.lstsq(C, d, driver="gelsd").solution
    if (C @ particular - d).abs().max() > _FEASIBLE:
        return None
    _, sizes, vectors = torch.linalg.svd(C)
    free = vectors[int((sizes > 1e-10).sum()) :].T
    if free.shape[1]:
        E, e = _next_error(matrices, order + 1, powers)
        E, e = torch.cat([E, _SIZE * torch.eye(E.shape[1], dtype=E.dtype)]), torch.cat([e, e.new_zeros(E.shape[1])])
        particular = particular + free @ torch.linalg.lstsq(E @ free, e - E @ particular, driver="gelsd").solution
    return particular.reshape(degree, stages)


def _next_error(matrices: list[Tensor], order: int, powers: Tensor) -> tuple[Tensor, Tensor]:
    """E and e such that E B - e are the errors of the trees of an order at some points of the step."""
    points = torch.linspace(0.05, 0.95, 10, dtype=torch.float64)
    found = trees(order, len(matrices))
    rows = [torch.kron(points[:, None] ** powers, stage_weights(tree, matrices)[None]) for tree in found]
    values = [points**order / tree.density for tree in found]
    return torch.cat(rows) / math.sqrt(len(points)), torch.cat(values) / math.sqrt(len(points))
