"""Plain PyTorch: a small network, Adam, a schedule; saves of its own and those that are asked for."""

import hashlib
import os
import time

import torch
from torch import nn

import windfall as wf

STEPS = 120
torch.set_num_threads(1)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 32), nn.Dropout(0.1), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
first = 0
os.makedirs("checkpoints", exist_ok=True)
if (path := wf.last()) is not None:
    saved = torch.load(path)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    schedule.load_state_dict(saved["schedule"])
    torch.set_rng_state(saved["random"])
    first = saved["step"]


def save(step: int) -> None:
    path = f"checkpoints/{step}.pt"
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "schedule": schedule.state_dict()}
    torch.save({**state, "random": torch.get_rng_state(), "step": step}, path)
    wf.backup(path)


for step in range(first, STEPS):
    x = torch.randn(16, 8)
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    schedule.step()
    time.sleep(0.02)
    with open(os.environ["LOG"], "a") as log:
        log.write(f"{step + 1}\n")
    if wf.step() or (step + 1) % 40 == 0:
        save(step + 1)
digest = hashlib.sha256(b"".join(value.detach().numpy().tobytes() for value in model.parameters()))
print("result", digest.hexdigest(), flush=True)
