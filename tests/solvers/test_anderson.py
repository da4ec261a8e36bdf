"""Anderson's method where it is known to be exact."""

import torch

import resolvent as rs


def test_one_column_is_the_secant_method_which_solves_an_affine_equation_in_two_steps() -> None:
    slopes, offsets = torch.tensor([[-8.0], [-0.5], [0.3], [4.0]]), torch.tensor([[1.0], [2.0], [-3.0], [0.5]])
    field = rs.Rowwise(lambda w, slope: slope * w, slopes)
    solution = rs.resolve(field, offsets, 1.0, solver=rs.Anderson(memory=1))
    torch.testing.assert_close(solution.value, offsets / (1 - slopes))
    assert solution.steps.tolist() == [2, 2, 2, 2]


def test_as_many_columns_as_unknowns_solve_an_affine_system() -> None:
    n = 4
    # Not a contraction, and the singular values of I - A lie between 1 and 3.
    matrices, b = 2 * torch.linalg.qr(torch.randn(3, n, n)).Q, torch.randn(3, n)
    field = rs.Rowwise(lambda w, A: (A @ w[:, :, None])[:, :, 0], matrices)
    solution = rs.resolve(field, b, 1.0, solver=rs.Anderson(memory=n))
    expected = torch.linalg.solve(torch.eye(n) - matrices, b)
    torch.testing.assert_close(solution.value, expected, rtol=1e-7, atol=1e-7)
    assert solution.steps.max() <= n + 2
