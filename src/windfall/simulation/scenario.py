"""Specification of the simulated world: a job, its machines, and what the workers assume about both.

Event engine and kernels follow it to the second, and draw the same chances (`random_draws`):

* **Machines.**  A job needs k of them at once, one per slot.  Each is ordered, starts after a draw from `allocate_s`, and is
  ready after a draw from `prepare_s` (boot, setup, restore, start of the script).  Its lifetime, from start to end, is a
  draw from `lifetimes`.  A share of the losses is announced: such a machine receives a notice `notice_s` before its end, or
  at its start if its lifetime is shorter.  The others receive none.  A machine on notice never starts to train.
* **Replacement.**  The driver orders a successor when a machine reports its notice, otherwise when it has ended; facts
  travel in no time.  A successor that is ready waits until the machine it replaces has released the run.
* **Training.**  Starts when all slots have a ready machine, from the newest committed checkpoint.  All ranks make their
  steps together, `step_s` each.  A loss of any machine stops all; the others stay, and wait for the successor.
* **Saves.**  After a whole step the script stalls for `stall_s`; the checkpoint is committed `upload_s` after that.  One
  upload runs at a time, and one more may wait for it.  The worker (`core.worker`) decides when to save, by `policy` and its
  estimates.
* **Notice.**  The worker decides whether an emergency save fits.  If it does, the ranks stall from the save on, and the
  machine releases the run after the commit.  If it does not, they train on until the machine ends.
* **The end.**  The job is done with its last step.  Machines are billed from start to end, or to their release: all at the
  end of the job, and one on notice once it has released the run and its successor is ready.

Wall time is divided completely into work, redo (lost training, a partial step included), save (stalls, and the upload of an
emergency save), allocate (no training, and an awaited machine has not started), and prepare (no training, and all of them
have started).

`step_s`, `stall_s`, `upload_s` are drawn once per trial: their ranges say how well the job's own costs are known, which moves
the finish of a whole run, where noise of single saves would average out.  `allocate_s` and `prepare_s` are drawn for each
machine.  (The thesis' simulator draws every latency each time it occurs: the same means, and less spread.)

Source of the inputs: thesis, section 6.2.2, the ten inputs of its training simulator.
"""

from __future__ import annotations

import itertools
import math

from windfall.errors import Misuse
from windfall.structs import Struct


class DurationRange(Struct, frozen=True):
    """A length of time that is uniform over the half-open interval [low, high) [s]; a constant if both are equal."""

    low_s: float
    high_s: float

    def __post_init__(self) -> None:
        if not (0.0 <= self.low_s <= self.high_s < math.inf):
            raise Misuse(
                f"{self.low_s:g} to {self.high_s:g} s is not a range: give two lengths of time in seconds, 0 or more, the "
                "smaller one first"
            )

    @classmethod
    def of(cls, constant_s: float, share: float = 0.0) -> DurationRange:
        """Return a range around a length of time, from (1 - share) to (1 + share) of it."""
        return cls(constant_s * (1.0 - share), constant_s * (1.0 + share))

    @property
    def mean_s(self) -> float:
        """The expected length [s]."""
        return (self.low_s + self.high_s) / 2.0

    def at(self, uniform: float) -> float:
        """Return the length at a uniform draw from [0, 1) [s]."""
        return self.low_s + (self.high_s - self.low_s) * uniform


class MemorylessLifetimes(Struct, frozen=True):
    """Exponential lifetimes: the n-th machine of a slot lives `means_s[n % len]` on average (the injector's list) [s]."""

    means_s: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.means_s or not all(mean > 0.0 for mean in self.means_s):
            raise Misuse("the mean time to preemption must be above 0 s (infinite for machines that are never lost)")


class LifetimeQuantiles(Struct, frozen=True):
    """Lifetimes by the inverse of their distribution: at u = i / (n - 1) the i-th age, linear in between.

    Attributes:
        ages_s: rising from 0 [s]; the last may be infinite, then so is a lifetime in the last cell.
        known_until_s: the oldest age in the data [s]; infinite for a given law.
        name: of the law, for people.
    """

    ages_s: tuple[float, ...]
    known_until_s: float = math.inf
    name: str = "table"

    def __post_init__(self) -> None:
        falling = any(later < before for before, later in itertools.pairwise(self.ages_s))
        if len(self.ages_s) < 2 or self.ages_s[0] < 0.0 or falling:
            raise Misuse("a table of lifetimes needs at least two ages in seconds, none below 0, in rising order")


