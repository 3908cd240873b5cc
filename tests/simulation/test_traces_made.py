"""Traces that are made up, or exported from the live system: what they hold, and that a seed is one trace."""

from __future__ import annotations

import itertools
import math
import random
import statistics
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import trace_generators
from windfall import codec
from windfall.events import Row
from windfall.fleet import (
    Lifetime,
    MachineReported,
    MachinesMissing,
    MachinesObserved,
    MachineStatus,
    OffersChanged,
    OffersObserved,
    PreemptionRequested,
    PreemptMachine,
    Report,
)
from windfall.market import Machine, MachineEndCause, MachineLifecycle, Offer
from windfall.simulation.traces import journal_export, trace_format
from windfall.simulation.traces.trace_events import (
    Content,
    Count,
    Event,
    MachineEnded,
    MachineStarted,
    Price,
    Series,
    TracedLifetime,
    WatchedUntil,
)
from windfall.simulation.traces.trace_reader import open_trace
from windfall.simulation.traces.trace_slices import TraceSlice
from windfall.simulation.traces.trace_survey import survey, survey_of
from windfall.structs import replace
from windfall.terms import Instant, NoticeLevel, Reliability, Seconds, Term, WallTime

S = Series("m4", "zone-a")
T0 = 1_790_000_000.0


def _uniforms(seed: int) -> Iterator[float]:
    stream = random.Random(seed)
    while True:
        yield stream.random() or 0.5


def _exponential(mean_s: float) -> trace_generators.InverseSurvival:
    return lambda uniform: -mean_s * math.log(uniform)


def _weibull(scale_s: float, shape: float) -> trace_generators.InverseSurvival:
    return lambda uniform: scale_s * (-math.log(uniform)) ** (1.0 / shape)


# --------------------------------------------------------------------------------------------------------- made up


@pytest.mark.parametrize(
    ("inverse", "mean_s"),
    [
        (_exponential(3600.0), 3600.0),
        (_weibull(3600.0, 2.0), 3600.0 * math.gamma(1.5)),
        (lambda u: 86_400 * (1 - u), 43_200.0),
    ],
    ids=["exponential", "weibull", "uniform"],
)
def test_lives_follow_the_model_they_are_given(inverse: trace_generators.InverseSurvival, mean_s: float) -> None:
    """Ten thousand lives drawn through an inverse survival function have the model's mean."""
    lifetimes = list(trace_generators.sample_lifetimes(inverse, itertools.islice(_uniforms(7), 10_000), S))

    assert statistics.mean(lifetime.lifetime_s for lifetime in lifetimes) == pytest.approx(mean_s, rel=0.03)
    assert len({lifetime.machine for lifetime in lifetimes}) == 10_000


def test_lives_beyond_what_was_watched_are_censored() -> None:
    """Nobody sees the end of a life that is longer than the watch."""
    lifetimes = list(trace_generators.sample_lifetimes(lambda u: 1000 * u, [0.2, 0.9], S, watched_s=500.0))

    assert [(lifetime.lifetime_s, lifetime.end) for lifetime in lifetimes] == [
        (200.0, MachineEndCause.PREEMPTED),
        (500.0, None),
    ]


def test_a_slot_has_one_machine_after_the_other() -> None:
    """Each machine is taken after its life, the next comes after the wait, and the trace ends at its horizon."""
    events = list(trace_generators.slot(lambda u: 1000 * u, [0.1, 0.3, 0.9], S, horizon_s=600.0, replaced_after_s=50.0))

    assert events == [
        MachineStarted(0.0, S, "m1"), MachineEnded(100.0, S, "m1"), MachineStarted(150.0, S, "m2"),
        MachineEnded(450.0, S, "m2"), MachineStarted(500.0, S, "m3"),
        WatchedUntil(600.0, S, Content.MACHINES),
    ]  # fmt: skip


def test_availability_has_the_share_that_renewals_tend_to() -> None:
    """Ten machines, up 3 h and down 1 h on average, are there for three quarters of the time."""
    events = trace_generators.availability(
        _exponential(3 * 3600.0), _weibull(3600.0 / math.gamma(1.5), 2.0), _uniforms(3), S, machines=10, horizon_s=4e6
    )
    (stats,) = survey_of(enumerate(events), trace_generators.header(Content.COUNTS)).stats

    assert stats.mean == pytest.approx(7.5, rel=0.02)
    assert (stats.last_s, stats.highest) == (4e6, 10)
    assert stats.lowest is not None
    assert stats.lowest >= 0


