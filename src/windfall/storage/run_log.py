"""The log of a run: one create-only sequence of records that serves as lease, fence and index.

A machine that creates record n+1 continues; one that does not has been fenced.  Heartbeats and leases only decide *when*
a contender tries; safety depends only on the creation, so a contender may pause for any time between looking and
creating.

The functions here are step functions (`ports.Steps`): they yield store operations and are run by an executor.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime

from windfall import codec
from windfall.errors import Fenced, LogDamaged, RunHeld, StoreError
from windfall.ports import NO_PROGRESS, Clock, ObjectStore, Progress, Steps
from windfall.storage import store_checks, store_operations
from windfall.storage.run_state import Claim, acquired, from_bytes, next_record, refuse_older, to_bytes
from windfall.storage.store_operations import create, get, get_all, pause, put
from windfall.structs import Struct, plain
from windfall.terms import Holder, LastProgress, Outcome, Record, RecordKind, RunState, Seconds, Step, Term, WallTime
from windfall.wire.run_layout import gone_key, heartbeat_key, inbox_key, record_key

POLLS_PER_LEASE = 10
"""Number of heartbeat reads per lease: a contender detects a dead holder at most a tenth of a lease late."""
POLL_S_MAX = 5.0
"""The longest pause between two reads [s], so that `--wait` notices a release soon under a long lease."""


class Heartbeat(Struct, frozen=True):
    """Content of a holder's heartbeat object.

    Attributes:
        counter: grows with each heartbeat.
        head: number of the newest record the holder knows; a hint for `read_head`.
        nonce: the holder's nonce.
        reached: its progress, with the time of the heartbeat.
    """

    counter: int
    head: int
    nonce: str
    reached: LastProgress

    @property
    def wall_time(self) -> WallTime:
        """The holder's wall clock."""
        return self.reached.wall_time


class AcquiredTerm(Struct, frozen=True):
    """Result of `acquire`.

    Attributes:
        record: the newest record.
        mine: whether this contender holds the run now; False only if the run is done.
        previous: the record before `record`, by the last holder; None for a new run.
    """

    record: Record
    mine: bool
    previous: Record | None


# --------------------------------------------------------------------------------------------------------- the sequence


def read_record(number: int) -> Steps[Record | None]:
    """Return a record, None if it does not exist (yet).

    Raises:
        NewerFormat: it was written by a newer Windfall.
        LogDamaged: it cannot be read.
    """
    key = record_key(number)
    data = yield from get(key)
    return None if data is None else from_bytes(data, key)


def read_head(hint: int = 0) -> Steps[Record | None]:
    """Return the newest record, None for a new run; by reading records, never by listing.

    Records have no gaps, so existence is monotone in the number: doubling strides find a number that does not exist, then
    bisection finds the last that does.  The cost is about 2 log2(head - hint) reads.

    Args:
        hint: a number that probably exists; a wrong one costs only more reads.
    """
    newest: Record | None = None
    low, stride, high = 0, 1, max(hint, 1)
    while (found := (yield from read_record(high))) is not None:
        newest, low = found, high
        high += stride
        stride *= 2
    while high - low > 1:
        middle = (low + high) // 2
        found = yield from read_record(middle)
        if found is None:
            high = middle
        else:
            newest, low = found, middle
    return newest


def append(
    head: Record, advance: Callable[[RunState], RunState], *, kind: RecordKind, nonce: str, wall_time: WallTime
) -> Steps[Record]:
    """Append the record with the state `advance(state)`; return the newest record of this term.

    If the record exists already, its content decides: with this nonce it is this record (a lost reply, a retry); with this
    term it is an earlier record of this holder (by an agent that has restarted), so `advance` is applied to it and the next
    number is tried; with another term it is the fence.

    Args:
        head: the newest record this holder knows.
        advance: returns the next state from the newest, or its argument if there is nothing to change.
        kind: what the record changes.
        nonce: random; the same when the same append is retried after an error.
        wall_time: this machine's wall clock.

    Raises:
        Fenced: another machine acquired the run, or this one already released it.
    """
    while True:
        state = advance(head.state)
        if state == head.state:
            return head
        there = yield from _create(next_record(head, state, kind=kind, nonce=nonce, wall_time=wall_time))
        if _wrote(there, nonce):
            return there
        if not _same_term(head, there):
            raise fenced_by(there)
        head = there


