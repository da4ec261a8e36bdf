"""The cost of torchdiffeq's dopri5, if it is installed."""

import time
from typing import Any

import torch
from torch import Tensor


def dopri5(field: Any, y0: Tensor, end: float, rtol: float, atol: Tensor) -> dict[str, float] | None:
    """Calls of the field and seconds of the processor from 0 to `end`; None without torchdiffeq."""
    try:
        from torchdiffeq import odeint  # type: ignore[import-not-found]
    except ImportError:
        return None
    calls = 0

    def counted(t: Tensor, y: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        slope: Tensor = field(t, y)
        return slope

    began = time.process_time()
    odeint(counted, y0, torch.tensor([0.0, end], dtype=y0.dtype), rtol=rtol, atol=atol, method="dopri5")
    return {"evaluations": calls, "seconds": time.process_time() - began}
