"""Solvers for the resolvent equation, nonlinear and linear."""

from resolvent.solvers.homotopy import Homotopy as Homotopy
