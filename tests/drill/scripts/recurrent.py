"""A recurrent network whose hidden state goes on from batch to batch."""

import os

import torch
from torch import nn

import windfall as wf


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.LSTM(1, 12, batch_first=True)
        self.out = nn.Linear(12, 1)

    def forward(self, x, hc):
        y, hc = self.rnn(x, hc)
        return self.out(y), hc


def main():
    torch.manual_seed(0)
    series = torch.sin(torch.arange(0, 4000) * 0.1).view(4, -1, 1)
    net = Net()
    opt = torch.optim.RMSprop(net.parameters(), lr=3e-3)
    hidden = (torch.zeros(1, 4, 12), torch.zeros(1, 4, 12))
    first = 0
    path = wf.last()
    if path:
        d = torch.load(path)
        net.load_state_dict(d["net"])
        opt.load_state_dict(d["opt"])
        hidden = d["hidden"]
        first = d["i"]
    for i in range(first, 60):
        lo = (i * 10) % 900
        x, y = series[:, lo : lo + 10], series[:, lo + 1 : lo + 11]
        opt.zero_grad()
        pred, hidden = net(x, tuple(h.detach() for h in hidden))
        loss = ((pred - y) ** 2).mean()
        loss.backward()
        opt.step()
        wf.report(loss=loss.item())
        if wf.step():
            os.makedirs("checkpoints", exist_ok=True)
            f = f"checkpoints/{i}.pt"
            torch.save({"net": net.state_dict(), "opt": opt.state_dict(), "hidden": hidden, "i": i + 1}, f)
            wf.backup(f)


main()
