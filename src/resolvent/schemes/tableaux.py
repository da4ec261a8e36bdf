"""Tables of Runge-Kutta methods; use one as `RungeKutta(tableaux.RK4)`.

| table | kind | order | stable for all Re z <= 0 | |R(-inf)| |
|---|---|---|---|---|
| EULER, EXPLICIT_MIDPOINT, RK4 | explicit | 1, 2, 4 | no | infinite |
| BOGACKI_SHAMPINE3*, DORMAND_PRINCE5*, TSITOURAS5* | explicit | 3, 5, 5 | no | infinite |
| SDIRK2, TRBDF2*, SDIRK3 | diagonally implicit | 2, 2, 3 | yes | 0 |
| KVAERNO3*, KVAERNO4*, KVAERNO5* | diagonally implicit, the first stage explicit | 3, 4, 5 | yes | 0, 0.72, 0 |
| GAUSS2, GAUSS4 | fully implicit | 2, 4 | yes | 1 |
| RADAU3, RADAU5* | fully implicit | 3, 5 | yes | 0 |
| KENCARP3*, KENCARP4* | additive: implicit for a linear part, explicit for the rest | 3, 4 | for the linear part | 0 |
| LOBATTO_IIIA, LOBATTO_IIIB | a pair, for partitioned systems | 2 | | |

Tables with a star have embedded weights, for `rs.odeint`.

References: Hairer & Wanner, Solving ordinary differential equations II, section IV.5 and IV.6 (Gauss, Radau, SDIRK);
Alexander, Diagonally implicit Runge-Kutta methods for stiff ODEs, SIAM J. Numer. Anal. 14, 1977 (SDIRK2, SDIRK3);
Bank et al., Transient simulation of silicon devices and circuits, 1985, and Hosea & Shampine, Analysis and
implementation of TR-BDF2, 1996; Hairer, Lubich & Wanner, Geometric numerical integration, section II.2 (Lobatto pair);
Bogacki & Shampine, A 3(2) pair of Runge-Kutta formulas, 1989; Dormand & Prince, A family of embedded Runge-Kutta
formulae, 1980; Tsitouras, Runge-Kutta pairs of order 5(4) satisfying only the first column simplifying assumption,
2011; Kennedy & Carpenter, Additive Runge-Kutta schemes for convection-diffusion-reaction equations, 2003 (KenCarp);
Kvaerno, Singly diagonally implicit Runge-Kutta methods with an explicit first stage, BIT 44, 2004.
"""

import math

from resolvent.schemes.tableau import AdditiveTableau, Row, Tableau

_R2, _R3, _R6 = math.sqrt(2), math.sqrt(3), math.sqrt(6)


def _lower(*rows: Row, order: int, embedded: Row = ()) -> Tableau:
    """A table whose last stage is the result, from its lower triangular rows. Without `embedded`, the second to last
    stage is the embedded method."""
    full = tuple((*row, *(0.0 for _ in range(len(rows) - len(row)))) for row in rows)
    return Tableau(full, full[-1], order, embedded=embedded or full[-2])


EULER = Tableau(((0.0,),), (1.0,), 1)
EXPLICIT_MIDPOINT = Tableau(((0.0, 0.0), (0.5, 0.0)), (0.0, 1.0), 2)
RK4 = Tableau(
    ((0.0, 0.0, 0.0, 0.0), (0.5, 0.0, 0.0, 0.0), (0.0, 0.5, 0.0, 0.0), (0.0, 0.0, 1.0, 0.0)),
    (1 / 6, 1 / 3, 1 / 3, 1 / 6),
    4,
)

