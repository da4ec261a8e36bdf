"""Work and precision of `rs.odeint` beside scipy, torchdiffeq and diffrax, for the tables and the figure of "odeint" in
the documentation.

    PYTHONPATH=tests:build/peers python benchmarks/odeint.py [--write]

torchdiffeq and diffrax are left out where they are not installed, see `make bench`.
"""

import argparse
import json
import os
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.ticker import LogLocator, NullFormatter
from scipy.integrate import solve_ivp
from torch import Tensor

import resolvent as rs
from integrate.stiff_problems import PROBLEMS, Problem, heat
from resolvent.plotting import COLORS, PAGE, paper_style
from resolvent.schemes import tableaux

DOCUMENTATION = Path(__file__).parent.parent / "docs"
PAGE_FILE, FIGURE = DOCUMENTATION / "odeint.md", DOCUMENTATION / "figures" / "work-precision.png"
DIFFRAX = Path(__file__).parent / "odeint_diffrax.py"
JAX = Path(os.environ.get("RESOLVENT_JAX", "build/jax/bin/python"))
NAMES = ["Robertson", "HIRES", "POLLU", "van der Pol, eps = 1e-6"]
CELLS = 1000
TOLERANCES = (1e-4, 1e-6, 1e-8)
BATCH = 256

OURS = {"odeint, auto": "auto", "odeint, KVAERNO5": tableaux.KVAERNO5, "odeint, RADAU5": tableaux.RADAU5}
SCIPY = {"scipy Radau": "Radau", "scipy BDF": "BDF", "scipy LSODA": "LSODA"}

T = TypeVar("T")


@dataclass(frozen=True)
class Point:
    """The largest relative error of a component at the end, calls of the field, and seconds."""

    error: float
    evaluations: int
    seconds: float

    def __str__(self) -> str:
        return f"{self.error:.0e}, {self.evaluations}, {self.seconds:.2f} s"


def timed(call: Callable[[], T]) -> tuple[T, float]:
    """What a call returns, and how many seconds of the processor it takes."""
    start = time.process_time()
    result = call()
    return result, time.process_time() - start


def best(call: Callable[[], Any], repeats: int = 5) -> float:
    return min(timed(call)[1] for _ in range(repeats))


def error(problem: Problem, state: Tensor) -> float:
    exact = torch.tensor(problem.state)
    return float(((state - exact).abs() / exact.abs().clamp(min=1e3 * problem.atol)).max())


def diffusion() -> Problem:
    """u_t = u_xx + source on 1,000 cells, whose exact solution on the grid is exp(-t) sin(pi x)."""
    start = torch.sin(torch.pi * torch.arange(1, CELLS + 1) / (CELLS + 1))
    field = heat(CELLS)
    field.rowwise = True  # type: ignore[attr-defined]
    end = start * torch.exp(torch.tensor(-1.0))
    return Problem(field, tuple(start.tolist()), 1.0, 1e-9, tuple(end.tolist()))


def ours(problem: Problem, rtol: float, scheme: object) -> Point:
    y0 = torch.tensor([problem.y0])

    def call() -> rs.integrate.Integration:
        return rs.odeint(problem.field, y0, [0.0, problem.end], scheme, rtol, 1e-3 * rtol, matrix=True)

    result, seconds = timed(call)
    return Point(error(problem, result.states[-1, 0]), result.evaluations, seconds)


def scipys(problem: Problem, rtol: float, method: str) -> Point:
    def field(t: float, y: np.ndarray) -> np.ndarray:
        return problem.field(t, torch.from_numpy(np.ascontiguousarray(y))[None])[0].numpy()

    def call() -> Any:
        return solve_ivp(field, (0, problem.end), problem.y0, method=method, rtol=rtol, atol=1e-3 * rtol)

    result, seconds = timed(call)
    return Point(error(problem, torch.from_numpy(result.y[:, -1].copy())), result.nfev, seconds)


