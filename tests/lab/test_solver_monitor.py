"""The Lightning callback that logs solves."""

import pytest
import torch
from torch.utils.data import DataLoader

import resolvent as rs
from resolvent_lab.lightning import LightningModule, Trainer
from resolvent_lab.solver_monitor import SolverMonitor


class _Module(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.block = rs.ThetaBlock(rs.fields.MLP(2, 4, 1), num_steps=2)

    def training_step(self, batch, index):
        return self.block(batch).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


@pytest.mark.filterwarnings("ignore")
def test_every_epoch_is_logged(tmp_path):
    module = _Module()
    before = module.block.options
    trainer = Trainer(
        max_epochs=2,
        accelerator="cpu",
        callbacks=[SolverMonitor()],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=tmp_path,
    )
    trainer.fit(module, DataLoader(torch.randn(8, 2), batch_size=4))
    logged = trainer.callback_metrics
    assert logged["solver/block/forward/failed"] == 0
    assert logged["solver/block/forward/steps"] >= 1
    # Two batches of four samples: each epoch begins anew.
    assert logged["solver/block/backward/samples"] in (8, 16)
    assert module.block.options is before
