"""Long runs: hostile solves, and a training on hostile batches. Nothing may be wrong without an error."""

import ctypes
import gc
import os
import random
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn

import resolvent as rs
from honesty import CLASSES, COSTLY, Trial
from manufactured import SOLVERS
from resolvent.errors import ResolventError

# Of a costly solver each class gets a part of the samples.
_SAMPLES, _FEW_SAMPLES = 1000, 100
# A residual that is measured again, in float64 from states in float32, may exceed the tolerance by this factor.
_SLACK = 20.0
# Images take a tenth of the steps: a solve that fails costs seconds there.
_RARELY = 10
HOSTILE = ("plain", "huge", "tiny", "denormal", "nan", "infinite", "empty", "one sample", "constant")


@dataclass
class Solves:
    """Outcomes of hostile solves, by solver.

    Attributes:
        statuses: counts by (solver, status).
        faults: false claims by (solver, reason).
        examples: one for each kind of fault.
    """

    statuses: Counter[tuple[str, str]] = field(default_factory=Counter)
    faults: Counter[tuple[str, str]] = field(default_factory=Counter)
    examples: dict[tuple[str, str], str] = field(default_factory=dict)

    def add(self, trial: Trial) -> None:
        verdict = trial.run()
        name = str(trial.solver)
        for code in verdict.status.tolist():
            self.statuses[name, rs.Status(code).meaning] += 1
        for reason, rows in verdict.faults().items():
            self.faults[name, reason] += len(rows)
            self.examples.setdefault((name, reason), f"{trial.key}: {verdict.describe(int(rows[0]))}")


def hostile_solves(count: int, seed: int = 0) -> Solves:
    """At least `count` solves by all solvers, of all classes of equations in all precisions, with new numbers each
    round. Most classes have no solution, several, or one at the end of what a precision can resolve."""
    solves, done, number = Solves(), 0, 0
    before = os.environ.get("RESOLVENT_HONESTY_SEED")
    try:
        while done < count:
            os.environ["RESOLVENT_HONESTY_SEED"] = f"soak {seed} {number}"
            for trial in _round(f"{seed} {number}"):
                solves.add(trial)
                done += trial.count
                if done >= count:
                    break
            number += 1
    finally:
        if before is None:
            del os.environ["RESOLVENT_HONESTY_SEED"]
        else:
            os.environ["RESOLVENT_HONESTY_SEED"] = before
    return solves


def _round(seed: str) -> list[Trial]:
    """Every solver on every class in every precision, in random order, so that a part of a round is a fair one."""
    trials = []
    for solver in SOLVERS:
        count, most = (_FEW_SAMPLES, 50) if isinstance(solver, (*COSTLY, rs.Auto)) else (_SAMPLES, 100)
        trials += [Trial(e, solver, dtype, count, most) for e in CLASSES for dtype in e.precisions]
    random.Random(seed).shuffle(trials)
    return trials


@dataclass
class Training:
    """What became of a training.

    Attributes:
        outcomes: counts by (kind of batch, outcome).
        wrong: descriptions of steps that ended without an error and were wrong.
        memory: resident bytes after the first tenth, and at the end; freed memory is returned to the system before.
        tensors: their number at these two times.
    """

    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    memory: list[int] = field(default_factory=list)
    tensors: list[int] = field(default_factory=list)


