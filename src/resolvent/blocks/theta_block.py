"""The implicit residual block of the paper."""

import math

import torch
from torch import Tensor, nn

from resolvent.blocks.attempts import Attempts
from resolvent.blocks.block import Block
from resolvent.blocks.compiled import Compiled
from resolvent.blocks.memory import Memory, Store
from resolvent.core.adjoint import Adjoint, ImplicitAdjoint, UnrolledAdjoint
from resolvent.core.solver import Solver
from resolvent.core.stopping import Stopping
from resolvent.core.transforms import forward_mode, transforming
from resolvent.fields import Bounded
from resolvent.schemes.guess import Guess
from resolvent.schemes.interval import Field, Number
from resolvent.schemes.theta import Theta

# How close a learned theta may come to 0, where y = x + (w - x) / theta has a pole, and to 1, where its inverse has.
_MARGIN = 1e-3
MODES = ("auto", "sequential", "parallel", "compiled")
# Unknowns of a group of layers: beyond, factorising its matrix costs more than the evaluations that it saves.
_LARGEST = 64
# Layers of a group: fewer gain nothing.
_FEWEST = 3
# Numbers in the matrices of all samples of a group. Beyond, time goes into the matrices rather than into calling
# PyTorch, and one sample in many that has to be solved for layer by layer is enough to lose the rest.
_WORTHWHILE = 1 << 15


class ThetaBlock(Block):
    """A `Block` of theta layers, y = x + h F((1 - theta) x + theta y), as many as there are steps.

    theta = 0 is an ordinary residual network; theta >= 1/2 is stable for every field that dissipates, however stiff.
    The parameters are those of the field for every theta.

    Arguments:
        field: F(t, y); `rs.fields.Piecewise` gives every layer weights of its own.
        theta: a number in [0, 1], or a tensor of no dimension in (0, 1].
        num_steps: number of layers.
        horizon: h times their number, see `Block`.
        form: "midpoint" or "trapezoid", see `rs.schemes.Theta`.
        solver: see `Block`, as are stopping, adjoint, memory, on_failure, guess and reuse.
        learn_theta: whether theta is learned, starting at the given number; it is the sigmoid of a parameter
            `raw_theta`, scaled to stay between 0.001 and 0.999 however far the parameter is driven.
        mode: "sequential" solves for one layer after the other. "parallel" solves for all layers at once, in groups of
            at most 64 unknowns, by Newton's method: for few unknowns an evaluation of the field costs the same for one
            layer and for many, so that the block is several times as fast. The results agree to the tolerance, and
            where a group does not converge, its layers are solved for one after the other. "auto" is parallel where it
            can be: for the midpoint form and a field that treats samples alone, and where neither a solver, a guess
            nor a memory policy was chosen, in groups whose matrices have no more than 32,768 entries, of all samples;
            groups of less than three layers are not made, and one that has failed is left out of some passes.
            "compiled" is parallel with the whole solve and its derivative compiled by `torch.compile`, for small
            systems again several times as fast, after some seconds for each new batch size; first derivatives only,
            from a graph that can be walked once, and for fields whose `with_jacobian` is known, such as
            `rs.fields.MLP`.

    Reference: Reshniak & Webster, Robust learning with implicit residual networks.
    """

    def __init__(
        self,
        field: Field,
        theta: Number = 0.5,
        num_steps: int = 5,
        horizon: Number = 1.0,
        form: str = "midpoint",
        solver: Solver | None = None,
        stopping: Stopping | None = None,
        adjoint: Adjoint | None = None,
        memory: str | Memory = "store",
        *,
        learn_theta: bool = False,
        on_failure: str = "raise",
        guess: str | Guess | None = None,
        reuse: bool = False,
        mode: str = "auto",
    ) -> None:
        super().__init__(
            field,
            Theta(theta, form),
            num_steps,
            horizon,
            solver=solver,
            stopping=stopping,
            adjoint=adjoint,
            on_failure=on_failure,
            guess=guess,
            reuse=reuse,
            memory=memory,
        )
        self.form = form
        self.mode = mode
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
        if mode not in MODES:
            raise ValueError(f"mode must be one of {MODES}, got {mode!r}.")
        obstacle = self._obstacle() if mode in ("parallel", "compiled") else None
        obstacle = obstacle or (self._compile_obstacle() if mode == "compiled" else None)
        if obstacle:
            raise ValueError(f'mode="{mode}" solves for all layers by Newton\'s method, which {obstacle}.')
        self._compiled = Compiled() if mode == "compiled" else None
        self._attempts = Attempts() if mode == "auto" else None

    def _obstacle(self) -> str | None:
        """What keeps the layers from being solved for together."""
        if self.form != "midpoint":
            return f"takes the midpoint form, got {self.form!r}"
        if not getattr(self.field, "rowwise", False):
            return f"takes a field that treats samples alone; {type(self.field).__name__} does not say that it does"
        if not isinstance(self.memory, Store):
            return f"keeps all layers in memory, got {self.memory!r}"
        if self.solving.solver is not None or self.reuse or self.guess is not None:
            return "leaves no choice of the solver, of its starting guess or of its reuse"
        if isinstance(self.solving.adjoint, UnrolledAdjoint):
            return "is not differentiated through its iterations"
        if self.solving.stopping is not None and self.solving.stopping.blind:
            return "has to look whether it has converged, got check_every=0"
        return None

    def _compile_obstacle(self) -> str | None:
        """What keeps the solve for all layers from being compiled."""
        if getattr(self.field, "with_jacobian", None) is None:
            return f"is compiled for a field with a Jacobian in closed form; {type(self.field).__name__} has none"
        if self.solving.adjoint not in (None, ImplicitAdjoint()):
            return f"is compiled with first derivatives by rs.ImplicitAdjoint() alone, got {self.solving.adjoint}"
        return None

    def _group(self, x: Tensor) -> int:
        explicit = not isinstance(self.theta, Tensor) and self.theta == 0
        if self.mode == "sequential" or explicit or transforming() or forward_mode() or self._obstacle():
            return 1
        unknowns = x[0].numel() if len(x) else 1
        most = _LARGEST // max(1, unknowns)
        if self.mode == "auto":
            most = min(most, math.isqrt(_WORTHWHILE // max(1, len(x))) // max(1, unknowns))
            most = most if most >= _FEWEST else 1
        # Groups of like size: the last one is not to be a lone layer.
        return math.ceil(self.num_steps / math.ceil(self.num_steps / max(1, most)))

    def _refuse_poles(self) -> None:
        """Refuses a bounded field whose spectrum could reach 1 / (theta h), where the equation is not solvable."""
        theta, h = (float(torch.as_tensor(value).detach()) for value in (self.theta, self.step_size))
        if h > 0:
            for module in self.modules():
                if isinstance(module, Bounded):
                    module.check_pole(theta, h)

    @property
    def theta(self) -> Number:
        """The present theta; a tensor where it is learned."""
        return _MARGIN + (1 - 2 * _MARGIN) * torch.sigmoid(self.raw_theta) if self.learn_theta else self._theta

    @property
    def scheme(self) -> Theta:
        return Theta(self.theta, self.form)

    def extra_repr(self) -> str:
        theta = f"{float(torch.as_tensor(self.theta).detach()):g}"
        return f"theta={theta}, {self.form}, {self._grid_repr()}"
