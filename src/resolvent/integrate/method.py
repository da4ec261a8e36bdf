"""`Method`: a Runge-Kutta table with the properties that an adaptive step needs."""

from dataclasses import dataclass
from functools import cache, cached_property

import torch
from torch import Tensor

from resolvent.schemes.dense_output import dense_order, dense_weights, largest_error
from resolvent.schemes.linear_form import tree_order
from resolvent.schemes.runge_kutta import RungeKutta
from resolvent.schemes.tableau import AdditiveTableau, Row, Tableau


@dataclass(frozen=True)
class Modes:
    """A = V diag(values) V^{-1} of coupled stages: their linear systems decouple in these modes.

    Attributes:
        A, inverse: (stages, stages), the matrix and its inverse.
        values: the real eigenvalues, then one of each complex pair.
        rows: for each value, that row of V^{-1}.
        columns: for each value, that column of V; twice it for a pair, of which the real part counts.
    """

    A: Tensor
    inverse: Tensor
    values: tuple[complex, ...]
    rows: Tensor
    columns: Tensor

    @staticmethod
    def of(A: tuple[Row, ...]) -> "Modes":
        matrix = torch.tensor(A, dtype=torch.float64, device="cpu")
        values, V = torch.linalg.eig(matrix)
        rows = torch.linalg.inv(V)
        real = (values.imag.abs() < 1e-12).nonzero()[:, 0].tolist()
        pairs = (values.imag > 1e-12).nonzero()[:, 0].tolist()
        kept = [*real, *pairs]
        weight = matrix.new_tensor([1.0] * len(real) + [2.0] * len(pairs))
        found = tuple(complex(values[k]) for k in kept)
        return Modes(matrix, torch.linalg.inv(matrix), found, rows[kept], V[:, kept] * weight)


@dataclass(frozen=True)
class Method:
    """A Runge-Kutta method with an embedded one: explicit, singly diagonally implicit, or with coupled stages.

    If the embedded method has a weight for the slope at the start, the table here begins with a stage for it. An
    additive method has a second table, `explicit`, for what is not the linear part of the field.
    """

    tableau: Tableau
    explicit: Tableau | None = None

    @cached_property
    def coupled(self) -> bool:
        """Whether all stages but the first, which is explicit, are solved together."""
        return not self.tableau.diagonal

    @cached_property
    def diagonal(self) -> float:
        """gamma, the nonzero entry of the diagonal; zero for explicit methods. For coupled stages it is the real
        eigenvalue of A that is the first weight of the embedded method."""
        if self.coupled:
            return self.tableau.embedded[0]
        return max((row[i] for i, row in enumerate(self.tableau.A)), key=abs)

    @property
    def implicit(self) -> bool:
        """Whether stages are solved for by Newton's method."""
        return self.diagonal != 0 and self.explicit is None

    @property
    def stages(self) -> int:
        return len(self.tableau.b)

    @cached_property
    def error(self) -> Row:
        """Weights of the error estimate."""
        return tuple(b - e for b, e in zip(self.tableau.b, self.tableau.embedded, strict=True))

    @cached_property
    def error_order(self) -> int:
        """The power of h that the estimate is proportional to."""
        return min(self.tableau.order, tree_order([(self.tableau.A, self.tableau.embedded)])) + 1

    @cached_property
    def caution(self) -> float:
        """The factor by which the estimate is multiplied to cover dense output: the ratio of the error of dense output
        to the estimated error, if both have the same power of h; at least 1."""
        order = self.error_order
        if dense_order(self.tableau, self.explicit) + 1 != order or order > self.tableau.order:
            return 1.0
        s = torch.linspace(0, 1, 21, dtype=torch.float64)[:, None]
        inside = (s ** torch.arange(1, len(self.dense) + 1)) @ self.dense
        embedded = torch.tensor([self.tableau.embedded], dtype=torch.float64)
        errors = [largest_error(self.tableau, self.explicit, weights, order) for weights in (inside, embedded)]
        return max(1.0, errors[0] / errors[1])

    @cached_property
    def keeps_slope(self) -> bool:
        """Whether the last stage has the same slope as the first stage of the next step."""
        return self.tableau.stiffly_accurate and not any(self.tableau.A[0]) and self.explicit is None

    @cached_property
    def filtered(self) -> bool:
        """Whether the estimate is multiplied by (I - h gamma J)^{-1}. Without it the estimate grows with the stiffness
        if the embedded method is not itself a stage (Hosea & Shampine, 1996)."""
        return self.implicit and self.tableau.embedded not in self.tableau.A

    @cached_property
    def twin(self) -> bool:
        """Whether the last two stages are at the end of the step, so that their slopes measure the stiffness."""
        return self.stages > 1 and self.keeps_slope and self.tableau.c[-2] == 1

    @cached_property
    def modes(self) -> "Modes":
        """The eigenvalues and eigenvectors of A, for coupled stages."""
        return Modes.of(tuple(row[1:] for row in self.tableau.A[1:]))

    @cached_property
    def dense(self) -> Tensor:
        """(degree, stages), the coefficients of the dense output."""
        return dense_weights(self.tableau, self.explicit)

    @cached_property
    def bends(self) -> tuple[Row, Row]:
        """Weights of the second and the third derivative of dense output at the end of a step, in units of the step."""
        d = torch.arange(1, len(self.dense) + 1, dtype=torch.float64)
        second, third = (d * (d - 1)) @ self.dense, (d * (d - 1) * (d - 2)) @ self.dense
        return tuple(second.tolist()), tuple(third.tolist())

    @cached_property
    def guesses(self) -> tuple[Row, ...]:
        """For each stage, the weights that extrapolate its slope from those of the earlier stages: exact for
        polynomials in time of degree at most two."""
        return tuple(_extrapolation(self.tableau.c[:i], self.tableau.c[i]) for i in range(self.stages))


