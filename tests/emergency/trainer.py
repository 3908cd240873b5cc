"""A trainer without a framework: its state is bytes of a chosen length that are other bytes after every step.

    python trainer.py PROGRESS SIZE_BYTES STEP_S FIRST_SAVE

It appends to PROGRESS what it has done, each line with the moment of the monotonic clock; the file belongs to the
observer and outlives the machine.  At step FIRST_SAVE (0: never) it saves by its own schedule.
"""

from __future__ import annotations

import hashlib
import os
import sys
import time

import windfall as wf

BLOCK_BYTES = 1 << 16


def state_after(step: int, size_bytes: int) -> bytes:
    """Return the state after so many steps: its number, then bytes that depend on it."""
    block = hashlib.shake_128(step.to_bytes(8, "big")).digest(BLOCK_BYTES)
    body = block * (size_bytes // BLOCK_BYTES + 1)
    return step.to_bytes(8, "big") + body[: size_bytes - 8]


def resumed(path: str | None, size_bytes: int) -> int:
    """Return the step of the restored state; every byte of it must be the one that was saved."""
    if path is None:
        return 0
    with open(path, "rb") as file:
        state = file.read()
    step = int.from_bytes(state[:8], "big")
    assert state == state_after(step, size_bytes), f"the restored state of step {step} is not whole"
    return step


def main() -> None:
    """Train until the machine is taken away."""
    progress = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    size_bytes, step_s, first_save = int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])

    def note(word: str, step: int) -> None:
        os.write(progress, f"{word} {step} {time.monotonic()}\n".encode())

    step = resumed(wf.last(), size_bytes)
    note("resumed", step)
    while True:
        started = time.monotonic()
        state = state_after(step + 1, size_bytes)
        time.sleep(max(started + step_s - time.monotonic(), 0.0))
        step += 1
        note("step", step)
        if wf.step() or step == first_save:
            path = f"state-{step}.bin"
            with open(path, "wb") as file:
                file.write(state)
            wf.backup(path)
            note("saved", step)


if __name__ == "__main__":
    main()
