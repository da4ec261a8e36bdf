"""Equilibrium layers beside torchdeq on the same weights, for the tables of "From torchdeq" in the documentation.

pip install --no-deps --target build/peers torchdeq==0.1.0
PYTHONPATH=build/peers python benchmarks/equilibrium.py [layers] [training] [--write]
"""

import argparse
import copy
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._pytree import tree_leaves, tree_map
from torchdeq import get_deq

import resolvent as rs
from resolvent_lab.bench.equilibria import Transformer
from resolvent_lab.bench.measure import peak_bytes
from resolvent_lab.images.mnist import read_digits

PAGE = Path(__file__).parent.parent / "docs" / "from-torchdeq.md"
TOLERANCE = 1e-4
SIZES = (14, 7, 4)
Layer = Callable[[nn.Module, Any], Any]


class Multiscale(nn.Module):
    """Images at three resolutions, each of which sees all of them and the input."""

    def __init__(self, channels: int = 8) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(3 * channels, channels, 3, padding=1) for _ in SIZES)

    def forward(self, z: tuple[Tensor, ...], x: Tensor) -> tuple[Tensor, ...]:
        found = []
        for conv, size in zip(self.convs, SIZES, strict=True):
            parts = [functional.interpolate(part, (size, size), mode="bilinear") for part in z]
            injected = functional.adaptive_avg_pool2d(x, size)
            found.append(injected + torch.tanh(conv(torch.cat(parts, 1))))
        return tuple(found)


def scales(x: Tensor) -> tuple[Tensor, ...]:
    return tuple(x.new_zeros(len(x), x.shape[1], size, size) for size in SIZES)


@dataclass(frozen=True)
class Case:
    """A function, its input, and the first guess."""

    name: str
    f: nn.Module
    x: Tensor
    z0: Callable[[Tensor], Any]


def cases() -> list[Case]:
    torch.manual_seed(0)
    return [
        Case("sequence, 20 tokens of 32", Transformer(), torch.randn(32, 20, 32), torch.zeros_like),
        Case("three resolutions, 8 channels", Multiscale(), torch.randn(32, 8, 14, 14), scales),
    ]


def ours(solver: Any = None, backward: Any = None) -> Layer:
    def layer(f: nn.Module, case: Case) -> Any:
        stopping, adjoint = rs.Stopping(rtol=TOLERANCE), rs.ImplicitAdjoint(backward)
        return rs.Equilibrium(f, case.z0, solver=solver, stopping=stopping, adjoint=adjoint).eval()

    return layer


def theirs(solver: str, tolerance: float) -> Layer:
    """With implicit differentiation; the tolerance of both passes is relative."""

    def layer(f: nn.Module, case: Case) -> Any:
        both = {"f_solver": solver, "b_solver": solver, "f_max_iter": 200, "b_max_iter": 200}
        modes = {"f_stop_mode": "rel", "b_stop_mode": "rel", "f_tol": tolerance, "b_tol": tolerance}
        deq = get_deq(ift=True, **both, **modes)

        def call(x: Tensor) -> Any:
            z0 = case.z0(x)
            if isinstance(z0, Tensor):
                return deq(lambda z: f(z, x), z0)[0][-1]
            return tuple(deq(lambda *z: f(z, x), list(z0))[0][-1])

        return call

    return layer


OURS = {
    "resolvent, Auto": ours(),
    "resolvent, Broyden": ours(rs.Broyden()),
    "resolvent, Picard and Neumann": ours(rs.Picard(), rs.Neumann()),
}
THEIRS = {
    f"torchdeq, {solver}": [
        theirs(solver, factor * TOLERANCE)
        for factor in (100.0, 50.0, 30.0, 20.0, 10.0, 7.0, 5.0, 3.0, 2.0, 1.0, 0.5, 0.3)
    ]
    for solver in ("anderson", "broyden", "fixed_point_iter")
}


def residual(case: Case, z: Any) -> float:
    """The largest |f(z) - z| / |z| of a sample."""
    with torch.no_grad():
        rows = [torch.cat([part.flatten(1) for part in tree_leaves(state)], 1) for state in (z, case.f(z, case.x))]
    return float(((rows[1] - rows[0]).norm(dim=1) / rows[0].norm(dim=1)).max())


def step(case: Case, layer: Any) -> tuple[Any, Tensor]:
    """A training step: the equilibrium, and the gradient of all weights."""
    case.f.zero_grad()
    z = layer(case.x)
    loss = sum(
        (part * torch.cos(torch.arange(part[0].numel())).reshape(part[0].shape)).mean() for part in tree_leaves(z)
    )
    gradients = torch.autograd.grad(loss, list(case.f.parameters()))  # type: ignore[arg-type]
    return tree_map(torch.Tensor.detach, z), torch.cat([gradient.flatten() for gradient in gradients])


