"""Elastic trainings on this host: after a loss, at a notice, a join and a change of shape, beside what others do there.

The model is a small GPT whose computing takes a calibrated wait, so that two cores stand for five machines; transport, votes,
sums, the backup and the coordinator are real (`_elastic_fleet`).  The pairs:

    kill_vs_torchft, kill_vs_ray    four ranks, P = 1: from SIGKILL of one to the next step of all others
    notice_step, join_step          the slowest step but one while a machine leaves with notice; the slowest while one joins
    reshape_vs_restart              2x2 becomes 4x1, beside new processes that continue as 4x1 from the newest checkpoint
    deterministic_step              a step whose result does not depend on the shape, beside the default
    backup_bytes                    what the backup is sent in a step, beside the whole state

**torchft and Ray Train.**  `BENCH_RIVALS` names a Python that has them, which may have an environment of its own
(`pip install 'ray[train]' torchft-nightly`, with this torch); without it, or where it lacks one, that pair is skipped, and
says so.  torchft's heartbeat is 1 s, its timeouts those of its example.  Ray starts all four again from a checkpoint, so its
end is the first step of all new ones.  Both train the same model on the same batch.

**The restart** is of forks that have imported torch, plus what one Python takes here to start and to import it by itself: four
at once would wait for two cores, as they do not where each has a machine.  Steps since the checkpoint are not counted.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks import _elastic_rivals
from benchmarks._elastic_fleet import (
    IMPORTED,
    DoneStep,
    FleetTerms,
    elastic_fleet,
    first_after,
    median_pace,
    paces,
    steps_in,
    until,
)
from benchmarks.harness import Benchmark, Skipped
from windfall.models.shapes import Shape

RIVALS = "BENCH_RIVALS"
FLAT = tuple(Shape(pipelines, 1) for pipelines in range(1, 5))
KILLED = FleetTerms(wait_s=0.005, shapes=FLAT)
NAMES = ("a", "b", "c", "d")
KILL_SHARE, RESTART_SHARE, NOTICE_STEPS, JOIN_STEPS, BYTES_SHARE = 0.5, 0.25, 2.0, 1.2, 0.34
RIVAL_WITHIN_S = 240.0
KILL_ROUNDS, STEP_S = 7, 0.25
PHASES = random.Random(0)
"""At which moment of a step, which takes about `STEP_S`, a rank is killed: how long torchft takes depends on it."""
SPREAD_MAX = 0.3
"""Of yardsticks that wait for detection and for processes."""


def benchmarks() -> list[Callable[[], Benchmark]]:
    fast = [kill_vs_torchft, kill_vs_ray, notice_step, join_step, reshape_vs_restart]
    return [*fast, deterministic_step, backup_bytes]


# ---------------------------------------------------------------------------------------------------------------------- a loss


def killed_ours() -> float:
    """Return how long four ranks of ours take after one is killed [s]."""
    with tempfile.TemporaryDirectory() as folder, elastic_fleet(Path(folder), KILLED) as fleet:
        fleet.start("R1", *NAMES)
        fleet.wait_shape(Shape(4, 1), NAMES, 10)
        version, left = fleet.loop.layout.version, ("a", "b", "d")
        time.sleep(PHASES.uniform(0.0, STEP_S))
        at_s = fleet.kill("c")
        fleet.wait_shape(Shape(3, 1), left, 1)
        return tell("ours", max(first_after(fleet.steps(name), version) for name in left) - at_s)


def tell(who: str, seconds: float) -> float:
    """Print how long a round took, since rounds may differ by their kind and not by noise; return it."""
    print(f"    {who}: {seconds:.2f} s", file=sys.stderr)
    return seconds


@contextlib.contextmanager
def rival(name: str) -> Iterator[Path]:
    """Have a rival's four ranks train; yield the folder with their steps."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            os.environ[RIVALS], _elastic_rivals.__file__, name, folder, KILLED.wait_s, KILLED.batch, KILLED.width,
        ]  # fmt: skip
        environ = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "TORCH_CPP_LOG_LEVEL": "FATAL", "PYTHONPATH": ""}
        process = subprocess.Popen(
            list(map(str, command)), env=environ, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            process_group=0,
        )  # fmt: skip
        try:
            yield Path(folder)
        finally:
            assert process.stdin is not None
            process.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(20.0)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, 9)
            process.wait()


