"""A user's script: a small CNN with BatchNorm, Dropout, Adam and a schedule, on generated pictures."""

import torch
from torch import nn

import windfall.paramserver as ps

torch.set_num_threads(1)
torch.manual_seed(1)
model = nn.Sequential(
    nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.2), nn.Flatten(), nn.Linear(4 * 36, 3)
)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=5, gamma=0.5)
server = ps.wrap(model, optimizer, schedule, width=64)
for turn in server.turns():
    pictures = torch.randn(16, 1, 8, 8)
    kinds = (pictures.mean((1, 2, 3)) > 0).long() + turn.data % 2
    loss = nn.functional.cross_entropy(model(pictures), kinds)
    loss.backward()
    optimizer.step()
    schedule.step()
