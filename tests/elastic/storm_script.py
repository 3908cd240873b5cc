"""What a machine of the live storm runs: a GPT of 100,000 parameters, whose data set and loss write down each sample at once.

A record is one write to a file, so that it outlives a SIGKILL: what a machine has done is known up to its end.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from tests.elastic.elastic_script import digest
from windfall import elastic
from windfall.runtimes.shape_links import LinkBroken
from windfall.runtimes.shape_member import ShapeMember
from windfall.wire import environment

WIDTH, WORDS, LENGTH = 56, 23, 8
SAMPLES, BATCH, MICRO_BATCH = 44, 12, 2
BLOCKS = 4
LAYERS = 2 + BLOCKS
AHEAD_S, AHEAD_MAX_S = 0.1, 2.0
"""How long a step rests for each one that training is ahead of the changes, so that it lasts longer than they do [s]."""


class StormRecord:
    """The file in which a machine writes what it does; `options["folder"]` has one of each machine."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)

    def tell(self, kind: str, *values: Any) -> None:
        """Write that something happened now."""
        os.write(self._fd, (json.dumps([time.time(), kind, *values]) + "\n").encode())


class Opening(torch.nn.Module):
    """The first layer of the GPT."""

    def __init__(self) -> None:
        super().__init__()
        self.word = torch.nn.Embedding(WORDS, WIDTH)
        self.place = torch.nn.Parameter(torch.randn(LENGTH, WIDTH) * 0.1)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.word(words) + self.place


class WideBlock(torch.nn.Module):
    """A layer of it, with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.norm_2 = torch.nn.LayerNorm(WIDTH), torch.nn.LayerNorm(WIDTH)
        self.mix = torch.nn.MultiheadAttention(WIDTH, 2, dropout=0.1, batch_first=True)
        self.wide, self.narrow = torch.nn.Linear(WIDTH, 2 * WIDTH), torch.nn.Linear(2 * WIDTH, WIDTH)
        self.drop = torch.nn.Dropout(0.1)
        self.register_buffer("mask", torch.triu(torch.ones(LENGTH, LENGTH, dtype=torch.bool), 1))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        normed = self.norm(values)
        mixed, _ = self.mix(normed, normed, normed, attn_mask=self.mask, need_weights=False)
        values = values + mixed
        return values + self.drop(self.narrow(torch.nn.functional.gelu(self.wide(self.norm_2(values)))))


class RecordedSentences:
    """Sentences drawn by their numbers; each that is read is written down."""

    def __init__(self, record: StormRecord) -> None:
        self._record = record

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        self._record.tell("read", number)
        words = torch.randint(0, WORDS, (LENGTH + 1,), generator=torch.Generator().manual_seed(number))
        # Chance that is not the sample's own, as augmentation draws it.
        words[0] = torch.randint(0, WORDS, ())
        return words[:-1], torch.cat([words[1:], torch.tensor([number])])


def build() -> list[torch.nn.Module]:
    """Return the layers with their first values."""
    torch.manual_seed(1)
    return [Opening(), *(WideBlock() for _ in range(BLOCKS)), torch.nn.Linear(WIDTH, WORDS)]


def train(options: Mapping[str, Any]) -> None:
    """Train, and write what happens to `options["folder"]`."""
    torch.set_num_threads(1)
    folder, name = Path(options["folder"]), options["machine"]
    sys.stderr.flush()
    os.dup2(os.open(folder / f"{name}.err", os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600), 2)
    if "place" in options:
        os.environ[environment.ELASTIC] = options["place"]
    record, layers = StormRecord(folder / f"{name}.record"), build()
    _tell_why(record)

    def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        record.tell("trained", *target[:, -1].tolist())
        return torch.nn.functional.cross_entropy(output.flatten(0, 1), target[:, :-1].flatten())

    model = elastic.Model(
        layers, loss, lambda parameters: torch.optim.AdamW(parameters, lr=options.get("rate", 3e-3)), batch=BATCH,
        micro_batch=MICRO_BATCH, deterministic=options["deterministic"], clip_norm=0.5, save_every=options.get("save_every", 0),
        schedule=lambda step: 1.0 / (1 + step / 10),
    )  # fmt: skip
    for step, value in model.train(RecordedSentences(record), options["steps"]):
        record.tell("step", step, value)
        _rest(folder, step)
    torch.save([layer.state_dict() for layer in layers], folder / f"{name}.state")
    (folder / f"{name}.end").write_text(digest(layers))


def _tell_why(record: StormRecord) -> None:
    """Write why this machine gives up a layout: whoever reads a storm that failed needs it."""
    give_up = ShapeMember.give_up

    def told(member: ShapeMember, broken: LinkBroken) -> None:
        record.tell("gave up", member.step, str(broken))
        give_up(member, broken)

    ShapeMember.give_up = told  # type: ignore[method-assign]


def _rest(folder: Path, step: int) -> None:
    """Rest as long as training is ahead of the changes."""
    allowed = folder / "allowed"
    if allowed.exists():
        time.sleep(max(0.0, min(AHEAD_MAX_S, AHEAD_S * (step - int(allowed.read_text() or step)))))
