"""A tiny language model: a frozen embedding, AdamW, warm-up by hand, gradient accumulation, a wrapper."""

import torch
from torch import nn

import windfall as wf

ACCUMULATE = 4


class Wrapper(nn.Module):
    """Stands for what wraps a model: data parallelism, compilation."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        return self.module(text)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(32, 16)
        self.rnn = nn.GRU(16, 24, batch_first=True)
        self.head = nn.Linear(24, 32)
        self.embedding.weight.requires_grad_(False)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        return self.head(self.rnn(self.embedding(text))[0])


def rate_of(update: int) -> float:
    return 1e-2 * min(1.0, (update + 1) / 20)


def text_of(micro: int) -> torch.Tensor:
    start = torch.randint(32, (4, 1), generator=torch.Generator().manual_seed(micro))
    return (start + torch.arange(9)) % 32


torch.set_num_threads(1)
torch.seed()  # every start draws other embeddings: they come back from the checkpoint alone
model = Model()
wrapped = Wrapper(model)
trained = [one for one in model.parameters() if one.requires_grad]
optimizer = torch.optim.AdamW(trained, lr=1e-2)
micro, update = 0, 0

if path := wf.last():
    saved = torch.load(path)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    micro, update = saved["micro"], saved["update"]
    for one, gradient in zip(trained, saved["gradients"], strict=True):
        one.grad = gradient

while micro < 1000:
    text = text_of(micro)
    logits = wrapped(text[:, :-1])
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), text[:, 1:].flatten()) / ACCUMULATE
    loss.backward()
    micro += 1
    if micro % ACCUMULATE == 0:
        for group in optimizer.param_groups:
            group["lr"] = rate_of(update)
        optimizer.step()
        optimizer.zero_grad()
        update += 1
    if wf.step(micro):
        gradients = [None if one.grad is None else one.grad.clone() for one in trained]
        everything = {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "micro": micro,
            "update": update,
            "gradients": gradients,
        }
        torch.save(everything, f"{micro}.pt")
        wf.backup(f"{micro}.pt")
