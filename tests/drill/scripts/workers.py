"""A DataLoader whose workers augment; the position is found again by passing over batches."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, RandomSampler

import windfall as wf


class Augmented(Dataset):
    def __len__(self) -> int:
        return 160

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((6,), index / 160) + 0.1 * torch.randn(6)


torch.set_num_threads(1)
torch.manual_seed(0)
model = nn.Linear(6, 6)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
done, seed = 0, 7
if path := wf.last():
    saved = torch.load(path)
    model.load_state_dict(saved["model"])
    done, seed = saved["done"], saved["seed"]
data = Augmented()
order = RandomSampler(data, generator=torch.Generator().manual_seed(seed))
loader = DataLoader(data, batch_size=4, sampler=order, num_workers=2)
torch.manual_seed(seed)
for number, batch in enumerate(loader):
    if number < done:
        continue
    loss = (model(batch) - batch).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    done = number + 1
    if wf.step():
        torch.save({"model": model.state_dict(), "done": done, "seed": seed}, f"{done}.pt")
        wf.backup(f"{done}.pt")
