"""A storm of a parameter server in tiers: machines join, leave and vanish, messages come twice, late or never.

Real step functions on a network that is not: servers, backups, workers, coordinators.  Machines are killed one by one and all
at once, or are cut off: then they are lost to the coordinator, and still talk to the others.  Coordinators die, and one that
another has followed may still speak; what was committed before all was restored may come after it.  The truth is kept outside:
of each data partition and clock, what the attempt computed that was sealed in the newest term.  In the end the backups must be,
bit for bit, what these changes give in the order of clocks and data partitions; with bound 0 that is what one process computes
that is never disturbed.

    python -m tests.tiers.tier_storm --seed 7
"""

from __future__ import annotations

import argparse
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from tests.storms.partitions import BOUNDS, ROWS, WIDTH, Changes, computed
from tests.support.checks import Violation, demand
from windfall.core.tier_coordinator import TierCoordinator
from windfall.core.tier_decisions import first_layout, taken_by_next_coordinator
from windfall.policies.layout.tiers import StageRatios, TierPlacement, place_tiers
from windfall.runtimes.parameter_partition import PushAnswer, PushId, Values
from windfall.runtimes.tier_member import TierMember
from windfall.runtimes.tier_messages import (
    Answer,
    BackUpChanges,
    CopyPart,
    PushTaken,
    Question,
    Refused,
    SealPush,
    TakeOverPart,
)
from windfall.runtimes.tier_server import ServerSettings
from windfall.structs import replace
from windfall.tier_layout import CommittedClock, ServerLayout, StoredClock, TierMachine, TierReport

CLOCKS = 8
STEPS_MAX = 60_000
RATIOS = StageRatios(stage_2_above=1.0, stage_3_above=3.0)
LATE_MAX = 300
RATES = (15, 15, 3, 7, 20, 40)
"""How often machines report, the coordinator decides, a late message comes, the store, computing and asking have a turn."""


@dataclass
class Host:
    """A machine of the storm.

    Attributes:
        machine: what the policy sees.
        member: the step functions.
        state: `up`; `cut off`: the coordinator takes it for lost, and it runs; `dead`.
        silent_until: the step before which its reports reach none.
    """

    machine: TierMachine
    member: TierMember
    state: str = "up"
    silent_until: int = 0


@dataclass
class Truth:
    """What was computed and sealed, seen from outside.

    Attributes:
        attempts: changes of each push that was computed.
        sealed: of each (data partition, clock), the push of the newest term and holder that a server counted.
        kept: each (part, push) that a server has counted.
    """

    attempts: dict[PushId, Changes] = field(default_factory=dict)
    sealed: dict[tuple[int, int], PushId] = field(default_factory=dict)
    kept: set[tuple[int, PushId]] = field(default_factory=set)

    def count(self, part: int, push: PushId) -> None:
        """Take in that a server has counted a push."""
        demand((part, push) not in self.kept, f"no part counts a push twice: {part}, {push}")
        self.kept.add((part, push))
        known = self.sealed.get((push.data, push.clock))
        if known is None or (push.term, push.holder) > (known.term, known.holder):
            self.sealed[push.data, push.clock] = push


