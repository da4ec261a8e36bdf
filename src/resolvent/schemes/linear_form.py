"""The linear form of a scheme, its step on the linear test equation as a function of z = h lambda, and its order."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations_with_replacement
from typing import Any

import torch
from torch import Tensor

from resolvent.schemes.tableau import Row

Rows = tuple[Row, ...]
Scalars = complex | Sequence[complex] | Tensor
"""Numbers or tensors of any shape; the analysis is computed in complex128."""


@dataclass(frozen=True)
class LinearForm:
    """One step of a scheme on y' = lambda y, written as a general linear method:

        stages = U x + z A stages,      y = V x + z B stages,      so that      y = M(z) x,
        M(z) = V + z B (I - z A)^{-1} U.

    x is what a step passes to the next: one number for a one-step scheme, the latest k states for a multistep one. For
    partitioned schemes the test equation is the pair q' = lambda p, p' = lambda q, the oscillator for
    lambda = i omega, and x = (q, p).

    Attributes, stored as complex128; nested lists of numbers are converted:
        A: (stages, stages).
        U: (stages, k).
        B: (k, stages).
        V: (k, k).

    Reference: Hairer, Norsett & Wanner, Solving ordinary differential equations I, section III.8.
    """

    A: Tensor
    U: Tensor
    B: Tensor
    V: Tensor

    def __post_init__(self) -> None:
        for name in ("A", "U", "B", "V"):
            object.__setattr__(self, name, as_complex(getattr(self, name)))

    def matrix(self, z: Scalars) -> Tensor:
        """M(z), complex128 (*z.shape, k, k); not finite at a pole."""
        z = as_complex(z)[..., None, None]
        A, U, B, V = (matrix.to(z.device) for matrix in (self.A, self.U, self.B, self.V))
        stages, _ = torch.linalg.solve_ex(torch.eye(len(A)).to(A) - z * A, U.expand(*z.shape[:-2], *U.shape))
        return V + z * B @ stages

    @property
    def poles(self) -> Tensor:
        """The z where M(z) is infinite, complex128: the inverse eigenvalues of A. An explicit scheme has none."""
        eigenvalues = torch.linalg.eigvals(self.A)
        # An eigenvalue 0 of multiplicity m is computed as eps^(1/m): up to four explicit stages are recognised.
        return 1 / eigenvalues[eigenvalues.abs() > 1e-3]


def pair_form(A: Rows, b: Row, A_hat: Rows, b_hat: Row) -> LinearForm:
    """The linear form of a scheme with one table for q and one for p: each half moves by the stages of the other."""
    stages = len(b)
    coefficients = torch.block_diag(as_complex(A), as_complex(A_hat))
    weights = torch.block_diag(as_complex([b]), as_complex([b_hat]))
    start = as_complex(torch.ones(stages, 1))
    # Rolled by half, a block-diagonal matrix acts on the other half.
    return LinearForm(
        coefficients.roll(stages, 1), torch.block_diag(start, start), weights.roll(stages, 1), torch.eye(2)
    )


def as_complex(values: Any) -> Tensor:
    """Numbers, nested sequences or a tensor as complex128."""
    return torch.as_tensor(values, dtype=torch.complex128)


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
