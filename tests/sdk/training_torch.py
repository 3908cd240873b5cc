"""A small but complete PyTorch training: run by `tests.support.forked`."""

from __future__ import annotations

import hashlib
import os
import random

import torch
from torch import nn
from torch.utils.data import Dataset

import windfall as wf
from tests.support.forked import serve
from windfall.sdk.torch import Checkpoint

EPOCHS = 3


class Noisy(Dataset):
    def __len__(self) -> int:
        return 32

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((8,), index / 32) + 0.1 * torch.rand(8) + 0.01 * random.random()


def main() -> str:
    steps, out = int(os.environ["STEPS"]), os.environ["OUT"]
    torch.set_num_threads(1)
    torch.manual_seed(0)
    random.seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 8))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=20)
    checkpoint = Checkpoint(model=model, optimizer=optimizer, scheduler=scheduler, folder=out)
    batches = checkpoint.loader(Noisy(), batch_size=4, shuffle=True, num_workers=int(os.environ.get("WORKERS", "0")))
    start = checkpoint.resume()
    save_at = int(os.environ.get("SAVE_AT", "0"))
    done = start.step
    for _ in range(start.epoch, EPOCHS):
        for batch in batches:
            optimizer.zero_grad()
            nn.functional.mse_loss(model(batch), batch).backward()
            optimizer.step()
            scheduler.step()
            checkpoint.step()
            done += 1
            if done == save_at:
                checkpoint.save()
            if done == steps:
                break
        if done == steps:
            break
    assert wf.context().step == done
    digest = hashlib.sha256()
    for tensor in model.state_dict().values():
        digest.update(tensor.numpy().tobytes())
    return f"{digest.hexdigest()} {scheduler.get_last_lr()} {torch.rand(()).item()}"


if __name__ == "__main__":
    serve(main)
