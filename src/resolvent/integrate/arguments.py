"""Checks of the arguments of `odeint`."""

import math

import torch
from torch import Tensor

from resolvent.integrate.control import Tolerance
from resolvent.integrate.flow import Flow
from resolvent.integrate.method import Method

# Default relative tolerances, well above the rounding of a state and of the field.
_RTOL = {torch.float64: 1e-6, torch.float32: 1e-4}


def check_state(y0: object) -> None:
    if not isinstance(y0, Tensor) or y0.dtype not in _RTOL:
        got = y0.dtype if isinstance(y0, Tensor) else type(y0).__name__
        raise ValueError(f"y0 must be a tensor (batch, *shape) of float64 or float32, got {got}.")
    if y0.dim() < 2 or y0.numel() == 0:
        raise ValueError(
            f"y0 must be (batch, *shape) with at least one sample and one component, got shape {tuple(y0.shape)}: a "
            "single state is a batch of one, y0[None]."
        )
    if not bool(y0.isfinite().all()):
        raise ValueError(f"y0 must be finite, but {int((~y0.isfinite()).sum())} of its entries are NaN or infinite.")


def as_times(times: object, y0: Tensor) -> Tensor:
    """The times as (count, batch) in double precision, with their graph."""
    given = torch.as_tensor(times, device=y0.device)
    if given.dim() not in (1, 2) or (given.dim() == 2 and given.shape[1] != len(y0)) or len(given) < 2:
        raise ValueError(
            f"times must be (count,) or (count, batch) with two times or more and a batch of {len(y0)}, got shape "
            f"{tuple(given.shape)}."
        )
    found = given.double() if given.dim() == 2 else given.double()[:, None].expand(-1, len(y0))
    gaps = found.detach().diff(dim=0)
    monotone = (gaps > 0).all(0) | (gaps < 0).all(0)
    if not bool(monotone.all()) or not bool(found.isfinite().all()):
        bad = int((~monotone).nonzero()[0, 0]) if not bool(monotone.all()) else 0
        raise ValueError(
            "times must be finite, and increase or decrease strictly for each sample; those of sample "
            f"{bad} are {[round(v, 6) for v in found[:, bad].tolist()[:8]]}."
        )
    return found


def as_tolerance(rtol: float | None, atol: float | Tensor | None, y0: Tensor) -> Tolerance:
    rtol = _RTOL[y0.dtype] if rtol is None else rtol
    least = 8 * torch.finfo(y0.dtype).eps
    if not isinstance(rtol, int | float) or not least <= rtol < 1:
        raise ValueError(f"rtol must be a number between {least:.0e}, the rounding of {y0.dtype}, and 1, got {rtol!r}.")
    atol = 1e-3 * rtol if atol is None else atol
    if isinstance(atol, Tensor):
        if atol.shape not in (torch.Size(), y0.shape[1:]) or not bool((atol > 0).all()):
            raise ValueError(
                f"atol must be a positive number, or a tensor of positive ones like a sample, {tuple(y0.shape[1:])}, "
                f"got shape {tuple(atol.shape)} with the least entry {atol.min().item() if atol.numel() else None}."
            )
        return Tolerance(float(rtol), atol.detach().to(y0).reshape(-1))
    if not isinstance(atol, int | float) or not (math.isfinite(atol) and atol > 0):
        raise ValueError(f"atol must be a positive number or a tensor of them, got {atol!r}.")
    return Tolerance(float(rtol), float(atol))


def check_steps(max_steps: object, min_step: object, first_step: object) -> None:
    if not isinstance(max_steps, int) or isinstance(max_steps, bool) or max_steps < 1:
        raise ValueError(f"max_steps must be a whole number, 1 or more, got {max_steps!r}.")
    for name, value in (("min_step", min_step), ("first_step", first_step)):
        if value is not None and not (isinstance(value, int | float) and math.isfinite(value) and value > 0):
            raise ValueError(f"{name} must be a positive number, or None, got {value!r}.")


def check_memory(memory: object, derivatives: object, interrupted: bool) -> None:
    if not isinstance(derivatives, int) or isinstance(derivatives, bool) or derivatives < 1:
        raise ValueError(f"derivatives counts those that are exact and must be 1 or more, got {derivatives!r}.")
    if memory not in ("store", "checkpoint", "adjoint"):
        raise ValueError(f"memory must be 'store', 'checkpoint' or 'adjoint', got {memory!r}.")
    if memory == "adjoint" and (interrupted or derivatives > 1):
        raise ValueError(
            "memory='adjoint' takes neither jumps nor events, and has first derivatives only: take 'store' or "
            "'checkpoint', whose gradients are exact."
        )


def check_methods(methods: tuple[Method, ...], flow: Flow, memory: str) -> None:
    if any(method.coupled for method in methods) and not flow.matrix:
        raise ValueError(
            f"a scheme with coupled stages needs a matrix, which is not formed here ({flow.size} unknowns): take "
            "matrix=True, or a diagonally implicit scheme such as rs.schemes.tableaux.KVAERNO5."
        )
    if any(method.explicit is not None for method in methods):
        _ = flow.linear  # Raises if the field declares none.
        if memory == "adjoint":
            raise ValueError("memory='adjoint' takes no additive scheme: take 'store' or 'checkpoint'.")
