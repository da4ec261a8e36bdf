"""CUDA graphs: passes through a model, recorded once and replayed."""

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from resolvent.blocks.fixed_steps import Steps, fixed_steps, solving
from resolvent.blocks.graph_memory import CopiedGradients, CopiedOutputs, HostCopy
from resolvent.blocks.learned_steps import count_failures, learned_steps, no_failures, raise_steps
from resolvent.equation.stopping import FixedSteps
from resolvent.equation.torch_func import transforming


def cuda_graph(model: nn.Module, example: Tensor | Sequence[Tensor], steps: int | None = None) -> "CudaGraph":
    """Records a pass through a model, forward and backward, as CUDA graphs: a replay launches all kernels at once.

        fast = rs.blocks.cuda_graph(model, x)
        logits = fast(x)
        fast.unconverged  # 0-d tensor

    Small networks spend most of their time launching kernels, so a training step becomes several times as fast. A graph
    cannot make data-dependent decisions. So in a recorded pass the solves of a block make fixed numbers of steps, layer
    by layer, with no fallback, and do not report failure: read `unconverged` now and then. The model itself is not
    changed, and can still be called.

    Arguments:
        model: on a GPU. It may contain other layers besides blocks, but must not wait for the device.
        example: its inputs, one tensor or several, of the shapes to record first.
        steps: the number of steps of each solve, forward and backward. None learns the fewest for each block: with them
            all samples of the example converge. Where samples of later calls do not, as the weights change, the
            numbers are raised, up to 64, and the pass is recorded again, two calls later: to notice it at once would
            wait for the device.
    """
    inputs = (example,) if isinstance(example, Tensor) else tuple(example)
    fast = CudaGraph(model, steps)
    fast.record(*inputs)
    return fast


class CudaGraph:
    """A model recorded as CUDA graphs, made by `cuda_graph`.

    Call it like the model, with tensors only. There is one graph for each combination of input shapes, training flags,
    autocast and whether gradients are needed. A new combination is recorded when it first occurs, in a few passes
    through the model; batch norms count these passes. Everything is recorded again if weights move in memory, as by
    `model.to(...)`. In-place changes by optimisers or `load_state_dict` take effect.

    The graphs keep what one backward pass needs. A call can be differentiated once, and only before the next call;
    otherwise it raises.
    """

    def __init__(self, model: nn.Module, steps: int | None = None) -> None:
        if not isinstance(model, nn.Module):
            raise ValueError(f"model must be an nn.Module, whose blocks and weights can be found, got {model!r}.")
        self.model = model
        self._learns = steps is None
        first = 1 if steps is None else FixedSteps(steps).steps
        self._steps = [Steps(first, first) for _ in solving(model)]
        self._recordings: dict[object, _Recording] = {}
        self._last: _Recording | None = None
        self._places: list[int] = []

    @property
    def unconverged(self) -> Tensor:
        """The number of solves of samples that did not converge in the last call, a 0-d tensor on the device.

        The solves of the backward pass are included once it has run. Reading the number waits for the device.
        """
        if self._last is None:
            raise ValueError("nothing was solved yet: call the recorded model first.")
        return self._last.count.sum()

    @property
    def steps(self) -> tuple[Steps, ...]:
        """The numbers of steps of each block: of the solves of its layers, and of linear systems, in the backward pass
        or for tangents."""
        return tuple(self._steps)

    def record(self, *inputs: Tensor) -> "_Recording":
        """The graphs for inputs like these and the current state of the model."""
        _refuse_other_devices(inputs)
        places = [weight.data_ptr() for weight in self.model.parameters()]
        if places != self._places:
            self._recordings.clear()
            self._places = places
        key = self._key(inputs)
        if key not in self._recordings:
            if self._learns:
                self._learn(inputs)
            self._recordings[key] = _Recording(self.model, inputs, self._steps)
        return self._recordings[key]

    def _learn(self, inputs: Sequence[Tensor]) -> None:
        """Raises the numbers of steps until all samples of the inputs converge."""
        recording = torch.is_grad_enabled()
        with torch.inference_mode(False), torch.set_grad_enabled(recording):
            self._set(learned_steps(self.model, _examples(inputs), self._steps))

    def _set(self, steps: list[Steps]) -> None:
        if steps != self._steps:
            self._steps = steps
            self._recordings.clear()

    def __call__(self, *inputs: Tensor) -> Any:
        recording = self.record(*inputs)
        if self._learns and (failed := recording.failed_before()) is not None:
            self._set(raise_steps(self._steps, failed))
            recording = self.record(*inputs)
        self._last = recording
        return self._last(inputs)

    def _key(self, inputs: Sequence[Tensor]) -> object:
        device = inputs[0].device.type
        autocast = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
        return (
            tuple((x.shape, x.dtype, x.device, x.requires_grad) for x in inputs),
            tuple(weight.requires_grad for weight in self.model.parameters()),
            tuple(module.training for module in self.model.modules()),
            torch.is_grad_enabled(),
            autocast,
        )


