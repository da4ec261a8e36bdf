"""`Piecewise`: a field that is piecewise constant in time, and its use in blocks."""

import math
from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from resolvent.equation.linear_part import LinearPart
from resolvent.fields.base import Field, Time, expect_field
from resolvent.spectral import Disc


class Piecewise(Field):
    """One field after the other, piecewise constant in time and continuous from the right.

        F(t, y) = F_k(t, y)      for      k H/T <= t < (k+1) H/T,      k = 0, ..., T-1

    At a breakpoint the new field applies. Before 0 the first field applies, from H on the last one. A time within
    rounding of a breakpoint (less than the square root of the precision of its dtype, in units of H/T) counts as the
    breakpoint: k*h computed in floating point lies in cell k.

    Arguments:
        fields: F_0, ..., F_{T-1}.
        horizon: H. None takes the absolute value of the horizon of the block. A number is for use without a block; a
            block with another horizon raises.
    """

    def __init__(self, fields: Iterable[Field], horizon: float | None = None) -> None:
        super().__init__()
        pieces = list(fields)
        if not pieces:
            raise ValueError("Piecewise needs at least one field, got none")
        for piece in pieces:
            expect_field(piece, "Piecewise")
        if horizon is not None and not (isinstance(horizon, int | float) and math.isfinite(horizon) and horizon > 0):
            raise ValueError(f"horizon must be a positive number, or None, got {horizon!r}")
        self.fields = nn.ModuleList(pieces)
        self._horizon: float | Tensor | None = None if horizon is None else float(horizon)
        self.autonomous = len(pieces) == 1 and pieces[0].autonomous
        self.shape = pieces[0].shape if len({field.shape for field in pieces}) == 1 else None
        bounds = [field.bound for field in pieces if field.bound is not None]
        self.bound = max(bounds) if len(bounds) == len(pieces) else None

    @property
    def pieces(self) -> tuple[Field, ...]:
        """The fields, in order of time."""
        return tuple(self.fields)  # type: ignore[arg-type]

    @property
    def rowwise(self) -> bool:  # type: ignore[override]
        return all(field.rowwise for field in self.pieces)

    @property
    def horizon(self) -> float | Tensor:
        """H; a 0-d tensor without a graph if a block learns it."""
        if self._horizon is None:
            raise ValueError(
                "Piecewise has no horizon yet: give it to a block, whose horizon it takes, or make it with "
                "Piecewise(fields, horizon=...)."
            )
        return self._horizon

    def share_horizon(self, horizon: float | Tensor) -> None:
        """Takes the horizon of a block, of any sign; raises a ValueError if it already has another one.

        A tensor may be learned: the block shares it before each pass, and it replaces the old one.
        """
        if isinstance(horizon, Tensor) and not isinstance(self._horizon, float):
            self._horizon = horizon.detach().abs()
        elif self._horizon is None:
            self._horizon = abs(float(horizon))
        elif isinstance(horizon, Tensor) or not math.isclose(self._horizon, abs(horizon), rel_tol=1e-6):
            raise ValueError(
                f"the {len(self.fields)} fields of Piecewise are spread over a horizon of {float(self._horizon):g}, "
                f"set on construction or by another block, but this block has {_describe(horizon)}: leave it to the "
                "block, Piecewise(fields), and make one for each block."
            )

    def forward(self, t: Time, y: Tensor) -> Tensor:
        if not isinstance(t, Tensor) or t.ndim == 0:
            cell = self.cell(t) if not isinstance(t, Tensor) else int(self.cells(t))
            value: Tensor = self.fields[cell](t, y)
            return value
        batch = len(tree_leaves(y)[0])
        if t.shape != (batch,):
            raise ValueError(f"t must be one number or one for each of {batch} samples, got {tuple(t.shape)}")
        cells = self.cells(t)
        present = cells.unique().tolist()
        if len(present) == 1:
            same: Tensor = self.fields[present[0]](t, y)
            return same
        if not self.rowwise:
            return self._evaluate_all(present, cells, t, y)
        # One call per active field: stacking the weights of all fields and gathering by sample takes several times as
        # long, even if every sample lies in a different cell.
        rows = [(cells == k).nonzero().squeeze(1) for k in present]
        values = [self.fields[k](t[i], _rows(y, i)) for k, i in zip(present, rows, strict=True)]
        order = torch.cat(rows).argsort()
        joined: Tensor = tree_map(lambda *parts: torch.cat(parts)[order], *values)
        return joined

    def cell(self, t: float) -> int:
        """Index of the field that is active at time t."""
        position = t * (len(self.fields) / float(self.horizon)) + math.sqrt(torch.finfo(torch.float64).eps)
        return int(min(max(position, 0.0), len(self.fields) - 1))

    def cells(self, t: Tensor) -> Tensor:
        """Indices of the fields that are active at times t, of any shape."""
        precision = torch.finfo(t.dtype if t.is_floating_point() else torch.float64).eps
        position = t.detach().double() * (len(self.fields) / self.horizon) + math.sqrt(precision)
        return position.floor().clamp(0, len(self.fields) - 1).long()

    @property
    def linear_part(self) -> float | Tensor | LinearPart | None:
        """The linear part, if all pieces have the same."""
        first, *others = (field.linear_part for field in self.pieces)
        if not others or (
            isinstance(first, float | LinearPart) and all(part is first or part == first for part in others)
        ):
            return first
        return None

    def disc(self) -> Disc:
        discs = [field.disc() for field in self.pieces]
        return Disc.spanning(min(disc.low for disc in discs), max(disc.high for disc in discs))

    def _evaluate_all(self, present: list[int], cells: Tensor, t: Tensor, y: Tensor) -> Tensor:
        """Evaluates each field on the whole batch, for fields that are not rowwise."""
        value = tree_map(torch.zeros_like, y)
        for k in present:
            value = tree_map(partial(_where, cells == k), self.fields[k](t, y), value)
        return value


