"""The log of a run: one create-only sequence of records, which is lease, fence and index in one.

Whoever creates record n+1 goes on; whoever does not has been fenced.  Heartbeats and leases only decide *when* a
contender tries; that it is safe rests on the creation alone, so that a contender may pause for any time between looking
and creating.  (Architecture, "the law of the store".)

Everything here is a step function (`ports.Steps`): it yields store operations and is driven by an executor.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from windfall import codec
from windfall.errors import Fenced, LogDamaged, RunHeld, StoreError
from windfall.ports import NO_PROGRESS, Progress, Steps
from windfall.storage import checked
from windfall.storage.operations import create, get, get_all, pause, put
from windfall.storage.state import Claim, follow, from_bytes, refuse_older, taken, to_bytes
from windfall.terms import Holder, Outcome, Reached, Record, RecordKind, RunState, Seconds, Step, Term, WallTime
from windfall.wire.layout import gone_key, heartbeat_key, record_key

POLLS_PER_LEASE = 10
"""How often a contender looks at a heartbeat within one lease: it learns of a death at most a tenth of a lease late."""
POLL_S_MAX = 5.0
"""The longest pause between two looks [s], so that `--wait` notices a release soon under a long lease."""


@dataclass(frozen=True, slots=True)
class Beat:
    """What a holder's heartbeat object says.

    Attributes:
        counter: grows with each beat.
        head: number of the newest record the holder knows: a hint for `read_head`.
        nonce: the holder's.
        reached: how far it has come by its wall clock's `wall`.
    """

    counter: int
    head: int
    nonce: str
    reached: Reached

    @property
    def wall(self) -> WallTime:
        """The holder's wall clock."""
        return self.reached.wall


@dataclass(frozen=True, slots=True)
class Taken:
    """The end of `take`.

    Attributes:
        record: the newest record.
        mine: whether this contender holds the run now; False only if the run is done.
        previous: the record before `record`, None for a new run: what the last holder left.
    """

    record: Record
    mine: bool
    previous: Record | None


# --------------------------------------------------------------------------------------------------------- the sequence


def read_record(number: int) -> Steps[Record | None]:
    """Return a record, None if it does not exist (yet).

    Raises:
        NewerFormat: a newer Windfall wrote it.
        LogDamaged: it cannot be read.
    """
    key = record_key(number)
    data = yield from get(key)
    return None if data is None else from_bytes(data, key)


def read_head(hint: int = 0) -> Steps[Record | None]:
    """Return the newest record, None for a new run; by opening records, never by listing.

    Records have no gaps, so existence is monotone in the number: strides that double find a number that does not exist,
    halving finds the last that does.  The cost is about 2 log2(head - hint) reads.

    Args:
        hint: a number that probably exists; a wrong one costs reads, not correctness.
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
    head: Record, advance: Callable[[RunState], RunState], *, kind: RecordKind, nonce: str, wall: WallTime
) -> Steps[Record]:
    """Append the record that carries `advance(state)`; return the newest record of this term.

    A record that is there already decides: with our nonce it is this very one (a lost reply, a retry); of our term it
    is an earlier one of ours (an agent that was started again), so `advance` is applied to it and the next number is
    tried; of another term it is the fence.

    Args:
        head: the newest record this holder knows.
        advance: the next state from the newest; returns its argument if nothing is left to be done.
        kind: what the record does.
        nonce: random; the same again when the same append is tried again after an error.
        wall: this machine's wall clock.

    Raises:
        Fenced: another machine took the run, or this one already released it.
    """
    while True:
        state = advance(head.state)
        if state == head.state:
            return head
        there = yield from _create(follow(head, state, kind=kind, nonce=nonce, wall=wall))
        if _wrote(there, nonce):
            return there
        if not _same_term(head, there):
            raise fenced_by(there)
        head = there


def _create(record: Record) -> Steps[Record]:
    """Try to create a record; return the one that stands at its number."""
    key = record_key(record.number)
    if (yield from create(key, to_bytes(record))):
        return record
    there = yield from read_record(record.number)
    if there is None:
        raise StoreError(f"the store says that {key} exists and does not give it: check what else writes to this place")
    return there


def _wrote(there: Record, nonce: str) -> bool:
    return there.nonce == nonce


def _same_term(mine: Record, there: Record) -> bool:
    return there.state.term == mine.state.term


def fenced_by(record: Record) -> Fenced:
    """Return the error that says who took the run."""
    host = "another machine" if record.state.holder is None else record.state.holder.host
    return Fenced(
        f"{host} took the run at {_utc(record.state.holder_since)} (record {record.number}): "
        "this machine stops and commits nothing more",
        record=record.number,
        holder=host,
    )


def still_mine(head: Record) -> Steps[Record | None]:
    """Return None while the term of `head` is the newest, else the record by which another machine took the run."""
    newest = yield from _newest_or_next_term(head)
    return None if _same_term(head, newest) else newest


def refresh(head: Record) -> Steps[Record]:
    """Return the newest record of this term.

    Raises:
        Fenced: another machine took the run.
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


