"""Classical stiff problems, with their states at the end by scipy's Radau at a relative tolerance of 1e-12.

References: Mazzia & Magherini, Test set for initial value problem solvers, release 2.4, 2008; Hairer & Wanner, Solving
ordinary differential equations II, section IV.10 (van der Pol, Robertson, Oregonator, HIRES, E5, Brusselator). Where
the test set prints a reference solution, the states here agree with it to ten digits. The state of POLLU is the printed
one, with which scipy's Radau agrees to fourteen.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

Field = Callable[[Tensor | float, Tensor], Tensor]


@dataclass(frozen=True)
class Problem:
    """y' = field(t, y) from y0 at time 0 to `end`, with the state there; `atol` is one that suits its components."""

    field: Field
    y0: tuple[float, ...]
    end: float
    atol: float
    state: tuple[float, ...] = ()


def robertson(t: Tensor | float, y: Tensor) -> Tensor:
    a, b, c = y.unbind(1)
    slow, back, fast = 0.04 * a, 1e4 * b * c, 3e7 * b * b
    return torch.stack([back - slow, slow - back - fast, fast], 1)


def van_der_pol(mu: float) -> Field:
    return lambda t, y: torch.stack([y[:, 1], mu * (1 - y[:, 0] ** 2) * y[:, 1] - y[:, 0]], 1)


def van_der_pol_in_slow_time(eps: float) -> Field:
    return lambda t, y: torch.stack([y[:, 1], ((1 - y[:, 0] ** 2) * y[:, 1] - y[:, 0]) / eps], 1)


def oregonator(t: Tensor | float, y: Tensor) -> Tensor:
    a, b, c = y.unbind(1)
    return torch.stack([77.27 * (b + a * (1 - 8.375e-6 * a - b)), (c - (1 + a) * b) / 77.27, 0.161 * (a - c)], 1)


def hires(t: Tensor | float, y: Tensor) -> Tensor:
    a, b, c, d, e, f, g, h = y.unbind(1)
    bound = 280 * f * h
    slopes = [
        -1.71 * a + 0.43 * b + 8.32 * c + 0.0007,
        1.71 * a - 8.75 * b,
        -10.03 * c + 0.43 * d + 0.035 * e,
        8.32 * b + 1.71 * c - 1.12 * d,
        -1.745 * e + 0.43 * f + 0.43 * g,
        -bound + 0.69 * d + 1.71 * e - 0.43 * f + 0.69 * g,
        bound - 1.81 * g,
        -bound + 1.81 * g,
    ]
    return torch.stack(slopes, 1)


POLLU_RATES = (
    *(0.35, 26.6, 1.23e4, 8.6e-4, 8.2e-4, 1.5e4, 1.3e-4, 2.4e4, 1.65e4, 9e3, 2.2e-2, 1.2e4, 1.88, 1.63e4, 4.8e6),
    *(3.5e-4, 1.75e-2, 1e8, 4.44e11, 1.24e3, 2.1, 5.78, 4.74e-2, 1.78e3, 3.12),
)


def pollu(t: Tensor | float, y: Tensor) -> Tensor:
    """The chemistry of a polluted atmosphere: 20 species in 25 reactions."""
    y1, y2, y3, y4, y5, y6, y7, _, y9, y10, y11, _, y13, y14, _, y16, y17, _, y19, y20 = y.unbind(1)
    products = [
        *(y1, y2 * y4, y5 * y2, y7, y7, y7 * y6, y9, y9 * y6, y11 * y2, y11 * y1, y13, y10 * y2, y14, y1 * y6, y3),
        *(y4, y4, y16, y16, y17 * y6, y19, y19, y1 * y4, y19 * y1, y20),
    ]
    r = [y1, *(rate * product for rate, product in zip(POLLU_RATES, products, strict=True))]  # counted from 1
    slopes = [
        r[2] + r[3] + r[9] + r[11] + r[12] + r[22] + r[25] - r[1] - r[10] - r[14] - r[23] - r[24],
        r[1] + r[21] - r[2] - r[3] - r[9] - r[12],
        r[1] + r[17] + r[19] + r[22] - r[15],
        r[15] - r[2] - r[16] - r[17] - r[23],
        2 * r[4] + r[6] + r[7] + r[13] + r[20] - r[3],
        r[3] + 2 * r[18] - r[6] - r[8] - r[14] - r[20],
        r[13] - r[4] - r[5] - r[6],
        r[4] + r[5] + r[6] + r[7],
        -r[7] - r[8],
        r[7] + r[9] - r[12],
        r[8] + r[11] - r[9] - r[10],
        r[9],
        r[10] - r[11],
        r[12] - r[13],
        r[14],
        r[16] - r[18] - r[19],
        -r[20],
        r[20],
        r[23] + r[25] - r[21] - r[22] - r[24],
        r[24] - r[25],
    ]
    return torch.stack(slopes, 1)


def e5(t: Tensor | float, y: Tensor) -> Tensor:
    a, b, c, d = y.unbind(1)
    first, second, third, fourth = 7.89e-10 * a, 1.1e7 * a * c, 1.13e9 * b * c, 1.13e3 * d
    return torch.stack([-first - second, first - third, first - second + fourth - third, second - fourth], 1)


