"""`LayerReport`: the diagnosis of one layer, and a table of them."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class LayerReport:
    """Report on one layer (one step of a block) for a batch; the worst over the samples. Eigenvalues are z = h lambda,
    those of h F', for comparison with the stability function. Values are nan if the states are not finite.

    Attributes:
        time: start of the step; the earliest if samples have different times.
        iterations: mean number of solver steps, over samples and solves; 0 for an explicit layer.
        max_iterations: the largest number of solver steps.
        residual: the largest root mean square of w - b - tau F(w).
        failed: samples that did not reach their tolerance.
        solvers: names of the solvers that were used.
        field_norm: |h F'|_2.
        abscissa: the largest real part of z.
        growth: the largest factor by which the scheme multiplies an eigenvector, |R(z)|.
        damped_growth: the same over the z at which the field itself does not grow, Re z <= 0; above 1 the scheme is
            unstable for this field and step.
        stiff_growth: the same over the stiff modes, |z| > 10 with Re z < 0; nan if there are none. An L-stable scheme
            brings it near zero, and the gradient of these modes with it.
        pole_distance: the smallest distance of a z from a pole of R, such as 1/theta; infinite for an explicit layer.
        pole: the smallest modulus of a pole.
        lipschitz: |dy/dx|_2 of the layer, by power iteration.
        contractive: whether fixed-point iteration for the layer's equation contracts; None for an explicit layer.
    """

    time: float
    iterations: float
    max_iterations: int
    residual: float
    failed: int
    solvers: tuple[str, ...]
    field_norm: float
    abscissa: float
    growth: float
    damped_growth: float
    stiff_growth: float
    pole_distance: float
    pole: float
    lipschitz: float
    contractive: bool | None


_COLUMNS: dict[str, Callable[[LayerReport], str]] = {
    "t": lambda layer: f"{layer.time:.3g}",
    "iterations": lambda layer: f"{layer.iterations:.1f} (max {layer.max_iterations})" if layer.max_iterations else "-",
    "residual": lambda layer: f"{layer.residual:.1e}" if layer.contractive is not None else "-",
    "failed": lambda layer: str(layer.failed),
    "|hF'|": lambda layer: f"{layer.field_norm:.3g}",
    "Lipschitz": lambda layer: f"{layer.lipschitz:.3g}",
    "max Re z": lambda layer: f"{layer.abscissa:.3g}",
    "max |R(z)|": lambda layer: f"{layer.growth:.3g}",
    "to the pole": lambda layer: "-" if math.isinf(layer.pole_distance) else f"{layer.pole_distance:.3g}",
    "contractive": lambda layer: "-" if layer.contractive is None else "yes" if layer.contractive else "no",
}


def table(layers: Sequence[LayerReport]) -> str:
    """The reports as a text table, one line per layer."""
    rows = [["layer", *_COLUMNS]]
    rows += [[str(n), *(cell(layer) for cell in _COLUMNS.values())] for n, layer in enumerate(layers)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
