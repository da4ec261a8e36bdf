"""Runs every solver on every manufactured problem and writes the table of "choose a solver" in the documentation.

PYTHONPATH=tests python benchmarks/solvers.py [--write]
"""

import argparse
from pathlib import Path

import torch

import resolvent as rs
from manufactured import LINEAR_SOLVERS, PROBLEMS, Case
from resolvent.extending import Solver

PAGE = Path(__file__).parent.parent / "docs" / "choose-a-solver.md"
BEGIN, END = "<!-- table: begin -->", "<!-- table: end -->"
SHORT = {
    rs.Status.MAX_STEPS: "out of steps",
    rs.Status.STALLED: "stalled",
    rs.Status.DIVERGED: "diverged",
    rs.Status.NON_FINITE: "not finite",
    rs.Status.BREAKDOWN: "singular",
}
FORWARD = [
    rs.Auto(),
    rs.Newton(),
    rs.solvers.Chord(),
    rs.NewtonKrylov(),
    rs.PseudoTransient(),
    rs.Anderson(),
    rs.Broyden(),
    rs.Picard(),
    rs.LBFGS(),
    rs.ConjugateGradient(),
    rs.GradientDescent(),
]


def outcome(solution: rs.Solution, work: str) -> str:
    """What it cost, or how it failed and for how many samples."""
    failed = solution.status[~solution.converged]
    if len(failed) == 0:
        return work
    reason = SHORT[rs.Status(int(failed.mode().values))]
    return f"*{reason}*" if len(failed) == len(solution.status) else f"*{reason} ({len(failed)} of 5)*"


def forward(case: Case, solver: Solver) -> str:
    with torch.no_grad():
        solution = rs.resolve(case.F, case.b, case.tau, solver=solver, on_failure="ignore")
    products = solution.vjps + solution.jvps
    return outcome(solution, f"{solution.evaluations}" + (f" + {products}" if products else ""))


def backward(case: Case, solver: Solver) -> str:
    seen: list[rs.Solution] = []
    b = case.b.clone().requires_grad_()
    adjoint = rs.ImplicitAdjoint(solver, on_failure="ignore", callback=seen.append)
    value = rs.resolve(case.F, b, case.tau, solver=rs.NewtonKrylov(), adjoint=adjoint).value
    value.backward(torch.linspace(-1, 1, b.numel(), dtype=b.dtype).reshape(b.shape))
    return outcome(seen[0], str(seen[0].vjps))


def table(run, solvers: list[Solver]) -> list[str]:
    names = [type(s).__name__ + (f"({s.restart})" if isinstance(s, rs.GMRES) else "") for s in solvers]
    lines = ["| problem | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
    for problem in PROBLEMS:
        cells = [run(problem.build(torch.float64), solver) for solver in solvers]
        lines.append(f"| {problem.name} | " + " | ".join(cells) + " |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="write the tables into docs/choose-a-solver.md")
    write = parser.parse_args().write
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    lines = ["### Forward: evaluations of F + products with its Jacobian", "", *table(forward, FORWARD), ""]
    lines += ["### Backward: products with the transposed Jacobian", "", *table(backward, LINEAR_SOLVERS)]
    text = "\n".join(lines)
    print(text)
    if write:
        page = PAGE.read_text()
        before, after = page.split(BEGIN)[0], page.split(END)[1]
        PAGE.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}")


if __name__ == "__main__":
    main()
