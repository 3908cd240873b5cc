"""A DataLoader with workers that augment, through the adapter."""

import hashlib
import os
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from windfall.sdk.torch import Checkpoint


class Augmented(Dataset):
    def __len__(self) -> int:
        return 160

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((6,), index / 160) + 0.1 * torch.randn(6)


torch.set_num_threads(1)
torch.manual_seed(0)
model = nn.Linear(6, 6)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
checkpoint = Checkpoint(model=model, optimizer=optimizer)
batches = checkpoint.loader(DataLoader(Augmented(), batch_size=4, shuffle=True, num_workers=2))
start = checkpoint.resume()
number = start.step
for _ in range(start.epoch, 3):
    for batch in batches:
        loss = (model(batch) - batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(0.02)
        number += 1
        with open(os.environ["LOG"], "a") as log:
            log.write(f"{number}\n")
        checkpoint.step()
digest = hashlib.sha256(b"".join(value.detach().numpy().tobytes() for value in model.parameters()))
print("result", digest.hexdigest(), flush=True)
