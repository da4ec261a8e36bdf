"""Trace, Frobenius norm and diagonal of a Jacobian, from products with random vectors."""

from dataclasses import replace

import torch
from torch import Tensor

from resolvent.equation.jacobian import Field, Jacobian, Time, field_jacobian
from resolvent.equation.norms import dot, flat
from resolvent.equation.structure import Structured, structure_of
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


def diagonal(
    field: Field,
    t: Time,
    y: Structured,
    *,
    probes: int = 1,
    distribution: str = "rademacher",
    generator: torch.Generator | None = None,
    exact: bool = False,
    detach: bool = True,
) -> Structured:
    """Estimates the diagonal of the Jacobian J = dF/dy, for each sample.

        diag J = (sum of z * J^T z) / (sum of z * z),      elementwise, sums over the probes z

    It is exact for a diagonal J with any probes. The default is n random signs: entry i then has the variance
    sum over j != i of J_ji^2 / n. For n Gaussian probes the quotient has a mean for n >= 2, the true diagonal, and a
    variance for n >= 3: sum over j != i of J_ji^2 / (n - 2).

    Arguments:
        field, t, y, probes, generator, detach: as for `trace`.
        distribution: of the probes, "gaussian" (as in the paper) or "rademacher", see `Probes`.
        exact: whether to compute the diagonal instead, by one product per entry of a sample.

    Returns:
        Like y.

    Reference: Bekas, Kokiopoulou and Saad, An estimator for the diagonal of a matrix, 2007.
    """
    vectors = Probes(probes, distribution, generator)
    J = field_jacobian(field, t, y, detach)
    if exact:
        found = J.matrix().diagonal(dim1=1, dim2=2).reshape(J.point.shape)
    else:
        drawn = list(vectors.draw(J.point))
        products = torch.stack([z * J.transposed_product(z) for z in drawn])
        found = products.sum(0) / torch.stack(drawn).square().sum(0)
    return found if isinstance(y, Tensor) else structure_of(y, "y").unflatten(found)
