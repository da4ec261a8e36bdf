"""Problems w = b + tau F(w) whose solution is chosen first: b = w* - tau F(w*)."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

import resolvent as rs
from seeding import shifted

BATCH = 5


@dataclass(frozen=True)
class Manufactured:
    """A problem in float64; `cast` gives it in another precision, with the same solution up to rounding."""

    name: str
    make: Callable[[torch.Generator], tuple[Callable[[Tensor], Tensor], Tensor, float]]

    def build(self, dtype: torch.dtype) -> "Case":
        generator = torch.Generator().manual_seed(shifted(0))
        F, solution, tau = self.make(generator)
        b = solution - tau * F(solution)
        # The solution of the rounded problem differs from the chosen one, by the rounding of b times the condition.
        return Case(F, b.to(dtype), tau, solution, self._least_singular_value(F, solution, tau))

    @staticmethod
    def _least_singular_value(F: Callable[[Tensor], Tensor], w: Tensor, tau: float) -> float:
        least = float("inf")
        for row in w:
            jacobian = torch.autograd.functional.jacobian(lambda v: F(v[None])[0], row)
            n = row.numel()
            singular = torch.linalg.svdvals(torch.eye(n) - tau * jacobian.reshape(n, n))
            least = min(least, singular.min().item())
        return least


@dataclass(frozen=True)
class Case:
    F: Callable[[Tensor], Tensor]
    b: Tensor
    tau: float
    solution: Tensor
    least_singular_value: float


class Cast:
    """Evaluates a float64 closure in the precision of its argument, as a model in that precision would."""

    def __init__(self, function: Callable[..., Tensor], *tensors: Tensor, linear_part: float | None = None) -> None:
        self.function, self.tensors, self.linear_part = function, tensors, linear_part

    def __call__(self, w: Tensor) -> Tensor:
        return self.function(w, *(t.to(w.dtype) for t in self.tensors))


def _randn(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def _linear(w: Tensor, A: Tensor) -> Tensor:
    return w @ A.mT


def _affine_normal(g: torch.Generator):
    q, _ = torch.linalg.qr(_randn(g, 6, 6))
    A = q @ torch.diag(torch.linspace(-3, 0.5, 6, dtype=torch.float64)) @ q.T
    shift = _randn(g, 6)
    return Cast(lambda w, A, s: _linear(w, A) + s, A, shift), _randn(g, BATCH, 6), 1.0


def _affine_non_normal(g: torch.Generator):
    A = torch.diag(-torch.ones(6, dtype=torch.float64)) + torch.diag(4 * torch.ones(5, dtype=torch.float64), 1)
    return Cast(_linear, A), _randn(g, BATCH, 6), 1.0


def _skew(g: torch.Generator):
    q, _ = torch.linalg.qr(_randn(g, 6, 6))
    rotations = torch.diag(torch.tensor([1.0, 0.0, 2.0, 0.0, 4.0], dtype=torch.float64), 1)
    return Cast(_linear, q @ (rotations - rotations.T) @ q.T), _randn(g, BATCH, 6), 20.0


def _tanh_network(g: torch.Generator):
    W, V = (_randn(g, 8, 8) / 8**0.5 for _ in range(2))
    scale = 0.9 / (torch.linalg.matrix_norm(W, 2) * torch.linalg.matrix_norm(V, 2))
    return Cast(lambda w, W, V: torch.tanh(w @ W.mT) @ V.mT, W, scale * V), _randn(g, BATCH, 8), 1.0


def _relu_network(g: torch.Generator):
    W, V = (_randn(g, 8, 8) / 8**0.5 for _ in range(2))
    scale = 0.9 / (torch.linalg.matrix_norm(W, 2) * torch.linalg.matrix_norm(V, 2))
    bias = _randn(g, 8)
    return Cast(lambda w, W, V, c: torch.relu(w @ W.mT + c) @ V.mT, W, scale * V, bias), _randn(g, BATCH, 8), 1.0


def _stiff_diagonal(g: torch.Generator):
    rates = torch.logspace(0, 6, 7, dtype=torch.float64)
    return Cast(lambda w, rates: -rates * w, rates), _randn(g, BATCH, 7) / (1 + rates), 1.0


def _cubic(g: torch.Generator):
    """Slopes from 1 to 190 in every sample."""
    sizes = torch.tensor([0.1, 0.5, 1.0, 2.5], dtype=torch.float64)
    signs = _randn(g, BATCH, 4).sign()
    return Cast(lambda w: -(w**3)), signs * sizes * torch.linspace(0.9, 1.0, BATCH, dtype=torch.float64)[:, None], 10.0


def _convolution(g: torch.Generator):
    kernel, back = _randn(g, 4, 2, 3, 3), _randn(g, 2, 4, 3, 3)

    def F(w: Tensor, kernel: Tensor, back: Tensor) -> Tensor:
        hidden = torch.tanh(torch.nn.functional.conv2d(w, kernel, padding=1))
        return torch.nn.functional.conv2d(hidden, back, padding=1)

    return Cast(F, 0.2 * kernel, 0.1 * back), _randn(g, BATCH, 2, 5, 5), 1.0


def _scalar(g: torch.Generator):
    return Cast(torch.cos), _randn(g, BATCH, 1), 0.9


def _nearly_singular(g: torch.Generator):
    q, _ = torch.linalg.qr(_randn(g, 5, 5))
    A = q @ torch.diag(torch.tensor([1 - 1e-4, 0.5, 0.0, -0.5, -1.0], dtype=torch.float64)) @ q.T
    return Cast(_linear, A), _randn(g, BATCH, 5), 1.0


def _bounded_spectrum(g: torch.Generator):
    """The paper's F^{-25,-15}: c w + r G(w) with Lip(G) <= 1, which declares its linear part."""
    W = _randn(g, 6, 6)
    W = W / torch.linalg.matrix_norm(W, 2)
    field = Cast(lambda w, W: -20 * w + 5 * torch.relu(w @ W.mT), W, linear_part=-20.0)
    return field, _randn(g, BATCH, 6), 0.1


PROBLEMS = [
    Manufactured("affine, normal", _affine_normal),
    Manufactured("affine, non-normal", _affine_non_normal),
    Manufactured("skew, large tau", _skew),
    Manufactured("tanh network", _tanh_network),
    Manufactured("ReLU network", _relu_network),
    Manufactured("stiff to -1e6", _stiff_diagonal),
    Manufactured("monotone cubic", _cubic),
    Manufactured("convolution", _convolution),
    Manufactured("one unknown", _scalar),
    Manufactured("nearly singular", _nearly_singular),
    Manufactured("bounded spectrum", _bounded_spectrum),
]

SOLVERS = [
    rs.Picard(),
    rs.Picard(damping=0.5),
    rs.Anderson(),
    rs.Broyden(),
    rs.Newton(),
    rs.solvers.Chord(),
    rs.NewtonKrylov(),
    rs.GradientDescent(),
    rs.GradientDescent(momentum=0.5),
    rs.ConjugateGradient(),
    rs.LBFGS(),
    rs.Auto(),
]

LINEAR_SOLVERS = [
    rs.DenseLU(),
    rs.GMRES(),
    rs.GMRES(restart=3),
    rs.Neumann(),
    rs.BiCGStab(),
    rs.Anderson(),
    rs.Broyden(),
]
