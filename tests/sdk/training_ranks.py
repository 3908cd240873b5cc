"""Two ranks under torchrun with gloo: each steps until STEPS or until it has saved; prints what it ends with."""

from __future__ import annotations

import hashlib
import os
import sys

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import windfall as wf
from windfall.sdk.torch import Checkpoint

torch.set_num_threads(1)
torch.distributed.init_process_group("gloo")
rank = torch.distributed.get_rank()
torch.manual_seed(rank)
model = DistributedDataParallel(nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 4)))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
data = TensorDataset(torch.arange(128.0).reshape(32, 4) / 128)
checkpoint = Checkpoint(model=model, optimizer=optimizer)
batches = checkpoint.loader(DataLoader(data, batch_size=4, sampler=DistributedSampler(data)))
start = checkpoint.resume()
steps, saved = int(os.environ["STEPS"]), False
wf.context()
torch.distributed.barrier()
if "GO" in os.environ:  # until the test has published its request on both pages
    while not os.path.exists(os.environ["GO"]):
        pass
for _epoch in range(start.epoch, 100):
    for (batch,) in batches:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(batch), batch).backward()
        optimizer.step()
        saved = checkpoint.step()
        if saved or wf.context().step == steps:
            break
    if saved or wf.context().step == steps:
        break
digest = hashlib.sha256(b"".join(tensor.numpy().tobytes() for tensor in model.state_dict().values())).hexdigest()
sys.stdout.write(f"RANK {rank} {wf.context().step} {digest} {torch.rand(()).item()}\n")
sys.stdout.flush()
torch.distributed.destroy_process_group()
