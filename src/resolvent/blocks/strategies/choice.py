"""Strategies by name, and the default."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from resolvent.blocks.strategies.all_together import FEWEST, AllTogether
from resolvent.blocks.strategies.compiled import Compiled
from resolvent.blocks.strategies.strategy import LayerByLayer, Strategy
from resolvent.schemes.scheme import Step

if TYPE_CHECKING:
    from resolvent.blocks.pass_ import Pass


@dataclass(frozen=True)
class Automatic(Strategy):
    """Solves all layers together if possible and at least three of them fit into a group; else layer by layer.

    The choice depends only on the settings of the block and the shape of a sample.
    """

    def check(self, pass_: "Pass") -> None:
        pass

    def steps(self, pass_: "Pass", x: Tensor) -> Iterator[Step]:
        together = AllTogether()
        if together.obstacle(pass_) is None and together.group(pass_, x) >= FEWEST:
            return together.steps(pass_, x)
        return LayerByLayer().steps(pass_, x)


# A compiled strategy keeps what it compiled, so every block gets its own.
_BY_NAME: dict[str, type[Strategy]] = {
    "auto": Automatic,
    "sequential": LayerByLayer,
    "parallel": AllTogether,
    "compiled": Compiled,
}
MODES = tuple(_BY_NAME)


def as_strategy(mode: str | Strategy) -> Strategy:
    """The strategy of this name, or the user's object."""
    if isinstance(mode, Strategy):
        return mode
    if mode not in _BY_NAME:
        raise ValueError(f"mode must be one of {MODES} or a strategy such as rs.blocks.LayerByLayer(), got {mode!r}.")
    return _BY_NAME[mode]()