BOGACKI_SHAMPINE3 = Tableau(
    ((0.0, 0.0, 0.0, 0.0), (1 / 2, 0.0, 0.0, 0.0), (0.0, 3 / 4, 0.0, 0.0), (2 / 9, 1 / 3, 4 / 9, 0.0)),
    (2 / 9, 1 / 3, 4 / 9, 0.0),
    3,
    embedded=(7 / 24, 1 / 4, 1 / 3, 1 / 8),
)
DORMAND_PRINCE5 = _lower(
    (),
    (1 / 5,),
    (3 / 40, 9 / 40),
    (44 / 45, -56 / 15, 32 / 9),
    (19372 / 6561, -25360 / 2187, 64448 / 6561, -212 / 729),
    (9017 / 3168, -355 / 33, 46732 / 5247, 49 / 176, -5103 / 18656),
    (35 / 384, 0.0, 500 / 1113, 125 / 192, -2187 / 6784, 11 / 84),
    order=5,
    embedded=(5179 / 57600, 0.0, 7571 / 16695, 393 / 640, -92097 / 339200, 187 / 2100, 1 / 40),
)
TSITOURAS5 = _lower(
    (),
    (0.161,),
    (-0.008480655492356989, 0.335480655492357),
    (2.8971530571054935, -6.359448489975075, 4.3622954328695815),
    (5.325864828439257, -11.748883564062828, 7.4955393428898365, -0.09249506636175525),
    (5.86145544294642, -12.92096931784711, 8.159367898576159, -0.071584973281401, -0.028269050394068383),
    (0.09646076681806523, 0.01, 0.4798896504144996, 1.379008574103742, -3.290069515436081, 2.324710524099774),
    order=5,
    embedded=(
        0.09468075576583945,
        0.009183565540343254,
        0.4877705284247616,
        1.234297566930479,
        -2.7077123499835256,
        1.866628418170587,
        1 / 66,
    ),
)

_g = 1 - 1 / _R2
SDIRK2 = Tableau(((_g, 0.0), (1 - _g, _g)), (1 - _g, _g), 2)

_d, _w = 1 - 1 / _R2, _R2 / 4
TRBDF2 = Tableau(
    ((0.0, 0.0, 0.0), (_d, _d, 0.0), (_w, _w, _d)),
    (_w, _w, _d),
    2,
    embedded=((1 - _w) / 3, _w + 1 / 3, _d / 3),  # of order 3
)

# The root of g^3 - 3 g^2 + 3/2 g - 1/6 between 1/6 and 1/2, which makes the method L-stable.
_g = 1 + _R2 * math.cos((2 * math.pi - math.acos(2 * _R2 / 3)) / 3)
_b1, _b2 = -1.5 * _g**2 + 4 * _g - 0.25, 1.5 * _g**2 - 5 * _g + 1.25
SDIRK3 = Tableau(((_g, 0.0, 0.0), ((1 - _g) / 2, _g, 0.0), (_b1, _b2, _g)), (_b1, _b2, _g), 3)

# The embedded methods of Kvaerno's pairs are their second to last stages.
KVAERNO3 = _lower(
    (),
    (_g, _g),
    ((-4 * _g**2 + 6 * _g - 1) / (4 * _g), (1 - 2 * _g) / (4 * _g), _g),
    ((6 * _g - 1) / (12 * _g), 1 / (12 * (1 - 2 * _g) * _g), (6 * _g**2 - 6 * _g + 1) / (3 - 6 * _g), _g),
    order=3,
)
KVAERNO4 = _lower(
    (),
    (0.4358665215084589994, 0.4358665215084589994),
    (0.1407377747247061962, -0.1083655513813208000, 0.4358665215084589994),
    (0.1023994006199109977, -0.3768784522555561061, 0.8386125301271861090, 0.4358665215084589994),
    (
        0.1570248978603249371,
        0.1173304413704388487,
        0.6166780303921214643,
        -0.3268998911313442496,
        0.4358665215084589994,
    ),
    order=4,
)
KVAERNO5 = _lower(
    (),
    (0.26, 0.26),
    (0.13, 0.84033320996790809, 0.26),
    (0.22371961478320505, 0.47675532319799699, -0.06470895363112615, 0.26),
    (0.16648564323248321, 0.10450018841591720, 0.03631482272098715, -0.13090704451073998, 0.26),
    (0.13855640231268224, 0.0, -0.04245337201752043, 0.02446657898003141, 0.61943039072480676, 0.26),
    (
        0.13659751177640291,
        0.0,
        -0.05496908796538376,
        -0.04118626728321046,
        0.62993304899016403,
        0.06962479448202728,
        0.26,
    ),
    order=5,
)


