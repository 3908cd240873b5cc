"""A parameter server in tiers on Ray: real processes, killed with SIGKILL by their numbers."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.processes import alive
from tests.tiers.least_squares import Noted
from windfall.errors import StoreUnreachable
from windfall.policies.layout.tiers import StageRatios
from windfall.runtimes.table_rows import TableRows
from windfall.runtimes.tier_coordinator_loop import LostMachine
from windfall.runtimes.tier_pace import TierPace
from windfall.runtimes.tier_server import ServerSettings
from windfall.runtimes.tier_store import ObjectTierStore
from windfall.storage.object_stores import folder_url, open_store
from windfall.tier_layout import CommittedClock, ServerLayout, TierMachine

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

    def __init__(self, folder: Path, names: list[str], program: Noted, save_every: int = 1000) -> None:
        from windfall.runtimes.tier_actors import TierTraining

        self.program, self.url = program, folder_url(str(folder))
        self.store = ObjectTierStore(open_store(self.url))
        pace = TierPace(save_every=save_every)
        self.training = TierTraining(self.url, ServerSettings(0, 1, CLOCKS), PARTS, DATA, StageRatios(), pace)
        self.machines: dict[str, Any] = {}
        self.running: dict[str, Any] = {}
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
        actor = ray.remote(tier_actors.CoordinatorActor).options(**options)
        deadline = time.monotonic() + 10.0
        while True:
            try:
                self.coordinator = actor.remote(self.training, self.first)
                break
            except ValueError:
                # Ray has not seen the end of the last one yet.
                assert time.monotonic() < deadline
                time.sleep(0.05)
        self.deciding = self.coordinator.run.remote()

    def kill_coordinator(self) -> None:
        """Kill the coordinator's process, and wait for its end."""
        pid = ray.get(self.coordinator.pid.remote())
        os.kill(pid, signal.SIGKILL)
        while alive(pid):
            time.sleep(0.01)
        # Ray does not give a dead actor's name to another one while this process has a handle of it.
        self.coordinator = self.deciding = None

    def _start(self, name: str, layout: object) -> None:
        from windfall.runtimes import tier_actors

        options: dict[str, Any] = {"name": name, "num_cpus": 0, "max_concurrency": 1000}
        actor = ray.remote(tier_actors.MachineActor).options(**options)
        self.machines[name] = actor.remote(self._machine(name), self.training, layout, partial(_same, self.program), 2)
        self.running[name] = self.machines[name].run.remote()

    def add(self, name: str) -> None:
        """Let a machine join."""
        self._start(name, ray.get(self.coordinator.layout.remote()))

    def kill(self, *names: str) -> None:
        """Kill machines' processes, all at once."""
        pids = [ray.get(self.machines[name].pid.remote()) for name in names]
        for name, pid in zip(names, pids, strict=True):
            os.kill(pid, signal.SIGKILL)
            del self.machines[name], self.running[name]

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

    def serving(self, count: int, limit_s: float = 60.0) -> set[str]:
        """Wait until so many machines serve and no part moves, as when the last one has joined; return them."""
        deadline = time.monotonic() + limit_s
        while True:
            layout = self.store.newest_layout()
            assert layout is not None
            found = {place.active for place in layout.parts}
            if len(found) == count and not any(place.next_active for place in layout.parts):
                return found
            assert time.monotonic() < deadline, f"{count} machines do not serve: {layout}"
            time.sleep(0.02)

    def until_computed(self, clock: int, limit_s: float = 60.0) -> None:
        """Wait until some turn of a clock is computed, which needs all pushes of those before it; no coordinator is asked."""
        deadline = time.monotonic() + limit_s
        while self.program.newest() < clock:
            assert time.monotonic() < deadline, f"no turn of clock {clock} is computed, but of {self.program.newest()}"
            time.sleep(0.02)

    def watch(self, awaited: Any, limit_s: float = 60.0) -> None:
        """Wait for a call; a machine that fails meanwhile fails the test."""
        deadline = time.monotonic() + limit_s
        while not ray.wait([awaited], timeout=0.2)[0]:
            for failed in ray.wait(list(self.running.values()), timeout=0.0)[0]:
                ray.get(failed)
            assert time.monotonic() < deadline, f"{self.committed()} {self.store.newest_layout()}"
        ray.get(awaited)

    def result(self) -> np.ndarray:
        """Wait for the end, and return the table as it is in the store."""
        self.watch(self.deciding)
        layout = self.store.newest_layout()
        assert layout is not None
        parts = [self.store.load(part, layout.checkpoint) for part in range(PARTS)]
        return TableRows(self.program.rows, PARTS).joined(np.arange(self.program.rows), parts)

    def end(self) -> None:
        """Kill what is left."""
        for actor in (*self.machines.values(), self.coordinator):
            ray.kill(actor)


