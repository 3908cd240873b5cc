"""The plain training as one of several ranks, each with a state of its own; a launcher starts them all.

As the launcher it gives each rank a session of its own, as torchrun does, and ends with the worst of their statuses.
Ranks meet at a barrier every few steps (`MEET`), so that in between one may run ahead of another.  The rank that
`LAZY` names never asks whether to save.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from tests.real import training_plain as plain


def launch(ranks: int) -> int:
    started = []
    for rank in range(ranks):
        variables = {**os.environ, "RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)}
        started.append(
            subprocess.Popen([sys.executable, "-m", "tests.real.training_ranks"], env=variables, start_new_session=True)
        )
    return max(abs(process.wait()) for process in started)


def _meet(rank: int, ranks: int, step: int) -> None:
    """Wait until every rank has come so far."""
    folder = Path(os.environ["MEETINGS"]) / os.environ["WINDFALL_TERM"] / os.environ["WINDFALL_ATTEMPT"]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{step}-{rank}").touch()
    while not all((folder / f"{step}-{other}").exists() for other in range(ranks)):
        time.sleep(0.002)


def train(rank: int, ranks: int) -> None:
    import windfall as wf

    steps, step_s, apart = int(os.environ["STEPS"]), float(os.environ.get("STEP_S", "0.01")), int(os.environ["MEET"])
    state = plain.first_state(rank)
    if found := wf.last():
        state = json.loads(Path(found).read_bytes())
        assert Path(found).name.startswith(f"rank{rank}-"), "each rank gets its own part"
    with open(os.environ["STARTS"], "a") as starts:
        starts.write(f"{wf.context().attempt} {state[0]} {rank}\n")
    # Rank 0 is the fastest: between two meetings it is ahead by up to `apart` steps.
    slow = step_s * (1.0 + 0.5 * rank)
    _meet(rank, ranks, state[0])
    while state[0] < steps:
        with wf.step_context():
            plain.take_time(slow, state[0])
            state = plain.advance(state)
        done = state[0]
        if rank == 0:
            print(f"step {done}", flush=True)
        if rank == ranks - 1 and done % plain.EVALUATE_EVERY == 0:
            with wf.phase("evaluation"):
                plain.reach(f"evaluation:{done}")
                time.sleep(3 * step_s)
        if (str(rank) != os.environ.get("LAZY") and wf.check_save()) or done == steps:
            path = f"rank{rank}-{done}-{os.getpid()}.json"
            Path(path).write_bytes(plain.to_bytes(state))
            wf.backup(path)
        if done % apart == 0 or done == steps:
            _meet(rank, ranks, done)


if __name__ == "__main__":
    if "RANK" in os.environ:
        train(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
    else:
        sys.exit(launch(int(os.environ["RANKS"])))
