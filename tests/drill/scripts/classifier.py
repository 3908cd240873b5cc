"""A classifier with what small trainings have: BatchNorm, dropout, momentum, a schedule, augmentation, an average."""

import random

import numpy as np
import torch
from torch import nn

import windfall as wf

BATCH, BATCHES, EPOCHS = 8, 7, 100


def order_of(epoch: int, seed: int) -> list[int]:
    return torch.randperm(BATCH * BATCHES, generator=torch.Generator().manual_seed(seed + epoch)).tolist()


class Average:
    def __init__(self, model: nn.Module) -> None:
        self.shadow = {name: one.detach().clone() for name, one in model.named_parameters()}

    def update(self, model: nn.Module) -> None:
        for name, one in model.named_parameters():
            self.shadow[name].lerp_(one.detach(), 0.1)


def save(path, everything):
    torch.save(everything, path)


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    inputs = torch.randn(BATCH * BATCHES, 12)
    targets = (inputs.sum(1) > 0).long()
    model = nn.Sequential(nn.Linear(12, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.97)
    ema = Average(model)
    seed = random.randrange(1000)
    epoch, position, best = 0, 0, float("inf")

    if path := wf.last():
        saved = torch.load(path, weights_only=False)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        scheduler.load_state_dict(saved["scheduler"])
        ema.shadow = saved["ema"]
        seed, epoch, position, best = saved["seed"], saved["epoch"], saved["position"], saved["best"]
        torch.set_rng_state(saved["torch"])
        random.setstate(saved["python"])
        np.random.set_state(saved["numpy"])

    while epoch < EPOCHS:
        order = order_of(epoch, seed)
        while position < BATCHES:
            chosen = order[position * BATCH : (position + 1) * BATCH]
            x, y = inputs[chosen], targets[chosen]
            if random.random() < 0.5:
                x = x.flip(1)
            x = x + torch.from_numpy(np.random.normal(0, 0.05, x.shape)).float()
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            ema.update(model)
            best = min(best, loss.item())
            position += 1
            if wf.step():
                everything = {
                    "model": model.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "scheduler": scheduler.state_dict(),
                    "ema": ema.shadow,
                    "seed": seed,
                    "epoch": epoch,
                    "position": position,
                    "best": best,
                    "torch": torch.get_rng_state(),
                    "python": random.getstate(),
                    "numpy": np.random.get_state(),
                }
                save(f"{epoch}-{position}.pt", everything)
                wf.backup(f"{epoch}-{position}.pt")
        epoch, position = epoch + 1, 0


if __name__ == "__main__":
    main()
