"""The derivative of the equation at a point: the linear map A = I - tau F'(w), its transpose, its matrix."""

from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from resolvent.equation.evaluation import Evaluation, graph_start
from resolvent.equation.function import ROWS, value_of, wrong_shape
from resolvent.equation.in_place import change_error, changes_of, explain, unchanged
from resolvent.equation.jacobian import from_rows, gradient
from resolvent.equation.layer_matrix import coupled_matrix
from resolvent.equation.matrix import Dense, Matrix
from resolvent.equation.mixing import LayerMixing
from resolvent.equation.norms import per_sample, rms
from resolvent.equation.problem import NonlinearProblem, changed
from resolvent.equation.torch_func import transforming

if TYPE_CHECKING:
    from resolvent.equation.solver import State

# Part of torch's error message when an operation has no second derivative.
_NOT_TWICE = "is not implemented"
# The most unknowns of a sample for which the batch is stacked: each takes a copy of it, and of all activations.
_MOST_STACKED = 64


class Linearization:
    """A = I - tau F'(w) at a point w, matrix-free. The matrix is computed once, on request.

    Outside `torch.func` transforms all products share one evaluation of F, whose graph is kept (`retain_graph`). A^T u
    costs one backward pass of F, and A v one more, by differentiating that pass. If an operation cannot be
    differentiated twice, such as fused attention, A v is a difference quotient.

    Arguments:
        problem: provides tau and F.
        w: (batch, *shape), the point.
        matrix: A, if it is known.
        evaluation: F at w, if it was evaluated before.

    Attributes:
        work: counts products.
        state: that of the forward solver, if an adjoint starts from it.
        contracting: mask (batch,) of the samples that the quick attempt of the forward solve has solved, see `Problem`.
        expected_steps: how many steps the forward solve took, if that is known.
        matrix_given: whether A was given. What a solve does must not depend on whether an earlier one has computed it.
    """

    state: "State | None" = None
    contracting: Tensor | None = None
    expected_steps: int | None = None

    def __init__(
        self,
        problem: NonlinearProblem,
        w: Tensor,
        matrix: Matrix | None = None,
        evaluation: Evaluation | None = None,
    ) -> None:
        # Each system has its own right-hand side; that of the problem is not kept in memory.
        self.problem = changed(problem, b=problem.b.new_empty(0), last=None)
        self.work = problem.work
        self._matrix, self.matrix_given = matrix, matrix is not None
        self._vjp_graph: tuple[Tensor, Tensor] | None = None
        self._by_differences = False
        self._point: Tensor | None
        if transforming():
            self._point = w.detach()
            self._image, self._pullback = torch.func.vjp(problem.evaluate, self._point)  # type: ignore[misc]
        else:
            self.evaluation = problem.evaluate_with_graph(w) if evaluation is None else evaluation
            self._point = w.detach()

    @property
    def image(self) -> Tensor:
        """F(w), with no graph."""
        image = self._image if transforming() else self.evaluation.image
        assert image is not None
        return image.detach()

    def transposed_product(self, u: Tensor) -> Tensor:
        """A^T u."""
        return u - self.pull_back(self.problem.tau * u)

    def transposed_image(self, g: Tensor, u: Tensor) -> Tensor:
        """g + tau F'(w)^T u."""
        tau = self.problem.tau
        if isinstance(tau, Tensor):
            return g + self.pull_back(tau * u)
        # Memory peaks in this product, so tau u is not stored beside u.
        return torch.add(g, self.pull_back(u), alpha=tau)

    def pull_back(self, u: Tensor) -> Tensor:
        """F'(w)^T u."""
        self.work.vjps += 1
        return self._pullback(u)[0] if transforming() else self.evaluation.pull_back(u)

    def product(self, v: Tensor) -> Tensor:
        """A v."""
        self.work.jvps += 1
        if transforming():
            return v - self.problem.tau * torch.func.jvp(self.problem.evaluate, (self._point,), (v,))[1]
        if not self._by_differences:
            try:
                return v - self.problem.tau * self._push_forward(v)
            except RuntimeError as error:
                if _NOT_TWICE not in str(error) or self._point is None:
                    raise
                self._by_differences, self._vjp_graph = True, None
        return v - self.problem.tau * self._difference(v)

    def _push_forward(self, v: Tensor) -> Tensor:
        """F'(w) v, by differentiating F'(w)^T u, which is linear in u."""
        if self._vjp_graph is None:
            with torch.enable_grad():
                u = torch.zeros_like(self.evaluation.like, requires_grad=True)
                self._vjp_graph = u, self.evaluation.pull_back(u, create_graph=True)
        u, pulled = self._vjp_graph
        return gradient(pulled, u, v)

    def _difference(self, v: Tensor) -> Tensor:
        """F'(w) v to about two thirds of the digits, by a central difference quotient of each sample."""
        w = self._point
        assert w is not None
        size = torch.finfo(self.problem.precision).eps ** (1 / 3) * (1 + rms(w))
        steepness = rms(v)
        step = per_sample(size / torch.where(steepness > 0, steepness, 1.0), v)
        with torch.no_grad():
            ahead, behind = (self.problem.call(w + s * step * v, self.problem.function) for s in (1, -1))
        return (ahead - behind) / (2 * step)

    def release(self) -> Tensor:
        """Returns F(w) with its graph. From now on only the graph is kept, not the point or F(w)."""
        self._point = None
        return self.evaluation.release()

    def matrix(self) -> Matrix:
        """A of every sample."""
        if self._matrix is None:
            self._matrix = self._assembled()
        return self._matrix

    def _assembled(self) -> Matrix:
        mix = self.problem.function.mix
        if isinstance(mix, LayerMixing) and self.problem.rowwise and not transforming():
            only_own = mix.inverse_of_ones(self.evaluation.like)
            if only_own is not None:
                return coupled_matrix(mix, self._blocks(only_own), self.problem.tau)
        like = self._point if transforming() else self.evaluation.like
        assert like is not None
        return Dense(from_rows(self.transposed_product, like))

    def _blocks(self, only_own: Tensor) -> Tensor:
        """The Jacobians of single rows, (batch, rows, k, k), from k products with the transposed Jacobian of all rows:
        as the rows do not depend on each other before they are mixed, one product serves them all.

        Arguments:
            only_own: (rows,), v with M^T v = 1.
        """
        like = self.evaluation.like
        unit = torch.eye(like.shape[2:].numel(), dtype=like.dtype, device=like.device)
        cotangents = [(only_own[:, None] * e).reshape(like.shape[1:]).expand_as(like) for e in unit]
        pulled = [self.pull_back(cotangent) for cotangent in cotangents]
        return torch.stack([row.flatten(2) for row in pulled], dim=2)


