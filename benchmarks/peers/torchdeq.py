"""torchdeq: fixed points of z -> x + theta h F(z), or of f(z, x) for equilibrium layers, by each of its solvers,
differentiated implicitly.

Its users would try its solvers, the memory and the regularisation of Anderson's method, and a looser tolerance, since
one more evaluation follows the solve. All of these are tried, and the fastest that reaches the tolerance counts.
"""

from functools import partial
from itertools import product

import torch
from torchdeq import get_deq
from torchdeq.solver import get_solver, register_solver

import resolvent as rs
from resolvent_lab.bench.contender import TorchContender
from resolvent_lab.bench.equilibria import EquilibriumLayer
from resolvent_lab.bench.layers import Layers

register_solver("anderson3", partial(get_solver("anderson"), m=3, lam=1e-10))
register_solver("anderson6", partial(get_solver("anderson"), m=6, lam=1e-10))
SOLVERS = ("fixed_point_iter", "anderson", "anderson3", "anderson6", "broyden")


class ThetaEquilibria(Layers):
    """Theta layers as deep equilibria."""

    def __init__(self, block, solver, tolerance, looser, shifted):
        super().__init__(block)
        self.shift = self.theta * self.h * float(self.field.linear_part) if shifted else 0.0
        self.looser = looser
        # What its solvers compare with the tolerance is the residual divided by 1 - theta h c. One object per layer:
        # they would take each other's hooks.
        self.equilibria = [make_deq(solver, tolerance / (1 - self.shift), looser) for _ in range(self.num_steps)]

    def layer(self, n, t, x):
        tau, shift = self.theta * self.h, self.shift

        def step(z):
            return (x + tau * self.field(t, z) - shift * z) / (1 - shift)

        z = fixed_point(self.equilibria[n], step, x.detach(), self.looser)
        return x + (z - x) / self.theta


class Equilibrium(EquilibriumLayer):
    """An equilibrium layer."""

    def __init__(self, old, solver, tolerance, looser):
        super().__init__(old.f)
        self.deq, self.looser = make_deq(solver, tolerance, looser), looser

    def forward(self, x):
        with rs.blocks.frozen_weights(self.f) as f:
            return fixed_point(self.deq, lambda z: f(z, x), torch.zeros_like(x), self.looser)


def make_deq(solver, tolerance, looser):
    """The hook spares an evaluation in the backward pass."""
    forward = {"f_solver": solver, "f_tol": looser * tolerance, "f_stop_mode": "rel", "f_max_iter": 200}
    backward = {"b_solver": solver, "b_tol": tolerance, "b_stop_mode": "rel", "b_max_iter": 200}
    return get_deq(hook_ift=True, **forward, **backward)


def fixed_point(deq, step, start, looser):
    training = torch.is_grad_enabled()
    z = deq.train(training)(step, start)[0][-1]
    # In training one more evaluation follows of itself.
    return step(z) if looser > 1 and not training else z


def candidates(task, name="torchdeq", shifted=False):
    """All settings by name."""
    layers = Equilibrium if task.theta is None else partial(ThetaEquilibria, shifted=shifted)
    converts = {
        _name(solver, looser): partial(layers, solver=solver, tolerance=task.tolerance, looser=looser)
        for solver, looser in product(SOLVERS, (1, 10, 100))
    }
    return {setting: partial(TorchContender, name, task, convert) for setting, convert in converts.items()}


def _name(solver, looser):
    return f"{solver}, tolerance x{looser}" if looser > 1 else solver
