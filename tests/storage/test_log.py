"""The log: who creates the next record goes on, everybody else learns why not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.storage.make import LEASE_S, Bench, claim, holder
from tests.support.simulated_store import ManualClock, MemoryStore
from windfall.errors import Fenced, LogDamaged, NewerFormat, OlderFormat, RunHeld, StoreUnreachable
from windfall.ports import Create, Get, Pause, Progress, Steps, StoreOp
from windfall.storage import run_log, run_state
from windfall.structs import replace
from windfall.terms import Cause, LastProgress, Outcome, Record, RecordKind, RunState, Seconds, Step, WallTime
from windfall.wire.run_layout import heartbeat_key, record_key


def released(bench: Bench, head: Record, outcome: Outcome = Outcome.WAITING) -> Record:
    def advance(now: RunState) -> RunState:
        return run_state.released(now, outcome=outcome, cause=Cause.PREEMPTED_SAVED, wall_time=bench.clock.wall_time())

    return bench.run(
        run_log.append(head, advance, kind=RecordKind.RELEASE, nonce=bench.nonce(), wall_time=bench.clock.wall_time())
    )


def started_again(attempts: int) -> Callable[[RunState], RunState]:
    return lambda now: run_state.attempted(now, attempts=attempts, failures=0)


def append(bench: Bench, head: Record, attempts: int, nonce: str) -> Record:
    return bench.run(
        run_log.append(
            head, started_again(attempts), kind=RecordKind.ATTEMPT, nonce=nonce, wall_time=bench.clock.wall_time()
        )
    )


@given(length=st.integers(0, 300), hint=st.integers(0, 400))
def test_the_head_is_found_from_any_hint_in_few_reads(length: int, hint: int) -> None:
    """A wrong hint costs reads, never the right answer; no listing is needed."""
    store, clock = MemoryStore(), ManualClock()
    first = run_state.next_record(
        None,
        run_state.acquired(None, claim("a"), wall_time=WallTime(0)),
        kind=RecordKind.ACQUIRE,
        nonce="a",
        wall_time=0,
    )
    for number in range(1, length + 1):
        store.put(record_key(number), run_state.to_bytes(replace(first, number=number)))
    bench = Bench(Path(), store, clock)
    reads: list[StoreOp] = []
    head = drive(bench, run_log.read_head(hint), reads.append)
    assert (head.number if head else 0) == length
    assert len(reads) <= 22
    assert all(isinstance(read, Get) for read in reads)


def test_a_run_without_records_has_no_head(bench: Bench) -> None:
    """A new run is told apart from every other."""
    assert bench.run(run_log.read_head()) is None


def test_a_lost_reply_is_known_again_by_the_nonce(bench: Bench) -> None:
    """A creation whose reply was lost counts as made, once."""
    head = bench.acquire("a").record
    first = append(bench, head, 2, "same")
    again = append(bench, head, 2, "same")
    assert again == first
    assert bench.store.list("log/") == [record_key(1), record_key(2)]


def test_an_agent_that_was_started_again_goes_on_after_its_own_records(bench: Bench) -> None:
    """A record of one's own term that one does not know is no fence; the next one builds on it."""
    head = bench.acquire("a").record
    forgotten = append(bench, head, 2, "before the agent died")
    after = append(bench, head, 3, "after it was started again")
    assert (after.number, after.state.attempts) == (forgotten.number + 1, 3)


def test_a_fenced_holder_is_told_by_whom(bench: Bench) -> None:
    """The machine that lost the run says which host took it, and that it stops."""
    head = bench.acquire("a", "one").record
    bench.acquire("b", "two")
    with pytest.raises(Fenced, match=r"^two acquired the run at .* UTC \(record 2\): this machine stops") as caught:
        append(bench, head, 2, "late")
    assert (caught.value.record, caught.value.holder) == (2, "two")
    assert bench.store.list("log/") == [record_key(1), record_key(2)]


def test_a_holder_learns_of_the_fence_without_writing(bench: Bench) -> None:
    """`find_takeover` passes over one's own newer records and finds another's."""
    head = bench.acquire("a", "one").record
    append(bench, head, 2, "own")
    assert bench.run(run_log.find_takeover(head)) is None
    acquired = bench.acquire("b", "two").record
    assert bench.run(run_log.find_takeover(head)) == acquired
    with pytest.raises(Fenced):
        bench.run(run_log.refresh(head))


