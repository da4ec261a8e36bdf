"""`SolverMonitor`: logs the solves of a Lightning module in each epoch."""

import dataclasses
from typing import Any

from resolvent.blocks import Monitor, SolveRecord
from resolvent_lab.lightning import Callback, LightningModule, Trainer


class SolverMonitor(Callback):
    """Logs what `rs.blocks.Monitor` records of a training, at the end of each epoch.

        Trainer(callbacks=[SolverMonitor()])

    The names are such as "solver/block/forward/steps" and "solver/block/backward/failed". The progress bar shows
    "iterations", the mean number of solver steps per sample and solve in the epoch so far, forward. The records of an
    epoch are part of Lightning's checkpoints, so that a run that is resumed within an epoch has all of them.

    Arguments:
        prefix: the first part of the names.
    """

    def __init__(self, prefix: str = "solver") -> None:
        self.prefix = prefix
        self._monitor: Monitor | None = None
        self._restored: dict[tuple[str, str], SolveRecord] = {}

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._monitor = Monitor(pl_module).__enter__()
        self._monitor.records |= self._restored
        self._restored = {}

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self._monitor is not None:
            pl_module.log("iterations", mean_steps(self._monitor), prog_bar=True, batch_size=1)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._monitor is not None:
            pl_module.log_dict(self._monitor.log(self.prefix))
            self._monitor.reset()

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._pause()

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._continue()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._close()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._close()

    def state_dict(self) -> dict[str, Any]:
        records = {} if self._monitor is None else self._monitor.records
        return {"records": [[*key, dataclasses.asdict(record)] for key, record in records.items()]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._restored = {(name, way): SolveRecord(**record) for name, way, record in state["records"]}

    def _pause(self) -> None:
        """Solves of the validation do not count."""
        if self._monitor is not None:
            self._monitor.__exit__(None, None, None)

    def _continue(self) -> None:
        if self._monitor is not None:
            self._monitor.__enter__()

    def _close(self) -> None:
        if self._monitor is not None:
            self._monitor.__exit__(None, None, None)
            self._monitor = None


def mean_steps(monitor: Monitor) -> float:
    """The mean number of forward solver steps per sample and solve; 0 if nothing was solved."""
    records = [record for (_, way), record in monitor.records.items() if way == "forward"]
    count = sum(record.samples for record in records)
    return sum(record.samples * record.steps for record in records) / count if count else 0.0
