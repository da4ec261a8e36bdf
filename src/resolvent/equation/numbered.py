"""Modules with a number: an operation of a compiled graph takes tensors alone, and finds its module by the number."""

import itertools
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor, nn

_numbers = itertools.count()
_modules: "WeakValueDictionary[int, Numbered]" = WeakValueDictionary()


class Numbered(nn.Module):
    """A module with a number of its own; a copy has another one."""

    _number: Tensor

    def __init__(self) -> None:
        super().__init__()
        self._take_number()

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._take_number()

    def _take_number(self) -> None:
        number = next(_numbers)
        _modules[number] = self
        # As a tensor: the compiler would make a graph of its own for each number.
        self._number = torch.tensor(number)


def module_of(number: Tensor) -> Any:
    """The module with this number."""
    return _modules[int(number)]