def train(steps: int, seed: int = 0) -> Training:
    """Trains networks in turn on batches of random shapes, many of them hostile.

    A step either ends in an error of the library, and is left out, or its outputs are finite, solve the equations of
    all layers, measured again in double precision, and its gradients are finite.
    """
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    networks = [_Vectors(), _Equilibrium(), _Images()]
    optimizers = [torch.optim.Adam(network.parameters(), 1e-3) for network in networks]
    found = Training()
    for step in range(steps):
        index = 2 if step % _RARELY == 0 else step % 2
        kind = HOSTILE[int(torch.randint(len(HOSTILE), (), generator=generator))]
        x = hostile(networks[index].draw(generator), kind)
        outcome = _step(networks[index], optimizers[index], x)
        found.outcomes[kind, outcome] += 1
        if outcome.startswith("WRONG"):
            found.wrong.append(
                f"step {step}, {kind} batch {tuple(x.shape)} of {type(networks[index]).__name__}: {outcome}"
            )
        if step + 1 in (max(1, steps // 10), steps):
            gc.collect()
            found.memory.append(_resident())
            found.tensors.append(sum(isinstance(thing, Tensor) for thing in gc.get_objects()))
    return found


def hostile(x: Tensor, kind: str) -> Tensor:
    """The batch made hostile; of "nan" and "infinite" one entry is enough."""
    if kind in ("empty", "one sample"):
        return x[: int(kind == "one sample")]
    factor = {"huge": 1e30, "tiny": 1e-30, "denormal": 1e-41, "constant": 0.0}.get(kind, 1.0)
    x = x * factor
    if kind in ("nan", "infinite"):
        x.view(-1)[x.numel() // 2] = float("nan") if kind == "nan" else float("inf")
    return x


class _Network(nn.Module):
    """A network with one implicit layer or block, whose equations can be measured again."""

    def draw(self, generator: torch.Generator) -> Tensor:
        raise NotImplementedError

    def run(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The output, and the largest ratio of a residual to its tolerance."""
        raise NotImplementedError


class _Block(_Network):
    block: rs.ThetaBlock

    def run(self, x: Tensor) -> tuple[Tensor, Tensor]:
        states = self.block.trajectory(x).states
        theta, h = float(self.block.theta), float(self.block.step_size)
        start, end = states[:-1].detach().double(), states[1:].detach().double()
        with torch.no_grad():
            stage = (1 - theta) * start + theta * end
            slopes = torch.stack([self.block.field(0.0, s.float()).double() for s in stage])
        residual = _rms(start + h * slopes - end)
        # The scale is that of the equation of a layer, b, its solution, and the slope.
        scale = torch.stack([_rms(start), _rms(end), _rms(h * slopes)]).amax(0)
        return states[-1], (residual / (1e-7 + 1e-6 * scale)).flatten()


class _Vectors(_Block):
    def __init__(self) -> None:
        super().__init__()
        self.block = rs.ThetaBlock(rs.fields.MLP(3, 8, 1), 0.5, 3, 1.0)

    def draw(self, generator: torch.Generator) -> Tensor:
        return torch.randn(int(torch.randint(2, 40, (), generator=generator)), 3, generator=generator)


class _Images(_Block):
    """The field is a convolution, so that images may have any size."""

    def __init__(self) -> None:
        super().__init__()
        self.block = rs.ThetaBlock(rs.fields.Conv(2), 1.0, 2, 1.0)

    def draw(self, generator: torch.Generator) -> Tensor:
        batch, height, width = (int(torch.randint(2, 9, (), generator=generator)) for _ in range(3))
        return torch.randn(batch, 2, height, width, generator=generator)


class _Equilibrium(_Network):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(0.3 * torch.randn(4, 4))
        self.layer = rs.Equilibrium(lambda z, x: torch.tanh(z @ self.weight + x))

    def draw(self, generator: torch.Generator) -> Tensor:
        return torch.randn(int(torch.randint(2, 40, (), generator=generator)), 4, generator=generator)

    def run(self, x: Tensor) -> tuple[Tensor, Tensor]:
        z = self.layer(x)
        exact = z.detach().double()
        image = torch.tanh(exact @ self.weight.detach().double() + x.double())
        return z, _rms(image - exact) / (1e-7 + 1e-6 * _rms(exact).clamp(min=1.0))


def _step(network: _Network, optimizer: torch.optim.Optimizer, x: Tensor) -> str:
    """One step of training; returns its outcome."""
    optimizer.zero_grad()
    try:
        y, ratios = network.run(x)
        if not bool(y.isfinite().all()):
            return "WRONG: the output is not finite"
        if ratios.numel() and not float(ratios.max()) <= _SLACK:
            return f"WRONG: a residual is {float(ratios.max()):.1f} times its tolerance"
        scale = float(y.detach().abs().max()) if y.numel() else 1.0
        # A loss that neither overflows nor vanishes, whatever the size of the outputs.
        (y / max(scale, 1e-30)).square().sum().backward()
    except ResolventError as error:
        return f"{type(error).__name__}"
    except ValueError as error:
        return f"ValueError: {str(error).split(',')[0]}"
    gradients = [weight.grad for weight in network.parameters() if weight.grad is not None]
    if not all(bool(gradient.isfinite().all()) for gradient in gradients):
        optimizer.zero_grad()
        return "gradient overflows"
    nn.utils.clip_grad_norm_(network.parameters(), 1.0)
    optimizer.step()
    return "trained"


def _rms(x: Tensor) -> Tensor:
    """Of each sample; the first dimensions are those of layers and samples."""
    lead = 1 if x.dim() == 2 else 2
    return x.flatten(lead).square().mean(-1).sqrt() if x.dim() > lead else x.abs()


def _resident() -> int:
    """The resident bytes of this process, without freed ones that the allocator keeps; 0 where unknown."""
    status = Path("/proc/self/statm")
    if not status.exists():
        return 0
    with suppress(OSError, AttributeError):  # Other C libraries have no such function.
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    return int(status.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
