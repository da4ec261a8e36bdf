"""Order, A-, L- and B-stability, intervals and contractivity, against the literature and against experiments."""

import dataclasses
import math

import pytest
import torch
from torch import Tensor

from resolvent import analysis, schemes
from resolvent.blocks import ThetaBlock
from resolvent.schemes import Multistep, RungeKutta, Tableau, Theta, tableaux
from schemes.catalogue import RUNGE_KUTTA, SCHEMES, Linear

INF, YES, NO = math.inf, True, False

# order, A, L, B, amplification at infinity, real interval, imaginary interval
LITERATURE = {
    "midpoint 0.0": (1, NO, NO, NO, INF, 2, 0),
    "midpoint 0.3": (1, NO, NO, NO, 7 / 3, 5, 0),
    "midpoint 0.5": (2, YES, NO, YES, 1, INF, INF),
    "midpoint 1.0": (1, YES, YES, YES, 0, INF, INF),
    "trapezoid 0.5": (2, YES, NO, NO, 1, INF, INF),
    "trapezoid 1.0": (1, YES, YES, YES, 0, INF, INF),
    "EULER": (1, NO, NO, NO, INF, 2, 0),
    "EXPLICIT_MIDPOINT": (2, NO, NO, NO, INF, 2, 0),
    "RK4": (4, NO, NO, NO, INF, 2.785293563405282, 2 * math.sqrt(2)),
    "SDIRK2": (2, YES, YES, NO, 0, INF, INF),
    "TRBDF2": (2, YES, YES, NO, 0, INF, INF),
    "SDIRK3": (3, YES, YES, NO, 0, INF, INF),
    "GAUSS2": (2, YES, NO, YES, 1, INF, INF),
    "GAUSS4": (4, YES, NO, YES, 1, INF, INF),
    "RADAU3": (3, YES, YES, YES, 0, INF, INF),
    "RADAU5": (5, YES, YES, YES, 0, INF, INF),
    "LOBATTO_IIIA": (2, YES, NO, NO, 1, INF, INF),
    "LOBATTO_IIIB": (2, YES, NO, NO, 1, INF, INF),
    "BDF2": (2, YES, YES, None, 0, INF, INF),
    "BDF3": (3, NO, NO, None, 0, INF, 0),
    "ADAMS_MOULTON3": (3, NO, NO, None, (8 + math.sqrt(84)) / 10, 6, 0),
    "ADAMS_MOULTON4": (4, NO, NO, None, 2.36579177, 3, 0),
    "VERLET": (2, NO, NO, None, INF, 0, 2),
    "LEAPFROG": (2, NO, NO, None, INF, 0, 2),
    "REVNET": (1, NO, NO, None, INF, 0, 2),
}


@pytest.mark.parametrize("name", LITERATURE)
def test_facts(name: str) -> None:
    order, *stable, at_infinity, real, imaginary = LITERATURE[name]
    facts = analysis.scheme_facts(SCHEMES[name])
    assert facts.order == order
    assert [facts.a_stable, facts.l_stable, facts.b_stable] == stable
    assert facts.zero_stable
    assert facts.at_infinity == pytest.approx(at_infinity, rel=1e-6, abs=1e-6)
    assert facts.real_interval == pytest.approx(real, rel=1e-8)
    assert facts.imaginary_interval == pytest.approx(imaginary, rel=1e-8)


@pytest.mark.parametrize("name", SCHEMES)
def test_order_conditions_confirm_what_schemes_declare(name: str) -> None:
    assert analysis.scheme_order(SCHEMES[name]) == SCHEMES[name].order


def test_order_of_wrong_tables() -> None:
    spoilt = dataclasses.replace(tableaux.RK4, b=(1 / 6, 1 / 3, 1 / 4, 1 / 4), c=())
    assert analysis.scheme_order(RungeKutta(spoilt)) == 1
    # Quadrature of order 2 with a stage in the wrong place.
    assert analysis.scheme_order(RungeKutta(Tableau(((0.0, 0.0), (0.4, 0.0)), (0.0, 1.0), 2))) == 1
    assert analysis.scheme_order(Multistep((4 / 3, -1 / 3), (0.66,), order=1)) == 0


