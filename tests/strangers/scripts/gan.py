"""Two networks, two optimizers, fixed noise for the pictures."""

import hashlib
import os
import time

import torch
from torch import nn

import windfall as wf

STEPS = 100
torch.set_num_threads(1)
torch.manual_seed(3)
G = nn.Sequential(nn.Linear(4, 16), nn.LeakyReLU(0.2), nn.Linear(16, 2))
D = nn.Sequential(nn.Linear(2, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
g_opt = torch.optim.Adam(G.parameters(), lr=1e-3, betas=(0.5, 0.999))
d_opt = torch.optim.Adam(D.parameters(), lr=1e-3, betas=(0.5, 0.999))
fixed, bce, it = torch.randn(8, 4), nn.BCEWithLogitsLoss(), 0
os.makedirs("out", exist_ok=True)
if (path := wf.last()) is not None:
    saved = torch.load(path)
    for name, part in (("G", G), ("D", D), ("g_opt", g_opt), ("d_opt", d_opt)):
        part.load_state_dict(saved[name])
    torch.set_rng_state(saved["random"])
    fixed, it = saved["fixed"], saved["it"]
while it < STEPS:
    real = torch.randn(32, 2) * 0.3 + torch.tensor([1.0, -1.0])
    fake = G(torch.randn(32, 4))
    d_opt.zero_grad()
    (bce(D(real), torch.ones(32, 1)) + bce(D(fake.detach()), torch.zeros(32, 1))).backward()
    d_opt.step()
    g_opt.zero_grad()
    bce(D(fake), torch.ones(32, 1)).backward()
    g_opt.step()
    time.sleep(0.02)
    it += 1
    with open(os.environ["LOG"], "a") as log:
        log.write(f"{it}\n")
    if wf.step() or it % 30 == 0:
        path = f"out/gan-{it}.pt"
        parts = {"G": G.state_dict(), "D": D.state_dict(), "g_opt": g_opt.state_dict(), "d_opt": d_opt.state_dict()}
        torch.save({**parts, "random": torch.get_rng_state(), "fixed": fixed, "it": it}, path)
        wf.backup(path)
pictures = G(fixed).detach().numpy().tobytes()
print("result", hashlib.sha256(pictures).hexdigest(), flush=True)