def work_and_precision() -> dict[str, dict[float, dict[str, Point]]]:
    """By problem, tolerance and method."""
    found: dict[str, dict[float, dict[str, Point]]] = {}
    problems = {name: PROBLEMS[name] for name in NAMES} | {f"diffusion, {CELLS:,} unknowns": diffusion()}
    for name, problem in problems.items():
        found[name] = {
            rtol: {
                **{label: ours(problem, rtol, scheme) for label, scheme in OURS.items()},
                **{label: scipys(problem, rtol, method) for label, method in SCIPY.items()},
            }
            for rtol in TOLERANCES
        }
    return found


def table(found: dict[str, dict[float, dict[str, Point]]]) -> str:
    methods = [*OURS, *SCIPY]
    lines = [f"| problem | rtol | {' | '.join(methods)} |", f"|{'---|' * (2 + len(methods))}"]
    for name, by_rtol in found.items():
        for rtol, points in by_rtol.items():
            lines.append(f"| {name} | {rtol:.0e} | {' | '.join(str(points[method]) for method in methods)} |")
    return "\n".join(lines)


def draw(found: dict[str, dict[float, dict[str, Point]]]) -> None:
    """Errors against evaluations and against time, one column per problem."""
    mpl.use("Agg")
    with paper_style():
        figure, axes = plt.subplots(2, len(found), figsize=(PAGE, 4.2), sharey="col", layout="constrained")
        for column, (name, by_rtol) in zip(axes.T, found.items(), strict=True):
            for (method, color), marker in zip(zip([*OURS, *SCIPY], COLORS, strict=False), "osD^vx", strict=True):
                points = [points[method] for points in by_rtol.values()]
                line = "-" if method in OURS else "--"
                for ax, work in zip(column, ("evaluations", "seconds"), strict=True):
                    values = [getattr(point, work) for point in points]
                    ax.loglog(
                        values,
                        [p.error for p in points],
                        line,
                        marker=marker,
                        color=color,
                        markersize=3.5,
                        label=method,
                    )
            for ax in column:
                ax.xaxis.set_minor_formatter(NullFormatter())
                ax.xaxis.set_major_locator(LogLocator(numticks=4))
            column[0].set(title=name.replace(", ", ",\n"), xlabel="calls of the field")
            column[1].set(xlabel="seconds")
        for row in axes:
            row[0].set_ylabel("largest relative error")
        handles, labels = axes[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=3)
        FIGURE.parent.mkdir(exist_ok=True)
        figure.savefig(FIGURE, dpi=130)


