"""`export`: a model as a `torch.export` program, in which all solves make a fixed number of steps."""

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from resolvent.blocks.block import Block
from resolvent.blocks.elimination import ELEMENTARY
from resolvent.blocks.fixed_steps import Steps, fixed_steps, solving
from resolvent.blocks.memory import Store
from resolvent.blocks.simplify import simplify
from resolvent.blocks.solved_with import solved_with
from resolvent.blocks.theta_block import ThetaBlock
from resolvent.blocks.weights import frozen_weights, outside_inference
from resolvent.equation.modes import refuse_transforms
from resolvent.equation.problem import full_precision
from resolvent.equation.solution import Solution
from resolvent.equation.solver import Plan

if TYPE_CHECKING:
    from torch.export import ExportedProgram


def export(
    model: nn.Module, example: Tensor | Sequence[Tensor], steps: int, *, solver: Plan | None = None
) -> "ExportedProgram":
    """The model in inference form: a program of torch's elementary operations, for any batch size.

        program = rs.blocks.export(model.eval(), x, steps=8)
        output, residuals, converged = program.module()(x)
        torch.onnx.export(program, f="model.onnx")

    A program cannot make data-dependent decisions. So each solve makes the same number of steps, layer by layer, with
    no fallback, and samples that have converged do not move. It cannot raise either: **check `converged`**. The program
    returns

    - what the model returns,
    - the residuals (batch, solves), the root mean square of w - b - tau F(w) for each sample and solve,
    - whether they converged, (batch, solves), by the tolerance of the block.

    The program holds copies of the weights; normalised ones are computed once. It needs neither this library nor
    autograd, and cannot be trained. Linear systems are solved by elimination, written out in the graph.

    Arguments:
        model: a block, an equilibrium layer, or a module that contains some, in evaluation mode.
        example: its inputs, one tensor (batch, ...) or several. All but the batch size is fixed by them.
        steps: the number of steps of each solve. Take the most that the solves of an eager pass need, and some more.
        solver: for all solves; None keeps that of each block. `rs.Auto()` becomes its first solver. The size of the
            program grows with the steps: `rs.Picard()` makes the smallest, and `rs.Newton()` and `rs.Anderson()` need
            the fewest steps.
    """
    refuse_transforms("rs.blocks.export")
    inputs = _checked(model, example)
    with outside_inference(inputs) as (inputs,), torch.no_grad(), full_precision(inputs[0].device):
        return _exported(_frozen(model), inputs, steps, solver)


def _exported(frozen: nn.Module, inputs: tuple[Tensor, ...], steps: int, solver: Plan | None) -> "ExportedProgram":
    from torch import export as torch_export  # Loads the compiler, which takes seconds.

    solutions: list[Solution] = []

    def run(*inputs: Tensor) -> tuple[Any, Tensor, Tensor]:
        solutions.clear()
        output = frozen(*inputs)
        return output, *_summary(solutions, inputs[0])

    numbers = [Steps(steps, steps) for _ in solving(frozen)]
    with (
        solved_with(frozen, solver=solver),
        fixed_steps(frozen, numbers, lambda _, solution: solutions.append(solution)),
    ):
        graph = _traced(run, inputs)
    batch = torch_export.Dim("batch")
    with _explaining():
        return torch_export.export(graph, inputs, dynamic_shapes=tuple({0: batch} for _ in inputs))


def _checked(model: nn.Module, example: Tensor | Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The inputs, with at least two samples: a size of one would be taken for a constant."""
    if not isinstance(model, nn.Module):
        raise ValueError(f"model must be an nn.Module, whose blocks and weights can be found, got {model!r}.")
    if any(module.training for module in model.modules()):
        raise ValueError("the model is in training mode, and an exported program is for inference: call model.eval().")
    inputs = (example,) if isinstance(example, Tensor) else tuple(example)
    if not inputs or not all(isinstance(x, Tensor) and x.dim() > 0 for x in inputs):
        raise ValueError(f"the inputs of an exported program must be tensors (batch, ...), got {inputs!r}.")
    if len({x.shape[0] for x in inputs}) > 1 or inputs[0].shape[0] == 0:
        shapes = ", ".join(str(tuple(x.shape)) for x in inputs)
        raise ValueError(f"the inputs must have one batch size, 1 or more, got shapes {shapes}.")
    return tuple(x.detach() if x.shape[0] > 1 else x.detach().repeat(2, *(1,) * (x.dim() - 1)) for x in inputs)


def _frozen(model: nn.Module) -> nn.Module:
    """A copy of the model whose weights, steps and thetas are constants."""
    with frozen_weights(model) as weighted:
        frozen = copy.deepcopy(weighted)
    for weight in frozen.parameters():
        weight.requires_grad_(False)
    for block in frozen.modules():
        if isinstance(block, Block):
            block.memory = Store()
            _fix_grid(block)
        if isinstance(block, ThetaBlock):
            block._theta, block.learn_theta = float(torch.as_tensor(block.theta)), False
    return frozen


def _fix_grid(block: Block) -> None:
    """Makes the horizon and the times of a block numbers, as they may be learned."""
    horizon, times = block.horizon, block.times
    if isinstance(horizon, Tensor):
        del block.horizon
        block.horizon = float(horizon)
    if isinstance(times, Tensor):
        del block.times
        block.times = tuple(times.tolist())


def _summary(solutions: list[Solution], x: Tensor) -> tuple[Tensor, Tensor]:
    """The residuals of all solves and whether they converged, (batch, solves) each."""
    if not solutions:  # All layers are explicit.
        return x.new_zeros(x.shape[0], 0), x.new_zeros(x.shape[0], 0, dtype=torch.bool)
    residuals = torch.stack([solution.residual for solution in solutions], dim=1)
    return residuals, torch.stack([solution.converged for solution in solutions], dim=1)


def _traced(run: Callable[..., Any], inputs: tuple[Tensor, ...]) -> torch.fx.GraphModule:
    """The operations of a run as a graph, with a symbolic batch size.

    `torch.export` alone does not look into the derivatives that Newton's method takes; `make_fx` does, and it replaces
    the operations that other runtimes do not have.
    """
    from torch._dispatch.python import enable_python_dispatcher
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

    mode = FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)

    def fake(x: Tensor) -> Tensor:
        sizes = [DimDynamic.DYNAMIC, *(DimDynamic.STATIC for _ in x.shape[1:])]
        return mode.from_tensor(x, symbolic_context=StatelessSymbolicContext(dynamic_sizes=sizes))

    with _explaining(), enable_python_dispatcher(), mode:
        graph = make_fx(run, decomposition_table=ELEMENTARY, _allow_non_fake_inputs=True)(*map(fake, inputs))
    simplify(graph)
    return graph


@contextmanager
def _explaining() -> Iterator[None]:
    """Adds the likely cause to an error of the tracer."""
    try:
        yield
    except Exception as error:
        if not type(error).__module__.startswith(("torch.fx", "torch._dynamo", "torch._subclasses")):
            raise
        raise ValueError(
            "the model decides by the data, or by the size of the batch, and cannot be exported. In blocks the "
            "cause may be the solver: rs.Picard(), rs.Anderson(), rs.Broyden() and rs.Newton() can be exported; in "
            "your own layers, code that reads a number, such as .item() or len(x) in place of x.shape[0]. rs.odeint "
            "chooses its steps by the data: take an rs.Block."
        ) from error
