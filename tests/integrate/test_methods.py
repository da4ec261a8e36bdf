"""The methods: their tables, the order of a step and of dense output, and how the error follows the tolerance."""

import pytest
import torch
from torch import Tensor

import resolvent as rs
from resolvent.integrate.method import as_method
from resolvent.schemes import RungeKutta, Tableau, tableaux
from resolvent.schemes.dense_output import dense_order, dense_weights
from resolvent.schemes.linear_form import stage_weights, tree_order, trees

TABLES = {
    name: table.with_start for name, table in vars(tableaux).items() if isinstance(table, Tableau) and table.embedded
}
EMBEDDED = {
    "BOGACKI_SHAMPINE3": (3, 2),
    "DORMAND_PRINCE5": (5, 4),
    "TSITOURAS5": (5, 4),
    "TRBDF2": (2, 3),
    "KVAERNO3": (3, 2),
    "KVAERNO4": (4, 3),
    "KVAERNO5": (5, 4),
    "RADAU5": (5, 3),
}


def field(t: Tensor, y: Tensor) -> Tensor:
    """Nonlinear, depends on time, and has solutions in closed form: growth to a limit at a varying rate."""
    a, b = y.unbind(1)
    return torch.stack([a * (1 - a) * (1 + torch.cos(t)), b * torch.cos(t)], 1)


def solution(t: Tensor) -> Tensor:
    return torch.stack([torch.sigmoid(t + torch.sin(t) - 1), torch.exp(torch.sin(t))], -1)


def test_every_table_with_embedded_weights_is_here() -> None:
    assert set(TABLES) == set(EMBEDDED)


@pytest.mark.parametrize("name", TABLES)
def test_the_orders_of_the_method_and_of_the_embedded_one(name: str) -> None:
    table, (order, embedded) = TABLES[name], EMBEDDED[name]
    assert table.order == order
    assert RungeKutta(table).order_by_conditions() == order
    assert tree_order([(table.A, table.embedded)]) == embedded


@pytest.mark.parametrize("name", TABLES)
def test_the_coefficients_are_exact_to_double_precision(name: str) -> None:
    table, orders = TABLES[name], EMBEDDED[name]
    A = torch.tensor(table.A)
    for weights, order in zip((table.b, table.embedded), orders, strict=True):
        for p in range(1, order + 1):
            for tree in trees(p):
                terms = torch.tensor(weights) * stage_weights(tree, [A])
                assert abs(terms.sum() - 1 / tree.density) < 1e-14 * (1 + 10 * A.abs().max() + terms.abs().sum())
    for row, c in zip(table.A, table.c, strict=True):
        assert sum(row) == pytest.approx(c, abs=1e-14)


@pytest.mark.parametrize("name", TABLES)
def test_dense_output_loses_at_most_one_order(name: str) -> None:
    table, B = TABLES[name], dense_weights(TABLES[name])
    assert dense_order(table) >= table.order - 1
    assert dense_order(table) == {"BOGACKI_SHAMPINE3": 3, "KVAERNO3": 3, "TRBDF2": 2}.get(name, table.order - 1)
    torch.testing.assert_close(B.sum(0), torch.tensor(table.b))
    degrees = torch.arange(1.0, len(B) + 1)
    torch.testing.assert_close(B[0], torch.eye(len(table.b))[0], atol=1e-12, rtol=0)  # the slope at the start
    torch.testing.assert_close(degrees @ B, torch.eye(len(table.b))[-1], atol=1e-12, rtol=0)  # and at the end


def one_step(name: str, h: float, fractions: list[float]) -> Tensor:
    """Errors of a single step of size h at its fractions, each the largest of its components."""
    times = torch.tensor([0.0, *fractions]) * h
    table = getattr(tableaux, name)
    result = rs.odeint(field, solution(torch.zeros(1)), times, table, rtol=0.9, atol=1.0, first_step=h)
    assert int(result.accepted) == 1
    return (result.states[1:, 0] - solution(times[1:])).abs().amax(1)


def exact_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Newton's iterations go on to rounding, however loose the tolerance of the step is."""
    monkeypatch.setattr(rs.integrate.control.Tolerance, "newton", lambda self, dtype: 1e-14)
    monkeypatch.setattr("resolvent.integrate.newton._MOST_ITERATIONS", 40)


