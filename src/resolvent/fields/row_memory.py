"""What in the graph of a module changes tensors in place, and which tensors share their memory."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import fx, nn

from resolvent.fields.row_rules import ENTRYWISE, NAMES
from resolvent.fields.rows import expect

# Whether these copy can depend on the number of rows: one row is contiguous where several are not.
_MAY_COPY = frozenset(("contiguous", "reshape", "reshape_as", "flatten"))
_VIEWS = """
    chunk detach double float getattr getitem half permute split swapaxes swapdims tensor_split to transpose type_as
    unbind unflatten unsqueeze view view_as
"""
_SHARE = _MAY_COPY | frozenset(_VIEWS.split())
_OPERATORS = frozenset(("iadd", "imul", "isub", "itruediv"))
_RETURN_THEIR_ARGUMENT = (nn.Identity, nn.modules.dropout._DropoutNd)


def changes_its_argument(name: str, method: bool, arguments: Sequence[Any], named: Mapping[str, Any]) -> bool:
    """Whether a function, or a method, changes its first argument in place."""
    if name in _OPERATORS or (method and name.endswith("_")):
        return True
    # Some activations take `inplace` by position.
    return named.get("inplace") is True or (name in ENTRYWISE and any(argument is True for argument in arguments[1:]))


def refuse_uncertain_changes(graph: fx.Graph) -> None:
    """Raises `NotProvedError` if something is changed in place that may share its memory, or may not, depending on the
    number of rows."""
    origins: dict[fx.Node, fx.Node] = {}
    uncertain, changed = set(), set()
    for node in graph.nodes:
        first = next(iter(node.all_input_nodes), None)
        name, changes, shares = _effects(node)
        origins[node] = origins[first] if first is not None and (changes or shares) else node
        if changes:
            changed.add(origins[node])
        if name in _MAY_COPY:
            uncertain.add(origins[node])
    expect(not (changed & uncertain))


def _effects(node: fx.Node) -> tuple[str, bool, bool]:
    """The name of a function, whether it changes its first argument, and whether it may share the memory of it."""
    if node.op == "call_module":
        assert node.graph.owning_module is not None
        part = node.graph.owning_module.get_submodule(str(node.target))
        return "", getattr(part, "inplace", False), isinstance(part, _RETURN_THEIR_ARGUMENT)
    if node.op not in ("call_function", "call_method"):
        return "", False, False
    method = node.op == "call_method"
    name = str(node.target) if method else NAMES.get(node.target, "")
    changes = changes_its_argument(name, method, node.args, node.kwargs)
    return name, changes, name in _SHARE
