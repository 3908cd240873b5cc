"""The worlds in which Proteus is replayed: a year's spot prices of one region, cut into months to learn from and to judge by.

The paper learnt from 2016-03-14 to 06-10 and judged on 06-11 to 08-14 in four zones of US-EAST-1, with c4.xlarge and
c4.2xlarge.  Those prices are not published.  What is public gives two worlds:

- **spring**: every change of price; learn 02-25 to 03-25, judge 03-26 to 04-24; zones 1a, 1b, 1c;
- **summer**: a price every five minutes, so evictions inside a step are not seen; learn 06-22 to 07-31, judge from 08-01 on;
  zones 1a, 1c.

A world is read up to the end of a span, so nothing that chooses constants can see the months that judge them.

Which machine types a world has is a rule that was fixed before the first run: sold as the current generation in 2016, at least
2 vCPUs, and an on-demand price per vCPU at most twice that of c4.  No history of c4 is public: m4.10xlarge stands in for it
in spring, m4.xlarge in summer.

Source: A. Harlap et al., "Proteus: agile ML elasticity through tiered reliability in dynamic resource markets", EuroSys
2017, section 6.3.
"""

from __future__ import annotations

import csv
import enum
import gzip
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from windfall.errors import Misuse
from windfall.market import BillingBasis, BillingRule
from windfall.models import price_evictions
from windfall.models.price_evictions import EvictionTable
from windfall.simulation.fleet_market import SOURCE
from windfall.simulation.simulated_provider import SimulatedMarket
from windfall.simulation.value_series import ValueSeries
from windfall.structs import Struct
from windfall.terms import Reliability, Seconds

Floats = NDArray[np.float64]
HOURLY: Final = BillingRule(BillingBasis.STARTED_HOUR)
REGION: Final = "us-east-1"
MOMENTS_EVERY_S: Final = 600.0
"""Bids are imagined this often in the months to learn from [s]."""
LEARNT_SHARE: Final = 2.0 / 3.0
"""Constants are chosen by learning from this share of the months to learn from, and validating on the rest."""


class MachineKind(Struct, frozen=True):
    """A machine type with its list price of 2016 in US-EAST-1, Linux, on demand; the price is not part of the data."""

    machine_type: str
    cores: int
    on_demand_usd_per_hour: float


C4 = MachineKind("c4.2xlarge", 8, 0.419)
SERVER_KIND = MachineKind("c4.xlarge", 4, 0.209)
"""The paper's machine on demand."""
CURRENT_IN_2016 = (
    MachineKind("m3.medium", 1, 0.067),
    MachineKind("m3.large", 2, 0.133),
    MachineKind("m4.xlarge", 4, 0.239),
    MachineKind("m4.10xlarge", 40, 2.394),
    MachineKind("r3.large", 2, 0.166),
    MachineKind("g2.2xlarge", 8, 0.65),
    MachineKind("d2.2xlarge", 8, 1.38),
    MachineKind("d2.8xlarge", 36, 5.52),
)
"""Those of which the data have prices.  c1, cg1, hi1 and m1, which it has too, were the previous generation."""
CORES_MIN, DEARER_MAX = 2, 2.0


def eligible(kind: MachineKind) -> bool:
    """Whether a type of the current generation is offered to the arms, by the rule above."""
    dearer = (kind.on_demand_usd_per_hour / kind.cores) / (C4.on_demand_usd_per_hour / C4.cores)
    return kind.cores >= CORES_MIN and dearer <= DEARER_MAX


class Span(enum.StrEnum):
    """Up to where a world is read."""

    TRAIN = "train"
    TEST = "test"


class WorldDates(Struct, frozen=True):
    """A world's spans [Unix seconds], its zones, and the type that stands in for c4."""

    name: str
    zones: tuple[str, ...]
    train_s: tuple[float, float]
    test_s: tuple[float, float]
    stand_in: str


