"""Lightning, from whichever of its two packages is installed."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lightning import __version__
    from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
else:
    try:
        from lightning import __version__
        from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
    except ImportError:
        from pytorch_lightning import Callback, LightningDataModule, LightningModule, Trainer, __version__

__all__ = ["Callback", "LightningDataModule", "LightningModule", "Trainer", "__version__"]
