"""`Trained`: the network of a run, ready for use."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from resolvent_lab.training import configuration
from resolvent_lab.training.batches import Batches, Samples
from resolvent_lab.training.data import PARTS, Data
from resolvent_lab.training.facts import Facts
from resolvent_lab.training.learner import Learner
from resolvent_lab.training.run_folder import RunFolder

_BATCH_SIZE = 256


@dataclass(frozen=True)
class Trained:
    """The network of a run in evaluation mode, with its data.

    Attributes:
        folder: of the run.
        learner: with the weights loaded.
        data: as the run was configured; nothing of it is read before it is needed.
    """

    folder: RunFolder
    learner: Learner
    data: Data

    @property
    def facts(self) -> Facts:
        return self.learner.facts

    def samples(self, part: str, file: Path | None) -> Samples:
        """A part of the data of the run, or another file with targets."""
        if file is not None:
            return self.data.read_inputs(file, self.facts, targets=True)[0]
        if part not in PARTS:
            raise ValueError(f"the parts of the data are {', '.join(PARTS)}, got {part!r}.")
        if self.data.facts != self.facts:
            raise ValueError(
                f"the data is not that of the training of {self.folder.path}: its shape, its columns or its values "
                "have changed. Give a file with --file."
            )
        return self.data.part(part)

    @torch.no_grad()
    def outputs(self, samples: Samples) -> Tensor:
        """Class scores or predictions of all samples."""
        return torch.cat([self.learner(batch) for batch in Batches(samples, _BATCH_SIZE)])


def load(run: Path | str, weights: str = "best") -> Trained:
    """The network of a run, finished or not.

    Arguments:
        run: the folder of the run.
        weights: "best" or "last".
    """
    folder = RunFolder(Path(run))
    folder.require()
    objects = configuration.instantiate(_without_trainer(configuration.read(folder.config)))
    learner = Learner(objects.model, folder.facts())
    folder.load_weights(learner, weights)
    return Trained(folder, learner.eval(), objects.data)


def _without_trainer(settings: Any) -> Any:
    """Loggers and callbacks are not made: they may write files."""
    settings = settings.clone()
    settings.trainer.logger = settings.trainer.callbacks = None
    return settings
