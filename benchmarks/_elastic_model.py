"""A small GPT whose computing takes a calibrated wait, for Windfall and for what it is compared with; it needs torch alone."""

from __future__ import annotations

import os
import time

import torch

BLOCKS, WORDS, LENGTH = 4, 32, 16


class Embedded(torch.nn.Module):
    """The first layer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.word = torch.nn.Embedding(WORDS, width)
        self.place = torch.nn.Parameter(torch.randn(LENGTH, width) * 0.1)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.word(words) + self.place


class WaitingBlock(torch.nn.Module):
    """Attention and a network of two layers, and a wait for each sample."""

    def __init__(self, width: int, wait_s: float) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(width)
        self.mix = torch.nn.MultiheadAttention(width, 2, batch_first=True)
        self.wide, self.narrow = torch.nn.Linear(width, 2 * width), torch.nn.Linear(2 * width, width)
        self.register_buffer("mask", torch.triu(torch.ones(LENGTH, LENGTH, dtype=torch.bool), 1))
        self._wait_s = wait_s

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        if self._wait_s:
            time.sleep(self._wait_s * len(values))
        normed = self.norm(values)
        mixed, _ = self.mix(normed, normed, normed, attn_mask=self.mask, need_weights=False)
        values = values + mixed
        return values + self.narrow(torch.nn.functional.gelu(self.wide(values)))


def layers_of(width: int, wait_s: float) -> list[torch.nn.Module]:
    """Return the layers; forward, a sample takes `wait_s` in all blocks together [s]."""
    torch.set_num_threads(1)
    torch.manual_seed(1)
    blocks = [WaitingBlock(width, wait_s / BLOCKS) for _ in range(BLOCKS)]
    return [Embedded(width), *blocks, torch.nn.Linear(width, WORDS)]


def loss_of(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Return the mean loss."""
    return torch.nn.functional.cross_entropy(output.flatten(0, 1), target.flatten())


class DrawnWords:
    """Sentences drawn by their numbers."""

    def __len__(self) -> int:
        return 4096

    def __getitem__(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        words = torch.randint(0, WORDS, (LENGTH + 1,), generator=torch.Generator().manual_seed(number))
        return words[:-1], words[1:]


class StepTimes:
    """Writes a line for each step: when it was done (monotonic), its number, and a number of what it was trained in."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o644)

    def done(self, step: int, layout: int = 0) -> None:
        """Write that a step is done."""
        os.write(self._file, f"{time.monotonic()} {step} {layout}\n".encode())