def as_method(scheme: object) -> Method:
    """The method of a table or a scheme. Raises if it cannot adapt its steps."""
    table = scheme.tableau if isinstance(scheme, RungeKutta) else scheme
    explicit = None
    if isinstance(table, AdditiveTableau):
        table, explicit = table.implicit, table.explicit
    if not isinstance(table, Tableau):
        raise ValueError(f'scheme must be a table such as rs.schemes.tableaux.KVAERNO5, or "auto", got {scheme!r}.')
    if not table.embedded:
        raise ValueError(
            "scheme must have embedded weights, which estimate the error of a step: take one such as "
            "rs.schemes.tableaux.KVAERNO5, or make equal steps with rs.Block."
        )
    diagonal = {row[i] for i, row in enumerate(table.A)} - {0.0}
    if (not table.diagonal and not _is_collocation(table)) or (table.diagonal and len(diagonal) > 1):
        raise ValueError(
            "scheme must be explicit, or diagonally implicit with one number on the diagonal, so that one "
            f"factorization serves all stages; this one has {tuple(row[i] for i, row in enumerate(table.A))} there. "
            "Of methods with coupled stages, those like RADAU5 are possible."
        )
    return _made_once(table.with_start, explicit)


def _is_collocation(table: Tableau) -> bool:
    """Whether the stages are coupled by a regular matrix, the last one is the result, and the first weight of the
    embedded method is a real eigenvalue of the matrix."""
    if len(table.embedded) != len(table.b) + 1 or not table.stiffly_accurate:
        return False
    values = torch.linalg.eigvals(torch.tensor(table.A, dtype=torch.float64, device="cpu"))
    return bool((values.abs() > 0).all()) and bool((values - table.embedded[0]).abs().min() < 1e-10)


@cache
def _made_once(table: Tableau, explicit: Tableau | None) -> Method:
    """The method of a table, cached together with its computed properties."""
    return Method(table, explicit)


def _extrapolation(nodes: Row, c: float) -> Row:
    """The smallest weights on values at the nodes that are exact at c for polynomials of the highest degree."""
    for degree in (2, 1, 0):
        if len(set(nodes)) > degree:
            powers = torch.arange(degree + 1, dtype=torch.float64)[:, None]
            at = torch.tensor(nodes, dtype=torch.float64)[None] ** powers
            return tuple((torch.linalg.pinv(at) @ (c ** powers[:, 0])).tolist())
    return ()
