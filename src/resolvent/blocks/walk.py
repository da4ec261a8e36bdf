"""One pass through a block: the grid, and the steps on it."""

import dataclasses
from collections.abc import Iterator

from torch import Tensor

from resolvent.blocks.attempts import Attempts
from resolvent.blocks.compiled import Compiled
from resolvent.core.solution import Solution
from resolvent.errors import ConvergenceError
from resolvent.schemes.guess import Guess
from resolvent.schemes.interval import Field, Interval, Number
from resolvent.schemes.scheme import Carry, Scheme, Step
from resolvent.schemes.solving import Solving
from resolvent.schemes.theta import Theta
from resolvent.solvers.newton import Newton

# What `extrapolate` looks at.
_PAST = 3


@dataclasses.dataclass(frozen=True)
class Walk:
    """Everything that determines a pass but the input and the weights of the field.

    Attributes:
        field: F(t, y).
        scheme: makes the steps.
        t0: start, a number, a tensor of no dimension, or (batch,).
        h: step, a number or a tensor of no dimension.
        num_steps: how many.
        solving: how resolvents are solved.
        guess: where the solves start.
        right_end: see `Interval`.
        reuse: whether a solve starts from what the one before it learned.
        group: how many steps are solved for together; more than one takes a `Theta` scheme.
        compiled: solves for a group, where it can.
        attempts: knows which groups are worth it; None tries all.
    """

    field: Field
    scheme: Scheme
    t0: Number
    h: Number
    num_steps: int
    solving: Solving
    guess: Guess | None
    right_end: float = 1.0
    reuse: bool = False
    group: int = 1
    compiled: Compiled | None = None
    attempts: Attempts | None = None

    def interval(self, n: int, *past: Tensor, before: Solution | None = None) -> Interval:
        """The n-th interval, at whose start the states `past` are the latest."""
        # A product, not a sum of steps: the grid carries no accumulated rounding.
        t = self.t0 + n * self.h
        return Interval(self.field, t, self.h, self.solving, self.guess, past, before, self.right_end)

    def steps(self, x: Tensor) -> Iterator[Step]:
        """All steps, one after the other."""
        return self._groups(x) if self.group > 1 else self._in_turn(range(self.num_steps), x)

    def _in_turn(self, numbers: range, x: Tensor) -> Iterator[Step]:
        """The steps of these numbers, from the state x; each is solved for when the one before it is known."""
        carry = Carry((x,))
        past: tuple[Tensor, ...] = (x.detach(),)
        before: Solution | None = None
        for n in numbers:
            step = self.scheme.step(self.interval(n, *past, before=before), carry)
            yield step
            carry, past = step.carry, (step.state.detach(), *past)[:_PAST]
            if self.reuse and step.solutions:
                before = step.solutions[-1]

    def _groups(self, x: Tensor) -> Iterator[Step]:
        """All steps, in groups that are solved for together; one by one where that fails."""
        assert isinstance(self.scheme, Theta)
        together = dataclasses.replace(
            self, solving=dataclasses.replace(self.solving, solver=Newton(), on_failure="raise")
        )
        for start in range(0, self.num_steps, self.group):
            numbers = range(start, min(start + self.group, self.num_steps))
            intervals = [together.interval(n) for n in numbers]
            steps = None if self.compiled is None else self.compiled.steps(self.scheme, start, intervals, x)
            if steps is None:
                steps = self._together(start, intervals, x) or tuple(self._in_turn(numbers, x))
                if self.compiled is not None:
                    self.compiled.learn(start, steps)
            yield from steps
            x = steps[-1].state

    def _together(self, start: int, intervals: list[Interval], x: Tensor) -> tuple[Step, ...] | None:
        """The steps as the solution of one equation; None where it is not found, or not worth a try."""
        assert isinstance(self.scheme, Theta)
        if self.attempts is not None and not self.attempts.worth(start):
            return None
        try:
            steps = self.scheme.steps(intervals, x)
        except ConvergenceError:
            steps = None
        if self.attempts is not None:
            self.attempts.note(start, steps is not None)
        return steps

    def repeat(self, n: int, carry: Carry, end: Tensor) -> Step:
        """The n-th step once more, where the state at its end is known: the solves begin at their solution."""
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
        """The tensors among the numbers: t0, h and whatever the scheme learns."""
        numbers = {"t0": self.t0, "h": self.h, **{name: getattr(self.scheme, name) for name in _names(self.scheme)}}
        return {name: value for name, value in numbers.items() if isinstance(value, Tensor)}

    def with_tensors(self, tensors: dict[str, Tensor]) -> "Walk":
        """The same with other `tensors`."""
        own = {name: tensors[name] for name in ("t0", "h") if name in tensors}
        learned = {name: value for name, value in tensors.items() if name not in own}
        scheme = dataclasses.replace(self.scheme, **learned) if learned else self.scheme  # type: ignore[type-var]
        return dataclasses.replace(self, scheme=scheme, **own)  # type: ignore[arg-type]


def _names(scheme: Scheme) -> list[str]:
    return [f.name for f in dataclasses.fields(scheme)] if dataclasses.is_dataclass(scheme) else []