@pytest.mark.parametrize("name", TABLES)
def test_a_step_and_its_dense_output_have_their_orders(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    exact_stages(monkeypatch)
    table = TABLES[name]
    coarse, fine = (one_step(name, h, [0.3, 0.6, 1.0]) for h in (0.2, 0.1))
    observed = torch.log2(coarse / fine)
    assert float(observed[-1]) > table.order + 1 - 0.4
    assert float(observed[:2].mean()) > dense_order(table) + 1 - 0.4


@pytest.mark.parametrize(
    "name",
    [
        "TSITOURAS5",
        "DORMAND_PRINCE5",
        *(pytest.param(n, marks=pytest.mark.slow) for n in ("KVAERNO4", "RADAU5")),
        "KVAERNO5",
    ],
)
def test_the_error_follows_the_tolerance_over_six_decades(name: str) -> None:
    times = torch.linspace(0.0, 4.0, 5)
    errors = []
    for exponent in range(3, 10):
        rtol = 10.0**-exponent
        states = rs.odeint(field, solution(torch.zeros(1)), times, getattr(tableaux, name), rtol, 0.1 * rtol).states
        errors.append(((states[:, 0] - solution(times)).abs().max() / rtol).item())
    assert max(errors) < 20, "the error is of the size of the tolerance"
    # The estimate of RADAU5 is two orders below the method, which makes it the more accurate the tighter the tolerance.
    assert min(errors) > (1e-4 if name == "RADAU5" else 1e-3), "and not smaller without need"
    assert errors[-1] * 1e-9 < 1e-4 * errors[0] * 1e-3


def test_the_loose_methods_reach_a_loose_tolerance() -> None:
    times = torch.linspace(0.0, 1.0, 5)
    for name in ("BOGACKI_SHAMPINE3", "KVAERNO3", "TRBDF2"):
        states = rs.odeint(field, solution(torch.zeros(1)), times, TABLES[name], 1e-4, 1e-6).states
        assert float((states[:, 0] - solution(times)).abs().max()) < 2e-3


@pytest.mark.parametrize(
    ("scheme", "message"),
    [
        (tableaux.RK4, "embedded weights"),
        (tableaux.GAUSS4, "embedded weights"),
        (Tableau(tableaux.GAUSS4.A, tableaux.GAUSS4.b, 4, embedded=(0.2, 0.4, 0.4)), "one number on the diagonal"),
        (rs.schemes.BDF2, "must be a table"),
        ("dopri5", "must be a table"),
        (Tableau(((0.25, 0.0), (0.5, 0.5)), (0.5, 0.5), 1, embedded=(1.0, 0.0)), "one number on the diagonal"),
    ],
)
def test_other_schemes_are_refused(scheme: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        rs.odeint(field, solution(torch.zeros(1)), [0.0, 1.0], scheme)  # type: ignore[arg-type]


def test_a_table_of_ones_own() -> None:
    """Heun's method with Euler's inside: its last stage is not its result, so that nothing is passed on."""
    heun = Tableau(((0.0, 0.0), (1.0, 0.0)), (0.5, 0.5), 2, embedded=(1.0, 0.0))
    assert not as_method(heun).keeps_slope
    times = torch.linspace(0.0, 1.0, 4)
    states = rs.odeint(field, solution(torch.zeros(1)), times, heun, 1e-4, 1e-6).states
    assert float((states[:, 0] - solution(times)).abs().max()) < 1e-3


def test_a_scheme_is_taken_for_its_table() -> None:
    times = [0.0, 1.0]
    by_table = rs.odeint(field, solution(torch.zeros(1)), times, tableaux.KVAERNO3, 1e-4, 1e-6).states
    by_scheme = rs.odeint(field, solution(torch.zeros(1)), times, RungeKutta(tableaux.KVAERNO3), 1e-4, 1e-6).states
    assert torch.equal(by_table, by_scheme)


def test_wrong_embedded_weights_are_refused() -> None:
    with pytest.raises(ValueError, match="embedded must be 2 weights that sum to 1"):
        Tableau(((0.0, 0.0), (1.0, 0.0)), (0.5, 0.5), 2, embedded=(1.0,))
