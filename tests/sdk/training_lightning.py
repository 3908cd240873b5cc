"""A tiny module under Lightning: run by `tests.support.forked`."""

from __future__ import annotations

import hashlib
import os
import warnings

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from torch import nn
from torch.utils.data import TensorDataset

import windfall as wf
from tests.support.forked import serve, sigterm_to_all
from windfall.sdk.lightning import Loader, WindfallCallback
from windfall.wire import script_page


def _save_at() -> int:
    return int(os.environ.get("SAVE_AT", "0"))


class Tiny(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 8))

    def training_step(self, batch, number):
        (x,) = batch
        return nn.functional.mse_loss(self.net(x), x)

    def validation_step(self, batch, number):
        (x,) = batch
        self.log("val", nn.functional.mse_loss(self.net(x), x))

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        return [optimizer], [{"scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 3), "interval": "step"}]


class Ask(Callback):
    """Publishes the agent's request at step SAVE_AT, and stops there; comes before and after Windfall's callback."""

    def on_train_batch_start(self, trainer, module, batch, number):
        if trainer.global_step + 1 == int(os.environ.get("SIGTERM_AT", "0")):
            sigterm_to_all()
        if trainer.global_step + 1 == _save_at():
            words = script_page.attach(os.path.join(os.environ["WINDFALL_SESSION"], script_page.page_name(0)))
            script_page.publish(words, request=1, target=_save_at(), exact=True, kind=3)

    def on_train_batch_end(self, trainer, module, outputs, batch, number):
        trainer.should_stop = trainer.global_step == _save_at()


def main() -> str:
    steps, out = int(os.environ["STEPS"]), os.environ["OUT"]
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    data = TensorDataset(torch.rand(28, 8))
    train = Loader(data, batch_size=4, shuffle=True, num_workers=int(os.environ.get("WORKERS", "0")))
    trainer = Trainer(
        default_root_dir=out,
        max_steps=steps,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[WindfallCallback(out), Ask()],
    )
    module = Tiny()
    val = torch.utils.data.DataLoader(data, batch_size=4)
    trainer.fit(module, train_dataloaders=train, val_dataloaders=val, ckpt_path=wf.last())
    digest = hashlib.sha256()
    for tensor in module.state_dict().values():
        digest.update(tensor.numpy().tobytes())
    return f"{trainer.global_step} {digest.hexdigest()}"


if __name__ == "__main__":
    serve(main)