def test_prices_return_to_their_mean_and_spike() -> None:
    """Without spikes the price's mean is the model's; with spikes it jumps by their factor, never above the cap."""
    calm = trace_generators.PriceModel(0.3, sigma=0.4, memory_s=3600.0, spikes_per_day=0.0)
    wild = trace_generators.PriceModel(0.3, sigma=0.0, spikes_per_day=3.0, spike_factor=6.0, cap_usd_per_hour=1.5)

    quiet = [event.usd_per_hour for event in _prices(calm, 60 * 86_400.0)]
    spiky = {event.usd_per_hour for event in _prices(wild, 10 * 86_400.0)}

    assert statistics.mean(quiet) == pytest.approx(0.3, rel=0.05)
    assert statistics.pstdev([math.log(price) for price in quiet]) == pytest.approx(0.4, rel=0.05)
    assert spiky == {0.3, 1.5}


def _prices(model: trace_generators.PriceModel, horizon_s: float) -> list[Price]:
    made = trace_generators.prices(model, random.Random(11), S, horizon_s=horizon_s)
    return [event for event in made if isinstance(event, Price)]


def test_a_seed_is_one_trace() -> None:
    """The same chance gives the same events; another seed others."""

    def made(seed: int) -> list[Event]:
        up, down = _exponential(7200.0), _exponential(1800.0)
        return [
            *trace_generators.prices(trace_generators.PriceModel(0.3), random.Random(seed), S, horizon_s=86_400.0),
            *trace_generators.availability(up, down, _uniforms(seed), S, machines=3, horizon_s=86_400.0),
        ]

    assert made(1) == made(1)
    assert made(1) != made(2)


def test_made_up_traces_are_traces_like_any_other(tmp_path: Path) -> None:
    """They are written, read, checked and sliced."""
    path = tmp_path / "made.jsonl.gz"
    events = list(
        trace_generators.availability(
            _exponential(7200), _exponential(1800), _uniforms(5), S, machines=3, horizon_s=1e5
        )
    )
    trace_format.write(path, trace_generators.header(Content.COUNTS), events)

    assert list(open_trace(path).events()) == events
    piece = list(TraceSlice(path, since="2h", until="5h"))
    assert isinstance(piece[0], Count)
    assert piece[-1] == WatchedUntil(10_800.0, S, Content.COUNTS)


def test_the_same_events_are_the_same_bytes(tmp_path: Path) -> None:
    """A written trace has no name and no time in it, so that it can be compared and cached by its bytes."""
    first, second = tmp_path / "a.jsonl.gz", tmp_path / "b.jsonl.gz"
    for path in (first, second):
        trace_format.write(path, trace_generators.header(Content.COUNTS), [Count(0.0, S, 1)])

    assert first.read_bytes() == second.read_bytes()


# ------------------------------------------------------------------------------------------------- the live system


def _machine(
    name: str, started: float | None, ended: float | None = None, cause: MachineEndCause | None = None
) -> Machine:
    lifetime = (
        MachineLifecycle.GONE
        if ended is not None
        else MachineLifecycle.PENDING
        if started is None
        else MachineLifecycle.RUNNING
    )
    began_, ended_ = (None if at is None else WallTime(T0 + at) for at in (started, ended))
    return Machine(
        name, "me", "job", "job-1", "local", "m4", "zone-a", Reliability.TRANSIENT, 0.3, lifetime, began_, ended_, cause
    )


def _offer(price: float, reliability: Reliability = Reliability.TRANSIENT) -> Offer:
    return Offer("local", "m4", "zone-a", price, 1.2, reliability, Seconds(30.0), WallTime(T0))


def _row(number: int, at: float, *facts: object, commands: tuple[object, ...] = ()) -> Row:
    return Row(Term(1), number, Instant(T0 + at), WallTime(T0 + at), facts, (), commands)  # type: ignore[arg-type]


def _heard(name: str) -> MachineReported:
    report = Report(name, 1, "x", MachineStatus.TRAINING, level=NoticeLevel.ANNOUNCED, preemption_in_s=Seconds(30.0))
    return MachineReported(report, "direct", Instant(T0 + 130))


@pytest.fixture
def rows() -> list[Row]:
    """A job's journal: a price that moved, and six machines that ended in six ways."""
    names = ("taken", "rehearsed", "wanted", "released", "missing", "running")
    take = PreemptMachine("rehearsed", "local", Seconds(30.0))
    taken, rehearsed = (
        _machine(name, 15 + place, 130 + place, MachineEndCause.PREEMPTED) for place, name in enumerate(names[:2])
    )
    wanted, released = (
        _machine("wanted", 17, 132, MachineEndCause.PREEMPTED),
        _machine("released", 18, 145, MachineEndCause.RELEASED),
    )
    return [
        _row(1, 0, OffersObserved((_offer(0.3), _offer(1.2, Reliability.RELIABLE)))),
        _row(2, 10, MachinesObserved((*(_machine(name, None) for name in names), _machine("never", None)))),
        _row(3, 20, MachinesObserved(tuple(_machine(name, 15 + place) for place, name in enumerate(names)))),
        _row(4, 90, OffersObserved((_offer(0.3), _offer(1.3, Reliability.RELIABLE))), commands=(take,)),
        _row(5, 100, _heard("taken"), PreemptionRequested("wanted", None, "ada"), OffersObserved((_offer(0.35),))),
        _row(6, 140, MachinesObserved((taken, rehearsed))),
        _row(7, 150, MachinesObserved((wanted, released))),
        _row(8, 160, MachinesMissing(("missing", "never"))),
        _row(9, 200),
    ]  # fmt: skip