def _day(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


SPRING = WorldDates(
    "spring",
    ("us-east-1a", "us-east-1b", "us-east-1c"),
    (_day("2016-02-25"), _day("2016-03-26")),
    (_day("2016-03-26"), _day("2016-04-25")),
    "m4.10xlarge",
)
SUMMER = WorldDates(
    "summer",
    ("us-east-1a", "us-east-1c"),
    (_day("2016-06-22"), _day("2016-08-01")),
    (_day("2016-08-01"), _day("2016-09-20")),
    "m4.xlarge",
)
WORLDS: Mapping[str, WorldDates] = {dates.name: dates for dates in (SPRING, SUMMER)}


class PriceWorld(Struct, frozen=True):
    """The prices of a world up to the end of a span.

    Attributes:
        series: by zone and type; times in Unix seconds, prices in USD/h.
        until_s: end of the span: no price after it is there.
    """

    dates: WorldDates
    span: Span
    kinds: Mapping[str, MachineKind]
    series: Mapping[tuple[str, str], tuple[Floats, Floats]]
    until_s: float

    def types(self, zone: str) -> tuple[MachineKind, ...]:
        """Return the types that a zone offers."""
        return tuple(kind for name, kind in self.kinds.items() if (zone, name) in self.series)


def read(folder: Path, name: str, span: Span) -> PriceWorld:
    """Return a world up to the end of a span.

    Args:
        folder: has the price histories.
        name: spring or summer.
        span: TEST only to judge, once all constants are chosen.

    Raises:
        Misuse: there is no such world, or a file is missing or cannot be read.
    """
    if name not in WORLDS:
        raise Misuse(f"unknown world {name!r}; there are {' and '.join(WORLDS)}")
    dates = WORLDS[name]
    until_s = dates.train_s[1] if span is Span.TRAIN else dates.test_s[1]
    kinds = {kind.machine_type: kind for kind in CURRENT_IN_2016 if eligible(kind)}
    points = {SPRING.name: _events, SUMMER.name: _grid}[name](folder)
    series = {}
    for (zone, machine_type), (times_s, usd) in points.items():
        inside = times_s < until_s
        if zone in dates.zones and machine_type in kinds and inside.any() and times_s[0] < dates.train_s[1]:
            series[zone, machine_type] = _changes(times_s[inside], usd[inside])
    if not series:
        raise Misuse(f"{folder} has no prices of the {name} world")
    return PriceWorld(dates, span, kinds, series, until_s)


def _changes(times_s: Floats, usd: Floats) -> tuple[Floats, Floats]:
    """Return the points at which the price differs from the one before."""
    kept = np.concatenate(([True], np.diff(usd) != 0.0))
    return times_s[kept], usd[kept]


Points = dict[tuple[str, str], tuple[Floats, Floats]]


def _events(folder: Path) -> Points:
    """Read a history of changes; of several prices at one time the last counts."""
    found: dict[tuple[str, str], dict[float, float]] = {}
    for row in _rows(folder / "2016_feb_apr.csv.gz", ("timestamp_utc", "availability_zone", "instance_type")):
        at = datetime.fromisoformat(row["timestamp_utc"]).replace(tzinfo=UTC).timestamp()
        found.setdefault((row["availability_zone"], row["instance_type"]), {})[at] = float(row["price_usd_per_hour"])
    return {
        key: (np.array(sorted(prices)), np.array([prices[at] for at in sorted(prices)]))
        for key, prices in found.items()
    }


def _grid(folder: Path) -> Points:
    """Read prices at equal steps, whose start is in a table beside them."""
    starts = {
        (row["availability_zone"], row["instance_type"]): (
            datetime.fromisoformat(row["start_utc"]).replace(tzinfo=UTC).timestamp(),
            float(row["step_s"]),
        )
        for row in _rows(folder / "2016_jun_sep_grid5min_series.csv", ("start_utc", "step_s"))
    }
    found: dict[tuple[str, str], list[tuple[int, float]]] = {}
    for row in _rows(folder / "2016_jun_sep_grid5min.csv.gz", ("sample", "availability_zone", "instance_type")):
        key = row["availability_zone"], row["instance_type"]
        found.setdefault(key, []).append((int(row["sample"]), float(row["price_usd_per_hour"])))
    points = {}
    for key, rows in found.items():
        samples, usd = np.array(sorted(rows)).T
        points[key] = starts[key][0] + starts[key][1] * samples, usd
    return points


def _rows(file: Path, columns: tuple[str, ...]) -> list[dict[str, str]]:
    wanted = (*columns, "price_usd_per_hour") if file.suffix == ".gz" else columns
    opens: Callable[..., gzip.GzipFile] = gzip.open if file.suffix == ".gz" else open  # type: ignore[assignment]
    try:
        with opens(file, "rt", encoding="utf-8", newline="") as opened:
            reader = csv.DictReader(opened)  # type: ignore[arg-type]
            missing = [name for name in wanted if name not in (reader.fieldnames or ())]
            if missing:
                raise Misuse(f"{file} has no column {missing[0]}: prices are USD per hour, in price_usd_per_hour")
            return list(reader)
    except FileNotFoundError as error:
        raise Misuse(f"{file} does not exist: pass the folder of the AWS price histories") from error
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise Misuse(f"cannot read {file}: {error}") from error


# ---------------------------------------------------------------------------------------------------- what arms see of it


def markets(
    world: PriceWorld, zone: str, since_s: float, horizon_s: float, startup_s: float = 0.0
) -> tuple[SimulatedMarket, ...]:
    """Return what a zone sells from a moment on, which becomes time 0: spot machines with bids, and two types on demand.

    Args:
        world: the prices.
        zone: one of its zones.
        since_s: the moment [Unix seconds].
        horizon_s: prices after it are left out [s].
        startup_s: from an order to the start of a machine [s].
    """
    found = []
    for kind in world.types(zone):
        times_s, usd = world.series[zone, kind.machine_type]
        first = max(int(times_s.searchsorted(since_s, "right")) - 1, 0)
        last = max(int(times_s.searchsorted(since_s + horizon_s)), first + 1)
        prices = ValueSeries(np.maximum(times_s[first:last] - since_s, 0.0), usd[first:last])
        found.append(_market(kind, zone, Reliability.TRANSIENT, prices, startup_s))
    steady = [
        _market(kind, zone, Reliability.RELIABLE, ValueSeries.constant(kind.on_demand_usd_per_hour), startup_s)
        for kind in (C4, SERVER_KIND)
    ]
    return (*found, *steady)


def _market(
    kind: MachineKind, zone: str, reliability: Reliability, prices: ValueSeries, startup_s: float
) -> SimulatedMarket:
    spot = reliability is Reliability.TRANSIENT
    return SimulatedMarket(
        kind.machine_type,
        zone,
        reliability,
        prices,
        kind.on_demand_usd_per_hour,
        Seconds(0.0),
        allocate_s=(startup_s, startup_s),
        bid=spot,
        refund=spot,
        cpus=float(kind.cores),
        billing=HOURLY,
    )


def odds(world: PriceWorld, zone: str, deltas_usd: Floats, span_s: tuple[float, float]) -> EvictionTable:
    """Return the eviction odds of a zone's types, learnt from a span of its prices [Unix seconds]."""
    learnt = {}
    moments_s = np.arange(*span_s, MOMENTS_EVERY_S)
    for kind in world.types(zone):
        times_s, usd = world.series[zone, kind.machine_type]
        known = times_s < span_s[1]
        # The last price holds until the span's end.
        ends_s, end_usd = np.append(times_s[known], span_s[1]), np.append(usd[known], usd[known][-1])
        key = (SOURCE, kind.machine_type, zone, Reliability.TRANSIENT)
        learnt[key] = price_evictions.learn(ends_s, end_usd, moments_s, deltas_usd)
    return price_evictions.table(learnt)


def validating_s(dates: WorldDates) -> float:
    """Return where the months to learn from are cut, for choosing constants [Unix seconds]."""
    return dates.train_s[0] + LEARNT_SHARE * (dates.train_s[1] - dates.train_s[0])


def cheapest_share(
    world: PriceWorld, zone: str, span_s: tuple[float, float], step_s: float = 300.0
) -> dict[str, float]:
    """Return for which share of a span each type of a zone had the lowest price per core."""
    moments_s = np.arange(*span_s, step_s)
    kinds = world.types(zone)
    per_core = np.stack(
        [
            usd[np.maximum(times_s.searchsorted(moments_s, "right") - 1, 0)] / kind.cores
            for kind in kinds
            for times_s, usd in (world.series[zone, kind.machine_type],)
        ]
    )
    best = per_core.argmin(axis=0)
    return {kind.machine_type: float(np.mean(best == place)) for place, kind in enumerate(kinds)}
