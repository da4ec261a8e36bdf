"""`Tableau`: the table of a Runge-Kutta method."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

Row = tuple[float, ...]
_ROUNDING = 1e-12


@dataclass(frozen=True)
class Tableau:
    """The coefficients of the Runge-Kutta method with the stages

        W_i = x + h sum_j a_ij F(t + c_j h, W_j),      y = x + h sum_j b_j F(t + c_j h, W_j).

    Arguments:
        A: the a_ij, a tuple of rows.
        b: weights.
        order: of convergence.
        c: nodes; if empty, the row sums of A.
        embedded: weights of a second method with the same stages; the difference of the two results estimates the error
            of a step. One weight more than there are stages means that the first is that of F(t, x), the slope at the
            start. Empty if there is none. `rs.odeint` needs them.

    Reference: Hairer, Norsett & Wanner, Solving ordinary differential equations I, section II.1.
    """

    A: tuple[Row, ...]
    b: Row
    order: int
    c: Row = ()
    embedded: Row = ()

    def __post_init__(self) -> None:
        stages = len(self.b)
        if stages == 0 or len(self.A) != stages or any(len(row) != stages for row in self.A):
            shape = [len(row) for row in self.A]
            raise ValueError(
                f"A must have one row and one column for each of the {stages} weights, got rows of {shape}."
            )
        # Nodes 0 and 1, the ends of the interval, are later compared exactly, so rounding is removed here.
        nodes = self.c or tuple(sum(row) for row in self.A)
        object.__setattr__(self, "c", tuple(float(round(c)) if abs(c - round(c)) < _ROUNDING else c for c in nodes))
        if len(self.c) != stages:
            raise ValueError(f"c must have one node for each of the {stages} stages, got {len(self.c)}.")
        if abs(sum(self.b) - 1) > _ROUNDING:
            raise ValueError(f"the weights b must sum to 1 for the method to converge, got {sum(self.b)}.")
        if self.embedded and (
            len(self.embedded) not in (stages, stages + 1) or abs(sum(self.embedded) - 1) > _ROUNDING
        ):
            raise ValueError(
                f"embedded must be {stages} weights that sum to 1, or {stages + 1} if the first is that of the slope "
                f"at the start, or empty, got {self.embedded}."
            )
        if not isinstance(self.order, int) or self.order < 1:
            raise ValueError(f"order must be a whole number, 1 or more, got {self.order!r}.")

    @property
    def explicit(self) -> bool:
        """Whether no stage depends on itself or on later ones."""
        return all(row[j] == 0 for i, row in enumerate(self.A) for j in range(i, len(row)))

    @property
    def diagonal(self) -> bool:
        """Whether no stage depends on later ones, so that they can be solved one by one."""
        return all(row[j] == 0 for i, row in enumerate(self.A) for j in range(i + 1, len(row)))

    @property
    def stiffly_accurate(self) -> bool:
        """Whether the last stage is the result."""
        return self.A[-1] == self.b

    @property
    def with_start(self) -> "Tableau":
        """The same method with an explicit first stage, the slope at the start, if `embedded` has a weight for it."""
        if len(self.embedded) != len(self.b) + 1:
            return self
        A = ((0.0,) * len(self.embedded), *((0.0, *row) for row in self.A))
        return Tableau(A, (0.0, *self.b), self.order, (0.0, *self.c), self.embedded)

    @cached_property
    def algebraically_stable(self) -> bool:
        """Whether no weight is negative and B A + A^T B - b b^T is positive semidefinite, B = diag(b).

        Reference: Hairer & Wanner, Solving ordinary differential equations II, section IV.12.
        """
        A, b = self.matrix(torch.zeros((), dtype=torch.float64)), torch.tensor(self.b, dtype=torch.float64)
        M = b[:, None] * A + (b[:, None] * A).T - torch.outer(b, b)
        return bool((b >= 0).all()) and float(torch.linalg.eigvalsh(M).min()) >= -1e-10

    @cached_property
    def recovery(self) -> Row | None:
        """v = b^T A^{-1}, with y = x + sum_i v_i (W_i - x); None if A is singular."""
        if self.stiffly_accurate:
            return (*(0.0 for _ in self.b[1:]), 1.0)
        A = self.matrix(torch.zeros((), dtype=torch.float64))
        if torch.linalg.matrix_rank(A) < len(self.b):
            return None
        return tuple(torch.linalg.solve(A.T, torch.tensor(self.b, dtype=torch.float64)).tolist())

    @cached_property
    def inverse(self) -> "Tableau":
        """The table of the inverse method on the reversed interval: a*_ij = b_j - a_ij, stages in reverse order."""

        def difference(b: float, a: float) -> float:
            return 0.0 if abs(b - a) < _ROUNDING else b - a

        b = self.b[::-1]
        A = tuple(tuple(difference(bj, aij) for bj, aij in zip(b, row[::-1], strict=True)) for row in self.A[::-1])
        return Tableau(A, b, self.order, tuple(1 - c for c in self.c[::-1]))

    def matrix(self, like: Tensor) -> Tensor:
        """A as a tensor of the dtype and on the device of `like`."""
        return torch.tensor(self.A, dtype=like.dtype, device=like.device)


@dataclass(frozen=True)
class AdditiveTableau:
    """A pair of tables for fields F(t, y) = L y + N(t, y) with a stiff linear part, for `rs.odeint`:

        W_i = x + h sum_j (a_ij L W_j + a^_ij N(t + c_j h, W_j)),      y = x + h sum_j b_j F(t + c_j h, W_j).

    Arguments:
        implicit: the table of L, with one number on its diagonal, apart from an explicit first stage.
        explicit: the table of N, with the same nodes and weights.

    Reference: Kennedy & Carpenter, Additive Runge-Kutta schemes for convection-diffusion-reaction equations, Appl.
    Numer. Math. 44, 2003.
    """

    implicit: Tableau
    explicit: Tableau

    def __post_init__(self) -> None:
        ours, theirs = self.implicit, self.explicit
        if not ours.diagonal or not theirs.explicit:
            raise ValueError("the first table must be diagonally implicit and the second one explicit.")
        if (ours.b, ours.embedded, ours.order) != (theirs.b, theirs.embedded, theirs.order) or any(
            abs(c - d) > _ROUNDING for c, d in zip(ours.c, theirs.c, strict=True)
        ):
            raise ValueError("both tables must have the same weights, embedded weights, nodes and order.")

    @property
    def order(self) -> int:
        return self.implicit.order
