"""Slices of traces: their text, what is in them, and that they are the same each time."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.simulation.shared_data import DATA, needs_data
from windfall.errors import Misuse
from windfall.market import MachineEndCause
from windfall.simulation.traces import trace_format
from windfall.simulation.traces.trace_events import (
    ClockKind,
    Content,
    Count,
    Event,
    MachineEnded,
    MachineStarted,
    Price,
    SamplingKind,
    Series,
    TracedLifetime,
    TraceHeader,
    WatchedUntil,
)
from windfall.simulation.traces.trace_slices import TraceSlice, cut, parse_slice

A, B = Series("m4", "zone-a"), Series("m4", "zone-b")
C = Series("c1", "zone-a", "Linux/UNIX (VPC)")
HOUR = 3600.0


def _write(path: Path, *events: Event, clock: ClockKind = ClockKind.START) -> Path:
    trace_format.write(path, TraceHeader("made", tuple(Content), clock, SamplingKind.CHANGES), events)
    return path


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a/b.json", TraceSlice(Path("a/b.json"))),
        ("../a.json", TraceSlice(Path("../a.json"))),
        ("../a.json:us-west-2a", TraceSlice(Path("../a.json"), "us-west-2a")),
        ("a.json:us-west-2a:2h..30h", TraceSlice(Path("a.json"), "us-west-2a", since="2h", until="30h")),
        ("a.json:2h..", TraceSlice(Path("a.json"), since="2h")),
        ("a.json:..1h30m", TraceSlice(Path("a.json"), until="1h30m")),
        ("a.csv.gz:m4.xlarge@us-east-1a", TraceSlice(Path("a.csv.gz"), "us-east-1a", "m4.xlarge")),
        ("a.csv:m4.xlarge@", TraceSlice(Path("a.csv"), None, "m4.xlarge")),
        ("a.csv:m1@z,Linux/UNIX (VPC):1h..2h", TraceSlice(Path("a.csv"), "z", "m1", "Linux/UNIX (VPC)", "1h", "2h")),
        (
            "a.csv:z:2016-05-06..2016-05-08T12:30Z",
            TraceSlice(Path("a.csv"), "z", None, None, "2016-05-06", "2016-05-08T12:30Z"),
        ),
        ("a.csv:2016-05-06T01:00:00..", TraceSlice(Path("a.csv"), since="2016-05-06T01:00:00")),
    ],
)
def test_a_slice_has_a_text(text: str, expected: TraceSlice) -> None:
    """File, type, zone, product, from and to are read from one word, and written as the same word."""
    assert parse_slice(text) == expected
    assert str(expected) == text


@pytest.mark.parametrize("text", ["a.csv:zone:2..3", "a.csv:1h..noon", "a.csv:z:1h...2h", "a.csv:2016-05..2017"])
def test_a_stretch_of_time_that_is_none_is_refused(text: str) -> None:
    """From and to are durations with units, or dates."""
    with pytest.raises(Misuse, match=r"is not a time range: write 2h\.\.30h"):
        parse_slice(text)


def test_a_file_with_such_a_name_is_that_file(tmp_path: Path) -> None:
    """What exists under the whole text is meant, colons or not."""
    path = tmp_path / "odd:2h..3h"
    path.touch()

    assert parse_slice(str(path)) == TraceSlice(path)


def test_a_slice_begins_with_what_held_and_ends_where_it_ends(tmp_path: Path) -> None:
    """Its times count from its start; the value of before comes first, at 0."""
    path = _write(
        tmp_path / "t.jsonl",
        Count(0, A, 3),
        Count(2 * HOUR, A, 1),
        Count(5 * HOUR, A, 2),
        WatchedUntil(9 * HOUR, A, Content.COUNTS),
    )

    assert list(parse_slice(f"{path}:zone-a:3h..6h")) == [
        Count(0.0, A, 1),
        Count(2 * HOUR, A, 2),
        WatchedUntil(3 * HOUR, A, Content.COUNTS),
    ]
    assert list(parse_slice(f"{path}:2h..3h")) == [Count(0.0, A, 1), WatchedUntil(HOUR, A, Content.COUNTS)]
    assert list(parse_slice(f"{path}:6h..7h")) == [Count(0.0, A, 2), WatchedUntil(HOUR, A, Content.COUNTS)]


def test_zones_that_follow_one_another_in_the_file_are_joined_by_time(tmp_path: Path) -> None:
    """A file may hold one zone after the other: the slice of all runs through time once."""
    path = _write(
        tmp_path / "t.jsonl",
        Price(100, A, 1.0),
        Price(300, A, 1.1),
        Price(0, B, 2.0),
        Price(200, B, 2.1),
        Price(300, B, 2.2),
    )

    assert [(event.at_s, event.series) for event in TraceSlice(path) if isinstance(event, Price)] == [
        (0.0, B),
        (100.0, A),
        (200.0, B),
        (300.0, A),
        (300.0, B),
    ]


def test_type_and_product_choose(tmp_path: Path) -> None:
    """A zone's series are told apart by type and product."""
    path = _write(tmp_path / "t.jsonl", Price(0, A, 1.0), Price(0, C, 3.0), Price(60, C, 3.1))

    assert {event.series for event in parse_slice(f"{path}:c1@zone-a")} == {C}
    assert {event.series for event in parse_slice(f"{path}:zone-a,Linux/UNIX (VPC)")} == {C}
    assert {event.series for event in parse_slice(f"{path}:zone-a")} == {A, C}