class RecordedLifetimes(Struct, frozen=True):
    """Recorded lifetimes: `lifetimes_s[slot][n]` of the n-th machine of a slot [s]; later machines are never lost."""

    lifetimes_s: tuple[tuple[float, ...], ...]


class AvailabilityWindows(Struct, frozen=True):
    """When machines are available, from a trace; all of a job's machines share it.

    A machine starts after its allocation, and not before the next window opens; it runs to the end of the window.

    Attributes:
        up_s: (from, to) of each window, since the trace's start [s]; rising, apart.
        length_s: of the trace [s]; it starts over after its end.
        start_s: where in the trace the job starts [s]; None: uniformly drawn for each trial.
    """

    up_s: tuple[tuple[float, float], ...]
    length_s: float
    start_s: float | None = None

    def __post_init__(self) -> None:
        edges = [edge for window in self.up_s for edge in window]
        rising = all(before <= later for before, later in itertools.pairwise(edges))
        if not edges or not rising or edges[0] < 0.0 or edges[-1] > self.length_s:
            raise Misuse("a trace of availability needs at least one window, and windows in order within its length")


LifetimeModel = MemorylessLifetimes | LifetimeQuantiles | RecordedLifetimes | AvailabilityWindows


class WorkerEstimates(Struct, frozen=True):
    """The worker's estimates at its start.

    Attributes:
        mttp_s: mean time to a preemption of any of the job's machines [s]; the worker does not change it.
        unannounced_share: stated share of losses without notice; None: the provider's usual one.
        restart_s: from a loss to training again [s].
        costs_known: whether save costs are known from earlier runs; if not, the first save measures them.
        notice_s: stated notice [s]; None: the provider's usual one.
        learns: whether each machine learns about notices from the run's losses so far, as a live one does.
    """

    mttp_s: float
    unannounced_share: float | None
    restart_s: float
    costs_known: bool = True
    notice_s: float | None = None
    learns: bool = True


class Scenario(Struct, frozen=True):
    """One job on one kind of machine; the module's docstring defines the terms.

    Attributes:
        steps: of the run.
        step_s, stall_s, upload_s: drawn once per trial [s].
        allocate_s, prepare_s: drawn for each machine [s].
        lifetimes: of the machines.
        notice_s: time from a notice to the end of its machine [s].
        announced_share: of losses that are announced.
        policy: canonical name of a saving policy (`policies.checkpointing.decision.parse_policy`).
        estimates: the basis of the worker's decisions.
        machines: k, all of which must be up.
        price_usd_per_hour: of one machine.
        provider: the worker assumes its usual pattern of preemptions (`models.preemption_rates`).
        successor_at_notice: whether the driver orders a successor at the notice; if not, when the machine has ended.
        lifetime_ends_at_notice: whether a lifetime ends with the notice, as the injector's does, and the machine `notice_s`
            later.
    """

    steps: int
    step_s: DurationRange
    stall_s: DurationRange
    upload_s: DurationRange
    allocate_s: DurationRange
    prepare_s: DurationRange
    lifetimes: LifetimeModel
    notice_s: float
    announced_share: float
    policy: str
    estimates: WorkerEstimates
    machines: int = 1
    price_usd_per_hour: float = 0.0
    provider: str = "local"
    successor_at_notice: bool = True
    lifetime_ends_at_notice: bool = False

    def __post_init__(self) -> None:
        if self.steps < 1 or self.machines < 1:
            raise Misuse(f"{self.steps} steps on {self.machines} machines cannot be simulated: both must be at least 1")
        if self.step_s.low_s <= 0.0:
            raise Misuse("a step that takes no time cannot be simulated: give the time of a step in seconds, above 0")
        if not 0.0 <= self.announced_share <= 1.0 or not 0.0 <= self.notice_s < math.inf:
            raise Misuse(
                "the announced share of losses is a number from 0 to 1, the notice a length of time, 0 or more"
            )
