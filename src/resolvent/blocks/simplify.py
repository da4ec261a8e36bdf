"""Fewer operations in a traced graph: exporters take milliseconds for each."""

from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

_aten = torch.ops.aten
_RESHAPES = (_aten.view.default, _aten._unsafe_view.default, _aten.reshape.default)
_MAY_CHANGE_NOTHING = (*_RESHAPES, _aten.expand.default, _aten._to_copy.default)
_CHANGE_NOTHING = (_aten.alias.default, _aten.detach.default)
_CONSTANTS = (_aten.scalar_tensor.default, _aten.arange.default, _aten.full.default)


def simplify(graph: GraphModule) -> None:
    """Removes operations that change nothing and constants that are there already; in place.

    Nothing else: the graph has operations in place, which other simplifications would have to know of.
    """
    constants: dict[str, Node] = {}
    for node in list(graph.graph.nodes):
        if node.op == "get_attr":
            _replace(node, constants.setdefault(f"attribute {node.target}", node))
        elif node.op == "call_function" and node.target in _CONSTANTS:
            _replace(node, constants.setdefault(f"{node.target} {node.args} {node.kwargs}", node))
        elif node.op == "call_function" and _changes_nothing(node):
            _replace(node, node.args[0])
        elif node.target in _RESHAPES:
            # Whether a view is possible depends on the layout of a tensor, which the next tracer may choose otherwise.
            node.target = _aten.reshape.default
    graph.graph.eliminate_dead_code()
    graph.recompile()


def _changes_nothing(node: Node) -> bool:
    if node.target in _CHANGE_NOTHING:
        return True
    if node.target not in _MAY_CHANGE_NOTHING:
        return False
    before, after = (_value(each) for each in (node.args[0], node))
    known = isinstance(before, Tensor) and isinstance(after, Tensor)
    return known and before.dtype == after.dtype and before.device == after.device and _shape(before) == _shape(after)


def _value(node: Any) -> Any:
    """An example of the value of a node, which the tracer has left there."""
    return node.meta.get("val") if isinstance(node, Node) else None


def _shape(x: Tensor) -> tuple[str, ...]:
    """As text: a comparison of a size that is a symbol would make a condition of it."""
    return tuple(map(str, x.shape))


def _replace(node: Node, by: Any) -> None:
    if by is not node:
        node.replace_all_uses_with(by)
