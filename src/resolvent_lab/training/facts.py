"""`Facts`: what a network has to know of its data. They are stored with a run, so that it can be used without them."""

from dataclasses import dataclass
from typing import Any

TASKS = ("classification", "regression", "series")


@dataclass(frozen=True)
class Facts:
    """What a network has to know of its data.

    Attributes:
        task: "classification", "regression" or "series", the prediction of a time series from its first state.
        shape: of one input, without the batch.
        inputs: names of the inputs, such as the columns of a table; empty for images and arrays.
        targets: names of the targets.
        classes: names of the classes, in the order of their numbers; empty unless the task is classification.
        samples: the number of training samples.
        mean, scale: of each input, for standardization; empty if there is none.
        target_mean, target_scale: of each target; empty unless the task is regression.
    """

    task: str
    shape: tuple[int, ...]
    inputs: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    samples: int = 0
    mean: tuple[float, ...] = ()
    scale: tuple[float, ...] = ()
    target_mean: tuple[float, ...] = ()
    target_scale: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.task not in TASKS:
            raise ValueError(f"task must be one of {', '.join(TASKS)}, got {self.task!r}.")

    @property
    def outputs(self) -> int:
        """The number of outputs of a network: classes, targets, or components of a state."""
        if self.task == "series":
            return self.shape[0]
        return len(self.classes) if self.task == "classification" else len(self.targets)

    @property
    def size(self) -> int:
        """The number of entries of one input."""
        size = 1
        for n in self.shape:
            size *= n
        return size

    @staticmethod
    def restored(stored: dict[str, Any]) -> "Facts":
        """The facts from their JSON, in which tuples are lists."""
        values: dict[str, Any] = {key: tuple(v) if isinstance(v, list) else v for key, v in stored.items()}
        return Facts(**values)
