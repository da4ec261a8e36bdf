"""Estimates of traces, norms and diagonals of the Jacobian of a field, from products with it."""

from resolvent.estimators.probes import Probes as Probes
from resolvent.estimators.probes import rank_generator as rank_generator
from resolvent.estimators.stochastic import diagonal as diagonal
from resolvent.estimators.stochastic import frobenius as frobenius
from resolvent.estimators.stochastic import trace as trace
from resolvent.estimators.stochastic import trace_and_frobenius as trace_and_frobenius
