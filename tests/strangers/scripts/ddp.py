"""DistributedDataParallel on two ranks of one machine; each rank hands over its own part."""

import hashlib
import os
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import windfall as wf

STEPS = 100
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(5)
model = DistributedDataParallel(torch.nn.Linear(8, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
chance = torch.Generator().manual_seed(100 + rank)
step = 0
if path := wf.last():
    saved = torch.load(path)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    chance.set_state(saved["chance"])
    step = saved["step"]
while step < STEPS:
    x = torch.randn(8, 8, generator=chance)
    loss = (model(x) - x[:, :4]).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    time.sleep(0.02)
    step += 1
    if rank == 0:
        with open(os.environ["LOG"], "a") as log:
            log.write(f"{step}\n")
    if wf.step() or step % 40 == 0:
        path = f"rank{rank}-{step}.pt"
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save({**state, "chance": chance.get_state(), "step": step}, path)
        wf.backup(path)
if rank == 0:
    digest = hashlib.sha256(b"".join(value.detach().numpy().tobytes() for value in model.parameters()))
    print("result", digest.hexdigest(), flush=True)
dist.barrier()
dist.destroy_process_group()
