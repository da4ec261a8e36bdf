"""`WarmStart`: the last equilibria of the samples of a data set, as first guesses."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from resolvent.equation.norms import flat, per_sample
from resolvent.equation.torch_func import transforming


class WarmStart:
    """A table with the last equilibrium of each sample, by its number in the data set.

    It is made at the first call, on the device of the states, and begins anew if their shape, dtype or device changes.
    It belongs to no state dict of a module, and is neither copied nor pickled with one. To resume a training exactly,
    save `layer.warm.state_dict()` beside the weights.

    Arguments:
        count: the number of samples in the data set.
    """

    def __init__(self, count: int) -> None:
        if not isinstance(count, int) or isinstance(count, bool) or count < 1:
            raise ValueError(f"warm is the number of samples in the data set, 1 or more, or None; got {count!r}.")
        self.count = count
        self._table: Tensor | None = None
        self._known: Tensor | None = None

    def __deepcopy__(self, memo: Any) -> "WarmStart":
        return WarmStart(self.count)

    def __reduce__(self) -> tuple[Any, ...]:
        return WarmStart, (self.count,)

    def state_dict(self) -> dict[str, Tensor]:
        """The table, and which samples are in it; empty before the first call. For `load_state_dict`."""
        if self._table is None or self._known is None:
            return {}
        return {"table": self._table, "known": self._known}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restores what `state_dict` returned. States on another device are not used: then it begins anew."""
        if not state:
            self._table = self._known = None
            return
        table, known = state["table"], state["known"]
        if table.dim() != 2 or len(table) != self.count or known.shape != (self.count,):
            raise ValueError(
                f"the state is that of another data set: a table of {tuple(table.shape)} for {self.count} samples."
            )
        self._table, self._known = table.detach().clone(), known.detach().clone()

    def numbers(self, samples: Tensor, z: Tensor) -> Tensor:
        """The numbers of the samples of a batch, checked, on the device of the states z."""
        if transforming():
            raise ValueError("samples cannot be given inside torch.func transforms: a warm start keeps states.")
        if not isinstance(samples, Tensor) or samples.dtype not in (torch.int32, torch.int64):
            got = samples.dtype if isinstance(samples, Tensor) else type(samples).__name__
            raise ValueError(f"samples must be a tensor of whole numbers, got {got}.")
        if samples.shape != z.shape[:1]:
            raise ValueError(
                f"samples must have one number for each of the {len(z)} samples, got shape {tuple(samples.shape)}."
            )
        if bool(((samples < 0) | (samples >= self.count)).any()):
            raise ValueError(
                f"samples must be numbers from 0 to {self.count - 1}, as warm={self.count} says, got "
                f"{int(samples.min())} to {int(samples.max())}."
            )
        return samples.to(z.device, torch.int64)

    def guess(self, numbers: Tensor, z: Tensor) -> Tensor:
        """The last equilibria of the samples that have one, and z for the others."""
        if self._table is None or self._known is None or not self._fits(z):
            self._table = z.new_zeros(self.count, flat(z).shape[1])
            self._known = torch.zeros(self.count, dtype=torch.bool, device=z.device)
        return torch.where(per_sample(self._known[numbers], z), self._table[numbers].reshape(z.shape), z)

    def keep(self, numbers: Tensor, z: Tensor, good: Tensor) -> None:
        """Keeps the states z of the `good` samples."""
        assert self._table is not None
        assert self._known is not None
        chosen = numbers[good]
        self._table[chosen] = flat(z.detach())[good].to(self._table.dtype)
        self._known[chosen] = True

    def _fits(self, z: Tensor) -> bool:
        assert self._table is not None
        return (self._table.shape[1], self._table.dtype, self._table.device) == (flat(z).shape[1], z.dtype, z.device)
