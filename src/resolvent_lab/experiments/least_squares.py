"""The Levenberg-Marquardt method for networks with some hundred weights and residuals."""

import math
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

import resolvent as rs

_TRIALS = 6
_LARGEST_DAMPING = 1e8


class LevenbergMarquardt:
    """Minimises the sum of squares of residuals r(p) in the parameters p. A step solves

        (J^T J + damping m I) d = J^T r,      p <- p - d,

    where J is the derivative of r and m the mean of the diagonal of J^T J. It is repeated with more damping until it
    decreases the residuals.

    Arguments:
        parameters: of the network, which the residuals are a function of.
        batched: whether one backward pass can take all residuals together, or each of them takes one.
        damping: of the first step.

    Reference: Marquardt, An algorithm for least-squares estimation of nonlinear parameters, 1963.
    """

    def __init__(self, parameters: Iterable[Tensor], batched: bool = True, damping: float = 1e-3) -> None:
        self.parameters, self.batched = list(parameters), batched
        self.damping, self.loss = damping, math.inf

    def step(self, residuals: Callable[[], Tensor]) -> float:
        """One step; `residuals` computes (count,) at the present parameters. Returns their mean square after it.

        It is infinite, and nothing moves, where the field cannot be integrated to begin with. At a minimum, where no
        damping is enough, further steps do nothing.
        """
        if self.damping > _LARGEST_DAMPING:
            return self.loss
        try:
            r = residuals()
        except rs.ConvergenceError:
            self.damping = math.inf
            return self.loss
        self.loss = _mean_square(r)
        before = [p.detach().clone() for p in self.parameters]
        jacobian = self._jacobian(r)
        matrix, gradient = jacobian.T @ jacobian, jacobian.T @ r.detach()
        shift = matrix.diagonal().mean() * torch.eye(len(matrix), dtype=matrix.dtype, device=matrix.device)
        for _ in range(_TRIALS):
            move, _ = torch.linalg.solve_ex(matrix + self.damping * shift, gradient)
            self._put(before, move)
            found = mean_square_at(residuals)
            if found < self.loss:
                self.damping, self.loss = max(self.damping / 5, 1e-10), found
                return self.loss
            self.damping *= 4
        self._put(before, torch.zeros_like(gradient))
        return self.loss

    def _jacobian(self, r: Tensor) -> Tensor:
        """(count, number of parameters)."""
        if self.batched:
            rows = torch.eye(len(r), dtype=r.dtype, device=r.device)
            parts = torch.autograd.grad(r, self.parameters, rows, is_grads_batched=True)
            return torch.cat([part.reshape(len(r), -1) for part in parts], 1)
        each = (torch.autograd.grad(value, self.parameters, retain_graph=True) for value in r)
        return torch.stack([torch.cat([part.flatten() for part in parts]) for parts in each])

    @torch.no_grad()
    def _put(self, before: list[Tensor], move: Tensor) -> None:
        moves = move.split([p.numel() for p in before])
        for parameter, old, part in zip(self.parameters, before, moves, strict=True):
            parameter.copy_(old - part.reshape(old.shape))


@torch.no_grad()
def mean_square_at(residuals: Callable[[], Tensor]) -> float:
    """The mean square of the residuals, or infinity where a field cannot be integrated."""
    try:
        found = _mean_square(residuals())
    except rs.ConvergenceError:
        return math.inf
    return found if math.isfinite(found) else math.inf


def _mean_square(r: Tensor) -> float:
    return float(r.detach().square().mean())
