"""A training run of pure Python whose state depends on every step taken, in the order taken, and on nothing else.

Its state is what a real one has: a step, a random generator, floating point numbers that do not commute.  Moments at
which a test wants to strike are held open: with `HOLD=save:40` the script stands still in the middle of
saving step 40, with `HOLD=save` in the middle of its first save.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from pathlib import Path

WEIGHTS = 64
EVALUATE_EVERY = 25
SLOW_S = 0.2

State = tuple[int, list[object], list[float]]


def first_state(rank: int = 0) -> State:
    generator = random.Random(1234 + rank)
    weights = [generator.gauss(0.0, 1.0) for _ in range(WEIGHTS)]
    return 0, _plain(generator), weights


def advance(state: State) -> State:
    """One step: every number moves by a random gradient, and by its neighbour."""
    step, memory, weights = state
    generator = random.Random()
    version, numbers, gauss = memory
    generator.setstate((version, tuple(numbers), gauss))  # type: ignore[arg-type, misc]
    moved = []
    before = weights[-1]
    for weight in weights:
        moved.append(weight * 0.999 + 0.01 * generator.gauss(0.0, 1.0) + 0.001 * before)
        before = weight
    return step + 1, _plain(generator), moved


def undisturbed(steps: int, rank: int = 0) -> bytes:
    """What a run that nobody disturbs saves in the end."""
    state = first_state(rank)
    for _ in range(steps):
        state = advance(state)
    return to_bytes(state)


def to_bytes(state: State) -> bytes:
    return json.dumps(state).encode()


def _plain(generator: random.Random) -> list[object]:
    version, numbers, gauss = generator.getstate()
    return [version, list(numbers), gauss]


def reach(moment: str) -> None:
    """Tell that a moment is reached; stand still as long as the test holds it."""
    if {moment, moment.partition(":")[0]} & {os.environ.get("HOLD")}:
        held = Path(os.environ["HELD"])
        held.write_text(moment)
        while held.exists():
            time.sleep(0.002)


def take_time(step_s: float, done: int) -> None:
    """Take a step's time; the run's first attempt is slow from step `SLOW_FROM` on.

    So a test strikes in the middle of a run even if it sees the step late.
    """
    import windfall as wf

    slow = done >= int(os.environ.get("SLOW_FROM", sys.maxsize)) and wf.context().attempt == 1
    time.sleep(max(step_s, SLOW_S) if slow else step_s)


def _save(state: State) -> str:
    data = to_bytes(state)
    path = f"checkpoint-{state[0]}-{os.getpid()}.json"
    with open(path, "wb") as file:
        file.write(data[: len(data) // 2])
        file.flush()
        reach(f"save:{state[0]}")
        file.write(data[len(data) // 2 :])
    return path


def main() -> None:
    import windfall as wf

    steps, step_s = int(os.environ["STEPS"]), float(os.environ.get("STEP_S", "0.005"))
    state = first_state()
    reach("start")
    if found := wf.last():
        state = json.loads(Path(found).read_bytes())
        reach("resume")
    with open(os.environ["STARTS"], "a") as starts:
        starts.write(f"{wf.context().attempt} {state[0]} {os.getpid()}\n")
    print(f"from {state[0]}", flush=True)
    while state[0] < steps:
        with wf.step_context():
            take_time(step_s, state[0])
            reach(f"step:{state[0] + 1}")
            state = advance(state)
        done = state[0]
        print(f"step {done}", flush=True)
        if str(done) in os.environ.get("FAIL_AT", "").split(","):
            sys.exit(3)
        if done % EVALUATE_EVERY == 0:
            with wf.phase("evaluation"):
                time.sleep(4 * step_s)
                reach(f"evaluation:{done}")
        if wf.check_save() or done == steps:
            wf.backup(_save(state))
    reach("end")
    print("trained", flush=True)
    sys.exit(int(os.environ.get("STATUS", "0")))


if __name__ == "__main__":
    main()
