"""Trace and Frobenius norm of a Jacobian, by Hutchinson's estimator."""

import torch
from torch import Tensor

from resolvent.equation.jacobian import Field, Time, field_jacobian
from resolvent.equation.norms import dot
from resolvent.equation.structure import Structured
from resolvent.estimators.hutchpp import deflated_trace
from resolvent.estimators.probes import Probes


def trace(
    field: Field,
    t: Time,
    y: Structured,
    *,
    probes: int = 1,
    distribution: str = "gaussian",
    generator: torch.Generator | None = None,
    exact: bool = False,
    hutchpp: bool = False,
    detach: bool = True,
) -> Tensor:
    """Estimates the trace of the Jacobian J = dF/dy, the divergence of the field, for each sample.

        tr J = E[z^T J z]

    The estimate is unbiased, and so is its derivative with respect to parameters. With n Gaussian probes its variance
    is |J + J^T|_F^2 / 2n; for signs the same without the diagonal of J + J^T.

    Arguments:
        field: F(t, y), or F(y) if t is None. It must treat each sample alone.
        t: time, a number, a 0-d tensor or (batch,); None if F is a function of the state alone.
        y: (batch, *shape), or several such tensors in a structure.
        probes: the number of vectors z, and of products with J, to average over.
        distribution: of the probes, "gaussian" or "rademacher", see `Probes`.
        generator: of the probes, see `Probes`.
        exact: whether to compute the trace instead, by one product per entry of a sample.
        hutchpp: whether to use a third of the probes to find the directions in which J is large, and a third to compute
            their part of the trace exactly. It helps if few directions dominate, and needs at least 3 probes.
        detach: whether y counts as a constant; otherwise gradients flow into it. They always flow into the parameters
            of the field, unless autograd is off.

    Returns:
        (batch,).

    Reference: Hutchinson, A stochastic estimator of the trace of the influence matrix, 1989; Meyer, Musco, Musco and
    Woodruff, Hutch++: optimal stochastic trace estimation, 2021.
    """
    if exact and hutchpp:
        raise ValueError("exact=True and hutchpp=True exclude each other: an exact trace takes no probes.")
    vectors = Probes(probes, distribution, generator)
    if not hutchpp:
        return _both(field, t, y, vectors, exact, detach)[0]
    if probes < 3:
        raise ValueError(f"hutchpp=True divides its probes in three and needs at least 3, got {probes}.")
    return deflated_trace(field_jacobian(field, t, y, detach), vectors)


def frobenius(
    field: Field,
    t: Time,
    y: Structured,
    *,
    probes: int = 1,
    distribution: str = "gaussian",
    generator: torch.Generator | None = None,
    exact: bool = False,
    detach: bool = True,
) -> Tensor:
    """Estimates the squared Frobenius norm of the Jacobian, for each sample.

        |J|_F^2 = tr(J J^T) = E|J^T z|^2

    The estimate of the square is unbiased; its root would be a biased estimate of the norm. The arguments are those of
    `trace`.

    Returns:
        (batch,).
    """
    return _both(field, t, y, Probes(probes, distribution, generator), exact, detach)[1]


def trace_and_frobenius(
    field: Field,
    t: Time,
    y: Structured,
    *,
    probes: int = 1,
    distribution: str = "gaussian",
    generator: torch.Generator | None = None,
    exact: bool = False,
    detach: bool = True,
) -> tuple[Tensor, Tensor]:
    """Estimates the trace and the squared Frobenius norm of the Jacobian together.

    Both use the same products J^T z: one evaluation of F, and one backward pass per probe. The arguments are those of
    `trace`.

    Returns:
        tr J and |J|_F^2, (batch,) each.
    """
    return _both(field, t, y, Probes(probes, distribution, generator), exact, detach)


def _both(field: Field, t: Time, y: Structured, probes: Probes, exact: bool, detach: bool) -> tuple[Tensor, Tensor]:
    J = field_jacobian(field, t, y, detach)
    if exact:
        matrix = J.matrix()
        return matrix.diagonal(dim1=1, dim2=2).sum(1), matrix.square().sum((1, 2))
    pairs = [(z, J.transposed_product(z)) for z in probes.draw(J.point)]
    traces = torch.stack([dot(z, product) for z, product in pairs])
    squares = torch.stack([dot(product, product) for _, product in pairs])
    return traces.mean(0), squares.mean(0)