def ranks_of(folder: Path) -> dict[int, list[DoneStep]]:
    """Return the steps of each process by its number."""
    return {int(path.stem.partition("-")[2]): steps_in(path) for path in sorted(folder.glob("*-*.steps"))}


def train_well(folder: Path, ranks: int) -> bool:
    """Whether so many processes have trained for a while."""
    found = ranks_of(folder)
    return len(found) == ranks and all(len(steps) >= 15 for steps in found.values())


def killed_torchft() -> float:
    """Return the same of torchft's [s]."""
    with rival("torchft") as folder:
        until(lambda: train_well(folder, 4), "torchft trains", RIVAL_WITHIN_S)
        victim = list(ranks_of(folder))[2]
        time.sleep(PHASES.uniform(0.0, STEP_S))
        at_s = time.monotonic()
        os.kill(victim, 9)

        def back() -> list[float]:
            """The end of the longest pause since then, of each that has trained on after it."""
            left = [steps for pid, steps in ranks_of(folder).items() if pid != victim]
            return [
                longest_pause_end(steps, at_s)
                for steps in left
                if steps[-5].at_s > at_s + _elastic_rivals.HEARTBEAT_S / 2
            ]

        until(lambda: len(back()) == 3, "torchft's others train again", RIVAL_WITHIN_S)
        return tell("torchft", max(back()) - at_s)


def longest_pause_end(steps: Sequence[DoneStep], at_s: float) -> float:
    """Return the end of the longest pause between two steps of which the second one ended after an instant [s]."""
    times = [one.at_s for one in steps]
    return max((after - before, after) for before, after in itertools.pairwise(times) if after > at_s)[1]


def killed_ray() -> float:
    """Return the same of Ray Train's [s]."""
    with rival("ray") as folder:
        until(lambda: train_well(folder, 4), "Ray Train trains", RIVAL_WITHIN_S)
        old = ranks_of(folder)
        at_s = time.monotonic()
        os.kill(list(old)[2], 9)
        new: dict[int, list[DoneStep]] = {}

        def back() -> bool:
            new.update({pid: steps for pid, steps in ranks_of(folder).items() if pid not in old and steps})
            return len(new) == _elastic_rivals.RANKS

        until(back, "Ray Train's ranks train again", RIVAL_WITHIN_S)
        return max(steps[0].at_s for steps in new.values()) - at_s


@functools.cache
def installed_rivals() -> dict[str, bool]:
    """Return which rivals there are.

    Raises:
        Skipped: none can be asked for.
    """
    python = os.environ.get(RIVALS)
    if not python:
        raise Skipped(f"{RIVALS} names no Python that has it")
    answer = subprocess.run(
        [python, _elastic_rivals.__file__, "installed"], capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": ""},
    )  # fmt: skip
    if answer.returncode != 0:
        raise Skipped(
            f"{python}, which {RIVALS} names, does not run: {answer.stderr.strip().rpartition(os.linesep)[2]}"
        )
    return dict(json.loads(answer.stdout.strip().splitlines()[-1]))


def demand(rival_name: str) -> None:
    """Check that a rival is there.

    Raises:
        Skipped: it is not.
    """
    if not installed_rivals()[rival_name]:
        raise Skipped(f"{os.environ[RIVALS]}, which {RIVALS} names, cannot import it")


def kill_vs_torchft() -> Benchmark:
    """From SIGKILL of one of four ranks to the next step of all others."""
    demand("torchft")
    return Benchmark(
        "SIGKILL of a rank vs torchft", killed_ours, killed_torchft, KILL_SHARE, True, "s", rounds=KILL_ROUNDS,
        spread_max=SPREAD_MAX,
    )  # fmt: skip


def kill_vs_ray() -> Benchmark:
    """The same beside Ray Train v2."""
    demand("ray")
    return Benchmark(
        "SIGKILL of a rank vs Ray Train", killed_ours, killed_ray, KILL_SHARE, True, "s", rounds=2, spread_max=SPREAD_MAX
    )  # fmt: skip


