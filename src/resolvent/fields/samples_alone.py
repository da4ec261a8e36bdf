"""`SamplesAlone`: proves that a module treats each sample alone, from its graph and the modules in it.

With a proof, the solvers may call a field with fewer or repeated rows, which makes small systems several times faster.
If the graph contains anything unknown, nothing is proved.
"""

import copy
import warnings
from typing import Any, cast

import torch
from torch import Tensor, fx, nn
from torch.nn.utils import parametrize

from resolvent.fields.activations import is_activation
from resolvent.fields.mlp import has_hooks
from resolvent.fields.row_graph import prove
from resolvent.fields.rows import NotProvedError, Rows, expect

# Modules that act on each sample alone; the last four kinds only under a condition. Others are traced through.
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_LAYERS = (
    *(nn.Linear, nn.Identity, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, nn.LocalResponseNorm),
    *_CONVOLUTIONS,
    *(nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d, nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d),
    *(nn.CELU, nn.Hardshrink, nn.LogSigmoid, nn.Mish, nn.PReLU, nn.Threshold),
)
_ATTENTION = (nn.MultiheadAttention,)
_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
_INSTANCE_NORMS = (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)
_DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout)
_KNOWN = frozenset((*_LAYERS, *_ATTENTION, *_BATCH_NORMS, *_INSTANCE_NORMS, *_DROPOUTS))


class SamplesAlone:
    """A proof that a module y -> F(y) treats each sample alone and all alike.

    The graph of the module is traced once, on construction. Everything in it must be known: layers, activations, and
    the functions in `resolvent.fields.row_rules`. `holds_for` checks each time whether batch norm and dropout are off,
    whether modules or hooks were added, and whether attributes that were None, such as a mask, still are.

    Arguments:
        module: F. For a module that cannot be traced, or a function, nothing is proved.
        declared: what the user says, True or False, which is then believed; None asks for the proof.
    """

    def __init__(self, module: object, declared: bool | None = None) -> None:
        if declared is not None and not isinstance(declared, bool):
            raise ValueError(f"rowwise must be True, False or None, got {declared!r}.")
        self._declared = declared
        self._leaves: list[str] | None = None
        self._kinds: dict[str, type[nn.Module]] = {}
        self._settings: list[tuple[str, str, Any]] = []
        if declared is None and isinstance(module, nn.Module) and not isinstance(module, torch.jit.ScriptModule):
            self._leaves = _known_leaves(module)
            self._kinds, self._settings = _kinds(module), _settings(module)

    def holds_for(self, module: object, field: nn.Module) -> bool:
        """Whether it holds now for this module, called by this field. The module is the traced one, or a copy with
        other weights."""
        if self._declared is not None:
            return self._declared
        if self._leaves is None or has_hooks(field):
            return False
        modules = dict(cast(nn.Module, module).named_modules())
        if any(map(has_hooks, modules.values())) or _kinds(cast(nn.Module, module)) != self._kinds:
            return False
        if not all(_is_still(modules[name], attribute, value) for name, attribute, value in self._settings):
            return False
        return all(_acts_alone(modules[name]) for name in self._leaves)


def _kind(module: nn.Module) -> type[nn.Module]:
    return parametrize.type_before_parametrizations(module)


def _kinds(module: nn.Module) -> dict[str, type[nn.Module]]:
    """The kinds of all modules by name. Parametrizations are computed before the module is called."""
    found = module.named_modules()
    return {name: _kind(part) for name, part in found if "parametrizations" not in name.split(".")}


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
    return not (kind in _DROPOUTS and module.training and module.p > 0)


class _Tracer(fx.Tracer):
    """Traces into every module except known ones."""

    def is_leaf_module(self, module: nn.Module, name: str) -> bool:
        return _is_known_module(module)


def _known_leaves(module: nn.Module) -> list[str] | None:
    """The names of the known modules in the graph of a module; None if something else in it is not known to treat
    samples alone."""
    if _is_known_module(module):
        return [""]
    leaves: dict[str, None] = {}
    proof = _Proof(module, leaves)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            copied = _with_own_state(module)
            for mode in (True, False):
                prove(_Tracer().trace(copied.train(mode)), proof.weight, proof.call)
    except Exception:  # If tracing fails for any reason, nothing is proved.
        return None
    return list(leaves)


class _Proof:
    """What the nodes of a graph read and call.

    Arguments:
        module: the root of the graph.
        leaves: collects the names of the modules that are called.
    """

    def __init__(self, module: nn.Module, leaves: dict[str, None]) -> None:
        self._module, self._leaves = module, leaves

    def weight(self, node: fx.Node) -> Tensor:
        """The tensor of the module that a node reads. It has none by that name if `forward` closes over a tensor, which
        is put on the traced copy, and may have one row per sample."""
        owner, _, name = str(node.target).rpartition(".")
        value = getattr(self._module.get_submodule(owner), name, None)
        if not isinstance(value, Tensor):
            raise NotProvedError
        return value

    def call(self, node: fx.Node, arguments: list[Any], named: dict[str, Any]) -> Any:
        """The value of a known module. No other argument is a tensor that may have one row per sample; the mask of an
        attention that all samples share is a matrix."""
        part = self._module.get_submodule(str(node.target))
        attends, rows = _kind(part) is nn.MultiheadAttention, arguments[0] if arguments else None
        expect(isinstance(rows, Rows) and rows.ends_inside(_dimensions_of_sample(part)))
        others = [*enumerate(arguments[1:], 1), *named.items()]
        matrix = ("attn_mask",) if attends else ()
        expect(all(a == rows or _is_shared(a, 2 if key in matrix else 1) for key, a in others))
        self._leaves[str(node.target)] = None
        return [rows] if attends else rows


def _is_shared(value: object, most_dimensions: int) -> bool:
    """Whether a value is one for all samples."""
    if isinstance(value, Tensor):
        return value.dim() <= most_dimensions
    return value is None or isinstance(value, int | float | str)


def _dimensions_of_sample(module: Any) -> int:
    """How many last dimensions of its input a module needs besides that of the batch, if it cannot do with fewer: a
    convolution takes the first dimension for channels otherwise."""
    kind = _kind(module)
    if kind is nn.Linear:
        return 1
    if kind in (nn.LayerNorm, nn.RMSNorm):
        return len(module.normalized_shape)
    return module.weight.dim() - 1 if kind in _CONVOLUTIONS else 0


def _settings(module: nn.Module) -> list[tuple[str, str, Any]]:
    """What must stay as it is in modules that are traced through, each with the name of its module: attributes that are
    None, since a tensor put there later, such as a mask, is not in the graph, and the settings of modules of torch,
    such as the dimension of a softmax."""
    found = []
    for name, part in module.named_modules():
        if _is_known_module(part) or "parametrizations" in name.split("."):
            continue
        of_torch = type(part).__module__.startswith("torch.")
        for attribute, value in (*vars(part).items(), *part._buffers.items()):
            plain = isinstance(value, int | tuple) and attribute != "training"
            if value is None or (of_torch and plain):
                found.append((name, attribute, value))
    return found


def _is_still(module: nn.Module, attribute: str, value: Any) -> bool:
    current = getattr(module, attribute, None)
    return current is None if value is None else type(current) is type(value) and bool(current == value)


def _with_own_state(module: nn.Module) -> nn.Module:
    """A copy that shares the weights, so that attributes set by `forward` during tracing do not persist."""
    memo: dict[int, Any] = {id(tensor): tensor for tensor in (*module.parameters(), *module.buffers())}
    return copy.deepcopy(module, memo)
