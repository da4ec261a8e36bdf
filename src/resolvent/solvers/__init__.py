"""Solvers for the resolvent equation, nonlinear and linear. Those for every equation are at the top, `rs.Newton`."""

from resolvent.solvers.homotopy import Homotopy as Homotopy
from resolvent.solvers.newton import Chord as Chord
from resolvent.solvers.splitting import ForwardBackward as ForwardBackward
from resolvent.solvers.splitting import PeacemanRachford as PeacemanRachford