def exact(case: Case) -> Tensor:
    """The gradient in double precision to a tight tolerance."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    double = Case(case.name, copy.deepcopy(case.f).double(), case.x.double(), case.z0)
    gradient = step(double, rs.Equilibrium(double.f, double.z0, stopping=rs.Stopping(rtol=1e-10)).eval())[1]
    torch.set_default_dtype(before)
    return gradient


def seconds(case: Case, layer: Any, repeats: int) -> float:
    start = time.perf_counter()
    for _ in range(repeats):
        step(case, layer)
    return (time.perf_counter() - start) / repeats


def comparison(rounds: int = 9) -> list[str]:
    lines = [
        f"Batches of 32, one thread, single precision, to a relative residual of {TOLERANCE:.0e}:",
        "",
        "| layer | by | training step | beside ours | peak memory | residual | error of the gradient |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    for case in cases():
        reference, layers = exact(case), {name: make(case.f, case) for name, make in OURS.items()}
        for name, candidates in THEIRS.items():
            found = [make(case.f, case) for make in candidates]
            good = [layer for layer in found if residual(case, step(case, layer)[0]) <= TOLERANCE]
            if good:
                layers[name] = good[0]
            else:
                lines.append(f"| {case.name} | {name} | - | - | - | does not reach it | - |")
        times: dict[str, list[float]] = {name: [] for name in layers}
        for _ in range(rounds):  # In turns: other load then affects all alike.
            for name, layer in layers.items():
                times[name].append(seconds(case, layer, 2))
        first = times[next(iter(times))]
        for name, layer in layers.items():
            z, gradient = step(case, layer)
            wrong = float((gradient.double() - reference).norm() / reference.norm())
            ratio = statistics.median(a / b for a, b in zip(times[name], first, strict=True))
            memory = peak_bytes(lambda layer=layer, case=case: step(case, layer), torch.device("cpu")) / 2**20
            cells = [f"{1e3 * statistics.median(times[name]):.0f} ms", f"{ratio:.2f}", f"{memory:.1f} MiB"]
            cells += [f"{residual(case, z):.0e}", f"{wrong:.0e}"]
            lines.append("| " + " | ".join([case.name, name, *cells]) + " |")
    return lines


class Classifier(nn.Module):
    """An equilibrium at three resolutions between an embedding and a linear classifier; its weights are bounded."""

    def __init__(self, make: Layer) -> None:
        super().__init__()
        self.embed, self.f, self.make = nn.Conv2d(1, 8, 3, padding=1), Multiscale(), make
        for conv, size in zip(self.f.convs, SIZES, strict=True):
            rs.spectral.spectral_norm(conv, (24, size, size), bound=0.35)
        self.head = nn.Linear(8 * sum(size**2 for size in SIZES[1:]), 10)

    def forward(self, images: Tensor) -> Tensor:
        x = self.embed(functional.avg_pool2d(images, 2))
        with rs.blocks.frozen_weights(self.f) as f:  # torchdeq would normalise at every evaluation.
            z = self.make(f, Case("digits", f, x, scales))(x)
        return self.head(torch.cat([part.flatten(1) for part in z[1:]], 1))


def train(make: Layer, seed: int, epochs: int = 3) -> tuple[float, float]:
    """The accuracy on held-out digits in percent, and the seconds of a short training."""
    torch.manual_seed(seed)
    digits, model = read_digits(500), Classifier(make)
    images, labels = digits.train
    optimizer, start = torch.optim.Adam(model.parameters(), 1e-2), time.perf_counter()
    for _ in range(epochs):
        for rows in torch.randperm(len(labels)).split(50):
            optimizer.zero_grad()
            functional.cross_entropy(model(images[rows]), labels[rows]).backward()
            optimizer.step()
    duration = time.perf_counter() - start
    with torch.no_grad():
        right = model(digits.test.images[:1000]).argmax(1) == digits.test.labels[:1000]
    return 100 * float(right.float().mean()), duration


def training(seeds: int = 5) -> list[str]:
    contenders = {"resolvent, Anderson": ours(rs.Anderson()), "torchdeq, anderson": theirs("anderson", TOLERANCE)}
    runs = {name: [train(make, seed) for seed in range(seeds)] for name, make in contenders.items()}
    lines = [
        f"The function of images trained on 500 digits for three epochs, {seeds} seeds, the same for both:",
        "",
        "| trained by | accuracy | lowest and highest | training |",
        "|---|---:|---:|---:|",
    ]
    for name, found in runs.items():
        values, times = zip(*found, strict=True)
        spread = f"{min(values):.1f} and {max(values):.1f} %"
        lines.append(f"| {name} | {statistics.mean(values):.1f} % | {spread} | {statistics.median(times):.0f} s |")
    return lines


PARTS = {"layers": comparison, "training": training}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", default=list(PARTS), choices=PARTS, help="what to measure; all by default")
    parser.add_argument("--write", action="store_true", help=f"put the tables into {PAGE.name}")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for part in arguments.parts:
        text, begin, end = "\n".join(PARTS[part]()), f"<!-- {part}: begin -->", f"<!-- {part}: end -->"
        print(text)
        if arguments.write:
            head, rest = PAGE.read_text().split(begin)
            PAGE.write_text(f"{head}{begin}\n{text}\n{end}{rest.split(end)[1]}")


if __name__ == "__main__":
    main()