def test_nothing_is_appended_after_ones_own_release(bench: Bench) -> None:
    """A release ends the term for its holder too; releasing twice is the same as once."""
    head = bench.acquire("a").record
    end = released(bench, head)
    assert released(bench, head) == end
    with pytest.raises(Fenced, match="already released the run"):
        append(bench, head, 2, "late")


def test_a_released_run_is_taken_at_once(bench: Bench) -> None:
    """Nobody waits for a lease when the last holder let go; what it left is returned."""
    end = released(bench, bench.acquire("a", "one").record)
    before = bench.clock.now()
    acquired = bench.acquire("b", "two", dead=False)
    assert (acquired.mine, acquired.previous, bench.clock.now()) == (True, end, before)
    assert acquired.record.state.term == acquired.record.number == 3
    assert acquired.record.state.attempts == 2


def test_a_run_that_is_done_is_not_taken(bench: Bench) -> None:
    """The same line after the end changes nothing."""
    end = released(bench, bench.acquire("a").record, Outcome.DONE)
    acquired = bench.acquire("b")
    assert (acquired.mine, acquired.record) == (False, end)
    assert len(bench.store.list("log/")) == 2


def test_the_same_claim_taken_twice_is_one_term(bench: Bench) -> None:
    """A take whose reply was lost is known again when the same claim tries once more."""
    first = bench.acquire("a", dead=False)
    again = bench.acquire("a", dead=False)
    assert (again.mine, again.record) == (True, first.record)


def test_a_dead_process_of_the_same_boot_is_succeeded_at_once(bench: Bench) -> None:
    """On one machine nobody waits for the lease of a process that is gone; its life is counted."""
    head = bench.acquire("a", "one").record
    bench.clock.sleep(100)
    bench.run(run_log.write_heartbeat(1, 1, bench.clock.wall_time(), head.number, "a"))
    before = bench.clock.now()
    acquired = bench.acquire("b", "one", dead=True)
    assert bench.clock.now() == before
    assert acquired.record.state.lifetimes_s == pytest.approx(100)
    assert [loss.cause for loss in acquired.record.state.losses] == [Cause.VANISHED]


def test_death_is_not_judged_from_another_machine(bench: Bench) -> None:
    """Process numbers of another boot mean nothing here: the lease decides."""
    bench.acquire("a", "one")
    before = bench.clock.now()
    assert bench.acquire("b", "two", dead=True).mine
    assert LEASE_S <= bench.clock.now() - before <= 1.2 * LEASE_S


def test_a_live_holder_is_left_alone_with_one_sentence(bench: Bench) -> None:
    """Without `--wait` a contender ends with 75 and says who holds the run, since when, and what to do."""
    bench.acquire("a", "one")
    steps = run_log.acquire(claim("b", "two"), holder_is_dead=lambda _: False, wall_time=bench.clock.wall_time)
    with pytest.raises(
        RunHeld, match=r"^one has held this run since .* UTC and is alive .*--wait.*windfall stop URL`$"
    ) as held:
        drive_with_beats(bench, steps, beats=3)
    assert held.value.exit_code == 75


def test_with_wait_a_contender_takes_over_a_lease_after_the_last_beat(bench: Bench) -> None:
    """The lease counts from the last sign of life, on the contender's own clock; it is told whom it watches."""
    bench.acquire("a", "one")
    told: list[str] = []
    steps = run_log.acquire(
        claim("b", "two"), holder_is_dead=lambda _: False, wall_time=bench.clock.wall_time, wait=True, log=told.append
    )
    started = bench.clock.now()
    acquired = drive_with_beats(bench, steps, beats=25)
    assert isinstance(acquired, run_log.AcquiredTerm)
    assert acquired.record.state.term == 2
    assert bench.clock.now() - started >= 25 + LEASE_S
    (message,) = told
    assert message.startswith("one has held this run since")
    assert message.endswith("waiting until it releases the run or is silent for 10 s")


def test_a_waiting_contender_is_told_of_each_holder_once(bench: Bench) -> None:
    """A holder that commits while somebody waits is no news."""
    head = bench.acquire("a", "one").record
    told: list[str] = []
    steps = run_log.acquire(
        claim("b", "two"), holder_is_dead=lambda _: False, wall_time=bench.clock.wall_time, wait=True, log=told.append
    )
    counts = iter(range(2, 6))

    def commit(operation: StoreOp) -> None:
        nonlocal head
        if isinstance(operation, Pause) and operation.duration_s > 0 and (count := next(counts, None)):
            head = append(bench, head, count, bench.nonce())

    assert drive(bench, steps, commit).previous == head
    assert len(told) == 1


