"""Counts the evaluations and products that layers of own networks need, for a table of "speed" in the documentation.

GMRES takes the fewest products of all methods that combine products with one vector, and Anderson's method with a long
window is its nonlinear counterpart. Where the plain fixed point and the Neumann series are as good, no such method
takes fewer.

python benchmarks/iterations.py [--write]
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import nn

import resolvent as rs
from resolvent.extending import Plan
from resolvent_lab.bench.markdown import table
from resolvent_lab.bench.own import Kind, own_convolutions, own_network
from resolvent_lab.bench.task import Task, with_layers

PAGE = Path(__file__).parent.parent / "docs" / "speed.md"
BEGIN, END = "<!-- iterations: begin -->", "<!-- iterations: end -->"
METHODS = {
    "fixed point, Neumann series": (rs.Picard(), rs.Neumann()),
    "Anderson, GMRES": (rs.Anderson(memory=20), rs.GMRES()),
    "default": (None, None),
}


def tasks() -> Iterator[tuple[str, Task]]:
    for theta in (0.5, 1.0):
        for tolerance in (1e-6, 1e-3):
            yield f"own convolutions, {tolerance:.0e}", own_convolutions(theta, "cpu", tolerance, count=16)
        for training in (0, 150):
            for unknowns in (32, 256):
                kind = Kind(unknowns, 2, unknowns, nn.Tanh, 0, training)
                name = f"{unknowns} unknowns, {'trained' if training else 'as drawn'}"
                yield name, own_network(theta, "cpu", "B10", name, kind, 64, 4, 0.25)


def counted(task: Task, solver: Plan | None, linear: Plan | None) -> str:
    """Evaluations and products per layer, both with those that confirm the result."""
    stopping, layers = rs.Stopping(rtol=task.tolerance, atol=0.0), 0
    forward, backward = list[rs.Solution](), list[rs.Solution]()

    def remade(old: rs.ThetaBlock) -> nn.Module:
        nonlocal layers
        layers += old.num_steps
        adjoint = rs.ImplicitAdjoint(linear, callback=backward.append)
        options = {"solver": solver, "stopping": stopping, "adjoint": adjoint, "mode": "sequential"}
        block = rs.ThetaBlock(old.field, old.theta, old.num_steps, old.horizon, **options)  # type: ignore[arg-type]
        block.register_forward_pre_hook(lambda _, inputs: forward.extend(block.trajectory(*inputs).solutions))
        return block

    task.loss(with_layers(task.model, remade), task.batch).backward()
    evaluations, products = sum(s.evaluations for s in forward), sum(s.vjps for s in backward)
    return f"{evaluations / layers:.1f}, {products / layers:.1f}"


def rows() -> Iterator[list[str]]:
    for name, task in tasks():
        yield [name, f"{task.theta:g}", *(counted(task, *methods) for methods in METHODS.values())]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help=f"put the table into {PAGE.name}")
    write = parser.parse_args().write
    torch.set_num_threads(1)
    text = "\n".join(table(("a layer of", "theta", *METHODS), sorted(rows())))
    print(text)
    if write:
        head, rest = PAGE.read_text().split(BEGIN)
        PAGE.write_text(f"{head}{BEGIN}\n{text}\n{END}{rest.split(END)[1]}")


if __name__ == "__main__":
    main()
