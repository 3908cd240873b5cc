"""One seeded race for a run: two to five contenders on a simulated store, with every promise checked at every record.

Replay a failure with `python -m tests.storms.takeover --seed N [--bug NAME]`.
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from tests.storms import planted
from tests.support.silence import Looks
from tests.support.simulated_store import Actor, Faults, World, digest
from windfall.errors import CheckpointDamaged, Fenced, StoreUnreachable
from windfall.ports import Create, Delete, Get, Pause, Put, SimpleOp, Steps
from windfall.storage import checkpoint_store, manifest, run_log, run_state
from windfall.terms import (
    Cause,
    Checkpoint,
    Chunk,
    FileEntry,
    Holder,
    Outcome,
    Record,
    RecordKind,
    RunState,
    SaveKind,
    Seconds,
    Shard,
    Step,
)
from windfall.wire.run_layout import LOG, heartbeat_key, manifest_key, record_key, shard_prefix

LEASE_S = Seconds(10.0)
GOAL = 5
"""The run is done after this many committed points."""
CALM_AT_S = 200.0
LIVENESS_S = 300.0
"""Once the faults stop the run must be done within this time: thirty leases."""
LIVES_MAX = 60
"""More lives than this would mean that the contenders kill one another for ever."""

T = TypeVar("T")


class Violation(AssertionError):
    """A promise of the log was broken."""


def check(kept: bool, promise: str, *details: object) -> None:
    if not kept:
        raise Violation(f"{promise}: {', '.join(map(str, details))}")


@dataclass
class Race:
    """The contenders, their claims, and the content of the log."""

    seed: int
    world: World = field(init=False)
    records: list[Record] = field(default_factory=list)
    writers: list[Actor] = field(default_factory=list)
    believers: dict[int, Actor] = field(default_factory=dict)
    lives: dict[str, Actor] = field(default_factory=dict)
    looks: Looks = field(default_factory=Looks)
    ended: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.world = World(self.seed, Faults(calm_at=CALM_AT_S), self.observe, self.next_life)
        count = self.world.rng.randint(2, 5)
        hosts = self.world.rng.randint(1, count)
        for number in range(count):
            self.enter(f"c{number}", f"host{number % hosts}", self.world.rng.uniform(0, 5))

    # -------------------------------------------------------------------------------------------------- the contenders

    def enter(self, name: str, host: str, delay_s: float) -> None:
        check(len(self.lives) < LIVES_MAX, "the race comes to an end", f"{len(self.lives)} lives so far")
        actor = self.world.actor(f"{name}.{len(self.lives)}", host)
        nonce = f"{self.world.rng.getrandbits(48):012x}"
        self.lives[nonce] = actor
        self.world.start(actor, self.contend(actor, nonce), delay_s)

    def next_life(self, actor: Actor) -> None:
        """The same line is started again wherever a life ended before the run was done."""
        if actor.finished and actor.result == "done":
            self.ended.append(actor.name)
            return
        self.enter(actor.name.split(".")[0], actor.host, self.world.rng.uniform(0, 20))

    def contend(self, me: Actor, nonce: str) -> Steps[object]:
        holder = Holder(me.host, me.host, 1, len(self.lives), 0, nonce)
        claim = run_state.Claim(holder, "run", LEASE_S, command=("train",))
        taken = yield from self.persist(
            lambda: run_log.acquire(claim, holder_is_dead=self.is_dead, wall_time=me.wall_time, wait=True)
        )
        if not taken.mine:
            return "done"
        term = taken.record.state.term
        check(term not in self.believers, "one holder a term", term, me.name)
        self.believers[term] = me
        try:
            return (yield from self.hold(me, nonce, taken.record))
        except Fenced:
            return "fenced"

    def hold(self, me: Actor, nonce: str, head: Record) -> Steps[object]:
        """The holder's life: beats, and now and then a point."""
        rng, counter, step = self.world.rng, 0, run_state.newest_step(head.state)
        head = yield from self.clean_up(head)
        while step < GOAL:
            counter += 1
            with contextlib.suppress(StoreUnreachable):
                yield from run_log.write_heartbeat(head.state.term, counter, me.wall_time(), head.number, nonce)
                taker = yield from run_log.find_takeover(head)
                if taker is not None:
                    raise run_log.fenced_by(taker)
            if rng.random() < 0.5:
                step = Step(step + 1)
                head = yield from self.save(me, nonce, head, step)
            yield Pause(Seconds(rng.uniform(0.1, 0.3) * LEASE_S))

        def advance(now: RunState) -> RunState:
            return run_state.released(now, outcome=Outcome.DONE, cause=Cause.DONE, wall_time=me.wall_time())

        fresh = self.nonce()
        yield from self.persist(
            lambda: run_log.append(head, advance, kind=RecordKind.RELEASE, nonce=fresh, wall_time=me.wall_time())
        )
        return "released"

    def save(self, me: Actor, nonce: str, head: Record, step: Step) -> Steps[Record]:
        term, fresh = head.state.term, self.nonce()
        checkpoint_id = f"{step}-{term}-{fresh}"
        key = f"{shard_prefix(term, nonce, checkpoint_id, 0)}x/0"
        data = checkpoint_id.encode()
        yield from self.persist(lambda: _put(key, data))
        entry = FileEntry(".", 0o644, (Chunk(key, len(data), digest(data)),))

        def commit() -> Steps[tuple[object, Record]]:
            checkpoint = Checkpoint(
                checkpoint_id, step, SaveKind.INSURANCE, term, 1, (Shard(0, "model.pt", (entry,)),), me.wall_time()
            )
            return checkpoint_store.commit(head, checkpoint, nonce=fresh, wall_time=me.wall_time())

        _, head = yield from self.persist(commit)
        old, retire = head.state.checkpoints[:-2], self.nonce()
        if old:
            at = head
            with contextlib.suppress(CheckpointDamaged):
                head = yield from self.persist(
                    lambda: checkpoint_store.drop(at, old, nonce=retire, wall_time=me.wall_time())
                )
                yield from self.persist(lambda: checkpoint_store.delete(head, old, grace_s=Seconds(0.3)))
        return head

    def clean_up(self, head: Record) -> Steps[Record]:
        if self.world.rng.random() < 0.5:
            with contextlib.suppress(StoreUnreachable):
                yield from checkpoint_store.sweep(head, grace_s=Seconds(0.3))
        return head

    def persist(self, steps: Callable[[], Steps[T]]) -> Steps[T]:
        """Try again while the store does not answer, as the agent does."""
        while True:
            try:
                return (yield from steps())
            except StoreUnreachable:
                yield Pause(Seconds(0.5))

    def nonce(self) -> str:
        return f"{self.world.rng.getrandbits(32):08x}"

    def is_dead(self, holder: Holder) -> bool:
        actor = self.lives[holder.nonce]
        return actor.dead or actor.finished

    # ---------------------------------------------------------------------------------------------------- the promises

    def observe(self, actor: Actor, op: SimpleOp, result: object) -> None:
        match op:
            case Create(key, data) if result is True and key.startswith(LOG):
                self.recorded(actor, key, run_state.from_bytes(data, key))
            case Get(key) if key.startswith("heartbeats/"):
                self.looks.look(actor, key, self.world.time, result)
            case Delete():
                self.newest_is_whole()
            case _:
                pass

    def recorded(self, actor: Actor, key: str, record: Record) -> None:
        number = len(self.records) + 1
        check(key == record_key(number), "records have no gap and are never replaced", key, number)
        check(record.number == number, "a record knows its number", key, record.number)
        before = self.records[-1] if self.records else None
        if record.kind is RecordKind.ACQUIRE:
            self.took(actor, before, record)
        else:
            assert before is not None
            check(record.state.term == before.state.term, "no record of an older term after a newer take", key)
            holder = self.writers[record.state.term - 1]
            check(holder is actor, "a term's records are written by its holder", key, actor.name, holder.name)
        self.records.append(record)
        self.writers.append(actor)
        self.follows(before, record)
        self.newest_is_whole()

    def took(self, actor: Actor, before: Record | None, record: Record) -> None:
        check(record.state.term == record.number, "the number of the acquire record is the term", record.number)
        assert record.state.holder is not None
        check(self.lives[record.state.holder.nonce] is actor, "a holder takes the run for itself", actor.name)
        if before is None or before.state.holder is None:
            return
        last = before.state.holder
        if last.host == actor.host and self.is_dead(last):
            return
        seen_s, looks = self.looks.silence(actor, heartbeat_key(before.state.term))
        check(seen_s >= LEASE_S * 0.98, "no holder loses the run before a lease of silence", record.number, seen_s)
        check(looks >= 5, "and a single look after a long absence is no silence", record.number, looks)

    def follows(self, before: Record | None, record: Record) -> None:
        takes = sum(one.kind is RecordKind.ACQUIRE for one in self.records)
        check(record.state.attempts == takes, "every take is a start", record.number, record.state.attempts, takes)
        if before is None or record.kind is RecordKind.DROP:
            return
        lost = set(before.state.checkpoints) - set(record.state.checkpoints)
        check(not lost, "no point is forgotten", record.number, lost)

    def newest_is_whole(self) -> None:
        """The two newest points (and the newest alone, while there is but one) are there, byte for byte."""
        objects = self.world.store.objects
        for ref in self.records[-1].state.checkpoints[-2:]:
            data = objects.get(manifest_key(ref.checkpoint_id))
            check(data is not None, "a committed point has its manifest", ref.checkpoint_id)
            assert data is not None
            check(manifest.digest_of(data) == ref.manifest_digest, "and the one that was committed", ref.checkpoint_id)
            for shard in manifest.from_bytes(data, ref.manifest_key).shards:
                for chunk in (chunk for entry in shard.files for chunk in entry.chunks):
                    check(digest(objects.get(chunk.key, b"")) == chunk.digest, "and all its bytes", chunk.key)

    def run(self) -> Race:
        self.world.run(CALM_AT_S)
        self.world.run(CALM_AT_S + LIVENESS_S)
        outcome = self.records[-1].state.outcome if self.records else None
        check(outcome is Outcome.DONE, "once the faults stop the run ends in bounded time", outcome)
        waiting = [life.name for life in self.lives.values() if not (life.dead or life.finished)]
        check(not waiting, "and every contender learns of it", waiting)
        check(run_state.newest_step(self.records[-1].state) == GOAL, "with all steps", self.records[-1].number)
        return self


def _put(key: str, data: bytes) -> Steps[None]:
    yield Put(key, data)


def race(seed: int, bug: str | None = None) -> Race:
    """Run one race.

    Raises:
        AssertionError: a promise was broken; the message ends with the command that replays it.
    """
    with contextlib.ExitStack() as stack:
        try:
            one = Race(seed)
            if bug is not None:
                stack.enter_context(planted.bug(bug, one.world))
            return one.run()
        except Exception as error:
            again = f"python -m tests.storms.takeover --seed {seed}" + (f" --bug '{bug}'" if bug else "")
            raise Violation(f"{error!r}\nreplay: {again}") from error


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--bug", choices=sorted(planted.BUGS))
    arguments = parser.parse_args()
    one = race(arguments.seed, arguments.bug)
    for record, writer in zip(one.records, one.writers, strict=True):
        steps = [checkpoint.step for checkpoint in record.state.checkpoints]
        print(f"{record.number:4d} {record.kind:8s} term {record.state.term:3d} {writer.name:8s} points {steps}")


if __name__ == "__main__":
    main()
