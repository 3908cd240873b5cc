"""The word that a holder's machine is gone: nobody waits for its lease, and a lie costs nothing but the term."""

from __future__ import annotations

import dataclasses

import pytest

from tests.storage.make import LEASE_S, Bench, holder, model
from windfall.errors import Fenced
from windfall.storage import run_log, store_operations
from windfall.storage.run_log import StoreWatch
from windfall.storage.run_state import Claim
from windfall.terms import Cause, Seconds
from windfall.wire.run_layout import gone_key


@dataclasses.dataclass
class NoticeDeduplicator:
    """A clock on which something happens at the n-th pause."""

    bench: Bench
    at: int
    key: str
    pauses: int = 0

    def now(self):
        return self.bench.clock.now()

    def wall_time(self):
        return self.bench.clock.wall_time()

    def sleep(self, duration_s: Seconds) -> None:
        self.bench.clock.sleep(duration_s)
        self.pauses += 1
        if self.pauses == self.at:
            self.bench.store.put(self.key, b"one")


def test_a_holder_that_is_said_to_be_gone_is_succeeded_at_once(bench: Bench) -> None:
    """Its heartbeat is fresh and its lease young; no time passes all the same, and its life is counted."""
    head = bench.acquire("a", "one").record
    bench.clock.sleep(100)
    bench.run(run_log.write_heartbeat(1, 1, bench.clock.wall_time(), head.number, "a"))
    bench.store.put(gone_key(1), b"one")
    before = bench.clock.now()

    acquired = bench.acquire("b", "two")

    assert (acquired.mine, bench.clock.now()) == (True, before)
    assert acquired.record.state.lifetimes_s == pytest.approx(100)
    assert [loss.cause for loss in acquired.record.state.losses] == [Cause.VANISHED]


def test_whoever_waits_already_hears_of_it_with_the_next_look(bench: Bench) -> None:
    """A standby takes over within one look of the word, whatever the lease."""
    bench.acquire("a", "one")
    claim = Claim(holder("b", "two"), "run", Seconds(10.0), command=("train",))
    steps = run_log.acquire(
        claim, holder_is_dead=lambda _: True, wall_time=bench.clock.wall_time, wait=True, poll_s_max=0.5
    )
    before = bench.clock.now()

    acquired = store_operations.run(steps, bench.store, NoticeDeduplicator(bench, 2, gone_key(1)))

    assert acquired.mine
    assert bench.clock.now() - before == pytest.approx(1.0)


def test_the_word_counts_for_its_own_term_alone(bench: Bench) -> None:
    """What was said of an earlier holder does not take the run from a later one."""
    bench.acquire("a", "one")
    bench.store.put(gone_key(1), b"one")
    bench.acquire("b", "two")
    before = bench.clock.now()

    bench.acquire("c", "three")

    assert bench.clock.now() - before >= LEASE_S


def test_a_lie_fences_the_old_holder_and_tears_nothing(bench: Bench) -> None:
    """The old holder lives and commits on: its next record is refused, and a restore brings the newer holder's point."""
    _, head = bench.save(bench.acquire("a", "one").record, 10, b"ten")
    bench.store.put(gone_key(1), b"one")
    newer = bench.acquire("b", "two").record
    _, newer = bench.save(newer, 20, b"twenty")

    with pytest.raises(Fenced):
        bench.save(head, 30, b"thirty")

    _, newest = bench.save(newer, 40, b"forty")
    found, folder = bench.restore(newest)
    assert found.checkpoint is not None
    assert (found.checkpoint.step, model(folder)) == (40, b"forty")


def test_only_the_machine_that_holds_the_run_can_be_declared_gone(bench: Bench) -> None:
    """A controller that is late with its news of an earlier machine harms nobody."""
    bench.acquire("a", "one")
    bench.acquire("b", "two")
    watch = StoreWatch(bench.store, bench.clock, bench.nonce)

    watch.declare_gone("one")
    assert bench.store.list("gone/") == []
    watch.declare_gone("two")
    assert bench.store.list("gone/") == [gone_key(2)]
