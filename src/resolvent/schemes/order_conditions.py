"""Order conditions: the order of a scheme, computed from its coefficients."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations_with_replacement

import torch
from torch import Tensor

from resolvent.schemes.linear_form import Rows
from resolvent.schemes.tableau import Row

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


def tree_order(tables: Sequence[tuple[Rows, Row]], separable: bool = False) -> int:
    """The order of a Runge-Kutta method by the order conditions; at most 6 is computed.

    The method has order p if for each rooted tree of at most p nodes its elementary weight, a sum of products of the
    a_ij and b_i, is 1/gamma, the inverse density of the tree. For two tables the trees have nodes of two colours.

    Arguments:
        tables: (A, b), one pair, or two for the halves of a partitioned method.
        separable: whether the derivative of each half depends only on the other.

    Reference: Hairer, Norsett & Wanner, Solving ordinary differential equations I, sections II.2 and II.15.
    """
    weights = [(torch.tensor(A, dtype=torch.float64), torch.tensor(b, dtype=torch.float64)) for A, b in tables]

    matrices = [A for A, _ in weights]

    def satisfied(tree: Tree) -> bool:
        return abs(float(weights[tree.color][1] @ stage_weights(tree, matrices)) - 1 / tree.density) < _ROUNDING

    return _last_order(lambda p: all(map(satisfied, trees(p, len(tables), separable))))


def stage_weights(tree: Tree, matrices: Sequence[Tensor]) -> Tensor:
    """The elementary weights of the stages: the products of A with the weights of the children, multiplied.

    Arguments:
        tree: with nodes of the colours 0, 1, ...
        matrices: A for each colour, (stages, stages).
    """
    ones = torch.ones(len(matrices[0]), dtype=torch.float64)
    return math.prod((matrices[c.color] @ stage_weights(c, matrices) for c in tree.children), start=ones)


def polynomial_order(alpha: Sequence[float], beta: Sequence[float]) -> int:
    """The order of a linear multistep method: the degree of the polynomials it is exact for; at most 6 is computed.

    Arguments:
        alpha, beta: as for `Multistep`.

    Reference: Hairer, Norsett & Wanner, Solving ordinary differential equations I, section III.2.
    """

    def exact(m: int) -> bool:
        # y = t^m about the new time: the states are at -1, -2, ..., the slopes at 0, -1, -2, ...
        states = sum(a * (-1.0 - j) ** m for j, a in enumerate(alpha))
        slopes = sum(b * m * (-float(j)) ** (m - 1) for j, b in enumerate(beta)) if m > 0 else 0.0
        return abs(states + slopes - 0.0**m) < _ROUNDING * (1 + len(beta)) ** m

    return _last_order(exact)


def _last_order(holds: Callable[[int], bool]) -> int:
    """The largest p such that the conditions hold for all orders up to p."""
    return next((p - 1 for p in range(1, _HIGHEST + 1) if not holds(p)), _HIGHEST)


@cache
def trees(size: int, colors: int = 1, separable: bool = False) -> tuple[Tree, ...]:
    """All rooted trees with `size` nodes; `separable` ones have no edge between nodes of the same colour."""
    return tuple(
        Tree(color, children)
        for color in range(colors)
        for children in _forests(size - 1, size - 1, colors, separable)
        if not separable or all(child.color != color for child in children)
    )


def _forests(size: int, largest: int, colors: int, separable: bool) -> Iterator[tuple[Tree, ...]]:
    """All multisets of trees with `size` nodes in total, and at most `largest` in each tree."""
    if size == 0:
        yield ()
    for part in range(min(size, largest), 0, -1):
        for count in range(1, size // part + 1):
            for chosen in combinations_with_replacement(trees(part, colors, separable), count):
                for rest in _forests(size - part * count, part - 1, colors, separable):
                    yield (*chosen, *rest)