class TierStorm:
    """One seed."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(f"tiers {seed}")
        self.tally: Counter[str] = Counter()
        self.parts, self.data = self.rng.randint(2, 4), self.rng.randint(2, 5)
        self.settings = ServerSettings(self.rng.choice(BOUNDS), self.rng.randint(1, 3), CLOCKS)
        self.save_every = self.rng.choice((2, 2, 3, 100))
        self.faults = self.rng.randint(3, 25)
        self.fault_rate = self.rng.choice((0.005, 0.01, 0.03))
        # Some storms begin once there are clocks to lose.
        self.calm_until = self.rng.choice((0, 0, 2, 4))
        # Something is slow in most seeds: what is never late is never met.
        self.weights = [each * self.rng.choice((0.1, 1.0, 1.0, 1.0)) for each in RATES]
        self.slow = self.rng.choice((BackUpChanges, CopyPart, TakeOverPart, SealPush, None, None))
        self.steps, self.born, self.reads_of_store = 0, 0, 0
        self.lose_in_a_push = False
        self.first = [np.random.default_rng([seed, part]).standard_normal((ROWS, WIDTH)) for part in range(self.parts)]
        self.store: dict[tuple[int, StoredClock], Values] = {
            (part, StoredClock()): values for part, values in enumerate(self.first)
        }
        self.truth = Truth()
        self.late: list[Callable[[], object]] = []
        self.delayed: dict[int, list[Callable[[], object]]] = {}
        machines = [self._machine(True) for _ in range(self.rng.randint(1, 2))]
        machines += [self._machine(False) for _ in range(self.rng.randint(0, 4))]
        nowhere = TierPlacement(("",) * self.parts, ("",) * self.parts, ("",) * self.data)
        self.log = [first_layout(place_tiers(machines, nowhere, RATIOS))]
        self.hosts = {one.name: Host(one, TierMember(one, self.log[0], self.settings)) for one in machines}
        self.coordinators = [TierCoordinator(self.log[0], RATIOS, self.save_every, CLOCKS)]
        self.announced = StoredClock()

    def _machine(self, reliable: bool) -> TierMachine:
        self.born += 1
        speed = self.rng.choice((1.0, 1.0, 2.0))
        return TierMachine(f"{'r' if reliable else 't'}{self.born}", reliable, float(self.born), speed=speed)

    def run(self) -> Counter[str]:
        """Play until all clocks are complete on the backups, and compare.

        Raises:
            Violation: a promise is broken.
        """
        while self.steps < STEPS_MAX:
            self.steps += 1
            if self._over():
                self._compare()
                return self.tally
            self._step()
        raise Violation(f"once nothing goes wrong any more, training ends: {self.log[-1]}")

    def _over(self) -> bool:
        return bool(self.coordinators) and self.coordinators[-1].committed().over and self._settled()

    def _settled(self) -> bool:
        """Whether the end is backed up, and nothing is on its way any more."""
        layout = self.log[-1]
        return all(
            place.next_active is None
            and self.hosts[place.backup].member.server.backup_clocks().get(part) == frozenset({CLOCKS})
            for part, place in enumerate(layout.parts)
        ) and not any(place.fenced or place.next_holder for place in layout.data)

    def _step(self) -> None:
        for message in self.delayed.pop(self.steps, []):
            message()
        if self.announced.clock >= self.calm_until:
            self.calm_until = 0
        if self.faults and not self.calm_until and self.rng.random() < self.fault_rate:
            self.faults -= 1
            self._fault()
            if not self.faults:
                self.slow, self.weights = None, list(RATES)
            return
        host = self.rng.choice([host for host in self.hosts.values() if host.state != "dead"])
        (step,) = self.rng.choices(
            (self._report, self._coordinate, self._late_message, self._use_store, self._compute, self._ask),
            self.weights,
        )
        step(host)

    # ------------------------------------------------------------------------------------------------------------- messages

    def _send(self, message: Callable[[], object]) -> None:
        """Deliver a message: now, later, twice, or never."""
        roll = self.rng.random()
        if roll < 0.85:
            message()
        if 0.75 < roll < 0.95:
            self.late = [*self.late[-LATE_MAX:], message]

    def _late_message(self, host: Host) -> None:
        del host
        if self.late:
            # Mostly a recent one: what is very old meets nothing that it could spoil.
            self.late.pop(-self.rng.randint(1, min(len(self.late), self.rng.choice((4, 4, LATE_MAX)))))()
            self.tally["a message came late"] += 1

    def _ask(self, host: Host) -> None:
        questions = host.member.questions()
        if questions:
            target, question = self.rng.choice(questions)
            if self.slow is not None and isinstance(question, self.slow) and self.rng.random() < 0.9:
                return
            self._send(lambda: self._answer(host, target, question))

    def _answer(self, asker: Host, target: str, question: Question) -> None:
        host = self.hosts.get(target)
        if host is None or host.state == "dead" or asker.state == "dead":
            return
        answer = host.member.server.answer(question, asker.machine.name)
        self._watch(question, answer)
        if isinstance(question, SealPush):
            self._watch_push(asker, host, question.push)
        self._send(lambda: asker.member.take(question, answer))

    def _watch(self, question: Question, answer: Answer) -> None:
        if isinstance(answer, PushTaken):
            self.tally[f"a push was {answer.answer}"] += 1
            # One that is cut off counts too: its backup may have what it says before the others go back.
            if isinstance(question, SealPush) and answer.answer is PushAnswer.KEPT:
                self.truth.count(question.part, question.push)
        kind = f"Refused: {answer.reason}" if isinstance(answer, Refused) else type(answer).__name__
        self.tally[f"{type(question).__name__} was answered by {kind}"] += 1

    def _report(self, host: Host) -> None:
        if self.steps < host.silent_until:
            return
        report = host.member.report()
        self._send(lambda: self._hear(host, report))

    def _hear(self, host: Host, report: TierReport) -> None:
        if host.state != "up" or not self.coordinators:
            return
        # One that another has followed may still be asked.
        coordinator = self.rng.choice(self.coordinators)
        coordinator.take(report)
        layout, committed = coordinator.layout, coordinator.committed()
        if coordinator is self.coordinators[-1]:
            self.announced = max(self.announced, StoredClock(committed.term, committed.clock))
        self._send(lambda: host.member.hear(layout, committed))

    # ---------------------------------------------------------------------------------------------------------- coordinators

    def _coordinate(self, host: Host) -> None:
        del host
        if not self.coordinators:
            self._start_coordinator()
            return
        coordinator = self.rng.choice(self.coordinators)
        layout = coordinator.next([host.machine for host in self.hosts.values() if host.state == "up"])
        if layout is None:
            return
        if layout.version != len(self.log) + 1:
            self.coordinators.remove(coordinator)
            self.tally["a coordinator met its successor's record"] += 1
            return
        if layout.restored > self.log[-1].restored:
            self._delay_last_words()
        self._check_term(layout)
        self.log.append(layout)
        coordinator.written(layout)
        for said in layout.because.split("; "):
            self.tally[" ".join(word for word in said.split() if not any(letter.isdigit() for letter in word))] += 1

    def _delay_last_words(self) -> None:
        """Let what was committed reach some only once all is restored from a checkpoint before it."""
        layout, committed = self.log[-1], CommittedClock(self.announced.term, self.announced.clock)
        for host in self.hosts.values():
            if self.rng.random() < 0.5:
                due = self.steps + self.rng.randint(1, 500)
                self.delayed.setdefault(due, []).append(partial(host.member.hear, layout, committed))

    def _check_term(self, layout: ServerLayout) -> None:
        if layout.term > self.log[-1].term and layout.restored < layout.term:
            demand(
                layout.base >= self.announced.clock,
                f"none goes back to before a committed clock: {layout.base}, {self.announced}",
            )
        if layout.term > self.log[-1].term and layout.restored == layout.term:
            self.announced = StoredClock(layout.term, layout.base)

    def _start_coordinator(self) -> None:
        layout = taken_by_next_coordinator(self.log[-1])
        self.log.append(layout)
        self.coordinators.append(TierCoordinator(layout, RATIOS, self.save_every, CLOCKS))
        self.tally["a coordinator followed"] += 1

    # ------------------------------------------------------------------------------------------------------- work and the store

    def _compute(self, host: Host) -> None:
        worker = host.member.worker
        turns = worker.turns()
        if not turns:
            return
        push = self.rng.choice(turns)
        seen = worker.read(push, [np.arange(ROWS)] * self.parts)
        if seen is not None:
            attempt = push.term * 1000 + push.holder if self.settings.staleness != 0 else 0
            changes = computed(seen, push.data, push.clock, attempt)
            self.truth.attempts[push] = changes
            worker.computed(push, changes)

    def _use_store(self, host: Host) -> None:
        server, worker = host.member.server, host.member.worker
        for data in worker.to_load():
            worker.loaded(data)
        for part, stored in server.to_load().items():
            self.reads_of_store += stored != StoredClock()
            server.loaded(part, stored, self.store[part, stored])
        for part, (stored, values) in server.to_save().items():
            self.store[part, stored] = values
            if self.rng.random() < 0.8:
                server.saved(part, stored)

    # ------------------------------------------------------------------------------------------------------------------ faults

    def _fault(self) -> None:
        fault = self.rng.choice(
            (self._join, self._join, self._leave, self._lose_some, self._lose_workers, self._lose_in_a_push,
             self._lose_in_a_move, self._lose_transient, self._lose_reliable, self._lose_coordinator)
        )  # fmt: skip
        fault()

    def _up(self, reliable: bool) -> list[Host]:
        return [host for host in self.hosts.values() if host.state == "up" and host.machine.reliable is reliable]

    def _add(self, reliable: bool) -> None:
        machine = self._machine(reliable)
        self.hosts[machine.name] = Host(machine, TierMember(machine, self.rng.choice(self.log[-3:]), self.settings))

    def _join(self) -> None:
        for _ in range(self.rng.randint(1, 4)):
            self._add(False)
        self.tally["machines joined"] += 1

    def _leave(self) -> None:
        """Announce the end of some transient machines, or of all; those announced before are gone."""
        for host in self._up(False):
            if host.machine.leaving:
                host.state = "dead"
            elif self.rng.random() < self.rng.choice((0.4, 1.0)):
                host.machine = replace(host.machine, leaving=True)
        self.tally["machines were told to leave"] += 1

    def _lose(self, host: Host) -> None:
        host.state = self.rng.choice(("dead", "dead", "cut off"))
        self.tally[f"a machine is {host.state}"] += 1

    def _lose_some(self) -> None:
        transient = self._up(False)
        for host in self.rng.sample(transient, min(len(transient), self.rng.randint(1, 2))):
            self._lose(host)

    def _only_computing(self) -> list[Host]:
        serving = {name for place in self.log[-1].parts for name in (place.active, place.next_active)}
        return [host for host in self._up(False) if host.machine.name not in serving]

    def _lose_workers(self) -> None:
        """Lose machines that only compute."""
        for host in self._only_computing():
            if self.rng.random() < 0.5:
                self._lose(host)

    def _lose_in_a_push(self) -> None:
        """Lose the next machine that only computes at the instant at which a part, and not all, has the end of its push."""
        self.lose_in_a_push = True

    def _watch_push(self, host: Host, server: Host, push: PushId) -> None:
        """Lose a machine in its push, if one is to be lost; the server that has the end says so late."""
        parts = sum((part, push) in self.truth.kept for part in range(self.parts))
        if self.lose_in_a_push and 0 < parts < self.parts and host in self._only_computing():
            self.lose_in_a_push = False
            self._lose(host)
            server.silent_until = self.steps + self.rng.randint(1, 1000)
            self.tally["a machine was lost in a push"] += 1

    def _lose_in_a_move(self) -> None:
        """Lose one of two machines between which a part moves; best the next one, before it is known that it serves."""
        moves = [(place.active, place.next_active) for place in self.log[-1].parts if place.next_active]
        ends = [host for host in self._up(False) for move in moves if host.machine.name in move]
        serving = [host for host in ends if any(host.machine.name == to and self._took_over(host) for _, to in moves)]
        if ends:
            self._lose(self.rng.choice(serving or ends))
            self.tally["a machine was lost in a move"] += 1

    def _took_over(self, host: Host) -> bool:
        return any(self.log[-1].parts[part].move == move for part, move in host.member.server.taken_over().items())

    def _lose_transient(self) -> None:
        for host in self._up(False):
            self._lose(host)
        self.tally["all transient machines were lost"] += 1

    def _lose_reliable(self) -> None:
        if self.rng.random() < 0.7:
            self._lose(self.rng.choice(self._up(True)))
            self._add(True)
            self.tally["a reliable machine was lost"] += 1
        elif len(self._up(True)) < 3:
            self._add(True)

    def _lose_coordinator(self) -> None:
        """The coordinator dies, or another one starts beside it; some machines may be lost with it."""
        if self.rng.random() < 0.5:
            self.coordinators.clear()
        else:
            self._start_coordinator()
        if self.rng.random() < 0.5:
            self._lose_some()

    # ----------------------------------------------------------------------------------------------------------------- the end

    def _compare(self) -> None:
        demand(
            not self.reads_of_store or self.log[-1].restored > 0,
            "nothing is read from the store unless a reliable machine was lost",
        )
        values = [first.copy() for first in self.first]
        for clock in range(1, CLOCKS + 1):
            seen = [one.copy() for one in values]
            for data in range(self.data):
                changes = (
                    computed(seen, data, clock, 0)
                    if self.settings.staleness == 0
                    else self.truth.attempts[self.truth.sealed[data, clock]]
                )
                for part, changed in enumerate(changes):
                    values[part][changed.rows] += changed.values
        for part, (place, wanted) in enumerate(zip(self.log[-1].parts, values, strict=True)):
            found = self.hosts[place.backup].member.server._backups[part].copy()
            demand(
                np.array_equal(found, wanted),
                f"bit for bit, bound {self.settings.staleness}, part {part}: {found.tolist()}, {wanted.tolist()}",
            )


def storm(seed: int) -> Counter[str]:
    """Play a seed; a violation says how to play it again."""
    try:
        return TierStorm(seed).run()
    except Exception as error:
        error.add_note(f"replay: python -m tests.tiers.tier_storm --seed {seed}")
        raise


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, required=True)
    print(storm(parser.parse_args().seed))
