"""torchdeq: fixed points of z -> x + theta h F(z), by each of its solvers, differentiated implicitly.

Its users would try its solvers, the memory and the regularisation of Anderson's method, and a looser tolerance, since
one more evaluation follows the solve. All of these are tried, and the fastest that reaches the tolerance counts.
"""

from functools import partial
from itertools import product

import torch
from torchdeq import get_deq
from torchdeq.solver import get_solver, register_solver

from resolvent_lab.bench.contender import TorchContender
from resolvent_lab.bench.layers import Layers

register_solver("anderson3", partial(get_solver("anderson"), m=3, lam=1e-10))
register_solver("anderson6", partial(get_solver("anderson"), m=6, lam=1e-10))
SOLVERS = ("fixed_point_iter", "anderson", "anderson3", "anderson6", "broyden")


class Equilibrium(Layers):
    """Theta layers as deep equilibria."""

    def __init__(self, block, solver, tolerance, looser, shifted):
        super().__init__(block)
        self.shift = self.theta * self.h * float(self.field.linear_part) if shifted else 0.0
        # What its solvers compare with the tolerance is the residual divided by 1 - theta h c.
        tolerance, self.looser = tolerance / (1 - self.shift), looser
        # The hook spares an evaluation in the backward pass. One object per layer: they would take each other's hooks.
        self.equilibria = [
            get_deq(
                hook_ift=True,
                f_solver=solver,
                b_solver=solver,
                f_tol=looser * tolerance,
                b_tol=tolerance,
                f_stop_mode="rel",
                b_stop_mode="rel",
                f_max_iter=200,
                b_max_iter=200,
            )
            for _ in range(self.num_steps)
        ]

    def layer(self, n, t, x):
        tau, shift = self.theta * self.h, self.shift

        def step(z):
            return (x + tau * self.field(t, z) - shift * z) / (1 - shift)

        training = torch.is_grad_enabled()
        z = self.equilibria[n].train(training)(step, x.detach())[0][-1]
        if self.looser > 1 and not training:
            z = step(z)  # which in training follows of itself
        return x + (z - x) / self.theta


def candidates(task, name="torchdeq", shifted=False):
    """All settings by name."""
    converts = {
        _name(solver, looser): partial(
            Equilibrium, solver=solver, tolerance=task.tolerance, looser=looser, shifted=shifted
        )
        for solver, looser in product(SOLVERS, (1, 10, 100))
    }
    return {setting: partial(TorchContender, name, task, convert) for setting, convert in converts.items()}


def _name(solver, looser):
    return f"{solver}, tolerance x{looser}" if looser > 1 else solver
