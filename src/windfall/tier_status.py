"""Words of what a parameter server in tiers is doing: what each machine has counted, and the whole, for people and programs.

Nothing is decided by them.
"""

from __future__ import annotations

from windfall.structs import Tagged
from windfall.terms import WallTime

VERSION = 1


class TierCounters(Tagged, frozen=True):
    """What a machine has counted since it started; a turn is a clock of a data partition.

    Attributes:
        turns: that it has computed, pushed to every part and sealed.
        redone: turns computed here though their data partition had pushed that clock before: all had gone back since.
        given_up: turns that had read something, and count nowhere: their data partition or all went elsewhere or back.
        reads: of rows of all parts; a program may read several times in a turn.
        staleness_max: by how many clocks what was read missed others' pushes: 0 is all of the clock before the turn's.
        staleness_sum: of all reads.
        pulled_bytes, pushed_bytes: rows and values in answers from other machines, and in questions to them that were answered:
            reads and pushes of workers, messages to backups, and parts that move.
        pulled_here_bytes, pushed_here_bytes: the same within the machine.
        store_failures: calls of the store that failed, and were repeated.
        waited_s: for which turns waited for what they read, summed over turns [s].
        computed_s: for which turns computed [s]; neither waiting for a slot nor for a read is in it.
    """

    turns: int = 0
    redone: int = 0
    given_up: int = 0
    reads: int = 0
    staleness_max: int = 0
    staleness_sum: int = 0
    pulled_bytes: int = 0
    pushed_bytes: int = 0
    pulled_here_bytes: int = 0
    pushed_here_bytes: int = 0
    store_failures: int = 0
    waited_s: float = 0.0
    computed_s: float = 0.0

    @property
    def staleness_mean(self) -> float:
        """The mean over all reads; 0 if there was none."""
        return self.staleness_sum / self.reads if self.reads else 0.0


class TierMachineStatus(Tagged, frozen=True):
    """One machine.

    Attributes:
        name: of the machine.
        reliable: it cannot be preempted.
        leaving: its end is announced, or it is to be released.
        serves, backs_up: numbers of parts.
        data: numbers of the data partitions that it computes on.
        counters: as it last reported them.
    """

    name: str
    reliable: bool
    leaving: bool
    serves: tuple[int, ...]
    backs_up: tuple[int, ...]
    data: tuple[int, ...]
    counters: TierCounters


class LossReached(Tagged, frozen=True):
    """Training has reached the loss that it was for.

    Attributes:
        clock: with which it ends, before its last one.
        loss: that it had there.
    """

    clock: int
    loss: float


class TierStatus(Tagged, frozen=True):
    """The whole.

    Attributes:
        at: when it was written.
        stage: that its machines call for (`policies.layout.tiers.Stage`); None: no reliable machine is there, and all waits.
        layout: version of the newest layout.
        coordinator: how many there have been.
        clock, clocks: the newest clock that all backups have, and that with which training ends.
        clocks_per_s: how many were committed in a second, lately.
        machines: that are there.
        gone: the sum of what all machines had counted that are not there any more, as far as they had reported it.
        rollbacks: how often all went back to the newest clock that all backups had.
        restores: how often all went back to the checkpoint in the store.
        clocks_redone: to how many clocks some data partition had come, as far as reported, that were taken back, in all.
        lost: how many machines vanished without notice.
        left: how many went with notice.
        over: training is over.
        loss: the mean of the losses of the newest turn of each data partition, so of the last pass over all of them; each is
            of the batch of its turn, at the parameters that the turn read.  After all went back it stays until each
            has one again.  None: the program does not say.
        goal: the training loss with which training ends before its last clock; None: with that clock alone.
        reached: where it ends for that.
    """

    at: WallTime
    stage: int | None
    layout: int
    coordinator: int
    clock: int
    clocks: int
    clocks_per_s: float
    machines: tuple[TierMachineStatus, ...]
    gone: TierCounters
    rollbacks: int
    restores: int
    clocks_redone: int
    lost: int
    left: int
    over: bool
    loss: float | None = None
    goal: float | None = None
    reached: LossReached | None = None


class TierPoint(Tagged, frozen=True):
    """Training at a checkpoint, or when machines had come or gone.

    Attributes:
        at: when it was looked at.
        clock: of the checkpoint; or the newest.
        loss: of the whole table there; None if the program does not say, or it was not evaluated.
        stage: as in `TierStatus`.
        reliable, transient: how many machines of each kind train.
        evaluated: it is of a checkpoint.
    """

    at: WallTime
    clock: int
    loss: float | None
    stage: int | None
    reliable: int
    transient: int
    evaluated: bool = True

    @property
    def machines(self) -> tuple[int | None, int, int]:
        """Stage, reliable and transient machines."""
        return self.stage, self.reliable, self.transient
