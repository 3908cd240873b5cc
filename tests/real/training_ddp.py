"""A small model trained with DistributedDataParallel over gloo, one rank on each machine or several under torchrun.

Each rank's part holds the model, its optimizer and its own stream of chance, so that ranks restored from one another's
parts, or from different steps, would be noticed in the weights.
"""

from __future__ import annotations

import os
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import windfall as wf


def train() -> None:
    steps, step_s = int(os.environ["STEPS"]), float(os.environ.get("STEP_S", "0.02"))
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(7)
    model = DistributedDataParallel(
        torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    chance = torch.Generator().manual_seed(100 + rank)
    step = 0
    if found := wf.last():
        assert os.path.basename(found).startswith(f"rank{rank}-"), "each rank gets its own part"
        state = torch.load(found, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        chance.set_state(state["chance"])
        step = state["step"]
    with open(os.environ["STARTS"], "a") as starts:
        starts.write(f"{wf.context().attempt} {step} {rank}\n")
    while step < steps:
        with wf.step_context():
            time.sleep(step_s)
            batch = torch.randn(8, 16, generator=chance)
            loss = (model(batch) - batch.sum(1, keepdim=True)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
        if rank == 0:
            print(f"step {step}", flush=True)
        if wf.check_save() or step == steps:
            path = f"rank{rank}-{step}-{os.getpid()}.pt"
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save({**state, "chance": chance.get_state(), "step": step}, path)
            wf.backup(path)
    dist.destroy_process_group()


if __name__ == "__main__":
    train()
