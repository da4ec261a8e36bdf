"""The fixed-point iteration in as few operations as possible, for the samples that contract.

Most residual layers contract: tau F' is small. They need a handful of steps of the plain fixed point, and the cost of
a solve is then that of everything else: safeguards, histories, statuses. This loop has none of them. Slow samples are
relaxed and accelerated, or given up, as the attempt says. A sample that does not contract even so goes on to the next
solver of the plan.
"""

import math

import torch
from torch import Tensor

from resolvent.equation.acceleration import Acceleration
from resolvent.equation.convergence import FAR, Convergence, Progress, Reached
from resolvent.equation.norms import extremes, length, per_sample, put, select, take
from resolvent.equation.pace import Limits, Pace
from resolvent.equation.prediction import PredictedLast
from resolvent.equation.problem import Problem
from resolvent.equation.relaxation import relaxation, relaxed_twice
from resolvent.equation.secants import Secants
from resolvent.equation.solution import Status
from resolvent.equation.solver import Attempt, State
from resolvent.equation.stopping import StoppingRule
from resolvent.equation.torch_func import all_true, any_true, transforming

MOST_BY_SECANTS = 1024
"""Up to this many unknowns, later steps use secants."""

MIN_SIZE_TO_COMPACT = 1 << 14
"""With fewer numbers in the batch, gathering the unfinished samples costs more than evaluating the finished ones."""

# Secants are used from this step on. Up to so many unknowns they cost as much as half an evaluation, and come later,
# when most solves are done.
_SECANTS_FROM, _SECANTS_FROM_IF_FEW, _FEW = 4, 8, 200
# Slow samples are looked for after these steps, as rates change little from step to step. A step that is remembered for
# it holds two states. Beyond the unknowns for secants that counts, and many solves end with the second step.
_LOOKS, _LOOKS_IF_LARGE = (1, 2, 4, 8, 16, 32), (1, 4, 8, 16, 32)


def may_contract(problem: Problem, stopping: StoppingRule) -> bool:
    """Whether the loop can run: it makes as many steps as it needs, and autograd must not record them. In half
    precision the tolerance is so wide that methods which overshoot it are worth their price."""
    half = problem.precision.itemsize < 4
    return not (half or stopping.fixed or torch.is_grad_enabled() or transforming())


def contract(problem: Problem, attempt: Attempt, stopping: StoppingRule, w: Tensor, steps_first: bool) -> Reached:
    """Iterates w <- g(w), the map of `Picard`, for each sample while it contracts. Later steps use secants, and those
    of slow samples are relaxed and accelerated, if the attempt says so.

    With `steps_first` a sample makes a step even if the first guess is within the tolerance, see `solve`. Samples that
    converged have the same status as in `iterate`. The others are marked as out of steps.
    """
    checks, last = stopping.checks(w.device), PredictedLast(problem)
    first, (r, image) = w, last.plain.defect_and_image(w)
    measure = _Measure(problem, Convergence(problem, attempt.solver, stopping), w, r)
    norm = measure.first
    pace = Pace(measure.limits(attempt), norm, measure.excess(norm, w), problem.contracting, steps_first)
    secants_from, secants = first_by_secants(problem.size), Secants()
    acceleration = Acceleration(min(problem.size, attempt.memory))
    alpha: Tensor | None = None
    may_compact = measure.whole and not measure.follows and _may_compact(problem, w)
    for step in range(1, 1 + (stopping.limit or attempt.max_steps or attempt.solver.max_steps)):
        if pace.done:
            break
        plain = moved = _moved(problem, w, r) if image is None else image
        if step == 2 and attempt.memory:
            alpha = relaxation(first, w, plain, norm / measure.first)
            pace.forget_slow(alpha)
        if alpha is not None:
            # The image of the relaxed map is what an acceleration has to remember, also where the step leads elsewhere.
            relaxed = torch.lerp(w, plain, per_sample(alpha, w))
            moved, plain = relaxed_twice(first, w, plain, alpha) if step == 2 else relaxed, relaxed
        if step >= secants_from and not pace.all_slow:
            moved = secants.next(plain - w if image is None or alpha is not None else r, plain)
        if attempt.memory and pace.slow is not None:
            moved = select(pace.slow, acceleration.next(w, plain, pace.slow), moved)
        elif attempt.memory:
            acceleration.note(w, plain) if pace.looks_next else acceleration.forget()
        if may_compact and pace.few and pace.mask is not None:
            rows = pace.mask.nonzero().squeeze(1)
            w, r, image, norm = _step_of_some(problem, rows, moved, w, r, norm)
        else:
            w = moved if pace.mask is None else torch.where(per_sample(pace.mask, w), moved, w)
            r, image = last.problem_at(step, pace.residuals).defect_and_image(w)
            norm = measure.norm(r)
        pace.update(norm, measure.excess(norm, w), checks(step))
    return measure.reached(first, w, r, norm, pace)


def first_by_secants(unknowns: int) -> float:
    """The number of the step from which secants are used."""
    if unknowns > MOST_BY_SECANTS:
        return math.inf
    return _SECANTS_FROM_IF_FEW if unknowns <= _FEW else _SECANTS_FROM


