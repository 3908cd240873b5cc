"""Events of traces: prices, counts of machines, machine starts and ends, lifetimes, and catalogue entries.

Times are seconds on the trace's own clock (`TraceHeader.clock`): since 1970 UTC where the source gives dates, from the
trace's start where it does not.  All are immutable; `traces.trace_format` writes and reads them.
"""

from __future__ import annotations

import enum

from windfall.errors import Misuse
from windfall.market import MachineEndCause
from windfall.structs import Struct


class ClockKind(enum.StrEnum):
    """The origin of a trace's times."""

    UTC = "utc"
    """Seconds since 1970-01-01T00:00Z."""
    START = "start"
    """Seconds from the trace's start; its date is unknown."""


class SamplingKind(enum.StrEnum):
    """The meaning of a silence in a series."""

    CHANGES = "changes"
    """Every change is recorded: silence means that nothing changed."""
    SAMPLES = "samples"
    """Values are sampled from time to time: a long silence is a gap in the data."""


class Content(enum.StrEnum):
    """The kinds of data in a trace."""

    PRICES = "prices"
    COUNTS = "counts"
    """How many machines were available, or held."""
    MACHINES = "machines"
    """Starts and ends of named machines."""
    LIFETIMES = "lifetimes"
    CATALOGUE = "catalogue"
    """A price list, without times."""


class Series(Struct, frozen=True, order=True):
    """The subject of a value; a field that the source does not name is empty.

    Attributes:
        zone: a zone, or a region where the source mixes its zones.
        product: what the price is for, if one machine has several prices (an operating system, a provider); else empty.
    """

    machine_type: str
    zone: str
    product: str = ""


class TraceHeader(Struct, frozen=True):
    """Properties of a whole trace.

    Attributes:
        format: the name of its source format (`windfall` for Windfall's own).
        silence_s: a longer silence is a gap [s]; None where silence means nothing.
        step_s: the time between two samples of a regular grid [s]; None if irregular or recorded by changes.
        notes: what the reader had to infer, as sentences.
    """

    format: str
    content: tuple[Content, ...]
    clock: ClockKind
    sampling: SamplingKind
    step_s: float | None = None
    silence_s: float | None = None
    notes: tuple[str, ...] = ()


class Price(Struct, frozen=True):
    """The price of a machine from now on [USD/h]; None where the source has none at that time."""

    at_s: float
    series: Series
    usd_per_hour: float | None
    on_demand_usd_per_hour: float | None = None


class Count(Struct, frozen=True):
    """The number of machines that are held, or available, from now on."""

    at_s: float
    series: Series
    count: int


class MachineStarted(Struct, frozen=True):
    """A machine started."""

    at_s: float
    series: Series
    machine: str


class MachineEnded(Struct, frozen=True):
    """A machine was preempted."""

    at_s: float
    series: Series
    machine: str


class TracedLifetime(Struct, frozen=True):
    """The lifetime of one machine.

    Attributes:
        at_s: its start (0 where only the length is known) [s].
        ended_s: its end, or when it was last seen running [s].
        end: the cause of its end; None: it was running when last seen.  All but `preempted` are right-censored.
        machine: its name; empty if it has none.
        batch: machines of one batch were requested together, and are not independent.
        load: its workload, as the source names it.
        startup_s: from the request until it was up [s].
        announced: whether it had a notice; None if unknown.
    """

    at_s: float
    series: Series
    ended_s: float
    end: MachineEndCause | None
    machine: str = ""
    batch: str = ""
    load: str = ""
    startup_s: float | None = None
    announced: bool | None = None

    @property
    def lifetime_s(self) -> float:
        """Its length, as far as it was observed [s]."""
        return self.ended_s - self.at_s

    @property
    def censored(self) -> bool:
        """Whether its true end is unknown."""
        return self.end is not MachineEndCause.PREEMPTED


class CatalogueEntry(Struct, frozen=True):
    """A line of a price list; None (or an empty accelerator) where the source has no value.

    Attributes:
        saving_share: saving of spot against the on-demand price [1].
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


class WatchedUntil(Struct, frozen=True):
    """The end of a series' observation; what follows is unknown."""

    at_s: float
    series: Series
    content: Content


Event = Price | Count | MachineStarted | MachineEnded | TracedLifetime | CatalogueEntry | WatchedUntil
ParsedLine = tuple[int, Event | Misuse]
"""A line's number and its event, or what is wrong with it."""
LocatedEvent = tuple[int, Event]
"""A line's number (or, where a source has no lines, a tick's) and its event."""

_CONTENT: dict[type, Content] = {
    Price: Content.PRICES,
    Count: Content.COUNTS,
    MachineStarted: Content.MACHINES,
    MachineEnded: Content.MACHINES,
    TracedLifetime: Content.LIFETIMES,
    CatalogueEntry: Content.CATALOGUE,
}


def content_of(event: Event) -> Content:
    """Return the kind of data of an event."""
    return event.content if isinstance(event, WatchedUntil) else _CONTENT[type(event)]
