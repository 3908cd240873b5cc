"""From the live system: prices and lives that a controller's journal tells, and the pool of lives.

`windfall events JOB --json` prints the journal of a job; its lines are read as a trace of the prices that were seen and
of the machines' lives.  Prices have the journal's clock, lives the provider's.  A machine that was taken as a rehearsal
(by the injector or on a user's wish) counts as released: it says nothing of the market.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from windfall import codec
from windfall.events import Fact, Row
from windfall.fleet import (
    Lifetime,
    MachineHeard,
    MachinesMissing,
    MachinesSeen,
    OffersSeen,
    PreemptMachine,
    PreemptWanted,
)
from windfall.market import Ended, Machine
from windfall.simulation.traces.events import (
    Clock,
    Content,
    Event,
    Header,
    Life,
    Placed,
    Price,
    Sampling,
    Series,
    Until,
)
from windfall.simulation.traces.files import fault, lines
from windfall.terms import NoticeLevel, Reliability, WallTime

HEADER = Header("journal", (Content.PRICES, Content.LIVES), Clock.UTC, Sampling.CHANGES)
POOL = Header("pool", (Content.LIVES,), Clock.UTC, Sampling.CHANGES)


def is_row(first: str) -> bool:
    """Whether a file that begins with this line holds journal rows."""
    return first.startswith("{") and '"v"' in first[:10] and '"row"' in first[:40]


def read(path: Path) -> Iterator[Placed]:
    """Yield what a journal tells; lives are placed at the last line, since only then all is known of them.

    Raises:
        Misuse: a line is no journal row.
        NewerFormat: a newer Windfall wrote it.
    """
    last = [1]

    def rows() -> Iterator[Row]:
        for line, text in enumerate(lines(path), 1):
            try:
                last[0], row = line, codec.row_from_line(text)
            except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
                cut = "" if text.endswith("\n") else ": the file was cut off"
                raise fault(path, line, f"this line is no row of a journal{cut}") from error
            yield row

    for event in export(rows()):
        yield last[0], event


def export(rows: Iterable[Row]) -> Iterator[Event]:
    """Yield the prices and then the lives that a job's journal tells.

    Args:
        rows: of a job's controller, in order.
    """
    prices: dict[Series, Price] = {}
    lives = _Lives()
    at_s = wall_s = 0.0
    for row in rows:
        at_s, wall_s = float(row.at), float(row.wall)
        for fact in row.facts:
            lives.take(fact, wall_s)
            if isinstance(fact, OffersSeen):
                yield from _new_prices(fact, at_s, prices)
        lives.rehearsed |= {command.machine_id for command in row.commands if isinstance(command, PreemptMachine)}
    for series in sorted(prices):
        yield Until(at_s, series, Content.PRICES)
    yield from lives.told(wall_s)


def _new_prices(seen: OffersSeen, at_s: float, known: dict[Series, Price]) -> Iterator[Price]:
    """Yield the spot prices that differ from those known, and keep them."""
    for offer in seen.offers:
        if offer.reliability is not Reliability.TRANSIENT:
            continue
        series = Series(offer.machine_type, offer.zone, offer.provider)
        price = Price(at_s, series, offer.price_usd_per_hour, offer.on_demand_usd_per_hour)
        before = known.get(series)
        if before is None or (before.usd_per_hour, before.on_demand_usd_per_hour) != (
            price.usd_per_hour,
            price.on_demand_usd_per_hour,
        ):
            known[series] = price
            yield price


class _Lives:
    """The newest that is known of each machine."""

    def __init__(self) -> None:
        self._machines: dict[str, Machine] = {}
        self._missing_s: dict[str, float] = {}
        self._announced: set[str] = set()
        self.rehearsed: set[str] = set()

    def take(self, fact: Fact, wall_s: float) -> None:
        """Learn from a fact."""
        if isinstance(fact, MachinesSeen):
            for machine in fact.machines:
                self._machines[machine.machine_id] = machine
                self._missing_s.pop(machine.machine_id, None)
        elif isinstance(fact, MachinesMissing):
            self._missing_s.update((name, wall_s) for name in fact.machine_ids)
        elif isinstance(fact, MachineHeard) and fact.report.level is NoticeLevel.ANNOUNCED:
            self._announced.add(fact.report.machine_id)
        elif isinstance(fact, PreemptWanted):
            self.rehearsed.add(fact.machine_id)

    def told(self, now_s: float) -> Iterator[Life]:
        """Yield the lives of all that began, by their beginning."""
        lives = [self._life(machine, now_s) for machine in self._machines.values() if machine.began is not None]
        return iter(sorted(lives, key=lambda life: (life.at_s, life.machine)))

    def _life(self, machine: Machine, now_s: float) -> Life:
        assert machine.began is not None
        name, end = machine.machine_id, machine.cause
        if end is Ended.PREEMPTED and name in self.rehearsed:
            end = Ended.RELEASED
        if machine.ended is None:
            # Whoever is missing was alive until nobody listed it; why it went nobody said.
            end, seen_s = None, self._missing_s.get(name, now_s)
        else:
            seen_s = float(machine.ended)
        return Life(
            float(machine.began),
            Series(machine.machine_type, machine.zone, machine.provider),
            max(seen_s, float(machine.began)),
            end,
            name,
            machine.token,
            announced=name in self._announced,
        )


def export_lives(lives: Iterable[Lifetime], now: WallTime) -> tuple[Life, ...]:
    """Return the pool of lives as a trace's events, by their beginning.

    Args:
        lives: of all machines of the installation.
        now: until when those that still run were seen alive.
    """
    found = [
        Life(
            float(life.began),
            Series(life.machine_type, life.zone, life.provider),
            float(max(now, life.began) if life.ended is None else life.ended),
            _end_of(life),
            life.machine_id,
            announced=life.announced,
        )
        for life in lives
    ]
    return tuple(sorted(found, key=lambda life: (life.at_s, life.machine)))


def _end_of(life: Lifetime) -> Ended | None:
    if life.ended is None:
        return None
    return Ended.PREEMPTED if life.preempted else Ended.RELEASED