def _additive(implicit: tuple[Row, ...], explicit: tuple[Row, ...], order: int, embedded: Row) -> AdditiveTableau:
    """The pair of tables with these lower triangular rows; the last implicit stage has the weights of the method."""
    b = implicit[-1]
    full = [tuple((*row, *(0.0 for _ in range(len(b) - len(row)))) for row in rows) for rows in (implicit, explicit)]
    first, second = (Tableau(A, b, order, embedded=embedded) for A in full)
    return AdditiveTableau(first, second)


_g = 1767732205903 / 4055673282236
KENCARP3 = _additive(
    (
        (),
        (_g, _g),
        (2746238789719 / 10658868560708, -640167445237 / 6845629431997, _g),
        (1471266399579 / 7840856788654, -4482444167858 / 7529755066697, 11266239266428 / 11593286722821, _g),
    ),
    (
        (),
        (2 * _g,),
        (5535828885825 / 10492691773637, 788022342437 / 10882634858940),
        (6485989280629 / 16251701735622, -4246266847089 / 9704473918619, 10755448449292 / 10357097424841),
    ),
    order=3,
    embedded=(
        2756255671327 / 12835298489170,
        -10771552573575 / 22201958757719,
        9247589265047 / 10645013368117,
        2193209047091 / 5459859503100,
    ),
)
KENCARP4 = _additive(
    (
        (),
        (1 / 4, 1 / 4),
        (8611 / 62500, -1743 / 31250, 1 / 4),
        (5012029 / 34652500, -654441 / 2922500, 174375 / 388108, 1 / 4),
        (
            15267082809 / 155376265600,
            -71443401 / 120774400,
            730878875 / 902184768,
            2285395 / 8070912,
            1 / 4,
        ),
        (82889 / 524892, 0.0, 15625 / 83664, 69875 / 102672, -2260 / 8211, 1 / 4),
    ),
    (
        (),
        (1 / 2,),
        (13861 / 62500, 6889 / 62500),
        (
            -116923316275 / 2393684061468,
            -2731218467317 / 15368042101831,
            9408046702089 / 11113171139209,
        ),
        (
            -451086348788 / 2902428689909,
            -2682348792572 / 7519795681897,
            12662868775082 / 11960479115383,
            3355817975965 / 11060851509271,
        ),
        (
            647845179188 / 3216320057751,
            73281519250 / 8382639484533,
            552539513391 / 3454668386233,
            3354512671639 / 8306763924573,
            4040 / 17871,
        ),
    ),
    order=4,
    embedded=(
        4586570599 / 29645900160,
        0.0,
        178811875 / 945068544,
        814220225 / 1159782912,
        -3700637 / 11593932,
        61727 / 225920,
    ),
)

GAUSS2 = Tableau(((0.5,),), (1.0,), 2)
GAUSS4 = Tableau(((1 / 4, 1 / 4 - _R3 / 6), (1 / 4 + _R3 / 6, 1 / 4)), (1 / 2, 1 / 2), 4)

RADAU3 = Tableau(((5 / 12, -1 / 12), (3 / 4, 1 / 4)), (3 / 4, 1 / 4), 3)
# The embedded method of Hairer & Wanner, section IV.8: of order 3, with the slope at the start. Its weight there is the
# real eigenvalue of A, so that the factors of the stages also serve the estimate.
_nodes = ((4 - _R6) / 10, (4 + _R6) / 10, 1.0)
_g0 = (6 + 81 ** (1 / 3) - 9 ** (1 / 3)) / 30
_at_start = tuple(math.prod(c / (c - own) for c in _nodes if c != own) for own in _nodes)
_weights = ((16 - _R6) / 36, (16 + _R6) / 36, 1 / 9)
RADAU5 = Tableau(
    (
        ((88 - 7 * _R6) / 360, (296 - 169 * _R6) / 1800, (-2 + 3 * _R6) / 225),
        ((296 + 169 * _R6) / 1800, (88 + 7 * _R6) / 360, (-2 - 3 * _R6) / 225),
        _weights,
    ),
    _weights,
    5,
    _nodes,
    embedded=(_g0, *(b - _g0 * value for b, value in zip(_weights, _at_start, strict=True))),
)

LOBATTO_IIIA = Tableau(((0.0, 0.0), (0.5, 0.5)), (0.5, 0.5), 2)
LOBATTO_IIIB = Tableau(((0.5, 0.0), (0.5, 0.0)), (0.5, 0.5), 2, c=(0.0, 1.0))
