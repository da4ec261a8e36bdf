"""Table 3 of the paper: accuracies in per cent, on the training images, under noise that is not clamped."""

_THETAS = (0.0, 0.25, 0.5, 0.75, 1.0)

_TABLE = {
    1: {
        0.0: (100.0, 100.0, 100.0, 100.0, 100.0),
        0.1: (98.2, 99.6, 99.9, 99.9, 99.9),
        0.2: (89.2, 95.7, 96.3, 98.3, 98.4),
        0.3: (74.7, 86.0, 89.3, 93.2, 93.6),
        0.4: (59.3, 74.1, 77.2, 81.8, 84.7),
        0.5: (47.2, 60.4, 64.7, 69.8, 73.0),
    },
    2: {
        0.0: (100.0, 100.0, 100.0, 100.0, 100.0),
        0.1: (99.7, 100.0, 100.0, 100.0, 100.0),
        0.2: (96.7, 99.3, 99.8, 100.0, 100.0),
        0.3: (89.0, 95.2, 97.8, 99.0, 98.8),
        0.4: (75.5, 89.1, 91.1, 94.4, 95.0),
        0.5: (65.7, 79.6, 83.4, 87.1, 87.9),
    },
}


def published(column: str, sigma: float, top: int) -> float | None:
    """The paper's number for a column, or None where it has none."""
    names = [f"theta{theta:g}" for theta in _THETAS]
    if column not in names or sigma not in _TABLE[top]:
        return None
    return _TABLE[top][sigma][names.index(column)]
