"""A data set whose samples get longer with every epoch."""

import torch
from torch import nn
from torch.utils.data import Dataset

from windfall.sdk.torch import Checkpoint


class Seqs(Dataset):
    length = 2

    def __len__(self):
        return 20

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        x = torch.randn(12, generator=g)
        x[self.length :] = 0
        return x, x.sum()


torch.manual_seed(0)
train = Seqs()
model = nn.Sequential(nn.Linear(12, 8), nn.Tanh(), nn.Linear(8, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
checkpoint = Checkpoint(model=model, optimizer=optimizer)
loader = checkpoint.loader(train, batch_size=4, shuffle=True)
start = checkpoint.resume()
for epoch in range(start.epoch, 10):
    train.length = min(12, 2 + 2 * epoch)
    for x, y in loader:
        loss = (model(x).squeeze(1) - y).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        checkpoint.step()
