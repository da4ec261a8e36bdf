"""`odeint` of states that consist of several tensors."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from resolvent.equation.structure import Structure, structure_of
from resolvent.errors import ConvergenceError
from resolvent.integrate.events import Change, Jumps
from resolvent.integrate.result import Integration


def integrate_structured(
    integrate: Callable[..., Integration], field: Any, y0: Any, atol: Any, jumps: Any, event: Any, **others: Any
) -> Integration:
    """The integration of a field of structured states, by one of flat states.

    Arguments:
        integrate: `odeint`.
        field, y0, atol, jumps, event: those of `odeint` that depend on the structure of the states.
        others: its other arguments.
    """
    structure = structure_of(y0, "y0")

    def restored(result: Integration) -> Integration:
        states, final = structure.unflatten(result.states), structure.unflatten(result.final)
        return dataclasses.replace(result, states=states, final=final)

    try:
        found = integrate(
            structure.field(field),
            structure.flatten(y0, "y0"),
            atol=structure.sample(atol, "atol"),
            jumps=_flat_jumps(jumps, structure),
            event=None if event is None else lambda t, y: event(t, structure.unflatten(y)),
            **others,
        )
    except ConvergenceError as error:
        error.solution = restored(error.solution)
        raise
    return restored(found)


def _flat_jumps(jumps: Any, structure: Structure) -> Any:
    """Jumps of structured states, as those of flat ones; jumps that change no state are returned as they are."""
    if not isinstance(jumps, Jumps) or jumps.change is None:
        return jumps

    def flat(change: Change | None) -> Change | None:
        def changed(t: Tensor, y: Tensor) -> Tensor:
            assert change is not None
            return structure.flatten(change(t, structure.unflatten(y)), "the result of change")

        return None if change is None else changed

    change = jumps.change
    return Jumps(jumps.times, [flat(one) for one in change] if isinstance(change, Sequence) else flat(change))  # type: ignore[misc]
