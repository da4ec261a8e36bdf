"""Linear systems with A = I - tau F'(w), for Newton's correction and the backward pass, as `Problem`s."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from resolvent.equation.gradients import Closed, LastProduct
from resolvent.equation.linear_part import LinearPart
from resolvent.equation.linearization import Linearization
from resolvent.equation.matrix import Matrix
from resolvent.equation.norms import per_sample, rms, unpatterned
from resolvent.equation.problem import (
    NonlinearProblem,
    Problem,
    changed,
    divided_by_linear_part,
    reciprocal_of_linear_part,
)
from resolvent.equation.solution import Work
from resolvent.equation.torch_func import transforming

# Rounding error of a residual, in units of eps times its terms.
_ROUNDINGS = 2.0


@dataclass(frozen=True)
class LinearProblem(Problem):
    """Find u with A u = g, or A^T u = g: the resolvent equation u = g + tau F'(w) u of a linear field.

    Attributes:
        b: g, (batch, *shape).
        linearization: A at its point.
        transposed: whether the system has A^T.
        closed: what F closes over, if its gradients are needed at the solution.
        last: computes these gradients with every product, and keeps the last ones; None computes none.
        lengths: of g, (batch,), if they are known.
    """

    b: Tensor
    linearization: Linearization
    transposed: bool
    closed: Closed | None = None
    last: LastProduct | None = None
    lengths: Tensor | None = None

    linear = True

    @property
    def scale(self) -> Tensor:
        return super().scale if self.lengths is None else self.lengths

    @property
    def precision(self) -> torch.dtype:  # type: ignore[override]
        return self.linearization.problem.precision

    @property
    def work(self) -> Work:  # type: ignore[override]
        return self.linearization.work

    @property
    def may_read(self) -> bool:  # type: ignore[override]
        return self.linearization.problem.may_read

    @property
    def rowwise(self) -> bool:
        return False

    @property
    def contracting(self) -> Tensor | None:
        return self.linearization.contracting

    @property
    def expected_steps(self) -> int | None:
        return self.linearization.expected_steps

    def take(self, rows: Tensor) -> "LinearProblem":
        raise AssertionError("all samples share the graph of one evaluation: it cannot be restricted to some.")

    def without_graph(self) -> "LinearProblem":
        return self if self.last is None else changed(self, last=None)

    def apply(self, v: Tensor) -> Tensor:
        """A v, or A^T v."""
        return self.linearization.transposed_product(v) if self.transposed else self.linearization.product(v)

    def defect(self, w: Tensor) -> Tensor:
        if self.transposed:
            return self._transposed_image(self.b - w, w)
        return self.b - self.apply(w)

    def _transposed_image(self, g: Tensor, u: Tensor) -> Tensor:
        """g + tau F'(w)^T u."""
        if self.last is None:
            return self.linearization.transposed_image(g, u)
        self.work.vjps += 1
        product, factor = self.last.product(u)
        return torch.add(g, product, alpha=factor)

    def increment(self, w: Tensor) -> tuple[Tensor, float | Tensor]:
        if not self.transposed:
            return w - self.apply(w), 1.0
        if self.last is None:
            return self.linearization.pull_back(w), self.linearization.problem.tau
        self.work.vjps += 1
        return self.last.product(w)

    @property
    def constant_precondition(self) -> float | None:
        problem = self.linearization.problem
        return reciprocal_of_linear_part(problem.tau, problem.function.linear_part)

    def defect_by_matrix(self, w: Tensor) -> Tensor:
        """The defect by a product with the matrix, which a direct method has computed."""
        return self.b - self.linearization.matrix().product(w, self.transposed)

    def precondition(self, r: Tensor) -> Tensor:
        problem = self.linearization.problem
        tau, part = problem.tau, problem.function.linear_part
        if self.transposed and isinstance(part, LinearPart):
            return transpose(lambda v: part.solve(v, tau), r)(r).detach()
        return divided_by_linear_part(r, tau, part)

    def defect_and_image(self, w: Tensor) -> tuple[Tensor, Tensor | None]:
        if not self.transposed or self.linearization.problem.function.linear_part is not None:
            return self.defect(w), None
        image = self._transposed_image(self.b, w)
        return image - w, image

    def orient(self, preconditioner: Callable[[Tensor], Tensor] | None) -> Callable[[Tensor], Tensor]:
        """The preconditioner for this system: the user's linear map M ~ A^{-1}, transposed if the system is; by default
        the solve with the field's linear part."""
        if preconditioner is None:
            return self.precondition
        return transpose(preconditioner, self.b) if self.transposed else preconditioner

    def norm(self) -> Tensor:
        """(batch,), a lower estimate of |A| by a few steps of the power method."""
        v = unpatterned(self.b).expand_as(self.b)
        largest = torch.zeros_like(rms(v))
        known = self.linearization.matrix_given
        for _ in range(3):
            image = self.linearization.matrix().product(v, self.transposed) if known else self.apply(v)
            growth = rms(image)
            largest = torch.maximum(largest, growth)
            v = image / per_sample(torch.where(growth == 0, 1.0, growth), image)
        return largest


