"""The loops of a parameter server in tiers, with threads that compute: what is lost, moves or raises while they run."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import numpy as np
import pytest

from tests.tiers.in_threads import DATA, SELDOM, ThreadCluster, played
from tests.tiers.least_squares import LeastSquares
from windfall.core.tier_summary import summed
from windfall.errors import LogDamaged, Misuse
from windfall.runtimes.parameter_partition import Rows
from windfall.runtimes.tier_pace import TierPace
from windfall.runtimes.tier_program import Table
from windfall.structs import replace

ENDLESS = 100_000
"""Clocks that no test comes to the end of."""
CLOCKS = 60


async def undisturbed(cluster: ThreadCluster) -> None:
    """Nothing happens."""
    del cluster


def test_with_bound_0_any_number_of_machines_computes_what_one_process_does_bit_for_bit() -> None:
    """On three machines in stage 2."""
    program = LeastSquares(DATA)

    cluster = played(["r1", "t1", "t2"], program, undisturbed, clocks=CLOCKS)

    assert {place.active for place in cluster.layouts[-1].parts} == {"t1"}
    assert np.array_equal(cluster.values(), program.alone(CLOCKS))


def test_losing_all_transient_machines_at_once_changes_no_bit() -> None:
    """The coordinator sees it within two seconds, and clocks since the newest common one are done again."""
    program = LeastSquares(DATA, seconds=0.005)

    async def story(cluster: ThreadCluster) -> None:
        await cluster.until(10)
        cluster.lose("t1", "t2", "t3")

    cluster = played(["r1", "t1", "t2", "t3"], program, story, clocks=CLOCKS)

    assert cluster.layouts[-1].term == 1
    assert 10 <= cluster.layouts[-1].base < CLOCKS
    assert np.array_equal(cluster.values(), program.alone(CLOCKS))


def test_machines_that_join_and_leave_with_notice_change_no_bit_and_no_clock_is_done_again() -> None:
    """Three join, and leave again."""
    program = LeastSquares(DATA, seconds=0.005)

    async def story(cluster: ThreadCluster) -> None:
        await cluster.until(5)
        for name in ("t1", "t2", "t3"):
            cluster.add(name)
        async with asyncio.timeout(30.0):
            while {place.active for place in cluster.layouts[-1].parts} == {"r1"}:
                await asyncio.sleep(0.005)
        for name in ("t1", "t2", "t3"):
            cluster.machines[name].member.leave()

    cluster = played(["r1"], program, story, clocks=CLOCKS, pace=replace(SELDOM, settle_s=0.05))

    served = {place.active for layout in cluster.layouts for place in layout.parts}
    assert served > {"r1"}
    assert {place.active for place in cluster.layouts[-1].parts} == {"r1"}
    assert cluster.layouts[-1].term == 0
    assert np.array_equal(cluster.values(), program.alone(CLOCKS))


@pytest.mark.parametrize("staleness", [1, None])
def test_with_a_bound_training_ends_near_what_one_process_finds(staleness: int | None) -> None:
    """The steps are small, so that stale ones do no harm."""
    program = LeastSquares(DATA)

    cluster = played(["r1", "t1", "t2"], program, undisturbed, clocks=200, staleness=staleness)

    assert np.abs(cluster.values() - program.wanted).max() < 0.05


def test_a_worker_that_waits_asks_a_few_times_not_over_and_over() -> None:
    """A read that must wait is held where it is answered."""
    program = LeastSquares(DATA, seconds=0.1)

    cluster = played(["r1", "t1", "t2"], program, undisturbed, clocks=10)

    # Each clock: of each data partition, a read, a push and a seal for each part; backups and copies beside.
    assert cluster.asked < 2 * 10 * DATA * 3 * 3


def test_no_question_of_a_machine_to_itself_leaves_it() -> None:
    """Its own parts and backups answer at once; those of others are asked over the links."""
    cluster = played(["r1", "t1", "t2"], LeastSquares(DATA), undisturbed, clocks=10)

    assert cluster.question_bytes["t1", "t1"] > 0, "it computes and serves"
    assert {("t2", "t1"), ("t1", "r1")} <= cluster.over_links.keys()
    assert not [asker for asker, asked in cluster.over_links if asker == asked]


def test_a_data_partition_that_waits_for_others_leaves_its_slot_to_them() -> None:
    """The machine with one slot waits with its own for those of a lost worker, which then come to it."""
    program = LeastSquares(DATA, seconds=0.005)

    async def story(cluster: ThreadCluster) -> None:
        await cluster.until(5)
        cluster.lose("t1")

    cluster = played(["r1", "t1"], program, story, clocks=CLOCKS, slots=1)

    assert cluster.layouts[-1].term == 0
    assert np.array_equal(cluster.values(), program.alone(CLOCKS))


class Counting(LeastSquares):
    """It notes how many data partitions compute at once.

    Attributes:
        at_once: the most so far.
    """

    def __init__(self, data: int) -> None:
        super().__init__(data)
        self.at_once, self._now, self._lock = 0, 0, threading.Lock()

    def compute(self, loaded: Any, clock: int, table: Table) -> None:
        """Note it while it computes; while it waits for what it reads, others may."""
        table.pull(np.arange(self.rows))
        with self._lock:
            self._now += 1
            self.at_once = max(self.at_once, self._now)
        time.sleep(0.005)
        with self._lock:
            self._now -= 1
        super().compute(loaded, clock, table)


@pytest.mark.parametrize("slots", [1, 2])
def test_no_more_data_partitions_compute_at_once_than_a_machine_has_slots(slots: int) -> None:
    """Of four that it holds."""
    program = Counting(DATA)
    played(["r1"], program, undisturbed, clocks=10, slots=slots)

    assert program.at_once == slots


class Raises(LeastSquares):
    """Its third clock fails."""

    def compute(self, loaded: Any, clock: int, table: Table) -> None:
        """Fail in clock 3."""
        if clock == 3:
            raise RuntimeError("a bad day")
        super().compute(loaded, clock, table)


class Diverges(LeastSquares):
    """Its third clock pushes what is not finite."""

    def compute(self, loaded: Any, clock: int, table: Table) -> None:
        """Push NaN in clock 3."""
        super().compute(loaded, clock, table)
        if clock == 3:
            table.push(np.array([4]), np.array([[np.nan]]))


class LooksOutside(LeastSquares):
    """It reads a row that does not exist."""

    def compute(self, loaded: Any, clock: int, table: Table) -> None:
        """Read it."""
        rows: Rows = np.array([2, 12])
        table.pull(rows)


@pytest.mark.parametrize(
    ("program", "error", "words"),
    [
        (Raises(DATA), RuntimeError, "a bad day"),
        (Diverges(DATA), Misuse, "a change of row .* that is not finite"),
        (LooksOutside(DATA), Misuse, "row 12 is not in the table: its rows are 0 to 11"),
    ],
)
def test_a_program_that_fails_ends_its_machine_with_its_error(
    program: LeastSquares, error: type[Exception], words: str
) -> None:
    """On the machine on which it failed."""

    async def story(cluster: ThreadCluster) -> None:
        with pytest.raises(error, match=words):
            await cluster.until(CLOCKS)
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        played(["r1"], program, story, clocks=CLOCKS)


QUICK = TierPace(save_every=5, reliable_lost_after_s=1.0, store_retry_s=0.01, store_retry_max_s=0.05)


def test_a_store_that_fails_for_a_while_delays_checkpoints_and_ends_no_machine() -> None:
    """Clocks are committed meanwhile, or servers would keep all that has changed; the checkpoint is written once it is back."""
    program = LeastSquares(DATA, seconds=0.002)

    async def story(cluster: ThreadCluster) -> None:
        await cluster.until(10)
        cluster.objects.away = "tiers/checkpoints/"
        async with asyncio.timeout(30.0):
            while cluster.objects.failed.total() < 8:
                await asyncio.sleep(0.01)
            stored = cluster.layouts[-1].checkpoint
            while cluster.committed() < stored.clock + 15:
                await asyncio.sleep(0.01)
        assert cluster.layouts[-1].checkpoint == stored
        cluster.objects.away = None

    cluster = played(["r1", "t1"], program, story, clocks=CLOCKS, pace=QUICK)

    assert cluster.layouts[-1].checkpoint.clock == CLOCKS
    assert np.array_equal(cluster.values(), program.alone(CLOCKS))
    assert (
        summed(one.counters for one in cluster.statuses[-1].machines).store_failures
        == cluster.objects.failed.total()
        >= 8
    )


def test_a_restore_waits_for_a_store_that_fails() -> None:
    """A machine with backups is lost while the store is away."""
    program = LeastSquares(DATA, seconds=0.002)

    async def story(cluster: ThreadCluster) -> None:
        await cluster.until(20)
        async with asyncio.timeout(30.0):
            while cluster.layouts[-1].checkpoint.clock == 0:
                await asyncio.sleep(0.01)
        cluster.objects.away = "tiers/checkpoints/"
        cluster.lose("r2")
        async with asyncio.timeout(30.0):
            while len(cluster.objects.read) < 8:
                await asyncio.sleep(0.01)
        cluster.objects.away = None

    cluster = played(["r1", "r2", "t1"], program, story, clocks=CLOCKS, pace=QUICK)

    assert cluster.layouts[-1].restored == 1
    assert np.array_equal(cluster.values(), program.alone(CLOCKS))


def test_a_layout_that_cannot_be_written_is_written_once_the_store_is_back() -> None:
    """A server is lost while the store is away: the others wait for the layout that says so, then training continues."""
    program = LeastSquares(DATA, seconds=0.002)

    async def story(cluster: ThreadCluster) -> None:
        await cluster.until(10)
        cluster.objects.away = "tiers/"
        cluster.lose("t1")
        async with asyncio.timeout(30.0):
            while sum(times for key, times in cluster.objects.failed.items() if key.startswith("tiers/log/")) < 5:
                await asyncio.sleep(0.01)
        assert cluster.layouts[-1].term == 0
        cluster.objects.away = None

    cluster = played(["r1", "t1", "t2"], program, story, clocks=CLOCKS, pace=QUICK)

    assert (cluster.layouts[-1].term, cluster.layouts[-1].restored) == (1, 0)
    assert np.array_equal(cluster.values(), program.alone(CLOCKS))
    assert cluster.newest_layout() == cluster.layouts[-1]


def test_a_checkpoint_that_is_damaged_ends_the_machine_that_needs_it() -> None:
    """Waiting would not mend it."""
    program = LeastSquares(DATA, seconds=0.002)

    async def story(cluster: ThreadCluster) -> None:
        async with asyncio.timeout(30.0):
            while cluster.layouts[-1].checkpoint.clock == 0:
                await asyncio.sleep(0.01)
        cluster.objects.damaged = "tiers/checkpoints/"
        cluster.lose("r2")
        with pytest.raises(LogDamaged, match=r"tiers/checkpoints/0-.* cannot be read"):
            await cluster.until(ENDLESS)
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        played(["r1", "r2", "t1"], program, story, clocks=ENDLESS, pace=QUICK)


@pytest.mark.parametrize("save_every", [5, 10_000])
def test_after_all_transient_machines_are_lost_nothing_is_read_from_the_store(save_every: int) -> None:
    """Neither until the next clock is committed nor later: the backups have all, whatever checkpoints there are."""
    program = LeastSquares(DATA, seconds=0.005)

    async def story(cluster: ThreadCluster) -> None:
        await cluster.until(12)
        lost_at = cluster.committed()
        cluster.lose("t1", "t2", "t3")
        reads_before = list(cluster.objects.read)
        async with asyncio.timeout(30.0):
            while cluster.layouts[-1].term == 0:
                await asyncio.sleep(0.01)
        await cluster.until(max(lost_at, cluster.layouts[-1].base) + 1)
        assert cluster.objects.read == reads_before

    # A coordinator that no machine has reported to since its last status looks in the log for a successor.
    pace = TierPace(save_every=save_every, status_s=3600.0)
    cluster = played(["r1", "t1", "t2", "t3"], program, story, clocks=CLOCKS, pace=pace)

    assert (cluster.layouts[-1].restored, cluster.objects.read) == (0, [])
    assert np.array_equal(cluster.values(), program.alone(CLOCKS))


class OneSlow(LeastSquares):
    """Turns take ten times as long on one machine; it notes how far the slowest was when another one had read.

    Args:
        slow: the machine.

    Attributes:
        ahead: of each turn of the other machines, by how many clocks the slowest data partition was behind what the turn
            could at most have needed: all pushes of the clock before it.
    """

    def __init__(self, data: int, slow: str) -> None:
        super().__init__(data)
        self.slow = slow
        self.ahead: list[int] = []
        self._ended: dict[int, int] = {}
        self._lock = threading.Lock()

    def load(self, data: int) -> Any:
        """Return a data partition's equations, with its number."""
        return data, super().load(data)

    def compute(self, loaded: Any, clock: int, table: Table) -> None:
        """Note how far the slow ones are once the table is read."""
        data, equations = loaded
        slow = f"-{self.slow}_" in threading.current_thread().name
        table.pull(np.arange(self.rows))
        with self._lock:
            if slow:
                self._ended.setdefault(data, 0)
            elif self._ended:
                self.ahead.append(clock - 1 - min(self._ended.values()))
        time.sleep(0.03 if slow else 0.003)
        super().compute(equations, clock, table)
        if slow:
            with self._lock:
                self._ended[data] = clock


@pytest.mark.parametrize("bound", [0, 1, 3])
def test_a_worker_slowed_tenfold_makes_the_others_wait_at_exactly_the_bound(bound: int) -> None:
    """By the program's own notes of what was read and what had ended: no turn is further ahead, and most come to the bound."""
    program = OneSlow(DATA, "t2")
    cluster = played(["r1", "t1", "t2"], program, undisturbed, clocks=25, staleness=bound)

    counters = {machine.name: machine.counters for machine in cluster.statuses[-1].machines}
    assert max(program.ahead) == bound
    assert program.ahead.count(bound) > len(program.ahead) / 2
    assert max(one.staleness_max for one in counters.values()) == bound
    assert counters["t2"].waited_s < counters["t2"].computed_s
    for name in ("r1", "t1"):
        assert counters[name].waited_s > counters[name].computed_s
