"""`advise`: advice from the reports on the layers of a block."""

import math
from collections.abc import Callable, Sequence

from resolvent.analysis.layer_report import LayerReport

# Thresholds of the advice, chosen by judgement: distance to a pole, solver steps, largest and smallest Lipschitz
# constant, growth of stiff modes.
_NEAR_POLE, _MANY, _SENSITIVE, _FORGETFUL, _DAMPED = 0.1, 20, 10.0, 1e-3, 0.1


def advise(layers: Sequence[LayerReport], radius: float) -> tuple[str, ...]:
    """Advice in sentences, the most urgent first.

    Arguments:
        layers: the reports, in order.
        radius: of the disc in which fixed-point iteration contracts, see `contractive_radius`.
    """
    rules: tuple[Callable[[Sequence[LayerReport], float], str | None], ...] = (
        _not_finite,
        _failed,
        _unstable,
        _near_pole,
        _expanding,
        _sensitive,
        _forgetful,
        _damped_gradient,
        _slow,
        _contractive,
    )
    advice = tuple(sentence for rule in rules if (sentence := rule(layers, radius)) is not None)
    return advice or ("Nothing stands out: the equations are solved, and the layers neither explode nor vanish.",)


def _not_finite(layers: Sequence[LayerReport], radius: float) -> str | None:
    where = [n for n, layer in enumerate(layers) if math.isnan(layer.field_norm)]
    if not where:
        return None
    return (
        f"From layer {where[0]} on, states or slopes are not finite: the numbers above hold up to there. Look at the "
        "inputs and weights for nan, and at the growth of the layers before."
    )


def _failed(layers: Sequence[LayerReport], radius: float) -> str | None:
    where = [n for n, layer in enumerate(layers) if layer.failed]
    if not where:
        return None
    worst = layers[max(where, key=lambda n: layers[n].failed)]
    cause = "Allow more steps, rs.Stopping(max_steps=...), or take another solver."
    if "Picard" in worst.solvers and worst.contractive is False:
        cause = (
            f"Picard needs |hF'| < {radius:.3g}, and it is {worst.field_norm:.3g}: take rs.Auto(), rs.Newton() or "
            "rs.Anderson(), or bound the field with rs.fields.Bounded."
        )
    elif worst.abscissa >= worst.pole:
        cause = (
            f"Eigenvalues reach {worst.abscissa:.3g}, beyond the pole at {worst.pole:.3g}, where the equation need not "
            "have a unique solution: bound the field with rs.fields.Bounded, or make the step smaller."
        )
    return f"{_named(where)}: up to {worst.failed} samples did not reach their tolerance. {cause}"


def _unstable(layers: Sequence[LayerReport], radius: float) -> str | None:
    where = [n for n, layer in enumerate(layers) if layer.damped_growth > 1 + 1e-6]
    if not where:
        return None
    worst = max(layers[n].damped_growth for n in where)
    return (
        f"{_named(where)}: the scheme amplifies by up to {worst:.3g} per step where the field does not, because "
        "h lambda lies outside its stability region. Take theta >= 1/2 or another A-stable scheme, or more and smaller "
        "steps."
    )


def _near_pole(layers: Sequence[LayerReport], radius: float) -> str | None:
    where = [n for n, layer in enumerate(layers) if layer.pole_distance < _NEAR_POLE * layer.pole]
    if not where:
        return None
    nearest = min((layers[n] for n in where), key=lambda layer: layer.pole_distance)
    return (
        f"{_named(where)}: an eigenvalue comes within {nearest.pole_distance:.2g} of the pole at |z| = "
        f"{nearest.pole:.3g}, where the layer is not defined. Keep the field below it, rs.fields.Bounded with "
        "theta*h*high < 1, or make the step smaller."
    )


def _expanding(layers: Sequence[LayerReport], radius: float) -> str | None:
    where = [n for n, layer in enumerate(layers) if layer.abscissa > 0 and layer.growth > 2]
    if not where:
        return None
    worst = max(layers[n].growth for n in where)
    return (
        f"{_named(where)}: the field itself expands, by up to {worst:.3g} per step in some direction. If that is not "
        "wanted, lower `high` of rs.fields.Bounded, or penalise the divergence."
    )


def _sensitive(layers: Sequence[LayerReport], radius: float) -> str | None:
    where = [n for n, layer in enumerate(layers) if layer.lipschitz > _SENSITIVE]
    if not where:
        return None
    worst = max(layers[n].lipschitz for n in where)
    return (
        f"{_named(where)}: a small change of the input is amplified up to {worst:.3g} times. For a robust network, "
        "bound the field, or penalise its Jacobian."
    )


def _forgetful(layers: Sequence[LayerReport], radius: float) -> str | None:
    where = [n for n, layer in enumerate(layers) if layer.lipschitz < _FORGETFUL]
    if not where:
        return None
    return (
        f"{_named(where)}: hardly anything of the input is left, nor of the gradient in the backward pass. A smaller "
        "step, theta nearer to 1/2, or a larger `low` of rs.fields.Bounded keeps more."
    )


def _damped_gradient(layers: Sequence[LayerReport], radius: float) -> str | None:
    where = [n for n, layer in enumerate(layers) if layer.stiff_growth < _DAMPED and layer.lipschitz >= _FORGETFUL]
    if not where or layers[where[0]].contractive is None:
        return None
    worst, left = max(layers[n].stiff_growth for n in where), math.prod(layers[n].stiff_growth for n in where)
    return (
        f"{_named(where)}: the scheme multiplies the stiff modes, |h lambda| up to "
        f"{max(layers[n].field_norm for n in where):.3g}, by at most {worst:.2g} per step, and their gradient as well: "
        f"{left:.1g} of it is left. States are right to forget them, but the loss does not see how the field moves in "
        "these directions. To learn that, resolve the transient by smaller steps there, rs.Block(times=...), or take "
        "theta = 1/2 or a Gauss scheme, which damp nothing."
    )


def _slow(layers: Sequence[LayerReport], radius: float) -> str | None:
    where = [n for n, layer in enumerate(layers) if layer.iterations > _MANY]
    if not where:
        return None
    worst = max(layers[n].iterations for n in where)
    return (
        f"{_named(where)}: {worst:.0f} solver steps on average. rs.Newton() for few unknowns, rs.Anderson() or "
        "rs.NewtonKrylov() for many, and guess='extrapolate' take fewer."
    )


def _contractive(layers: Sequence[LayerReport], radius: float) -> str | None:
    implicit = [layer for layer in layers if layer.contractive is not None and not math.isnan(layer.field_norm)]
    if not implicit:
        return None
    largest = max(layer.field_norm for layer in implicit)
    if all(layer.contractive for layer in implicit):
        return (
            f"The fixed point is contractive in all layers (|hF'| = {largest:.3g} < {radius:.3g}): rs.Picard() and "
            "rs.Neumann() converge."
        )
    return (
        f"The fixed point is not contractive everywhere (|hF'| = {largest:.3g} >= {radius:.3g}): plain fixed-point "
        "iteration is not safe here; rs.Auto(), rs.Newton() and rs.Anderson() do not need it."
    )


def _named(where: Sequence[int]) -> str:
    """Layer 3; layers 0, 2, 5; layers 0-4."""
    if len(where) == 1:
        return f"Layer {where[0]}"
    if len(where) > 2 and where[-1] - where[0] == len(where) - 1:
        return f"Layers {where[0]}-{where[-1]}"
    return "Layers " + ", ".join(map(str, where))
