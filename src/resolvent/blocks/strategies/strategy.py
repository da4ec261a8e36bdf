"""The strategy interface, and `LayerByLayer`."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from resolvent.schemes.scheme import Step

if TYPE_CHECKING:
    from resolvent.blocks.pass_ import Pass


class Strategy(ABC):
    """The order in which the layers of a pass are solved.

    A strategy changes results only within the tolerance of the solves. Its decisions must not depend on the batch: the
    result of a sample depends only on that sample, the weights and the settings of the block.
    """

    @abstractmethod
    def check(self, pass_: "Pass") -> None:
        """Raises a ValueError if the strategy does not support the pass, for any input."""

    @abstractmethod
    def steps(self, pass_: "Pass", x: Tensor) -> Iterator[Step]:
        """All steps from the state x, in order of time."""


@dataclass(frozen=True)
class LayerByLayer(Strategy):
    """Solves one layer after the other."""

    def check(self, pass_: "Pass") -> None:
        pass

    def steps(self, pass_: "Pass", x: Tensor) -> Iterator[Step]:
        return pass_.in_turn(range(pass_.num_steps), x)
