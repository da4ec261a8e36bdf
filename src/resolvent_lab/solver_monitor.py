"""`SolverMonitor`: logs the solves of a Lightning module in each epoch."""

from resolvent.blocks import Monitor
from resolvent_lab.lightning import Callback, LightningModule, Trainer


class SolverMonitor(Callback):
    """Logs what `rs.blocks.Monitor` records of a training, at the end of each epoch.

        Trainer(callbacks=[SolverMonitor()])

    The names are such as "solver/block/forward/steps" and "solver/block/backward/failed".

    Arguments:
        prefix: the first part of the names.
    """

    def __init__(self, prefix: str = "solver") -> None:
        self.prefix = prefix
        self._monitor: Monitor | None = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._monitor = Monitor(pl_module).__enter__()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._monitor is not None:
            pl_module.log_dict(self._monitor.log(self.prefix))
            self._monitor.reset()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._close()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._close()

    def _close(self) -> None:
        if self._monitor is not None:
            self._monitor.__exit__(None, None, None)
            self._monitor = None
