"""A parameter server in tiers on Ray: real processes, killed with SIGKILL by their numbers."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.tiers.least_squares import LeastSquares
from windfall.policies.layout.tiers import StageRatios, TierMachine
from windfall.runtimes.table_rows import TableRows
from windfall.runtimes.tier_server import ServerSettings
from windfall.runtimes.tier_store import ObjectTierStore
from windfall.storage.object_stores import folder_url, open_store
from windfall.tier_layout import CommittedClock

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'windfall[ray]'")
PARTS, DATA, CLOCKS = 3, 4, 80


@pytest.fixture(scope="module")
def on_ray() -> Iterator[None]:
    """Ray on this machine."""
    ray.init(num_cpus=1, include_dashboard=False, namespace="tiers", log_to_driver=False, _node_ip_address="127.0.0.1")
    yield
    ray.shutdown()


class Training:
    """A training on Ray, of machines as in `InStep`."""

    def __init__(self, folder: Path, names: list[str], program: LeastSquares) -> None:
        from windfall.runtimes.tier_actors import TierTraining

        self.program, self.url = program, folder_url(str(folder))
        self.store = ObjectTierStore(open_store(self.url))
        self.training = TierTraining(self.url, ServerSettings(0, 1, CLOCKS), PARTS, DATA, StageRatios(), 1000)
        self.machines: dict[str, Any] = {}
        self.order = 0
        self.first = [self._machine(name) for name in names]
        self.start_coordinator()
        layout = ray.get(self.coordinator.layout.remote())
        for name in names:
            self._start(name, layout)

    def _machine(self, name: str) -> TierMachine:
        self.order += 1
        return TierMachine(name, name.startswith("r"), float(self.order))

    def start_coordinator(self) -> None:
        """Start a coordinator, the first one or the next."""
        from windfall.runtimes import tier_actors

        options: dict[str, Any] = {"name": tier_actors.COORDINATOR, "num_cpus": 0, "max_concurrency": 1000}
        self.coordinator = ray.remote(tier_actors.CoordinatorActor).options(**options).remote(self.training, self.first)
        self.deciding = self.coordinator.run.remote()

    def _start(self, name: str, layout: object) -> None:
        from windfall.runtimes import tier_actors

        options: dict[str, Any] = {"name": name, "num_cpus": 0, "max_concurrency": 1000}
        actor = ray.remote(tier_actors.MachineActor).options(**options)
        self.machines[name] = actor.remote(name, self.training, layout, self.program, 2)
        self.machines[name].run.remote()

    def add(self, name: str) -> None:
        """Let a machine join."""
        machine = self._machine(name)
        self.first.append(machine)
        self._start(name, ray.get(self.coordinator.join.remote(machine)))

    def kill(self, *names: str) -> None:
        """Kill machines' processes, all at once."""
        pids = [ray.get(self.machines[name].pid.remote()) for name in names]
        for name, pid in zip(names, pids, strict=True):
            os.kill(pid, signal.SIGKILL)
            del self.machines[name]
        self.first = [machine for machine in self.first if machine.name not in names]

    def committed(self) -> CommittedClock:
        """Return what is committed."""
        found: CommittedClock = ray.get(self.coordinator.committed.remote())
        return found

    def until(self, clock: int, limit_s: float = 60.0) -> None:
        """Wait for a clock to be committed."""
        deadline = time.monotonic() + limit_s
        while self.committed().clock < clock:
            assert time.monotonic() < deadline, f"clock {clock} is not committed; {self.store.newest_layout()}"
            time.sleep(0.02)

    def result(self) -> np.ndarray:
        """Wait for the end, and return the table as it is in the store."""
        ray.get(self.deciding, timeout=90)
        layout = self.store.newest_layout()
        assert layout is not None
        parts = [self.store.load(part, layout.checkpoint) for part in range(PARTS)]
        return TableRows(self.program.rows, PARTS).joined(np.arange(self.program.rows), parts)


@pytest.mark.usefixtures("on_ray")
def test_killing_all_transient_machines_on_ray_changes_no_bit(tmp_path: Path) -> None:
    """Two of them serve; training continues from the newest common clock, and nothing is read from the store."""
    training = Training(tmp_path, ["r1", "t1", "t2", "t3"], LeastSquares(DATA, seconds=0.02))
    training.until(15)
    training.kill("t1", "t2", "t3")

    assert np.array_equal(training.result(), training.program.alone(CLOCKS))
    layout = training.store.newest_layout()
    assert layout is not None
    assert (layout.term, layout.restored) == (1, 0)
