"""Hutch++: a trace estimate with less variance, exact on the dominant directions."""

from dataclasses import replace

import torch
from torch import Tensor

from resolvent.equation.jacobian import Jacobian
from resolvent.equation.norms import dot, flat
from resolvent.estimators.probes import Probes


def deflated_trace(J: Jacobian, probes: Probes) -> Tensor:
    """The Hutch++ estimate of tr J, for each sample.

        tr J = tr(Q^T J^T Q) + E[z^T P J^T P z],      P = I - Q Q^T,      Q an orthonormal basis of the range of J^T S

    S has k random columns like z, k a third of the number of probes. The sketch J^T S takes k products, the first trace
    k more, and the second trace the rest.

    The equation holds for every Q. So derivatives may treat Q as a constant and are still unbiased.

    Arguments:
        J: the Jacobian.
        probes: at least 3.

    Returns:
        (batch,).
    """
    d = J.point.shape[1:].numel()
    rank = min(probes.count // 3, d)
    sketch = replace(probes, count=rank).draw(J.point)
    with torch.no_grad():
        image = torch.stack([flat(J.transposed_product(s)) for s in sketch], dim=2)
        Q, _ = torch.linalg.qr(image)
    columns = [q.reshape(J.point.shape) for q in Q.unbind(2)]
    trace = torch.stack([dot(q, J.transposed_product(q)) for q in columns]).sum(0)
    if rank == d:
        return trace
    rest = replace(probes, count=probes.count - 2 * rank)
    projected = [_project(Q, z) for z in rest.draw(J.point)]
    remainder = torch.stack([dot(z, J.transposed_product(z)) for z in projected]).mean(0)
    return trace + remainder


def _project(Q: Tensor, z: Tensor) -> Tensor:
    """P z, (batch, *shape)."""
    column = flat(z)[:, :, None]
    return (column - Q @ (Q.mT @ column)).reshape(z.shape)
