"""Every scheme of the library by name, and the problems they are tried on. A new scheme joins a list here."""

import math

import torch
from torch import Tensor

import resolvent as rs
from resolvent import schemes
from resolvent.schemes import RungeKutta, Theta, tableaux
from resolvent.solvers.resolve import solve_options

RUNGE_KUTTA = {
    name: RungeKutta(getattr(tableaux, name))
    for name in (
        *("EULER", "EXPLICIT_MIDPOINT", "RK4", "SDIRK2", "TRBDF2", "SDIRK3"),
        *("GAUSS2", "GAUSS4", "RADAU3", "RADAU5", "LOBATTO_IIIA", "LOBATTO_IIIB"),
    )
}
THETA = {f"{form} {theta}": Theta(theta, form) for form in ("midpoint", "trapezoid") for theta in (0.0, 0.3, 0.5, 1.0)}
MULTISTEP = {name: getattr(schemes, name) for name in ("BDF2", "BDF3", "ADAMS_MOULTON3", "ADAMS_MOULTON4")}
SYMPLECTIC = {name: getattr(schemes, name) for name in ("REVNET", "VERLET", "LEAPFROG")}
PAIRS = {
    "LOBATTO pair": schemes.PartitionedRungeKutta(tableaux.LOBATTO_IIIA, tableaux.LOBATTO_IIIB),
    "EULER pair": schemes.PartitionedRungeKutta(tableaux.EULER, tableaux.EULER),
}
ONE_STEP = {**THETA, **RUNGE_KUTTA, **SYMPLECTIC, **PAIRS}
SCHEMES = {**ONE_STEP, **MULTISTEP}

SHARP = solve_options(None, rs.Stopping(rtol=1e-14, atol=1e-15), None, "ignore")
"""As accurate as rounding allows, for comparisons with exact values; what it stops at is compared anyway."""


def column(t: float | Tensor, like: Tensor) -> Tensor:
    """A time, or one for each sample, to multiply (batch, features)."""
    return torch.as_tensor(t, dtype=like.dtype).reshape(-1, 1)


class Manufactured:
    """q' = q*'(t) + sin p - sin p*(t), p' = p*'(t) + cos q - cos q*(t): nonlinear, non-autonomous, separable.

    The solution is q* = sin t + t^2 / 4, p* = exp(-t / 2) + cos 2t, whatever the time it starts at.
    """

    rowwise = True

    def solution(self, t: float | Tensor) -> tuple[Tensor, Tensor]:
        t = torch.as_tensor(t, dtype=torch.float64)
        return t.sin() + t**2 / 4, (-t / 2).exp() + (2 * t).cos()

    def state(self, t: Tensor) -> Tensor:
        return torch.stack(self.solution(t), dim=1)

    def velocity(self, t: float | Tensor, p: Tensor) -> Tensor:
        t = column(t, p)
        return t.cos() + t / 2 + p.sin() - self.solution(t)[1].sin()

    def force(self, t: float | Tensor, q: Tensor) -> Tensor:
        t = column(t, q)
        return -0.5 * (-t / 2).exp() - 2 * (2 * t).sin() + q.cos() - self.solution(t)[0].cos()

    def split(self, y: Tensor) -> tuple[Tensor, Tensor]:
        return y[:, :1], y[:, 1:]

    def join(self, q: Tensor, p: Tensor) -> Tensor:
        return torch.cat((q, p), dim=1)

    def __call__(self, t: float | Tensor, y: Tensor) -> Tensor:
        q, p = self.split(y)
        return self.join(self.velocity(t, p), self.force(t, q))


class Oscillator(Manufactured):
    """The paper's test system in (q, p) = (z, y): z' = y, y' = -omega^2 z."""

    def __init__(self, omega: float) -> None:
        self.omega = omega

    def velocity(self, t: float | Tensor, p: Tensor) -> Tensor:
        return p

    def force(self, t: float | Tensor, q: Tensor) -> Tensor:
        return -(self.omega**2) * q

    def energy(self, y: Tensor) -> Tensor:
        q, p = self.split(y)
        return (p**2 + self.omega**2 * q**2).squeeze(1)


class Linear:
    """y' = A y; for a complex number, the plane with multiplication by it."""

    rowwise = True

    def __init__(self, matrix: Tensor | complex) -> None:
        if not isinstance(matrix, Tensor):
            z = complex(matrix)
            matrix = torch.tensor([[z.real, -z.imag], [z.imag, z.real]])
        self.matrix = matrix

    def __call__(self, t: float | Tensor, y: Tensor) -> Tensor:
        return y @ self.matrix.T


def step_matrix(scheme: schemes.Scheme, field: object, h: float, dim: int) -> Tensor:
    """The matrix of one step of a one-step scheme on a linear field."""
    interval = schemes.Interval(field, 0.0, h, SHARP)
    return scheme.step(interval, schemes.Carry((torch.eye(dim),))).state.T


def run(scheme: schemes.Scheme, field: object, x: Tensor, h: float, num_steps: int, t0: float | Tensor = 0.0) -> Tensor:
    """The states after each of the steps, (num_steps + 1, batch, dim)."""
    carry, states = schemes.Carry((x,)), [x]
    for n in range(num_steps):
        carry = scheme.step(schemes.Interval(field, t0 + n * h, h, SHARP), carry).carry
        states.append(carry.states[0])
    return torch.stack(states)


def slope(errors: list[float]) -> float:
    """The order that errors with halved steps show, by least squares."""
    logs = [math.log2(error) for error in errors]
    mean = (len(logs) - 1) / 2
    spread = sum((k - mean) ** 2 for k in range(len(logs)))
    return -sum((k - mean) * value for k, value in enumerate(logs)) / spread