# ----------------------------------------------------------------------------------------------------------- a change of shape


RESHAPED = FleetTerms(wait_s=0.002, save_every=10)


def reshaped() -> float:
    """Return how long 2x2 takes to become 4x1: from when it is asked for until all have done a step in it [s]."""
    with tempfile.TemporaryDirectory() as folder, elastic_fleet(Path(folder), RESHAPED) as fleet:
        fleet.planner.asked = Shape(2, 2)
        fleet.start("R1", *NAMES)
        fleet.wait_shape(Shape(2, 2), NAMES, 10)
        version, began_s = fleet.loop.layout.version, time.monotonic()
        fleet.planner.asked = Shape(4, 1)
        fleet.wait_shape(Shape(4, 1), NAMES, 1)
        return max(first_after(fleet.steps(name), version) for name in NAMES) - began_s


def restarted() -> float:
    """Return the same of new processes that begin as 4x1 from the newest checkpoint, once the old ones are killed [s]."""
    start_s, forked_s = python_start(), restarted_forks()
    print(f"    a restart: Python and imports {start_s:.2f} s, the rest {forked_s:.2f} s", file=sys.stderr)
    return start_s + forked_s


def python_start() -> float:
    """Return how long a new Python takes until it has imported what trains [s]."""
    began_s = time.monotonic()
    subprocess.run([sys.executable, "-c", f"import {', '.join(IMPORTED[:-1])}"], check=True)
    return time.monotonic() - began_s


def restarted_forks() -> float:
    """Return how long processes take that have imported everything."""
    new = ("e", "f", "g", "h")
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        with elastic_fleet(folder / "old", RESHAPED, folder / "store") as old:
            old.planner.asked = Shape(2, 2)
            old.start("R1", *NAMES)
            old.wait_shape(Shape(2, 2), NAMES, 25)
            began_s = old.kill("R1", *NAMES)
            terms = RESHAPED._replace(shapes=(Shape(4, 1),))
            with elastic_fleet(folder / "new", terms, folder / "store") as fleet:
                assert fleet.loop.layout.base > 0, "there is a checkpoint"
                fleet.start("R2", *new)
                until(lambda: all(fleet.steps(name) for name in new), "the new ones train")
                return max(fleet.steps(name)[0].at_s for name in new) - began_s


def reshape_vs_restart() -> Benchmark:
    """A change of shape while training against a restart from a checkpoint."""
    return Benchmark(
        "2x2 -> 4x1 vs a restart from a checkpoint", reshaped, restarted, RESTART_SHARE, True, "s", rounds=3,
        spread_max=SPREAD_MAX,
    )  # fmt: skip


# --------------------------------------------------------------------------------------------------------- a notice, and a join


@dataclass
class PairedRuns:
    """Runs of which each gives both numbers of a round, whichever is asked for first."""

    run: Callable[[], tuple[float, float]]
    done: list[tuple[float, float]] = field(default_factory=list)
    _asked: list[int] = field(default_factory=lambda: [0, 0])

    def half(self, which: int) -> float:
        """Return one number of the round."""
        self._asked[which] += 1
        if len(self.done) < self._asked[which]:
            self.done.append(self.run())
        return self.done[self._asked[which] - 1][which]


LEFT = FleetTerms(wait_s=0.01, batch=24, shapes=FLAT)
JOINED = FleetTerms(wait_s=0.05, batch=24, shapes=FLAT)
WATCHED_S = 1.0
"""For how long steps are watched before a change and after it [s]."""


def left_with_notice() -> tuple[float, float]:
    """Return the slowest step but one of those that stay while one of four leaves, and the median before [s]."""
    stay = ("a", "b", "d")
    with tempfile.TemporaryDirectory() as folder, elastic_fleet(Path(folder), LEFT) as fleet:
        fleet.start("R1", *NAMES)
        fleet.wait_shape(Shape(4, 1), NAMES, 20)
        at_s = fleet.announce("c")
        fleet.wait_shape(Shape(3, 1), stay, 10)
        until(lambda: "c" in fleet.loop.coordinator.dismissed, "the machine may end")
        slow = [sorted(paces(fleet.steps(name), at_s, time.monotonic()))[-2] for name in stay]
        usual = [median_pace(fleet.steps(name), at_s - WATCHED_S, at_s) for name in stay]
        return max(slow), statistics.median(usual)


