"""A small GPT learns to write Python, letter by letter, on machines that come and go.

Alone: `python train.py`.  On a fleet: `windfall run job.yaml`.  The result is the same to the last bit.
"""

from __future__ import annotations

import argparse
import inspect
import time

import torch
from torch import nn

from windfall import elastic

WIDTH, LENGTH, STEPS = 64, 48, 250


class Letters(nn.Module):
    """What a letter is, and where it stands."""

    def __init__(self) -> None:
        super().__init__()
        self.letter, self.place = nn.Embedding(128, WIDTH), nn.Embedding(LENGTH, WIDTH)

    def forward(self, letters: torch.Tensor) -> torch.Tensor:
        return self.letter(letters) + self.place.weight[: letters.shape[1]]


class Block(nn.Module):
    """Attention to the letters before, then a network for each letter."""

    def __init__(self, wait_s: float) -> None:
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(WIDTH), nn.MultiheadAttention(WIDTH, 4, batch_first=True)
        self.network = nn.Sequential(
            nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )
        self.wait_s = wait_s

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        time.sleep(self.wait_s)  # a larger model would compute
        length = values.shape[1]
        later = torch.triu(torch.ones(length, length, dtype=torch.bool), 1)
        normed = self.norm(values)
        values = values + self.attention(normed, normed, normed, attn_mask=later, need_weights=False)[0]
        return values + self.network(values)


class Excerpts(torch.utils.data.Dataset):
    """Places in the source of a module of the standard library."""

    def __init__(self) -> None:
        text = inspect.getsource(argparse).encode("ascii", "replace")
        self.letters = torch.tensor(list(text))

    def __len__(self) -> int:
        return (len(self.letters) - 1) // LENGTH

    def __getitem__(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        first = number * LENGTH
        return self.letters[first : first + LENGTH], self.letters[first + 1 : first + LENGTH + 1]


def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(output.flatten(0, 1), target.flatten())


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--wait-s", type=float, default=0.0)
    wait_s = options.parse_args().wait_s
    torch.set_num_threads(1)
    torch.manual_seed(1)
    layers = nn.Sequential(Letters(), *(Block(wait_s) for _ in range(4)), nn.Linear(WIDTH, 128))
    model = elastic.Model(
        layers, loss, lambda parameters: torch.optim.AdamW(parameters, lr=3e-3), batch=32, micro_batch=4, clip_norm=1.0,
        deterministic=True,
    )  # fmt: skip
    for step, value in model.train(Excerpts(), steps=STEPS):
        if step % 25 == 0:
            print(f"step {step}: loss {value:.4f}", flush=True)

    text = torch.tensor([list(b"def ")])
    for _ in range(120):
        text = torch.cat([text, layers(text[:, -LENGTH:])[:, -1:].argmax(-1)], 1)
    print(bytes(text[0].tolist()).decode())


if __name__ == "__main__":
    main()
