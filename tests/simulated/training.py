"""A training script with a steady pace: real work on real numbers, then a wait for the beat.

Each step trains a small net and then waits until its period is over, each save writes the whole state and then waits
until its time is over, and before the first step the script waits until so long after the machine's setup, as if it were
loading data.  So the paces are the same on a busy host as on an idle one, and what differs between two runs is what
Windfall does with them.  The state is the net and a stretch of bytes that is new at each save, as the moments of
an optimizer would be: it goes through a limited uplink, so that its size is its time.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np

WIDTH = 32
SETUP = Path("setup-done")
"""The mark of the machine's setup."""


class Beat:
    """Waits to moments that lie a period apart, whatever the work between them took."""

    def __init__(self) -> None:
        self._due = time.monotonic()

    def again(self) -> None:
        """Begin to count here: what was before was no step."""
        self._due = time.monotonic()

    def wait(self, period_s: float) -> None:
        """Wait for the end of a period that began where the last one ended."""
        self._due += period_s
        left_s = self._due - time.monotonic()
        if left_s > 0.0:
            time.sleep(left_s)
        else:
            self.again()


def first_state(seed: int) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    return generator.normal(size=(WIDTH, WIDTH)) * 0.1, generator.normal(size=(WIDTH, WIDTH)) * 0.1


def advance(net: tuple[np.ndarray, np.ndarray], step: int) -> tuple[np.ndarray, np.ndarray]:
    """One step of gradient descent: the net learns to turn its input around; the step says which samples it sees."""
    seen = np.random.default_rng(step).normal(size=(64, WIDTH))
    hidden = np.tanh(seen @ net[0])
    error = hidden @ net[1] - seen[:, ::-1]
    back = (error @ net[1].T) * (1.0 - hidden**2)
    return net[0] - 0.01 * seen.T @ back / len(seen), net[1] - 0.01 * hidden.T @ error / len(seen)


def save(net: tuple[np.ndarray, np.ndarray], step: int, size_bytes: int) -> Path:
    path = Path(f"state-{step}.npz")
    moments = np.frombuffer(os.urandom(size_bytes), dtype=np.uint8)
    np.savez(path, first=net[0], second=net[1], moments=moments, step=step)
    return path


def load(path: str) -> tuple[tuple[np.ndarray, np.ndarray], int]:
    with np.load(path) as found:
        return (found["first"], found["second"]), int(found["step"])


def load_data(load_s: float) -> None:
    """Wait until so long after the setup, which has left a mark."""
    left_s = SETUP.stat().st_mtime + load_s - time.time()
    if left_s > 0.0:
        time.sleep(left_s)


def main() -> None:
    import windfall as wf

    steps, size_bytes = int(os.environ["STEPS"]), int(os.environ["STATE_BYTES"])
    step_s, save_s = float(os.environ["STEP_S"]), float(os.environ["SAVE_S"])
    net, done = first_state(1), 0
    if found := wf.last():
        net, done = load(found)
    saved: list[Path] = []
    load_data(float(os.environ["LOAD_S"]))
    beat = Beat()
    while done < steps:
        with wf.step_context():
            net = advance(net, done)
            beat.wait(step_s)
            done += 1
        if wf.check_save() or done == steps:
            beat.again()
            saved.append(save(net, done, size_bytes))
            beat.wait(save_s)
            wf.backup(str(saved[-1]))
            for old in saved[:-2]:
                old.unlink(missing_ok=True)
            saved = saved[-2:]
            beat.again()


if __name__ == "__main__":
    main()
