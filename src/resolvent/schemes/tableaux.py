"""Tables of Runge-Kutta methods; use one as `RungeKutta(tableaux.RK4)`.

| table | kind | order | stable for all Re z <= 0 | |R(-inf)| |
|---|---|---|---|---|
| EULER, EXPLICIT_MIDPOINT, RK4 | explicit | 1, 2, 4 | no | infinite |
| SDIRK2, TRBDF2, SDIRK3 | diagonally implicit | 2, 2, 3 | yes | 0 |
| GAUSS2, GAUSS4 | fully implicit | 2, 4 | yes | 1 |
| RADAU3, RADAU5 | fully implicit | 3, 5 | yes | 0 |
| LOBATTO_IIIA, LOBATTO_IIIB | a pair, for partitioned systems | 2 | | |

References: Hairer & Wanner, Solving ordinary differential equations II, section IV.5 and IV.6 (Gauss, Radau, SDIRK);
Alexander, Diagonally implicit Runge-Kutta methods for stiff ODEs, SIAM J. Numer. Anal. 14, 1977 (SDIRK2, SDIRK3);
Bank et al., Transient simulation of silicon devices and circuits, 1985, and Hosea & Shampine, Analysis and
implementation of TR-BDF2, 1996; Hairer, Lubich & Wanner, Geometric numerical integration, section II.2 (Lobatto pair).
"""

import math

from resolvent.schemes.tableau import Tableau

_R2, _R3, _R6 = math.sqrt(2), math.sqrt(3), math.sqrt(6)

EULER = Tableau(((0.0,),), (1.0,), 1)
EXPLICIT_MIDPOINT = Tableau(((0.0, 0.0), (0.5, 0.0)), (0.0, 1.0), 2)
RK4 = Tableau(
    ((0.0, 0.0, 0.0, 0.0), (0.5, 0.0, 0.0, 0.0), (0.0, 0.5, 0.0, 0.0), (0.0, 0.0, 1.0, 0.0)),
    (1 / 6, 1 / 3, 1 / 3, 1 / 6),
    4,
)

_g = 1 - 1 / _R2
SDIRK2 = Tableau(((_g, 0.0), (1 - _g, _g)), (1 - _g, _g), 2)

_d, _w = 1 - 1 / _R2, _R2 / 4
TRBDF2 = Tableau(((0.0, 0.0, 0.0), (_d, _d, 0.0), (_w, _w, _d)), (_w, _w, _d), 2)

# The root of g^3 - 3 g^2 + 3/2 g - 1/6 between 1/6 and 1/2, which makes the method L-stable.
_g = 1 + _R2 * math.cos((2 * math.pi - math.acos(2 * _R2 / 3)) / 3)
_b1, _b2 = -1.5 * _g**2 + 4 * _g - 0.25, 1.5 * _g**2 - 5 * _g + 1.25
SDIRK3 = Tableau(((_g, 0.0, 0.0), ((1 - _g) / 2, _g, 0.0), (_b1, _b2, _g)), (_b1, _b2, _g), 3)

GAUSS2 = Tableau(((0.5,),), (1.0,), 2)
GAUSS4 = Tableau(((1 / 4, 1 / 4 - _R3 / 6), (1 / 4 + _R3 / 6, 1 / 4)), (1 / 2, 1 / 2), 4)

RADAU3 = Tableau(((5 / 12, -1 / 12), (3 / 4, 1 / 4)), (3 / 4, 1 / 4), 3)
RADAU5 = Tableau(
    (
        ((88 - 7 * _R6) / 360, (296 - 169 * _R6) / 1800, (-2 + 3 * _R6) / 225),
        ((296 + 169 * _R6) / 1800, (88 + 7 * _R6) / 360, (-2 - 3 * _R6) / 225),
        ((16 - _R6) / 36, (16 + _R6) / 36, 1 / 9),
    ),
    ((16 - _R6) / 36, (16 + _R6) / 36, 1 / 9),
    5,
)

LOBATTO_IIIA = Tableau(((0.0, 0.0), (0.5, 0.5)), (0.5, 0.5), 2)
LOBATTO_IIIB = Tableau(((0.5, 0.0), (0.5, 0.0)), (0.5, 0.5), 2, c=(0.0, 1.0))
