"""`make_implicit`: makes the blocks of an existing residual network implicit, with the same weights."""

import copy
from collections.abc import Callable, Iterator, Set
from itertools import chain
from typing import Any

from torch import Tensor, nn

from resolvent.blocks.theta_block import ThetaBlock
from resolvent.equation.in_place import change_error, changes_of
from resolvent.fields import Autonomous, Field, Time
from resolvent.fields.samples_alone import SamplesAlone
from resolvent.schemes.interval import Number

_INNER = "block.field.module."
_KINDS = ("block", "branch")


def make_implicit(
    model: nn.Module,
    theta: Number = 0.5,
    *,
    predicate: Callable[[str, nn.Module], bool],
    kind: str = "block",
    rowwise: bool | None = None,
    num_steps: int = 1,
    horizon: Number = 1.0,
    **options: Any,
) -> nn.Module:
    """A copy of a network whose residual blocks are implicit, with the same weights.

    A residual block x + f(x) becomes the layer y = x + f((1 - theta) x + theta y). The copy shares all parameters and
    buffers with the model and uses the same state dicts. The model itself is not changed.

    Arguments:
        model: the network.
        theta: see `ThetaBlock`; at 0 the copy computes what the model does.
        predicate: takes the name of a module in the model and the module, and returns whether to make it implicit. It
            is not called for submodules of a chosen module.
        kind: what the chosen modules compute: "block" for x + f(x), where f is found by subtracting x, or "branch" for
            f(x) alone, to which the model adds x itself.
        rowwise: whether f treats each sample alone and all alike, see `rs.Autonomous`; None proves it where possible.
        num_steps: the number of steps per block.
        horizon: h times their number; 1 with one step is the block itself.
        options: of `ThetaBlock`, such as solver, stopping, adjoint or memory.

    Returns:
        The copy. Its implicit modules raise if f changes the shape, takes further arguments, changes its argument in
        place (x += f(x)) or is not a function: in training mode, batch normalisation and dropout give another result
        each time they are called.
    """
    if kind not in _KINDS:
        raise ValueError(f"kind must be one of {_KINDS}, got {kind!r}.")
    shared = {id(tensor): tensor for tensor in chain(model.parameters(), model.buffers())}
    implicit = copy.deepcopy(model, shared)
    chosen = list(_choose(implicit, predicate))
    if not chosen:
        names = [name for name, _ in implicit.named_modules() if name][:8]
        raise ValueError(f"the predicate chose none of the modules; the first of their names are {names}.")
    for name in chosen:
        _refuse_layers_of_encoders(implicit, name)

    def convert(name: str, module: nn.Module) -> "ImplicitResidual":
        field = ResidualBranch(module, rowwise) if kind == "block" else Autonomous(module, rowwise=rowwise)
        return ImplicitResidual(ThetaBlock(field, theta, num_steps, horizon, **options), kind == "branch", name)

    if "" in chosen:
        return convert("", implicit)
    for name in chosen:
        implicit.set_submodule(name, convert(name, implicit.get_submodule(name)))
    return implicit


def _choose(model: nn.Module, predicate: Callable[[str, nn.Module], bool]) -> Iterator[str]:
    chosen: list[str] = []
    for name, module in model.named_modules():
        if any(name.startswith(f"{outer}.") or outer == "" for outer in chosen):
            continue
        if predicate(name, module):
            chosen.append(name)
            yield name


def _refuse_layers_of_encoders(model: nn.Module, name: str) -> None:
    """`nn.TransformerEncoder` looks into its layers before it calls them, and calls them with masks."""
    *path, place, _ = ("", *name.split("."))
    owner = model.get_submodule(".".join(path[1:]))
    if place == "layers" and isinstance(owner, nn.TransformerEncoder | nn.TransformerDecoder):
        raise ValueError(
            f"{name!r} is a layer of nn.{type(owner).__name__}, which reads attributes of its layers and passes masks "
            "to them, and an implicit layer is a function of the state alone: take nn.Sequential(*encoder.layers) in "
            "its place, and put a layer that needs a mask in a module that holds the mask."
        )


class ResidualBranch(Field):
    """The branch f of a module that computes x + f(x), as a field."""

    autonomous = True

    def __init__(self, module: nn.Module, rowwise: bool | None = None) -> None:
        super().__init__()
        self.module = module
        self._samples_alone = SamplesAlone(module, rowwise)

    @property
    def rowwise(self) -> bool:  # type: ignore[override]
        return self._samples_alone.holds_for(self, self.module, ResidualBranch)

    def forward(self, t: Time, y: Tensor) -> Tensor:
        if y.dim() < self._samples_alone.least_rank:
            self._samples_alone.refuse(y)
        before = changes_of(y)
        image: Tensor = self.module(y)
        if changes_of(y) != before:  # f(y) is found by subtracting y.
            raise change_error(type(self.module).__name__)
        if image.shape != y.shape:
            raise ValueError(
                f"{type(self.module).__name__} maps {tuple(y.shape)} to {tuple(image.shape)}, so it is no residual "
                "block and has no implicit counterpart: let the predicate skip it."
            )
        return image - y


class ImplicitResidual(nn.Module):
    """Replaces a residual block, or its branch, in a network; keeps the names in its state dict.

    Arguments:
        block: the implicit layers.
        branch: whether the network adds the input itself.
        name: of the module in the network, for messages.
    """

    def __init__(self, block: ThetaBlock, branch: bool, name: str = "") -> None:
        super().__init__()
        self.block = block
        block._place = ("module.", name)
        self.branch = branch
        self._name = name
        self.register_state_dict_post_hook(_shorten)
        self.register_load_state_dict_pre_hook(_lengthen)

    def forward(self, x: Tensor, *arguments: Any, **named: Any) -> Tensor:
        if arguments or any(value is not None for value in named.values()):
            raise ValueError(
                f"{self._name or 'the network'} is called with arguments beyond the state, such as masks, and an "
                "implicit layer is a function of the state alone: make a module implicit that holds them."
            )
        y: Tensor = self.block(x)
        return y - x if self.branch else y


def _shorten(module: nn.Module, state: dict[str, Any], prefix: str, _: Any) -> None:
    _rename(state, prefix + _INNER, prefix)


def _lengthen(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    own = {name for name, _ in module.named_parameters() if not name.startswith(_INNER)}
    _rename(state, prefix, prefix + _INNER, keep={prefix + name for name in own})


def _rename(state: dict[str, Any], old: str, new: str, keep: Set[str] = frozenset()) -> None:
    """Replaces a prefix of the keys, and keeps their order."""
    renamed = {
        new + key.removeprefix(old) if key.startswith(old) and key not in keep else key: value
        for key, value in state.items()
    }
    state.clear()
    state.update(renamed)