def test_machines_that_are_there_at_the_start_come_at_its_start(tmp_path: Path) -> None:
    """Whoever came before and was not taken is there at 0; whoever was taken before never appears."""
    path = _write(
        tmp_path / "t.jsonl",
        MachineStarted(0, A, "a"), MachineStarted(0, A, "b"), MachineEnded(60, A, "a"), MachineStarted(120, A, "c"),
        MachineEnded(180, A, "b"),
    )  # fmt: skip

    assert list(parse_slice(f"{path}:90s..150s")) == [
        MachineStarted(0.0, A, "b"),
        MachineStarted(30.0, A, "c"),
        WatchedUntil(60.0, A, Content.MACHINES),
    ]


def test_lives_are_cut_off_where_the_slice_ends(tmp_path: Path) -> None:
    """A life that began in the slice and ended beyond it is censored at its end; one that began before is not in it."""
    path = _write(
        tmp_path / "t.jsonl",
        TracedLifetime(0, A, 500, MachineEndCause.PREEMPTED, "a"),
        TracedLifetime(100, A, 150, MachineEndCause.PREEMPTED, "b"),
        TracedLifetime(120, A, 400, MachineEndCause.PREEMPTED, "c"),
    )

    assert list(parse_slice(f"{path}:60s..200s")) == [
        TracedLifetime(40.0, A, 90.0, MachineEndCause.PREEMPTED, "b"),
        TracedLifetime(60.0, A, 140.0, None, "c"),
    ]


def test_a_trace_with_dates_is_cut_by_dates_and_from_its_first_moment(tmp_path: Path) -> None:
    """Durations count from the first moment of the whole trace, so that all zones have the same hours."""
    day = 1_462_492_800.0  # 2016-05-06T00:00Z
    path = _write(
        tmp_path / "t.jsonl",
        Price(day + HOUR, A, 1.0),
        Price(day + 3 * HOUR, A, 1.5),
        Price(day, B, 9.0),
        clock=ClockKind.UTC,
    )

    by_date = list(parse_slice(f"{path}:zone-a:2016-05-06T02:00..2016-05-06T03:00Z"))
    assert by_date == list(parse_slice(f"{path}:zone-a:2h..3h"))
    assert by_date == [Price(0.0, A, 1.0), Price(HOUR, A, 1.5), WatchedUntil(HOUR, A, Content.PRICES)]


