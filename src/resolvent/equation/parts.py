"""Tests of the parts of a sample, beside its norm, which hides small parts."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from resolvent.equation.norms import flat, length
from resolvent.equation.torch_func import any_true

if TYPE_CHECKING:
    from resolvent.equation.problem import Problem
    from resolvent.equation.solver import State


class PartTest(ABC):
    """Whether every part of a sample is solved for."""

    final = False
    """Whether a sample whose norm is at its rounding, and falls no further, fails for good."""

    def size(self, r: Tensor) -> Tensor:
        """(batch,), the size of a defect for a solver that stops at the tolerance, which others overshoot."""
        return length(r)

    def unit(self, r: Tensor) -> float:
        """What to divide sizes by, for a root mean square."""
        return math.sqrt(math.prod(r.shape[1:]))

    def norm(self, r: Tensor) -> Tensor:
        """The size as a root mean square."""
        return self.size(r) / self.unit(r)

    @abstractmethod
    def within(self, wanted: Tensor, problem: "Problem", state: "State") -> Tensor:
        """Mask (batch,) of the `wanted` samples whose parts are all within their tolerances."""


@dataclass(frozen=True, eq=False)
class Components(PartTest):
    """|r_i| <= atol_i + rtol max(|b_i|, |w_i|) for every component i. `atol` has the shape of a sample."""

    atol: Tensor
    rtol: float

    def within(self, wanted: Tensor, problem: "Problem", state: "State") -> Tensor:
        if not any_true(wanted):
            return wanted
        w, r = state.w, problem.defect(state.w) if state.r is None else state.r
        return wanted & flat(r.abs() <= self.atol + self.rtol * torch.maximum(problem.b.abs(), w.abs())).all(1)
