"""`Integration`, the result of `odeint`, and the status of its samples."""

from dataclasses import dataclass, field
from enum import IntEnum

from torch import Tensor
from torch.utils._pytree import tree_map


class IntegrationStatus(IntEnum):
    """How the integration of one sample ended."""

    RUNNING = 0
    DONE = 1
    MAX_STEPS = 2
    STEP_TOO_SMALL = 3
    NON_FINITE = 4
    NOT_SOLVED = 5
    STOPPED = 6

    @property
    def meaning(self) -> str:
        return _MEANING[self]


_MEANING = {
    IntegrationStatus.RUNNING: "not finished",
    IntegrationStatus.DONE: "reached the last time",
    IntegrationStatus.MAX_STEPS: "ran out of steps",
    IntegrationStatus.STEP_TOO_SMALL: "needed too small a step",
    IntegrationStatus.NON_FINITE: "met a value that is not finite",
    IntegrationStatus.NOT_SOLVED: "could not solve for a stage",
    IntegrationStatus.STOPPED: "stopped at an event",
}


@dataclass(frozen=True)
class Integration:
    """The result of `rs.odeint`, per sample.

    Attributes:
        times: (count,) or (count, batch), as given.
        states: (count, batch, *shape), differentiable, in the structure of y0; NaN at times that a sample did not
            reach.
        status: (batch,), `IntegrationStatus` codes.
        accepted, rejected: (batch,), numbers of steps.
        reached: (batch,), the last time that was reached, in float64; if an event stopped the sample, the time of the
            event, differentiable.
        final: (batch, *shape), the state at that time, differentiable.
        evaluations: the number of calls of the field, each for any number of samples, without the backward pass.
    """

    times: Tensor
    states: Tensor
    status: Tensor
    accepted: Tensor
    rejected: Tensor
    reached: Tensor
    final: Tensor
    evaluations: int = field(default=0)

    @property
    def done(self) -> Tensor:
        """(batch,), whether a sample reached its last time, or stopped at an event."""
        return (self.status == IntegrationStatus.DONE) | (self.status == IntegrationStatus.STOPPED)

    def __repr__(self) -> str:
        most = int((self.accepted + self.rejected).max()) if self.accepted.numel() else 0
        shape = tree_map(lambda part: tuple(part.shape), self.states)
        return (
            f"Integration({shape}: {int(self.done.sum())} of {self.status.numel()} done, "
            f"at most {most} steps, {self.evaluations} evaluations)"
        )
