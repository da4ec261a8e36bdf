"""One pass through a block: the grid, and the steps on it."""

import dataclasses
import math
from collections.abc import Iterator, Sequence
from functools import cached_property

from torch import Tensor, nn

from resolvent.blocks.strategies.strategy import Strategy
from resolvent.equation.function import VectorField, as_vector_field
from resolvent.equation.options import SolveOptions
from resolvent.equation.place import Part, Place
from resolvent.equation.problem import changed
from resolvent.equation.solution import Solution
from resolvent.equation.structure import Structure
from resolvent.fields.samples_alone import SamplesAlone
from resolvent.schemes.guess import Guess
from resolvent.schemes.interval import Field, Interval, Number, per_row
from resolvent.schemes.scheme import Carry, Scheme, Step

# The number of past states that `extrapolate` uses.
_PAST = 3


@dataclasses.dataclass(frozen=True)
class Pass:
    """Everything that determines a pass except the input and the weights of the field.

    Attributes:
        field: F(t, y), that of the block.
        scheme: makes the steps.
        t0: start, a number, a 0-d tensor, or (batch,).
        h: step, a number, a 0-d tensor, or one for each sample, shaped to multiply states.
        num_steps: the number of steps.
        options: how resolvents are solved.
        strategy: the order in which layers are solved.
        guess: where the solves start.
        right_end: see `Interval`.
        reuse: whether a solve resumes the solver state of the previous one.
        stores: whether the graph of every layer is kept.
        grid: the times of the grid points relative to t0, numbers or a tensor (num_steps + 1,); None for equal steps.
        structure: of the states, if they consist of several tensors. The field is then one of flat states.
        alone: a proof that the field ignores the time and treats samples alone, where it declares nothing.
        part: the samples it is for, if these are not all of the batch.
    """

    field: Field
    scheme: Scheme
    t0: Number
    h: Number
    num_steps: int
    options: SolveOptions
    strategy: Strategy
    guess: Guess | None = None
    right_end: float = 1.0
    reuse: bool = False
    stores: bool = True
    grid: tuple[float, ...] | Tensor | None = None
    structure: Structure | None = None
    alone: SamplesAlone | None = None
    part: Part | None = None

    @cached_property
    def vector_field(self) -> VectorField:
        """F(t, y) with its declared and proved properties."""
        found = as_vector_field(self.field)
        if self.alone is None or not isinstance(self.field, nn.Module):
            return found
        proved = self.alone.holds_for(self.field, self.field)
        return dataclasses.replace(found, rowwise=True, autonomous=True) if proved else found

    @property
    def equal(self) -> bool:
        """Whether all steps of all samples have one length."""
        return self.grid is None and not (isinstance(self.h, Tensor) and self.h.dim() > 0)

    @property
    def evaluates_again(self) -> bool:
        """Whether the field is evaluated more than once per layer. An explicit layer that is not recomputed evaluates
        it once, so it may have batch norm and dropout."""
        return self.scheme.implicit or not self.stores

    def time(self, n: int) -> Number:
        """The time of the n-th grid point: a number, a 0-d tensor, or (batch,)."""
        if self.grid is not None:
            return self.t0 + self.grid[n]
        # A product, not a sum of steps, so that rounding does not accumulate.
        return self.t0 + n * per_row(self.h)

    def interval(self, n: int, *past: Tensor, before: Solution | None = None) -> Interval:
        """The n-th interval; `past` are the latest states at its start."""
        t = self.time(n)
        h = self.h if self.grid is None else self.grid[n + 1] - self.grid[n]
        options = changed(self.options, place=Place(n, self.num_steps, t, part=self.part))
        return Interval(self.vector_field, t, h, options, self.guess, past, before, self.right_end)

    def in_turn(self, numbers: Sequence[int], x: Tensor) -> Iterator[Step]:
        """The steps with these numbers, from the state x, solved one after the other."""
        carry = Carry((x,))
        past: tuple[Tensor, ...] = (x.detach(),)
        before: Solution | None = None
        for n in numbers:
            step = self.scheme.step(self.interval(n, *past, before=before), carry)
            yield step
            carry, past = step.carry, (step.state.detach(), *past)[:_PAST]
            if self.reuse and step.solutions:
                before = step.solutions[-1]

    def take(self, rows: Tensor, batch: int) -> "Pass":
        """The pass of the samples `rows` alone, out of so many; needs a rowwise field."""
        t0 = self.t0[rows] if isinstance(self.t0, Tensor) and self.t0.dim() > 0 else self.t0
        part = Part(rows, batch) if self.part is None else self.part.take(rows)
        return dataclasses.replace(self, t0=t0, part=part)

    def repeat(self, n: int, carry: Carry, end: Tensor) -> Step:
        """Repeats the n-th step with the state at its end known: the solves start at their solution."""
        x = carry.states[0].detach()

        def chord(interval: Interval, c: Number) -> Tensor:
            return x + c * (end - x)

        return self.scheme.step(dataclasses.replace(self.interval(n, x), guess=chord), carry)

    def back(self, n: int, y: Tensor) -> Tensor:
        """The state at the start of the n-th interval, from the state at its end."""
        interval = self.interval(n).reversed(y)
        return self.scheme.inverse.step(interval, Carry((y,))).state

    @property
    def tensors(self) -> dict[str, Tensor]:
        """Those of t0, h, the grid and the fields of the scheme that are tensors."""
        own = {"t0": self.t0, "h": self.h, "grid": self.grid}
        numbers = own | {name: getattr(self.scheme, name) for name in _names(self.scheme)}
        return {name: value for name, value in numbers.items() if isinstance(value, Tensor)}

    def with_tensors(self, tensors: dict[str, Tensor]) -> "Pass":
        """The same with other `tensors`."""
        own = {name: tensors[name] for name in ("t0", "h", "grid") if name in tensors}
        learned = {name: value for name, value in tensors.items() if name not in own}
        scheme = dataclasses.replace(self.scheme, **learned) if learned else self.scheme  # type: ignore[type-var]
        return dataclasses.replace(self, scheme=scheme, **own)  # type: ignore[arg-type]


def _names(scheme: Scheme) -> list[str]:
    return [f.name for f in dataclasses.fields(scheme)] if dataclasses.is_dataclass(scheme) else []


def as_start(t0: Number, x: Tensor) -> Number:
    """The start of a pass, checked."""
    if not isinstance(x, Tensor) or not x.is_floating_point() or x.dim() == 0:
        got = f"{x.dtype} of shape {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
        raise ValueError(f"x must be a tensor (batch, *shape) of a floating-point type, got {got}.")
    if not isinstance(t0, Tensor):
        if not isinstance(t0, int | float) or not math.isfinite(t0):
            raise ValueError(f"t0 must be a finite number or a tensor, got {t0!r}.")
        return float(t0)
    if t0.dim() > 0 and t0.shape != x.shape[:1]:
        raise ValueError(
            f"t0 must be one number or one for each of the {x.shape[0]} samples, got shape {tuple(t0.shape)}."
        )
    return t0.to(x)
