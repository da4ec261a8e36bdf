"""The claims of the paper about Example 1."""

from typing import Any

from resolvent_lab.experiments.claim import Claim


def _free(config: Any) -> bool:
    return bool(config.alpha_div == 0)


def _implicit(config: Any) -> bool:
    return bool(config.theta >= 0.5)


CLAIMS = (
    Claim(
        "With the Jacobian regularisation alone, all networks fit the data,",
        "largest mean squared error over theta, alpha_div = 0",
        lambda runs: max(runs.all("mse", _free)),
        high=3e-4,
        limit_from="figure",
    ),
    Claim(
        "their fields tend to be expansive,",
        "smallest mean divergence over theta, alpha_div = 0",
        lambda runs: min(runs.all("unweighted_divergence", _free)),
        low=0.0,
    ),
    Claim(
        "their trajectories are mostly straight lines: the fields are flat,",
        "largest |eigenvalue| over theta, alpha_div = 0",
        lambda runs: max(runs.all("largest_eigenvalue", _free)),
        high=0.15,
        limit_from="figure",
    ),
    Claim(
        "and they take advantage of both dimensions: bands keep their width.",
        "smallest ratio of band widths over theta, alpha_div = 0",
        lambda runs: min(runs.all("band_ratio", _free)),
        low=1.0,
        high=1.5,
        limit_from="own",
    ),
    Claim(
        "With more of the divergence penalty it is more difficult to fit the data:",
        "error at alpha_div = 0.5 over that at 0, smallest over theta >= 0.5",
        lambda runs: min(runs.ratios("mse", _implicit, {"alpha_div": (0.5, 0.0)})),
        low=5.0,
        limit_from="figure",
    ),
    Claim(
        "and with still more, still more difficult.",
        "error at alpha_div = 1 over that at 0.5, smallest over theta >= 0.5",
        lambda runs: min(runs.ratios("mse", _implicit, {"alpha_div": (1.0, 0.5)})),
        low=2.0,
        limit_from="figure",
    ),
    Claim(
        "The dynamics orthogonal to an invariant manifold become dissipative:",
        "leftmost eigenvalue at alpha_div = 0.5, largest over theta >= 0.5",
        lambda runs: max(runs.all("leftmost_eigenvalue", lambda c: _implicit(c) and c.alpha_div == 0.5)),
        high=-1.2,
        limit_from="figure",
    ),
    Claim(
        "and increasingly so.",
        "leftmost eigenvalue at alpha_div = 1, largest over theta >= 0.5",
        lambda runs: max(runs.all("leftmost_eigenvalue", lambda c: _implicit(c) and c.alpha_div == 1)),
        high=-3.0,
        limit_from="figure",
    ),
    Claim(
        "The filled regions collapse onto the manifold.",
        "largest ratio of band widths over theta >= 0.5 and alpha_div >= 0.25",
        lambda runs: max(runs.all("band_ratio", lambda c: _implicit(c) and c.alpha_div >= 0.25)),
        high=0.25,
        limit_from="figure",
    ),
    Claim(
        "The explicit network stays within its stability threshold for little dissipation,",
        "largest |R| on the spectrum, theta = 0, alpha_div <= 0.5",
        lambda runs: max(runs.all("largest_growth", lambda c: c.theta == 0 and c.alpha_div <= 0.5)),
        high=1.2,
        limit_from="figure",
    ),
    Claim(
        "exceeds it for much,",
        "largest |R| on the spectrum, theta = 0, alpha_div = 1",
        lambda runs: runs("largest_growth", theta=0.0, alpha_div=1.0),
        low=1.4,
        limit_from="figure",
    ),
    Claim(
        "and then oscillates,",
        "sign changes of the output's increments, of 4, theta = 0, alpha_div = 1",
        lambda runs: runs("sign_flips", theta=0.0, alpha_div=1.0),
        low=3.0,
        limit_from="figure",
    ),
    Claim(
        "which the implicit one does not.",
        "sign changes of the output's increments, of 4, theta = 1, alpha_div = 1",
        lambda runs: runs("sign_flips", theta=1.0, alpha_div=1.0),
        high=1.2,
        limit_from="figure",
    ),
    Claim(
        "At alpha_div = 0 implicit networks cost nearly the same for all theta.",
        "L-BFGS iterations per layer, largest over smallest, theta > 0",
        lambda runs: _spread(runs.all("lbfgs_iterations", lambda c: _free(c) and c.theta > 0)),
        high=1.5,
        limit_from="own",
    ),
    Claim(
        "The cost increases with alpha_div",
        "L-BFGS iterations at alpha_div = 1 over those at 0, smallest over theta > 0",
        lambda runs: min(runs.ratios("lbfgs_iterations", lambda c: c.theta > 0, {"alpha_div": (1.0, 0.0)})),
        low=1.2,
        limit_from="own",
    ),
    Claim(
        "and with theta.",
        "L-BFGS iterations at theta = 1 over those at 0.5, alpha_div = 1",
        lambda runs: runs.ratios("lbfgs_iterations", lambda c: c.alpha_div == 1, {"theta": (1.0, 0.5)})[0],
        low=1.1,
        limit_from="own",
    ),
)


def _spread(values: list[float]) -> float:
    return max(values) / min(values)
