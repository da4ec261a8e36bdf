"""Starting guesses change the work of a solve, not its result."""

import pytest
import torch
from torch import Tensor

import resolvent as rs
from resolvent import blocks, schemes
from resolvent.extending import Solver
from resolvent.schemes import Interval, RungeKutta, Theta, tableaux
from resolvent.schemes.guess import as_guess
from schemes.catalogue import Manufactured

GUESSES = ["previous", "explicit", "extrapolate", lambda interval, c: interval.past[0] + 0.1]


@pytest.mark.parametrize("guess", GUESSES)
@pytest.mark.parametrize("scheme", [Theta(0.5), Theta(1.0, "trapezoid"), RungeKutta(tableaux.RADAU3), schemes.BDF3])
def test_result_does_not_depend_on_the_guess(guess: object, scheme: object) -> None:
    problem, t0 = Manufactured(), torch.linspace(0.0, 1.0, 4)
    x = problem.state(t0)
    expected = blocks.Block(problem, scheme, 6)(x, t0)
    got = blocks.Block(problem, scheme, 6, guess=guess)(x, t0)
    torch.testing.assert_close(got, expected, atol=1e-8, rtol=0)


def test_guesses_by_formula() -> None:
    def field(t: float | Tensor, y: Tensor) -> Tensor:
        return -y

    def path(t: float) -> Tensor:
        return torch.tensor([[1.0 + 2 * t + 3 * t**2]])

    interval = Interval(field, 0.0, 0.5, past=(path(0.0), path(-0.5), path(-1.0)))
    assert torch.equal(schemes.previous(interval, 0.7), path(0.0))
    torch.testing.assert_close(schemes.explicit(interval, 0.7), path(0.0) * (1 - 0.35))
    torch.testing.assert_close(schemes.extrapolate(interval, 0.7), path(0.35))
    straight = Interval(field, 0.0, 0.5, past=(torch.ones(1, 1), torch.zeros(1, 1)))
    torch.testing.assert_close(schemes.extrapolate(straight, 0.5), torch.full((1, 1), 1.5))


def evaluations(guess: str, solver: Solver, reuse: bool = False) -> int:
    problem = Manufactured()
    block = blocks.ThetaBlock(problem, 0.5, 40, 2.0, solver=solver, guess=guess, reuse=reuse)
    return block.trajectory(problem.state(torch.zeros(3))).evaluations


def test_extrapolation_saves_evaluations() -> None:
    for solver in (rs.Picard(), rs.Anderson(), rs.Newton()):
        assert evaluations("extrapolate", solver) < 0.9 * evaluations("previous", solver)


def test_explicit_guess_costs_one_evaluation_a_step_whatever_the_stages() -> None:
    calls = []

    class Counted(Manufactured):
        def __call__(self, t: float | Tensor, y: Tensor) -> Tensor:
            calls.append(t)
            return super().__call__(t, y)

    problem = Counted()
    scheme = RungeKutta(tableaux.SDIRK3)
    # In training mode the first call would also evaluate the field to check it.
    block = blocks.Block(problem, scheme, 4, guess="explicit").eval()
    with torch.no_grad():
        trajectory = block.trajectory(problem.state(torch.zeros(2)))
    assert len(trajectory.solutions) == 12
    assert len(calls) == trajectory.evaluations + 4


@pytest.mark.parametrize("solver", [rs.solvers.Chord(), rs.Broyden()])
def test_reuse_saves_work(solver: Solver) -> None:
    problem = Manufactured()

    def work(reuse: bool) -> tuple[int, int]:
        block = blocks.ThetaBlock(problem, 0.5, 40, 2.0, solver=solver, guess="extrapolate", reuse=reuse)
        solutions = block.trajectory(problem.state(torch.zeros(3))).solutions
        return sum(s.evaluations for s in solutions), sum(s.vjps for s in solutions)

    (evaluations_without, vjps_without), (evaluations_with, vjps_with) = work(False), work(True)
    if isinstance(solver, rs.solvers.Chord):
        assert vjps_with < 0.5 * vjps_without
    else:
        assert evaluations_with < evaluations_without


def test_refuses_unknown_guesses() -> None:
    for guess in ("linear", 3):
        with pytest.raises(ValueError, match=r"guess must be one of \('previous', 'explicit', 'extrapolate'\) or a"):
            as_guess(guess)
