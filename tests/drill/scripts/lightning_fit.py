"""Lightning: a module, its own schedule, Windfall's loader and callback."""

import torch
from lightning import LightningModule, Trainer
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
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        return [optimizer], [{"scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 3), "interval": "step"}]


torch.set_num_threads(1)
torch.manual_seed(0)
train = Loader(TensorDataset(torch.rand(28, 8)), batch_size=4, shuffle=True)
trainer = Trainer(
    default_root_dir="out",
    max_steps=60,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
    callbacks=[WindfallCallback("out")],
)
trainer.fit(Tiny(), train_dataloaders=train, ckpt_path=wf.last())