def robertson_with(rates: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
    def field(t: Tensor, y: Tensor) -> Tensor:
        a, b, c = y.unbind(1)
        slow, back, fast = rates[:, 0] * a, rates[:, 1] * b * c, rates[:, 2] * b * b
        return torch.stack([back - slow, slow - back - fast, fast], 1)

    return field


def many_reactions() -> str:
    """Robertson's problem with other rates for each of a batch of samples, to t = 1e4, forward and backward."""
    torch.manual_seed(0)
    rates = torch.tensor([0.04, 1e4, 3e7]) * 10 ** (torch.rand(BATCH, 3) - 0.5)
    y0 = torch.tensor([[1.0, 0.0, 0.0]]).repeat(BATCH, 1)
    field, times = robertson_with(rates), [0.0, 1e4]
    exact = rs.odeint(field, y0, times, tableaux.RADAU5, rtol=1e-10, atol=1e-14).states[-1]

    def accuracy(states: Tensor) -> str:
        return f"{float(((states - exact) / exact).abs().max()):.0e}"

    rows = [
        ["odeint, auto", accuracy(rs.odeint(field, y0, times).states[-1]), best(lambda: rs.odeint(field, y0, times))]
    ]
    rates.requires_grad_()
    rows[0].append(best(lambda: rs.odeint(field, y0, times).states[-1].sum().backward(), 3))
    rates.requires_grad_(False)
    for label, method in SCIPY.items():
        ends, seconds = timed(lambda method=method: torch.stack([_alone(k, method) for k in rates.numpy()]))
        rows.append([f"{label}, one after the other", accuracy(ends), seconds, None])
    if JAX.exists():
        told = subprocess.run(
            [JAX, DIFFRAX], input=json.dumps(rates.tolist()), capture_output=True, text=True, check=True
        ).stdout
        result = json.loads(told)
        rows.append(
            ["diffrax Kvaerno5, jit", accuracy(torch.tensor(result["states"])), result["forward"], result["both"]]
        )
    lines = [
        f"| {BATCH} Robertson problems to t = 1e4 | error | forward | with the backward pass |",
        "|---|---|---|---|",
    ]
    for label, precision, forward, both in rows:
        lines.append(f"| {label} | {precision} | {forward:.2f} s | {'' if both is None else f'{both:.2f} s'} |")
    return "\n".join(lines)


def _alone(k: np.ndarray, method: str) -> Tensor:
    """One of the problems by scipy, with a field in numpy."""

    def field(t: float, y: np.ndarray) -> list[float]:
        slow, back, fast = k[0] * y[0], k[1] * y[1] * y[2], k[2] * y[1] * y[1]
        return [back - slow, slow - back - fast, fast]

    result = solve_ivp(field, (0.0, 1e4), [1.0, 0.0, 0.0], method=method, rtol=1e-6, atol=1e-9)
    return torch.from_numpy(result.y[:, -1].copy())


def not_stiff() -> str:
    """A batch of van der Pol oscillators with mu = 1 by explicit methods, forward and backward."""
    mu = torch.tensor(1.0)

    def field(t: Tensor, y: Tensor) -> Tensor:
        a, b = y.unbind(1)
        return torch.stack([b, mu * (1 - a * a) * b - a], 1)

    field.rowwise = True  # type: ignore[attr-defined]
    torch.manual_seed(0)
    y0, times = 2 * torch.randn(BATCH, 2), torch.linspace(0.0, 20.0, 11)
    exact = rs.odeint(field, y0, times, tableaux.DORMAND_PRINCE5, rtol=1e-11, atol=1e-12).states
    calls: dict[str, Callable[[], Tensor]] = {
        "odeint, DORMAND_PRINCE5": lambda: rs.odeint(field, y0, times, tableaux.DORMAND_PRINCE5, 1e-6, 1e-8).states
    }
    try:
        from torchdiffeq import odeint

        calls["torchdiffeq dopri5"] = lambda: odeint(field, y0, times, rtol=1e-6, atol=1e-8, method="dopri5")
    except ImportError:
        pass
    lines = [
        f"| {BATCH} van der Pol oscillators, mu = 1, to t = 20 | error | forward | with the backward pass |",
        "|---|---|---|---|",
    ]
    for label, call in calls.items():
        deviation = float((call() - exact).abs().max())
        forward = best(call)
        mu.requires_grad_()
        both = best(lambda call=call: call().sum().backward(), 3)
        mu.requires_grad_(False)
        lines.append(f"| {label} | {deviation:.0e} | {forward:.2f} s | {both:.2f} s |")
    return "\n".join(lines)


def put(text: str, mark: str) -> None:
    """Writes a text between two marks of the page."""
    begin, end = f"<!-- {mark}: begin -->", f"<!-- {mark}: end -->"
    page = PAGE_FILE.read_text(encoding="utf-8")
    before, rest = page.split(begin)
    PAGE_FILE.write_text(f"{before}{begin}\n{text}\n{end}{rest.split(end)[1]}", encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help=f"put tables and figure into {PAGE_FILE.name}")
    arguments = parser.parse_args()
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    rs.odeint(
        PROBLEMS["Robertson"].field, torch.tensor([PROBLEMS["Robertson"].y0]), [0.0, 1.0]
    )  # Imports what is lazy.
    batches = f"{many_reactions()}\n\n{not_stiff()}"
    print(batches)
    points = work_and_precision()
    print(table(points))
    if arguments.write:
        put(batches, "batches")
        put(table(points), "odeint")
        draw(points)
