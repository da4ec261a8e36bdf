"""`SamplesAlone`: proves that a module treats each sample alone, from its graph and the modules in it.

With a proof, the solvers may call a field with fewer or repeated rows, which makes small systems several times faster.
If the graph contains anything unknown, nothing is proved.
"""

import warnings
from typing import Any, cast

import torch
from torch import Tensor, fx, nn

from resolvent.fields.activations import Rescaled, is_activation
from resolvent.fields.mlp import does_more
from resolvent.fields.module_state import Places, kind_of, parametrized, state_of
from resolvent.fields.row_graph import prove
from resolvent.fields.row_tracing import traced
from resolvent.fields.rows import HigherRankNeededError, NotProvedError, OfInput, Rows, expect

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
_WITH_CONDITIONS = frozenset((*_ATTENTION, *_BATCH_NORMS, *_INSTANCE_NORMS, *_DROPOUTS))


class SamplesAlone:
    """A proof that a module y -> F(y) treats each sample alone and all alike.

    The graph of the module is traced once, on construction. Everything in it must be known: layers, activations, and
    the functions in `resolvent.fields.row_rules`. `holds_for` checks each time whether batch norm and dropout are off,
    and whether modules, hooks, attributes and the shapes of weights are those that were traced.

    Arguments:
        module: F. For a module that cannot be traced, or a function, nothing is proved.
        declared: what the user says, True or False, which is then believed; None asks for the proof.
        of_time: whether the module is called with (t, y). The proof is then for modules that ignore t.

    Attributes:
        least_rank: how many dimensions a state must have for the proof, that of the batch included. Layers for images
            take an image without a batch for one, and treat its channels as samples.
    """

    def __init__(self, module: object, declared: bool | None = None, *, of_time: bool = False) -> None:
        if declared is not None and not isinstance(declared, bool):
            raise ValueError(f"rowwise must be True, False or None, got {declared!r}.")
        self._declared = declared
        self._state: list[Any] | None = None
        self._ignored: Places = frozenset()
        self._conditions: list[str] = []
        self._of_time = of_time
        self.least_rank = 2
        if declared is None and isinstance(module, nn.Module) and not isinstance(module, torch.jit.ScriptModule):
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    self._prove(module)
            except Exception:  # If tracing fails for any reason, nothing is proved.
                self._state = None

    @property
    def proved(self) -> bool:
        """Whether there is a proof, rather than a word of the user."""
        return self._state is not None

    def holds_for(self, field: nn.Module, module: object, kind: type[nn.Module] | None = None) -> bool:
        """Whether it holds now for this field, if it does what its base class `kind` does, which calls the module: the
        traced one, or a copy with other weights."""
        if self._declared is not None:
            return self._declared
        if self._state is None or does_more(field) or (kind and type(field).forward is not kind.forward):
            return False
        root = cast(nn.Module, module)
        if state_of(root, _is_leaf, self._ignored) != self._state:
            return False
        return all(_acts_alone(root.get_submodule(name)) for name in self._conditions)

    def refuse(self, y: Tensor) -> None:
        """Raises for a state of fewer dimensions than `least_rank`, unless nothing is proved of any state."""
        if self.proved:
            raise ValueError(
                f"the module treats samples alone if a state has at least {self.least_rank} dimensions, (batch, "
                f"*shape), but got one of shape {tuple(y.shape)}: add the dimension of the batch, or state "
                "rowwise=False, or rowwise=True if it treats the rows of such a state alone."
            )

    def _prove(self, module: nn.Module) -> None:
        leaves: dict[str, None] = {}
        proof = _Proof(module, leaves)
        if _is_leaf(module):
            expect(not self._of_time)
            changing: Places = frozenset()
            rank = proof.take("", module)
        else:
            graphs, changing = _graphs(module)
            rank = _least_rank(graphs, proof, int(self._of_time))
        self.least_rank = rank
        self._conditions = [name for name in leaves if kind_of(module.get_submodule(name)) in _WITH_CONDITIONS]
        self._ignored = changing | parametrized(module)
        self._state = state_of(module, _is_leaf, self._ignored)


