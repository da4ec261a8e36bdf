"""Strategies: the order in which the layers of a block are solved."""

from resolvent.blocks.strategies.all_together import AllTogether as AllTogether
from resolvent.blocks.strategies.choice import MODES as MODES
from resolvent.blocks.strategies.choice import Automatic as Automatic
from resolvent.blocks.strategies.choice import as_strategy as as_strategy
from resolvent.blocks.strategies.compiled import Compiled as Compiled
from resolvent.blocks.strategies.strategy import LayerByLayer as LayerByLayer
from resolvent.blocks.strategies.strategy import Strategy as Strategy
