"""The rows of the benchmark by name."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import product

from resolvent_lab.bench.decaying import decaying
from resolvent_lab.bench.networks import (
    convolutions,
    convolutions_bfloat16,
    lotka_volterra,
    regression,
    resnet,
    sequence,
)
from resolvent_lab.bench.own import batches, many_kinds, own_convolutions, unknowns
from resolvent_lab.bench.penalized import recipe
from resolvent_lab.bench.task import Task

THETAS = (0.5, 1.0)

ROWS: dict[str, tuple[Callable[..., Task], ...]] = {
    "B1": (regression,),
    "B2": (lotka_volterra,),
    "B3": (resnet,),
    "B4": (convolutions, convolutions_bfloat16),
    "B7": (partial(own_convolutions, tolerance=1e-6), partial(own_convolutions, tolerance=1e-3)),
    "B8": many_kinds(),
    "B9": batches(),
    "B10": unknowns(),
    "B12": decaying(),
}
"""The tasks of each row that is measured for several theta: functions of theta and device."""

OF_ONE_THETA: dict[str, tuple[Callable[..., Task], ...]] = {"B6": (sequence,), "B11": (recipe,)}
"""The tasks of the other rows: functions of the device."""

GROWTH = "B5"
"""The row that is measured by `growth`."""

NAMES = tuple(sorted((*ROWS, *OF_ONE_THETA, GROWTH), key=lambda name: int(name[1:])))


def tasks(row: str, thetas: Sequence[float], device: str) -> Iterator[Task]:
    """The tasks of a row, for each theta if its layers have one to choose."""
    yield from (make(theta, device) for make, theta in product(ROWS.get(row, ()), thetas))
    yield from (make(device) for make in OF_ONE_THETA.get(row, ()))
