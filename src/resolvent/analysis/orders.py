"""The order of a scheme, computed from its coefficients."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, singledispatch
from itertools import combinations_with_replacement

import torch
from torch import Tensor

from resolvent.analysis.linear_forms import symplectic_tables, theta_tableau
from resolvent.schemes import Multistep, PartitionedRungeKutta, RungeKutta, Scheme, Symplectic, Theta

_ROUNDING = 1e-10
_HIGHEST = 6


@dataclass(frozen=True, order=True)
class Tree:
    """A rooted tree with coloured nodes. The trees of p nodes are the terms of order p in the expansion of a step."""

    color: int
    children: tuple["Tree", ...] = ()

    @property
    def size(self) -> int:
        return 1 + sum(child.size for child in self.children)

    @property
    def density(self) -> int:
        """gamma, the size times the densities of the subtrees."""
        return self.size * math.prod(child.density for child in self.children)


@singledispatch
def scheme_order(scheme: Scheme) -> int:
    """The order of a scheme by the order conditions, from its coefficients alone; at most 6 is told.

    A Runge-Kutta method has order p if for each rooted tree of at most p nodes its elementary weight, a sum of products
    of the a_ij and b_i, is 1/gamma, the inverse density of the tree. For two tables the trees have nodes of two
    colours. A multistep method has order p if it is exact for polynomials of degree p.

    Arguments:
        scheme: of the library.

    Reference: Hairer, Norsett & Wanner, Solving ordinary differential equations I, sections II.2, II.15 and III.2.
    """
    raise ValueError(f"the order conditions of {type(scheme).__name__} are not known: ask its `order` attribute.")


@scheme_order.register
def _(scheme: Theta) -> int:
    return scheme_order(RungeKutta(theta_tableau(scheme)))


@scheme_order.register
def _(scheme: RungeKutta) -> int:
    return _order([_table(scheme.tableau.A, scheme.tableau.b)])


@scheme_order.register
def _(scheme: PartitionedRungeKutta) -> int:
    pair = (scheme.position, scheme.momentum)
    return _order([_table(tableau.A, tableau.b) for tableau in pair])


@scheme_order.register
def _(scheme: Symplectic) -> int:
    A, b, A_hat, b_hat = symplectic_tables(scheme)
    return _order([_table(A, b), _table(A_hat, b_hat)], separable=True)


@scheme_order.register
def _(scheme: Multistep) -> int:
    """y = t^m about the new time: the states are at -1, -2, ..., the slopes at 0, -1, -2, ..."""

    def exact(m: int) -> bool:
        states = sum(a * (-1.0 - j) ** m for j, a in enumerate(scheme.alpha))
        slopes = sum(b * m * (-float(j)) ** (m - 1) for j, b in enumerate(scheme.beta)) if m > 0 else 0.0
        return abs(states + slopes - 0.0**m) < _ROUNDING * (1 + len(scheme.beta)) ** m

    return _first_failure(exact)


Table = tuple[Tensor, Tensor]


def _table(A: Sequence[Sequence[float]], b: Sequence[float]) -> Table:
    return torch.tensor(A, dtype=torch.float64), torch.tensor(b, dtype=torch.float64)


def _order(tables: list[Table], separable: bool = False) -> int:
    def weight(tree: Tree) -> Tensor:
        """The elementary weights of the stages: what A makes of the children, multiplied."""
        return math.prod((tables[c.color][0] @ weight(c) for c in tree.children), start=torch.ones_like(tables[0][1]))

    def satisfied(tree: Tree) -> bool:
        return abs(float(tables[tree.color][1] @ weight(tree)) - 1 / tree.density) < _ROUNDING

    return _first_failure(lambda p: all(map(satisfied, trees(p, len(tables), separable))))


def _first_failure(holds: Callable[[int], bool]) -> int:
    """The last p before the conditions of order p fail."""
    return next((p - 1 for p in range(1, _HIGHEST + 1) if not holds(p)), _HIGHEST)


@cache
def trees(size: int, colors: int = 1, separable: bool = False) -> tuple[Tree, ...]:
    """All rooted trees with a number of nodes; `separable` ones have no edge between nodes of one colour."""
    return tuple(
        Tree(color, children)
        for color in range(colors)
        for children in _forests(size - 1, size - 1, colors, separable)
        if not separable or all(child.color != color for child in children)
    )


def _forests(size: int, largest: int, colors: int, separable: bool) -> Iterator[tuple[Tree, ...]]:
    """All multisets of trees with a number of nodes together, and at most `largest` in each tree."""
    if size == 0:
        yield ()
    for part in range(min(size, largest), 0, -1):
        for count in range(1, size // part + 1):
            for chosen in combinations_with_replacement(trees(part, colors, separable), count):
                for rest in _forests(size - part * count, part - 1, colors, separable):
                    yield (*chosen, *rest)
