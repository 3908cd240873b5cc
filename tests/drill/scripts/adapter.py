"""The adapter for plain PyTorch does the work: workers that augment, shuffling, dropout."""

import random

import torch
from torch import nn
from torch.utils.data import Dataset

from windfall.sdk.torch import Checkpoint


class Noisy(Dataset):
    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((8,), index / 40) + 0.1 * torch.rand(8) + 0.01 * random.random()


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    random.seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 8))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=40)
    checkpoint = Checkpoint(model=model, optimizer=optimizer, scheduler=scheduler)
    batches = checkpoint.loader(Noisy(), batch_size=4, shuffle=True, num_workers=WORKERS)
    start = checkpoint.resume()
    for _ in range(start.epoch, 100):
        for batch in batches:
            optimizer.zero_grad()
            nn.functional.mse_loss(model(batch), batch).backward()
            optimizer.step()
            scheduler.step()
            checkpoint.step()


WORKERS = 0

if __name__ == "__main__":
    main()