def is_proved(field: object) -> bool:
    """Whether a field, or one that it is made of, has a proof."""
    parts = field.modules() if isinstance(field, nn.Module) else ()
    found = (getattr(part, "_samples_alone", None) for part in parts)
    return any(alone.proved for alone in found if isinstance(alone, SamplesAlone))


def _is_leaf(module: nn.Module) -> bool:
    """Whether a module is known. What divides an activation by a number is traced: it may hold any module."""
    return kind_of(module) in _KNOWN or (is_activation(module) and not isinstance(module, Rescaled))


def _acts_alone(module: Any) -> bool:
    """Whether a known module treats samples alone, with its current settings."""
    kind = kind_of(module)
    if kind in _BATCH_NORMS:
        return not module.training and module.running_mean is not None and module.running_var is not None
    if kind in _INSTANCE_NORMS:
        return not module.track_running_stats
    if kind is nn.MultiheadAttention:
        return module.batch_first and not (module.training and module.dropout > 0)
    return not (kind in _DROPOUTS and module.training and module.p > 0)


def _graphs(module: nn.Module) -> tuple[list[fx.Graph], Places]:
    """The graphs in both modes, and the attributes that a call changes."""
    found = [traced(module, mode, _is_leaf) for mode in (True, False)]
    changing = frozenset().union(*(changed for _, changed in found))
    if changing:
        # The next call meets other values. The graph may not depend on them.
        again = [traced(module, mode, _is_leaf, changing) for mode in (True, False)]
        expect(all(changed <= changing for _, changed in again))
        found += again
    return [graph for graph, _ in found], changing


def _least_rank(graphs: list[fx.Graph], proof: "_Proof", ignored: int) -> int:
    """How many dimensions the input must have at least for all graphs to treat samples alone. Raises if none do."""
    rank = 1
    while True:
        try:
            for graph in graphs:
                prove(graph, proof.weight, proof.call, rank, ignored)
            return rank
        except HigherRankNeededError as error:
            rank = error.rank
        except NotProvedError:
            # Functions of each entry take (batch,), but most modules name the dimension of features.
            if rank >= 2:
                raise
            rank = 2


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
        attends, rows = kind_of(part) is nn.MultiheadAttention, arguments[0] if arguments else None
        expect(isinstance(rows, Rows) and rows.ends_inside(self.take(str(node.target), part) - 1))
        others = [*enumerate(arguments[1:], 1), *named.items()]
        matrix = ("attn_mask",) if attends else ()
        expect(all(a == rows or _is_shared(a, 2 if key in matrix else 1) for key, a in others))
        return [rows, OfInput()] if attends else rows

    def take(self, name: str, part: Any) -> int:
        """Notes that a known module is called; how many dimensions its input must have, that of the batch included."""
        self._leaves[name] = None
        if kind_of(part) is nn.Linear:
            # A bias with more dimensions could have one row per sample.
            weight, bias = part._parameters.get("weight"), part._parameters.get("bias")
            expect((weight is None or weight.dim() == 2) and (bias is None or bias.dim() <= 1))
        return _dimensions_of_sample(part) + 1


def _is_shared(value: object, most_dimensions: int) -> bool:
    """Whether a value is one for all samples."""
    if isinstance(value, Tensor):
        return value.dim() <= most_dimensions
    return value is None or isinstance(value, int | float | str)


def _dimensions_of_sample(module: Any) -> int:
    """How many last dimensions of its input a module needs besides that of the batch, if it cannot do with fewer: a
    convolution takes the first dimension for channels otherwise, and attention a matrix for the tokens of one sample.
    """
    kind = kind_of(module)
    if kind in (nn.LayerNorm, nn.RMSNorm):
        return len(module.normalized_shape)
    if kind in _CONVOLUTIONS:
        return len(module.kernel_size) + 1
    if kind in _INSTANCE_NORMS and module.affine:
        return _INSTANCE_NORMS.index(kind) + 2
    return 2 if kind is nn.MultiheadAttention else int(kind is nn.Linear)
