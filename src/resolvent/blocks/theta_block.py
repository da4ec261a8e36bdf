"""The implicit residual block of the paper."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from resolvent.blocks.block import Block
from resolvent.blocks.memory import Memory
from resolvent.blocks.strategies import Strategy, as_strategy
from resolvent.equation.adjoint import Adjoint
from resolvent.equation.failure import Policy
from resolvent.equation.solver import Plan
from resolvent.equation.stopping import StoppingRule
from resolvent.fields import Bounded
from resolvent.schemes.guess import Guess
from resolvent.schemes.interval import Field, Number
from resolvent.schemes.theta import Theta

# The least distance of a learned theta from 0, where y = x + (w - x) / theta has a pole, and from 1, where its inverse
# has one.
_MARGIN = 1e-3


class ThetaBlock(Block):
    """A `Block` of theta layers, y = x + h F((1 - theta) x + theta y), one per step.

    theta = 0 is an ordinary residual network; theta >= 1/2 is stable for every dissipative field, however stiff. For
    every theta the parameters are those of the field.

    Arguments:
        field: F(t, y); `rs.fields.Piecewise` gives every layer its own weights.
        theta: a number in [0, 1], or a 0-d tensor in (0, 1]. `block.theta = 0.3` changes it later.
        num_steps: number of layers; None takes 5.
        horizon: h times their number, see `Block`.
        times: the grid of unequal layers, in place of num_steps and horizon, see `Block`.
        form: "midpoint" or "trapezoid", see `rs.schemes.Theta`.
        solver, stopping, adjoint, memory, on_failure, guess, reuse: see `Block`.
        learn_theta: whether theta is learned, starting at the given number. It is the sigmoid of a parameter
            `raw_theta`, scaled to stay between 0.001 and 0.999.
        mode: the strategy, by name or as an object of `rs.blocks`. "sequential", `LayerByLayer()`, solves one layer
            after the other. "parallel", `AllTogether()`, solves all layers at once, in groups of limited size, and
            "compiled", `Compiled()`, does so by a compiled function. "auto" solves all layers together if the form
            is midpoint, the field treats samples alone, no solver, guess or memory policy was chosen, and three or more
            layers fit into a group. In every mode the result of a sample depends only on that sample, the weights and
            these settings.

    Reference: Reshniak & Webster, Robust learning with implicit residual networks.
    """

    def __init__(
        self,
        field: Field,
        theta: Number = 0.5,
        num_steps: int | None = None,
        horizon: Number | None = None,
        form: str = "midpoint",
        solver: Plan | None = None,
        stopping: StoppingRule | None = None,
        adjoint: Adjoint | None = None,
        memory: str | Memory = "store",
        *,
        times: Sequence[float] | Tensor | None = None,
        learn_theta: bool = False,
        on_failure: Policy = "raise",
        guess: str | Guess | None = None,
        reuse: bool = False,
        mode: str | Strategy = "auto",
    ) -> None:
        super().__init__(
            field,
            Theta(theta, form),
            num_steps,
            horizon,
            times=times,
            solver=solver,
            stopping=stopping,
            adjoint=adjoint,
            on_failure=on_failure,
            guess=guess,
            reuse=reuse,
            memory=memory,
        )
        self.form = form
        self.learn_theta = learn_theta
        self._theta = theta
        if not isinstance(learn_theta, bool):
            raise ValueError(f"learn_theta must be True or False, got {learn_theta!r}.")
        if learn_theta:
            if isinstance(theta, Tensor) or not _MARGIN < theta < 1 - _MARGIN:
                raise ValueError(
                    f"a learned theta must start at a number between {_MARGIN} and {1 - _MARGIN}, got {theta!r}."
                )
            self.raw_theta = nn.Parameter(torch.tensor(math.log((theta - _MARGIN) / (1 - _MARGIN - theta))))
        self._refuse_poles()
        self.strategy = as_strategy(mode)
        self.strategy.check(self._settings(field))

    def _refuse_poles(self) -> None:
        """Raises if the spectrum of a bounded field could reach 1 / (theta h), where the equation is not solvable."""
        theta, h = float(torch.as_tensor(self.theta).detach()), self.longest_step
        if h > 0:
            for module in self.modules():
                if isinstance(module, Bounded):
                    module.check_pole(theta, h)

    @property
    def theta(self) -> Number:
        """The current theta; a tensor if it is learned."""
        return _MARGIN + (1 - 2 * _MARGIN) * torch.sigmoid(self.raw_theta) if self.learn_theta else self._theta

    @theta.setter
    def theta(self, theta: Number) -> None:
        """Sets theta for later passes, for example to increase it during training, starting from 0."""
        if self.learn_theta:
            raise ValueError(
                f"theta is learned here, and cannot be set to {theta!r}: make the block without learn_theta."
            )
        Theta(theta, self.form)  # Checks the value.
        self._theta = theta
        self._refuse_poles()
        self.strategy.check(self._settings(self.field))

    @property
    def scheme(self) -> Theta:
        return Theta(self.theta, self.form)

    def extra_repr(self) -> str:
        theta = f"{float(torch.as_tensor(self.theta).detach()):g}"
        return f"theta={theta}, {self.form}, {self._grid_repr()}"
