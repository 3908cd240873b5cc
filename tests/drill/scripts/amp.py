"""Mixed precision on the CPU with a gradient scaler, two optimizers, an averaged model; data from a DataLoader."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import windfall as wf

torch.set_num_threads(1)
torch.manual_seed(1)
body, head = nn.Sequential(nn.Linear(10, 16), nn.Tanh()), nn.Linear(16, 1)
averaged = torch.optim.swa_utils.AveragedModel(head, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))
fast = torch.optim.AdamW(body.parameters(), lr=3e-3)
slow = torch.optim.SGD(head.parameters(), lr=1e-2, momentum=0.9, nesterov=True)
scheduler = torch.optim.lr_scheduler.StepLR(slow, 4, 0.5)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=5)
parts = {
    "body": body,
    "head": head,
    "averaged": averaged,
    "fast": fast,
    "slow": slow,
    "scheduler": scheduler,
    "scaler": scaler,
}
x = torch.randn(64, 10, generator=torch.Generator().manual_seed(5))
data = TensorDataset(x, x.sum(1, keepdim=True))
shuffling = torch.Generator().manual_seed(3)
loader = DataLoader(data, batch_size=8, shuffle=True, generator=shuffling)
epoch, done = 0, 0

if path := wf.last():
    saved = torch.load(path)
    for name, part in parts.items():
        part.load_state_dict(saved[name])
    shuffling.set_state(saved["shuffling"])
    epoch, done = saved["epoch"], saved["done"]

while epoch < 100:
    before = shuffling.get_state()
    for number, (inputs, targets) in enumerate(loader):
        if number < done:
            continue
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = nn.functional.mse_loss(head(body(inputs)).float(), targets)
        for one in (fast, slow):
            one.zero_grad()
        scaler.scale(loss).backward()
        for one in (fast, slow):
            scaler.step(one)
        scaler.update()
        scheduler.step()
        averaged.update_parameters(head)
        done = number + 1
        if wf.step():
            states = {name: part.state_dict() for name, part in parts.items()}
            torch.save({**states, "epoch": epoch, "done": done, "shuffling": before}, f"{epoch}-{done}.pt")
            wf.backup(f"{epoch}-{done}.pt")
    epoch, done = epoch + 1, 0
