"""The equation to solve, w = b + tau F(w), as the solvers see it."""

import math
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor

from resolvent.equation.evaluation import Evaluation, LastEvaluation, graph_start
from resolvent.equation.function import Function, wrong_shape
from resolvent.equation.in_place import change_error, changes_of, explain
from resolvent.equation.linear_part import LinearPart
from resolvent.equation.norms import length, take
from resolvent.equation.solution import Work
from resolvent.equation.torch_func import transforming

T = TypeVar("T")


class Problem(ABC):
    """Find w with w = b + tau F(w), for every sample of a batch.

    Attributes:
        b: (batch, *shape), in at least single precision. Solver states and residuals have its dtype even if F runs in
            half precision.
        precision: the dtype F computes in, which limits the residual that can be reached.
        work: counts evaluations of F and products with its derivative.
        may_read: whether values may be read while it is solved; not with a fixed number of steps.
    """

    b: Tensor
    precision: torch.dtype
    work: Work
    may_read: bool

    linear: ClassVar[bool]
    """Whether F is linear, as in the backward pass."""

    @property
    def contracting(self) -> Tensor | None:
        """Mask (batch,) of the samples for which the quick attempt of a plan is worth trying; None means all."""
        return None

    @property
    def expected_steps(self) -> int | None:
        """The number of steps that the fixed point is expected to take, if anything is known."""
        return None

    @property
    def size(self) -> int:
        """The number of unknowns of one sample."""
        return math.prod(self.b.shape[1:])

    @property
    def scale(self) -> Tensor:
        """(batch,), the lengths of b."""
        return length(self.b)

    @property
    @abstractmethod
    def rowwise(self) -> bool:
        """Whether `take` may be called."""

    @abstractmethod
    def take(self, rows: Tensor) -> "Problem":
        """The problem of the samples `rows` alone."""

    @abstractmethod
    def defect(self, w: Tensor) -> Tensor:
        """b + tau F(w) - w, which vanishes at the solution."""

    @abstractmethod
    def increment(self, w: Tensor) -> tuple[Tensor, float | Tensor]:
        """y and tau with the defect b + tau y - w: F(w), or a product with its derivative."""

    @property
    @abstractmethod
    def constant_precondition(self) -> float | None:
        """The number that `precondition` multiplies by; None if it does something else."""

    def agree(self, mask: Tensor) -> bool:
        """Whether all samples are known to be in the mask, (batch,), so that no others need to be kept as they are.

        The mask is read only where that costs nothing.
        """
        return self.can_read(mask) and bool(mask.all())

    def can_read(self, x: Tensor) -> bool:
        """Whether reading the values of x costs nothing: on the CPU, and outside of transforms."""
        # A tracer's tensors are of a class of their own. They have no values.
        return self.may_read and x.is_cpu and type(x) is Tensor and not transforming()

    def without_graph(self) -> "Problem":
        """The same problem for evaluations whose graph is not needed."""
        return self

    @abstractmethod
    def precondition(self, r: Tensor) -> Tensor:
        """r / (1 - tau c) if F(w) = c w + N(w) declares its linear part, else r itself.

        The fixed-point step w + precondition(defect(w)) is then the linearly implicit one,
        (b + tau N(w)) / (1 - tau c).
        """

    def defect_and_image(self, w: Tensor) -> tuple[Tensor, Tensor | None]:
        """The defect r, and the next iterate of the fixed point, w + precondition(r), if r is computed from it."""
        return self.defect(w), None


