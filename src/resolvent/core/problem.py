"""The equation to solve, w = b + tau F(w), as the solvers see it."""

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Self

import torch
from torch import Tensor

from resolvent.core.evaluation import Evaluation
from resolvent.core.solution import Work
from resolvent.core.transforms import transforming

Function = Callable[[Tensor], Tensor]

# Below this many numbers a copy is cheaper than a question.
_WORTH_ASKING = 1 << 12


class Rowwise:
    """Declares that F acts on each sample alone and on all alike, so that it may be called with any number of rows.

    The solvers may then leave finished samples out of the batch and assemble Jacobians from one call with repeated
    rows. A plain callable is always called with the whole batch, because it may hide tensors with a row per sample.

    Arguments:
        function: called as function(w, *conditions).
        conditions: tensors (batch, ...) with a row per sample (a condition, a time), restricted along with w.
        linear_part: c, where F(w) = c w + N(w): a number or a tensor that broadcasts to the shape of one sample.
        jacobian: called like the function where states are vectors, (batch, n), and returns F(w) and its Jacobian,
            (batch, n, n), with no graph; for functions that know it better than autograd does.
    """

    def __init__(
        self,
        function: Callable[..., Tensor],
        *conditions: Tensor,
        linear_part: float | Tensor | None = None,
        jacobian: Callable[..., tuple[Tensor, Tensor]] | None = None,
    ) -> None:
        self.function = function
        self.conditions = conditions
        self.linear_part = linear_part
        self.jacobian = jacobian

    def __call__(self, w: Tensor) -> Tensor:
        return self.function(w, *self.conditions)

    def take(self, rows: Tensor) -> "Rowwise":
        """The same for the samples `rows` only."""
        return self._with([c[rows] for c in self.conditions])

    def repeat(self, copies: int) -> "Rowwise":
        """The same for the batch stacked `copies` times."""
        return self._with([c.repeat(copies, *(1,) * (c.dim() - 1)) for c in self.conditions])

    def _with(self, conditions: Sequence[Tensor]) -> "Rowwise":
        return Rowwise(self.function, *conditions, linear_part=self.linear_part, jacobian=self.jacobian)


class Coupled(Rowwise):
    """Several rows to a sample, on which one and the same f acts, and a matrix that mixes the outcomes:

        F(W)_i = sum_j a_ij f(W_j),      W (batch, rows, *shape).

    The stages of an implicit method and the layers of a network are coupled like that. One call of f serves all rows,
    and the Jacobian is known up to that of f, whose rows are few.

    Arguments:
        function: f, called as function(w, *conditions) with the rows of all samples, one after the other.
        coupling: a, (rows, rows).
        conditions: tensors (batch, rows, ...).
        jacobian: of f, see `Rowwise`.
    """

    def __init__(
        self,
        function: Callable[..., Tensor],
        coupling: Tensor,
        *conditions: Tensor,
        jacobian: Callable[..., tuple[Tensor, Tensor]] | None = None,
    ) -> None:
        super().__init__(function, *conditions, jacobian=jacobian)
        self.coupling = coupling

    def __call__(self, w: Tensor) -> Tensor:
        images = self.inner(w.flatten(0, 1)).reshape(w.shape)
        return torch.einsum("ij,bj...->bi...", self.coupling, images)

    def with_mix(self, coupling: Tensor) -> "Coupled":
        """The same f, mixed otherwise."""
        return Coupled(self.function, coupling, *self.conditions, jacobian=self.jacobian)

    @property
    def inner(self) -> Rowwise:
        """f on (batch * rows, *shape)."""
        return Rowwise(self.function, *(c.flatten(0, 1) for c in self.conditions), jacobian=self.jacobian)

    def _with(self, conditions: Sequence[Tensor]) -> "Coupled":
        return Coupled(self.function, self.coupling, *conditions, jacobian=self.jacobian)


def full_precision(device: torch.device) -> AbstractContextManager[object]:
    """Turns autocast off, where it is on: residuals and solver states are not to be rounded to half precision."""
    if torch.is_autocast_enabled(device.type):
        return torch.autocast(device.type, enabled=False)
    return nullcontext()


def flat(x: Tensor) -> Tensor:
    """(batch, *shape) to (batch, n)."""
    return x.reshape(x.shape[0], math.prod(x.shape[1:]))


def length(x: Tensor) -> Tensor:
    """The l2 norm of each sample: (batch, *shape) to (batch,)."""
    return torch.linalg.vector_norm(flat(x), dim=1)


def rms(x: Tensor) -> Tensor:
    """The root mean square of each sample: (batch, *shape) to (batch,)."""
    return length(x) / math.sqrt(math.prod(x.shape[1:]))


def per_sample(values: Tensor, like: Tensor) -> Tensor:
    """(batch,) values, shaped to multiply (batch, *shape)."""
    return values.reshape(-1, *(1,) * (like.dim() - 1))


def select(chosen: Tensor, yes: Tensor, no: Tensor) -> Tensor:
    """`yes` for the samples (batch,) that are chosen, else `no`.

    Mostly all samples agree. Where it is cheaper to find that out than to copy them, one of the two is returned.
    """
    if yes.numel() >= _WORTH_ASKING and yes.device.type == "cpu" and not transforming():
        if bool(chosen.all()):
            return yes
        if not bool(chosen.any()):
            return no
    return torch.where(per_sample(chosen, yes), yes, no)


