"""`FailTogetherCallback`: an error of one process ends a Lightning training in all of them."""

from torch import Tensor

from resolvent.blocks import FailTogether
from resolvent_lab.lightning import Callback, LightningModule, Trainer


class FailTogetherCallback(Callback):
    """Applies `rs.blocks.FailTogether` to each training step.

    Trainer(devices=2, strategy="ddp", callbacks=[FailTogetherCallback()])
    """

    def __init__(self) -> None:
        self._ranks: FailTogether | None = None

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: object, batch_idx: int) -> None:
        self._ranks = FailTogether(pl_module).__enter__()

    def on_before_backward(self, trainer: Trainer, pl_module: LightningModule, loss: Tensor) -> None:
        if self._ranks is not None:
            self._ranks.check(loss)

    def on_after_backward(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._close(None)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._close(exception)

    def _close(self, error: BaseException | None) -> None:
        ranks, self._ranks = self._ranks, None
        if ranks is not None:
            ranks.__exit__(type(error) if error else None, error, None)
