"""The linear form: one step of a scheme on the linear test equation, as a matrix-valued function of z = h lambda."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from resolvent.schemes.tableau import Row

Rows = tuple[Row, ...]
Scalars = complex | Sequence[complex] | Tensor
"""Numbers or tensors of any shape; the analysis is computed in complex128."""


@dataclass(frozen=True)
class LinearForm:
    """One step of a scheme on y' = lambda y, written as a general linear method:

        stages = U x + z A stages,      y = V x + z B stages,      so that      y = M(z) x,
        M(z) = V + z B (I - z A)^{-1} U.

    x is what a step passes to the next: one number for a one-step scheme, the latest k states for a multistep one. For
    partitioned schemes the test equation is the pair q' = lambda p, p' = lambda q, the oscillator for
    lambda = i omega, and x = (q, p).

    Attributes, stored as complex128; nested lists of numbers are converted:
        A: (stages, stages).
        U: (stages, k).
        B: (k, stages).
        V: (k, k).

    Reference: Hairer, Norsett & Wanner, Solving ordinary differential equations I, section III.8.
    """

    A: Tensor
    U: Tensor
    B: Tensor
    V: Tensor

    def __post_init__(self) -> None:
        for name in ("A", "U", "B", "V"):
            object.__setattr__(self, name, as_complex(getattr(self, name)))

    def matrix(self, z: Scalars) -> Tensor:
        """M(z), complex128 (*z.shape, k, k); not finite at a pole."""
        z = as_complex(z)[..., None, None]
        A, U, B, V = (matrix.to(z.device) for matrix in (self.A, self.U, self.B, self.V))
        stages, _ = torch.linalg.solve_ex(torch.eye(len(A)).to(A) - z * A, U.expand(*z.shape[:-2], *U.shape))
        return V + z * B @ stages

    @property
    def poles(self) -> Tensor:
        """The z where M(z) is infinite, complex128: the inverse eigenvalues of A. An explicit scheme has none."""
        eigenvalues = torch.linalg.eigvals(self.A)
        # An eigenvalue 0 of multiplicity m is computed as eps^(1/m): up to four explicit stages are recognised.
        return 1 / eigenvalues[eigenvalues.abs() > 1e-3]


def pair_form(A: Rows, b: Row, A_hat: Rows, b_hat: Row) -> LinearForm:
    """The linear form of a scheme with one table for q and one for p: each half moves by the stages of the other."""
    stages = len(b)
    coefficients = torch.block_diag(as_complex(A), as_complex(A_hat))
    weights = torch.block_diag(as_complex([b]), as_complex([b_hat]))
    start = as_complex(torch.ones(stages, 1))
    # Rolled by half, a block-diagonal matrix acts on the other half.
    return LinearForm(
        coefficients.roll(stages, 1), torch.block_diag(start, start), weights.roll(stages, 1), torch.eye(2)
    )


def as_complex(values: Any) -> Tensor:
    """Numbers, nested sequences or a tensor as complex128."""
    return torch.as_tensor(values, dtype=torch.complex128)
