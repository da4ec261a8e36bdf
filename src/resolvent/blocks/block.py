"""A block: several steps of one scheme through one field."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from resolvent.blocks.changing_modules import refuse_changing_modules
from resolvent.blocks.check_field import can_check, check_field, check_proof
from resolvent.blocks.grid import as_grid, ends_of, grid_points, horizon_of_samples, states_between
from resolvent.blocks.in_graph import InGraph
from resolvent.blocks.memory import Memory, as_memory, own_tensor
from resolvent.blocks.pass_ import Pass, as_start
from resolvent.blocks.strategies import LayerByLayer, Strategy
from resolvent.blocks.trajectory import Trajectory
from resolvent.blocks.weights import frozen_weights, outside_inference
from resolvent.equation.adjoint import Adjoint
from resolvent.equation.failure import Mask, Policy
from resolvent.equation.norms import per_sample
from resolvent.equation.solver import Plan
from resolvent.equation.stopping import StoppingRule
from resolvent.equation.structure import Structured, structure_of
from resolvent.fields.base import check_callable_field
from resolvent.fields.piecewise import right_end, share_horizon
from resolvent.fields.samples_alone import SamplesAlone
from resolvent.schemes.guess import Guess, as_guess
from resolvent.schemes.interval import Field, Number
from resolvent.schemes.scheme import Scheme, Step
from resolvent.solvers.resolve import solve_options


class Block(InGraph):
    """Integrates y' = F(t, y) by equal steps or on a given grid. With explicit Euler steps it is a residual network.

    All weights are those of the field. They do not change during a pass: parametrized weights are computed once. The
    first call in training mode checks the field, see `rs.check_field`; for implicit schemes that takes two more
    evaluations, and one of a single sample. In evaluation mode only a field that is proved to treat samples alone is
    checked, in one evaluation, and one of a single sample. Modules that change with each call, such as dropout, are
    refused in every call.

    Arguments:
        field: F, called with the time (a number, a 0-d tensor or (batch,)) and the state (batch, *shape), or a
            structure of several tensors, see `forward`.
        scheme: makes the steps, such as `rs.schemes.Theta(0.5)` or `rs.schemes.RungeKutta(rs.schemes.tableaux.RADAU5)`.
        num_steps: the number of steps; None takes 5.
        horizon: their total length, a number or a 0-d tensor, of any sign; h = horizon / num_steps. An nn.Parameter is
            learned. None takes 1.
        times: the grid points, in place of num_steps and horizon: numbers, or a tensor (count,), increasing or
            decreasing. They are relative to t0, so that the pass begins at t0 + times[0]. An nn.Parameter is learned.
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
    # How messages name modules of the field: without the first, and with the second in front.
    _place: tuple[str, str] = ("", "")

    def __init__(
        self,
        field: Field,
        scheme: Scheme,
        num_steps: int | None = None,
        horizon: Number | None = None,
        *,
        times: Sequence[float] | Tensor | None = None,
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
        if not isinstance(reuse, bool):
            raise ValueError(f"reuse must be True or False, got {reuse!r}.")
        self.field = field
        self._scheme = scheme
        self.times, self.num_steps, self.horizon = as_grid(num_steps, horizon, times)
        if times is not None and not scheme.one_step:
            raise ValueError(
                f"{type(scheme).__name__} combines the states of equal steps: take num_steps and horizon, or a "
                "one-step scheme such as rs.schemes.Theta(0.5)."
            )
        # A field of the library says itself what it knows, as do modules with these attributes.
        silent = isinstance(field, nn.Module) and not any(hasattr(field, name) for name in ("rowwise", "autonomous"))
        self._samples_alone = SamplesAlone(field, of_time=True) if silent else None
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
        """h = horizon / num_steps; the mean of the steps if `times` are given."""
        return self.horizon / self.num_steps

    @property
    def longest_step(self) -> float:
        """The step of the largest size, with its sign."""
        if self.times is None:
            return float(torch.as_tensor(self.step_size).detach())
        return float(max(torch.as_tensor(self.times).detach().double().diff().tolist(), key=abs))

    def forward(self, x: Structured, t0: Number = 0.0, horizon: Number | None = None) -> Structured:
        """The state at the end of the grid, t0 + horizon.

        Arguments:
            x: (batch, *shape), the state at t0. Or several such tensors of one dtype and device, as a tuple, list,
                dictionary or named tuple: the field is then called with such a structure and returns one.
            t0: a number, a 0-d tensor, or (batch,).
            horizon: for this call, a number, a 0-d tensor, or (batch,) for one per sample; None takes that of the
                block.

        Returns:
            Like x, in tensors of their own: they share no memory with other states, and may be changed in place.
        """
        if torch.compiler.is_dynamo_compiling():
            return self._in_graph("_forward", x, t0, horizon)
        with self._opened(x, t0, horizon) as (pass_, start):
            solved = _Solved(self.options.on_failure)
            for step in self.memory.steps(pass_, start, all_states=False):
                state = step.state
                solved.note(step)
            state = solved.mask(state)
            if pass_.structure is not None:
                return tree_map(own_tensor, pass_.structure.unflatten(state), x)
            # What the backward pass reads: the states of a pass that is recomputed, and values of solutions.
            shared = not pass_.stores or any(state is solution.value for solution in step.solutions)
            return own_tensor(state, start, shared)

    def trajectory(self, x: Structured, t0: Number = 0.0, horizon: Number | None = None) -> Trajectory:
        """The states at all grid points, and the solves; the arguments are those of `forward`.

        Inside `torch.compile` the trajectory has no solutions: `rs.blocks.Monitor` records how the solves went.
        """
        if torch.compiler.is_dynamo_compiling():
            times, states = self._in_graph("_trajectory_of", x, t0, horizon, points=self.num_steps + 1)
            return Trajectory(times, states, ())
        with self._opened(x, t0, horizon) as (pass_, start):
            trajectory = self._trajectory(pass_, start)
            return trajectory if pass_.structure is None else trajectory.structured(pass_.structure)

    # What a compiled graph calls: a method of a derived class calls these, and is part of the graph itself.
    _forward, _trajectory_of = forward, trajectory

    def interpolate(
        self, x: Structured, times: Tensor | Sequence[float], t0: Number = 0.0, horizon: Number | None = None
    ) -> Structured:
        """The states at any times between t0 and t0 + horizon.

        Between two grid points it is the cubic Hermite interpolant of their states and the slopes of the field there,
        which is accurate to order 4. It costs two evaluations per step.

        Arguments:
            x: the state at t0, as for `forward`.
            times: (count,), or (count, batch) for one set of times per sample.
            t0, horizon: as for `forward`.

        Returns:
            (count, batch, *shape), in the structure of x.
        """
        with self._opened(x, t0, horizon) as (pass_, start):
            states = self._trajectory(pass_, start).states
            pairs = [(pass_.interval(n), states[n], states[n + 1]) for n in range(self.num_steps)]
            left = torch.stack([interval.evaluate(0.0, start) for interval, start, _ in pairs])
            right = torch.stack([interval.evaluate(1.0, end) for interval, _, end in pairs])
        found = states_between(
            pass_, states, left, right, torch.as_tensor(times, dtype=states.dtype, device=states.device)
        )
        return found if pass_.structure is None else pass_.structure.unflatten(found)

    @contextmanager
    def _opened(self, x: Structured, t0: Number = 0.0, horizon: Number | None = None) -> Iterator[tuple[Pass, Tensor]]:
        """One pass, with the field frozen and checked, and the input as one tensor; the arguments are those of
        `forward`."""
        pieces = share_horizon(self.field, self.horizon)  # Before it is frozen: copies of pieces take it along.
        with outside_inference(x, t0, horizon) as (x, t0, horizon), frozen_weights(self.field) as field:
            if isinstance(x, Tensor):
                yield self._pass(x, t0, field, horizon, pieces), x
                return
            structure = structure_of(x, "x")
            with structure.restored_errors():
                flat = structure.flatten(x, "x")
                pass_ = replace(self._pass(flat, t0, structure.field(field), horizon, pieces), structure=structure)
                self.strategy.check(pass_)  # What was checked before is the field itself.
                yield pass_, flat

    def extra_repr(self) -> str:
        return f"{type(self.scheme).__name__}, {self._grid_repr()}"

    def _grid_repr(self) -> str:
        grid = f"num_steps={self.num_steps}, horizon={float(torch.as_tensor(self.horizon).detach()):g}"
        if self.times is None:
            return grid
        first, last = ends_of(self.times)
        return f"{grid}, times={first:g} to {last:g}"

    def _trajectory(self, pass_: Pass, x: Tensor) -> Trajectory:
        solved = _Solved(self.options.on_failure)
        steps = list(self.memory.steps(pass_, x, all_states=True))
        for step in steps:
            solved.note(step)
        solutions = tuple(solution for step in steps for solution in step.solutions)
        states = [x, *(solved.mask(step.state) for step in steps)]
        return Trajectory(grid_points(pass_, x), torch.stack(states), solutions)

    def _check_once(self, x: Tensor, pass_: Pass) -> None:
        """Runs `check_field` on the first call in training mode, if the field is evaluated more than once per layer. On
        the first call in evaluation mode only a proof is checked."""
        if self._checked or not (self.training or self._may_check_proof(x)) or len(x) < 2 or not can_check(x):
            return
        if pass_.evaluates_again:
            if self.training:
                check_field(pass_.field, x, pass_.t0)
            proved = pass_.alone is not None and pass_.vector_field.rowwise
            if proved or not self.training:
                check_proof(pass_.field, x, pass_.t0, proved)
        self._checked, self._rows_checked = self.training, True

    def _pass(self, x: Tensor, t0: Number, field: Field, horizon: Number | None = None, pieces: bool = False) -> Pass:
        """A pass with the frozen `field`, checked; `horizon` replaces that of the block. `pieces` says whether there
        are piecewise fields in it."""
        t0 = as_start(t0, x)
        if 0 in x.shape[1:] and self.scheme.implicit:
            raise ValueError(
                f"x must have at least one unknown per sample, got shape {tuple(x.shape)}: without any there is no "
                "equation to solve. Leave the block out, or take theta=0."
            )
        pass_ = self._settings(field, t0, right_end(field, x.dtype) if pieces else 1.0)
        if horizon is not None:
            if self.times is not None:
                raise ValueError(f"the block has times, and no horizon to replace, got horizon={horizon!r}.")
            if pieces:
                raise ValueError(
                    "the pieces of rs.fields.Piecewise are spread over the horizon of the block, and no other can be "
                    f"given to a call, got horizon={horizon!r}."
                )
            pass_ = replace(pass_, h=horizon_of_samples(horizon, x) / self.num_steps)
            self.strategy.check(pass_)
        if self._samples_alone is not None and x.dim() >= self._samples_alone.least_rank:
            pass_ = replace(pass_, alone=self._samples_alone)
        self.memory.check(pass_)
        if pass_.evaluates_again and isinstance(self.field, nn.Module):
            refuse_changing_modules(self.field, *self._place)
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
            self.times,
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
