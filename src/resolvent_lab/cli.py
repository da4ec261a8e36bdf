"""The command line: one function a command, and one table of them."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def stability(
    theta: float = 0.5,
    scheme: str | None = None,
    spectrum: Path | None = None,
    step: float | None = None,
    unit_disc: bool = True,
    out: Path = Path("figures"),
) -> None:
    """Tell how stable a scheme is, and draw its stability region, with the spectrum of a network if there is one.

    Args:
        theta: of the theta scheme, in [0, 1].
        scheme: another scheme by its name, such as RK4, RADAU5, BDF2 or VERLET; theta is not used then.
        spectrum: a checkpoint with a spectrum in it, see rs.analysis.Spectrum.
        step: h, by which the eigenvalues are multiplied; that of the checkpoint by default.
        unit_disc: whether to hatch the unit disc, where no spectrum is drawn.
        out: folder for stability.png and stability.pdf.
    """
    from resolvent import plotting
    from resolvent.analysis import amplification, load_spectrum, scheme_facts
    from resolvent.schemes import Theta

    chosen = Theta(theta) if scheme is None else _scheme(scheme)
    loaded = None if spectrum is None else load_spectrum(spectrum)
    print(scheme_facts(chosen))
    if loaded is None:
        ax = plotting.stability_region(chosen, unit_disc=unit_disc)
    else:
        h = loaded.h if step is None else step
        growth = amplification(chosen, h * loaded.eigenvalues).flatten()
        print(f"{int((growth > 1 + 1e-9).sum())} of {len(growth)} eigenvalues grow, by up to {float(growth.max()):.4g}")
        ax = plotting.spectrum(loaded.eigenvalues, chosen, h=h)
    ax.set_title(rf"$\theta={theta:g}$" if scheme is None else scheme.upper())
    _save(ax, out / "stability")


def stability_figure(
    thetas: tuple[float, ...] = (0.0, 0.25, 0.5, 0.75, 1.0), limit: float = 4.5, out: Path = Path("figures")
) -> None:
    """Draw the stability regions of theta layers side by side, the paper's Figure 3.

    Args:
        thetas: a panel each.
        limit: of the real and imaginary parts.
        out: folder for theta_regions.png and theta_regions.pdf.
    """
    from resolvent import plotting

    _save(plotting.theta_regions(thetas, limit=limit)[0], out / "theta_regions")


def phase_figure(omega: float = 50.0, step: float = 0.004, periods: float = 2.0, out: Path = Path("figures")) -> None:
    """Draw the phase diagrams of the oscillator by four schemes, the paper's Figure 2.

    Args:
        omega: frequency.
        step: h.
        periods: how long, in periods.
        out: folder for phase_diagrams.png and phase_diagrams.pdf.
    """
    from resolvent import plotting

    _save(plotting.phase_diagrams(omega=omega, h=step, periods=periods)[0], out / "phase_diagrams")


def reproduce() -> None:
    """Reproduce the paper's experiments, from training to a report; see `resolvent reproduce --help`."""


def bench() -> None:
    """Measure what implicitness costs, beside other libraries; see `resolvent bench --help`."""


COMMANDS: dict[str, Any] = {
    "bench": bench,
    "reproduce": reproduce,
    "stability": stability,
    "figures": {"_help": "Draw a figure of the paper.", "stability": stability_figure, "phase": phase_figure},
}
"""All commands by name; a dictionary makes a group. The arguments of a function are the options of its command."""


def main(args: Sequence[str] | None = None) -> None:
    """Run a command; what was wrong with it is told in a line, without a traceback."""
    given = list(sys.argv[1:] if args is None else args)
    # These read their options themselves: flags without a value, lists, and no library that a bare machine lacks.
    if given[:1] == ["reproduce"]:
        from resolvent_lab.experiments.command import main as reproduce

        return reproduce(given[1:])
    if given[:1] == ["bench"]:
        from resolvent_lab.bench.command import main as bench

        return bench(given[1:])
    try:
        import matplotlib as mpl
        from jsonargparse import auto_cli
    except ImportError as error:
        sys.exit(f'the command line needs {error.name}: pip install "resolvent[experiments]"')
    mpl.use("Agg")  # figures are written to files, and there may be no screen
    try:
        auto_cli(COMMANDS, args=given, as_positional=False, prog="resolvent")
    except ValueError as error:
        sys.exit(f"resolvent: {error}")


def _scheme(name: str) -> Any:
    """A scheme of the library by its name."""
    from resolvent import schemes

    known = {key: value for key, value in vars(schemes).items() if isinstance(value, schemes.Scheme)}
    tables = vars(schemes.tableaux).items()
    known |= {key: schemes.RungeKutta(value) for key, value in tables if isinstance(value, schemes.Tableau)}
    if name.upper() not in known:
        raise ValueError(f"there is no scheme {name!r}: take one of {', '.join(sorted(known))}, or --theta.")
    return known[name.upper()]


def _save(ax: Any, path: Path) -> None:
    from resolvent import plotting

    for file in plotting.save(ax, path):
        print(f"wrote {file}")
