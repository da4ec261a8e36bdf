"""Sizes of an evaluation: which attacks are run, and how hard they try."""

from dataclasses import dataclass, field

from resolvent_lab.robustness.attack import Attack
from resolvent_lab.robustness.budget import Budget
from resolvent_lab.robustness.corruptions import Blur, Corruption, Occlusion, Rotation, SaltAndPepper
from resolvent_lab.robustness.ensemble import AutoAttack, Effort
from resolvent_lab.robustness.gradient import FGSM, PGD
from resolvent_lab.robustness.noise import GaussianNoise


@dataclass(frozen=True)
class Size:
    """The settings of an evaluation, see `evaluate`. The defaults are those of `FULL`.

    Attributes:
        sigmas, draws: of Gaussian noise.
        corruptions: with their severities.
        budgets: of the adversarial attacks.
        steps, restarts: of PGD.
        effort: of AutoAttack.
        distances: l2 distances at which the certified accuracy is computed.
        rtol: relative tolerance of the solves, see `attackable`.
    """

    sigmas: tuple[float, ...] = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.8)
    draws: int = 5
    corruptions: tuple[Corruption, ...] = (
        *map(Rotation, (15.0, 30.0, 45.0)),
        *map(Blur, (0.5, 1.0, 1.5, 2.0)),
        *map(Occlusion, (4.0, 8.0, 12.0)),
        *map(SaltAndPepper, (0.05, 0.1, 0.2, 0.3)),
    )
    budgets: tuple[Budget, ...] = (Budget("linf", 0.05), Budget("linf", 0.1), Budget("l2", 0.5), Budget("l2", 1.0))
    steps: int = 40
    restarts: int = 1
    effort: Effort = field(default_factory=lambda: Effort(apgd_steps=50, targets=3, fab_steps=20, queries=1000))
    distances: tuple[float, ...] = tuple(n / 50 for n in range(101))
    rtol: float = 1e-5

    @property
    def attacks(self) -> tuple[Attack, ...]:
        """All attacks of the evaluation. A new attack gets a line here."""
        return (
            *(GaussianNoise(sigma, self.draws, clamp) for sigma in self.sigmas for clamp in (False, True)),
            *self.corruptions,
            *(FGSM(budget) for budget in self.budgets),
            *(PGD(budget, self.steps, self.restarts) for budget in self.budgets),
            *(AutoAttack(budget, self.effort) for budget in self.budgets),
        )


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
    corruptions=(Rotation(30.0), Blur(1.0), Occlusion(8.0), SaltAndPepper(0.1)),
    budgets=(Budget("linf", 0.05), Budget("l2", 0.5)),
    steps=3,
    effort=Effort(apgd_steps=3, targets=0, fab_steps=0, queries=5),
    distances=tuple(n / 10 for n in range(11)),
    rtol=1e-4,
)
SIZES = {"quick": QUICK, "full": FULL, "thorough": THOROUGH}
