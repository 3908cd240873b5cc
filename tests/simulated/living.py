"""Jobs under the injector on the local market: real controller, market, keepers, agents and scripts; and their journals."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.live.rig import Rig
from tests.simulated import training
from tests.simulated.reading import Journals
from windfall.storage import object_stores, run_log

NOTICE_S, ALLOCATION_S = 2.5, 4.0
"""As with real clouds a machine takes longer to come than to go."""
LOAD_S = 7.0
"""From a machine's setup to its first step; starting agent and script is part of it."""
UPLINK = "1MB/s"
PATIENCE_S, LOOK_S = 600.0, 1.0
"""How long a job may take, and how often it is looked at: looking takes time that the jobs need too."""


@dataclass(frozen=True)
class Model:
    """What is trained.

    Attributes:
        steps, step_s: of the whole job.
        save_s: how long a save stands still.
        state_bytes: length of the state; over the uplink of 1 MB/s.
        every: between two saves of the static policy [steps].
    """

    name: str
    steps: int
    step_s: float
    save_s: float
    state_bytes: int
    every: int


SMALL = Model("small", 900, 0.1, 0.05, 500_000, 50)
"""Its emergency save fits the notice: half a second of upload."""
LARGE = Model("large", 450, 0.2, 0.15, 3_000_000, 30)
"""Its emergency save does not: three seconds of upload."""
MODELS = (SMALL, LARGE)


@dataclass(frozen=True)
class Live:
    """A job to be run.

    Attributes:
        insure: as a job file says it.
        mttp_s, seed: of the injector.
    """

    model: Model
    insure: str
    mttp_s: float
    seed: int

    @property
    def name(self) -> str:
        return f"{self.model.name}-{self.insure.replace(' ', '-')}-{self.mttp_s:g}-{self.seed}"

    @property
    def inject(self) -> str:
        return f"mttp={self.mttp_s:g}s,seed={self.seed},notice={NOTICE_S:g}s"

    @property
    def wanted(self) -> dict[str, object]:
        model = self.model
        return {
            "name": self.name,
            "setup": f"touch {training.SETUP}",
            "envs": {
                "LOAD_S": str(LOAD_S),
                "STEPS": str(model.steps),
                "STEP_S": str(model.step_s),
                "SAVE_S": str(model.save_s),
                "STATE_BYTES": str(model.state_bytes),
                "OMP_NUM_THREADS": "1",
                "OPENBLAS_NUM_THREADS": "1",
            },
            "work": {"steps": model.steps},
            "checkpoint": {"insure": self.insure},
        }


@contextlib.contextmanager
def installation(folder: Path) -> Iterator[Rig]:
    """A controller, and a market whose machines have the uplink and come and go as slowly as told above."""
    described = {"types": {"small": {"on_demand": 3600.0, "uplink": UPLINK}}}
    rig = Rig(folder, allocation_s=ALLOCATION_S, notice_s=NOTICE_S, market=described)
    try:
        rig.start_controller()
        yield rig
    finally:
        rig.close()


def run(rig: Rig, jobs: Sequence[Live]) -> list[Journals]:
    """Run jobs side by side; return what they wrote down."""
    ids = [rig.submit(job.wanted, Path(training.__file__), job.inject) for job in jobs]
    until = time.monotonic() + PATIENCE_S
    while not all(_is_done(rig, job_id) for job_id in ids):
        assert time.monotonic() < until, f"not done in {PATIENCE_S:g} s: {rig.log()}"
        time.sleep(LOOK_S)
    return [journals(rig, job_id) for job_id in ids]


def _is_done(rig: Rig, job_id: str) -> bool:
    told = rig.job(job_id)
    assert told is None or told["phase"] not in ("failed", "stopped"), told
    return told is not None and told["phase"] == "done" and not told["details"]["money"]["unsettled"]


def journals(rig: Rig, job_id: str) -> Journals:
    """Everything that a job wrote down."""
    reader, rows = object_stores.open_reader(rig.run_url(job_id)), rig.run_rows(job_id)
    holders = {}
    for term in {row.term for row in rows}:
        record = reader.run(run_log.read_record(term))
        assert record is not None
        assert record.state.holder is not None
        holders[term] = record.state.holder.host
    return Journals(rig.rows(job_id), rows, holders)
