"""Gradients clipped to the median of their norms so far."""

import os
import statistics

import torch

import windfall as wf


class AutoClip:
    """Clips to the running median of the norms."""

    def __init__(self):
        self.norms = []

    def __call__(self, params):
        params = list(params)
        total = torch.norm(torch.stack([p.grad.norm() for p in params])).item()
        self.norms.append(total)
        limit = statistics.median(self.norms[-50:])
        torch.nn.utils.clip_grad_norm_(params, limit * 0.5)


def main():
    torch.manual_seed(4)
    model = torch.nn.Linear(4, 1)
    opt = torch.optim.SGD(model.parameters(), lr=0.3)
    clip = AutoClip()
    it = 0
    resume = wf.last()
    if resume:
        ck = torch.load(resume)
        model.load_state_dict(ck["model"])
        opt.load_state_dict(ck["opt"])
        it = ck["it"]
        clip.norms = ck["norms"]
    while it < 50:
        x = torch.randn(8, 4, generator=torch.Generator().manual_seed(it))
        loss = (model(x).squeeze() - x.sum(1)).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        clip(model.parameters())
        opt.step()
        it += 1
        if wf.step():
            os.makedirs("saves", exist_ok=True)
            torch.save(
                {"model": model.state_dict(), "opt": opt.state_dict(), "it": it, "norms": clip.norms}, f"saves/{it}"
            )
            wf.backup(f"saves/{it}")


if __name__ == "__main__":
    main()
