"""An iterable data set that counts what it gave; the count is the position."""

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

import windfall as wf


class Stream(IterableDataset):
    def __init__(self) -> None:
        self.given = 0

    def __iter__(self):
        while True:
            number, self.given = self.given, self.given + 1
            yield torch.full((5,), number / 100) + 0.1 * torch.randn(5, generator=torch.Generator().manual_seed(number))


torch.set_num_threads(1)
torch.manual_seed(0)
model, stream = nn.Linear(5, 5), Stream()
optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3, momentum=0.5)
step = 0
if path := wf.last():
    saved = torch.load(path)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    stream.given, step = saved["given"], saved["step"]
for batch in DataLoader(stream, batch_size=4):
    loss = (model(batch) - batch).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    step += 1
    if wf.step(step):
        torch.save(
            {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "given": stream.given, "step": step},
            "c.pt",
        )
        wf.backup("c.pt")
    if step == 100:
        break
