"""All layers of a network as one equation, for networks so small that the number of solves is what costs."""

import torch
from torch import Tensor

import resolvent as rs


class Simultaneous:
    """Trajectories of a `ThetaBlock`, from one solve for all of its layers instead of one solve a layer.

    With shared weights the stages z_n of the layers satisfy

        z_n = x + h (F(z_0) + ... + F(z_{n-1}) + theta F(z_n)),      y_n = x + h (F(z_0) + ... + F(z_{n-1})):

    one resolvent of num_steps times as many unknowns. Newton's method starts at the stages of the last call, which
    in training are those of the last epoch, and takes a step or two; for fifty layers in the plane an epoch takes a
    fifth of the time. If it fails, the layers are solved one by one, and it starts again from there.

    Arguments:
        block: in the midpoint form, with a field that does not depend on time.
    """

    def __init__(self, block: rs.ThetaBlock) -> None:
        if block.form != "midpoint" or not getattr(block.field, "autonomous", False):
            raise ValueError(f"layers are solved together for the midpoint form and autonomous fields, got {block}.")
        self.block = block
        self._stages: Tensor | None = None

    def trajectory(self, x: Tensor) -> rs.Trajectory:
        """The states at all grid points, for x (batch, *shape), as `ThetaBlock.trajectory` gives them."""
        block = self.block
        if block.theta == 0:
            return block.trajectory(x)
        shape = (len(x), block.num_steps, *x.shape[1:])
        known = self._stages is not None and self._stages.shape == shape
        try:
            solution = self._solve(x, self._stages if known else None)
        except rs.ConvergenceError:
            solution = self._solve(x, self._one_by_one(x))
        self._stages = solution.value.detach()
        increments = block.step_size * self._slopes(solution.value)
        states = torch.cat([x[:, None], x[:, None] + increments.cumsum(1)], dim=1).transpose(0, 1)
        times = torch.linspace(0, float(block.horizon), block.num_steps + 1, dtype=x.dtype)
        return rs.Trajectory(times, states, (solution,))

    def _solve(self, x: Tensor, guess: Tensor | None) -> rs.Solution:
        steps = self.block.num_steps
        mix = torch.ones(steps, steps, dtype=x.dtype).tril(-1) + self.block.theta * torch.eye(steps, dtype=x.dtype)

        def earlier_slopes(w: Tensor) -> Tensor:
            return torch.einsum("ij,bj...->bi...", mix, self._slopes(w))

        return rs.resolve(
            rs.Rowwise(earlier_slopes),
            x[:, None].expand(-1, steps, *x.shape[1:]),
            self.block.step_size,
            w0=guess,
            solver=rs.Newton(),
            adjoint=rs.ImplicitAdjoint(solver=rs.DenseLU()),
        )

    def _slopes(self, w: Tensor) -> Tensor:
        slopes: Tensor = self.block.field(0.0, w.flatten(0, 1))
        return slopes.reshape(w.shape)

    @torch.no_grad()
    def _one_by_one(self, x: Tensor) -> Tensor:
        states = self.block.trajectory(x).states
        return torch.lerp(states[:-1], states[1:], float(self.block.theta)).transpose(0, 1)
