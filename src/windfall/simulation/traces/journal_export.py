"""Export from the live system: prices and lifetimes from a controller's journal, and the pool of lifetimes.

`windfall events JOB --json` prints the journal of a job; its lines are read as a trace of the observed prices and of the
machines' lifetimes.  Prices have the journal's clock, lifetimes the provider's.  A machine that was preempted as a rehearsal
(by the injector or at a user's request) counts as released: it says nothing about the market.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from windfall import codec
from windfall.events import Fact, Row
from windfall.fleet import (
    Lifetime,
    MachineReported,
    MachinesMissing,
    MachinesObserved,
    OffersChanged,
    OffersObserved,
    PreemptionRequested,
    PreemptMachine,
)
from windfall.market import Machine, MachineEndCause
from windfall.simulation.traces.trace_events import (
    ClockKind,
    Content,
    Event,
    LocatedEvent,
    Price,
    SamplingKind,
    Series,
    TracedLifetime,
    TraceHeader,
    WatchedUntil,
)
from windfall.simulation.traces.trace_files import fault, lines
from windfall.terms import NoticeLevel, Reliability, WallTime

HEADER = TraceHeader("journal", (Content.PRICES, Content.LIFETIMES), ClockKind.UTC, SamplingKind.CHANGES)
POOL = TraceHeader("pool", (Content.LIFETIMES,), ClockKind.UTC, SamplingKind.CHANGES)


def is_row(first: str) -> bool:
    """Return whether a file with this first line holds journal rows."""
    return first.startswith("{") and '"version"' in first[:10] and '"row"' in first[:40]


def read(path: Path) -> Iterator[LocatedEvent]:
    """Yield the events of a journal; lifetimes come at the last line, because they are complete only then.

    Raises:
        Misuse: a line is not a journal row.
        NewerFormat: a newer Windfall wrote it.
    """
    last = [1]

    def rows() -> Iterator[Row]:
        for line, text in enumerate(lines(path), 1):
            try:
                last[0], row = line, codec.row_from_line(text)
            except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
                cut = "" if text.endswith("\n") else ": the file is truncated"
                raise fault(path, line, f"this line is not a journal row{cut}") from error
            yield row

    for event in export(rows()):
        yield last[0], event


def export(rows: Iterable[Row]) -> Iterator[Event]:
    """Yield the prices and then the lifetimes in a job's journal.

    Args:
        rows: of a job's controller, in order.
    """
    prices: dict[Series, Price] = {}
    lifetimes = _LifetimeCollector()
    at_s = wall_s = 0.0
    for row in rows:
        at_s, wall_s = float(row.at), float(row.wall_time)
        for fact in row.facts:
            lifetimes.take(fact, wall_s)
            if isinstance(fact, OffersObserved | OffersChanged):
                yield from _new_prices(fact, at_s, prices)
        lifetimes.rehearsed |= {command.machine_id for command in row.commands if isinstance(command, PreemptMachine)}
    for series in sorted(prices):
        yield WatchedUntil(at_s, series, Content.PRICES)
    yield from lifetimes.events(wall_s)


def _new_prices(seen: OffersObserved | OffersChanged, at_s: float, known: dict[Series, Price]) -> Iterator[Price]:
    """Yield the spot prices that differ from `known`, and update it."""
    spot = Reliability.TRANSIENT
    whole = [
        Price(
            at_s,
            Series(offer.machine_type, offer.zone, offer.provider),
            offer.price_usd_per_hour,
            offer.on_demand_usd_per_hour,
        )
        for offer in seen.offers
        if offer.reliability is spot
    ]
    rows = seen.prices if isinstance(seen, OffersChanged) else ()
    places = [
        (Series(machine_type, zone, provider), usd) for provider, machine_type, zone, kind, usd in rows if kind is spot
    ]
    moved = [Price(at_s, place, usd, known[place].on_demand_usd_per_hour) for place, usd in places if place in known]
    for price in (*whole, *moved):
        before = known.get(price.series)
        if before is None or (before.usd_per_hour, before.on_demand_usd_per_hour) != (
            price.usd_per_hour,
            price.on_demand_usd_per_hour,
        ):
            known[price.series] = price
            yield price


class _LifetimeCollector:
    """Collects the newest state of each machine."""

    def __init__(self) -> None:
        self._machines: dict[str, Machine] = {}
        self._missing_s: dict[str, float] = {}
        self._announced: set[str] = set()
        self.rehearsed: set[str] = set()

    def take(self, fact: Fact, wall_s: float) -> None:
        """Process a fact."""
        if isinstance(fact, MachinesObserved):
            for machine in fact.machines:
                self._machines[machine.machine_id] = machine
                self._missing_s.pop(machine.machine_id, None)
        elif isinstance(fact, MachinesMissing):
            self._missing_s.update((name, wall_s) for name in fact.machine_ids)
        elif isinstance(fact, MachineReported) and fact.report.level is NoticeLevel.ANNOUNCED:
            self._announced.add(fact.report.machine_id)
        elif isinstance(fact, PreemptionRequested):
            self.rehearsed.add(fact.machine_id)

    def events(self, now_s: float) -> Iterator[TracedLifetime]:
        """Yield the lifetimes of all started machines, by start."""
        lifetimes = [
            self._lifetime(machine, now_s) for machine in self._machines.values() if machine.started is not None
        ]
        return iter(sorted(lifetimes, key=lambda lifetime: (lifetime.at_s, lifetime.machine)))

    def _lifetime(self, machine: Machine, now_s: float) -> TracedLifetime:
        assert machine.started is not None
        name, end = machine.machine_id, machine.cause
        if end is MachineEndCause.PREEMPTED and name in self.rehearsed:
            end = MachineEndCause.RELEASED
        if machine.ended is None:
            # A missing machine ran until it left the listing; the cause is unknown.
            end, seen_s = None, self._missing_s.get(name, now_s)
        else:
            seen_s = float(machine.ended)
        return TracedLifetime(
            float(machine.started),
            Series(machine.machine_type, machine.zone, machine.provider),
            max(seen_s, float(machine.started)),
            end,
            name,
            machine.token,
            announced=name in self._announced,
        )


def export_lifetimes(lifetimes: Iterable[Lifetime], now: WallTime) -> tuple[TracedLifetime, ...]:
    """Return the pool of lifetimes as a trace's events, by start.

    Args:
        lifetimes: of all machines of the installation.
        now: machines that still run were last seen then.
    """
    found = [
        TracedLifetime(
            float(lifetime.started),
            Series(lifetime.machine_type, lifetime.zone, lifetime.provider),
            float(max(now, lifetime.started) if lifetime.ended is None else lifetime.ended),
            _end_of(lifetime),
            lifetime.machine_id,
            announced=lifetime.announced,
        )
        for lifetime in lifetimes
    ]
    return tuple(sorted(found, key=lambda lifetime: (lifetime.at_s, lifetime.machine)))


def _end_of(lifetime: Lifetime) -> MachineEndCause | None:
    if lifetime.ended is None:
        return None
    return MachineEndCause.PREEMPTED if lifetime.preempted else MachineEndCause.RELEASED
