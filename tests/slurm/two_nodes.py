"""A script of two machines: gradients are averaged over gloo, and each rank has a stream of chance of its own."""

from __future__ import annotations

import os
import time

import torch
import torch.distributed as dist
from torch import nn

import windfall as wf

STEPS = 400


def main() -> None:
    """Train to the end; rank 0 prints the loss of every fiftieth step."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(7)
    model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 1)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    chance = torch.Generator().manual_seed(100 + rank)
    first = 0
    if found := wf.last():
        saved = torch.load(found, weights_only=True)
        assert saved["rank"] == rank, "each rank gets its own shard"
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        chance.set_state(saved["chance"])
        first = saved["step"]
        print(f"rank {rank} resumed at step {first}", flush=True)
    for step in range(first + 1, STEPS + 1):
        with wf.step_context():
            time.sleep(float(os.environ.get("STEP_S", "0")))
            batch = torch.randn(8, 16, generator=chance)
            loss = (model(batch) - batch.sum(1, keepdim=True)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if rank == 0 and step % 50 == 0:
            print(f"step {step:5d}  loss {loss.item():.6f}", flush=True)
        if wf.check_save() or step == STEPS:
            path = f"rank{rank}-{step}.pt"
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "chance": chance.get_state()}
            torch.save({**state, "step": step, "rank": rank}, path)
            wf.backup(path)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
