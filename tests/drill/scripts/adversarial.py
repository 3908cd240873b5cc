"""Two networks, two optimizers, and a loss that is a module."""

import os

import torch
from torch import nn

import windfall as wf

torch.manual_seed(3)
G = nn.Sequential(nn.Linear(4, 16), nn.LeakyReLU(0.2), nn.Linear(16, 2))
D = nn.Sequential(nn.Linear(2, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
g_opt = torch.optim.Adam(G.parameters(), lr=1e-3, betas=(0.5, 0.999))
d_opt = torch.optim.Adam(D.parameters(), lr=1e-3, betas=(0.5, 0.999))
fixed_z = torch.randn(8, 4)
bce = nn.BCEWithLogitsLoss()
it = 0
if (p := wf.last()) is not None:
    s = torch.load(p)
    G.load_state_dict(s["G"])
    D.load_state_dict(s["D"])
    g_opt.load_state_dict(s["g_opt"])
    d_opt.load_state_dict(s["d_opt"])
    torch.set_rng_state(s["rng"])
    fixed_z = s["fixed_z"]
    it = s["it"]
g_losses, d_losses = [], []
while it < 60:
    real = torch.randn(32, 2) * 0.3 + torch.tensor([1.0, -1.0])
    fake = G(torch.randn(32, 4))
    d_opt.zero_grad()
    d_loss = bce(D(real), torch.ones(32, 1)) + bce(D(fake.detach()), torch.zeros(32, 1))
    d_loss.backward()
    d_opt.step()
    g_opt.zero_grad()
    g_loss = bce(D(fake), torch.ones(32, 1))
    g_loss.backward()
    g_opt.step()
    g_losses.append(g_loss.item())
    d_losses.append(d_loss.item())
    it += 1
    if wf.step():
        os.makedirs("out", exist_ok=True)
        path = f"out/gan-{it}.pt"
        torch.save(
            {
                "G": G.state_dict(),
                "D": D.state_dict(),
                "g_opt": g_opt.state_dict(),
                "d_opt": d_opt.state_dict(),
                "rng": torch.get_rng_state(),
                "fixed_z": fixed_z,
                "it": it,
            },
            path,
        )
        wf.backup(path)
