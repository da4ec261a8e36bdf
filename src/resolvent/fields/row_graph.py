"""The walk through the graph of a module that proves that it treats samples alone."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, fx

from resolvent.fields.row_memory import changes_its_argument, refuse_uncertain_changes
from resolvent.fields.row_rules import NAMES, RULES
from resolvent.fields.rows import BatchSize, NotProvedError, Rows, Shape, expect, is_constant

_TAKE_SIZES = ("reshape", "view", "getitem")


def prove(
    graph: fx.Graph,
    weight: Callable[[fx.Node], Tensor],
    call: Callable[[fx.Node, list[Any], dict[str, Any]], Any],
    floor: int = 2,
    ignored: int = 0,
) -> None:
    """Raises an exception, such as `NotProvedError`, unless the output of a graph is known to treat samples alone.

    Arguments:
        graph: of a module, by `torch.fx`. Each of its inputs has one row per sample.
        weight: the tensor that a node reads from the module.
        call: the value of a node that calls a module inside, from its arguments.
        floor: the least number of dimensions of the inputs. A `HigherRankNeededError` tells that more would help.
        ignored: how many inputs the graph must not use, the first ones.
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

    refuse_uncertain_changes(graph)
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    expect(not any(node.users for node in inputs[:ignored]))
    for node in graph.nodes:
        arguments, named = [value(a) for a in node.args], {key: value(a) for key, a in node.kwargs.items()}
        if node.op == "placeholder":
            # A further argument of the module has its default here.
            expect(not node.args and not str(node.target).startswith("*"))
            known[node] = Rows(floor=floor)
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
    rule = RULES.get(name.removesuffix("_") if method else name)
    expect(rule is not None)
    assert rule is not None
    everything = [*arguments, *named.values()]
    in_place = changes_its_argument(name, method, arguments, named)
    if is_constant(everything):
        expect(not in_place)  # It would change a weight.
        return _constant(target, arguments, named)
    expect(not (in_place and is_constant(arguments[0])) and named.get("out") is None)
    expect(name in _TAKE_SIZES or not any(map(_holds_size, everything)))
    try:
        result = rule(*arguments, **{"dim" if key == "axis" else key: value for key, value in named.items()})
    except TypeError as error:  # The rule does not know one of the arguments.
        raise NotProvedError from error
    expect(not in_place or result == arguments[0])  # Of another shape, the argument would not be what it is known as.
    return result


def _holds_size(value: Any) -> bool:
    """Whether the number of samples is in a value."""
    if isinstance(value, list | tuple):
        return any(map(_holds_size, value))
    if isinstance(value, slice):
        return _holds_size((value.start, value.stop, value.step))
    return isinstance(value, BatchSize | Shape)


@torch.no_grad()
def _constant(target: Any, arguments: list[Any], named: Mapping[str, Any]) -> Any:
    """A function of weights and numbers alone."""
    if isinstance(target, str):
        return getattr(arguments[0], target)(*arguments[1:], **named)
    return target(*arguments, **named)