class _Measure:
    """Residuals beside the tolerance at which samples stop. It is relative to |b|, and so holds whatever the size of
    the solution. Where b is zero, as in an equilibrium model, it follows the size of the iterate.

    Attributes:
        first: (batch,), the residuals at the first guess.
        unit: the `excess` of a residual that equals the tolerance.
        whole: whether samples are measured as a whole, by their length.
        follows: whether the tolerance of a sample follows its iterate.
    """

    def __init__(self, problem: Problem, convergence: Convergence, w: Tensor, r: Tensor) -> None:
        self._problem, self._convergence = problem, convergence
        self.whole = convergence.parts is None
        # Lengths instead of root mean squares save a division.
        self.unit = convergence.ratio if convergence.parts is None else convergence.parts.unit(r)
        self.first, scale = self.norm(r), problem.scale
        self._scale, (self._least, self._largest) = scale, extremes(scale)
        self._of_b = convergence.strictest(scale)
        self.follows = not (problem.linear or self._least > 0)
        if self.follows:
            self._resting, self._progress = scale == 0, self._begun(w)

    def limits(self, attempt: Attempt) -> Limits:
        # Beside b, the first residual hints at the rate.
        tolerance = self._convergence.strictest_of(self._largest)
        before = self._largest / self._convergence.ratio / tolerance if tolerance > 0 else math.inf
        kept = attempt.memory > 0
        looks = _LOOKS if self._problem.size <= MOST_BY_SECANTS else _LOOKS_IF_LARGE
        return Limits(self.unit, attempt.rate, attempt.lead, before, self.follows, attempt.most_expected, kept, looks)

    def norm(self, r: Tensor) -> Tensor:
        """(batch,), the sizes of residuals."""
        parts = self._convergence.parts
        return length(r) if parts is None else parts.size(r)

    def excess(self, norm: Tensor, w: Tensor) -> Tensor:
        """(batch,), the sizes of residuals at w beside the tolerance: within it up to `unit`."""
        if not self.follows:
            return norm / self._of_b
        self._convergence.measure(self._progress, w)
        return norm / torch.where(self._resting, self._progress.earned, self._of_b)

    def reached(self, first: Tensor, w: Tensor, r: Tensor, norm: Tensor, pace: Pace) -> Reached:
        """The result at w, with the residual r and its size."""
        residual = norm / self.unit
        steps = pace.steps
        if not isinstance(steps, Tensor):
            steps = torch.full_like(norm, steps, dtype=torch.int32)
        if pace.converged and self._surely_near(w) and self._parts_are_within(w, r, residual):
            status = torch.full_like(steps, Status.CONVERGED.value)
            return Reached(value=w, residual=residual, status=status, steps=steps, natural=None, all_converged=True)
        progress, everywhere = self._begun(first), torch.ones_like(norm, dtype=torch.bool)
        state = State(w=w, norm=residual, r=r)
        self._convergence.update(self._problem, progress, state, everywhere, check=True)
        progress.steps = steps
        self._convergence.end(progress)
        if not progress.unanimous:
            self._send_back(progress, first)
        return progress

    def _send_back(self, progress: Progress, first: Tensor) -> None:
        """Returns samples that are very far from the start to the first guess, for the next solver. An accelerated
        sample may run away where there is no solution, and its residual is then lost in rounding. Whether such a sample
        has converged takes an error estimate."""
        assert progress.natural is not None
        self._convergence.measure(progress, progress.value)
        claimed = progress.status == Status.CONVERGED.value
        far = (claimed & (progress.residual > progress.earned)) | (progress.size > FAR * progress.natural)
        if any_true(far):
            progress.value = select(far, first, progress.value)
            progress.residual = torch.where(far, self.first / self.unit, progress.residual)
            progress.status = progress.status.masked_fill(far, Status.MAX_STEPS.value)
            progress.check()

    def _begun(self, w: Tensor) -> Progress:
        return self._convergence.first(self._problem, w, self.first / self.unit, self._scale)

    def _surely_near(self, w: Tensor) -> bool:
        """Whether no sample is far from the start, see `Convergence`, nor has a tolerance that may underflow. Then
        nothing else is to be decided."""
        convergence, kind = self._convergence, torch.finfo(w.dtype)
        if not (convergence.strictest_of(self._least) > (kind.tiny / kind.eps) ** 0.5 or self._problem.linear):
            return False
        beyond = extremes(torch.sub(length(w), self._scale, alpha=convergence.far_from))[1]
        return beyond <= 0 and self._largest < math.inf

    def _parts_are_within(self, w: Tensor, r: Tensor, norm: Tensor) -> bool:
        parts = self._convergence.parts
        if parts is None:
            return True
        everywhere = torch.ones_like(norm, dtype=torch.bool)
        return all_true(parts.within(everywhere, self._problem, State(w=w, norm=norm, r=r)))


def _moved(problem: Problem, w: Tensor, r: Tensor) -> Tensor:
    """The next iterate of the fixed point, from the defect r of w."""
    factor = problem.constant_precondition
    return w + problem.precondition(r) if factor is None else torch.add(w, r, alpha=factor)


def _may_compact(problem: Problem, w: Tensor) -> bool:
    """Whether evaluations of the unfinished samples alone pay: without a graph, which would have to hold all."""
    alone = problem.rowwise and not problem.linear and problem.without_graph() is problem
    return alone and w.is_cpu and w.numel() >= MIN_SIZE_TO_COMPACT


def _step_of_some(
    problem: Problem, rows: Tensor, moved: Tensor, w: Tensor, r: Tensor, norm: Tensor
) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
    """The step of the samples `rows` alone: the iterates of all samples, their defects, images and norms. Images are
    those of the `rows`; the others do not move any more."""
    iterates = take(moved, rows)
    defects, images = problem.take(rows).defect_and_image(iterates)
    image = None if images is None else put(moved, rows, images)
    return put(w, rows, iterates), put(r, rows, defects), image, put(norm, rows, length(defects))
