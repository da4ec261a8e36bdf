"""`Autonomous`: any module as a vector field."""

import math
from collections.abc import Callable, Sequence

from torch import Tensor

from resolvent.equation.linear_part import LinearPart
from resolvent.fields.base import Field, Time, takes
from resolvent.fields.mlp import chain_of, closed_form, does_more
from resolvent.fields.samples_alone import SamplesAlone
from resolvent.spectral import Disc


class Autonomous(Field):
    """A module y -> F(y) as a field that does not depend on time.

    Declare here what cannot be detected. That samples are treated alone is proved where possible: for modules made of
    torch layers, in a `nn.Sequential` or in a `forward` that `torch.fx` can trace, with functions of each entry,
    products with weights, and sums, norms, softmaxes, slices, joins and shapes of the features of a sample.
    `rs.check_field` checks `rowwise`; the other declarations are not checked.

    Arguments:
        module: a module or a function that maps (batch, *shape) to the same shape.
        rowwise: True if the module treats each sample alone and all alike (no batch statistics, no closed-over
            samples). Solvers may then drop finished samples and repeat rows for a Jacobian. None proves it where
            possible, and otherwise does not assume it. A proof can need states with a number of dimensions, as for
            convolutions; others raise.
        linear_part: c in F(y) = c y + N(y), a number, a tensor or a `rs.fields.LinearPart`, see `Field.linear_part`.
        lipschitz: a Lipschitz constant of the module.
        shape: shape of one sample.
    """

    autonomous = True

    def __init__(
        self,
        module: Callable[[Tensor], Tensor],
        *,
        rowwise: bool | None = None,
        linear_part: float | Tensor | LinearPart | None = None,
        lipschitz: float | None = None,
        shape: Sequence[int] | None = None,
    ) -> None:
        super().__init__()
        if not callable(module):
            raise ValueError(f"module must be a module or a function y -> F(y), got {module!r}.")
        if isinstance(module, Field) or not takes(module, 1):
            name = getattr(module, "__name__", type(module).__name__)
            raise ValueError(f"module is called with y alone, but {name} is a field already: use it directly.")
        if lipschitz is not None and not (math.isfinite(lipschitz) and lipschitz >= 0):
            raise ValueError(f"lipschitz must be a finite number >= 0, got {lipschitz}")
        self.module = module
        self._samples_alone = SamplesAlone(module, rowwise)
        self.bound = lipschitz
        self.shape = None if shape is None else tuple(shape)
        self._linear_part: float | Tensor | LinearPart | None
        if isinstance(linear_part, Tensor):
            self.register_buffer("_linear_part", linear_part)
        else:
            self._linear_part = linear_part

    def forward(self, t: Time, y: Tensor) -> Tensor:
        if isinstance(y, Tensor) and y.dim() < self._samples_alone.least_rank:
            self._samples_alone.refuse(y)
        value: Tensor = self.module(y)
        return value

    @property
    def rowwise(self) -> bool:  # type: ignore[override]
        known = self.shape is None or len(self.shape) + 1 >= self._samples_alone.least_rank
        return known and self._samples_alone.holds_for(self, self.module, Autonomous)

    @property
    def value_and_jacobian(self) -> Callable[[Time, Tensor], tuple[Tensor, Tensor]] | None:
        if type(self).forward is not Autonomous.forward or does_more(self):
            return None
        layers = chain_of(self.module)
        return None if layers is None else closed_form(layers)

    @property
    def linear_part(self) -> float | Tensor | LinearPart | None:
        return self._linear_part

    def disc(self) -> Disc:
        return super().disc() if self.bound is None else Disc(0.0, self.bound)
