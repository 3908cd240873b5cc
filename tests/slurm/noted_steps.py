"""A training of pure Python whose loss depends on every step taken; each step is noted in one file for all its machines."""

from __future__ import annotations

import json
import os
import random
import sys
import time
from pathlib import Path

FIRST_LOSS = 8.0


def advance(step: int, loss: float) -> float:
    """The loss after a step."""
    return 0.98 * loss + 0.05 * random.Random(step).random()


def undisturbed(steps: int) -> dict[int, str]:
    """Loss by step of a run that loses nothing, as it is noted."""
    found, loss = {}, FIRST_LOSS
    for step in range(1, steps + 1):
        loss = advance(step, loss)
        found[step] = repr(loss)
    return found


def main() -> None:
    """Train to the end; a note is time, job, process, step and loss."""
    import windfall as wf

    steps, step_s = int(os.environ["STEPS"]), float(os.environ["STEP_S"])
    step, loss = 0, FIRST_LOSS
    if found := wf.last():
        step, loss = json.loads(Path(found).read_text())
    with open(os.environ["NOTES"], "a", buffering=1) as notes:
        while step < steps:
            with wf.step_context():
                time.sleep(step_s)
                step, loss = step + 1, advance(step + 1, loss)
            notes.write(f"{time.time():.3f} {os.environ['SLURM_JOB_ID']} {os.getpid()} {step} {loss!r}\n")
            if wf.check_save() or step == steps:
                path = f"saved-{step}-{os.getpid()}.json"
                Path(path).write_text(json.dumps([step, loss]))
                wf.backup(path)
    print(f"last loss {loss!r}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
