"""Solvers for the resolvent equation, nonlinear and linear."""
