"""What a trace tells: prices, numbers of machines, machines that come and go, lives, and what is on a list.

Times are seconds on the trace's own clock (`Header.clock`): since 1970 UTC where the source gives dates, from the
trace's start where it does not.  All are frozen dataclasses of plain values; `traces.form` writes and reads them.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from windfall.errors import Misuse
from windfall.market import Ended


class Clock(enum.StrEnum):
    """What a trace's times count from."""

    UTC = "utc"
    """Seconds since 1970-01-01T00:00Z."""
    START = "start"
    """Seconds from the trace's start; when that was is not known."""


class Sampling(enum.StrEnum):
    """What it means that a series says nothing for a while."""

    CHANGES = "changes"
    """Every change is told: silence means that nothing changed."""
    SAMPLES = "samples"
    """Somebody looked now and then: a long silence is a hole in the data."""


class Content(enum.StrEnum):
    """The kinds of things that a trace can tell."""

    PRICES = "prices"
    COUNTS = "counts"
    """How many machines could be had, or were held."""
    MACHINES = "machines"
    """Named machines that came and went."""
    LIVES = "lives"
    CATALOGUE = "catalogue"
    """A price list; it has no time."""


@dataclass(frozen=True, slots=True, order=True)
class Series:
    """Whose value it is; an empty word was not named by the source.

    Attributes:
        zone: a zone, or a region where the source mixes its zones.
        product: what is priced apart on the same machine (an operating system, a provider); empty if there is one only.
    """

    machine_type: str
    zone: str
    product: str = ""


@dataclass(frozen=True, slots=True)
class Header:
    """What holds for a whole trace.

    Attributes:
        format: the name of the format that it was read from (`windfall` for our own).
        silence_s: a silence longer than this is a hole [s]; None where silence says nothing.
        step_s: the time between two looks of a regular grid [s]; None if irregular or told by changes.
        told: sentences about what the reader had to conclude.
    """

    format: str
    content: tuple[Content, ...]
    clock: Clock
    sampling: Sampling
    step_s: float | None = None
    silence_s: float | None = None
    told: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Price:
    """From now on a machine costs so much [USD/h]; None where the source has no such price at that time."""

    at_s: float
    series: Series
    usd_per_hour: float | None
    on_demand_usd_per_hour: float | None = None


@dataclass(frozen=True, slots=True)
class Count:
    """From now on so many of the wanted machines are there (or could be had)."""

    at_s: float
    series: Series
    count: int


@dataclass(frozen=True, slots=True)
class Came:
    """A machine is there."""

    at_s: float
    series: Series
    machine: str


@dataclass(frozen=True, slots=True)
class Went:
    """A machine was taken."""

    at_s: float
    series: Series
    machine: str


@dataclass(frozen=True, slots=True)
class Life:
    """One machine's life.

    Attributes:
        at_s: when it began (0 where only its length is known) [s].
        ended_s: when it ended, or was last seen alive [s].
        end: why it ended; None: it was alive when last seen.  All but `preempted` are right-censored.
        machine: its name; empty if it has none.
        batch: machines of one batch were asked for together, and are not independent.
        load: what it was doing, in the source's word.
        startup_s: from the request until it was up [s].
        announced: whether it was warned; None if not known.
    """

    at_s: float
    series: Series
    ended_s: float
    end: Ended | None
    machine: str = ""
    batch: str = ""
    load: str = ""
    startup_s: float | None = None
    announced: bool | None = None

    @property
    def life_s(self) -> float:
        """How long it lived, or was seen to live [s]."""
        return self.ended_s - self.at_s

    @property
    def censored(self) -> bool:
        """Whether it would have lived on, for all that is known."""
        return self.end is not Ended.PREEMPTED


@dataclass(frozen=True, slots=True)
class Listed:
    """A line of a price list; what the source leaves empty is None (or an empty accelerator).

    Attributes:
        saving_share: what spot saves of the on-demand price [1].
        interruption_bucket: share of machines interrupted in a month: 0: < 5 %, 1: 5-10, 2: 10-15, 3: 15-20, 4: > 20 %.
    """

    at_s: float
    series: Series
    on_demand_usd_per_hour: float | None = None
    spot_usd_per_hour: float | None = None
    cpus: float | None = None
    memory_gib: float | None = None
    accelerator: str = ""
    accelerators: float | None = None
    saving_share: float | None = None
    interruption_bucket: int | None = None


@dataclass(frozen=True, slots=True)
class Until:
    """The series was watched up to here; what comes after is not known."""

    at_s: float
    series: Series
    content: Content


Event = Price | Count | Came | Went | Life | Listed | Until
Read = tuple[int, Event | Misuse]
"""A line's number and what it says, or what is wrong with it."""
Placed = tuple[int, Event]
"""A line (or, where a source has no lines, a tick) and what stands there."""

_CONTENT: dict[type, Content] = {
    Price: Content.PRICES,
    Count: Content.COUNTS,
    Came: Content.MACHINES,
    Went: Content.MACHINES,
    Life: Content.LIVES,
    Listed: Content.CATALOGUE,
}


def content_of(event: Event) -> Content:
    """Return which kind of thing an event tells."""
    return event.content if isinstance(event, Until) else _CONTENT[type(event)]
