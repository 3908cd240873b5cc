"""A trainer with callbacks, one of which lowers the learning rate."""

import os
import time

import torch
from torch.nn import functional

import windfall as wf


class Callback:
    def on_start(self, t): ...
    def on_step(self, t, loss): ...


class Plateau(Callback):
    def __init__(self, patience=3):
        self.patience, self.wait, self.lowest = patience, 0, float("inf")

    def on_step(self, t, loss):
        if loss < self.lowest - 0.05:
            self.lowest, self.wait = loss, 0
        else:
            self.wait += 1
        if self.wait >= self.patience:
            for g in t.opt.param_groups:
                g["lr"] *= 0.7
            self.wait = 0


class Printer(Callback):
    def on_start(self, t):
        self.t0 = time.time()
        self.lines = 0

    def on_step(self, t, loss):
        self.lines += 1
        if t.global_step % 10 == 0:
            print(t.global_step, round(loss, 4), f"{time.time() - self.t0:.1f}s", self.lines)


class Trainer:
    def __init__(self):
        torch.manual_seed(0)
        self.net = torch.nn.Linear(6, 1)
        self.opt = torch.optim.SGD(self.net.parameters(), lr=0.05, momentum=0.9)
        self.plateau = Plateau()
        self.callbacks = [self.plateau, Printer()]
        self.global_step = 0

    def save(self):
        os.makedirs("ck", exist_ok=True)
        path = f"ck/{self.global_step}.pt"
        torch.save(
            {
                "net": self.net.state_dict(),
                "opt": self.opt.state_dict(),
                "step": self.global_step,
                "plateau": vars(self.plateau),
            },
            path,
        )
        wf.backup(path)

    def load(self, path):
        d = torch.load(path)
        self.net.load_state_dict(d["net"])
        self.opt.load_state_dict(d["opt"])
        self.global_step = d["step"]
        vars(self.plateau).update(d["plateau"])

    def batch(self, i):
        g = torch.Generator().manual_seed(i)
        x = torch.randn(16, 6, generator=g)
        return x, x.sum(1, keepdim=True) + 0.3 * torch.randn(16, 1, generator=g)

    def fit(self, n):
        if p := wf.last():
            self.load(p)
        for c in self.callbacks:
            c.on_start(self)
        while self.global_step < n:
            x, y = self.batch(self.global_step)
            self.opt.zero_grad()
            loss = functional.mse_loss(self.net(x), y)
            loss.backward()
            self.opt.step()
            for c in self.callbacks:
                c.on_step(self, loss.item())
            self.global_step += 1
            if wf.step():
                self.save()
        self.save()


Trainer().fit(80)
