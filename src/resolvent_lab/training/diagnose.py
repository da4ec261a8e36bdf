"""Diagnosis: spectra, stability, iterations and certified radii of a trained network, with figures."""

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

import resolvent as rs
from resolvent_lab import atomic, strict_json
from resolvent_lab.training.batches import Samples
from resolvent_lab.training.network import AtEquilibrium, Integrated, Stack, Steps
from resolvent_lab.training.trained import Trained, load


class Spectrum(NamedTuple):
    """Eigenvalues to draw; with the region of stability of the scheme for this step, if there is one."""

    title: str
    eigenvalues: Tensor
    scheme: Any
    step: float


def diagnose(
    run: Path, out: Path, part: str = "test", samples: int = 32, weights: str = "best", file: Path | None = None
) -> str:
    """Writes diagnosis.txt, diagnosis.json and figures into a folder, and returns the text.

    Arguments:
        run: the folder of the run.
        out: the folder for the result.
        part: of the data of the run.
        samples: how many to look at.
        weights: "best" or "last".
        file: other data with targets, in place of a part.
    """
    if samples < 1:
        raise ValueError(f"samples must be 1 or more, got {samples}.")
    trained = load(run, weights)
    found = trained.samples(part, file)
    batch = found.take(torch.arange(min(samples, found.size)))
    text, numbers, spectra = _layers(trained, batch)
    radii = _radii(trained, batch)
    text += f"\n{radii['text']}\n"
    numbers["certified radii"] = radii["values"]
    _figures(out, spectra, numbers)
    atomic.write(out / "diagnosis.txt", text.encode())
    strict_json.dump(numbers, out / "diagnosis.json")
    return text


def _layers(trained: Trained, batch: Samples) -> tuple[str, dict[str, Any], list[Spectrum]]:
    """What is solved in the network: as text, as numbers, and spectra to draw."""
    network, inputs = trained.learner.network, trained.learner.standardized(batch.inputs)
    if isinstance(network, Stack):
        parts = list(_blocks(network, inputs))
    elif isinstance(network, Steps):
        gap = float((batch.times[:, 1] - batch.times[:, 0]).mean())
        block = rs.ThetaBlock(network.block.field, network.block.theta, network.block.num_steps, gap)
        parts = [("between two times", block, inputs)]
    elif isinstance(network, Integrated):
        return _integrated(network, inputs, batch)
    elif isinstance(network, AtEquilibrium):
        return _equilibrium(network, inputs)
    else:
        raise ValueError(f"diagnose does not know the parts of {type(network).__name__}.")
    text, numbers, spectra = [], {}, []
    for name, block, x in parts:
        report = rs.analysis.diagnose(block, x)
        text.append(f"{name}: {report}")
        numbers[name] = {"lipschitz": report.lipschitz, "layers": [asdict(layer) for layer in report.layers]}
        with torch.no_grad():
            trajectory = block.trajectory(x)
        found = rs.analysis.jacobian_spectrum(block.field, trajectory.times[:-1], trajectory.states[:-1])
        spectra.append(Spectrum(name, found.flatten(), block.scheme, float(trajectory.times.diff(dim=0).max())))
    return "\n\n".join(text), numbers, spectra


@torch.no_grad()
def _blocks(network: Stack, state: Tensor) -> Iterator[tuple[str, rs.ThetaBlock, Tensor]]:
    """Each block with its name and its input."""
    for name, layer in network.layers.named_children():
        if isinstance(layer, rs.ThetaBlock):
            yield f"layer {name}", layer, state
        state = layer(state)


@torch.no_grad()
def _integrated(network: Integrated, inputs: Tensor, batch: Samples) -> tuple[str, dict[str, Any], list[Spectrum]]:
    start = network.before(inputs)
    grid = batch.times.T if network.series else start.new_tensor([0.0, 1.0])
    found = rs.odeint(network.field, start, grid, rtol=network.rtol)
    eigenvalues = rs.analysis.jacobian_spectrum(network.field, 0.0, found.states.flatten(0, 1)).flatten()
    accepted, rejected = float(found.accepted.double().mean()), float(found.rejected.double().mean())
    numbers = {
        "odeint": {
            "accepted steps": accepted,
            "rejected steps": rejected,
            "rightmost eigenvalue": float(eigenvalues.real.max()),
            "leftmost eigenvalue": float(eigenvalues.real.min()),
        }
    }
    text = (
        f"odeint: {accepted:.1f} accepted and {rejected:.1f} rejected steps per sample; the eigenvalues of the field "
        f"have real parts from {float(eigenvalues.real.min()):.3g} to {float(eigenvalues.real.max()):.3g}"
    )
    return text, numbers, [Spectrum("field", eigenvalues, None, 1.0)]


