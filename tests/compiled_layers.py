"""What the tests of compiled layers share."""

import pytest
import torch
from torch import Tensor, nn

from resolvent.blocks import ThetaBlock

# torch's compiler uses the one, and looks at the .grad of all that it is given.
MARKS = [
    pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"),
    pytest.mark.usefixtures("fast_compiler"),
]


class Gated(nn.Module):
    """A network with a forward of its own, whose Jacobian is not known in closed form."""

    def __init__(self, unknowns: int) -> None:
        super().__init__()
        self.value, self.gate = nn.Linear(unknowns, 7), nn.Linear(unknowns, 7)
        self.out = nn.Linear(7, unknowns)

    def forward(self, y: Tensor) -> Tensor:
        return self.out(torch.tanh(self.value(y)) * torch.sigmoid(self.gate(y)))


def results(block: ThetaBlock, x: Tensor, t0: float | Tensor = 0.0) -> list[Tensor]:
    """The states, and gradients of a function of all of them with respect to x and the weights."""
    states = block.trajectory(x, t0).states
    weights = torch.sin(torch.arange(states.numel(), dtype=states.dtype)).reshape(states.shape)
    return [states, *torch.autograd.grad((weights * states).sum(), [x, *block.parameters()])]
