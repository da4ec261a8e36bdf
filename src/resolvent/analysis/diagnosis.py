"""`diagnose`: a report on the layers of a block."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from resolvent.analysis.advice import advise
from resolvent.analysis.facts import contractive_radius
from resolvent.analysis.growth import amplification
from resolvent.analysis.layer_report import LayerReport, table
from resolvent.analysis.sensitivity import gain, last_state, pass_through
from resolvent.analysis.spectra import DENSE, eigenvalues
from resolvent.blocks import Block
from resolvent.blocks.pass_ import Pass
from resolvent.blocks.weights import frozen_weights
from resolvent.equation.jacobian import Jacobian, field_jacobian
from resolvent.equation.modes import refuse_transforms
from resolvent.equation.structure import Structured
from resolvent.schemes import Carry, Scheme, Step
from resolvent.schemes.interval import Number

# Coarse tolerances: quick, and accurate enough for a report.
_RTOL, _COUNT = 1e-2, 2
_ENDS = ("rightmost", "largest")
# A mode is stiff if |h lambda| exceeds this.
_STIFF = 10.0


@dataclass(frozen=True)
class Diagnosis:
    """The result of `diagnose`; prints as a table.

    Attributes:
        block: the block in one line.
        layers: one report per step.
        lipschitz: the largest |dy/dx|_2 of the whole block over the samples; nan if the pass is not finite.
        advice: problems and what to do about them, the most urgent first.
    """

    block: str
    layers: tuple[LayerReport, ...]
    lipschitz: float
    advice: tuple[str, ...]

    def __str__(self) -> str:
        title = f"{self.block}: Lipschitz constant {self.lipschitz:.3g} at these samples"
        return "\n".join((title, "", table(self.layers), "", *(f"- {line}" for line in self.advice)))


def diagnose(block: Block, batch: Structured, t0: Number = 0.0) -> Diagnosis:
    """Passes a batch through a block and reports, per layer, on its solves and its field.

    The Jacobian F' of the field is taken where a layer's equation is solved: at the stage (1 - theta) x + theta y of
    the midpoint form, at the new state for other implicit schemes, at the old one for explicit schemes. Solves that do
    not converge are reported and do not raise. All numbers are the worst over the samples.

    Arguments:
        block: a `Block` or `ThetaBlock`, trained or not; it is not changed.
        batch: inputs, (batch, *shape), or several such tensors in a structure. A few samples are enough.
        t0: as for the block.

    Returns:
        A `Diagnosis`: data, and a table with advice when printed.
    """
    refuse_transforms("diagnose")
    if not isinstance(block, Block):
        raise ValueError(f"diagnose takes an rs.Block such as rs.ThetaBlock(...), got {type(block).__name__}.")
    with torch.no_grad(), frozen_weights(block.field) as field:
        pass_, x = pass_through(block, field, batch, t0, on_failure="ignore")
        if not bool(x.isfinite().all()):
            raise ValueError(f"the batch holds nan or inf in {int((~x.isfinite()).sum())} of its entries.")
        carry, layers = Carry((x,)), []
        for n, step in enumerate(pass_.strategy.steps(pass_, x)):
            layers.append(_report(pass_, n, carry, step))
            carry = step.carry
        healthy = bool(carry.states[0].isfinite().all()) and not any(layer.failed for layer in layers)
        jacobian = Jacobian(lambda start: last_state(pass_, start), x) if healthy else None
    whole = math.nan if jacobian is None else float(gain(jacobian, rtol=_RTOL).max())
    described = f"{type(block).__name__}({block.extra_repr()}), {len(x)} samples of {tuple(x.shape[1:])}"
    return Diagnosis(described, tuple(layers), whole, advise(layers, contractive_radius(pass_.scheme)))


def _report(pass_: Pass, n: int, carry: Carry, step: Step) -> LayerReport:
    solutions, x, y = step.solutions, carry.states[0], step.state
    steps = torch.cat([solution.steps for solution in solutions]).double() if solutions else torch.zeros(1)
    failed = torch.zeros(len(x), dtype=torch.bool, device=x.device)
    for solution in solutions:
        failed = failed | ~solution.converged
    finite = bool(x.isfinite().all() and y.isfinite().all())
    z, norm = _spectrum(pass_, n, x, y) if finite else (torch.empty(0, dtype=torch.complex128), math.nan)
    scheme, radius, poles = pass_.scheme, contractive_radius(pass_.scheme), pass_.scheme.linear_form.poles
    return LayerReport(
        time=float(torch.as_tensor(pass_.interval(n).t).min()),
        iterations=float(steps.mean()),
        max_iterations=int(steps.max()),
        residual=max((float(solution.residual.max()) for solution in solutions), default=0.0),
        failed=int(failed.sum()),
        solvers=tuple(dict.fromkeys(type(solver).__name__ for solution in solutions for solver in solution.solvers)),
        field_norm=norm,
        abscissa=_largest(z.real),
        growth=_largest(amplification(scheme, z)),
        damped_growth=_largest(amplification(scheme, z[_damped(scheme, z)]), 0.0),
        stiff_growth=_largest(amplification(scheme, z[(z.abs() > _STIFF) & (z.real < 0)])),
        pole_distance=-_largest(-(z[:, None] - poles).abs(), -math.inf if finite else math.nan),
        pole=-_largest(-poles.abs(), -math.inf),
        lipschitz=_layer_lipschitz(pass_, n, carry, ~failed) if finite else math.nan,
        contractive=None if math.isinf(radius) else norm < radius,
    )


def _spectrum(pass_: Pass, n: int, x: Tensor, y: Tensor) -> tuple[Tensor, float]:
    """Eigenvalues of h F' over all samples, complex128, and the largest |h F'|_2."""
    c = pass_.scheme.solved_at
    jacobian = field_jacobian(pass_.field, pass_.interval(n).time(c), x + c * (y - x))
    if x[0].numel() <= DENSE:
        found = eigenvalues(jacobian, None, "largest")
    else:
        ends = (eigenvalues(jacobian, _COUNT, which, rtol=_RTOL) for which in _ENDS)
        found = torch.cat(tuple(ends), dim=1)
    h = float(torch.as_tensor(pass_.interval(n).h).detach())
    return h * found.flatten().to("cpu", torch.complex128), abs(h) * float(gain(jacobian, rtol=_RTOL).max())


def _damped(scheme: Scheme, z: Tensor) -> Tensor:
    """Mask of the z at which the field does not grow. Partitioned schemes treat z and -z together."""
    if scheme.acts_on_halves:
        return z.real.abs() <= 1e-6 * z.abs()
    return z.real <= 0


def _layer_lipschitz(pass_: Pass, n: int, carry: Carry, solved: Tensor) -> float:
    """The Lipschitz constant of a step in its last state, with earlier states fixed, over the converged samples."""
    x, *before = carry.states

    def layer(state: Tensor) -> Tensor:
        return pass_.scheme.step(pass_.interval(n, x), Carry((state, *before), carry.slopes)).state

    return _largest(gain(Jacobian(layer, x), rtol=_RTOL)[solved])


def _largest(values: Tensor, default: float = math.nan) -> float:
    return float(values.max()) if values.numel() else default
