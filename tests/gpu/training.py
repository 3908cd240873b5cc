"""A model on a GPU whose dropout draws from the device's own generator; prints the hash of its weights at the end."""

import hashlib
import os
import sys

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch
from torch import nn

from windfall.sdk.torch import Checkpoint

steps = int(sys.argv[1])
torch.use_deterministic_algorithms(True)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(512, 2048), nn.GELU(), nn.Dropout(0.2), nn.Linear(2048, 512)).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
scaler = torch.amp.GradScaler("cuda")
data = torch.utils.data.TensorDataset(torch.randn(4096, 512), torch.randn(4096, 512))
checkpoint = Checkpoint(model=model, optimizer=optimizer, scheduler=scheduler, scaler=scaler)
batches = checkpoint.loader(data, seed=1, batch_size=64, shuffle=True)
start = checkpoint.resume()
done = start.step
print(f"starts at {done}", flush=True)
while done < steps:
    for inputs, targets in batches:
        with torch.autocast("cuda", dtype=torch.float16):
            loss = nn.functional.mse_loss(model(inputs.cuda()), targets.cuda())
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()
        done += 1
        torch.cuda.synchronize()
        checkpoint.step()
        if done % 50 == 0:
            print(f"step {done}", flush=True)
        if done == steps:
            break
weights = b"".join(value.cpu().numpy().tobytes() for value in model.state_dict().values())
print("weights", hashlib.sha256(weights).hexdigest(), flush=True)
