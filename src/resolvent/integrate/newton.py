"""Implicit stages: a simplified Newton iteration with one matrix for all stages and many steps.

The linear systems, with I - tau J, are solved by dense factors for few unknowns, by Krylov methods for many.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from resolvent.equation.attempts import solve
from resolvent.equation.linear import LinearProblem
from resolvent.equation.linearization import Linearization
from resolvent.equation.stopping import Stopping
from resolvent.integrate.control import Tolerance
from resolvent.integrate.flow import Flow
from resolvent.integrate.method import Method, Modes
from resolvent.integrate.samples import Samples
from resolvent.solvers.gmres import GMRES

_MOST_ITERATIONS = 10
# Whether an iteration will converge is not asked before this one: most stages are solved by then.
_FIRST_DOUBT = 2
# Up to this many unknowns the matrices are inverted.
_MOST_FOR_INVERSE = 8
# The Jacobian is renewed after a step whose iterations contracted more slowly than this rate.
SLOW = 1e-3


class System(ABC):
    """The linear systems of a stage, I - tau J of every sample, or those of all stages."""

    @abstractmethod
    def solve(self, r: Tensor, transposed: bool = False) -> Tensor:
        """The solution for the right-hand side r, or that with the transpose, (batch, n)."""

    def filter(self, e: Tensor) -> Tensor:
        """(I - tau J)^{-1} e, for the estimated error."""
        return self.solve(e)


class Factors(System):
    """LU factors of the matrices, or for few unknowns their inverses, whose products take half the time.

    Reference: Druinsky & Toledo, How accurate is inv(A) * b?, 2012: as accurate as a solve with the factors.
    """

    def __init__(self, matrix: Tensor) -> None:
        self.inverse: Tensor | None = None
        if matrix.shape[-1] <= _MOST_FOR_INVERSE:
            self.inverse = torch.linalg.inv_ex(matrix)[0]
        else:
            self.factors, self.pivots, _ = torch.linalg.lu_factor_ex(matrix)

    def solve(self, r: Tensor, transposed: bool = False) -> Tensor:
        if self.inverse is not None:
            return torch.bmm(self.inverse.mT if transposed else self.inverse, r[:, :, None])[:, :, 0]
        return torch.linalg.lu_solve(self.factors, self.pivots, r[:, :, None], adjoint=transposed)[:, :, 0]


class CoupledFactors(System):
    """The systems of coupled stages, I - h A (x) J, from n x n factors in the modes of A.

    Arguments:
        matrix: (batch, n, n), gamma h J, where gamma is the first of the values.
        modes: of A.
    """

    def __init__(self, matrix: Tensor, modes: Modes) -> None:
        identity = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
        self.modes = modes
        gamma = modes.values[0].real
        self.factors = [
            Factors(identity - (value.real if value.imag == 0 else value) / gamma * matrix) for value in modes.values
        ]

    def solve(self, r: Tensor, transposed: bool = False) -> Tensor:
        assert not transposed
        stages = r.reshape(len(r), len(self.modes.A), -1)
        complex_dtype = torch.complex128 if r.dtype == torch.float64 else torch.complex64
        rows, columns = (x.to(device=r.device, dtype=complex_dtype) for x in (self.modes.rows, self.modes.columns))
        total = torch.zeros_like(stages)
        for k, factors in enumerate(self.factors):
            real = self.modes.values[k].imag == 0
            row, column = (rows[k].real, columns[:, k].real) if real else (rows[k], columns[:, k])
            mode = factors.solve((row[:, None] * stages).sum(1))
            part = column[:, None] * mode[:, None]
            total = total + (part if real else part.real)
        return total.reshape(r.shape)

    def filter(self, e: Tensor) -> Tensor:
        return self.factors[0].solve(e)


class Products(System):
    """The matrices at one point as products with vectors, for many unknowns.

    Arguments:
        flow: the field.
        t, y: (batch,), (batch, n), the point.
        tau: (batch,).
        rtol: of the linear solves.
    """

    def __init__(self, flow: Flow, t: Tensor, y: Tensor, tau: Tensor, rtol: float = 1e-3) -> None:
        flow.evaluations += 1
        self.flow, self.rtol = flow, rtol
        self.linearization = Linearization(flow.problem(t, y, tau), y.reshape(-1, *flow.shape))

    def solve(self, r: Tensor, transposed: bool = False) -> Tensor:
        system = LinearProblem(r.reshape(-1, *self.flow.shape), self.linearization, transposed)
        with torch.no_grad():
            return solve(system, GMRES(), Stopping(rtol=self.rtol), system.precondition(system.b)).value.reshape(
                r.shape
            )


class KeptMatrix:
    """The systems of a run with dense matrices. Jacobians are kept until they are stale."""

    def __init__(self, flow: Flow, modes: Modes | None = None) -> None:
        self.flow, self.modes = flow, modes

    def prepare(self, samples: Samples, t: Tensor, tau: Tensor) -> System:
        """The systems for steps from t with tau, (batch,) both, with a new Jacobian where the old one is `stale`."""
        stale = samples.stale
        if bool(stale.any()):
            new = self._jacobian(t, samples.y, tau, stale)
            # An infinite matrix would make all corrections zero, as if the stage were solved.
            new = torch.where(new.isfinite(), new, torch.nan)
            samples.matrix = new if samples.matrix is None else torch.where(stale[:, None, None], new, samples.matrix)
            samples.matrix_tau = torch.where(stale, tau, samples.matrix_tau)
            samples.fresh = samples.fresh | stale
            samples.stale = torch.zeros_like(stale)
        assert samples.matrix is not None
        ratio = torch.where(samples.matrix_tau == 0, 0.0, tau / samples.matrix_tau)
        matrix = ratio.to(samples.y.dtype)[:, None, None] * samples.matrix
        if self.modes is not None:
            return CoupledFactors(matrix, self.modes)
        return Factors(torch.eye(samples.y.shape[1], dtype=matrix.dtype, device=matrix.device) - matrix)

    def _jacobian(self, t: Tensor, y: Tensor, tau: Tensor, stale: Tensor) -> Tensor:
        """tau J of the stale samples, (batch, n, n); the other rows are arbitrary."""
        if not self.flow.field.rowwise or bool(stale.all()):
            return self.flow.step_matrix(t, y, tau)
        rows = stale.nonzero()[:, 0]
        new = y.new_zeros(*y.shape, y.shape[1])
        return new.index_copy(0, rows, self.flow.step_matrix(t[rows], y[rows], tau[rows]))


class NewProducts:
    """The systems of a run as products with the Jacobian at the start of each step."""

    def __init__(self, flow: Flow) -> None:
        self.flow = flow

    def prepare(self, samples: Samples, t: Tensor, tau: Tensor) -> System:
        """The systems for steps from t with tau, (batch,) both."""
        samples.fresh, samples.stale = torch.ones_like(samples.fresh), torch.zeros_like(samples.stale)
        return Products(self.flow, t, samples.y, tau)


def systems(flow: Flow, method: Method) -> KeptMatrix | NewProducts:
    """The systems for a field and a method: dense or by products."""
    if flow.matrix:
        return KeptMatrix(flow, method.modes if method.coupled else None)
    return NewProducts(flow)


@dataclass
class Stage:
    """The result of the iterations of one stage.

    Attributes:
        increment: (batch, n), h times the slope of the stage.
        converged: (batch,).
        rate: (batch,), the contraction rate of the last iteration; zero if one was enough.
    """

    increment: Tensor
    converged: Tensor
    rate: Tensor


@dataclass(frozen=True)
class SimplifiedNewton:
    """Solves z = G(z) for a stage, G(z) = tau F(t, b + z) with tau = h gamma, or for coupled stages, by

        z <- z + (I - tau J)^{-1} (G(z) - z),      J of an earlier state.

    The unknown is the increment z, not the state b + z, so that its rounding is relative to its own size. The iteration
    of a sample ends when the error estimated from its contraction is below the tolerance, in the weighted norm.

    Attributes:
        tolerance: the norm.
        accuracy: the largest error of a stage, in the weighted norm.

    Reference: Hairer & Wanner, Solving ordinary differential equations II, section IV.8.
    """

    tolerance: Tolerance
    accuracy: float

    def solve(
        self,
        G: Callable[[Tensor], Tensor],
        guess: Tensor,
        weights: Tensor,
        system: System,
        samples: Samples,
        wanted: Tensor,
    ) -> Stage:
        """Solves one stage, or all coupled ones.

        Arguments:
            G: maps (batch, n) to (batch, n).
            guess: (batch, n), of z.
            weights: (batch, n), of the norm.
            system: I - tau J.
            samples: their last contraction is read and written.
            wanted: mask (batch,) of the samples to solve.
        """
        accuracy, lost = self.accuracy, None
        # Samples that are not wanted move, too: nobody reads them. There is no rate yet: the last one is used. Values
        # that are not finite fail all comparisons, and are not solved.
        update = system.solve(G(guess) - guess)
        z, size = guess + update, (update * weights).abs().amax(1)
        running = wanted > (samples.contraction * size <= accuracy)  # and not
        if not bool(running.any()):
            return Stage(z, wanted, torch.zeros_like(size))
        rate = torch.zeros_like(size)
        for iteration in range(1, _MOST_ITERATIONS):
            update = system.solve(G(z) - z)
            z = torch.where(running[:, None], z + update, z)
            size, last = (update * weights).abs().amax(1), size
            now = size / last
            rate = torch.where(running, now, rate)
            # The error is now / (1 - now) * size; never true for now >= 1.
            running = running > (now * (size + accuracy) <= accuracy)
            if iteration > _FIRST_DOUBT:  # The rest of the iterations would not be enough.
                rest = now ** (_MOST_ITERATIONS - 1 - iteration)
                hopeless = running > (now * (size * rest + accuracy) <= accuracy)
                running, lost = running > hopeless, hopeless if lost is None else lost | hopeless
            if not bool(running.any()):
                break
        # Beyond 1, the rate of a divergent iteration, the estimate is larger than 1 in size.
        factor = (rate / (1 - rate)).abs().clamp(min=1e-16)
        samples.contraction = torch.where(rate > 0, factor, samples.contraction)
        solved = wanted if lost is None else wanted > lost
        return Stage(z, solved > running, rate)
