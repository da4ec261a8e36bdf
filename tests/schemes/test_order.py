"""Every scheme converges with the order it claims, on a nonlinear problem that depends on each sample's own time."""

import pytest
import torch

from resolvent.schemes import Carry, Interval, RungeKutta, tableaux
from schemes.catalogue import RUNGE_KUTTA, SCHEMES, Manufactured, run, slope

# Fewer steps for higher orders: their errors would drown in rounding.
COARSEST = {1: 64, 2: 24, 3: 48, 4: 20, 5: 10}


# Each has a neighbour of its kind among the quick ones.
SLOW = ("SDIRK3", "TRBDF2", "trapezoid 0.3", "trapezoid 1.0", "midpoint 0.3", "midpoint 1.0")


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow if n in SLOW else ()) for n in SCHEMES])
def test_order_of_convergence(name: str) -> None:
    scheme, problem = SCHEMES[name], Manufactured()
    t0, horizon = torch.tensor([0.0, 0.4, 1.1]), 1.0
    errors = []
    for doubling in range(3):
        num_steps = COARSEST[scheme.order] * 2**doubling
        last = run(scheme, problem, problem.state(t0), horizon / num_steps, num_steps, t0)[-1]
        errors.append((last - problem.state(t0 + horizon)).norm().item())
    assert slope(errors) == pytest.approx(scheme.order, abs=0.1)


@pytest.mark.parametrize("name", RUNGE_KUTTA)
@pytest.mark.parametrize("power", [1, 2, 3, 4])
def test_integrates_powers_of_time_exactly_up_to_its_order(name: str, power: int) -> None:
    """What wrong nodes fail at: y' = power t^(power - 1) has the solution t^power."""
    scheme = RUNGE_KUTTA[name]
    interval = Interval(lambda t, y: torch.full_like(y, power * t ** (power - 1)), 0.5, 2.0)
    y = scheme.step(interval, Carry((torch.zeros(1, 1),))).state
    exact = 2.5**power - 0.5**power
    if power <= scheme.order:
        assert y.item() == pytest.approx(exact, rel=1e-9)


@pytest.mark.parametrize("name", RUNGE_KUTTA)
def test_tables_satisfy_the_conditions_of_their_order(name: str) -> None:
    """The conditions for the bushy and the tall trees, in exact arithmetic up to rounding."""
    table = RUNGE_KUTTA[name].tableau
    A, b, c = (torch.tensor(values) for values in (table.A, table.b, table.c))
    factorial, tall = 1.0, torch.ones_like(b)
    for k in range(1, table.order + 1):
        assert (b @ c ** (k - 1)).item() == pytest.approx(1 / k, abs=1e-13)
        factorial *= k
        assert (b @ tall).item() == pytest.approx(1 / factorial, abs=1e-13)
        tall = A @ tall


def test_a_coarse_start_would_spoil_the_order() -> None:
    """The start matters: with first steps by Euler, a method of order 3 is refused."""
    from resolvent.schemes import Multistep

    with pytest.raises(ValueError, match="start of order 1 reduces the order of a method of order 3"):
        Multistep(alpha=(18 / 11, -9 / 11, 2 / 11), beta=(6 / 11,), order=3, start=RungeKutta(tableaux.EULER))