def joined() -> tuple[float, float]:
    """Return the slowest step of three machines while a fourth one joins, and the median before [s]."""
    old = ("a", "b", "c")
    with tempfile.TemporaryDirectory() as folder, elastic_fleet(Path(folder), JOINED) as fleet:
        fleet.start("R1", *old)
        fleet.start("d", held=True)
        fleet.wait_shape(Shape(3, 1), old, 8)
        at_s = fleet.join("d")
        fleet.wait_shape(Shape(4, 1), NAMES, 3)
        slow = [max(paces(fleet.steps(name), at_s, time.monotonic())) for name in old]
        usual = [median_pace(fleet.steps(name), at_s - 3.0, at_s) for name in old]
        return max(slow), statistics.median(usual)


def notice_step() -> Benchmark:
    """A machine leaves with notice: no step but one may take twice as long as usual."""
    runs = PairedRuns(left_with_notice)
    return Benchmark(
        "with notice: slowest step but one vs usual", lambda: runs.half(0), lambda: runs.half(1), NOTICE_STEPS, True, "s",
        rounds=3,
    )  # fmt: skip


def join_step() -> Benchmark:
    """A machine that has built its model joins: state transfer and admission lengthen a step by at most a fifth."""
    runs = PairedRuns(joined)
    return Benchmark(
        "join: slowest step vs usual", lambda: runs.half(0), lambda: runs.half(1), JOIN_STEPS, True, "s", rounds=3
    )


# ----------------------------------------------------------------------------------------- what exactness and the backup cost


def step_of(*, deterministic: bool) -> float:
    """Return the median step of four machines side by side that wait for nothing [s]."""
    terms = FleetTerms(wait_s=0.0, batch=64, width=64, shapes=FLAT, deterministic=deterministic)
    with tempfile.TemporaryDirectory() as folder, elastic_fleet(Path(folder), terms) as fleet:
        fleet.start("R1", *NAMES)
        fleet.wait_shape(Shape(4, 1), NAMES, 40)
        steps = fleet.steps("a")[-35:]
        return median_pace(steps, steps[0].at_s, steps[-1].at_s)


def deterministic_step() -> Benchmark:
    """What a result that does not depend on the shape costs; no bound is set, it is to be seen."""
    return Benchmark(
        "deterministic step vs default", lambda: step_of(deterministic=True), lambda: step_of(deterministic=False), math.inf,
        True, "s", rounds=3, spread_max=SPREAD_MAX,
    )  # fmt: skip


def backed_up() -> tuple[float, float]:
    """Return what the backup is sent in a step, and what the whole state with Adam would be [bytes]."""
    terms = FleetTerms(wait_s=0.0, batch=8, shapes=FLAT)
    with tempfile.TemporaryDirectory() as folder, elastic_fleet(Path(folder), terms) as fleet:
        fleet.start("R1", *NAMES)
        fleet.wait_shape(Shape(4, 1), NAMES, 2)
        sent: dict[int, int] = {}
        state = 0

        def seen() -> bool:
            nonlocal state
            found = [fleet.profile(name) for name in NAMES]
            if not all(found):
                return False
            posts = [one for one in found if one]
            if len({one["step"] for one in posts}) == 1:
                sent[posts[0]["step"]] = sum(one["backup_bytes"] for one in posts)
            state = max(one["state_bytes"] for one in posts)
            return len(sent) >= 2

        until(seen, "two profiles of the same step are posted by all")
        (before, first), (after, last) = sorted(sent.items())[:2]
        return (last - first) / (after - before), float(state)


def backup_bytes() -> Benchmark:
    """Gradients instead of states: a third of the bytes, with Adam in fp32."""
    runs = PairedRuns(backed_up)
    return Benchmark(
        "to the backup, gradients vs states", lambda: runs.half(0), lambda: runs.half(1), BYTES_SHARE, True, "bytes",
        rounds=2,
    )  # fmt: skip
