"""Mixed precision with dropout from the device's own generator; prints the hash of the weights at the end."""

import hashlib
import os
import sys
import time

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch
from torch import nn

from windfall.sdk.torch import Checkpoint

device, steps, hold_at = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
torch.set_num_threads(1)
torch.use_deterministic_algorithms(True)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(128, 512), nn.GELU(), nn.Dropout(0.2), nn.Linear(512, 128)).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
scaler = torch.amp.GradScaler(device)
data = torch.utils.data.TensorDataset(torch.randn(4096, 128), torch.randn(4096, 128))
checkpoint = Checkpoint(model=model, optimizer=optimizer, scheduler=scheduler, scaler=scaler)
batches = checkpoint.loader(data, seed=1, batch_size=64, shuffle=True)
start = checkpoint.resume()
done = start.step
print(f"starts at {done}", flush=True)
while done < steps:
    for inputs, targets in batches:
        with torch.autocast(device, dtype=torch.float16 if device == "cuda" else torch.bfloat16):
            loss = nn.functional.mse_loss(model(inputs.to(device)), targets.to(device))
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()
        done += 1
        if device == "cuda":
            torch.cuda.synchronize()
        checkpoint.step()
        if done % 50 == 0:
            print(f"step {done}", flush=True)
        while done == hold_at:
            time.sleep(1.0)  # until this machine is killed
        if done == steps:
            break
weights = b"".join(value.cpu().numpy().tobytes() for value in model.state_dict().values())
print("weights", hashlib.sha256(weights).hexdigest(), flush=True)
