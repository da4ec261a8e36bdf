"""Blocks of layers: several steps of a scheme through a field, and their memory policies."""

from resolvent.blocks.block import Block as Block
from resolvent.blocks.check_field import check_field as check_field
from resolvent.blocks.cuda_graph import CudaGraph as CudaGraph
from resolvent.blocks.cuda_graph import cuda_graph as cuda_graph
from resolvent.blocks.equilibrium import Equilibrium as Equilibrium
from resolvent.blocks.export import export as export
from resolvent.blocks.fail_together import FailTogether as FailTogether
from resolvent.blocks.implicit import make_implicit as make_implicit
from resolvent.blocks.jvp import JvpResult as JvpResult
from resolvent.blocks.jvp import jvp as jvp
from resolvent.blocks.memory import Checkpoint as Checkpoint
from resolvent.blocks.memory import Memory as Memory
from resolvent.blocks.memory import Reversible as Reversible
from resolvent.blocks.memory import Store as Store
from resolvent.blocks.monitor import Monitor as Monitor
from resolvent.blocks.monitor import SolveRecord as SolveRecord
from resolvent.blocks.pass_ import Pass as Pass
from resolvent.blocks.randomness import FrozenRandomness as FrozenRandomness
from resolvent.blocks.solved_with import solved_with as solved_with
from resolvent.blocks.strategies import AllTogether as AllTogether
from resolvent.blocks.strategies import Compiled as Compiled
from resolvent.blocks.strategies import LayerByLayer as LayerByLayer
from resolvent.blocks.strategies import Strategy as Strategy
from resolvent.blocks.theta_block import ThetaBlock as ThetaBlock
from resolvent.blocks.trajectory import Trajectory as Trajectory
from resolvent.blocks.weights import frozen_weights as frozen_weights
