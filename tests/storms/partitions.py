"""A storm of the parts of a parameter server: workers, servers and backups that vanish, messages that come twice and late.

The truth is kept outside: what each data partition computed in each clock, of the attempt that was the last to be sealed.  In
the end every part must be, bit for bit, what these changes give in the order of clocks and data partitions; with bound 0 that
is what one process computes that is never disturbed.

    python -m tests.storms.partitions --seed 7
"""

from __future__ import annotations

import argparse
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from tests.support.checks import Violation, demand
from windfall.core.tier_decisions import newest_common
from windfall.runtimes.parameter_partition import (
    BackupPartition,
    ClockChanges,
    ParameterPartition,
    PushAnswer,
    PushId,
    RowValues,
    Values,
)

ROWS, WIDTH = 5, 2
CLOCKS = 9
BOUNDS = (0, 0, 1, 3, None)
STEPS_MAX = 20_000
Changes = list[RowValues]


@dataclass
class Holder:
    """The work of a data partition: who holds it, and how far it is in its clock."""

    number: int = 0
    clock: int = 1
    changes: Changes | None = None
    """What was computed in this clock, a part each; None: nothing yet."""
    pushed: set[int] = field(default_factory=set)
    sealed: set[int] = field(default_factory=set)


def computed(seen: list[Values], data: int, clock: int, attempt: int) -> Changes:
    """Changes of some rows of each part, by what was read; with an attempt's number, no two attempts are alike."""
    rng = np.random.default_rng([data, clock, attempt])
    found = []
    for values in seen:
        # A quarter are whole, as those of a dense model.
        rows = np.flatnonzero(rng.random(ROWS) < (0.6 if rng.random() < 0.75 else 1.0))
        found.append(RowValues(rows, 0.1 * rng.standard_normal((len(rows), WIDTH)) - 0.01 * values[rows]))
    return found


