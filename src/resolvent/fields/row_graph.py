"""The walk through the graph of a module that proves that it treats samples alone."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, fx

from resolvent.fields.row_rules import CHANGES_ITS_ARGUMENT, NAMES, RULES
from resolvent.fields.rows import NotProvedError, Rows, expect, is_constant


def prove(
    graph: fx.Graph, weight: Callable[[fx.Node], Tensor], call: Callable[[fx.Node, list[Any], dict[str, Any]], Any]
) -> None:
    """Raises an exception, such as `NotProvedError`, unless the output of a graph is known to treat samples alone.

    Arguments:
        graph: of a module, by `torch.fx`. Each of its inputs has one row per sample.
        weight: the tensor that a node reads from the module.
        call: the value of a node that calls a module inside, from its arguments.
    """
    known: dict[fx.Node, Any] = {}

    def value(argument: Any) -> Any:
        if isinstance(argument, fx.Node):
            return known[argument]
        if isinstance(argument, list | tuple):
            return (
                type(argument)(map(value, argument)) if type(argument) in (list, tuple) else list(map(value, argument))
            )
        if isinstance(argument, slice):
            return slice(value(argument.start), value(argument.stop), value(argument.step))
        return argument

    for node in graph.nodes:
        arguments, named = [value(a) for a in node.args], {key: value(a) for key, a in node.kwargs.items()}
        if node.op == "placeholder":
            expect(not node.args)  # A further argument of the module has its default here.
            known[node] = Rows()
        elif node.op == "get_attr":
            known[node] = weight(node)
        elif node.op == "call_module":
            known[node] = call(node, arguments, named)
        elif node.op == "output":
            expect(isinstance(arguments[0], Rows))
        else:
            known[node] = _called(node.target, arguments, named)


def _called(target: Any, arguments: list[Any], named: Mapping[str, Any]) -> Any:
    """The value of a function, or of a method by its name."""
    method = isinstance(target, str)
    name = target if method else NAMES.get(target, "")
    in_place = name in CHANGES_ITS_ARGUMENT or (method and name.endswith("_"))
    rule = RULES.get(name.removesuffix("_") if method else name)
    expect(rule is not None)
    assert rule is not None
    if is_constant([*arguments, *named.values()]):
        expect(not in_place)  # It would change a weight.
        return _constant(target, arguments, named)
    expect(not (in_place and is_constant(arguments[0])))
    try:
        return rule(*arguments, **named)
    except TypeError as error:  # The rule does not know one of the arguments.
        raise NotProvedError from error


@torch.no_grad()
def _constant(target: Any, arguments: list[Any], named: Mapping[str, Any]) -> Any:
    """A function of weights and numbers alone."""
    if isinstance(target, str):
        return getattr(arguments[0], target)(*arguments[1:], **named)
    return target(*arguments, **named)