def evaluate_with_matrix(problem: NonlinearProblem, w: Tensor) -> tuple[Tensor, Matrix]:
    """F(w) and A = I - tau F'(w) of every sample, in one evaluation.

    For a rowwise function the batch is stacked n times, and one backward pass gives all rows of the Jacobian; n is the
    size of a sample, or of a single row if the function mixes several. Otherwise, and for larger samples, each row
    takes one backward pass. For few unknowns both are several times faster than `vmap(jacfwd(F))`, which is dominated
    by overhead in eager mode.
    """
    large = problem.function.mix is None and problem.size > _MOST_STACKED
    if torch.is_grad_enabled() or transforming() or not problem.rowwise or large:
        return _in_general(problem, w)
    F, single = problem.function, problem.function.single_rows
    mix, known = F.mix, single.value_and_jacobian
    rows = w if mix is None else F.flatten(w)
    if known is not None and rows.dim() == 2 and problem.autocast is None and problem.argument_dtype == w.dtype:
        problem.work.evaluations += 1
        last = problem.last if value_of(known) is not None else None
        if last is not None:
            last.forget()
        with torch.set_grad_enabled(last is not None):
            start = w if last is None else graph_start(w)
            point = start if mix is None else F.flatten(start)
            before = changes_of(point)
            try:
                image, jacobian = known(point, *single.conditions)
            except RuntimeError as error:
                explain(error, lambda w: known(w, *single.conditions), point)
                raise
            if changes_of(point) != before:
                raise change_error()
            if mix is not None:
                image = mix(F.rows_of(w, image))
            elif image.shape != w.shape:
                raise wrong_shape(w, image)
        image = image if last is None else last.keep(Evaluation(w, start, image))
    else:
        size, found = rows.shape[1:].numel(), []
        for part in _parts(rows):  # They bound the memory of the graph, and count once.
            some = rows[part].detach()
            batch = some.shape[0]
            stacked = some.repeat(size, *(1,) * (rows.dim() - 1)).requires_grad_()
            with torch.enable_grad():
                images = problem.call(stacked, single.take(part).repeat(size))
            selected = torch.eye(size, dtype=w.dtype, device=w.device).repeat_interleave(batch, 0)
            pulled = gradient(images, stacked, selected.reshape(stacked.shape), retain_graph=False)
            found.append((images[:batch].detach(), pulled.reshape(size, batch, size).transpose(0, 1)))
        problem.work.evaluations -= len(found) - 1
        problem.work.vjps += 1
        image, jacobian = found[0] if len(found) == 1 else (torch.cat(column) for column in zip(*found, strict=True))
        image = image if mix is None else mix(F.rows_of(w, image))
    if mix is None:
        return image, _dense(problem, jacobian)
    return image, coupled_matrix(mix, F.unflatten(jacobian, w), problem.tau)


