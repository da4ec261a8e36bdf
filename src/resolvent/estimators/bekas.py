"""The diagonal of a Jacobian, by the estimator of Bekas, Kokiopoulou and Saad."""

from typing import Any

import torch
from torch import Tensor

from resolvent.equation.jacobian import Field, Time, field_jacobian
from resolvent.equation.structure import Structured, structure_of
from resolvent.estimators.probes import Probes


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
) -> Any:
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
