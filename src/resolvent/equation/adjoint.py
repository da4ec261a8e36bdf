"""Adjoints: differentiate a solution exactly, approximately, or through the iterations."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from resolvent.equation.attachment import attach_named, linearize
from resolvent.equation.attempts import solve
from resolvent.equation.closed import outer_edges
from resolvent.equation.contraction_on_device import contracts_on_device
from resolvent.equation.evaluation import LastEvaluation
from resolvent.equation.failure import Mask, Policy, as_policy, masked, report
from resolvent.equation.fixed_point import sums_in_double
from resolvent.equation.function import Function
from resolvent.equation.gradients import Closed, LastProduct
from resolvent.equation.implicit_function import InverseMap, apply_inverse
from resolvent.equation.linear import LinearProblem
from resolvent.equation.linear_part import LinearPart
from resolvent.equation.linearization import Linearization
from resolvent.equation.norms import extremes, length, memory_format, per_sample, power_of_two
from resolvent.equation.options import SolveOptions
from resolvent.equation.problem import NonlinearProblem, changed, full_precision
from resolvent.equation.solution import Solution, Work
from resolvent.equation.solver import Plan
from resolvent.equation.stopping import StoppingRule
from resolvent.equation.torch_func import ClosedOver, forward_mode, transforming


@dataclass(frozen=True)
class Start:
    """Where a forward solve begins.

    Attributes:
        w: (batch, *shape), the first guess.
        given: the guess of the user, if there is one; for messages.
        reuse: the solution of a similar problem, whose solver state is resumed.
    """

    w: Tensor
    given: Tensor | None = None
    reuse: Solution | None = None


class Adjoint(ABC):
    """A way to differentiate the solution of w = b + tau F(w)."""

    @abstractmethod
    def differentiable(self, problem: NonlinearProblem, start: Start, options: SolveOptions) -> tuple[Solution, Tensor]:
        """The solution of the problem, and its value with derivatives attached.

        Arguments:
            problem: attached to the graph of b and tau.
            start: where to begin.
            options: for the forward solve, inherited by the backward solve.
        """


@dataclass(frozen=True)
class UnrolledAdjoint(Adjoint):
    """Differentiates through every iteration of the solver.

    Memory grows with the number of iterations, and the gradient is only as accurate as the iterates. Use it as a
    reference, and for solvers that are stopped early on purpose.
    """

    def differentiable(self, problem: NonlinearProblem, start: Start, options: SolveOptions) -> tuple[Solution, Tensor]:
        for solver in (attempt.solver for attempt in options.solver.attempts(problem)):
            if not solver.unrollable:
                raise ValueError(
                    f"{type(solver).__name__} cannot be unrolled: take rs.Picard(), rs.Anderson(), rs.Broyden() or "
                    "rs.Newton() as the solver, or rs.ImplicitAdjoint() as the adjoint."
                )
        solution = solve(problem, options.solver, options.stopping, start.w, start.reuse, start.given is None)
        if not options.stopping.fixed:
            report(problem, solution, options.on_failure, options.place, start.given)
        return solution, masked(solution.value, solution, options.on_failure)


class AttachedAdjoint(Adjoint):
    """Solves without a graph, then attaches derivatives at the solution through A^{-1}, A = I - tau F'(w).

    Subclasses define how the linear systems with A and its transpose are solved.
    """

    order: int = 1
    needs_inverse: ClassVar[bool] = False
    """Whether `solve_linear` starts from the `State.inverse` that the forward solver has built."""

    @abstractmethod
    def solve_linear(self, options: SolveOptions, system: LinearProblem) -> Tensor:
        """The solution, or an approximation to it, of a system with A or its transpose."""

    def differentiable(self, problem: NonlinearProblem, start: Start, options: SolveOptions) -> tuple[Solution, Tensor]:
        last = LastEvaluation() if torch.is_grad_enabled() and not forward_mode() else None
        with torch.no_grad():
            alone = problem.detach(last)
            if self.needs_inverse:
                _check_inverse(self, alone, options)
                # The state of the solver is that of the whole batch: finished samples must not be dropped.
                alone = replace(alone, function=replace(alone.function, rowwise=False))
            solution = solve(alone, options.solver, options.stopping, start.w, start.reuse, start.given is None)
        if not (options.stopping.fixed or (solution.all_converged and not isinstance(options.on_failure, Mask))):
            report(alone, solution, options.on_failure, options.place, start.given)
        if not (torch.is_grad_enabled() or forward_mode() or transforming()):
            return solution, solution.value
        value = self._attach(problem, options, solution, last)
        return solution, value if solution.all_converged else masked(value, solution, options.on_failure)

    def _attach(
        self, problem: NonlinearProblem, options: SolveOptions, solution: Solution, last: LastEvaluation | None
    ) -> Tensor:
        w = solution.value.detach()
        tensors: Sequence[Tensor]
        if transforming():
            image = problem.evaluate(w)
            tensors, solve_at = self._close(problem.detach(), options, w)
        else:
            linearization = linearize(problem, solution, last, compare=not options.stopping.fixed)
            linearization.state = solution.state if self.needs_inverse else None
            image, at = linearization.release(), linearization.evaluation
            tensors, solve_at = (), self._solve_with(options, linearization, memory_format(w))
            outer = outer_edges(at.start, at.end)
            first = next(outer, None)
            if first is None and not problem.requires_grad:
                if not forward_mode():
                    return solution.value
                image = problem.evaluate(w)  # For its tangent, without the graph to the point.
            # A direct solve makes no product that gradients could come with.
            if self.order == 1 and not (forward_mode() or linearization.matrix_given):
                edges = [] if first is None else [first, *outer]
                found = attach_named(problem, InverseMap(solve_at, 1), at, image, edges, w)
                if found is not None:
                    return found
        inverse = InverseMap(solve_at, self.order)
        # Only the derivative of the defect matters, and in the first step w is constant.
        value = apply_inverse(inverse, problem.step_of(image), w, *tensors)
        for _ in range(1, self.order):
            value = apply_inverse(inverse, problem.defect(value), w, *tensors) + (value - w)
        return value

    def _solve_with(
        self, options: SolveOptions, linearization: Linearization, layout: torch.memory_format | None
    ) -> Callable[..., Tensor]:
        def solve_at(x: Tensor, transposed: bool, _: Sequence[Tensor], closed: Closed | None = None) -> Tensor:
            # The backward pass counts its own work.
            linearization.work = Work()
            # A loss returns cotangents in a layout of its own.
            x = x if layout is None else x.contiguous(memory_format=layout)
            with torch.no_grad(), full_precision(x.device):
                return self.solve_linear(options, LinearProblem(x, linearization, transposed, closed))

        return solve_at

    def _close(
        self, problem: NonlinearProblem, options: SolveOptions, w: Tensor
    ) -> tuple[Sequence[Tensor], Callable[[Tensor, bool, Sequence[Tensor]], Tensor]]:
        """Inside a transform: the tensors that A depends on, and the solve as a function of them alone."""
        closed = ClosedOver(problem.function, w.to(problem.argument_dtype))
        tau = torch.as_tensor(problem.tau, device=w.device)
        # Zero if there is no linear part: the autograd function takes only tensors.
        c = problem.function.linear_part
        c = torch.as_tensor(0.0 if c is None or isinstance(c, LinearPart) else c, device=w.device)

        def solve_at(x: Tensor, transposed: bool, tensors: Sequence[Tensor]) -> Tensor:
            w, tau, c, *others = tensors
            function = Function(closed.bind(others), linear_part=c)
            at = replace(problem, function=function, b=w, tau=tau, work=Work())
            with torch.no_grad(), full_precision(x.device):
                return self.solve_linear(options, LinearProblem(x, Linearization(at, w), transposed))

        return (w, tau, c.detach(), *(tensor.detach() for tensor in closed.tensors)), solve_at


def _check_inverse(adjoint: Adjoint, problem: NonlinearProblem, options: SolveOptions) -> None:
    """Raises if the forward solve will leave no approximation to the inverse of A."""
    name = type(adjoint).__name__
    if transforming():
        raise ValueError(f"{name} does not work inside torch.func transforms: take rs.ImplicitAdjoint().")
    attempts = options.solver.attempts(problem)
    if len(attempts) != 1 or not attempts[0].solver.has_inverse:
        raise ValueError(
            f"{name} needs a forward solver that approximates the inverse, solver=rs.Broyden(), got {options.solver}."
        )


@dataclass(frozen=True)
class ImplicitAdjoint(AttachedAdjoint):
    """Exact derivatives by the implicit function theorem: with A = I - tau F'(w) and a cotangent g of w,

        A^T u = g,   grad_b = u,   grad_tau = <F(w), u>,   grad_gamma = tau (dF/dgamma)^T u.

    Memory does not depend on the number of iterations: one evaluation of F is stored, as for an explicit layer.

    Arguments:
        solver: for the linear systems, e.g. `GMRES()`. None lets the forward solver choose: `DenseLU` for few
            unknowns, with the matrix of Newton's method, otherwise `GMRES`; if the forward solver is `Auto`, Anderson's
            method is tried before it.
        order: how many derivatives are exact. Each stores one more evaluation of F; a derivative of higher order raises
            `DerivativeOrderError`.
        stopping: for the linear systems, which use rtol alone; None takes the rtol of the forward solve.
        on_failure: "raise", "warn", "ignore" or "mask"; None takes that of the forward solve.
        callback: called with the `Solution` of every backward solve.

    Reference: Reshniak & Webster, Robust learning with implicit residual networks, section on backpropagation.
    """

    solver: Plan | None = None
    order: int = 1
    stopping: StoppingRule | None = None
    on_failure: Policy | None = None
    callback: Callable[[Solution], None] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.order, int) or isinstance(self.order, bool) or self.order < 1:
            raise ValueError(f"order counts the exact derivatives and must be 1 or more, got {self.order!r}.")
        if self.solver is not None and not isinstance(self.solver, Plan):
            raise ValueError(f"solver must be a solver such as rs.GMRES(), or None, got {self.solver!r}.")
        if self.stopping is not None and not isinstance(self.stopping, StoppingRule):
            raise ValueError(f"stopping must be an rs.Stopping(...), or None, got {self.stopping!r}.")
        if self.on_failure is not None:
            object.__setattr__(self, "on_failure", as_policy(self.on_failure))

    def solve_linear(self, options: SolveOptions, system: LinearProblem) -> Tensor:
        return self.solve_from(options, system)

    def solve_from(
        self, options: SolveOptions, system: LinearProblem, guess: Callable[[Tensor], Tensor] | None = None
    ) -> Tensor:
        """The solution of a system. The solve starts at the `guess` for its right-hand side, a linear function; None
        takes what is known of the linear part alone."""
        plan = self.solver or options.solver.linear_plan(system)
        stopping = self.stopping or options.for_backward()
        if sums_in_double(system, plan, stopping):
            needless = True
        else:
            system = changed(system, lengths=length(system.b))
            needless = _moderate(system, stopping)
        scaled, unit = _in_units(system, needless)
        start = (scaled.precondition if guess is None else guess)(scaled.b)
        solution = solve(scaled, plan, stopping, start, steps_first=guess is None)
        gradients = None if scaled.last is None else scaled.last.take(solution.value, compare=not stopping.fixed)
        if unit is not None:
            value = solution.value * per_sample(unit, solution.value)
            solution = changed(solution, value=value, residual=solution.residual * unit)
        if system.closed is not None and gradients is not None:
            system.closed.known = solution.value, gradients
        if self.callback is not None:
            self.callback(solution)
        if options.observe is not None:
            options.observe(solution)
        policy = self.on_failure or options.on_failure
        if not stopping.fixed:
            report(system, solution, policy, options.place)
        if isinstance(policy, Mask) and not solution.all_converged:
            return torch.where(per_sample(solution.converged, solution.value), solution.value, 0.0)
        return solution.value


def _in_units(system: LinearProblem, needless: bool) -> tuple[LinearProblem, Tensor | None]:
    """The system with every sample divided by a power of two, its unit, (batch,), so that it has a size of about one:
    gradients may be so small that their squares are zero. As this does not round, it is left out where all sizes are
    moderate, and where squares are summed in double precision (`needless`). Unless F is evaluated in
    float16, gradients come with the last product."""
    narrow = system.precision == torch.float16
    closed = None if narrow else system.closed
    if needless and not narrow:
        return system if closed is None else changed(system, last=LastProduct(closed)), None
    unit = power_of_two(system.b)
    each = per_sample(unit, system.b)
    last = None if closed is None else LastProduct(closed, each)
    return changed(system, b=system.b / each, last=last, lengths=None), unit


def _moderate(system: LinearProblem, stopping: StoppingRule) -> bool:
    """Whether all right-hand sides are known to have a size whose square is far from zero and from infinity."""
    size, least = system.scale, torch.finfo(system.b.dtype).tiny ** 0.25
    if not (system.can_read(size) or contracts_on_device(system, stopping)):
        return False
    smallest, largest = extremes(size)
    return least < smallest and largest < 1 / least
