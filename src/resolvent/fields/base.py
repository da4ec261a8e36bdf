"""`Field`: the base class of vector fields."""

from abc import ABC, abstractmethod
from collections.abc import Callable

from torch import Tensor, nn

from resolvent.spectral import Disc

Time = float | Tensor


class Field(nn.Module, ABC):
    """A vector field F(t, y), the right-hand side of y' = F(t, y).

    A subclass defines `forward` and, where it can, says what it knows of itself: solvers, blocks and certificates read
    the attributes below. What is not declared is not assumed: they take something slower, or refuse.
    """

    rowwise: bool = False
    """Whether each sample is treated alone and alike, so that F may be called with another number of rows. A field that
    says so is faster; `rs.check_field` checks it."""

    autonomous: bool = False
    """Whether F does not depend on t."""

    shape: tuple[int, ...] | None = None
    """Shape of the one sample for which the field was made, or None if it takes several."""

    bound: float | None = None
    """The Lipschitz constant which the field is built to keep while it trains, up to the accuracy of the power method
    (see `resolvent.spectral.spectral_norm`), or None. The certified value for the present weights is `lipschitz()`."""

    @abstractmethod
    def forward(self, t: Time, y: Tensor) -> Tensor:
        """Evaluate F.

        Arguments:
            t: time, a float, a 0-d tensor, or (batch,) with one time for each sample.
            y: states, (batch, *shape).

        Returns:
            F(t, y), (batch, *shape).
        """

    @property
    def linear_part(self) -> float | Tensor | None:
        """The multiplier c of a linear part worth splitting off, F(t, y) = c y + N(t, y), or None.

        It is a number or a tensor broadcastable to one sample. An implicit solver moves c y to the left-hand side,
        which makes a stiff linear part harmless.
        """
        return None

    @property
    def value_and_jacobian(self) -> Callable[[Time, Tensor], tuple[Tensor, Tensor]] | None:
        """F(t, y) and its Jacobian (batch, n, n) as one function, with no graph, or None if the field knows no better
        way to them than autograd. For states that are vectors: Newton's method for few unknowns spends its time there.
        """
        return None

    def disc(self) -> Disc:
        """A disc that certainly holds all slopes of F(t, .), for every t, with the present weights."""
        raise ValueError(
            f"{type(self).__name__} has no guaranteed Lipschitz constant: use a field that has one, such as "
            "fields.MLP(..., bound=1.0), or state it with Autonomous(module, lipschitz=...)"
        )

    def lipschitz(self) -> float:
        """A guaranteed Lipschitz constant of F(t, .), for every t, with the present weights."""
        return self.disc().lipschitz
