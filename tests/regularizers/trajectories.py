"""Fields with trajectories to penalise, and the penalty of the paper by a straightforward dense computation."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from resolvent.blocks import ThetaBlock, Trajectory
from resolvent.equation.stopping import Stopping
from resolvent.fields import MLP, Bounded, Conv, Field, GradientFlow, Hamiltonian, Piecewise

STEPS = 4
HORIZON = 2.0
SHARP = Stopping(rtol=1e-13, atol=1e-14)


class Rotation(Field):
    """Depends on time, and treats each sample alone."""

    rowwise = True

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 3))

    def forward(self, t: float | Tensor, y: Tensor) -> Tensor:
        phase = torch.as_tensor(t, dtype=y.dtype).reshape(-1, 1)
        return torch.tanh(y @ self.weight) * torch.cos(3 * phase) + torch.sin(phase) * y


class Opaque(nn.Module):
    """Any other module: what it does with a batch is not known."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Rotation()

    def forward(self, t: float | Tensor, y: Tensor) -> Tensor:
        return self.inner(t, y)


FIELDS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": (lambda: MLP(3, 5, 1), (3,)),
    "conv": (lambda: Conv(2, 2, size=(3, 2), activation=nn.Tanh()), (2, 3, 2)),
    "bounded": (lambda: Bounded(Conv(2, 2, size=(2, 2), bound=1.0), -3.0, 1.0, scale=0.6), (2, 2, 2)),
    "gradient flow": (lambda: GradientFlow(nn.Linear(3, 4)), (3,)),
    "hamiltonian": (lambda: Hamiltonian(nn.Linear(2, 3), nn.Linear(2, 3)), (4,)),
    "piecewise": (lambda: Piecewise([MLP(3, 5, 1) for _ in range(STEPS)], HORIZON), (3,)),
    "piecewise in time": (lambda: Piecewise([Rotation() for _ in range(STEPS)], HORIZON), (3,)),
    "dependent on time": (Rotation, (3,)),
    "opaque": (Opaque, (3,)),
}


def follow(field: nn.Module, shape: Sequence[int], t0: float | Tensor = 0.0, theta: float = 0.5) -> Trajectory:
    """The trajectories of three samples."""
    return ThetaBlock(field, theta, STEPS, HORIZON, stopping=SHARP).trajectory(torch.randn(3, *shape), t0)


def dense_penalty(
    field: nn.Module, trajectory: Trajectory, power: float, fraction: float | None = None
) -> tuple[float, float, float]:
    """The divergence term, the divergence without (t/T)^p, and the Jacobian term, with all weights 1.

    Loops over times and samples; piece min(t, T-1) of a piecewise field is chosen by its index, not by the time.
    """
    states, times = trajectory.states.detach(), trajectory.times
    T, batch, d = len(states) - 1, states.shape[1], states[0, 0].numel()
    weighted = plain = jacobian = 0.0
    for t in range(T + 1 if fraction is None else T):
        if fraction is None:
            share, position, time, state = (0.5 if t in (0, T) else 1.0), t, times[t], states[t]
        else:
            share, position = 1.0, t + fraction
            time = (1 - fraction) * times[t] + fraction * times[t + 1]
            state = (1 - fraction) * states[t] + fraction * states[t + 1]
        F = field.pieces[min(t, T - 1)] if isinstance(field, Piecewise) else field
        for i in range(batch):
            moment = time[i] if time.dim() else time
            J = torch.func.jacrev(lambda row, F=F, moment=moment: F(moment, row[None])[0])(state[i]).reshape(d, d)
            weighted += share * (position / T) ** power * J.trace().item() / (d * T * batch)
            plain += share * J.trace().item() / (d * T * batch)
            jacobian += share * J.square().sum().item() / (d**2 * T * batch)
    return weighted, plain, jacobian
