"""Settings of a network that trains in a moment."""

from typing import Any

SMALL: dict[str, Any] = {
    "theta": 0.0,
    "normalization": "free",
    "alpha_div": 0.0,
    "architecture": "authors",
    "layers": 1,
    "channels": 2,
    "height": 8,
    "width": 8,
    "num_classes": 4,
    "batch_size": 20,
    "epochs": 2,
}
