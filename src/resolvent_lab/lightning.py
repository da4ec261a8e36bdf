"""Lightning, from whichever of its two packages is installed."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lightning import __version__
    from lightning.fabric.utilities.exceptions import MisconfigurationException
    from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
    from lightning.pytorch.callbacks import Timer
    from lightning.pytorch.plugins.io import CheckpointIO
else:
    try:
        from lightning import __version__
        from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
        from lightning.pytorch.callbacks import Timer
        from lightning.pytorch.plugins.io import CheckpointIO
        from lightning.pytorch.utilities.exceptions import MisconfigurationException
    except ImportError:
        from pytorch_lightning import Callback, LightningDataModule, LightningModule, Trainer, __version__
        from pytorch_lightning.callbacks import Timer
        from pytorch_lightning.plugins.io import CheckpointIO
        from pytorch_lightning.utilities.exceptions import MisconfigurationException

__all__ = [
    "Callback",
    "CheckpointIO",
    "LightningDataModule",
    "LightningModule",
    "MisconfigurationException",
    "Timer",
    "Trainer",
    "__version__",
]
