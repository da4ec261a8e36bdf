"""`SamplesAlone`: proves that a module treats each sample alone, from its graph and the modules in it.

With a proof, the solvers may call a field with fewer or repeated rows, which makes small systems several times faster.
If the graph contains anything unknown, nothing is proved.
"""

import copy
import operator
import warnings
from typing import Any, cast

import torch
from torch import Tensor, fx, nn
from torch.nn import functional
from torch.nn.utils import parametrize

from resolvent.fields.activations import is_activation
from resolvent.fields.mlp import has_hooks

# Modules that act on each sample alone; the last four kinds only under a condition.
_LAYERS = (
    *(nn.Linear, nn.Identity, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, nn.LocalResponseNorm),
    *(nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d),
    *(nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d, nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d),
    *(nn.CELU, nn.Hardshrink, nn.LogSigmoid, nn.Mish, nn.PReLU, nn.Threshold),
)
_ATTENTION = (nn.MultiheadAttention,)
_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
_INSTANCE_NORMS = (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)
_DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout)
_KNOWN = frozenset((*_LAYERS, *_ATTENTION, *_BATCH_NORMS, *_INSTANCE_NORMS, *_DROPOUTS))
# Functions, operators and methods of a tensor that act on each entry alone.
_NAMES = """
    abs add arctan asinh atan celu clamp cos cosh div elu erf exp expm1 gelu hardshrink hardsigmoid hardswish hardtanh
    leaky_relu log log1p logsigmoid maximum minimum mish mul neg pow reciprocal relu relu6 rsqrt selu sigmoid sign silu
    sin sinh softplus softshrink softsign sqrt square sub tan tanh tanhshrink truediv
"""
_ELEMENTWISE = frozenset(_NAMES.split())
_FUNCTIONS = frozenset(
    getattr(place, name) for place in (torch, functional, operator) for name in _ELEMENTWISE if hasattr(place, name)
)
# Products with weights: those of a matrix, and those that take the weights as further arguments.
_PRODUCTS = frozenset((operator.matmul, torch.matmul, "matmul", functional.linear))
_CONVOLUTIONS = frozenset((functional.conv1d, functional.conv2d, functional.conv3d))


class SamplesAlone:
    """A proof that a module y -> F(y) treats each sample alone and all alike.

    The graph of the module is traced once, on construction. Everything in it must be known: layers, activations,
    elementwise functions, products with weights. `holds_for` checks each time whether batch norm and dropout are off,
    whether hooks were added, and whether attributes that were None, such as a mask, still are.

    Arguments:
        module: F. For a module that cannot be traced, or a function, nothing is proved.
        declared: what the user says, True or False, which is then believed; None asks for the proof.
    """

    def __init__(self, module: object, declared: bool | None = None) -> None:
        if declared is not None and not isinstance(declared, bool):
            raise ValueError(f"rowwise must be True, False or None, got {declared!r}.")
        self._declared = declared
        self._leaves: dict[str, type[nn.Module]] | None = None
        self._absent: list[tuple[str, str]] = []
        if declared is None and isinstance(module, nn.Module) and not isinstance(module, torch.jit.ScriptModule):
            self._leaves, self._absent = _known_leaves(module), _absent_attributes(module)

    def holds_for(self, module: object, field: nn.Module) -> bool:
        """Whether it holds now for this module, called by this field. The module is the traced one, or a copy with
        other weights."""
        if self._declared is not None:
            return self._declared
        if self._leaves is None or has_hooks(field):
            return False
        modules = dict(cast(nn.Module, module).named_modules())
        if any(has_hooks(part) for part in modules.values()):
            return False
        if any(getattr(modules.get(name), attribute, None) is not None for name, attribute in self._absent):
            return False
        return all(
            name in modules and _kind(modules[name]) is kind and _acts_alone(modules[name])
            for name, kind in self._leaves.items()
        )


def _kind(module: nn.Module) -> type[nn.Module]:
    return parametrize.type_before_parametrizations(module)


def _is_known_module(module: nn.Module) -> bool:
    return is_activation(module) or _kind(module) in _KNOWN


def _acts_alone(module: Any) -> bool:
    """Whether a known module treats samples alone, with its current settings."""
    kind = _kind(module)
    if kind in _BATCH_NORMS:
        return not module.training and module.track_running_stats
    if kind in _INSTANCE_NORMS:
        return not module.track_running_stats
    if kind is nn.MultiheadAttention:
        return module.batch_first and not (module.training and module.dropout > 0)
    return not (kind in _DROPOUTS and module.training)