def test_a_journal_of_differences_tells_the_same_prices(rows: list[Row]) -> None:
    """A price that is journaled alone is the price of the offer as it was observed last."""
    heard, wanted, _ = rows[4].facts
    key = _offer(0.3).key
    fewer = replace(rows[4], facts=(heard, wanted, OffersChanged(prices=((*key, 0.35),))))
    changed = [*rows[:4], fewer, *rows[5:]]
    told = [event for event in journal_export.export(changed) if isinstance(event, Price)]

    assert told == [event for event in journal_export.export(rows) if isinstance(event, Price)]
    assert [price.usd_per_hour for price in told] == [0.3, 0.35]


def test_a_journal_tells_the_lives_of_its_machines(rows: list[Row]) -> None:
    """Only what the market took counts as preempted; rehearsals, releases and whoever lives on are censored."""
    lifetimes = {event.machine: event for event in journal_export.export(rows) if isinstance(event, TracedLifetime)}

    assert {name: (lifetime.lifetime_s, lifetime.end, lifetime.announced) for name, lifetime in lifetimes.items()} == {
        "taken": (115.0, MachineEndCause.PREEMPTED, True),
        "rehearsed": (115.0, MachineEndCause.RELEASED, False),
        "wanted": (115.0, MachineEndCause.RELEASED, False),
        "released": (127.0, MachineEndCause.RELEASED, False),
        "missing": (141.0, None, False),
        "running": (180.0, None, False),
    }
    assert [lifetime.machine for lifetime in lifetimes.values() if not lifetime.censored] == ["taken"]
    assert lifetimes["taken"].series == Series("m4", "zone-a", "local")


def test_a_journal_tells_the_spot_prices_when_they_changed(rows: list[Row]) -> None:
    """Each change of a spot price is one event, with the on-demand price beside it, until the journal's end."""
    series = Series("m4", "zone-a", "local")

    assert [event for event in journal_export.export(rows) if not isinstance(event, TracedLifetime)] == [
        Price(T0, series, 0.3, 1.2),
        Price(T0 + 100, series, 0.35, 1.2),
        WatchedUntil(T0 + 200, series, Content.PRICES),
    ]


def test_the_lines_of_a_journal_are_a_trace(rows: list[Row], tmp_path: Path) -> None:
    """What `windfall events JOB --json` prints is read, and kept by our format."""
    path, out = tmp_path / "job.jsonl", tmp_path / "out.jsonl"
    path.write_text("".join(f"{codec.row_to_line(row)}\n" for row in rows))
    trace = open_trace(path)
    events = list(trace.events())
    trace_format.write(out, trace.header, events)

    assert events == list(journal_export.export(rows))
    assert list(open_trace(out).events()) == events
    assert survey(open_trace(out)).events == 8


def test_the_pool_of_lives_is_exported(tmp_path: Path) -> None:
    """The installation's lives become a trace, oldest first; who still runs is censored now."""

    def lifetime(name: str, started: float, ended: float | None, *, preempted: bool) -> Lifetime:
        ended_ = None if ended is None else WallTime(T0 + ended)
        return Lifetime(name, "aws", "m4", "zone-a", WallTime(T0 + started), ended_, preempted, preempted)

    pool = [
        lifetime("b", 50, 90, preempted=True),
        lifetime("c", 60, None, preempted=False),
        lifetime("a", 0, 70, preempted=False),
    ]
    lifetimes = journal_export.export_lifetimes(pool, WallTime(T0 + 100))
    trace_format.write(tmp_path / "pool.jsonl", journal_export.POOL, lifetimes)

    assert [(one.machine, one.lifetime_s, one.end) for one in lifetimes] == [
        ("a", 70.0, MachineEndCause.RELEASED),
        ("b", 40.0, MachineEndCause.PREEMPTED),
        ("c", 40.0, None),
    ]
    assert tuple(open_trace(tmp_path / "pool.jsonl").events()) == lifetimes


def test_a_journal_that_was_cut_off_is_refused(rows: list[Row], tmp_path: Path) -> None:
    """Half a line at the end is said to be one."""
    path = tmp_path / "job.jsonl"
    path.write_text("\n".join(codec.row_to_line(row) for row in rows)[:-9])

    with pytest.raises(Exception, match=r"job\.jsonl:9: this line is not a journal row: the file is truncated"):
        list(open_trace(path).events())
