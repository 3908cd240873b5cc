"""How many pictures the memory of a machine has room for: alpha2 and beta2 of spotDNN's equation 10, measured.

`python -m windfall.apps.cnn_memory CHANNELS HEIGHT WIDTH FIRST CLASSES` trains a network of `apps.cnn` with ever larger
batches, and prints the most memory that the process has had with each.  It is a process of its own, because that number never
falls.
"""

from __future__ import annotations

import json
import mmap
import subprocess
import sys
from pathlib import Path

import numpy as np
import torch
from torch import nn

from windfall.errors import Misuse
from windfall.structs import Struct
from windfall.wire import python_programs

BATCH_MEMORY_BYTES = 100e6, 200e6, 300e6, 400e6
"""About how much memory the batches take that are measured."""
BYTES_PER_NUMBER = 16
"""A rough guess of what a number of the convolutions' results takes, with gradients, to choose the batches by."""
PAGE_GB = mmap.PAGESIZE / 1e9
"""The least by which the kernel counts a process's memory."""
STEPS = 3
MEASURED_WITHIN_S = 300.0


class MemoryLine(Struct, frozen=True):
    """Samples by memory: `alpha2` [samples/GB] and `beta2` [samples], below 0 where the process takes memory of its own."""

    alpha2: float
    beta2: float


def measured_line(picture: tuple[int, ...], channels: int, classes: int) -> MemoryLine:
    """Return the line, by least squares through the memory of a process over its batch.

    Args:
        picture: channels, height and width of a picture.
        channels: of the first convolution.
        classes: how many.

    Raises:
        Misuse: memory did not grow with the batch, or the process failed.
    """
    argv = python_programs.program("windfall.apps.cnn_memory", *map(str, (*picture, channels, classes)))
    try:
        done = subprocess.run(argv, capture_output=True, check=True, text=True, timeout=MEASURED_WITHIN_S)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        last = (str(error.stderr or "").strip().splitlines() or [str(error)])[-1]
        raise Misuse(f"settings.batch: memory by batch cannot be measured: {last}; write a number, not auto") from error
    return line_through(json.loads(done.stdout))


def line_through(measured: list[tuple[int, float]]) -> MemoryLine:
    """Return the line through batches and memory in use [GB]: memory over batch, turned round, as the batch is exact.

    Raises:
        Misuse: memory did not grow with the batch.
    """
    batches, memory_gb = np.array(measured, np.float64).T
    slope, intercept = np.polyfit(batches, memory_gb, 1)
    # The slope of a level line is not 0 but rounding, of either sign by the processor.
    if slope * np.ptp(batches) < PAGE_GB:
        raise Misuse("settings.batch: memory in use did not grow with the batch; write a number, not auto")
    return MemoryLine(float(1.0 / slope), float(-intercept / slope))


def main() -> None:
    """Print batches and memory [GB] as JSON."""
    from windfall.apps.cnn import network  # noqa: PLC0415 - that module imports this one

    torch.set_num_threads(1)
    channels, height, width, first, classes = map(int, sys.argv[1:])
    model = network((channels, height, width), first, classes)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    per_picture = BYTES_PER_NUMBER * 3 * first * height * width
    measured = []
    for memory in BATCH_MEMORY_BYTES:
        batch = max(1, int(memory / per_picture))
        pictures, kinds = torch.zeros(batch, channels, height, width), torch.zeros(batch, dtype=torch.int64)
        for _ in range(STEPS):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(pictures), kinds).backward()
            optimizer.step()
        measured.append((batch, peak_gb()))
    sys.stdout.write(json.dumps(measured))


def peak_gb() -> float:
    """Return the most memory that this process has had [GB]."""
    status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024 / 1e9


if __name__ == "__main__":
    main()
