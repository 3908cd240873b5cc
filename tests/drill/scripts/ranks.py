"""Data-parallel training over gloo, as torchrun starts it; each rank draws its own data."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import windfall as wf

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(7)
model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 1)))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
chance = torch.Generator().manual_seed(100 + rank)
torch.manual_seed(rank)
step = 0
if path := wf.last():
    saved = torch.load(path)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    chance.set_state(saved["chance"])
    torch.set_rng_state(saved["torch"])
    step = saved["step"]
while step < 200:
    with wf.step_context():
        batch = torch.randn(4, 8, generator=chance)
        loss = (model(batch) - batch.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
    if wf.check_save():
        everything = {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "chance": chance.get_state(),
            "torch": torch.get_rng_state(),
            "step": step,
        }
        torch.save(everything, f"rank{rank}-{step}.pt")
        wf.backup(f"rank{rank}-{step}.pt")
