"""Adaptive integration of differential equations, per sample, with exact gradients."""

from resolvent.integrate.events import Jumps as Jumps
from resolvent.integrate.odeint import odeint as odeint
from resolvent.integrate.result import Integration as Integration
from resolvent.integrate.result import IntegrationStatus as IntegrationStatus
