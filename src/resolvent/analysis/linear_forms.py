"""Every scheme of the library as one matrix-valued function of z = h lambda."""

from dataclasses import dataclass
from functools import singledispatch

import torch
from torch import Tensor

from resolvent.analysis.stability import Scalars, as_complex
from resolvent.schemes import Multistep, PartitionedRungeKutta, RungeKutta, Scheme, Symplectic, Theta
from resolvent.schemes.tableau import Row, Tableau

Rows = tuple[Row, ...]


@dataclass(frozen=True)
class LinearForm:
    """What a step of a scheme does to the linear test equation, written as a general linear method:

        stages = U x + z A stages,      y = V x + z B stages,      so that      y = M(z) x,
        M(z) = V + z B (I - z A)^{-1} U.

    x holds what the scheme carries on: one number for a one-step scheme, the latest k states for a multistep one. For
    the schemes that treat two halves apart the test equation is the pair q' = lambda p, p' = lambda q, the oscillator
    for lambda = i omega, and x = (q, p).

    Attributes:
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

    def matrix(self, z: Scalars) -> Tensor:
        """M(z), complex128 (*z.shape, k, k); not finite at a pole."""
        z = as_complex(z)[..., None, None]
        A, U, B, V = (matrix.to(z.device) for matrix in (self.A, self.U, self.B, self.V))
        stages, _ = torch.linalg.solve_ex(torch.eye(len(A)).to(A) - z * A, U.expand(*z.shape[:-2], *U.shape))
        return V + z * B @ stages

    @property
    def poles(self) -> Tensor:
        """Where M(z) is infinite, complex128: the inverse eigenvalues of A. An explicit scheme has none."""
        eigenvalues = torch.linalg.eigvals(self.A)
        # An eigenvalue 0 of multiplicity m is computed as eps^(1/m): up to four explicit stages are told apart.
        return 1 / eigenvalues[eigenvalues.abs() > 1e-3]


@singledispatch
def linear_form(scheme: Scheme) -> LinearForm:
    """The linear form of a scheme. `linear_form.register` adds a kind of scheme that is your own."""
    raise ValueError(
        f"the stability of {type(scheme).__name__} is not known: it must be a scheme such as rs.schemes.Theta(0.5), or "
        "be registered with resolvent.analysis.linear_form.register."
    )


@linear_form.register
def _(scheme: Theta) -> LinearForm:
    return linear_form(RungeKutta(theta_tableau(scheme)))


@linear_form.register
def _(scheme: RungeKutta) -> LinearForm:
    A, b = as_complex(scheme.tableau.A), as_complex(scheme.tableau.b)
    return LinearForm(A, torch.ones_like(b)[:, None], b[None], as_complex([[1.0]]))


@linear_form.register
def _(scheme: Multistep) -> LinearForm:
    """The new state is a stage, and so is each of the old ones, for the sake of its slope."""
    k = max(len(scheme.alpha), len(scheme.beta) - 1)
    alpha = as_complex((*scheme.alpha, *[0.0] * (k - len(scheme.alpha))))
    beta = as_complex((*scheme.beta, *[0.0] * (k + 1 - len(scheme.beta))))
    A, U = as_complex(torch.zeros(k + 1, k + 1)), torch.cat((alpha[None], as_complex(torch.eye(k))))
    B, V = as_complex(torch.zeros(k, k + 1)), torch.diag(as_complex(torch.ones(k - 1)), -1)
    A[0], B[0], V[0] = beta, beta, alpha
    return LinearForm(A, U, B, V)


@linear_form.register
def _(scheme: PartitionedRungeKutta) -> LinearForm:
    return _pair(scheme.position.A, scheme.position.b, scheme.momentum.A, scheme.momentum.b)


@linear_form.register
def _(scheme: Symplectic) -> LinearForm:
    return _pair(*symplectic_tables(scheme))


def _pair(A: Rows, b: Row, A_hat: Rows, b_hat: Row) -> LinearForm:
    """q moves by the stages of p, and p by those of q."""
    stages = len(b)
    coefficients = torch.block_diag(as_complex(A), as_complex(A_hat))
    weights = torch.block_diag(as_complex([b]), as_complex([b_hat]))
    start = as_complex(torch.ones(stages, 1))
    # Rolled by half, a block-diagonal matrix acts on the other half.
    return LinearForm(
        coefficients.roll(stages, 1),
        torch.block_diag(start, start),
        weights.roll(stages, 1),
        as_complex(torch.eye(2)),
    )


def theta_value(scheme: Theta) -> float:
    """theta as a number, where it is learned too."""
    return float(scheme.theta.detach() if isinstance(scheme.theta, Tensor) else scheme.theta)


def theta_tableau(scheme: Theta) -> Tableau:
    """The theta scheme as a Runge-Kutta table: one stage for the midpoint form, two for the trapezoid form."""
    theta = theta_value(scheme)
    if scheme.form == "midpoint":
        return Tableau(((theta,),), (1.0,), scheme.order)
    return Tableau(((0.0, 0.0), (1 - theta, theta)), (1 - theta, theta), scheme.order)


def symplectic_tables(scheme: Symplectic) -> tuple[Rows, Row, Rows, Row]:
    """The table for q and the one for p: stage i of q is past drift i, stage i of p is before it and past kick i-1."""
    count = len(scheme.drifts)
    A = tuple(tuple(d if j <= i else 0.0 for j, d in enumerate(scheme.drifts)) for i in range(count))
    A_hat = tuple(tuple(k if j < i else 0.0 for j, k in enumerate(scheme.kicks)) for i in range(count))
    return A, scheme.drifts, A_hat, scheme.kicks