def brusselator(cells: int) -> Field:
    """The reaction-diffusion equation on (0, 1) with alpha = 1/50; states are (u_1, v_1, u_2, v_2, ...)."""
    rate = (cells + 1) ** 2 / 50

    def field(t: Tensor | float, y: Tensor) -> Tensor:
        u, v = y.reshape(-1, cells, 2).unbind(2)
        reaction = u * u * v
        return torch.stack(
            [
                1 + reaction - 4 * u + rate * second_difference(u, 1.0),
                3 * u - reaction + rate * second_difference(v, 3.0),
            ],
            dim=2,
        ).reshape(y.shape)

    return field


def heat(cells: int) -> Field:
    """u_t = u_xx + (pi^2 - 1) exp(-t) sin(pi x), whose solution is exp(-t) sin(pi x)."""
    x = torch.arange(1, cells + 1, dtype=torch.float64) / (cells + 1)
    # The eigenvalue of the difference operator in place of pi^2: the solution is then exact on the grid.
    eigenvalue = (2 * (cells + 1)) ** 2 * torch.sin(
        torch.tensor(torch.pi / (2 * (cells + 1)), dtype=torch.float64)
    ) ** 2

    def field(t: Tensor | float, y: Tensor) -> Tensor:
        t = torch.as_tensor(t, dtype=y.dtype).reshape(-1, 1)
        source = (eigenvalue - 1) * torch.exp(-t) * torch.sin(torch.pi * x)
        return (cells + 1) ** 2 * second_difference(y, 0.0) + source

    return field


def second_difference(u: Tensor, boundary: float) -> Tensor:
    padded = torch.nn.functional.pad(u, (1, 1), value=boundary)
    return padded[:, 2:] - 2 * u + padded[:, :-2]


def brusselator_start(cells: int) -> tuple[float, ...]:
    x = torch.arange(1, cells + 1, dtype=torch.float64) / (cells + 1)
    u = 1 + torch.sin(2 * torch.pi * x)
    return tuple(torch.stack([u, torch.full_like(u, 3.0)], 1).flatten().tolist())


PROBLEMS = {
    "Robertson": Problem(
        robertson, (1.0, 0.0, 0.0), 1e11, 1e-9, (2.083340149701e-08, 8.33336077033e-14, 0.99999997916651)
    ),
    "van der Pol, mu = 1e3": Problem(van_der_pol(1e3), (2.0, 0.0), 2000.0, 1e-9, (1.706167732170, -8.928097010248e-4)),
    "van der Pol, eps = 1e-6": Problem(
        van_der_pol_in_slow_time(1e-6), (2.0, 0.0), 2.0, 1e-9, (1.706167732170483, -0.8928097010247975)
    ),
    "Oregonator": Problem(oregonator, (1.0, 2.0, 3.0), 360.0, 1e-9, (1.000814870319, 1228.178521550, 132.0554942847)),
    "HIRES": Problem(
        hires,
        (1.0, *6 * (0.0,), 0.0057),
        321.8122,
        1e-9,
        (
            7.371312573326e-4,
            1.442485726316e-4,
            5.888729740968e-5,
            1.175651343283e-3,
            2.386356198831e-3,
            6.238968252743e-3,
            2.849998395186e-3,
            2.850001604814e-3,
        ),
    ),
    "POLLU": Problem(
        pollu,
        (0.0, 0.2, 0.0, 0.04, 0.0, 0.0, 0.1, 0.3, 0.01, *7 * (0.0,), 0.007, 0.0, 0.0, 0.0),
        60.0,
        1e-9,
        (
            *(0.5646255480022769e-1, 0.1342484130422339, 0.4139734331099427e-8, 0.5523140207484359e-2),
            *(0.2018977262302196e-6, 0.1464541863493966e-6, 0.7784249118997964e-1, 0.3245075353396018),
            *(0.7494013383880406e-2, 0.1622293157301561e-7, 0.1135863833257075e-7, 0.2230505975721359e-2),
            *(0.2087162882798630e-3, 0.1396921016840158e-4, 0.8964884856898295e-2, 0.4352846369330103e-17),
            *(0.6899219696263405e-2, 0.1007803037365946e-3, 0.1772146513969984e-5, 0.5682943292316392e-4),
        ),
    ),
    "E5": Problem(
        e5, (1.76e-3, 0.0, 0.0, 0.0), 1e9, 1e-24, (3.1317059585e-14, 1.4840888840e-16, 1.4840985291e-16, 4.524368e-26)
    ),
    "Brusselator": Problem(
        brusselator(20),
        brusselator_start(20),
        10.0,
        1e-9,
        (
            0.8776530097,
            3.154703909,
            0.7658928274,
            3.29554882,
            0.6712478471,
            3.413643265,
            0.5958550018,
            3.50583009,
            0.5386469677,
            3.573451166,
            0.4969386019,
            3.620405791,
            0.4676720877,
            3.651446868,
            0.4481320348,
            3.671045423,
            0.436247126,
            3.682770847,
            0.4306606757,
            3.689013043,
            0.43071125,
            3.690887551,
            0.4364053272,
            3.688219383,
            0.4484169184,
            3.679556663,
            0.468113179,
            3.662214786,
            0.4975692042,
            3.632401031,
            0.5394886457,
            3.585523549,
            0.5968897247,
            3.516839976,
            0.6723805303,
            3.422609112,
            0.7669226841,
            3.301778439,
            0.8782943216,
            3.157853117,
        ),
    ),
}
