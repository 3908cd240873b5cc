"""What a machine of the tests runs: a small model whose losses, samples and final state it writes down."""

from __future__ import annotations

import hashlib
import json
import os
import runpy
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from windfall import elastic
from windfall.errors import WindfallError
from windfall.wire import environment

WIDTH, WORDS, LENGTH, SAMPLES = 16, 11, 6, 56
WIDE = 256


class Words(torch.nn.Module):
    """The first layer of a small GPT."""

    def __init__(self) -> None:
        super().__init__()
        self.word = torch.nn.Embedding(WORDS, WIDTH)
        self.place = torch.nn.Parameter(torch.randn(LENGTH, WIDTH) * 0.1)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.word(words) + self.place


class Block(torch.nn.Module):
    """A layer of it, with dropout."""

    def __init__(self, wait_s: float = 0.0) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(WIDTH)
        self.mix = torch.nn.MultiheadAttention(WIDTH, 2, dropout=0.1, batch_first=True)
        self.wide, self.narrow = torch.nn.Linear(WIDTH, 2 * WIDTH), torch.nn.Linear(2 * WIDTH, WIDTH)
        self.drop = torch.nn.Dropout(0.1)
        self.register_buffer("mask", torch.triu(torch.ones(LENGTH, LENGTH, dtype=torch.bool), 1))
        self._wait_s = wait_s

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        if self._wait_s:
            time.sleep(self._wait_s)
        normed = self.norm(values)
        mixed, _ = self.mix(normed, normed, normed, attn_mask=self.mask, need_weights=False)
        values = values + mixed
        return values + self.drop(self.narrow(torch.nn.functional.gelu(self.wide(values))))


class Sentences:
    """Sentences drawn by their numbers, and in the target the number itself."""

    def __init__(self, samples: int = SAMPLES) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        generator = torch.Generator().manual_seed(number)
        words = torch.randint(0, WORDS, (LENGTH + 1,), generator=generator)
        # Chance that is not the sample's own, as augmentation draws it.
        words[0] = torch.randint(0, WORDS, ())
        return words[:-1], torch.cat([words[1:], torch.tensor([number])])


def train(options: Mapping[str, Any]) -> None:
    """Train, and write what happens to `options["folder"]`."""
    torch.set_num_threads(1)
    folder, name = Path(options["folder"]), options["machine"]
    if "place" in options:
        os.environ[environment.ELASTIC] = options["place"]
    torch.manual_seed(options.get("first", 1))
    layers = [Words(), *(Block(options.get("wait_s", 0.0)) for _ in range(4)), torch.nn.Linear(WIDTH, WORDS)]
    seen: list[int] = []

    def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        seen.extend(target[:, -1].tolist())
        return torch.nn.functional.cross_entropy(output.flatten(0, 1), target[:, :-1].flatten())

    model = elastic.Model(
        layers, loss, lambda parameters: torch.optim.AdamW(parameters, lr=1e-2), batch=16, micro_batch=2,
        deterministic=options.get("deterministic", True), clip_norm=0.5, schedule=lambda step: 1.0 / (1 + step / 10),
        save_every=options.get("save_every", 0),
    )  # fmt: skip
    with (folder / f"{name}.steps").open("a") as file:
        try:
            for step, value in model.train(Sentences(), options["steps"]):
                file.write(json.dumps([step, value, seen, time.time()]) + "\n")
                file.flush()
                seen.clear()
        except WindfallError as error:
            (folder / f"{name}.error").write_text(str(error))
            return
    (folder / f"{name}.end").write_text(digest(layers))


def train_wide(options: Mapping[str, Any]) -> None:
    """Train wide linear layers on few samples; each update of a layer takes `options["update_s"]` longer."""
    torch.set_num_threads(1)
    folder, name = Path(options["folder"]), options["machine"]
    if "place" in options:
        os.environ[environment.ELASTIC] = options["place"]
    torch.manual_seed(1)
    layers = [torch.nn.Linear(WIDE, WIDE) for _ in range(4)] + [torch.nn.Linear(WIDE, 1)]

    class Slow(torch.optim.AdamW):
        def step(self, closure: Any = None) -> Any:
            time.sleep(options.get("update_s", 0.0))
            return super().step(closure)

    inputs = torch.randn(64, WIDE, generator=torch.Generator().manual_seed(9))
    data = torch.utils.data.TensorDataset(inputs, inputs.sum(1, keepdim=True))
    model = elastic.Model(
        layers, torch.nn.functional.mse_loss, lambda parameters: Slow(parameters, lr=1e-4), batch=16, micro_batch=2
    )  # fmt: skip
    with (folder / f"{name}.steps").open("a") as file:
        for step, value in model.train(data, options["steps"]):
            file.write(json.dumps([step, value, [], time.time()]) + "\n")
            file.flush()


def train_wrapped(options: Mapping[str, Any]) -> None:
    """Train as a data-parallel script does, with a schedule and running statistics."""
    torch.set_num_threads(1)
    folder, name = Path(options["folder"]), options["machine"]
    if "place" in options:
        os.environ[environment.ELASTIC] = options["place"]
    torch.manual_seed(1)
    model = torch.nn.Sequential(
        torch.nn.Linear(4, 16), torch.nn.BatchNorm1d(16), torch.nn.Tanh(), torch.nn.Linear(16, 1)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.8)
    inputs = torch.randn(40, 4, generator=torch.Generator().manual_seed(9))
    data = torch.utils.data.TensorDataset(inputs, inputs.sum(1, keepdim=True), torch.arange(40))
    loader = torch.utils.data.DataLoader(data, batch_size=16, shuffle=True)
    training = elastic.wrap(model, optimizer, loader, schedule, steps=options["steps"])
    if not options.get("statistics", False):
        model[1].eval()
    with (folder / f"{name}.steps").open("a") as file:
        for values, targets, numbers in training:
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(values), targets)
            loss.backward()
            optimizer.step()
            schedule.step()
            file.write(
                json.dumps([training.step, float(loss), numbers.tolist(), optimizer.param_groups[0]["lr"]]) + "\n"
            )
            file.flush()
            time.sleep(options.get("wait_s", 0.0))
    torch.save(model.state_dict(), folder / f"{name}.model")
    (folder / f"{name}.end").write_text(digest([model]))


def run_file(options: Mapping[str, Any]) -> None:
    """Run a user's script as it stands: `options["file"]`, with the arguments of `options["argv"]`."""
    os.environ[environment.ELASTIC] = options["place"]
    sys.argv = [options["file"], *options["argv"]]
    runpy.run_path(options["file"], run_name="__main__")


def digest(layers: list[torch.nn.Module]) -> str:
    """Return a digest of all parameters."""
    found = hashlib.blake2b(digest_size=16)
    for layer in layers:
        for value in layer.parameters():
            found.update(value.detach().numpy().tobytes())
    return found.hexdigest()
