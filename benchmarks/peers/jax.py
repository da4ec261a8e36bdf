"""optimistix and diffrax under jit, in a process and an environment of their own.

    python -m venv build/jax
    build/jax/bin/python -m pip install optimistix diffrax

What happens there is in jax_worker.py, to which weights and data go through a file. That process has as many threads as
this one, and does nothing while others have their turn. Its peak memory is what XLA plans for: temporaries and results.
"""

import contextlib
import json
import os
import select
import subprocess
import tempfile
from functools import partial
from pathlib import Path

import numpy as np
import torch

from resolvent_lab.bench.contender import Contender, StepResult, TorchContender
from resolvent_lab.bench.task import blocks

PYTHON = Path(os.environ.get("RESOLVENT_JAX", "build/jax/bin/python"))
ROWS = ("B1", "B2", "B3", "B4")
KIND = "compiled"
PATIENCE = 900
WORKER = Path(__file__).with_name("jax_worker.py")
if not PYTHON.exists():
    raise ImportError(f"there is no {PYTHON}: make that environment, or name another one's Python in RESOLVENT_JAX")


class JaxContender(Contender):
    """Asks for steps, times and results by lines of JSON."""

    name, kind = "jax", KIND

    def __init__(self, task, setting):
        self.folder = tempfile.TemporaryDirectory()
        self.results = Path(self.folder.name) / "results.npz"
        np.savez(Path(self.folder.name) / "task.npz", **_arrays(task))
        block = next(iter(blocks(task.model).values()))
        description = {
            "row": task.row,
            "theta": task.theta,
            "step": float(block.step_size),
            "layers": block.num_steps,
            "tolerance": task.tolerance,
            "setting": setting,
            "folder": self.folder.name,
        }
        threads = str(torch.get_num_threads())
        flags = f"--xla_cpu_multi_thread_eigen={'false' if threads == '1' else 'true'}"
        self.process = subprocess.Popen(
            [PYTHON, "-P", WORKER, json.dumps(description)],
            env=os.environ | {"NPROC": threads, "OMP_NUM_THREADS": threads, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def seconds(self, action, repeats):
        return self._ask("seconds", action, repeats)

    def peak(self):
        return self._ask("peak")

    def outcome(self):
        self._ask("outcome")
        with np.load(self.results) as arrays:
            parts = {name: torch.from_numpy(arrays[name]) for name in arrays.files}
        states = [parts[name] for name in sorted(parts) if name.startswith("states")]
        return StepResult(states, [parts[name] for name in sorted(parts) if name.startswith("gradient")])

    def close(self):
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.wait()
        self.folder.cleanup()

    def _ask(self, *question):
        print(json.dumps(question), file=self.process.stdin, flush=True)
        if not select.select([self.process.stdout], [], [], PATIENCE)[0]:
            self.process.kill()
            raise RuntimeError(f"no answer within {PATIENCE} s")
        answer = self.process.stdout.readline()
        if not answer:
            raise RuntimeError(_last_error(self.process.stderr.read()))
        return json.loads(answer)


def candidates(task):
    """All settings by name; the tolerance is that of the last step where a method judges by steps."""
    if any(part.device.type != "cpu" for part in task.batch) or "bfloat16" in task.title or task.row not in ROWS:
        return {}
    if task.row in ("B1", "B2"):
        settings = [("Newton", 1e-2), ("Newton", 1e-4), ("Chord", 1e-5)]
        settings += [("diffrax ImplicitEuler", 1e-3)] * (task.theta == 1)
    else:
        settings = [("FixedPointIteration", 1e-2), ("FixedPointIteration", 1e-3), ("Newton with GMRES", 1e-2)]
    return {
        f"{method if 'diffrax' in method else f'optimistix {method}'}, steps to {tolerance:.0e}": partial(
            JaxContender, task, [method, tolerance]
        )
        for method, tolerance in settings
    }


def _last_error(text):
    """The line that names the exception; what follows it are remarks of JAX."""
    lines = [line for line in text.splitlines() if "Error" in line.split(":")[0]]
    return lines[-1] if lines else text


def _arrays(task):
    """Parameters before and after a step, in order; data; and the singular vectors of normalised weights."""
    contender = TorchContender("weights", task, lambda block: block)
    contender.infer()  # norms are measured when weights are first used
    weights = contender.weights
    names = [name for name, _ in task.model.named_parameters()]
    arrays = {f"before/{n:03d}/{name}": w for n, (name, w) in enumerate(zip(names, weights[0], strict=True))}
    arrays |= {f"after/{n:03d}/{name}": w for n, (name, w) in enumerate(zip(names, weights[1], strict=True))}
    arrays |= {f"buffer/{name}": buffer for name, buffer in contender.model.named_buffers()}
    arrays |= {f"batch/{n}": part for n, part in enumerate(task.batch)}
    return {name: array.detach().numpy() for name, array in arrays.items()}