def drive_with_beats(bench: Bench, steps: Steps[object], *, beats: int) -> object:
    """Run a contender while the holder of term 1 beats at each of the contender's first pauses."""
    counter = iter(range(1, beats + 1))

    def beat(operation: StoreOp) -> None:
        if isinstance(operation, Pause) and operation.duration_s > 0 and (count := next(counter, None)):
            bench.run(run_log.write_heartbeat(1, count, bench.clock.wall_time(), 1, "a"))

    return drive(bench, steps, beat)


def drive(bench: Bench, steps: Steps[object], before: Callable[[StoreOp], None]) -> object:
    """Run a step function and let something happen before each of its operations."""

    def told() -> Steps[object]:
        operation = next(steps)
        try:
            while True:
                before(operation)
                operation = steps.send((yield operation))
        except StopIteration as end:
            return end.value

    return bench.run(told())


def test_a_contender_that_slept_does_not_take_its_own_sleep_for_silence(bench: Bench) -> None:
    """Two looks a lease apart are no watch: time in which the contender did not look does not count."""
    bench.acquire("a", "one")
    steps = run_log.acquire(
        claim("b", "two"), holder_is_dead=lambda _: False, wall_time=bench.clock.wall_time, wait=True
    )
    looks = 0

    def sleep(operation: StoreOp) -> None:
        nonlocal looks
        if isinstance(operation, Pause) and operation.duration_s > 0:
            looks += 1
            bench.clock.sleep(Seconds(1000))

    assert drive(bench, steps, sleep).mine
    assert looks >= 5


def test_a_newer_record_is_refused(bench: Bench) -> None:
    """A run that a newer Windfall wrote is not touched by an older one."""
    bench.store.put(record_key(1), b'{"version": 5, "record": {}}')
    with pytest.raises(NewerFormat, match=r"log/00000001 has version 5, this Windfall reads up to 4: upgrade"):
        bench.acquire("a")


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"version": 4}', b'{"version": 4, "record": {"type": "Chunk"}}', b"\xff"]
)
def test_a_damaged_record_is_named(bench: Bench, content: bytes) -> None:
    """Whatever lies in the log instead of a record, the sentence says which object it is."""
    bench.store.put(record_key(1), content)
    with pytest.raises(LogDamaged, match=r"^log/00000001 is damaged"):
        bench.acquire("a")


def test_a_heartbeat_is_read_back(bench: Bench) -> None:
    """The heartbeat carries the holder's clock, a hint where the log ends, and how far the script has come."""
    assert bench.run(run_log.read_heartbeat(4)) is None
    bench.run(run_log.write_heartbeat(4, 9, WallTime(5.5), 12, "n", progress=Progress(2, 30, 41, 1.5)))
    reached = LastProgress(2, Step(30), Step(41), WallTime(5.5), Seconds(1.5))
    assert bench.run(run_log.read_heartbeat(4)) == run_log.Heartbeat(9, 12, "n", reached)
    bench.store.put(heartbeat_key(4), b"{}")
    with pytest.raises(LogDamaged, match="is not a heartbeat"):
        bench.run(run_log.read_heartbeat(4))


def test_errors_of_the_store_reach_the_caller(bench: Bench) -> None:
    """A store that does not answer is the caller's to try again, with the same nonce."""
    head = bench.acquire("a").record
    steps = run_log.append(
        head, started_again(2), kind=RecordKind.ATTEMPT, nonce="x", wall_time=bench.clock.wall_time()
    )
    operation = next(steps)
    assert isinstance(operation, Create)
    with pytest.raises(StoreUnreachable):
        steps.throw(StoreUnreachable("no answer"))
    assert append(bench, head, 2, "x").nonce == "x"


def test_the_holder_is_kept_whole_in_the_record(bench: Bench) -> None:
    """Another process of the machine can tell from the record whether the holder lives."""
    bench.acquire("a", "one")
    record = bench.run(run_log.read_record(1))
    assert record is not None
    assert record.state.holder == holder("a", "one")


@pytest.mark.parametrize("key", ["v", "version"])
def test_a_record_of_before_the_first_release_is_refused(bench: Bench, key: str) -> None:
    """An old store is refused in one sentence that says what to do, whatever the key of its version is called."""
    bench.store.put(record_key(1), b'{"%s": 2, "record": {"is": "Record", "state": {"epoch": 1}}}' % key.encode())
    with pytest.raises(OlderFormat, match=r"log/00000001 has version 2.*no longer supported: use another URL"):
        bench.run(run_log.read_record(1))
