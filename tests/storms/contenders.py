"""A contender for a run as a real process on a real store: it takes, saves, stalls past its lease, vanishes, comes again."""

from __future__ import annotations

import random
from dataclasses import dataclass

from tests.support.simulated_store import digest
from windfall.errors import Fenced
from windfall.ports import ObjectStore, Put, Steps, T
from windfall.storage import executor, log, points, state
from windfall.storage.clocks import SystemClock
from windfall.storage.objects import open_store
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
from windfall.wire.layout import shard_prefix

GOAL = 4


@dataclass(frozen=True)
class Believed:
    """What a contender believes it has done: `kind` by record `number`, in the term that `nonce` took."""

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
        self.believed: list[Believed] = []

    def run(self, steps: Steps[T]) -> T:
        return executor.run(steps, self.store, self.clock, parallel=2)

    def contend(self) -> list[Believed]:
        """Live until the run is done."""
        while self.live():
            self.clock.sleep(Seconds(self.rng.uniform(0, self.lease_s / 2)))
        return self.believed

    def live(self) -> bool:
        """One life; return whether another is needed."""
        nonce = f"{self.name}-{self.rng.getrandbits(40):010x}"
        holder = Holder(self.name, self.name, 1, 1, 1, nonce)
        claim = state.Claim(holder, "run", self.lease_s, command=("train",))
        taken = self.run(log.take(claim, holder_is_dead=lambda _: False, wall=self.clock.wall, wait=True))
        if not taken.mine:
            return False
        self.believe(taken.record, nonce, nonce)
        try:
            return self.hold(nonce, taken.record)
        except Fenced:
            return True

    def hold(self, nonce: str, head: Record) -> bool:
        step = state.newest_step(head.state)
        counter = 0
        while step < GOAL:
            counter += 1
            self.run(log.beat(head.state.term, counter, self.clock.wall(), head.number, nonce))
            fate = self.rng.random()
            if fate < 0.12:
                return True
            if fate < 0.25:
                self.clock.sleep(Seconds(self.lease_s * self.rng.uniform(1.0, 2.0)))
            step = Step(step + 1)
            head = self.save(nonce, head, step)
            self.clock.sleep(Seconds(self.lease_s / 10))

        def advance(now: RunState) -> RunState:
            return state.released(now, outcome=Outcome.DONE, cause=Cause.DONE, wall=self.clock.wall())

        fresh = f"{self.rng.getrandbits(40):010x}"
        end = self.run(log.append(head, advance, kind=RecordKind.RELEASE, nonce=fresh, wall=self.clock.wall()))
        self.believe(end, nonce, fresh)
        return False

    def save(self, nonce: str, head: Record, step: Step) -> Record:
        term, fresh = head.state.term, f"{self.rng.getrandbits(40):010x}"
        checkpoint_id = f"{step}-{term}-{fresh}"
        data = checkpoint_id.encode()
        key = f"{shard_prefix(term, nonce, checkpoint_id, 0)}x/0"
        self.run(_put(key, data))
        entry = FileEntry(".", 0o644, (Chunk(key, len(data), digest(data)),))
        shard = Shard(0, "model.pt", (entry,))
        point = Checkpoint(checkpoint_id, step, SaveKind.INSURANCE, term, 1, (shard,), self.clock.wall())
        _, head = self.run(points.commit(head, point, nonce=fresh, wall=self.clock.wall()))
        self.believe(head, nonce, fresh)
        return head

    def believe(self, record: Record, nonce: str, fresh: str) -> None:
        self.believed.append(Believed(record.number, record.state.term, record.kind, nonce, fresh))


def _put(key: str, data: bytes) -> Steps[None]:
    yield Put(key, data)


def contend(url: str, name: str, seed: str, lease_s: float) -> list[Believed]:
    """What a contender's process runs."""
    return Contender(url, name, seed, lease_s).contend()
