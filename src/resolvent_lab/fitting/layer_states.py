"""`LayerStates`: what layers need beside their weights to go on exactly."""

from typing import Any

import resolvent as rs
from resolvent_lab.fitting.checkpoints import ENTRY
from resolvent_lab.lightning import Callback, LightningModule, Trainer


class LayerStates(Callback):
    """Adds the warm starts and the norms of all layers to checkpoints, and restores them when a run goes on."""

    def __init__(self) -> None:
        self._restored: dict[str, Any] | None = None

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        warm = {name: layer.warm.state_dict() for name, layer in _warm(pl_module)}
        norms = {name: norm.training_state() for name, norm in _norms(pl_module)}
        checkpoint.setdefault(ENTRY, {}).update(warm=warm, norms=norms)

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        self._restored = checkpoint[ENTRY]

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Not earlier: the weights, when they are loaded, reset these states."""
        if self._restored is None:
            return
        for name, layer in _warm(pl_module):
            state = self._restored["warm"][name]
            layer.warm.load_state_dict({key: value.to(pl_module.device) for key, value in state.items()})
        for name, norm in _norms(pl_module):
            norm.load_training_state(self._restored["norms"][name])
        self._restored = None


def _warm(module: LightningModule) -> list[tuple[str, Any]]:
    """The layers with warm starts."""
    layers = [(name, layer) for name, layer in module.named_modules() if isinstance(layer, rs.Equilibrium)]
    return [(name, layer) for name, layer in layers if layer.warm is not None]


def _norms(module: LightningModule) -> list[tuple[str, rs.spectral.SpectralNorm]]:
    return [(name, each) for name, each in module.named_modules() if isinstance(each, rs.spectral.SpectralNorm)]