def _parts(rows: Tensor) -> list[slice]:
    """Parts of a large batch on the CPU."""
    # A tracer's tensors are of a class of their own. Their size must not decide.
    if type(rows) is not Tensor or not rows.is_cpu or len(rows) < 2 * ROWS:
        return [slice(None)]
    return [slice(first, first + ROWS) for first in range(0, len(rows), ROWS)]


def evaluate_rows(problem: NonlinearProblem, w: Tensor) -> Tensor:
    """F(w) without the matrix, for a rowwise F that mixes rows; `last` keeps the graph. Like `problem.evaluate`, in
    fewer calls."""
    F, last = problem.function, problem.last
    if F.mix is None or problem.autocast is not None or problem.argument_dtype != w.dtype or torch.is_grad_enabled():
        return problem.evaluate(w)
    problem.work.evaluations += 1
    if last is not None:
        last.forget()
    with torch.set_grad_enabled(last is not None):
        start = w if last is None else graph_start(w)
        image = F.mix(F.rows_of(w, unchanged(F.call, F.flatten(start), *F.single_rows.conditions)))
    return image if last is None else last.keep(Evaluation(w, start, image))


def _in_general(problem: NonlinearProblem, w: Tensor) -> tuple[Tensor, Matrix]:
    """The same inside of transforms, with a graph, or for functions that are not rowwise."""
    if torch.is_grad_enabled():  # Only when unrolling the iterations: F attached, A constant.
        return problem.evaluate(w), Linearization(problem.detach(), w).matrix()
    if transforming():
        linearization = Linearization(problem, w)
        return linearization.image, linearization.matrix()
    with torch.enable_grad():
        point = w.detach().requires_grad_()
        image = problem.call(point, problem.function)
    problem.work.vjps += problem.size
    return image.detach(), _dense(problem, from_rows(partial(gradient, image, point), point))


def _dense(problem: NonlinearProblem, jacobian: Tensor) -> Dense:
    """I - tau F'(w)."""
    identity = torch.eye(jacobian.shape[1], dtype=jacobian.dtype, device=jacobian.device)
    if isinstance(problem.tau, Tensor):
        return Dense(identity - problem.tau.reshape(-1, 1, 1) * jacobian)
    return Dense(torch.sub(identity, jacobian, alpha=problem.tau))