@dataclass(frozen=True)
class NonlinearProblem(Problem):
    """The equation of a layer.

    Attributes:
        function: F.
        tau: a number, or a tensor that multiplies (batch, *shape).
        argument_dtype: the dtype of the argument of F.
        autocast: the autocast dtype for F; None if autocast is off. The solvers never run under autocast.
        last: keeps the graph of the last evaluation; None keeps none.
    """

    function: Function
    b: Tensor
    tau: float | Tensor
    argument_dtype: torch.dtype
    precision: torch.dtype
    autocast: torch.dtype | None = None
    work: Work = field(default_factory=Work)
    last: LastEvaluation | None = None
    may_read: bool = True

    linear = False

    @property
    def rowwise(self) -> bool:
        return self.function.rowwise

    @property
    def requires_grad(self) -> bool:
        """Whether b or tau requires a gradient."""
        return self.b.requires_grad or (isinstance(self.tau, Tensor) and self.tau.requires_grad)

    def detach(self, last: LastEvaluation | None = None) -> "NonlinearProblem":
        """The same without the graph of b and tau."""
        tau = self.tau.detach() if isinstance(self.tau, Tensor) else self.tau
        return changed(self, b=self.b.detach(), tau=tau, last=last)

    def without_graph(self) -> "NonlinearProblem":
        return self if self.last is None else changed(self, last=None)

    def take(self, rows: Tensor) -> "NonlinearProblem":
        tau = self.tau[rows] if isinstance(self.tau, Tensor) and self.tau.dim() > 0 else self.tau
        return replace(self, function=self.function.take(rows), b=take(self.b, rows), tau=tau)

    def evaluate(self, w: Tensor) -> Tensor:
        """F(w), in the dtype of w.

        If `last` is given, it keeps the graph, and the returned value has none.
        """
        if self.last is None or torch.is_grad_enabled() or transforming():
            return self.call(w, self.function)
        self.last.forget()
        return self.last.keep(self.evaluate_with_graph(w))

    def evaluate_with_graph(self, w: Tensor) -> Evaluation:
        """F(w) with its graph, whether or not autograd is recording."""
        with torch.enable_grad():
            start = graph_start(w)
            return Evaluation(w, start, self.call(start, self.function))

    def call(self, w: Tensor, F: Function) -> Tensor:
        """F(w), counted, as autograd records it, in the dtype of w."""
        self.work.evaluations += 1
        argument = w if w.dtype == self.argument_dtype else w.to(self.argument_dtype)
        before = changes_of(argument)
        try:
            if self.autocast is None:
                y = F.call(argument, *F.conditions) if F.mix is None else F(argument)
            else:
                with torch.autocast(w.device.type, dtype=self.autocast):
                    y = F(argument)
        except RuntimeError as error:
            explain(error, F, argument)
            raise
        if changes_of(argument) != before:
            raise change_error()
        return y if isinstance(y, Tensor) and y.shape == w.shape and y.dtype == w.dtype else self._checked(y, w)

    def _checked(self, y: object, w: Tensor) -> Tensor:
        """The value of F in the dtype of w. Raises if its type, shape or dtype is wrong."""
        if not isinstance(y, Tensor) or y.shape != w.shape:
            raise wrong_shape(w, y)
        # Under autocast the dtype depends on the last operation of F.
        if y.dtype != self.argument_dtype and not (self.autocast is not None and y.is_floating_point()):
            raise ValueError(
                f"F must keep the dtype of its argument: it took {self.argument_dtype} and gave {y.dtype}. "
                "Convert its parameters, or b, so that they agree."
            )
        return y.to(w.dtype)

    def defect(self, w: Tensor) -> Tensor:
        return self.step_of(self.evaluate(w)) - w

    def step_of(self, image: Tensor) -> Tensor:
        """b + tau F(w), where F(w) is known."""
        if isinstance(self.tau, Tensor):
            return self.b + self.tau * image
        return torch.add(self.b, image, alpha=self.tau)

    def precondition(self, r: Tensor) -> Tensor:
        return divided_by_linear_part(r, self.tau, self.function.linear_part)

    def increment(self, w: Tensor) -> tuple[Tensor, float | Tensor]:
        return self.evaluate(w), self.tau

    @property
    def constant_precondition(self) -> float | None:
        return reciprocal_of_linear_part(self.tau, self.function.linear_part)

    def defect_and_image(self, w: Tensor) -> tuple[Tensor, Tensor | None]:
        image = self.step_of(self.evaluate(w))
        return image - w, image if self.function.linear_part is None else None


def divided_by_linear_part(r: Tensor, tau: float | Tensor, c: float | Tensor | LinearPart | None) -> Tensor:
    """r / (1 - tau c); r itself if c is None, or beyond the pole tau c = 1, where the division would flip the sign."""
    if c is None:
        return r
    if isinstance(c, LinearPart):
        return c.solve(r, tau.detach() if isinstance(tau, Tensor) else tau).detach()
    product = tau * c
    if not isinstance(product, Tensor):
        return r / (1 - product) if product < 1 else r
    return r / torch.where(product < 1, 1 - product, 1.0).detach()


def reciprocal_of_linear_part(tau: float | Tensor, c: float | Tensor | LinearPart | None) -> float | None:
    """The factor of `divided_by_linear_part`, if it is a number that is known without reading a tensor."""
    if c is None:
        return 1.0
    if isinstance(tau, Tensor) or isinstance(c, Tensor | LinearPart):
        return None
    return 1 / (1 - tau * c) if tau * c < 1 else 1.0


def full_precision(device: torch.device) -> AbstractContextManager[object]:
    """Turns autocast off: residuals and solver states must not be rounded to half precision."""
    if torch.is_autocast_enabled(device.type):
        return torch.autocast(device.type, enabled=False)
    return nullcontext()


def changed(record: T, **fields: Any) -> T:
    """A copy of a frozen dataclass with other fields, like `dataclasses.replace`, which takes several times as long: it
    initialises and checks the copy. Every layer makes a few such copies. Not for records with cached properties."""
    copy = object.__new__(type(record))
    copy.__dict__.update(record.__dict__)
    copy.__dict__.update(fields)
    return copy