def beat(
    term: int, counter: int, wall: WallTime, head_number: int, nonce: str, *, progress: Progress = NO_PROGRESS
) -> Steps[None]:
    """Write the term's heartbeat; several times a lease, with a counter that grows."""
    said = {"v": 1, "counter": counter, "wall": wall, "head": head_number, "nonce": nonce}
    line = json.dumps(said | dataclasses.asdict(progress))
    yield from put(heartbeat_key(term), line.encode())


def parse_beat(data: bytes, key: str) -> Beat:
    """Read a heartbeat's content.

    Raises:
        LogDamaged: it is not a heartbeat.
    """
    try:
        said = codec.parse(data)
        whole = [codec.decode(said[name], int) for name in ("attempt", "first", "step", "counter", "head")]
        wall, within_s = (codec.decode(said[name], float) for name in ("wall", "within_s"))
        nonce: str = codec.decode(said["nonce"], str)
    except (ValueError, KeyError, TypeError) as error:
        raise LogDamaged(f"{key} is not a heartbeat ({error}): something else writes to this place") from error
    attempt, first, step, counter, head = whole
    reached = Reached(attempt, Step(first), Step(step), WallTime(wall), Seconds(within_s))
    if not checked.is_reached(reached):
        raise LogDamaged(f"{key} is not a heartbeat (its numbers cannot be): something else writes to this place")
    return Beat(counter, head, nonce, reached)


def read_beat(term: int) -> Steps[Beat | None]:
    """Return a term's last heartbeat, None if its holder never had one."""
    key = heartbeat_key(term)
    data = yield from get(key)
    return None if data is None else parse_beat(data, key)


# ------------------------------------------------------------------------------------------------------------ take-over


def take(
    claim: Claim,
    *,
    holder_is_dead: Callable[[Holder], bool],
    wall: Callable[[], WallTime],
    left: Callable[[Holder, Term], Reached | None] = lambda _holder, _term: None,
    wait: bool = False,
    tell: Callable[[str], None] | None = None,
    hint: int = 0,
    poll_s_max: float = POLL_S_MAX,
) -> Steps[Taken]:
    """Take the run: at once if nobody holds it, from a dead holder, or (with `wait`) when a live one lets go.

    The same claim may be taken again after an error: a record that carries its nonce is its own.

    Args:
        claim: who takes it, and with what.
        holder_is_dead: whether a holder of this same boot and PID namespace is gone; asked only about such.
        wall: this machine's wall clock, read when a record is written.
        left: how far a holder had come, by what it left on this host; asked only about those that are gone.
        wait: wait for a live holder instead of giving up.
        tell: receives one sentence for each holder that is watched.
        hint: a record that probably exists.
        poll_s_max: the longest pause between two looks at a holder [s].

    Raises:
        RunHeld: a live machine holds the run, and `wait` is not set.
        NewerFormat, LogDamaged: the log cannot be read.
        Fenced: a newer generation of machines has taken it.
    """
    head = yield from read_head(hint)
    told = None
    while True:
        if head is not None and head.state.outcome is Outcome.DONE:
            return Taken(head, mine=False, previous=head)
        if head is not None:
            refuse_older(head.state, claim)
        reached: Reached | None = None
        if head is not None and head.state.holder is not None:
            if head.state.holder.nonce == claim.holder.nonce:
                previous = yield from _before(head)
                return Taken(head, mine=True, previous=previous)
            once = tell if head.state.term != told else None
            told = head.state.term
            looks = _Looks(wait, min(head.state.lease_s / POLLS_PER_LEASE, poll_s_max), once, left)
            verdict = yield from _judge(head, head.state.holder, claim, holder_is_dead, looks)
            if verdict.moved_to is not None:
                head = verdict.moved_to
                continue
            reached = verdict.reached
        now = wall()
        state = taken(head, claim, wall=now, reached=reached)
        mine = follow(head, state, kind=RecordKind.TAKE, nonce=claim.holder.nonce, wall=now)
        there = yield from _create(mine)
        if _wrote(there, mine.nonce):
            return Taken(there, mine=True, previous=head)
        head = yield from read_head(there.number)