class PartitionStorm:
    """One seed."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(f"partitions {seed}")
        self.tally: Counter[str] = Counter()
        self.parts, self.data = self.rng.randint(2, 4), self.rng.randint(2, 5)
        self.bound = self.rng.choice(BOUNDS)
        self.every = self.rng.randint(1, 3)
        self.faults = self.rng.randint(5, 60)
        self.term, self.common, self.attempts = 0, 0, 0
        self.first = [np.random.default_rng([seed, part]).standard_normal((ROWS, WIDTH)) for part in range(self.parts)]
        self.active = [self._new(values, 0) for values in self.first]
        self.backups = [BackupPartition(values) for values in self.first]
        self.holders = [Holder() for _ in range(self.data)]
        self.late: list[Callable[[], object]] = []
        self.truth: dict[tuple[int, int], Changes] = {}

    def _new(self, values: Values, clock: int) -> ParameterPartition:
        numbers = [0] * self.data if clock == 0 and self.term == 0 else [one.number for one in self.holders]
        return ParameterPartition(values, numbers, fresh_reads=self.bound != 0, clock=clock, term=self.term)

    def run(self) -> Counter[str]:
        """Play until all clocks are complete, and compare.

        Raises:
            Violation: a promise is broken.
        """
        for _ in range(STEPS_MAX):
            if min(part.clock for part in self.active) >= CLOCKS:
                break
            self._step()
        demand(min(part.clock for part in self.active) >= CLOCKS, "once nothing goes wrong any more, training ends")
        self._compare()
        return self.tally

    def _step(self) -> None:
        if self.faults and self.rng.random() < 0.04:
            self.faults -= 1
            self.rng.choice(
                (self._lose_worker, self._lose_worker, self._lose_servers, self._lose_servers, self._move)
            )()
        elif self.rng.random() < 0.2:
            self._back_up(self.rng.randrange(self.parts))
        elif self.rng.random() < 0.1:
            self._go_to_common()
        elif self.late and self.rng.random() < 0.1:
            # Mostly a recent one: what is very old meets nothing that it could spoil.
            self.late[-self.rng.randint(1, min(len(self.late), self.rng.choice((4, 4, 1000))))]()
            self.tally["a message came late"] += 1
        else:
            self._work(self.rng.randrange(self.data))

    # ------------------------------------------------------------------------------------------------------------- workers

    def _work(self, data: int) -> None:
        one = self.holders[data]
        if one.clock > CLOCKS:
            return
        if one.changes is None:
            self._compute(data, one)
        elif len(one.pushed) < self.parts:
            self._push(data, one, self.rng.choice([part for part in range(self.parts) if part not in one.pushed]))
        else:
            self._seal(data, one, self.rng.choice([part for part in range(self.parts) if part not in one.sealed]))

    def _compute(self, data: int, one: Holder) -> None:
        if not all(part.may_read(one.clock, self.bound) for part in self.active):
            self.tally["waited for the slowest"] += 1
            return
        if self.bound is not None:
            behind = one.clock - 1 - min(part.clock for part in self.active)
            demand(behind <= self.bound, f"none reads what is more than {self.bound} clocks old: {behind}")
        self.attempts += 1
        seen = [part.read(np.arange(ROWS)) for part in self.active]
        one.changes = computed(seen, data, one.clock, 0 if self.bound == 0 else self.attempts)

    def _sent(self, message: Callable[[], PushAnswer]) -> PushAnswer | None:
        """The answer to a message that may come twice, late once more, or have its answer lost."""
        answer = message()
        if self.rng.random() < 0.1:
            demand(message() in (PushAnswer.REPEATED, PushAnswer.STALE), "what comes twice counts once")
        if self.rng.random() < 0.2:
            self.late.append(message)
        return None if self.rng.random() < 0.1 else answer

    def _push(self, data: int, one: Holder, part: int) -> None:
        assert one.changes is not None
        push, changes = PushId(data, one.clock, one.number, self.term), one.changes[part]
        # By number: a part that moves, or is made again, is another object.
        answer = self._sent(lambda: self.active[part].push(push, changes))
        if answer is not None:
            demand(answer in (PushAnswer.KEPT, PushAnswer.REPEATED), f"the next push is kept: {answer}")
            one.pushed.add(part)

    def _seal(self, data: int, one: Holder, part: int) -> None:
        assert one.changes is not None
        push = PushId(data, one.clock, one.number, self.term)
        self.truth[data, one.clock] = one.changes
        answer = self._sent(lambda: self.active[part].seal(push))
        if answer is not None:
            demand(answer in (PushAnswer.KEPT, PushAnswer.REPEATED), f"what all have kept is sealed: {answer}")
            one.sealed.add(part)
        if len(one.sealed) == self.parts:
            self.holders[data] = Holder(one.number, one.clock + 1)

    # ---------------------------------------------------------------------------------------------------------- coordinator

    def _back_up(self, part: int) -> None:
        backup, active = self.backups[part], self.active[part]
        until = active.clock // self.every * self.every
        if until <= backup.newest:
            return
        changes = active.changes(backup.newest, until)
        demand(backup.take(changes), "changes since what the backup has are taken")
        if self.rng.random() < 0.3:
            demand(backup.take(changes), "changes that come twice are there")
        if self.rng.random() < 0.3:
            self.late.append(lambda: self._late_changes(part, changes))

    def _late_changes(self, part: int, changes: ClockChanges) -> None:
        if changes.term == self.term or not self.backups[part].take(changes):
            self.backups[part].take(changes)
        else:
            raise Violation("changes of an older term are refused")

    def _go_to_common(self) -> None:
        self.common = newest_common([backup.clocks for backup in self.backups])
        for backup, active in zip(self.backups, self.active, strict=True):
            backup.go_to(self.common)
            active.forget(self.common)

    def _lose_worker(self) -> None:
        data = self.rng.randrange(self.data)
        one = self.holders[data]
        if one.changes is not None:
            for part, changes in enumerate(one.changes):
                self._on_its_way(part, PushId(data, one.clock, one.number, self.term), changes)
        number = one.number + 1
        clock = max(part.fence(data, number) for part in self.active)
        for part in self.active:
            part.resolve(data, clock)
        self.tally["a worker was lost while it sealed"] += bool(one.sealed) or clock == one.clock
        self.tally["a worker was lost while it pushed"] += bool(one.pushed) and clock < one.clock
        self.holders[data] = Holder(number, clock + 1)

    def _on_its_way(self, part: int, push: PushId, changes: RowValues) -> None:
        """What a lost worker had sent last may arrive when others do its work."""
        self.late.append(lambda: self.active[part].push(push, changes))

    def _lose_servers(self) -> None:
        """Lose some machines at once, or all: back to the newest clock that all backups can go to."""
        lost = [part for part in range(self.parts) if self.rng.random() < 0.5] or [0]
        self.term += 1
        clock = self.common = newest_common([backup.clocks for backup in self.backups])
        self.tally["clocks were done again"] += any(part.clock > clock for part in self.active)
        for number, backup in enumerate(self.backups):
            backup.roll_back(clock, self.term)
            if number in lost:
                self.active[number] = self._new(backup.copy(), clock)
            else:
                self.active[number].roll_back(clock, self.term)
        self.holders = [Holder(one.number, clock + 1) for one in self.holders]
        self.tally["all servers were lost" if len(lost) == self.parts else "some servers were lost"] += 1

    def _move(self) -> None:
        """Move a part to another machine, which has a copy of the backup's, or of an earlier clock of the old owner's."""
        number = self.rng.randrange(self.parts)
        backup = self.backups[number]
        self.active[number] = ParameterPartition.taken_over(backup.copy(), self.active[number].hand_over(backup.clock))
        self.tally["a part moved"] += 1

    # ----------------------------------------------------------------------------------------------------------------- the end

    def _compare(self) -> None:
        values = [first.copy() for first in self.first]
        for clock in range(1, CLOCKS + 1):
            seen = [one.copy() for one in values]
            for data in range(self.data):
                changes = computed(seen, data, clock, 0) if self.bound == 0 else self.truth[data, clock]
                for part, changed in enumerate(changes):
                    values[part][changed.rows] += changed.values
        for part, wanted in zip(self.active, values, strict=True):
            found = part.read(np.arange(ROWS))
            demand(
                np.array_equal(found, wanted), f"bit for bit, bound {self.bound}: {found.tolist()}, {wanted.tolist()}"
            )


def storm(seed: int) -> Counter[str]:
    """Play a seed; a violation says how to play it again."""
    try:
        return PartitionStorm(seed).run()
    except Exception as error:
        error.add_note(f"replay: python -m tests.storms.partitions --seed {seed}")
        raise


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, required=True)
    print(storm(parser.parse_args().seed))
