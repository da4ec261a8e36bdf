"""What a table knows of itself, and what it refuses."""

import pytest
import torch

from resolvent.schemes import Multistep, RungeKutta, Tableau, tableaux

EXPLICIT = {"EULER", "EXPLICIT_MIDPOINT", "RK4"}
DIAGONAL = {"SDIRK2", "TRBDF2", "SDIRK3", "GAUSS2", "LOBATTO_IIIA", "LOBATTO_IIIB"}
FULL = {"GAUSS4", "RADAU3", "RADAU5"}


@pytest.mark.parametrize("name", sorted(EXPLICIT | DIAGONAL | FULL))
def test_kinds(name: str) -> None:
    table = getattr(tableaux, name)
    assert table.explicit == (name in EXPLICIT)
    assert table.diagonal == (name in EXPLICIT | DIAGONAL)


@pytest.mark.parametrize("name", ["SDIRK2", "TRBDF2", "SDIRK3", "RADAU3", "RADAU5"])
def test_stiffly_accurate_tables(name: str) -> None:
    assert getattr(tableaux, name).stiffly_accurate


def test_the_end_of_the_interval_is_a_node_without_rounding() -> None:
    for name in ("SDIRK2", "TRBDF2", "SDIRK3", "RADAU3", "RADAU5", "LOBATTO_IIIA"):
        table = getattr(tableaux, name)
        assert table.c[-1] == 1
        assert table.inverse.c[0] == 0


def test_recovery_weights() -> None:
    table = tableaux.GAUSS4
    A, b = torch.tensor(table.A), torch.tensor(table.b)
    torch.testing.assert_close(torch.tensor(table.recovery) @ A, b)
    assert tableaux.RADAU5.recovery == (0.0, 0.0, 1.0)
    assert tableaux.LOBATTO_IIIB.recovery is None


def test_inverse_tables() -> None:
    assert tableaux.EULER.inverse.A == ((1.0,),)
    for name in ("GAUSS2", "GAUSS4"):
        table = getattr(tableaux, name)
        torch.testing.assert_close(torch.tensor(table.inverse.A), torch.tensor(table.A), atol=1e-15, rtol=0)


def test_refuses_what_is_no_table() -> None:
    with pytest.raises(ValueError, match=r"one row and one column for each of the 2 weights, got rows of \[1\]"):
        Tableau(((0.0,),), (0.5, 0.5), 1)
    with pytest.raises(ValueError, match=r"must sum to 1 .* got 0\.9"):
        Tableau(((0.0,),), (0.9,), 1)
    with pytest.raises(ValueError, match="one node for each of the 1 stages, got 2"):
        Tableau(((0.0,),), (1.0,), 1, (0.0, 1.0))
    with pytest.raises(ValueError, match="order must be a whole number"):
        Tableau(((0.0,),), (1.0,), 0)
    with pytest.raises(ValueError, match=r"must be a Tableau such as tableaux.RK4, got 'RK4'"):
        RungeKutta("RK4")
    with pytest.raises(ValueError, match="weights alpha must sum to 1"):
        Multistep((0.5,), (1.0,))
    with pytest.raises(ValueError, match="must not be empty"):
        Multistep((), (1.0,))
