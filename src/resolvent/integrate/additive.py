"""Steps of additive methods: the linear part of the field is implicit, the rest explicit.

With F(t, y) = L y + N(t, y), a stage is

    (I - h a_ii L) W_i = y + h sum_{j < i} (a_ij L W_j + a^_ij N(t_j, W_j)),      y_new = y + h sum_j b_j F(t_j, W_j).

There is nothing to iterate, and autograd differentiates a step as it is.
"""

import torch
from torch import Tensor

from resolvent.integrate.flow import Flow
from resolvent.integrate.method import Method
from resolvent.integrate.samples import add


def additive_stages(method: Method, flow: Flow, times: list[Tensor], h: Tensor, y: Tensor) -> list[Tensor]:
    """The increments h F(t_j, W_j) of the stages, (batch, n) each.

    Arguments:
        method, flow: the pair of tables, and the field.
        times: (batch,), of each stage.
        h: (batch, 1).
        y: (batch, n), the state at the start.
    """
    assert method.explicit is not None
    linear: list[Tensor] = []
    rest: list[Tensor] = []
    for i, (row, explicit) in enumerate(zip(method.tableau.A, method.explicit.A, strict=True)):
        b = add(add(y, row[:i], linear), explicit[:i], rest)
        a = row[i]
        w = b if a == 0 else flow.linear_solve(b, a * h)
        product = h * flow.linear_product(w)
        # The equation of the stage gives L W without the rounding of a large product.
        linear.append(product if a == 0 else (w - b) / a)
        rest.append(h * flow(times[i], w) - product)
    return [x + z for x, z in zip(linear, rest, strict=True)]


def filtered_error(method: Method, flow: Flow, increments: list[Tensor], h: Tensor) -> Tensor:
    """The estimated error, damped by (I - h gamma L)^{-1} as the error of the step is."""
    error = add(torch.zeros_like(increments[0]), method.error, increments)
    return flow.linear_solve(error, method.diagonal * h)
