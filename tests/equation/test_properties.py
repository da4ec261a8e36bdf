"""Properties over shapes, dtypes and scales."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import resolvent as rs
from resolvent.extending import Solver
from seeding import shifted

SHAPES = st.lists(st.integers(1, 4), min_size=0, max_size=3).map(tuple)
DTYPES = st.sampled_from([torch.float64, torch.float32])
SCALES = st.sampled_from([1e-6, 1e-2, 1.0, 1e3, 1e6])
SOLVERS = st.sampled_from([rs.Auto(), rs.Newton(), rs.Anderson(), rs.NewtonKrylov(), rs.Broyden()])


def residual(F, b: Tensor, tau: Tensor | float, w: Tensor) -> Tensor:  # type: ignore[no-untyped-def]
    tau = tau.reshape(-1, *(1,) * (b.dim() - 1)) if isinstance(tau, Tensor) and tau.dim() else tau
    return (b + tau * F(w) - w).reshape(len(b), -1).norm(dim=1) / (b[0].numel() ** 0.5)


@given(batch=st.integers(1, 4), shape=SHAPES, dtype=DTYPES, scale=SCALES, solver=SOLVERS, seed=st.integers(0, 99))
def test_contractions_are_solved_to_tolerance_at_every_scale(
    batch: int, shape: tuple[int, ...], dtype: torch.dtype, scale: float, solver: Solver, seed: int
) -> None:
    generator = torch.Generator().manual_seed(shifted(seed))
    b = scale * torch.randn(batch, *shape, generator=generator, dtype=dtype)
    tau = 0.9 * torch.rand(batch, generator=generator, dtype=dtype)

    def F(w: Tensor) -> Tensor:
        return scale * torch.sin(w / scale + 0.3)

    solution = rs.resolve(F, b, tau, solver=solver)
    rtol, atol = (1e-9, 1e-10) if dtype == torch.float64 else (1e-6, 1e-7)
    size = torch.maximum(b, solution.value.detach()).reshape(batch, -1).norm(dim=1) + scale
    assert (residual(F, b, tau, solution.value) <= atol + 2 * rtol * size).all()
    assert solution.value.dtype == dtype


@given(n=st.integers(1, 6), shift=st.floats(-3, 0.5), spread=st.floats(0.1, 30), seed=st.integers(0, 99))
def test_affine_problems_have_the_solution_of_linear_algebra(n: int, shift: float, spread: float, seed: int) -> None:
    """F(w) = A w + c with the symmetric part of A at most `shift` < 1: solved by Newton whatever its skew part is."""
    generator = torch.Generator().manual_seed(shifted(seed))
    M = spread * torch.randn(n, n, generator=generator)
    A = M - M.T + shift * torch.eye(n)
    b, c = torch.randn(3, n, generator=generator), torch.randn(n, generator=generator)
    b.requires_grad_()
    solution = rs.resolve(lambda w: w @ A.T + c, b, 1.0)
    matrix = torch.eye(n) - A
    exact = torch.linalg.solve(matrix, (b + c).T).T
    assert (solution.value - exact).abs().max() < 1e-8
    (gradient,) = torch.autograd.grad(solution.value.sum(), b)
    expected = torch.linalg.solve(matrix.T, torch.ones(n))
    assert (gradient - expected).abs().max() < 1e-8


@given(seed=st.integers(0, 99), tau=st.floats(0.0, 2.0))
def test_the_resolvent_of_a_monotone_field_does_not_expand(seed: int, tau: float) -> None:
    """<F(u) - F(v), u - v> <= 0 makes J_{tau F} non-expansive: with a bound nu, Lip(J) <= 1 / (1 - tau nu)."""
    generator = torch.Generator().manual_seed(shifted(seed))
    K = torch.randn(5, 4, generator=generator)

    def F(w: Tensor) -> Tensor:
        return -torch.tanh(w @ K.T) @ K

    x, y = torch.randn(2, 8, 4, generator=generator)
    jx, jy = rs.resolve(F, x, tau).value, rs.resolve(F, y, tau).value
    assert ((jx - jy).norm(dim=1) <= (x - y).norm(dim=1) * (1 + 1e-8)).all()