def test_order_of_a_composition() -> None:
    """Verlet steps composed by the triple jump have order 4, and lose it when a step is changed."""
    jump = 1 / (2 - 2 ** (1 / 3))
    back = 1 - 2 * jump
    kicks = (jump / 2, (jump + back) / 2, (jump + back) / 2, jump / 2)
    assert analysis.scheme_order(schemes.Symplectic((0.0, jump, back, jump), kicks, 4)) == 4
    assert analysis.scheme_order(schemes.Symplectic((0.0, jump, 0.0, 1 - jump), kicks, 1)) == 1


def test_number_of_rooted_trees() -> None:
    from resolvent.schemes.linear_form import trees

    assert [len(trees(n)) for n in range(1, 7)] == [1, 1, 2, 4, 9, 20]
    assert [len(trees(n, 2)) for n in range(1, 5)] == [2, 4, 14, 52]


def test_b_stable_tables_of_the_literature() -> None:
    g = (3 + math.sqrt(3)) / 6
    sdirk = Tableau(((g, 0.0), (1 - 2 * g, g)), (0.5, 0.5), 3)
    lobatto_iiic = Tableau(((0.5, -0.5), (0.5, 0.5)), (0.5, 0.5), 2)
    for table, l_stable in ((sdirk, False), (lobatto_iiic, True)):
        facts = analysis.scheme_facts(RungeKutta(table))
        assert facts.b_stable
        assert facts.a_stable
        assert facts.l_stable == l_stable
        assert facts.order == table.order


def test_stable_on_the_imaginary_axis_is_not_enough() -> None:
    """R(z) = 1 / ((1 - 3z/2)(1 + z/2)) has a pole at -2; B A + A^T B - b b^T is positive, but not all weights are."""
    facts = analysis.scheme_facts(RungeKutta(Tableau(((1.5, 0.0), (1.5, -0.5)), (1.5, -0.5), 1)))
    assert facts.imaginary_interval == INF
    assert not facts.a_stable
    assert not facts.l_stable
    assert not facts.b_stable
    assert facts.real_interval < 2


def test_b_stability_is_seen_in_steps() -> None:
    """A dissipative field with a kink: the midpoint form never expands, the trapezoid form does."""

    def field(t: float | Tensor, y: Tensor) -> Tensor:
        return torch.where(y > 0, -8 * y, -0.01 * y)

    x = torch.linspace(-3, 3, 61)[:, None]
    gains = {
        form: analysis.local_lipschitz(ThetaBlock(field, 0.5, 1, 1.0, form), x) for form in ("midpoint", "trapezoid")
    }
    assert gains["midpoint"].max() <= 1
    assert gains["trapezoid"].max() == pytest.approx(3 / 1.005, rel=1e-6)


def test_a_method_that_is_not_zero_stable() -> None:
    facts = analysis.scheme_facts(Multistep((-4.0, 5.0), (0.0, 4.0, 2.0), order=3))
    assert facts.order == 3
    assert not facts.zero_stable
    assert facts.real_interval == 0


def test_explicit_two_step_midpoint_is_stable_on_a_segment() -> None:
    scheme = Multistep((0.0, 1.0), (0.0, 2.0), order=2)
    assert analysis.stability_interval(scheme, 1j) == pytest.approx(1, rel=1e-8)
    assert analysis.stability_interval(scheme, -1.0) == 0
    assert analysis.is_stable(scheme, [0.0, 0.99j, 1j, 1.01j]).tolist() == [True, True, False, False]


def test_root_condition() -> None:
    """A double root on the rim fails it: y_{n+1} = 2 y_n - y_{n-1} grows like n."""
    scheme = Multistep((2.0, -1.0), (1.0, 0.0, -1.0), order=1)
    assert float(analysis.amplification(scheme, 0.0)) == pytest.approx(1, abs=1e-7)
    assert not analysis.is_stable(scheme, 0.0)
    assert analysis.is_stable(schemes.BDF3, [0.0, -1e6, 0.5j]).tolist() == [True, True, False]


def test_interval_scales_with_the_direction() -> None:
    rk4 = RungeKutta(tableaux.RK4)
    assert analysis.stability_interval(rk4, -2.0) == pytest.approx(2.785293563405282 / 2, rel=1e-8)
    for wrong in (0.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="direction must be"):
            analysis.stability_interval(rk4, wrong)


