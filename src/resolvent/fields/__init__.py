"""Vector fields F(t, y), with what is known of their spectra."""

from .activations import Sin as Sin
from .activations import Slopes as Slopes
from .activations import nonexpansive as nonexpansive
from .activations import slopes_of as slopes_of
from .autonomous import Autonomous as Autonomous
from .base import Field as Field
from .base import Time as Time
from .bounded import Bounded as Bounded
from .conv import Conv as Conv
from .init import initialise as initialise
from .mlp import MLP as MLP
from .piecewise import Piecewise as Piecewise
from .structured import ConvexGradient as ConvexGradient
from .structured import GradientFlow as GradientFlow
from .structured import Hamiltonian as Hamiltonian
