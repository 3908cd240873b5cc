"""Words of a parameter server in tiers: which machine serves, backs up and computes what, and what machines report.

A layout is one record of the run's log, whole.  `core.tier_decisions` writes the next one; a machine that sees one makes itself
so, whichever it saw last.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from windfall.structs import Struct, Tagged, replace
from windfall.tier_status import LossReached, TierCounters

VERSION = 1


class PartPlace(Tagged, frozen=True):
    """Where a part of the state is.

    Attributes:
        active: machine that serves it.
        backup: machine that backs it up.
        next_active: machine that it moves to.
        move: version of the layout in which its newest move began; what an earlier move brought is not taken for it.
    """

    active: str
    backup: str
    next_active: str | None = None
    move: int = 0


class DataPlace(Tagged, frozen=True):
    """Which machine computes on a data partition.

    Attributes:
        holder: the machine.
        number: how often the data partition has changed hands, was fenced, or was begun again.
        start: clock in which this holder began.
        fenced: its holder is lost, and servers are asked what it had sealed.
        next_holder: machine that loads it, to hold it next.
        releasing: the next holder has loaded it, and the holder stops at the end of its clock.
        done_before: the newest clock that some holder had reported as sealed before all went back: it is done again.
    """

    holder: str
    number: int = 0
    start: int = 1
    fenced: bool = False
    next_holder: str | None = None
    releasing: bool = False
    done_before: int = 0


class StoredClock(Tagged, frozen=True, order=True):
    """A checkpoint in the store.

    Attributes:
        term: in which it was written.
        clock: that it is of.
    """

    term: int = 0
    clock: int = 0


class ServerLayout(Tagged, frozen=True):
    """A layout.

    Attributes:
        version: from 1; the number of the record.
        coordinator: how many coordinators there have been; machines obey the newest that they have heard of.
        term: how often the state was rolled back or restored.
        base: clock at which the term begins.
        restored: the newest term that began from the store.
        checkpoint: the newest checkpoint that is whole; of term 0 and clock 0 are the first values.
        parts, data: by number.
        restores: how many terms began from the store.
        redone: clocks to which some data partition had come that were taken back, in all terms, as far as reported.
        reached: training ends here, as its loss is reached; None: with its last clock.
        because: what has changed, and why.
        nonce: random; tells whose record it is if an answer was lost.
    """

    version: int
    coordinator: int
    term: int
    base: int
    restored: int
    checkpoint: StoredClock
    parts: tuple[PartPlace, ...]
    data: tuple[DataPlace, ...]
    because: str
    nonce: str = ""
    restores: int = 0
    redone: int = 0
    reached: LossReached | None = None

    def last_clock(self, clocks: int) -> int:
        """Return the clock with which training ends, of all those that it may take."""
        return clocks if self.reached is None else min(clocks, self.reached.clock)

    def is_done(self, clocks: int) -> bool:
        """Whether the state with which training ends is in the store, of all the clocks that it may take."""
        return self.checkpoint.clock >= self.last_clock(clocks)


class TierFailure(Tagged, frozen=True):
    """A failure of the user's program.

    Attributes:
        machine: on which it ran.
        message: what it raised.
    """

    machine: str
    message: str


class TierProduct(Tagged, frozen=True):
    """What training was for.

    Attributes:
        files: size of each file, by name [B].
        loss: of the whole table at the end; None if the program does not say.
    """

    files: dict[str, int]
    loss: float | None = None


class CommittedClock(Struct, frozen=True):
    """The newest clock that all backups have: none goes back before it, and a coordinator that has a successor may say so too.

    Attributes:
        term: of the clock.
        clock: from 0.
        save: all backups write it to the store.
        over: it is the last one, and in the store.
    """

    term: int
    clock: int
    save: bool = False
    over: bool = False


class TierMachine(Struct, frozen=True):
    """A machine that can serve, back up and compute.

    Attributes:
        name: of the machine.
        reliable: it cannot be preempted.
        started_s: instant at which it joined [s]; the longest-running transient machines serve.
        leaving: its end is announced, or it is to be released; all that is on it moves away.
        speed: how much it computes in a second, relative to the others.
        loaded: data partitions whose data it has.
    """

    name: str
    reliable: bool
    started_s: float = 0.0
    leaving: bool = False
    speed: float = 1.0
    loaded: frozenset[int] = frozenset()


class TierReport(Struct, frozen=True):
    """What a machine says of itself, all of it, each time.

    Attributes:
        about: the machine, without its data.
        number: of its reports, from 1.
        coordinator: the newest that it has heard of.
        term: of the newest layout that it has seen.
        backups: of each part backed up here in that term, the clocks that it can go to.
        taken_over: of each part that it has taken over from its server, the version of the layout in which the move began.
        sealed: of each (part, data partition) that is fenced here, its number, and the clock up to which it is sealed.
        loaded: data partitions whose data are here.
        released: of each data partition that it has released, its number, and the last clock that is sealed.
        saved: of each part backed up here, its newest checkpoint in the store.
        copied: of each part backed up here, its newest checkpoint of which it has a copy, in the store or for it.
        done: of each data partition that it has computed on in that term, the newest clock that is sealed.
        counters: what it has counted; nothing is decided by them.
        losses: of each data partition of `done`, a clock, the newest, and the loss of its batch, where the program says it.
    """

    about: TierMachine
    number: int
    coordinator: int
    term: int
    backups: dict[int, frozenset[int]]
    taken_over: dict[int, int]
    sealed: dict[tuple[int, int], tuple[int, int]]
    loaded: frozenset[int]
    released: dict[int, tuple[int, int]]
    saved: dict[int, StoredClock]
    copied: dict[int, StoredClock]
    done: dict[int, int]
    counters: TierCounters = TierCounters()
    losses: Mapping[int, tuple[int, float]] = MappingProxyType({})

    @property
    def machine(self) -> str:
        """The machine's name."""
        return self.about.name

    @property
    def decisive(self) -> TierReport:
        """The report without its number, and what none waits for: an end by its loss may come a report later."""
        return replace(self, number=0, done={}, counters=TierCounters(), losses={})
