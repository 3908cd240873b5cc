"""What is simulated: a job, the habits of its machines, and what is believed of both.

The world in words; event engine and kernels follow it to the second, and draw the same chances (`chance`):

* **Machines.**  A job needs k of them at once, its slots.  Each is ordered, starts after a draw from `allocate_s`, and is
  ready after a draw from `prepare_s` (boot, setup, restore, the script's start).  It lives, from its start to its end,
  for a draw from `lives`.  A share of the losses is announced: such a machine hears of it `notice_s` before the end of its
  life, or at its start if it does not live that long.  The others hear nothing.  A machine on notice never begins to train.
* **Replacement.**  The driver orders a successor when a machine reports its notice, otherwise when it is gone; facts
  travel in no time.  A successor that is ready waits until the machine it follows has let go of the run.
* **Training.**  Begins when all slots have a ready machine, from the newest committed point.  All ranks make their steps
  together, `step_s` each.  A loss of any machine stops all; the others stay, and wait for the successor.
* **Saves.**  After a whole step the script stands still for `stall_s`; the point is committed `upload_s` after that.
  One point is on its way at a time, one more may wait for it.  When to save is the worker's decision (`core.worker`),
  by `policy` and what is believed.
* **Notice.**  The worker decides whether an emergency save fits.  If it does, the ranks stand still from the save on, and
  the machine lets go of the run once it is committed.  If it does not, they train on until the machine is gone.
* **The end.**  The job is done with its last step.  Machines are billed from their start until they are gone or given
  back: all at the end of the job, and one on notice as soon as it has let go of the run and its successor is ready.

Wall time is divided without rest into work, redo (training that was lost, a begun step included), save (standing still,
and the upload of an emergency save), allocate (nobody trains, and a machine that is waited for has not started), and
prepare (nobody trains, and all of them have started).

`step_s`, `stall_s`, `upload_s` are drawn once in a trial: their ranges say how well the job's own costs are known, which
moves the finish of a whole run, where noise of single saves would average out.  `allocate_s` and `prepare_s` are drawn for
each machine.  (The thesis' simulator draws every latency each time it occurs: the same means, and less spread.)

Source of the inputs: thesis, section 6.2.2, the ten inputs of its training simulator.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

from windfall.errors import Misuse


@dataclass(frozen=True, slots=True)
class Range:
    """A length of time that is uniform over the half-open interval [low, high) [s]; a constant if both are equal."""

    low_s: float
    high_s: float

    def __post_init__(self) -> None:
        if not (0.0 <= self.low_s <= self.high_s < math.inf):
            raise Misuse(
                f"a range from {self.low_s:g} to {self.high_s:g} s is none: give two lengths of time in seconds, "
                "0 or more, the smaller one first"
            )

    @classmethod
    def of(cls, constant_s: float, share: float = 0.0) -> Range:
        """Return a range around a length of time, so wide as a share of it to either side."""
        return cls(constant_s * (1.0 - share), constant_s * (1.0 + share))

    @property
    def mean_s(self) -> float:
        """The expected length [s]."""
        return (self.low_s + self.high_s) / 2.0

    def at(self, uniform: float) -> float:
        """Return the length that a uniform draw from [0, 1) stands for [s]."""
        return self.low_s + (self.high_s - self.low_s) * uniform


@dataclass(frozen=True, slots=True)
class Memoryless:
    """Exponential lives: the n-th machine of a slot lives `means_s[n % len]` on average (the injector's list) [s]."""

    means_s: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.means_s or not all(mean > 0.0 for mean in self.means_s):
            raise Misuse("lives need a mean time to preemption above 0 s, infinite for machines that stay")


@dataclass(frozen=True, slots=True)
class Quantiles:
    """Lives by the inverse of their distribution: at u = i / (n - 1) the i-th age, between two of them linearly.

    Attributes:
        ages_s: rising from 0 [s]; the last may be infinite, then so is a life in the last cell.
        known_until_s: the oldest age that the data reached [s]; infinite for a law that was given.
        name: of the law, for people.
    """

    ages_s: tuple[float, ...]
    known_until_s: float = math.inf
    name: str = "table"

    def __post_init__(self) -> None:
        falling = any(later < before for before, later in itertools.pairwise(self.ages_s))
        if len(self.ages_s) < 2 or self.ages_s[0] < 0.0 or falling:
            raise Misuse("a table of lives needs at least two ages in seconds, none below 0, in rising order")


@dataclass(frozen=True, slots=True)
class Recorded:
    """Lives as they were recorded: `lives_s[slot][n]` of the n-th machine of a slot [s]; later machines stay."""

    lives_s: tuple[tuple[float, ...], ...]


@dataclass(frozen=True, slots=True)
class Windows:
    """When machines can be had at all, as a trace of availability shows it; all of a job's machines share it.

    A machine starts after its allocation, and not before the next window opens; it lives to the end of the window.

    Attributes:
        up_s: (from, to) of each window, since the trace's begin [s]; rising, apart.
        length_s: of the trace [s]; it begins again after its end.
        start_s: where in the trace the job begins [s]; None: uniformly drawn for each trial.
    """

    up_s: tuple[tuple[float, float], ...]
    length_s: float
    start_s: float | None = None

    def __post_init__(self) -> None:
        edges = [edge for window in self.up_s for edge in window]
        rising = all(before <= later for before, later in itertools.pairwise(edges))
        if not edges or not rising or edges[0] < 0.0 or edges[-1] > self.length_s:
            raise Misuse("a trace of availability needs at least one window, and windows in order within its length")


Lives = Memoryless | Quantiles | Recorded | Windows


@dataclass(frozen=True, slots=True)
class Believed:
    """What the worker believes as it begins.

    Attributes:
        mttp_s: mean time to a preemption of any of the job's machines [s]; it keeps believing it.
        unannounced_share: of losses that come without notice, as it was told; None: by the provider's habit.
        restart_s: from a loss to training again [s].
        costs_known: whether earlier runs have shown what a save costs; if not, the first save teaches it.
        notice_s: the notice as it was told [s]; None: by the provider's habit.
        learns: whether each machine learns of notices from the losses that the run has had by then, as a live one does.
    """

    mttp_s: float
    unannounced_share: float | None
    restart_s: float
    costs_known: bool = True
    notice_s: float | None = None
    learns: bool = True


@dataclass(frozen=True, slots=True)
class Scenario:
    """One job on one kind of machine; the module's docstring says what the words mean.

    Attributes:
        steps: of the run.
        step_s, stall_s, upload_s: drawn once in a trial [s].
        allocate_s, prepare_s: drawn for each machine [s].
        lives: of the machines.
        notice_s: how long before its end a machine hears of it, if it is announced [s].
        announced_share: of losses that are announced.
        policy: canonical name of a saving policy (`policies.saving.decide.parse_policy`).
        believed: what decisions rest on.
        machines: k, all of which must be up.
        price_usd_per_hour: of one machine.
        provider: whose habits (`models.losses.habit`) the worker assumes.
        successor_at_notice: whether a successor is ordered at the notice; if not, when the machine is gone.
        life_to_notice: whether a life ends with the notice, as the injector's does, and the machine is gone `notice_s`
            later.
    """

    steps: int
    step_s: Range
    stall_s: Range
    upload_s: Range
    allocate_s: Range
    prepare_s: Range
    lives: Lives
    notice_s: float
    announced_share: float
    policy: str
    believed: Believed
    machines: int = 1
    price_usd_per_hour: float = 0.0
    provider: str = "local"
    successor_at_notice: bool = True
    life_to_notice: bool = False

    def __post_init__(self) -> None:
        if self.steps < 1 or self.machines < 1:
            raise Misuse(f"{self.steps} steps on {self.machines} machines cannot be simulated: both must be at least 1")
        if self.step_s.low_s <= 0.0:
            raise Misuse("a step that takes no time cannot be simulated: give the time of a step in seconds, above 0")
        if not 0.0 <= self.announced_share <= 1.0 or not 0.0 <= self.notice_s < math.inf:
            raise Misuse(
                "the announced share of losses is a number from 0 to 1, the notice a length of time, 0 or more"
            )