def _create(record: Record) -> Steps[Record]:
    """Try to create a record; return the record with its number."""
    key = record_key(record.number)
    if (yield from create(key, to_bytes(record))):
        return record
    there = yield from read_record(record.number)
    if there is None:
        raise StoreError(
            f"the store reports that {key} exists but does not return it: check what else writes to this location"
        )
    return there


def _wrote(there: Record, nonce: str) -> bool:
    return there.nonce == nonce


def _same_term(mine: Record, there: Record) -> bool:
    return there.state.term == mine.state.term


def fenced_by(record: Record) -> Fenced:
    """Return the error that names the machine that acquired the run."""
    host = "another machine" if record.state.holder is None else record.state.holder.host
    return Fenced(
        f"{host} acquired the run at {_utc(record.state.holder_since)} (record {record.number}): "
        "this machine stops and commits nothing more",
        record=record.number,
        holder=host,
    )


def find_takeover(head: Record) -> Steps[Record | None]:
    """Return the record by which another machine acquired the run; None while the term of `head` is the newest."""
    newest = yield from _newest_or_next_term(head)
    return None if _same_term(head, newest) else newest


def refresh(head: Record) -> Steps[Record]:
    """Return the newest record of this term.

    Raises:
        Fenced: another machine acquired the run.
    """
    newest = yield from _newest_or_next_term(head)
    if not _same_term(head, newest):
        raise fenced_by(newest)
    return newest


def _newest_or_next_term(head: Record) -> Steps[Record]:
    newest = head
    while (there := (yield from read_record(newest.number + 1))) is not None:
        newest = there
        if not _same_term(head, there):
            break
    return newest


# ------------------------------------------------------------------------------------------------------------ heartbeat


def write_heartbeat(
    term: int, counter: int, wall_time: WallTime, head_number: int, nonce: str, *, progress: Progress = NO_PROGRESS
) -> Steps[None]:
    """Write the term's heartbeat; several times per lease, with a growing counter."""
    document = {"version": 1, "counter": counter, "wall_time": wall_time, "head": head_number, "nonce": nonce}
    line = json.dumps(document | plain(progress))
    yield from put(heartbeat_key(term), line.encode())


def parse_heartbeat(data: bytes, key: str) -> Heartbeat:
    """Decode a heartbeat.

    Raises:
        LogDamaged: it is not a heartbeat.
    """
    try:
        document = codec.parse(data)
        whole = [codec.decode(document[name], int) for name in ("attempt", "first_step", "step", "counter", "head")]
        wall_time, max_gap_s = (codec.decode(document[name], float) for name in ("wall_time", "max_gap_s"))
        nonce: str = codec.decode(document["nonce"], str)
    except (ValueError, KeyError, TypeError) as error:
        raise LogDamaged(f"{key} is not a heartbeat ({error}): check what else writes to this location") from error
    attempt, first, step, counter, head = whole
    reached = LastProgress(attempt, Step(first), Step(step), WallTime(wall_time), Seconds(max_gap_s))
    if not store_checks.is_reached(reached):
        raise LogDamaged(f"{key} is not a heartbeat (its numbers are invalid): check what else writes to this location")
    return Heartbeat(counter, head, nonce, reached)


def read_heartbeat(term: int) -> Steps[Heartbeat | None]:
    """Return a term's last heartbeat, None if its holder never wrote one."""
    key = heartbeat_key(term)
    data = yield from get(key)
    return None if data is None else parse_heartbeat(data, key)


# ------------------------------------------------------------------------------------------------------------ take-over