def test_bdf3_is_stable_in_a_sector_of_86_degrees() -> None:
    def reach(degrees: float) -> float:
        angle = math.radians(degrees)
        return analysis.stability_interval(schemes.BDF3, complex(-math.cos(angle), math.sin(angle)))

    assert reach(86.0) == math.inf
    assert reach(86.1) < math.inf


@pytest.mark.parametrize("theta", [0.25, 0.5, 0.75, 1.0])
def test_fixed_point_contracts_inside_of_the_disc_alone(theta: float) -> None:
    radius = analysis.contractive_radius(Theta(theta))
    assert radius == 1 / theta
    for scale, contracts in ((0.98, True), (1.02, False)):
        for angle in torch.linspace(0, 2 * math.pi, 7).tolist():
            z = complex(scale * radius * math.cos(angle), scale * radius * math.sin(angle))
            w, field = torch.tensor([[1.0, 0.0]]), Linear(z)
            for _ in range(300):
                w = theta * field(0.0, w)  # the iteration for the difference of two iterates
            assert bool(w.norm() < 1) == contracts


def test_contractive_radius_of_all_kinds() -> None:
    known = {
        "midpoint 0.0": INF,
        "RK4": INF,
        "VERLET": INF,
        "BDF2": 1.5,
        "SDIRK2": 1 / (1 - math.sqrt(0.5)),
        "GAUSS2": 2,
    }
    for name, radius in known.items():
        assert analysis.contractive_radius(SCHEMES[name]) == pytest.approx(radius)
    norm = torch.linalg.matrix_norm(torch.tensor(tableaux.RADAU5.A), 2)
    assert analysis.contractive_radius(RUNGE_KUTTA["RADAU5"]) == pytest.approx(1 / float(norm))
    assert analysis.contractive_radius(SCHEMES["LOBATTO pair"]) == pytest.approx(math.sqrt(2))


def test_printed() -> None:
    text = str(analysis.scheme_facts(RungeKutta(tableaux.RK4)))
    assert "order                         4" in text
    assert "-2.78529 <= z <= 0" in text
    assert "everywhere" in text  # nothing to solve
    assert "nowhere" in str(analysis.scheme_facts(Theta(0.0)))
    assert "does not apply" in str(analysis.scheme_facts(schemes.BDF2))


class Own(schemes.Scheme):
    """A scheme that says no more than it has to."""

    order = 1
    inverse = step = None


def test_schemes_of_others_have_no_facts() -> None:
    with pytest.raises(ValueError, match=r"order conditions of Own are not known.*`order_by_conditions`"):
        analysis.scheme_order(Own())
    for ask in (analysis.contractive_radius, analysis.linear_form, analysis.scheme_facts):
        with pytest.raises(ValueError, match=r"stability of Own is not known.*`linear_form`"):
            ask(Own())


def test_a_scheme_is_analysed_by_what_it_says_of_itself() -> None:
    """Backward Euler, written as one class outside of the library."""

    class Known(Own):
        linear_form = schemes.LinearForm([[1.0]], [[1.0]], [[1.0]], [[1.0]])

        def order_by_conditions(self) -> int:
            return 1

    facts, known = analysis.scheme_facts(Known()), analysis.scheme_facts(Theta(1.0))
    assert dataclasses.replace(facts, b_stable=True) == known
    assert facts.b_stable is None
    assert [Known().solved_at, Known().stage_norm] == [1, 1]


def test_where_on_the_chord_a_step_is_solved() -> None:
    assert [Theta(theta).solved_at for theta in (0.0, 0.3, 1.0)] == [0, 0.3, 1]
    assert [Theta(theta, "trapezoid").solved_at for theta in (0.0, 0.3, 1.0)] == [0, 1, 1]
    assert [Theta(0.3).chord, Theta(0.3, "trapezoid").chord, RUNGE_KUTTA["GAUSS2"].chord] == [0.3, None, None]
    assert [SCHEMES[name].solved_at for name in ("RK4", "RADAU5", "BDF2", "VERLET", "LOBATTO pair")] == [0, 1, 1, 0, 1]