@torch.no_grad()
def _equilibrium(network: AtEquilibrium, inputs: Tensor) -> tuple[str, dict[str, Any], list[Spectrum]]:
    layer, x = network.layer, inputs.flatten(1)
    solution = layer.solution(x)
    z = solution.value
    eigenvalues = torch.cat([_spectrum_at(layer.f, z[i : i + 1], x[i : i + 1]) for i in range(len(x))])
    steps, failed = float(solution.steps.double().mean()), int((~solution.converged).sum())
    radius = float(eigenvalues.abs().max())
    numbers = {"equilibrium": {"iterations": steps, "failed": failed, "spectral radius": radius}}
    text = (
        f"equilibrium: {steps:.1f} iterations per sample, {failed} failed; the spectral radius of df/dz is "
        f"{radius:.3g} ({'below' if radius < 1 else 'not below'} 1, where plain iteration converges)"
    )
    return text, numbers, [Spectrum("df/dz", eigenvalues, None, 1.0)]


def _spectrum_at(f: Any, z: Tensor, x: Tensor) -> Tensor:
    """The eigenvalues of df/dz of one sample."""
    return rs.analysis.jacobian_spectrum(lambda t, state: f(state, x), 0.0, z).flatten()


def _radii(trained: Trained, batch: Samples) -> dict[str, Any]:
    """Certified radii, if there is a certificate, else the reason why there is none."""
    layers, facts = trained.learner.network.classifier, trained.facts
    if layers is None or facts.task != "classification":
        return {"text": "certified radii: only for classifiers made of theta layers.", "values": None}
    try:
        bound = rs.analysis.lipschitz_bound(layers, facts.shape)
    except ValueError as error:
        return {"text": f"certified radii: none, because {error}", "values": None}
    radii = rs.analysis.certified_radius(layers, trained.learner.standardized(batch.inputs), bound)
    unit = ", in units of the standard deviations of the inputs" if facts.mean else ""
    text = f"certified radii{unit}: median {float(radii.median()):.3g}, Lipschitz bound {bound:.3g}"
    return {"text": text, "values": {"lipschitz bound": bound, "radii": radii.tolist()}}


def _figures(out: Path, spectra: list[Spectrum], numbers: dict[str, Any]) -> None:
    import matplotlib as mpl

    mpl.use("Agg")  # figures are written to files, and there may be no screen
    from matplotlib import pyplot as plt

    from resolvent import plotting

    for spectrum in spectra:
        figure, axes = plt.subplots(figsize=(4, 3.2))
        _draw_spectrum(axes, spectrum)
        plotting.save(figure, out / f"spectrum-{spectrum.title.replace(' ', '-').replace('/', '-')}")
        plt.close(figure)
    layers = {name: part["layers"] for name, part in numbers.items() if isinstance(part, dict) and "layers" in part}
    if layers:
        figure, axes = plt.subplots(figsize=(4, 3.2))
        for name, reports in layers.items():
            axes.plot([report["iterations"] for report in reports], marker="o", label=name)
        axes.set(xlabel="layer", ylabel="mean iterations")
        axes.legend()
        plotting.save(figure, out / "iterations")
        plt.close(figure)
    if numbers["certified radii"]:
        radii = sorted(numbers["certified radii"]["radii"], reverse=True)
        figure, axes = plt.subplots(figsize=(4, 3.2))
        axes.step(radii, [(n + 1) / len(radii) for n in range(len(radii))])
        axes.set(xlabel="distance", ylabel="fraction with a certificate")
        plotting.save(figure, out / "certified-radii")
        plt.close(figure)


def _draw_spectrum(axes: Any, spectrum: Spectrum) -> None:
    from resolvent import plotting

    if spectrum.scheme is None:
        axes.scatter(spectrum.eigenvalues.real.cpu(), spectrum.eigenvalues.imag.cpu(), s=6)
        axes.set(xlabel="real part", ylabel="imaginary part")
    else:
        plotting.spectrum(spectrum.eigenvalues, spectrum.scheme, axes, h=spectrum.step)
    axes.set_title(spectrum.title)
