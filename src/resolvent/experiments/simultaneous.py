"""All layers of a network as one equation, for networks so small that the number of solves is what costs."""

import torch
from torch import Tensor

import resolvent as rs
from resolvent.blocks.weights import frozen_weights
from resolvent.equation.function import as_vector_field
from resolvent.schemes.interval import Field

PATIENT = rs.Stopping(patience=500)
"""The residual of a flow that passes a fold rises before it falls."""


class Simultaneous:
    """Trajectories of a `ThetaBlock`, from one solve for all of its layers instead of one solve a layer.

    The stages z_n of the layers, at the times t_n + theta h, satisfy

        z_n = x + h (F(z_0) + ... + F(z_{n-1}) + theta F(z_n)),      y_n = x + h (F(z_0) + ... + F(z_{n-1})):

    one resolvent of num_steps times as many unknowns. Newton's method starts at the stages of the last call with the
    same input, which in training are those of the last epoch, and takes a step or two; for fifty layers in the plane
    an epoch takes a fifth of the time. If it fails, the layers are solved one by one, by `PseudoTransient` where need
    be, and it starts again from there; `restarts` counts how often. If that fails, too, it is an error.

    For theta = 1 a field of pieces is read at the start of the layers: their end may be in the next piece.

    Arguments:
        block: in the midpoint form, with a field that treats each sample alone.
    """

    def __init__(self, block: rs.ThetaBlock) -> None:
        if block.form != "midpoint" or not getattr(block.field, "rowwise", False):
            raise ValueError(f"layers are solved together for the midpoint form and rowwise fields, got {block}.")
        self.block = block
        self.theta = float(block.theta)
        self.restarts = 0
        self._stages: dict[bytes, Tensor] = {}

    def trajectory(self, x: Tensor, t0: Tensor | float = 0.0) -> rs.blocks.Trajectory:
        """The states at all grid points, for x (batch, *shape) and t0 as in `ThetaBlock.trajectory`."""
        block = self.block
        if self.theta == 0:
            return block.trajectory(x, t0)
        start = torch.as_tensor(t0, dtype=x.dtype)
        h = float(block.step_size)
        layers = torch.arange(block.num_steps + 1, dtype=x.dtype)
        times = start.expand(len(x))[:, None] + h * (layers[:-1] + (self.theta if self.theta < 1 else 0.0))
        with frozen_weights(block.field) as field:
            solution = self._solve(field, x, times)
            increments = h * field(times.flatten(), solution.value.flatten(0, 1)).reshape(solution.value.shape)
        states = torch.cat([x[:, None], x[:, None] + increments.cumsum(1)], dim=1).transpose(0, 1)
        grid = h * layers if start.dim() == 0 else h * layers[:, None]
        return rs.blocks.Trajectory(start + grid, states, (solution,))

    def _solve(self, field: Field, x: Tensor, times: Tensor) -> rs.Solution:
        key = x.detach().numpy().tobytes()
        try:
            solution = self._newton(field, x, times, self._stages.get(key))
        except rs.ConvergenceError:
            self.restarts += 1
            solution = self._newton(field, x, times, self._one_by_one(field, x, times))
        self._stages[key] = solution.value.detach()
        return solution

    def _newton(self, field: Field, x: Tensor, times: Tensor, guess: Tensor | None) -> rs.Solution:
        steps = self.block.num_steps
        mix = torch.ones(steps, steps, dtype=x.dtype).tril(-1) + self.theta * torch.eye(steps, dtype=x.dtype)
        return rs.resolve(
            as_vector_field(field).together(times.unbind(1), mix, x, triangular=True),
            x[:, None].expand(-1, steps, *x.shape[1:]),
            float(self.block.step_size),
            w0=guess,
            solver=rs.Newton(),
            adjoint=rs.ImplicitAdjoint(solver=rs.DenseLU()),
        )

    @torch.no_grad()
    def _one_by_one(self, field: Field, x: Tensor, times: Tensor) -> Tensor:
        """The stages, layer by layer."""
        states, stages = x, []
        for t in times.unbind(1):
            tau = self.theta * float(self.block.step_size)
            layer = rs.Rowwise(lambda w, t: field(t, w), t)
            solver = rs.Fallback((rs.Newton(), rs.PseudoTransient()))
            stages.append(rs.resolve(layer, states, tau, solver=solver, stopping=PATIENT).value)
            states = states + (stages[-1] - states) / self.theta
        return torch.stack(stages, dim=1)