class _Recording:
    """One graph of the forward pass, and one of the backward pass.

    Attributes:
        count: (blocks, 2), the solves of samples that did not converge, see `Steps`; written by the graphs.
        open: the number of the call that can still be differentiated.
    """

    def __init__(self, model: nn.Module, inputs: Sequence[Tensor], steps: Sequence[Steps]) -> None:
        self.model = model
        self.steps = tuple(steps)
        self.weights = [weight for weight in model.parameters() if weight.requires_grad]
        self.open: int | None = None
        self._calls = 0
        self._seen = HostCopy()
        self._number_of_inputs = len(inputs)
        device, recording = inputs[0].device, torch.is_grad_enabled()
        autocast = torch.autocast(
            device.type,
            torch.get_autocast_dtype(device.type),
            torch.is_autocast_enabled(device.type),
            cache_enabled=False,  # A replay must cast the weights again.
        )
        with torch.inference_mode(False), torch.set_grad_enabled(recording), autocast:
            self.count = no_failures(steps, device)
            examples = _examples(inputs)
            # The weights are arguments, so that they get gradients.
            with _explaining_waits(), _generator_released(device), _no_garbage_collected():
                self._replay: Callable[..., Any] = torch.cuda.make_graphed_callables(
                    self._run, (*examples, *self.weights), allow_unused_input=True
                )

    def __call__(self, inputs: Sequence[Tensor]) -> Any:
        self._calls += 1
        self.open = self._calls
        outputs, structure = tree_flatten(self._replay(*CopiedGradients.apply(*inputs, *self.weights)))
        return tree_unflatten(CopiedOutputs.apply(self, self._calls, *outputs), structure)

    def _run(self, *arguments: Tensor) -> Any:
        with torch.no_grad():
            self.count.zero_()
        with fixed_steps(self.model, self.steps, partial(count_failures, self.count)):
            return self.model(*arguments[: self._number_of_inputs])

    def failed_before(self) -> list[list[int]] | None:
        """The counts of an earlier call, without waiting for the device: None if they are not known yet or all zero."""
        counts = self._seen.read()
        if self._calls > 0:
            self._seen.send(self.count)
        return counts if counts is not None and any(map(any, counts)) else None


def _examples(inputs: Sequence[Tensor]) -> list[Tensor]:
    """Copies of the inputs that are leaves."""
    return [x.detach().clone().requires_grad_(x.requires_grad) for x in inputs]


@contextmanager
def _generator_released(device: torch.device) -> Iterator[None]:
    """After a recording that failed, the generator of random numbers still waits for its end, and refuses every
    further number. A copy of its state does not."""
    try:
        yield
    except Exception:
        if device.type == "cuda":
            number = torch.cuda.current_device() if device.index is None else device.index
            generator = torch.cuda.default_generators[number]
            generator.graphsafe_set_state(generator.clone_state())
        raise


@contextmanager
def _no_garbage_collected() -> Iterator[None]:
    """An earlier recording that the garbage collector finds would be destroyed during this one, which CUDA forbids."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@contextmanager
def _explaining_waits() -> Iterator[None]:
    """Adds the likely cause to an error of CUDA."""
    try:
        yield
    except RuntimeError as error:
        if "captur" not in str(error):
            raise
        raise ValueError(
            "the pass waits for the device somewhere, and cannot be recorded. In blocks the cause may be a learned "
            "theta, memory='reversible', rs.NewtonKrylov(), rs.solvers.Chord(), or a fully implicit Runge-Kutta "
            "scheme; in your own layers, code that reads a number, such as .item(), or makes a tensor from one."
        ) from error


def _refuse_other_devices(inputs: Sequence[Any]) -> None:
    if transforming():
        raise ValueError("a CUDA graph cannot be replayed inside torch.func transforms: call the model itself there.")
    if not inputs or not all(isinstance(x, Tensor) for x in inputs):
        raise ValueError(f"the inputs of a CUDA graph must be tensors, got {inputs!r}.")
    if not all(x.is_cuda for x in inputs):
        places = ", ".join(sorted({str(x.device) for x in inputs}))
        raise ValueError(
            f"CUDA graphs need a CUDA device, and the inputs are on {places}: move the model and its inputs there with "
            ".cuda(), or call the model itself."
        )
