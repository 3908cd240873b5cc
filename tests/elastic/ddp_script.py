"""An ordinary script for DistributedDataParallel: `torchrun --nproc-per-node 2 ddp_script.py FOLDER WAIT_S`."""

import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

folder, wait_s = Path(sys.argv[1]), float(sys.argv[2])
torch.set_num_threads(1)
torch.manual_seed(1)
dist.init_process_group("gloo")
draw = torch.Generator().manual_seed(9)
inputs = torch.randn(48, 4, generator=draw)
dataset = TensorDataset(inputs, inputs.sum(1, keepdim=True), torch.arange(48))
sampler = DistributedSampler(dataset, shuffle=False)
loader = DataLoader(dataset, batch_size=16 // dist.get_world_size(), sampler=sampler)
model = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 4, 0.8)
model = DistributedDataParallel(model)
log = (folder / f"{os.getpid()}.log").open("a")
for epoch in range(6):
    sampler.set_epoch(epoch)
    for values, targets, numbers in loader:
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(values), targets)
        loss.backward()
        optimizer.step()
        schedule.step()
        log.write(json.dumps(numbers.tolist()) + "\n")
        log.flush()
        time.sleep(wait_s)
module = getattr(model, "module", model)
torch.save({name: value.clone() for name, value in module.state_dict().items()}, folder / f"{os.getpid()}.pt")