def dot(x: Tensor, y: Tensor) -> Tensor:
    """The inner product of each sample: (batch,)."""
    return flat(x * y).sum(1)


class Tape:
    """Keeps the last evaluation of F with its graph, and no other.

    The last evaluation of a solve is as a rule the one at its solution, whose graph the backward pass needs: it is not
    made a second time.
    """

    def __init__(self) -> None:
        self._last: Evaluation | None = None

    def record(self, call: Function, w: Tensor) -> Tensor:
        """F(w), detached."""
        self._last = None  # The graph before is freed first.
        self._last = Evaluation(call, w)
        assert self._last.image is not None
        return self._last.image.detach()

    def take(self, w: Tensor, blind: bool) -> Evaluation | None:
        """The last evaluation, if it was one at w; of a tensor that looks another, a blind one does not ask."""
        last, self._last = self._last, None
        return last if last is not None and last.is_at(w, blind) else None


@dataclass(frozen=True)
class Problem:
    """Find w with w = b + tau F(w).

    Attributes:
        function: F.
        b: (batch, *shape), in at least single precision: solver states and residuals are kept in it even where F
            runs in half precision.
        tau: a number, or a tensor that multiplies (batch, *shape).
        linear_part: c, where F(w) = c w + N(w): a number or a tensor that multiplies (batch, *shape), or None.
        argument_dtype: what F is called with.
        precision: what F computes in, which bounds the residual that can be asked for. Where it is not that of its
            argument, F runs under autocast; the solvers never do.
        tape: keeps the graph of the last evaluation, where one is given.
    """

    function: Function
    b: Tensor
    tau: float | Tensor
    linear_part: float | Tensor | None
    argument_dtype: torch.dtype
    precision: torch.dtype
    work: Work = field(default_factory=Work)
    tape: Tape | None = None

    linear = False

    @property
    def size(self) -> int:
        """The number of unknowns of one sample."""
        return math.prod(self.b.shape[1:])

    @property
    def rowwise(self) -> bool:
        return isinstance(self.function, Rowwise)

    @property
    def requires_grad(self) -> bool:
        """Whether b or tau does."""
        return self.b.requires_grad or (isinstance(self.tau, Tensor) and self.tau.requires_grad)

    def detach(self) -> Self:
        tau = self.tau.detach() if isinstance(self.tau, Tensor) else self.tau
        return replace(self, b=self.b.detach(), tau=tau)

    def take(self, rows: Tensor) -> Self:
        """The problem of the samples `rows` alone; needs a `Rowwise` function. Work goes on one account."""
        assert isinstance(self.function, Rowwise)
        tau = self.tau[rows] if isinstance(self.tau, Tensor) and self.tau.dim() > 0 else self.tau
        return replace(self, function=self.function.take(rows), b=self.b[rows], tau=tau)

    def evaluate(self, w: Tensor) -> Tensor:
        """F(w), in the dtype of w."""
        self.work.evaluations += 1
        if self.tape is None or torch.is_grad_enabled() or transforming():
            return self._call(self.function, w)
        return self.tape.record(self._call_function, w)

    def evaluate_instead(self, function: Function, w: Tensor) -> Tensor:
        """Another form of F, such as that for repeated rows, with the same care."""
        self.work.evaluations += 1
        return self._call(function, w)

    def evaluate_with_graph(self, w: Tensor) -> Evaluation:
        """F(w) with its graph, whether or not autograd is recording."""
        self.work.evaluations += 1
        return Evaluation(self._call_function, w)

    def _call_function(self, w: Tensor) -> Tensor:
        return self._call(self.function, w)

    def _call(self, function: Function, w: Tensor) -> Tensor:
        if self.precision == self.argument_dtype:
            y = function(w.to(self.argument_dtype))
        else:
            with torch.autocast(w.device.type, dtype=self.precision):
                y = function(w.to(self.argument_dtype))
        if not isinstance(y, Tensor) or y.shape != w.shape:
            got = tuple(y.shape) if isinstance(y, Tensor) else type(y).__name__
            raise ValueError(f"F must map (batch, *shape) to the same shape: it took {tuple(w.shape)} and gave {got}.")
        if y.dtype not in (self.argument_dtype, self.precision):
            raise ValueError(
                f"F must keep the dtype of its argument: it took {self.argument_dtype} and gave {y.dtype}. "
                "Convert its parameters, or b, so that they agree."
            )
        return y.to(w.dtype)

    def defect(self, w: Tensor) -> Tensor:
        """b + tau F(w) - w, which vanishes at the solution."""
        return self.step_of(self.evaluate(w)) - w

    def step_of(self, image: Tensor) -> Tensor:
        """b + tau F(w), where F(w) is known."""
        if isinstance(self.tau, Tensor):
            return self.b + self.tau * image
        return torch.add(self.b, image, alpha=self.tau)

    def precondition(self, r: Tensor) -> Tensor:
        """r / (1 - tau c), where F(w) = c w + N(w) declares its linear part, else r itself.

        The fixed-point step w + precondition(defect(w)) is then the linearly implicit one,
        (b + tau N(w)) / (1 - tau c).
        """
        if self.linear_part is None:
            return r
        # Beyond the pole tau c = 1 the division would only point the wrong way.
        product = self.tau * self.linear_part
        if not isinstance(product, Tensor):
            return r / (1 - product) if product < 1 else r
        return r / torch.where(product < 1, 1 - product, 1.0).detach()