def acquire(
    claim: Claim,
    *,
    holder_is_dead: Callable[[Holder], bool],
    wall_time: Callable[[], WallTime],
    find_progress: Callable[[Holder, Term], LastProgress | None] = lambda _holder, _term: None,
    wait: bool = False,
    log: Callable[[str], None] | None = None,
    hint: int = 0,
    poll_s_max: float = POLL_S_MAX,
) -> Steps[AcquiredTerm]:
    """Acquire the run: at once if no machine holds it, from a dead holder, or (with `wait`) when a live one releases it.

    May be repeated with the same claim after an error: a record with its nonce is its own.

    Args:
        claim: who acquires the run, and with what.
        holder_is_dead: whether a holder of the same boot and PID namespace is gone; called only for such holders.
        wall_time: this machine's wall clock, read when a record is written.
        find_progress: last progress of a holder from its files on this host; called only for holders that are gone.
        wait: wait for a live holder instead of raising `RunHeld`.
        log: receives one message for each holder that is watched.
        hint: number of a record that probably exists.
        poll_s_max: the longest pause between two reads of the heartbeat [s].

    Raises:
        RunHeld: a live machine holds the run, and `wait` is not set.
        NewerFormat, LogDamaged: the log cannot be read.
        Fenced: a newer generation acquired it.
    """
    head = yield from read_head(hint)
    logged_term = None
    while True:
        if head is not None and head.state.outcome is Outcome.DONE:
            return AcquiredTerm(head, mine=False, previous=head)
        if head is not None:
            refuse_older(head.state, claim)
        reached: LastProgress | None = None
        if head is not None and head.state.holder is not None:
            if head.state.holder.nonce == claim.holder.nonce:
                previous = yield from _before(head)
                return AcquiredTerm(head, mine=True, previous=previous)
            log_once = log if head.state.term != logged_term else None
            logged_term = head.state.term
            options = _WatchOptions(
                wait, min(head.state.lease_s / POLLS_PER_LEASE, poll_s_max), log_once, find_progress
            )
            check = yield from _check_holder(head, head.state.holder, claim, holder_is_dead, options)
            if check.moved_to is not None:
                head = check.moved_to
                continue
            reached = check.reached
        now = wall_time()
        state = acquired(head, claim, wall_time=now, reached=reached)
        mine = next_record(head, state, kind=RecordKind.ACQUIRE, nonce=claim.holder.nonce, wall_time=now)
        there = yield from _create(mine)
        if _wrote(there, mine.nonce):
            return AcquiredTerm(there, mine=True, previous=head)
        head = yield from read_head(there.number)


def _before(head: Record) -> Steps[Record | None]:
    if head.state.term == 1:
        return None
    return (yield from read_record(head.state.term - 1))


class _HolderCheck(Struct, frozen=True):
    """The holder is dead (`reached`: its last progress), or the log has a newer record (`moved_to`)."""

    reached: LastProgress | None = None
    moved_to: Record | None = None


class _WatchOptions(Struct, frozen=True):
    """How a contender watches a live holder: whether and how often it polls [s], and its callbacks."""

    wait: bool
    poll_s: float
    log: Callable[[str], None] | None
    find_progress: Callable[[Holder, Term], LastProgress | None]


def _check_holder(
    head: Record, holder: Holder, claim: Claim, holder_is_dead: Callable[[Holder], bool], options: _WatchOptions
) -> Steps[_HolderCheck]:
    if _same_machine(holder, claim.holder) and holder_is_dead(holder):
        if (found := options.find_progress(holder, head.state.term)) is not None:
            return _HolderCheck(found)
        last = yield from read_heartbeat(head.state.term)
        return _HolderCheck(None if last is None else last.reached)
    if options.log is not None:
        lease_s = f"{head.state.lease_s:g} s"
        wait = f"waiting until it releases the run or is silent for {lease_s}"
        what = wait if options.wait else f"waiting up to {lease_s} for its heartbeat"
        options.log(f"{holder.host} has held this run since {_utc(head.state.holder_since)}: {what}")
    return (yield from _watch(head, holder, options))


