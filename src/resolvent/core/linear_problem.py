"""Linear systems with A = I - tau F'(w): Newton's correction and the backward pass, as problems like any other."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Self

import torch
from torch import Tensor

from resolvent.core.linearization import Linearization
from resolvent.core.problem import Problem, per_sample, rms
from resolvent.core.transforms import transforming


@dataclass(frozen=True, kw_only=True)
class LinearProblem(Problem):
    """Find u with A u = g, or A^T u = g: the resolvent equation u = g + tau F'(w) u of a linear field.

    Attributes:
        linearization: A at its point.
        transposed: whether the system is that of A^T.
    """

    linearization: Linearization
    transposed: bool

    linear = True

    @classmethod
    def of(cls, linearization: Linearization, g: Tensor, transposed: bool) -> Self:
        shared = {f.name: getattr(linearization.problem, f.name) for f in fields(Problem)}
        shared |= {"b": g, "work": linearization.work}
        return cls(**shared, linearization=linearization, transposed=transposed)

    @property
    def rowwise(self) -> bool:
        return False

    def apply(self, v: Tensor) -> Tensor:
        """A v, or A^T v."""
        if self.transposed:
            return self.linearization.transposed_product(v)
        return self.linearization.product(v)

    def defect(self, w: Tensor) -> Tensor:
        if self.transposed:
            return self.linearization.transposed_defect(self.b, w)
        return self.b - self.apply(w)

    def norm(self) -> Tensor:
        """(batch,), a lower estimate of |A| by a few steps of the power method."""
        v = noise(self.b).expand_as(self.b)
        largest = torch.zeros_like(rms(v))
        for _ in range(3):
            image = self.apply(v)
            growth = rms(image)
            largest = torch.maximum(largest, growth)
            v = image / per_sample(torch.where(growth == 0, 1.0, growth), image)
        return largest

    def orient(self, preconditioner: Callable[[Tensor], Tensor] | None) -> Callable[[Tensor], Tensor]:
        """The preconditioner for this system: the user's linear map M ~ A^{-1}, transposed if the system is, or the
        division by 1 - tau c that the field's linear part gives for nothing and that is its own transpose."""
        if preconditioner is None:
            return self.precondition
        return transpose(preconditioner, self.b) if self.transposed else preconditioner


def error_equation(problem: Problem, w: Tensor) -> LinearProblem:
    """A d = r + rounding: d is the error of w, up to higher orders, with the uncertainty that rounding leaves in it.

    The rounding of the residual is some eps |w|. It is given a direction that no structure of A is likely to favour.
    """
    with torch.no_grad():
        linearization = Linearization(problem, w)
        r = problem.step_of(linearization.image) - w
        uncertain = torch.finfo(problem.precision).eps * per_sample(rms(w), w)
        return LinearProblem.of(linearization, r + uncertain * noise(w), transposed=False)


def noise(like: Tensor) -> Tensor:
    """A fixed vector of unit root mean square for samples like (batch, *shape), of no pattern."""
    shape = like.shape[1:]
    phases = torch.arange(shape.numel(), dtype=torch.float64, device=like.device) * 2.399963229728653
    return (2**0.5 * phases.cos()).to(like.dtype).reshape(1, *shape)


def transpose(linear_map: Callable[[Tensor], Tensor], like: Tensor) -> Callable[[Tensor], Tensor]:
    """The transpose of a linear map given as a function."""
    if transforming():
        pullback = torch.func.vjp(linear_map, torch.zeros_like(like))[1]
        return lambda u: pullback(u)[0]
    with torch.enable_grad():
        argument = torch.zeros_like(like, requires_grad=True)
        image = linear_map(argument)
    return lambda u: torch.autograd.grad(image, argument, u, retain_graph=True)[0]
