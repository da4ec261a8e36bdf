"""`Partitioned`: a field made of two fields, for RevNet, Verlet and leapfrog networks."""

from collections.abc import Callable

import torch
from torch import Tensor

from resolvent.fields.arguments import check_callable_field
from resolvent.fields.base import Field, Time


class Partitioned(Field):
    """Two fields, one for each half of the state: q' = V(t, p), p' = K(t, q).

    The state (q, p) is split in two along its first dimension (features or channels). With `schemes.REVNET` and h = 1
    this is the reversible block of RevNet, q1 = q + V(p), p1 = p + K(q1); with `schemes.VERLET` or `schemes.LEAPFROG`
    the network of that name. It also works with every other scheme.

    Arguments:
        velocity: V, a field (t, p) on (batch, *half).
        force: K, a field (t, q) on (batch, *half).

    Reference: Gomez et al., The reversible residual network, 2017; Chang et al., Reversible architectures for
    arbitrarily deep residual networks, 2018.
    """

    def __init__(self, velocity: Callable[[Time, Tensor], Tensor], force: Callable[[Time, Tensor], Tensor]) -> None:
        super().__init__()
        check_callable_field(velocity, "velocity")
        check_callable_field(force, "force")
        self.velocity = velocity
        self.force = force
        self.rowwise = all(getattr(part, "rowwise", False) for part in (velocity, force))
        self.autonomous = all(getattr(part, "autonomous", False) for part in (velocity, force))

    def forward(self, t: Time, y: Tensor) -> Tensor:
        q, p = self.split(y)
        return self.join(self.velocity(t, p), self.force(t, q))

    def split(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """The halves q and p of states."""
        if y.shape[1] % 2:
            raise ValueError(f"the state must have two equal halves, got {y.shape[1]} features or channels.")
        q, p = y.chunk(2, dim=1)
        return q, p

    def join(self, q: Tensor, p: Tensor) -> Tensor:
        """States with the halves q and p."""
        return torch.cat((q, p), dim=1)
