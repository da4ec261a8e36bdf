"""`traced`: the graph of a module, by `torch.fx`, with everything in it that a proof has to know."""

import copy
import operator
from collections.abc import Callable
from typing import Any

from torch import fx, nn

from resolvent.fields.module_state import Places, attributes_of
from resolvent.fields.rows import NotProvedError, expect


def traced(
    module: nn.Module, training: bool, is_leaf: Callable[[nn.Module], bool], changing: Places = frozenset()
) -> tuple[fx.Graph, Places]:
    """The graph of a module, and the attributes that its `forward` changes.

    It is traced on a copy, in the given mode. Raises an exception if the graph could lack something: if `forward`
    chooses by the value of a tensor, or reads one of the attributes that are said to be `changing`.

    Arguments:
        module: it shares its parameters with the copy, and nothing else.
        training: the mode.
        is_leaf: whether a module inside is called as a whole.
        changing: attributes that `forward` may change, but not read.
    """
    shared: dict[int, Any] = {id(parameter): parameter for parameter in module.parameters()}
    copied = copy.deepcopy(module, shared)
    tracer = _Tracer(is_leaf)
    for part in copied.modules():
        part.training = training
    for name, attribute in changing:
        vars(copied.get_submodule(name))[attribute] = _Changing(tracer)
    before = _attributes(copied)
    graph = tracer.trace(copied)
    expect(not tracer.refused)
    graph.owning_module = copied  # type: ignore[assignment]
    after = _attributes(copied)
    keys = before.keys() | after.keys()
    return graph, {key for key in keys if before.get(key) != after.get(key)}


def _attributes(module: nn.Module) -> dict[tuple[str, str], Any]:
    return {(name, key): value for name, part in module.named_modules() for key, value in attributes_of(part)}


class _Tracer(fx.Tracer):
    """Notes what it refuses, since `forward` could catch the exception."""

    proxy_buffer_attributes = True  # A choice by the value of a buffer is then refused.

    def __init__(self, is_leaf: Callable[[nn.Module], bool]) -> None:
        super().__init__()
        self._is_leaf, self.refused = is_leaf, False

    def refuse(self) -> Any:
        self.refused = True
        raise NotProvedError

    def is_leaf_module(self, module: nn.Module, name: str) -> bool:
        return self._is_leaf(module)

    def proxy(self, node: fx.Node) -> fx.Proxy:
        return _Proxy(node, self)

    def create_arg(self, a: Any) -> Any:
        try:
            return super().create_arg(a)
        except Exception:
            self.refused = True
            raise

    def to_bool(self, obj: fx.Proxy) -> bool:
        return bool(self.refuse())

    def iter(self, obj: fx.Proxy) -> Any:
        return self.refuse()

    def keys(self, obj: fx.Proxy) -> Any:
        return self.refuse()


class _Proxy(fx.Proxy):
    """A value in the graph. It cannot become a number, and changes in place are recorded as such."""

    tracer: _Tracer
    __array_ufunc__ = None

    def __getattr__(self, name: str) -> fx.proxy.Attribute:
        return _Attribute(self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in ("node", "tracer", "root", "attr", "_node"):
            self.tracer.refuse()
        super().__setattr__(name, value)

    def _refused(self, *_: Any) -> Any:
        return self.tracer.refuse()

    __len__ = __int__ = __float__ = __index__ = __complex__ = __contains__ = __array__ = _refused
    __setitem__ = __delitem__ = _refused


class _Attribute(_Proxy, fx.proxy.Attribute):
    """What a method is called on, or an attribute of a value."""


def _recorded_in_place(function: Callable[..., Any]) -> Callable[..., fx.Proxy]:
    def change(self: fx.Proxy, other: Any) -> fx.Proxy:
        return self.tracer.create_proxy("call_function", function, (self, other), {})

    return change


for _function in (
    *(operator.iadd, operator.isub, operator.imul, operator.itruediv, operator.ifloordiv, operator.imod, operator.ipow),
    *(operator.imatmul, operator.iand, operator.ior, operator.ixor, operator.ilshift, operator.irshift),
):
    setattr(_Proxy, f"__{_function.__name__}__", _recorded_in_place(_function))


class _Changing:
    """Stands for an attribute that `forward` changes, such as a count of its calls: it may be changed, but not read."""

    __slots__ = ("_tracer",)

    def __init__(self, tracer: _Tracer) -> None:
        self._tracer = tracer

    def _changed(self, *_: Any) -> "_Changing":
        return self

    def _read(self, *_: Any) -> Any:
        return self._tracer.refuse()

    __add__ = __radd__ = __iadd__ = __sub__ = __isub__ = append = _changed
    __bool__ = __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __int__ = __index__ = __float__ = _read
    __len__ = __iter__ = __getitem__ = __contains__ = __mod__ = __mul__ = __rmul__ = __call__ = __getattr__ = _read
    __hash__ = None  # type: ignore[assignment]
