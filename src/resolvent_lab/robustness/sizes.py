"""How much the evaluation does."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from resolvent_lab.robustness.budget import Budget
from resolvent_lab.robustness.ensemble import Effort


@dataclass(frozen=True)
class Size:
    """The parts of an evaluation, see `evaluate`; by default in full.

    Attributes:
        sigmas, draws: of Gaussian noise.
        severities: of each corruption, by its name in `CORRUPTIONS`.
        budgets: of the attacks.
        steps, restarts: of projected gradient ascent.
        effort: of AutoAttack.
        distances: at which certificates are counted.
        rtol: tolerance of the solves, see `attackable`.
    """

    sigmas: tuple[float, ...] = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.8)
    draws: int = 5
    severities: Mapping[str, tuple[float, ...]] = field(
        default_factory=lambda: {
            "rotation": (15.0, 30.0, 45.0),
            "blur": (0.5, 1.0, 1.5, 2.0),
            "occlusion": (4.0, 8.0, 12.0),
            "salt and pepper": (0.05, 0.1, 0.2, 0.3),
        }
    )
    budgets: tuple[Budget, ...] = (Budget("linf", 0.05), Budget("linf", 0.1), Budget("l2", 0.5), Budget("l2", 1.0))
    steps: int = 40
    restarts: int = 1
    effort: Effort = field(default_factory=lambda: Effort(apgd_steps=50, targets=3, fab_steps=20, queries=1000))
    distances: tuple[float, ...] = tuple(n / 50 for n in range(101))
    rtol: float = 1e-5


FULL = Size()
THOROUGH = Size(
    budgets=(
        *(Budget("linf", radius) for radius in (0.02, 0.05, 0.1, 0.2, 0.3)),
        *(Budget("l2", radius) for radius in (0.25, 0.5, 1.0, 1.5, 2.0)),
    ),
    restarts=5,
    effort=Effort(),
)
QUICK = Size(
    sigmas=(0.0, 0.3, 0.5),
    draws=1,
    severities={"rotation": (30.0,), "blur": (1.0,), "occlusion": (8.0,), "salt and pepper": (0.1,)},
    budgets=(Budget("linf", 0.05), Budget("l2", 0.5)),
    steps=3,
    effort=Effort(apgd_steps=3, targets=0, fab_steps=0, queries=5),
    distances=tuple(n / 10 for n in range(11)),
    rtol=1e-4,
)
