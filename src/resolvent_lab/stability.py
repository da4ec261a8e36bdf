"""The commands `stability` and `figures`: facts about schemes, and figures of the paper."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from resolvent_lab.command import Command, add_out, number

if TYPE_CHECKING:
    from jsonargparse import ArgumentParser


def _stability_arguments(parser: "ArgumentParser") -> None:
    parser.add_argument("--theta", type=float, default=0.5, help="of the theta scheme, in [0, 1]; 0.5 by default")
    parser.add_argument("--scheme", type=str, help="another scheme by name, such as RK4, RADAU5, BDF2 or VERLET")
    parser.add_argument("--spectrum", type=Path, metavar="FILE", help="checkpoint with a spectrum (analysis.Spectrum)")
    parser.add_argument("--step", type=float, help="step size h for the spectrum; by default that of the checkpoint")
    parser.add_argument(
        "--unit-disc",
        "--unit_disc",
        type=bool,
        default=True,
        help="whether to hatch the unit disc if there is no spectrum; true by default",
    )
    add_out(parser, "figures", "folder for stability.png and stability.pdf; figures by default")


def _stability(
    theta: float, scheme: str | None, spectrum: Path | None, step: float | None, unit_disc: bool, out: Path
) -> None:
    plotting = _plotting()
    from resolvent.analysis import amplification, scheme_facts
    from resolvent.schemes import Theta

    chosen = Theta(theta) if scheme is None else scheme_named(scheme)
    loaded = None if spectrum is None else _load_spectrum(spectrum)
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


def _regions_arguments(parser: "ArgumentParser") -> None:
    thetas = [0.0, 0.25, 0.5, 0.75, 1.0]
    parser.add_argument("--thetas", type=number, nargs="+", default=thetas, help="one panel for each")
    parser.add_argument("--limit", type=float, default=4.5, help="of the real and imaginary axes; 4.5 by default")
    add_out(parser, "figures", "folder for theta_regions.png and theta_regions.pdf; figures by default")


def _regions(thetas: list[float], limit: float, out: Path) -> None:
    _save(_plotting().theta_regions(tuple(thetas), limit=limit)[0], out / "theta_regions")


def _phase_arguments(parser: "ArgumentParser") -> None:
    parser.add_argument("--omega", type=float, default=50.0, help="frequency of the oscillator; 50 by default")
    parser.add_argument("--step", type=float, default=0.004, help="step size h; 0.004 by default")
    parser.add_argument("--periods", type=float, default=2.0, help="length of the trajectories; 2 by default")
    add_out(parser, "figures", "folder for phase_diagrams.png and phase_diagrams.pdf; figures by default")


def _phase(omega: float, step: float, periods: float, out: Path) -> None:
    _save(_plotting().phase_diagrams(omega=omega, h=step, periods=periods)[0], out / "phase_diagrams")


STABILITY = Command(
    "stability",
    "Print the stability of a scheme, and draw its stability region, with the spectrum of a network if given.",
    _stability_arguments,
    _stability,
)
FIGURES = Command(
    "figures",
    "Draw a figure of the paper.",
    commands=(
        Command("stability", "Figure 3: the stability regions of theta layers.", _regions_arguments, _regions),
        Command("phase", "Figure 2: phase diagrams of the oscillator for four schemes.", _phase_arguments, _phase),
    ),
)


def scheme_named(name: str) -> Any:
    """A scheme of the library by its name, in upper or lower case."""
    from resolvent import schemes

    known = {key: value for key, value in vars(schemes).items() if isinstance(value, schemes.Scheme)}
    tables = vars(schemes.tableaux).items()
    known |= {key: schemes.RungeKutta(value) for key, value in tables if isinstance(value, schemes.Tableau)}
    if name.upper() not in known:
        raise ValueError(f"there is no scheme {name!r}: take one of {', '.join(sorted(known))}, or --theta.")
    return known[name.upper()]


def _load_spectrum(path: Path) -> Any:
    from resolvent.analysis import load_spectrum

    try:
        return load_spectrum(path)
    except ValueError:
        raise
    except Exception as error:  # a file that is no checkpoint can make torch.load raise anything
        raise ValueError(f"cannot read a spectrum from {path}: {type(error).__name__}: {error}") from None


def _plotting() -> Any:
    import matplotlib as mpl

    mpl.use("Agg")  # figures are written to files, and there may be no screen
    from resolvent import plotting

    return plotting


def _save(ax: Any, path: Path) -> None:
    for file in _plotting().save(ax, path):
        print(f"wrote {file}")
