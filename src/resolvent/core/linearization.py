"""The derivative of the equation at a point: the linear map A = I - tau F'(w), its transpose, its matrix."""

from dataclasses import replace

import torch
from torch import Tensor

from resolvent.core.evaluation import Evaluation
from resolvent.core.jacobian import from_rows, gradient
from resolvent.core.problem import Coupled, Problem, Rowwise, flat
from resolvent.core.transforms import transforming


class Linearization:
    """A = I - tau F'(w) at a point w, matrix-free, with the matrix and its factors made once when asked for.

    Outside of `torch.func` transforms one evaluation of F serves every product: its graph is kept and walked anew
    (`retain_graph`), which costs one backward pass of F for A^T u and, by differentiating that pass, one more for A v.

    Arguments:
        problem: of which nothing but tau, F and its linear part is read.
        w: (batch, *shape), the point.
        matrix: (batch, n, n), A, where it is known.
        evaluation: F at w, where it was made before.

    Attributes:
        work: the account that products go on.
    """

    def __init__(
        self, problem: Problem, w: Tensor, matrix: Tensor | None = None, evaluation: Evaluation | None = None
    ) -> None:
        # The right-hand side is another one for every system, and this one is not to be kept.
        self.problem = replace(problem, b=problem.b.new_empty(0), tape=None)
        self.work = problem.work
        self._matrix = matrix
        self._factors: tuple[Tensor, Tensor, Tensor] | None = None
        self._vjp_graph: tuple[Tensor, Tensor] | None = None
        if transforming():
            self._point = w.detach()
            self._image, self._pullback = torch.func.vjp(problem.evaluate, self._point)  # type: ignore[misc]
        else:
            self.evaluation = problem.evaluate_with_graph(w) if evaluation is None else evaluation

    @property
    def image(self) -> Tensor:
        """F(w), with no graph."""
        image = self._image if transforming() else self.evaluation.image
        assert image is not None
        return image.detach()

    def transposed_product(self, u: Tensor) -> Tensor:
        """A^T u."""
        return u - self._pull_back(self.problem.tau * u)

    def transposed_defect(self, g: Tensor, u: Tensor) -> Tensor:
        """g - A^T u."""
        tau = self.problem.tau
        if isinstance(tau, Tensor):
            return g - self.transposed_product(u)
        # The peak of memory is inside of this product: u is not to be there twice, once as tau u.
        pulled = self._pull_back(u)
        return torch.add(g - u, pulled, alpha=tau)

    def _pull_back(self, u: Tensor) -> Tensor:
        """F'(w)^T u."""
        self.work.vjps += 1
        return self._pullback(u)[0] if transforming() else self.evaluation.pull_back(u)

    def product(self, v: Tensor) -> Tensor:
        """A v."""
        self.work.jvps += 1
        if transforming():
            return v - self.problem.tau * torch.func.jvp(self.problem.evaluate, (self._point,), (v,))[1]
        if self._vjp_graph is None:
            with torch.enable_grad():
                u = torch.zeros_like(self.evaluation.like, requires_grad=True)
                self._vjp_graph = u, self.evaluation.pull_back(u, create_graph=True)
        u, pulled = self._vjp_graph
        if not pulled.requires_grad:
            return v
        return v - self.problem.tau * gradient(pulled, u, v)

    def matrix(self) -> Tensor:
        """A as (batch, n, n)."""
        if self._matrix is None:
            like = self._point if transforming() else self.evaluation.like
            self._matrix = from_rows(self.transposed_product, like)
        return self._matrix

    def factors(self) -> tuple[Tensor, Tensor, Tensor]:
        """The LU factors and pivots of A, and (batch,) whether they are usable."""
        if self._factors is None:
            self._factors = factorize(self.matrix())
        return self._factors