def _rows(y: Any, rows: Tensor) -> Any:
    """Some samples of a state, which may consist of several tensors."""
    return tree_map(lambda part: part[rows], y)


def _where(chosen: Tensor, yes: Tensor, no: Tensor) -> Tensor:
    """`yes` for the samples that are chosen, else `no`."""
    return torch.where(chosen.reshape(-1, *[1] * (yes.ndim - 1)), yes, no)


def _describe(horizon: float | Tensor) -> str:
    """A horizon for a message; the value of a tensor may be unknown, or change."""
    return "a tensor, which may change" if isinstance(horizon, Tensor) else f"{abs(horizon):g}"


def right_end(field: object, dtype: torch.dtype) -> float:
    """The fraction of a step at which the field is evaluated for its end; 1 unless the field is piecewise.

    At a breakpoint a piecewise field takes its new value, but a step that ends there uses the old one: the n-th step
    uses the n-th piece throughout. If the pieces do not depend on time, the field is evaluated at the start of the
    step, which is also the paper's rule for steps that do not coincide with pieces. Otherwise it is evaluated just
    before the end, by more than the rounding that `Piecewise` tolerates.
    """
    pieces = [piece for module in piecewise_parts(field) for piece in module.pieces]
    if not pieces:
        return 1.0
    if all(piece.autonomous for piece in pieces):
        return 0.0
    return 1 - 4 * torch.finfo(dtype).eps ** 0.5


def share_horizon(field: object, horizon: Time) -> bool:
    """Passes the horizon of a block to the piecewise fields in its field; raises if they have another one. Returns
    whether there are any."""
    pieces = piecewise_parts(field)
    for module in pieces:
        module.share_horizon(horizon)
    return bool(pieces)


def piecewise_parts(field: object) -> list[Piecewise]:
    """The piecewise fields in a field, itself included."""
    modules = field.modules() if isinstance(field, nn.Module) else ()
    return [module for module in modules if isinstance(module, Piecewise)]