class _Tracer(fx.Tracer):
    """Traces into every module except known ones."""

    def is_leaf_module(self, module: nn.Module, name: str) -> bool:
        return _is_known_module(module)


def _known_leaves(module: nn.Module) -> dict[str, type[nn.Module]] | None:
    """The known modules in the graph of a module by name, or None if the graph contains anything else."""
    if _is_known_module(module):
        return {"": _kind(module)}
    leaves = {}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            copied = _with_own_state(module)
            nodes = [node for mode in (True, False) for node in _Tracer().trace(copied.train(mode)).nodes]
    except Exception:  # If tracing fails for any reason, nothing is proved.
        return None
    for node in nodes:
        if node.op == "call_module" and _takes_no_rows(node, module):
            leaves[str(node.target)] = _kind(module.get_submodule(str(node.target)))
        elif not _is_known(node, module):
            return None
    return leaves


def _absent_attributes(module: nn.Module) -> list[tuple[str, str]]:
    """The attributes that are None in modules that are traced through, each with the name of its module. A tensor put
    there later, such as a mask, is not in the graph."""
    return [
        (name, attribute)
        for name, part in module.named_modules()
        if not _is_known_module(part)
        for attribute, value in (*vars(part).items(), *part._buffers.items())
        if value is None
    ]


def _with_own_state(module: nn.Module) -> nn.Module:
    """A copy that shares the weights, so that attributes set by `forward` during tracing do not persist."""
    memo: dict[int, Any] = {id(tensor): tensor for tensor in (*module.parameters(), *module.buffers())}
    return copy.deepcopy(module, memo)


def _is_known(node: fx.Node, module: nn.Module) -> bool:
    """Whether a node of a graph treats samples alone."""
    if node.op == "call_module":
        return False
    if node.op in ("placeholder", "get_attr"):
        return not node.args  # A further argument of the module has its default here.
    arguments = [*node.args, *node.kwargs.values()]
    computed = [isinstance(argument, fx.Node) and argument.op != "get_attr" for argument in arguments]
    if node.target in _CONVOLUTIONS:
        return computed[0] and not any(computed[1:])
    # Tuples and slices could select or join samples.
    if not all(isinstance(argument, fx.Node | int | float | bool | str | None) for argument in arguments):
        return False
    if node.target is operator.getitem:
        return _kind_of_call(node.args[0], module) in _ATTENTION and arguments[1:] == [0]
    weights = [_weight(a, module) for a in arguments if isinstance(a, fx.Node) and a.op == "get_attr"]
    if node.op == "output":
        return computed == [True]
    if node.target in _PRODUCTS:
        return computed[0] and not any(computed[1:]) and weights[:1] != [] and _is_matrix(weights[0])
    known = node.target in (_ELEMENTWISE if node.op == "call_method" else _FUNCTIONS)
    return known and all(_has_no_rows(weight) for weight in weights)


def _takes_no_rows(node: fx.Node, module: nn.Module) -> bool:
    """Whether no argument of a known module is a tensor of the network that may have one row per sample. The mask of
    an attention that all samples share is a matrix."""
    arguments = [*enumerate(node.args), *node.kwargs.items()]
    read = {key: a for key, a in arguments if isinstance(a, fx.Node) and a.op == "get_attr"}
    if (
        _kind_of_call(node, module) in _ATTENTION
        and "attn_mask" in read
        and _is_matrix(_weight(read["attn_mask"], module))
    ):
        del read["attn_mask"]
    return all(_has_no_rows(_weight(a, module)) for a in read.values())


def _kind_of_call(node: object, module: nn.Module) -> type[nn.Module] | None:
    """The kind of module that a node calls, if it calls one."""
    if not isinstance(node, fx.Node) or node.op != "call_module":
        return None
    return _kind(module.get_submodule(str(node.target)))


def _weight(node: fx.Node, module: nn.Module) -> Tensor | None:
    """The tensor of the module that a node reads. None if the module has none by that name: a tensor that `forward`
    closes over is put on the traced copy, and may have one row per sample."""
    owner, _, name = str(node.target).rpartition(".")
    value = getattr(module.get_submodule(owner), name, None)
    return value if isinstance(value, Tensor) else None


def _is_matrix(weight: Tensor | None) -> bool:
    return weight is not None and weight.dim() == 2


def _has_no_rows(weight: Tensor | None) -> bool:
    """Whether a tensor cannot have one row per sample."""
    return weight is not None and (weight.dim() <= 1 or weight.shape[0] == 1)
