"""The weights of a field stay the same throughout a pass."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.utils import parametrize

from resolvent.equation import transforms

T = TypeVar("T")


@contextmanager
def frozen_weights(field: Any) -> Iterator[None]:
    """Computes parametrized weights (a spectral normalisation, say) once for all evaluations inside.

    They are computed on entry, with the graph that the caller has: the first evaluation may well be one inside of a
    solver, without a graph, and would leave weights behind that no gradient flows through. In inference mode they are
    computed outside of it: solvers and estimators differentiate the field even there.
    """
    with parametrize.cached():
        with outside_inference():
            for module in field.modules() if isinstance(field, nn.Module) else ():
                if parametrize.is_parametrized(module):
                    for name in cast(nn.ModuleDict, module.parametrizations):
                        getattr(module, name)
        yield


@contextmanager
def outside_inference(*inputs: Any) -> Iterator[tuple[Any, ...]]:
    """Leaves inference mode for a while, with copies of the inputs that were made in it.

    Solvers need derivatives of the field there, too, and parametrized weights must not be computed where autograd may
    not touch them.
    """
    if not torch.is_inference_mode_enabled():
        yield inputs
        return
    with torch.inference_mode(False), torch.no_grad():
        yield tuple(map(transforms.outside_inference, inputs))


class _Scope(nn.Module):
    def __init__(self, field: Any) -> None:
        super().__init__()
        if isinstance(field, nn.Module):
            self.field = field

    def forward(self, action: Callable[[], T]) -> T:
        return action()


def with_weights(field: Any, weights: Mapping[str, Tensor], action: Callable[[], T]) -> T:
    """What `action` returns when the parameters and buffers of the field are replaced by `weights` while it runs."""
    result: T = functional_call(_Scope(field), {f"field.{name}": w for name, w in weights.items()}, (action,))
    return result
