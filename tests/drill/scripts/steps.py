"""The loop of `wf.steps`; a sampler of its own that begins where it was left."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import windfall as wf


class FromHere:
    def __init__(self, size: int) -> None:
        self.size, self.epoch, self.position = size, 0, 0

    def __iter__(self):
        order = torch.randperm(self.size, generator=torch.Generator().manual_seed(self.epoch)).tolist()
        return iter(order[self.position :])

    def __len__(self) -> int:
        return self.size - self.position


torch.set_num_threads(1)
torch.manual_seed(0)
data = TensorDataset(torch.randn(60, 4))
model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
sampler = FromHere(60)
if path := wf.last():
    saved = torch.load(path)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    sampler.epoch, sampler.position = saved["epoch"], saved["position"]
while sampler.epoch < 50:
    for (batch,) in wf.steps(DataLoader(data, batch_size=4, sampler=sampler)):
        loss = nn.functional.mse_loss(model(batch), batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        sampler.position += 4
        if wf.check_save():
            where = {"epoch": sampler.epoch, "position": sampler.position}
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), **where}, "checkpoint.pt")
            wf.backup("checkpoint.pt")
    sampler.epoch, sampler.position = sampler.epoch + 1, 0