def _same(program: Noted) -> Noted:
    return program


@pytest.fixture
def training(on_ray: None, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Training]:
    """A training on these machines."""
    del on_ray
    names, save_every = request.param
    made = Training(tmp_path / "store", names, Noted(DATA, tmp_path / "notes", seconds=0.02), save_every)
    yield made
    made.end()


def machines(*names: str, save_every: int = 1000) -> pytest.MarkDecorator:
    """Train on these machines."""
    return pytest.mark.parametrize("training", [(list(names), save_every)], indirect=True, ids=["-".join(names)])


def test_a_coordinator_takes_over_once_a_store_that_is_away_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is one coordinator, though several calls wait for it."""
    from windfall.runtimes.tier_actors import CoordinatorActor, TierTraining

    write, failures = ObjectTierStore.write_layout, [StoreUnreachable("away")] * 2

    def failing(store: ObjectTierStore, layout: ServerLayout) -> bool:
        if failures:
            raise failures.pop()
        return write(store, layout)

    monkeypatch.setattr(ObjectTierStore, "write_layout", failing)
    training = TierTraining(
        folder_url(str(tmp_path)), ServerSettings(0, 1, CLOCKS), PARTS, DATA, pace=TierPace(store_retry_s=0.01)
    )

    async def asked() -> list[object]:
        actor = CoordinatorActor(training, [TierMachine("r1", True)])
        return list(await asyncio.gather(actor.layout(), actor.layout(), actor.committed()))

    first, second, committed = asyncio.run(asked())
    assert first == second == ObjectTierStore(open_store(training.store)).newest_layout()
    assert isinstance(first, ServerLayout)
    assert (first.version, first.coordinator, failures) == (1, 1, [])
    assert committed == CommittedClock(0, 0)


@machines("r1", "t1", "t2", "t3")
def test_killing_all_transient_machines_on_ray_changes_no_bit(training: Training) -> None:
    """Two of them serve; training continues from the newest common clock, and nothing is read from the store."""
    training.until(15)
    training.kill("t1", "t2", "t3")

    assert np.array_equal(training.result(), training.program.alone(CLOCKS))
    layout = training.store.newest_layout()
    assert layout is not None
    assert layout.term in {1, 2, 3}, "a loss is seen when a report is missing, one machine after the other"
    assert layout.restored == 0
    status = training.store.status()
    assert status is not None
    assert (status.over, status.clock, status.stage, status.rollbacks) == (True, CLOCKS, 1, layout.term)
    assert (status.restores, status.lost, [machine.name for machine in status.machines]) == (0, 3, ["r1"])
    # What a machine has done since its last report is lost with it.
    assert status.machines[0].counters.turns >= (CLOCKS - layout.base) * DATA
    assert status.gone.turns > 0


@pytest.mark.slow
@machines("r1", "t1", "t2", "t3", "t4")
def test_a_worker_that_is_killed_costs_no_other_a_clock(training: Training) -> None:
    """Of four transient machines two serve; one of the others is killed: no roll-back."""
    training.until(15)
    serving = training.serving(2)
    training.kill(next(name for name in training.machines if name not in serving | {"r1"}))

    assert np.array_equal(training.result(), training.program.alone(CLOCKS))
    layout = training.store.newest_layout()
    assert layout is not None
    assert layout.term == 0


@pytest.mark.slow
@machines("r1", "r2", "t1", save_every=10)
def test_a_reliable_machine_that_is_killed_costs_the_clocks_since_the_checkpoint(training: Training) -> None:
    """With the other one all is restored from the store."""
    training.until(25)
    training.kill("r2")

    assert np.array_equal(training.result(), training.program.alone(CLOCKS))
    layout = training.store.newest_layout()
    assert layout is not None
    assert layout.restored == 1
    assert layout.base % 10 == 0 or layout.base >= 10


@pytest.mark.slow
@machines("r1", "t1", "t2", "t3")
def test_without_its_coordinator_training_continues_and_the_next_one_decides_on(training: Training) -> None:
    """Killed, and started again twenty clocks later, which none but the machines have completed; then machines are lost."""
    training.until(15)
    training.kill_coordinator()
    since = training.program.newest()
    training.until_computed(since + 20)
    training.start_coordinator()
    training.until(since + 20)
    training.kill("t1", "t3")

    assert np.array_equal(training.result(), training.program.alone(CLOCKS))
    layout = training.store.newest_layout()
    assert layout is not None
    assert (layout.coordinator, layout.restored) == (2, 0)


@pytest.mark.slow
@machines("r1", "t1", "t2", "t3")
def test_without_a_coordinator_all_clocks_are_computed_and_none_of_them_is_the_end(training: Training) -> None:
    """Nothing else waits for it; but what is to be stored it says alone, and until all is, machines serve on."""
    training.until(5)
    training.kill_coordinator()
    training.until_computed(CLOCKS)
    layout = training.store.newest_layout()
    assert layout is not None
    assert (layout.coordinator, layout.checkpoint.clock) == (1, 0)
    assert not ray.wait(list(training.running.values()), timeout=1.0)[0]
    training.start_coordinator()

    assert np.array_equal(training.result(), training.program.alone(CLOCKS))


@pytest.mark.slow
@machines("r1", "t1", "t2", "t3")
def test_a_machine_that_stood_still_and_is_taken_for_lost_changes_nothing_when_it_continues(training: Training) -> None:
    """It is stopped by a signal for longer than a machine may be silent, and continued; then it learns that it is lost."""
    training.until(15)
    running = training.running.pop("t1")
    pid = ray.get(training.machines["t1"].pid.remote())
    os.kill(pid, signal.SIGSTOP)
    time.sleep(3.0)
    os.kill(pid, signal.SIGCONT)

    with pytest.raises(LostMachine, match="machine t1 was silent for too long: others do its work"):
        ray.get(running, timeout=30)
    assert np.array_equal(training.result(), training.program.alone(CLOCKS))
    layout = training.store.newest_layout()
    assert layout is not None
    assert "t1" not in {place.active for place in layout.parts}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
@machines("r1", "t1", "t2", "t3")
def test_random_kills_on_ray_change_no_bit(training: Training, seed: int) -> None:
    """Some machines at once, three times; others join; the coordinator dies once."""
    rng = random.Random(seed)
    for wave in range(3):
        training.until(rng.randint(12, 18) * (wave + 1))
        transient = [name for name in training.machines if name != "r1"]
        training.kill(*rng.sample(transient, rng.randint(1, len(transient))))
        if wave == 1:
            training.kill_coordinator()
            training.start_coordinator()
        for number in range(rng.randint(1, 2)):
            training.add(f"t{wave}{number}")

    assert np.array_equal(training.result(), training.program.alone(CLOCKS))
    layout = training.store.newest_layout()
    assert layout is not None
    assert layout.restored == 0
