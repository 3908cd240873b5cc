"""An exponential moving average of the weights beside the weights; the average is the result."""

import copy
import hashlib
import os
import time

import torch
from torch import nn

import windfall as wf

STEPS = 100
torch.set_num_threads(1)
torch.manual_seed(1)
model = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 1))
average = copy.deepcopy(model).requires_grad_(False)
optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
start = 0
if (path := wf.last()) is not None:
    saved = torch.load(path)
    model.load_state_dict(saved["model"])
    average.load_state_dict(saved["average"])
    optimizer.load_state_dict(saved["optimizer"])
    start = saved["step"]
for step in range(start, STEPS):
    x = torch.randn(16, 6, generator=torch.Generator().manual_seed(step))
    optimizer.zero_grad()
    (model(x) - x.prod(1, keepdim=True)).square().mean().backward()
    optimizer.step()
    with torch.no_grad():
        for mean, now in zip(average.parameters(), model.parameters(), strict=True):
            mean.lerp_(now, 0.05)
    time.sleep(0.02)
    with open(os.environ["LOG"], "a") as log:
        log.write(f"{step + 1}\n")
    if wf.step() or (step + 1) % 25 == 0:
        path = f"ema-{step + 1}.pt"
        parts = {"model": model.state_dict(), "average": average.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save({**parts, "step": step + 1}, path)
        wf.backup(path)
digest = hashlib.sha256(b"".join(value.numpy().tobytes() for value in average.parameters()))
print("result", digest.hexdigest(), flush=True)