def _before(head: Record) -> Steps[Record | None]:
    if head.state.term == 1:
        return None
    return (yield from read_record(head.state.term - 1))


@dataclass(frozen=True, slots=True)
class _Verdict:
    """The holder is dead (`reached`: how far it came), or the log moved on to another record."""

    reached: Reached | None = None
    moved_to: Record | None = None


@dataclass(frozen=True, slots=True)
class _Looks:
    """How a contender watches a live holder: whether it waits, how often it looks [s], whom it tells, what is left."""

    wait: bool
    poll_s: float
    tell: Callable[[str], None] | None
    left: Callable[[Holder, Term], Reached | None]


def _judge(
    head: Record, holder: Holder, claim: Claim, holder_is_dead: Callable[[Holder], bool], looks: _Looks
) -> Steps[_Verdict]:
    if _same_machine(holder, claim.holder) and holder_is_dead(holder):
        if (found := looks.left(holder, head.state.term)) is not None:
            return _Verdict(found)
        last = yield from read_beat(head.state.term)
        return _Verdict(None if last is None else last.reached)
    if looks.tell is not None:
        what = "waiting until it lets go or is" if looks.wait else "looking whether it is"
        since = _utc(head.state.holder_since)
        looks.tell(f"{holder.host} holds this run since {since}: {what} silent for {head.state.lease_s:g} s")
    return (yield from _watch(head, holder, looks))


def _same_machine(one: Holder, other: Holder) -> bool:
    return (one.boot_id, one.pid_namespace) == (other.boot_id, other.pid_namespace)


def _watch(head: Record, holder: Holder, looks: _Looks) -> Steps[_Verdict]:
    """Look at the holder's heartbeat until it stood still for one of the holder's leases, or the log moved on.

    Where somebody who knows has said that the holder's machine is gone, nothing is waited for.  If that was a lie, the
    fence keeps the run whole: the holder loses it at its next record.
    """
    key, gone = heartbeat_key(head.state.term), gone_key(head.state.term)
    lease_s, poll_s = head.state.lease_s, looks.poll_s
    seen, said_gone = yield from get_all((key, gone))
    if said_gone is not None:
        return _last_seen(seen, key)
    # The clock is read after the first look and before the last one: the stillness lies wholly between the two.
    before = yield from pause(0.0)
    still_s = 0.0
    while True:
        now = yield from pause(poll_s)
        # A contender that was itself stopped saw nothing meanwhile: that time proves nothing about the holder.
        still_s += min(now - before, 2 * poll_s)
        before = now
        content, after, said_gone = yield from get_all((key, record_key(head.number + 1), gone))
        if after is not None:
            return (yield from _moved(head, wait=looks.wait))
        if said_gone is not None:
            return _last_seen(content, key)
        if _alive(seen, content):
            if not looks.wait:
                raise _held(head, holder)
            seen, still_s = content, 0.0
            before = yield from pause(0.0)
        elif _stood_still(still_s, lease_s):
            return _last_seen(content, key)


def _last_seen(content: bytes | None, key: str) -> _Verdict:
    return _Verdict(None if content is None else parse_beat(content, key).reached)


def _alive(seen: bytes | None, content: bytes | None) -> bool:
    return seen != content


def _stood_still(still_s: float, lease_s: Seconds) -> bool:
    return still_s >= lease_s


def _moved(head: Record, *, wait: bool) -> Steps[_Verdict]:
    newest = yield from read_head(head.number + 1)
    assert newest is not None, "records are never deleted"
    if not wait and newest.state.holder is not None and _same_term(head, newest):
        raise _held(newest, newest.state.holder)
    return _Verdict(moved_to=newest)


def _held(head: Record, holder: Holder) -> RunHeld:
    return RunHeld(
        f"{holder.host} holds this run since {_utc(head.state.holder_since)} and is alive (process {holder.pid}): "
        "wait for it with --wait, or stop it with `windfall stop`"
    )


def _utc(wall: WallTime) -> str:
    return datetime.fromtimestamp(wall, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
