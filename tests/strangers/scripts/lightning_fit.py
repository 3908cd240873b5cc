"""Lightning with the adapter's loader and callback."""

import hashlib
import os
import time
import warnings

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import nn
from torch.utils.data import TensorDataset

import windfall as wf
from windfall.sdk.lightning import Loader, WindfallCallback


class Tiny(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 8))

    def training_step(self, batch, number):
        (x,) = batch
        return nn.functional.mse_loss(self.net(x), x)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


class Log(Callback):
    def on_train_batch_end(self, trainer, module, outputs, batch, number):
        time.sleep(0.02)
        with open(os.environ["LOG"], "a") as log:
            log.write(f"{trainer.global_step}\n")


warnings.filterwarnings("ignore")
torch.set_num_threads(1)
torch.manual_seed(0)
train = Loader(TensorDataset(torch.rand(64, 8)), batch_size=4, shuffle=True)
trainer = Trainer(
    max_steps=80, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
    enable_model_summary=False, callbacks=[Log(), WindfallCallback()],
)  # fmt: skip
module = Tiny()
trainer.fit(module, train_dataloaders=train, ckpt_path=wf.last())
digest = hashlib.sha256(b"".join(value.numpy().tobytes() for value in module.state_dict().values()))
print("result", digest.hexdigest(), flush=True)
