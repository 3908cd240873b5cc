"""How long a job stands still when its machine dies without a word, against how long it took to begin.

Each round is a whole installation: controller, local market, one job.  Its cold start (order to first step) is the
yardstick of the replacement that follows in the same run (death to first step of the successor).  What a restart has to
do more than a start, bringing the newest checkpoint back, is told apart and not held against it.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.live import sleeping
from tests.live.moments import coming, first_steps, seen_gone
from tests.live.rig import Rig

from benchmarks.harness import Benchmark

LIMIT = 1.3
ROUNDS = 5
ALLOCATION_S = 0.5
JOB = {"name": "endless", "envs": {"STEPS": "1000000", "STEP_S": "0.02"}, "checkpoint": {"insure": "50 steps"}}


@dataclass
class Pair:
    """A cold start and a replacement of one run [s]; their pieces by name."""

    cold_s: float
    again_s: float
    cold: dict[str, float]
    again: dict[str, float]


@dataclass
class Pairs:
    """Measures one pair a round, whichever half is asked for first."""

    folder: Path
    done: list[Pair] = field(default_factory=list)
    _asked: dict[str, int] = field(default_factory=lambda: {"cold": 0, "again": 0})

    def half(self, name: str) -> Pair:
        """The pair of this round."""
        self._asked[name] += 1
        if len(self.done) < self._asked[name]:
            self.done.append(measure(Rig(self.folder / str(len(self.done)), allocation_s=ALLOCATION_S)))
        return self.done[self._asked[name] - 1]

    def show(self) -> None:
        """Say where the time went; the first pair warms up and does not count."""
        for title, parts in (("cold start", "cold"), ("replacement", "again")):
            rows = [getattr(pair, parts) for pair in self.done[1:]]
            if not rows:
                return
            told = ", ".join(f"{name} {statistics.median(row[name] for row in rows):.2f} s" for name in rows[0])
            print(f"    {title}: {told}", file=sys.stderr)


def measure(rig: Rig) -> Pair:
    """Train, let the machine vanish, and wait until its successor trains."""
    try:
        rig.start_controller()
        job_id = rig.submit(JOB, Path(sleeping.__file__))
        rig.until(lambda: rig.saved_step(job_id) >= 100, "two points are saved", 120.0)
        rig.take(rig.stays(job_id)[0].machine_id, None)
        rig.until(lambda: first_steps(rig, job_id) == 2, "its successor trains", 120.0)
        old, new = rig.stays(job_id)
        assert old.ended is not None
        first, second = coming(rig, job_id, old, 0), coming(rig, job_id, new, 1)
        noticed = seen_gone(rig, job_id, old.machine_id)
        return Pair(
            cold_s=first.first_step - first.ordered,
            again_s=second.first_step - old.ended - second.restore_s,
            cold=first.parts,
            again={"noticed": noticed - old.ended, "ordered": second.ordered - noticed, **second.parts},
        )
    finally:
        rig.close()


def death_to_training_again() -> Benchmark:
    """A machine that vanishes costs at most 1.3 cold starts of the same script, restore apart."""
    folder = tempfile.TemporaryDirectory(prefix="windfall-replacement-")
    pairs = Pairs(Path(folder.name))

    def close() -> None:
        pairs.show()
        folder.cleanup()

    return Benchmark(
        name="death -> training again vs a cold start",
        ours=lambda: pairs.half("again").again_s,
        yardstick=lambda: pairs.half("cold").cold_s,
        target=LIMIT,
        at_most=True,
        unit="s",
        rounds=ROUNDS,
        close=close,
    )


def benchmarks() -> list[Callable[[], Benchmark]]:
    return [death_to_training_again]
