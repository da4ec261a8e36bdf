"""A block: several steps of one scheme through one field."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor, nn

from resolvent.blocks.check_field import can_check, check_field
from resolvent.blocks.memory import Memory, as_memory
from resolvent.blocks.pass_ import Pass, Trajectory, bracket, hermite
from resolvent.blocks.strategies import LayerByLayer, Strategy
from resolvent.blocks.weights import frozen_weights, outside_inference
from resolvent.equation.adjoint import Adjoint
from resolvent.equation.failure import Mask, Policy
from resolvent.equation.norms import per_sample
from resolvent.equation.solver import Plan
from resolvent.equation.stopping import StoppingRule
from resolvent.equation.structure import Structured, structure_of
from resolvent.fields.base import check_callable_field
from resolvent.fields.piecewise import right_end, share_horizon
from resolvent.schemes.guess import Guess, as_guess
from resolvent.schemes.interval import Field, Number
from resolvent.schemes.scheme import Scheme, Step
from resolvent.solvers.resolve import solve_options


class Block(nn.Module):
    """Integrates y' = F(t, y) over a horizon by equal steps. With the explicit Euler scheme it is a residual network.

    All weights are those of the field. They do not change during a pass: parametrized weights are computed once. The
    first call in training mode checks the field, see `rs.check_field`; for implicit schemes that takes two more
    evaluations, and one of a single sample.

    Arguments:
        field: F, called with the time (a number, a 0-d tensor or (batch,)) and the state (batch, *shape), or a
            structure of several tensors, see `forward`.
        scheme: makes the steps, such as `rs.schemes.Theta(0.5)` or `rs.schemes.RungeKutta(rs.schemes.tableaux.RADAU5)`.
        num_steps: the number of steps.
        horizon: their total length, a number or a 0-d tensor, of any sign; h = horizon / num_steps. An nn.Parameter is
            learned.
        solver: for the implicit equations; None takes `Auto()`.
        stopping: its tolerance, which holds for the equation of a step; None takes `Stopping()`.
        adjoint: how solutions are differentiated; None takes `ImplicitAdjoint()`.
        on_failure: "raise", "warn", "ignore" or "mask" for solves that do not converge, see `rs.resolve`. A sample that
            is masked in one layer gets no gradient from the whole block.
        guess: where solves start: "previous" state, "explicit" predictor, "extrapolate" along the trajectory, or a
            function (interval, c) of your own, see `resolvent.schemes.guess`. None starts at the solution for the
            field's linear part if it declares one, else at the previous state.
        reuse: whether a solve starts from the factors or the quasi-Newton corrections of the previous one.
        memory: "store", "checkpoint", "reversible", or an object such as `rs.blocks.Reversible(tolerance=1e-4)`.

    Reference: Reshniak & Webster, Robust learning with implicit residual networks, equation (13).
    """

    horizon: Number
    strategy: Strategy = LayerByLayer()
    _checked: bool = False

    def __init__(
        self,
        field: Field,
        scheme: Scheme,
        num_steps: int = 5,
        horizon: Number = 1.0,
        *,
        solver: Plan | None = None,
        stopping: StoppingRule | None = None,
        adjoint: Adjoint | None = None,
        on_failure: Policy = "raise",
        guess: str | Guess | None = None,
        reuse: bool = False,
        memory: str | Memory = "store",
    ) -> None:
        super().__init__()
        check_callable_field(field)
        if not isinstance(scheme, Scheme):
            raise ValueError(f"scheme must be an object such as rs.schemes.Theta(0.5), got {scheme!r}.")
        if not isinstance(num_steps, int) or isinstance(num_steps, bool) or num_steps < 1:
            raise ValueError(f"num_steps must be a whole number, 1 or more, got {num_steps!r}.")
        if not isinstance(reuse, bool):
            raise ValueError(f"reuse must be True or False, got {reuse!r}.")
        self.field = field
        self._scheme = scheme
        self.num_steps = num_steps
        self.horizon = _horizon(horizon)
        share_horizon(field, self.horizon)
        self.options = solve_options(solver, stopping, adjoint, on_failure)
        self.guess = as_guess(guess)
        self.reuse = reuse
        self.memory = as_memory(memory)
        if self.memory.inverts_steps:
            _ = scheme.inverse  # Raises here, not in the first backward pass.

    @property
    def scheme(self) -> Scheme:
        """The scheme of the next pass."""
        return self._scheme

    @property
    def step_size(self) -> Number:
        """h = horizon / num_steps."""
        return self.horizon / self.num_steps

    def forward(self, x: Structured, t0: Number = 0.0) -> Structured:
        """The state at t0 + horizon.

        Arguments:
            x: (batch, *shape), the state at t0. Or several such tensors of one dtype and device, as a tuple, list,
                dictionary or named tuple: the field is then called with such a structure and returns one.
            t0: a number, a 0-d tensor, or (batch,).

        Returns:
            Like x.
        """
        with self._opened(x, t0) as (pass_, start):
            solved = _Solved(self.options.on_failure)
            for step in self.memory.steps(pass_, start, all_states=False):
                state = step.state
                solved.note(step)
            state = solved.mask(state)
            return state if pass_.structure is None else pass_.structure.unflatten(state)

    def trajectory(self, x: Structured, t0: Number = 0.0) -> Trajectory:
        """The states at all grid points, and the solves; the arguments are those of `forward`."""
        with self._opened(x, t0) as (pass_, start):
            trajectory = self._trajectory(pass_, start)
            return trajectory if pass_.structure is None else trajectory.structured(pass_.structure)

    def interpolate(self, x: Structured, times: Tensor | Sequence[float], t0: Number = 0.0) -> Structured:
        """The states at any times between t0 and t0 + horizon.

        Between two grid points it is the cubic Hermite interpolant of their states and the slopes of the field there,
        which is accurate to order 4. It costs two evaluations per step.

        Arguments:
            x: the state at t0, as for `forward`.
            times: (count,), or (count, batch) for one set of times per sample.
            t0: a number, a 0-d tensor, or (batch,).

        Returns:
            (count, batch, *shape), in the structure of x.
        """
        with self._opened(x, t0) as (pass_, start):
            states = self._trajectory(pass_, start).states
            pairs = [(pass_.interval(n), states[n], states[n + 1]) for n in range(self.num_steps)]
            left = torch.stack([interval.evaluate(0.0, start) for interval, start, _ in pairs])
            right = torch.stack([interval.evaluate(1.0, end) for interval, _, end in pairs])
        found = _between(pass_, states, left, right, torch.as_tensor(times, dtype=states.dtype, device=states.device))
        return found if pass_.structure is None else pass_.structure.unflatten(found)

    @contextmanager
    def _opened(self, x: Structured, t0: Number = 0.0) -> Iterator[tuple[Pass, Tensor]]:
        """One pass, with the field frozen and checked, and the input as one tensor; the arguments are those of
        `forward`."""
        with outside_inference(x, t0) as (x, t0), frozen_weights(self.field) as field:
            if isinstance(x, Tensor):
                yield self._pass(x, t0, field), x
                return
            structure = structure_of(x, "x")
            with structure.restored_errors():
                flat = structure.flatten(x, "x")
                pass_ = replace(self._pass(flat, t0, structure.field(field)), structure=structure)
                self.strategy.check(pass_)  # What was checked before is the field itself.
                yield pass_, flat

    def extra_repr(self) -> str:
        return f"{type(self.scheme).__name__}, {self._grid_repr()}"

    def _grid_repr(self) -> str:
        return f"num_steps={self.num_steps}, horizon={float(torch.as_tensor(self.horizon).detach()):g}"

    def _trajectory(self, pass_: Pass, x: Tensor) -> Trajectory:
        solved = _Solved(self.options.on_failure)
        steps = list(self.memory.steps(pass_, x, all_states=True))
        for step in steps:
            solved.note(step)
        solutions = tuple(solution for step in steps for solution in step.solutions)
        states = [x, *(solved.mask(step.state) for step in steps)]
        return Trajectory(_times(pass_, x), torch.stack(states), solutions)

    def _check_once(self, x: Tensor, pass_: Pass) -> None:
        """Runs `check_field` on the first call in training mode, if the field is evaluated more than once per layer.

        An explicit layer that is not recomputed evaluates it once, so it may have batch norm and dropout.
        """
        if self._checked or not self.training or len(x) < 2 or not can_check(x):
            return
        if self.scheme.implicit or not self.memory.keeps_graph:
            check_field(pass_.field, x, pass_.t0)
        self._checked = True

    def _pass(self, x: Tensor, t0: Number, field: Field) -> Pass:
        """A pass with the frozen `field`, checked."""
        share_horizon(self.field, self.horizon)
        share_horizon(field, self.horizon)  # The field is a copy, made before, if weights are normalised.
        t0 = _start(t0, x)
        pass_ = self._settings(field, t0, right_end(field, x.dtype))
        self.memory.check(pass_)
        self._check_once(x, pass_)
        return pass_

    def _settings(self, field: Field, t0: Number = 0.0, right: float = 1.0) -> Pass:
        """A pass from t0, for any input."""
        return Pass(
            field,
            self.scheme,
            t0,
            self.step_size,
            self.num_steps,
            self.options,
            self.strategy,
            self.guess,
            right,
            self.reuse,
            self.memory.keeps_graph,
        )


class _Solved:
    """Tracks which samples converged in all layers so far; under a `Mask` the others get no gradient."""

    def __init__(self, on_failure: Policy) -> None:
        self._masks = isinstance(on_failure, Mask)
        self._failed: Tensor | None = None

    def note(self, step: Step) -> None:
        if not self._masks:
            return
        for solution in step.solutions:
            if not solution.all_converged:
                failed = ~solution.converged
                self._failed = failed if self._failed is None else self._failed | failed

    def mask(self, state: Tensor) -> Tensor:
        if self._failed is None:
            return state
        return torch.where(per_sample(self._failed, state), state.detach(), state)


def _between(pass_: Pass, states: Tensor, left: Tensor, right: Tensor, times: Tensor) -> Tensor:
    """The states (count, batch, *shape) at times (count,) or (count, batch), from those at the grid points and the
    slopes of the field at both ends of each step."""
    like = states[0]
    times = times[:, None] if times.dim() == 1 else times
    t0, h = (torch.as_tensor(number, dtype=like.dtype, device=like.device) for number in (pass_.t0, pass_.h))
    step, s = bracket(times, t0, h, pass_.num_steps)
    step, s = torch.broadcast_tensors(step, s, torch.empty(len(like), device=like.device))[:2]
    rows = torch.arange(len(like), device=like.device)
    s = s.reshape(*s.shape, *[1] * (like.dim() - 1))
    return hermite(s, h, (states[step, rows], states[step + 1, rows]), (left[step, rows], right[step, rows]))


def _times(pass_: Pass, x: Tensor) -> Tensor:
    """The times of the grid points."""
    numbers = [pass_.t0 + n * pass_.h for n in range(pass_.num_steps + 1)]
    if all(isinstance(number, Tensor) for number in numbers):
        return torch.stack(numbers).to(x)  # type: ignore[arg-type]
    # Filled, not copied from the CPU, which would wait for the device.
    return torch.stack([torch.full((), number, dtype=x.dtype, device=x.device) for number in numbers])  # type: ignore[arg-type]


def _horizon(horizon: Number) -> Number:
    if isinstance(horizon, Tensor):
        if horizon.dim() > 0 or not horizon.is_floating_point():
            raise ValueError(
                f"horizon as a tensor must be 0-d and of a floating-point type, got {horizon.dtype} of "
                f"shape {tuple(horizon.shape)}."
            )
        value = 1.0 if horizon.is_meta else float(horizon.detach())
        if not math.isfinite(value) or value == 0:
            raise ValueError(f"horizon must be a finite number other than 0, got {value}.")
        return horizon
    if not isinstance(horizon, int | float) or not math.isfinite(horizon) or horizon == 0:
        raise ValueError(f"horizon must be a finite number other than 0, got {horizon!r}.")
    return float(horizon)


def _start(t0: Number, x: Tensor) -> Number:
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