@dataclass(frozen=True)
class ErrorEquation:
    """A d = r: d is the error of an iterate w, up to higher orders.

    Attributes:
        linearization: A at its point.
        r: (batch, *shape), the defect of w.
        transposed: whether the equation of w has A^T.
        rounding: (batch,), a bound for the rounding error of r.
    """

    linearization: Linearization
    r: Tensor
    transposed: bool
    rounding: Tensor

    def system(self, right: Tensor, transposed: bool) -> LinearProblem:
        """The system of A, or of its transpose, with another right-hand side."""
        return LinearProblem(right, self.linearization, self.transposed != transposed)


def error_equation(problem: NonlinearProblem | LinearProblem, w: Tensor) -> ErrorEquation:
    """The equation for the error of w. The rounding error of its right-hand side is about eps (1 + |A|) |w|."""
    w = w.detach()
    if isinstance(problem, LinearProblem):
        linearization, transposed = problem.linearization, problem.transposed
        r = problem.defect(w)
    else:
        linearization, transposed = Linearization(replace(problem.detach(), last=None), w), False
        r = problem.detach().step_of(linearization.image) - w
    system = LinearProblem(r, linearization, transposed)
    return ErrorEquation(linearization, r, transposed, _rounding(system.norm(), rms(w), problem.precision))


def error_bound(
    matrix: Matrix, residual: Tensor, size: Tensor, precision: torch.dtype, limit: Tensor | None = None
) -> Tensor:
    """(|r| + rounding) / (the smallest singular value of A), (batch,), for residuals |r| and sizes |w|, (batch,).

    Infinite where A is singular or not finite. If a `limit`, (batch,), is given, a larger number below the limit may be
    returned: it has Frobenius norms in place of singular values, which take far longer.
    """
    if limit is None:
        return _exact_bound(matrix, residual, size, precision)
    rounding = _rounding(matrix.norm().double(), size, precision)
    bound = ((residual + rounding) * matrix.inverse_norm()).to(residual.dtype)
    beyond = (~(bound <= limit)).nonzero().squeeze(1)
    if len(beyond) == 0:
        return bound
    exact = _exact_bound(matrix.take(beyond), residual[beyond], size[beyond], precision)
    return bound.index_copy(0, beyond, exact)


def _exact_bound(matrix: Matrix, residual: Tensor, size: Tensor, precision: torch.dtype) -> Tensor:
    entries = matrix.dense()
    finite = entries.isfinite().flatten(1).all(1)
    values = torch.linalg.svdvals(torch.where(finite[:, None, None], entries, 0.0).double())
    return ((residual + _rounding(values[:, 0], size, precision)) / values[:, -1]).to(residual.dtype)


def _rounding(norm: Tensor, size: Tensor, precision: torch.dtype) -> Tensor:
    """A bound for the rounding error of a residual, from the norm of A and |w|, (batch,) each."""
    return _ROUNDINGS * torch.finfo(precision).eps * (1 + norm) * size


def transpose(linear_map: Callable[[Tensor], Tensor], like: Tensor) -> Callable[[Tensor], Tensor]:
    """The transpose of a linear map given as a function."""
    if transforming():
        pullback = torch.func.vjp(linear_map, torch.zeros_like(like))[1]
        return lambda u: pullback(u)[0]
    with torch.enable_grad():
        argument = torch.zeros_like(like, requires_grad=True)
        image = linear_map(argument)
    return lambda u: torch.autograd.grad(image, argument, u, retain_graph=True)[0]
