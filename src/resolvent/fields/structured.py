"""Fields with a structure that any weights keep: gradient flows, Hamiltonian fields, and pairs of fields."""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from resolvent.fields.activations import Slopes, slopes_of
from resolvent.fields.base import Field, Time, check_callable_field
from resolvent.fields.weights import check_bound
from resolvent.spectral import Disc, layer_operator, norm_bound, spectral_norm


class ConvexGradient(nn.Module):
    """The gradient of a convex function of the state.

        g(y) = K^T s(K y + b) = grad of the sum of S(K y + b),      S' = s non-decreasing

    Its Jacobian K^T s'(K y + b) K is symmetric and positive semidefinite, with norm at most |K|^2 max s'.

    Arguments:
        layer: K and b: Linear, Conv1d/2d/3d or ConvTranspose1d/2d/3d, with any stride, padding, dilation and groups.
        activation: s, non-decreasing and elementwise.
        input_shape: shape of one sample; a Linear layer needs none.
        bound: if given, an upper limit for the Lipschitz constant of g.
        slopes: smallest and largest slope of an unknown activation.
        always, power_iterations: see `resolvent.spectral.spectral_norm`.
    """

    def __init__(
        self,
        layer: nn.Module,
        activation: nn.Module,
        input_shape: Sequence[int] | None,
        bound: float | None,
        slopes: tuple[float, float] | None,
        always: bool,
        power_iterations: int,
    ) -> None:
        super().__init__()
        self.slopes = slopes_of(activation) if slopes is None else Slopes(*slopes)
        if not (self.slopes.low >= 0 and 0 < self.slopes.high < math.inf):
            raise ValueError(
                f"the activation must be non-decreasing, but the slopes of {type(activation).__name__} reach from "
                f"{self.slopes.low:.4g} to {self.slopes.high:.4g}: use Tanh, ReLU, Softplus or Sigmoid"
            )
        self.operator = layer_operator(layer, input_shape)
        self.layer = layer
        self.activation = activation
        if bound is not None:
            check_bound(bound)
            spectral_norm(layer, input_shape, math.sqrt(bound / self.slopes.high), power_iterations, always)

    def forward(self, y: Tensor) -> Tensor:
        weight, bias = self.layer.weight, self.layer.bias
        assert isinstance(weight, Tensor)
        u = self.operator(weight, y)
        if isinstance(bias, Tensor):
            u = u + bias.reshape(-1, *[1] * (u.ndim - 2))
        return self.operator.adjoint(weight, self.activation(u))

    def lipschitz(self) -> float:
        """A guaranteed Lipschitz constant with the current weights."""
        return norm_bound(self.layer, self.operator.input_shape).value ** 2 * self.slopes.high


class GradientFlow(Field):
    """The descent of a convex function: y' = -grad.

        F(y) = -K^T s(K y + b),      s non-decreasing

    Theorem: the Jacobian -K^T s'(K y + b) K is symmetric and negative semidefinite, and all slopes of F lie in the disc
    with the diameter [-L, 0], L = |K|^2 max s' (a gradient of a convex function with Lipschitz constant L is
    co-coercive: <dF, dy> <= -|dF|^2 / L). Hence two solutions never move apart.

    Arguments:
        layer: K and b, such as nn.Linear(dim, width) or nn.Conv2d(channels, width, 3, padding=1); any Linear, Conv or
            ConvTranspose. Its initial weights are kept.
        activation: s; Tanh by default.
        input_shape: shape of one sample, without the batch; a Linear layer needs none.
        bound: if given, an upper limit for L, kept by spectral normalisation of K.
        linear_part: c <= 0; solvers split F into c y + N(y). It affects only their speed. With c = -L/2 the fixed-point
            iteration contracts for every step. The best c is about half of the slopes that occur, which are smaller
            where an activation is flat. By default -bound/2, or none without a bound.
        slopes: smallest and largest slope of an unknown activation.
        always, power_iterations: see `resolvent.spectral.spectral_norm`.

    Reference: Ruthotto and Haber, Deep neural networks motivated by partial differential equations, 2020.
    """

    rowwise = True
    autonomous = True

    def __init__(
        self,
        layer: nn.Module,
        activation: nn.Module | None = None,
        *,
        input_shape: Sequence[int] | None = None,
        bound: float | None = None,
        linear_part: float | None = None,
        slopes: tuple[float, float] | None = None,
        always: bool = False,
        power_iterations: int = 1,
    ) -> None:
        super().__init__()
        activation = nn.Tanh() if activation is None else activation
        self.gradient = ConvexGradient(layer, activation, input_shape, bound, slopes, always, power_iterations)
        self.shape = self.gradient.operator.input_shape
        self.bound = bound
        if linear_part is not None and not (math.isfinite(linear_part) and linear_part <= 0):
            raise ValueError(f"linear_part must be 0 or less, as are the slopes of a gradient flow, got {linear_part}")
        self._linear_part = -bound / 2 if linear_part is None and bound is not None else linear_part

    def forward(self, t: Time, y: Tensor) -> Tensor:
        value: Tensor = self.gradient(y)
        return -value

    @property
    def linear_part(self) -> float | None:
        return self._linear_part

    def disc(self) -> Disc:
        return Disc.spanning(-self.gradient.lipschitz(), 0.0)


