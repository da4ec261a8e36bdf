"""What a strategy is, and the plainest one."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from resolvent.schemes.scheme import Step

if TYPE_CHECKING:
    from resolvent.blocks.pass_ import Pass


class Strategy(ABC):
    """In which order the layers of a pass are solved for.

    A strategy changes no result beyond the tolerance of the solves. It must not look at the batch to decide anything:
    what becomes of a sample depends on that sample, the weights and the settings of the block alone.
    """

    @abstractmethod
    def check(self, pass_: "Pass") -> None:
        """Raises a ValueError if the strategy cannot serve the pass, whatever its input."""

    @abstractmethod
    def steps(self, pass_: "Pass", x: Tensor) -> Iterator[Step]:
        """All steps from the state x, in the order of time."""


@dataclass(frozen=True)
class LayerByLayer(Strategy):
    """Solves for one layer after the other."""

    def check(self, pass_: "Pass") -> None:
        pass

    def steps(self, pass_: "Pass", x: Tensor) -> Iterator[Step]:
        return pass_.in_turn(range(pass_.num_steps), x)