def _same_machine(one: Holder, other: Holder) -> bool:
    return (one.boot_id, one.pid_namespace) == (other.boot_id, other.pid_namespace)


def _watch(head: Record, holder: Holder, options: _WatchOptions) -> Steps[_HolderCheck]:
    """Watch the holder's heartbeat until it has not changed for one of the holder's leases, or the log has a newer record.

    If the provider has reported the holder's machine as gone, there is no wait.  If that was wrong, the fence protects the
    run: the holder loses it at its next record.
    """
    key, gone = heartbeat_key(head.state.term), gone_key(head.state.term)
    lease_s, poll_s = head.state.lease_s, options.poll_s
    seen, declared_gone = yield from get_all((key, gone))
    if declared_gone is not None:
        return _last_seen(seen, key)
    # The clock is read after the first read and before the last one: the silence lies entirely between the two.
    before = yield from pause(0.0)
    still_s = 0.0
    while True:
        now = yield from pause(poll_s)
        # A contender that was itself suspended observed nothing in that time, so it does not count as silence.
        still_s += min(now - before, 2 * poll_s)
        before = now
        content, after, declared_gone = yield from get_all((key, record_key(head.number + 1), gone))
        if after is not None:
            return (yield from _moved(head, wait=options.wait))
        if declared_gone is not None:
            return _last_seen(content, key)
        if _alive(seen, content):
            if not options.wait:
                raise _held(head, holder)
            seen, still_s = content, 0.0
            before = yield from pause(0.0)
        elif _heartbeat_unchanged(still_s, lease_s):
            return _last_seen(content, key)


def _last_seen(content: bytes | None, key: str) -> _HolderCheck:
    return _HolderCheck(None if content is None else parse_heartbeat(content, key).reached)


def _alive(seen: bytes | None, content: bytes | None) -> bool:
    return seen != content


def _heartbeat_unchanged(still_s: float, lease_s: Seconds) -> bool:
    return still_s >= lease_s


def _moved(head: Record, *, wait: bool) -> Steps[_HolderCheck]:
    newest = yield from read_head(head.number + 1)
    assert newest is not None, "records are never deleted"
    if not wait and newest.state.holder is not None and _same_term(head, newest):
        raise _held(newest, newest.state.holder)
    return _HolderCheck(moved_to=newest)


def _held(head: Record, holder: Holder) -> RunHeld:
    return RunHeld(
        f"{holder.host} has held this run since {_utc(head.state.holder_since)} and is alive (process {holder.pid}): "
        "wait for it with --wait, or stop it with `windfall stop URL`"
    )


def _utc(wall_time: WallTime) -> str:
    return datetime.fromtimestamp(wall_time, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


class StoreWatch:
    """`ports.RunWatch`; calls come from one thread."""

    def __init__(self, store: ObjectStore, clock: Clock, new_nonce: Callable[[], str]) -> None:
        self._store = store
        self._clock = clock
        self._new_nonce = new_nonce
        self._head: Record | None = None

    def observe(self) -> RunState | None:
        """Return the current state of the run's log, with two reads if little has changed."""
        head = store_operations.run(read_head(self._head.number if self._head else 0), self._store, self._clock)
        self._head = head or self._head
        return None if self._head is None else self._head.state

    def declare_gone(self, machine_id: str) -> None:
        """Record that a machine no longer exists; applies only to the term that it holds now."""
        state = self.observe()
        if state is not None and state.holder is not None and state.holder.host == machine_id:
            store_operations.run(create(gone_key(state.term), machine_id.encode()), self._store, self._clock)

    def stop(self, *, now: bool, reason: str) -> None:
        """Send a stop request to the machine that holds the run now, not to a later one."""
        state = self.observe()
        if state is None or state.holder is None:
            return
        message = {"type": "stop", "now": now, "reason": reason, "term": state.term}
        data = json.dumps(message).encode()
        store_operations.run(create(inbox_key(self._new_nonce()), data), self._store, self._clock)
