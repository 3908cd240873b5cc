"""Train a small character GPT on Python's standard library, a real text that every Python installation has.

Windfall needs only the lines marked with `# <-`.  Without Windfall (`python train.py`) they do nothing.
"""

import argparse
import os
import pathlib
import random
import sysconfig

import torch
from torch import nn

import windfall as wf  # <-

BLOCK, BATCH, WIDTH, HEADS, LAYERS = 64, 16, 64, 4, 2


def read_corpus() -> torch.Tensor:
    """Return the standard library's source as bytes: the first megabyte, in the order of the file names."""
    folder = pathlib.Path(sysconfig.get_paths()["stdlib"])
    text = b"".join(path.read_bytes() for path in sorted(folder.glob("*.py")))
    return torch.frombuffer(bytearray(text[:1_000_000]), dtype=torch.uint8).long().clamp(max=127)


class Gpt(nn.Module):
    """Two transformer blocks with dropout, so that the state of the random generator matters."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(128, WIDTH)
        self.positions = nn.Embedding(BLOCK, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, dropout=0.1, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, 128)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(BLOCK))

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        hidden = self.tokens(text) + self.positions(torch.arange(text.shape[1]))
        return self.head(self.blocks(hidden, mask=self.mask, is_causal=True))


def batch_of(corpus: torch.Tensor, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the batch of a step.  It depends on the step alone, so no position in the data has to be saved."""
    at = torch.randint(len(corpus) - BLOCK - 1, (BATCH,), generator=torch.Generator().manual_seed(step))
    rows = torch.stack([corpus[start : start + BLOCK + 1] for start in at.tolist()])
    return rows[:, :-1], rows[:, 1:]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=1200)
    parser.add_argument("--print-every", type=int, default=100)
    options = parser.parse_args()
    steps = options.steps
    torch.set_num_threads(1)  # so that every machine adds in the same order
    torch.manual_seed(0)
    random.seed(0)
    corpus, model = read_corpus(), Gpt()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    parts = {"model": model, "optimizer": optimizer, "schedule": schedule}
    first = 0

    def save(step: int) -> str:
        path = f"checkpoint-{step}.pt"
        state = {name: part.state_dict() for name, part in parts.items()}
        torch.save({"step": step, "rng": torch.get_rng_state(), **state}, path)
        return path

    if checkpoint := wf.last():  # <-
        saved = torch.load(checkpoint)
        for name, part in parts.items():
            part.load_state_dict(saved[name])
        torch.set_rng_state(saved["rng"])
        first = saved["step"]
        print(f"resumed at step {first}")

    for step in range(first, steps):
        with wf.step_context():  # <-
            text, target = batch_of(corpus, step)
            loss = nn.functional.cross_entropy(model(text).flatten(0, 1), target.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
        if (step + 1) % options.print_every == 0:
            print(f"step {step + 1:5d}  loss {loss.item():.4f}")
        if wf.check_save() or step + 1 == steps:  # <-
            wf.backup(save(step + 1))  # <-

    if final := os.environ.get("FINAL"):
        torch.save(model.state_dict(), final)


if __name__ == "__main__":
    main()