def factorize(matrix: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Batched LU of (batch, n, n): factors, pivots, and (batch,) whether no pivot vanished."""
    factors, pivots, info = torch.linalg.lu_factor_ex(matrix)
    return factors, pivots, info == 0


def solve_dense(matrix: Tensor, r: Tensor) -> tuple[Tensor, Tensor]:
    """A^{-1} r for r (batch, *shape), and (batch,) whether A was regular."""
    solution, info = torch.linalg.solve_ex(matrix, flat(r))
    return solution.reshape(r.shape), info == 0


def solve_factorized(factors: Tensor, pivots: Tensor, r: Tensor, transposed: bool = False) -> Tensor:
    """A^{-1} r, or A^{-T} r, for r (batch, *shape)."""
    column = flat(r)[:, :, None]
    if not transforming():
        return torch.linalg.lu_solve(factors, pivots, column, adjoint=transposed).reshape(r.shape)
    # torch's lu_solve is wrong in a vmap over the columns inside of a vmap over the factors.
    permutation, lower, upper = torch.lu_unpack(factors, pivots)
    triangular = torch.linalg.solve_triangular
    if transposed:
        half = triangular(upper.mT, column, upper=False)
        return (permutation @ triangular(lower.mT, half, upper=True, unitriangular=True)).reshape(r.shape)
    half = triangular(lower, permutation.mT @ column, upper=False, unitriangular=True)
    return triangular(upper, half, upper=True).reshape(r.shape)


def evaluate_with_matrix(problem: Problem, w: Tensor) -> tuple[Tensor, Tensor]:
    """F(w) and the dense A = I - tau F'(w), (batch, n, n), in one evaluation.

    For a `Rowwise` function the batch is stacked n times and one backward pass gives all rows of the Jacobian at
    once, n being the size of a row where the function is `Coupled`; otherwise there is a backward pass for each row.
    For the few unknowns this is meant for, both are several times faster than `vmap(jacfwd(F))`, whose cost in eager
    mode is its overhead.
    """
    if torch.is_grad_enabled():  # Only when the iterations themselves are differentiated: F attached, A constant.
        return problem.evaluate(w), Linearization(problem.detach(), w).matrix()
    if transforming() or not problem.rowwise:
        linearization = Linearization(problem, w)
        return linearization.image, linearization.matrix()
    function = problem.function
    if isinstance(function, Coupled):
        images, blocks = _with_jacobian(problem, function.inner, w.flatten(0, 1))
        image = torch.einsum("ij,bj...->bi...", function.coupling, images.reshape(w.shape))
        jacobian = coupled_jacobian(function.coupling, blocks)
    else:
        assert isinstance(function, Rowwise)
        image, jacobian = _with_jacobian(problem, function, w)
    identity = torch.eye(jacobian.shape[1], dtype=w.dtype, device=w.device)
    if isinstance(problem.tau, Tensor):
        return image, identity - problem.tau.reshape(-1, 1, 1) * jacobian
    return image, torch.sub(identity, jacobian, alpha=problem.tau)


def coupled_jacobian(coupling: Tensor, blocks: Tensor) -> Tensor:
    """The Jacobian of a `Coupled` function, (batch, rows n, rows n), from those of its rows, (batch * rows, n, n)."""
    rows, n = coupling.shape[0], blocks.shape[-1]
    by_sample = blocks.reshape(-1, 1, rows, n, n).transpose(2, 3)
    return (coupling[:, None, :, None] * by_sample).reshape(-1, rows * n, rows * n)


def _with_jacobian(problem: Problem, function: Rowwise, w: Tensor) -> tuple[Tensor, Tensor]:
    """The function at w and its Jacobian, (batch, n, n): the batch is stacked n times for one backward pass."""
    if function.jacobian is not None and w.dim() == 2 and problem.precision == w.dtype:
        problem.work.evaluations += 1
        return function.jacobian(w, *function.conditions)
    batch, size = w.shape[0], w.shape[1:].numel()
    stacked = w.detach().repeat(size, *(1,) * (w.dim() - 1)).requires_grad_()
    with torch.enable_grad():
        image = problem.evaluate_instead(function.repeat(size), stacked)
    problem.work.vjps += 1
    selected = torch.eye(size, dtype=w.dtype, device=w.device).repeat_interleave(batch, 0)
    rows = gradient(image, stacked, selected.reshape(stacked.shape), retain_graph=False)
    return image[:batch].detach(), rows.reshape(size, batch, size).transpose(0, 1)
