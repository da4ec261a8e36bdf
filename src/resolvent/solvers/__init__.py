"""Solvers for the resolvent equation, nonlinear and linear. Common ones are at the top level, such as `rs.Newton`."""

from resolvent.solvers.homotopy import Homotopy as Homotopy
from resolvent.solvers.newton import Chord as Chord
