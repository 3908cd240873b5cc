"""A contender for a run as a real process on a real store: it takes, saves, stalls past its lease, vanishes, comes again."""

from __future__ import annotations

import random
from dataclasses import dataclass

from tests.support.simulated_store import digest
from windfall.errors import Fenced
from windfall.linux.clock import SystemClock
from windfall.ports import ObjectStore, Put, Steps, T
from windfall.storage import checkpoint_store, run_log, run_state, store_operations
from windfall.storage.object_stores import open_store
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
from windfall.wire.run_layout import shard_prefix

GOAL = 4


@dataclass(frozen=True)
class ClaimedRecord:
    """A record that a contender claims to have written: `kind` by record `number`, in the term that `nonce` took."""

    number: int
    term: int
    kind: str
    nonce: str
    fresh: str


class Contender:
    """One contender over all of its lives."""

    def __init__(self, url: str, name: str, seed: str, lease_s: float) -> None:
        self.name = name
        self.rng = random.Random(f"{seed} {name}")
        self.lease_s = Seconds(lease_s)
        self.clock = SystemClock()
        self.store: ObjectStore = open_store(url)
        self.claims: list[ClaimedRecord] = []

    def run(self, steps: Steps[T]) -> T:
        return store_operations.run(steps, self.store, self.clock, parallel=2)

    def contend(self) -> list[ClaimedRecord]:
        """Live until the run is done."""
        while self.live():
            self.clock.sleep(Seconds(self.rng.uniform(0, self.lease_s / 2)))
        return self.claims

    def live(self) -> bool:
        """One life; return whether another is needed."""
        nonce = f"{self.name}-{self.rng.getrandbits(40):010x}"
        holder = Holder(self.name, self.name, 1, 1, 1, nonce)
        claim = run_state.Claim(holder, "run", self.lease_s, command=("train",))
        taken = self.run(
            run_log.acquire(claim, holder_is_dead=lambda _: False, wall_time=self.clock.wall_time, wait=True)
        )
        if not taken.mine:
            return False
        self.record_claim(taken.record, nonce, nonce)
        try:
            return self.hold(nonce, taken.record)
        except Fenced:
            return True

    def hold(self, nonce: str, head: Record) -> bool:
        step = run_state.newest_step(head.state)
        counter = 0
        while step < GOAL:
            counter += 1
            self.run(run_log.write_heartbeat(head.state.term, counter, self.clock.wall_time(), head.number, nonce))
            fate = self.rng.random()
            if fate < 0.12:
                return True
            if fate < 0.25:
                self.clock.sleep(Seconds(self.lease_s * self.rng.uniform(1.0, 2.0)))
            step = Step(step + 1)
            head = self.save(nonce, head, step)
            self.clock.sleep(Seconds(self.lease_s / 10))

        def advance(now: RunState) -> RunState:
            return run_state.released(now, outcome=Outcome.DONE, cause=Cause.DONE, wall_time=self.clock.wall_time())

        fresh = f"{self.rng.getrandbits(40):010x}"
        end = self.run(
            run_log.append(head, advance, kind=RecordKind.RELEASE, nonce=fresh, wall_time=self.clock.wall_time())
        )
        self.record_claim(end, nonce, fresh)
        return False

    def save(self, nonce: str, head: Record, step: Step) -> Record:
        term, fresh = head.state.term, f"{self.rng.getrandbits(40):010x}"
        checkpoint_id = f"{step}-{term}-{fresh}"
        data = checkpoint_id.encode()
        key = f"{shard_prefix(term, nonce, checkpoint_id, 0)}x/0"
        self.run(_put(key, data))
        entry = FileEntry(".", 0o644, (Chunk(key, len(data), digest(data)),))
        shard = Shard(0, "model.pt", (entry,))
        checkpoint = Checkpoint(checkpoint_id, step, SaveKind.INSURANCE, term, 1, (shard,), self.clock.wall_time())
        _, head = self.run(checkpoint_store.commit(head, checkpoint, nonce=fresh, wall_time=self.clock.wall_time()))
        self.record_claim(head, nonce, fresh)
        return head

    def record_claim(self, record: Record, nonce: str, fresh: str) -> None:
        self.claims.append(ClaimedRecord(record.number, record.state.term, record.kind, nonce, fresh))


def _put(key: str, data: bytes) -> Steps[None]:
    yield Put(key, data)


def contend(url: str, name: str, seed: str, lease_s: float) -> list[ClaimedRecord]:
    """What a contender's process runs."""
    return Contender(url, name, seed, lease_s).contend()
