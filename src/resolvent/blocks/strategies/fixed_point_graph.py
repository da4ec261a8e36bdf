"""The fixed point for a group of theta layers, and its transpose for the backward pass, as functions without
data-dependent decisions, for `torch.compile`."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from resolvent.blocks.strategies.group_equation import Group, Solved, layer_sums, solved
from resolvent.blocks.strategies.group_tolerance import LayerTest
from resolvent.equation.contraction import first_by_secants
from resolvent.equation.norms import per_sample, power_of_two, rms
from resolvent.equation.secants import Secants


class Transposed(NamedTuple):
    """The result of `solve_transposed`.

    Attributes:
        x: (batch, *shape), the cotangent of the state at the start.
        slopes: how the system for that of h F(w) was solved.
    """

    x: Tensor
    slopes: Solved


def solve_group(group: Group, x: Tensor, rows: int, steps: int) -> tuple[Tensor, Tensor, Solved]:
    """Makes `steps` steps of the fixed point w <- x + h M F(w) for all samples; converged samples do not move.

    Returns the states at the ends of the layers, (batch, rows, *shape), without a graph; the slopes h F(w) of all
    layers, with a graph where autograd records; and how the solve went.

    Arguments:
        group: the equation.
        x: (batch, *shape), the state at the start.
        rows: number of layers.
        steps: number of steps.
    """
    b = x.detach().unsqueeze(1).expand(-1, rows, *x.shape[1:])
    theta = group.theta
    with torch.no_grad():
        tolerance = group.atol + group.rtol * rms(b)
        test = LayerTest(group.layer_rtol, group.layer_atol, theta)
        iteration = _Iteration(
            lambda w: b + group.h * layer_sums(group.slopes(w), theta) - w, group.precondition, test.norm
        )
        w, made = iteration.steps(group.precondition(b), tolerance, steps)
        slopes = group.h * group.slopes(w)
        r = b + layer_sums(slopes, theta) - w
        norm = test.norm(r)
        good = norm <= tolerance
        states = w.clone() if theta == 1 else b + layer_sums(slopes, 1.0)
        if rows > 1:
            good = test.each(good, r, b, w, states)
    if torch.is_grad_enabled():
        # The compiler sees that this is the evaluation above.
        slopes = group.h * group.slopes(w)
    return states, slopes, solved(w, norm, made, good.all())


def solve_transposed(group: Group, w: Tensor, g: Tensor, steps: int) -> Transposed:
    """The derivative of the states y = x + h L F(w) with respect to x and q = h F(w), applied to a cotangent g of y. L
    has ones on and below its diagonal. With J = h F'(w),

        v = L^T g + M^T J^T v

    is the cotangent of q, and the sum over the rows of g + J^T v that of x. `steps` steps of the fixed point are made
    for all samples; converged samples do not move.
    """
    theta = group.theta
    with torch.no_grad():
        product = torch.func.vjp(lambda w: group.h * group.slopes(w), w)[1]
        right = layer_sums(g, 1.0, transposed=True)
        # Of moderate size: gradients may be so small that their squares are zero.
        unit = per_sample(power_of_two(right), right)
        right = right / unit
        tolerance = group.layer_rtol * rms(right)

        def defect(v: Tensor) -> Tensor:
            return right + layer_sums(product(v)[0], theta, transposed=True) - v

        v, made = _Iteration(defect, group.precondition, rms).steps(group.precondition(right), tolerance, steps)
        image = product(v)[0]
        norm = rms(right + layer_sums(image, theta, transposed=True) - v)
        x = (g + unit * image).sum(1)
        return Transposed(x, solved(unit * v, norm * unit.flatten(), made, (norm <= tolerance).all()))


class _Iteration(NamedTuple):
    """The fixed point w <- w + precondition(defect(w)). A sample stops when the size of its defect is at most its
    tolerance."""

    defect: Callable[[Tensor], Tensor]
    precondition: Callable[[Tensor], Tensor]
    size: Callable[[Tensor], Tensor]

    def steps(self, w: Tensor, tolerance: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """The iterate after so many steps from w, and how many each sample has made. Later ones are accelerated."""
        secants_from, secants = first_by_secants(w[0].numel()), Secants()
        made = torch.zeros_like(tolerance, dtype=torch.int32)
        for number in range(1, count + 1):
            r = self.defect(w)
            going = ~(self.size(r) <= tolerance)
            step = self.precondition(r)
            moved = w + step
            if number >= secants_from:
                moved = secants.next(step, moved)
            w = torch.where(per_sample(going, w), moved, w)
            made = made + going
        return w, made
