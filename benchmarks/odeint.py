"""Work and precision of `rs.odeint` beside scipy on stiff problems, for the tables of "odeint" in the documentation.

PYTHONPATH=tests python benchmarks/odeint.py [--write]
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from scipy.integrate import solve_ivp
from torch import Tensor

import resolvent as rs
from integrate.stiff_problems import PROBLEMS, Problem
from resolvent.schemes import tableaux

PAGE = Path(__file__).parent.parent / "docs" / "odeint.md"
BEGIN, END = "<!-- odeint: begin -->", "<!-- odeint: end -->"
NAMES = ["Robertson", "HIRES", "Brusselator"]
BATCH = 256

T = TypeVar("T")


def error(problem: Problem, state: Tensor) -> float:
    """The largest relative error of a component."""
    exact = torch.tensor(problem.state)
    return float(((state - exact).abs() / exact.abs().clamp(min=1e3 * problem.atol)).max())


def timed(call: Callable[[], T]) -> tuple[T, float]:
    """What a call returns, and how many seconds it takes."""
    start = time.perf_counter()
    result = call()
    return result, time.perf_counter() - start


def ours(problem: Problem, rtol: float, scheme: object) -> tuple[float, int, float]:
    y0 = torch.tensor([problem.y0])

    def call() -> rs.integrate.Integration:
        return rs.odeint(problem.field, y0, [0.0, problem.end], scheme, rtol, 1e-3 * rtol)

    result, duration = timed(call)
    return error(problem, result.states[-1, 0]), result.evaluations, duration


def scipys(problem: Problem, rtol: float, method: str) -> tuple[float, int, float]:
    def field(t: float, y: np.ndarray) -> np.ndarray:
        return problem.field(t, torch.from_numpy(np.ascontiguousarray(y))[None])[0].numpy()

    def call() -> Any:
        return solve_ivp(field, (0, problem.end), problem.y0, method=method, rtol=rtol, atol=1e-3 * rtol)

    result, duration = timed(call)
    return error(problem, torch.from_numpy(result.y[:, -1].copy())), result.nfev, duration


def many_reactions() -> list[str]:
    """Robertson's problem with other rates for each of a batch of samples, to t = 1e4, forward and backward."""
    torch.manual_seed(0)
    rates = torch.tensor([0.04, 1e4, 3e7]) * 10 ** (torch.rand(BATCH, 3) - 0.5)
    y0 = torch.tensor([[1.0, 0.0, 0.0]]).repeat(BATCH, 1)

    def field(t: Tensor, y: Tensor) -> Tensor:
        a, b, c = y.unbind(1)
        slow, back, fast = rates[:, 0] * a, rates[:, 1] * b * c, rates[:, 2] * b * b
        return torch.stack([back - slow, slow - back - fast, fast], 1)

    forward = min(timed(lambda: rs.odeint(field, y0, [0.0, 1e4]))[1] for _ in range(3))
    rates.requires_grad_()
    both = min(timed(lambda: rs.odeint(field, y0, [0.0, 1e4]).states[-1].sum().backward())[1] for _ in range(3))
    return [f"{BATCH} Robertson problems to t = 1e4: {forward:.2f} s forward, {both:.2f} s with the backward pass."]


def table() -> str:
    lines = [
        "| problem | rtol | odeint, auto | odeint, `KVAERNO5` | scipy Radau | scipy BDF | scipy LSODA |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in NAMES:
        for rtol in (1e-4, 1e-6, 1e-8):
            cells = [ours(PROBLEMS[name], rtol, scheme) for scheme in ("auto", tableaux.KVAERNO5)]
            cells += [scipys(PROBLEMS[name], rtol, method) for method in ("Radau", "BDF", "LSODA")]
            texts = [f"{e:.0e}, {count}, {duration:.2f} s" for e, count, duration in cells]
            lines.append(f"| {name} | {rtol:.0e} | {' | '.join(texts)} |")
    return "\n".join([*lines, "", *many_reactions()])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help=f"put the table into {PAGE.name}")
    arguments = parser.parse_args()
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    many_reactions()  # What is made once shall not count.
    found = table()
    print(found)
    if arguments.write:
        page = PAGE.read_text(encoding="utf-8")
        before, rest = page.split(BEGIN)
        PAGE.write_text(f"{before}{BEGIN}\n{found}\n{END}{rest.split(END)[1]}", encoding="utf-8")