@pytest.mark.parametrize(
    ("part", "words"),
    [
        ("zone-c", "the trace has no zone 'zone-c'; did you mean zone-"),
        ("m5@zone-a", "the trace has no machine type 'm5'; choose one of c1, m4"),
        ("c1@zone-b", "the trace has no c1 in zone-b"),
        ("0h..9h", "0h..9h reaches beyond the trace, which is 2 h long"),
        ("3h..", "3h.. is empty: it ends before it starts"),
        ("1h..1h", "1h..1h is empty"),
        ("2016-05-06..", "the trace has no dates"),
    ],
)
def test_what_is_not_in_the_trace_is_refused(part: str, words: str, tmp_path: Path) -> None:
    """A zone, type or stretch of time that the trace does not have is named, with what it has."""
    path = _write(tmp_path / "t.jsonl", Count(0, A, 1), Count(2 * HOUR, A, 2), Count(0, B, 1), Count(0, C, 1))

    with pytest.raises(Misuse) as raised:
        list(parse_slice(f"{path}:{part}"))
    assert str(raised.value).startswith(f"{path}: ")
    assert words in str(raised.value)


def test_too_many_series_are_not_joined(tmp_path: Path) -> None:
    """Each series of a slice is read on its own, so their number is bounded, and the user is told how to name one."""
    path = _write(tmp_path / "t.jsonl", *(Price(0, Series(f"m{number}", "z"), 1.0) for number in range(65)))

    with pytest.raises(Misuse, match="this slice has 65 series, more than 64: name one as TYPE@ZONE"):
        cut(TraceSlice(path))


def test_a_price_list_has_no_slices(tmp_path: Path) -> None:
    """What has no time cannot be cut by it."""
    path = tmp_path / "list.csv"
    path.write_text("instance_type,on_demand_usd_per_hour\nm4,0.2\n")

    with pytest.raises(Misuse, match="a price list has no times"):
        cut(TraceSlice(path))


@given(
    st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 5)), min_size=1, max_size=20),
    st.tuples(st.integers(0, 1000), st.integers(0, 1000)).map(sorted),
)
@settings(max_examples=60)
def test_a_slice_holds_at_each_moment_what_the_trace_holds(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[int, int]], span: list[int]
) -> None:
    """Whatever is cut out, the count at a moment of the slice is the count of the trace at that moment."""
    folder = tmp_path_factory.mktemp("slice")
    since, until = span
    events = [Count(float(at), A, count) for at, count in sorted(changes, key=lambda one: one[0])]
    path = _write(folder / "t.jsonl", Count(0.0, A, 9), *events, WatchedUntil(1001.0, A, Content.COUNTS))
    if since == until:
        until += 1

    piece = list(TraceSlice(path, since=f"{since}s", until=f"{until}s"))

    assert list(TraceSlice(path, since=f"{since}s", until=f"{until}s")) == piece
    assert all(now.at_s <= later.at_s for now, later in itertools.pairwise(piece))
    for moment in range(since, until, 37):
        assert _held(piece, moment - since) == _held([Count(0.0, A, 9), *events], moment)


def _held(events: list[Event], at_s: float) -> int:
    return [event.count for event in events if isinstance(event, Count) and event.at_s <= at_s][-1]


@needs_data
def test_a_slice_of_a_public_trace_is_the_same_each_time_and_survives_conversion(tmp_path: Path) -> None:
    """Twice the same events; and the slice of the converted file is the slice of the original."""
    path = DATA / "parcae_p3" / "p3trace.csv"
    trace_format.write(tmp_path / "p3.jsonl.gz", cut(TraceSlice(path)).header, cut(TraceSlice(path)).trace.events())

    once, again = list(parse_slice(f"{path}:1h..3h")), list(parse_slice(f"{path}:1h..3h"))
    converted = list(parse_slice(f"{tmp_path / 'p3.jsonl.gz'}:1h..3h"))

    assert once == again == converted
    assert sum(isinstance(event, MachineStarted) and event.at_s == 0.0 for event in once) > 10
    assert once[-1] == WatchedUntil(2 * HOUR, Series("", ""), Content.MACHINES)
