"""The claims of the paper about Example 4, and targets for held-out images."""

from collections.abc import Sequence

from resolvent_lab.experiments.claim import Claim, NotRunError, Runs
from resolvent_lab.experiments.mnist.measure import cell

_IMPLICIT = ("theta0.25", "theta0.5", "theta0.75", "theta1")
_STABLE = ("theta0.5", "theta0.75", "theta1")
_EXPLICIT = ("explicit-1lip", "explicit-free", "explicit-batchnorm", "explicit-2.5")
_TUNED = ("explicit-tuned", "explicit-gradient", "explicit-batchnorm-tuned")
_SMOOTH = ("explicit-smooth", "explicit-smooth-variance")
_FREE = ("implicit-free", "implicit-free-0.5")
_RECIPES = (
    *_FREE,
    *("implicit-tuned", "implicit-tuned-0.5", "implicit-gradient", "implicit-gradient-0.5"),
    *("implicit-smooth", "implicit-smooth-0.5"),
)
_ANY = (*_EXPLICIT, *_TUNED, *_SMOOTH)


def _found(runs: Runs, metric: str, columns: Sequence[str]) -> list[float]:
    """The metric of the columns that were run."""
    found = []
    for column in columns:
        try:
            found.append(float(runs(metric, column=column)))
        except NotRunError:
            continue
    if not found:
        raise NotRunError(f"none of {columns}")
    return found


def _best(part: str, sigma: float, columns: Sequence[str], statement: str, quantity: str, low: float) -> Claim:
    where = "training images" if part == "train" else "held-out images"
    return Claim(
        statement,
        f"top-1 accuracy, {where}, sigma = {sigma:g}, {quantity}",
        lambda runs: max(_found(runs, cell(part, sigma), columns)),
        low=low,
        limit_from="own",
    )


def _lead(
    part: str,
    sigma: float,
    ahead: Sequence[str],
    behind: Sequence[str],
    statement: str,
    low: float,
    limit_from: str = "own",
) -> Claim:
    where = "training images" if part == "train" else "held-out images"
    return Claim(
        statement,
        f"best top-1 accuracy of {', '.join(ahead)} less that of {', '.join(behind)}; {where}, sigma = {sigma:g}",
        lambda runs: max(_found(runs, cell(part, sigma), ahead)) - max(_found(runs, cell(part, sigma), behind)),
        low=low,
        limit_from=limit_from,
    )


def _refuted(runs: Runs) -> float:
    """The number of successful attacks within a certified radius."""
    attacked = [run.metrics["robustness"] for run in runs.runs if "robustness" in run.metrics]
    if not attacked:
        raise NotRunError("no network was attacked")
    return sum(found["certificates refuted"] for record in attacked for found in record["attacks"].values())


CLAIMS = (
    Claim(
        "Implicit networks fit the clean training images,",
        "smallest top-1 accuracy, training images, sigma = 0, theta > 0",
        lambda runs: min(_found(runs, cell("train", 0.0), _IMPLICIT)),
        low=100.0,
    ),
    Claim(
        "and so does the explicit one (its skip connection is cancelled by F^{-3,1}).",
        "top-1 accuracy, training images, sigma = 0, theta = 0",
        lambda runs: runs(cell("train", 0.0), column="theta0"),
        low=100.0,
    ),
    _best("train", 0.3, _STABLE, "Implicit networks withstand noise:", "best of theta ≥ 0.5 (paper 93.6)", 80.0),
    _best("train", 0.5, _STABLE, "also when it is strong.", "best of theta ≥ 0.5 (paper 73.0)", 55.0),
    Claim(
        "The right class is among the first two more often than the first.",
        "smallest difference of top-2 and top-1 accuracy, training images, sigma = 0.1 to 0.5, theta > 0",
        lambda runs: min(
            top2 - top1
            for sigma in (0.1, 0.2, 0.3, 0.4, 0.5)
            for top1, top2 in zip(*(_found(runs, cell("train", sigma, top), _IMPLICIT) for top in (1, 2)), strict=True)
        ),
        low=0.0,
        limit_from="theory",
    ),
    _lead("train", 0.5, _IMPLICIT, ("theta0",), "Implicit networks are more robust than the explicit one (25.8),", 5.0),
    _lead("train", 0.5, ("theta1",), ("theta0.25",), "and the more so the larger theta is (12.6).", 0.0, "paper"),
    _lead("train", 0.5, _IMPLICIT, _EXPLICIT, "They are more robust than fair explicit networks,", 0.0),
    _lead("held_out", 0.5, _IMPLICIT, _EXPLICIT, "also on images that were not trained on.", 0.0),
    _lead("held_out", 0.5, _FREE, _EXPLICIT, "With F = S*G implicit layers are better than explicit ones.", 3.0),
    _lead("held_out", 0.5, _RECIPES, _ANY, "With some recipe implicit layers beat every explicit network", 3.0),
    _lead("held_out", 0.0, _RECIPES, _ANY, "without a loss on clean images.", 0.0),
    _lead(
        "held_out",
        0.8,
        ("implicit-smooth-0.5",),
        ("explicit-smooth",),
        "With the same penalty on sensitivity they withstand the strongest noise better (asked after seeing the data).",
        3.0,
    ),
    _best("held_out", 0.0, _RECIPES, "Targets for 1,000 clean images:", "best of implicit recipes", 94.0),
    _best("held_out", 0.3, _RECIPES, "under noise,", "best of implicit recipes", 91.0),
    _best("held_out", 0.5, _RECIPES, "under strong noise.", "best of implicit recipes", 86.0),
    Claim(
        "No attack succeeds within a certified radius.",
        "successes of all attacks there",
        _refuted,
        high=0.0,
        limit_from="theory",
    ),
)