class Hamiltonian(Field):
    """The flow of a separable Hamiltonian H(q, p) = V(q) + T(p). A state is (q, p), split along its first dimension.

        q' =  dT/dp =  K_p^T s(K_p p + b_p)
        p' = -dV/dq = -K_q^T s(K_q q + b_q),      s non-decreasing

    Theorem: F = J grad H with J antisymmetric, so H is constant along solutions and F has no divergence. Since V and T
    are convex, every Jacobian J H'' is an antisymmetric matrix times a positive semidefinite one; its eigenvalues are
    those of the antisymmetric H''^(1/2) J H''^(1/2), purely imaginary. (Only an affine field has a Jacobian that is
    itself antisymmetric everywhere.)

    Arguments:
        position: K_q and b_q, a layer on one half of the state, such as nn.Linear(dim // 2, width).
        momentum: K_p and b_p, a layer on the other half.
        activation: s; Tanh by default.
        input_shape: shape of one half of a sample, without the batch; Linear layers need none.
        bound: if given, an upper limit for the Lipschitz constant of F.
        slopes: smallest and largest slope of an unknown activation.
        always, power_iterations: see `resolvent.spectral.spectral_norm`.

    Reference: Haber and Ruthotto, Stable architectures for deep neural networks, 2017.
    """

    rowwise = True
    autonomous = True

    def __init__(
        self,
        position: nn.Module,
        momentum: nn.Module,
        activation: nn.Module | None = None,
        *,
        input_shape: Sequence[int] | None = None,
        bound: float | None = None,
        slopes: tuple[float, float] | None = None,
        always: bool = False,
        power_iterations: int = 1,
    ) -> None:
        super().__init__()
        activation = nn.Tanh() if activation is None else activation
        self.position, self.momentum = (
            ConvexGradient(layer, activation, input_shape, bound, slopes, always, power_iterations)
            for layer in (position, momentum)
        )
        half = self.position.operator.input_shape
        if self.momentum.operator.input_shape != half:
            raise ValueError(
                f"both layers must take one half of the state, got {half} and {self.momentum.operator.input_shape}"
            )
        self.shape = (2 * half[0], *half[1:])
        self.bound = bound

    def forward(self, t: Time, y: Tensor) -> Tensor:
        q, p = self.split(y)
        return self.join(self.velocity(t, p), self.force(t, q))

    def velocity(self, t: Time, p: Tensor) -> Tensor:
        """q' = dH/dp, a function of p alone: (batch, *half) -> (batch, *half)."""
        value: Tensor = self.momentum(p)
        return value

    def force(self, t: Time, q: Tensor) -> Tensor:
        """p' = -dH/dq, a function of q alone: (batch, *half) -> (batch, *half)."""
        value: Tensor = self.position(q)
        return -value

    def split(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """The halves q and p of states."""
        if y.shape[1] % 2:
            raise ValueError(f"a Hamiltonian state has two halves, got {tuple(y.shape[1:])}")
        q, p = y.chunk(2, dim=1)
        return q, p

    def join(self, q: Tensor, p: Tensor) -> Tensor:
        """States with the halves q and p."""
        return torch.cat((q, p), dim=1)

    def disc(self) -> Disc:
        return Disc(0.0, max(self.position.lipschitz(), self.momentum.lipschitz()))


class Partitioned(Field):
    """Two fields, one for each half of the state: q' = V(t, p), p' = K(t, q).

    The state (q, p) is split in two along its first dimension (features or channels). With `schemes.REVNET` and h = 1
    this is the reversible block of RevNet, q1 = q + V(p), p1 = p + K(q1); with `schemes.VERLET` or `schemes.LEAPFROG`
    the network of that name. It also works with every other scheme.

    Arguments:
        velocity: V, a field (t, p) on (batch, *half).
        force: K, a field (t, q) on (batch, *half).

    Reference: Gomez et al., The reversible residual network, 2017; Chang et al., Reversible architectures for
    arbitrarily deep residual networks, 2018.
    """

    def __init__(self, velocity: Callable[[Time, Tensor], Tensor], force: Callable[[Time, Tensor], Tensor]) -> None:
        super().__init__()
        check_callable_field(velocity, "velocity")
        check_callable_field(force, "force")
        self.velocity = velocity
        self.force = force
        self.autonomous = all(getattr(part, "autonomous", False) for part in (velocity, force))

    @property
    def rowwise(self) -> bool:  # type: ignore[override]
        return all(getattr(part, "rowwise", False) for part in (self.velocity, self.force))

    def forward(self, t: Time, y: Tensor) -> Tensor:
        q, p = self.split(y)
        return self.join(self.velocity(t, p), self.force(t, q))

    def split(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """The halves q and p of states."""
        if y.shape[1] % 2:
            raise ValueError(f"the state must have two equal halves, got {y.shape[1]} features or channels.")
        q, p = y.chunk(2, dim=1)
        return q, p

    def join(self, q: Tensor, p: Tensor) -> Tensor:
        """States with the halves q and p."""
        return torch.cat((q, p), dim=1)
