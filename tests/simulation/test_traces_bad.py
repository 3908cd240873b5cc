"""Bad traces: each is refused in one sentence with file and line and exit code 2, or streamed and reported."""

from __future__ import annotations

import gzip
import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.traces_run import run
from windfall import codec
from windfall.events import Row
from windfall.simulation.traces.trace_reader import open_trace
from windfall.simulation.traces.trace_survey import survey
from windfall.terms import Instant, Term, WallTime

AWS = "timestamp_utc,availability_zone,instance_type,price_usd_per_hour\n"
AT = "2016-05-06T00:0{}:00Z,us-east-1a,m4.xlarge,{}\n"
GOOGLE = (
    "vm,launch_batch,zone,machine_type,insert_start,insert_end,preempted_at,stop_start,stop_end,end_event,lifetime_s,"
    "end_day_of_week,end_hour_local,load\n"
)
LIFETIMES = "machine,machine_type,zone,began_utc,lifetime_s,preempted\n"
TICKS = '{"metadata": {"gap_seconds": 300}, "data": [1, 1, 0, 1], "prices": [0.5, 0.5, 0.6, 0.6]}'
HEADER = '{"is": "trace", "version": 1, "clock": "start", "content": ["counts"]}\n'
UTC = '{"is": "trace", "version": 1, "clock": "utc", "content": ["prices"]}\n'
END = '{"is": "end", "events": 1}\n'
SEGMENT = '[{}, "{}", {{"nodes": {}, "duration": 60000}}]\n'


def _vm(
    name: str = "a1", started: str = "08:00", ended: str = "09:00", end: str = "preempted", lifetime: object = 3600
) -> str:
    day = "2019-02-18T"
    return f"{name},a,us-west1-a,n1,{day}{started}:00-08:00,,{day}{ended}:00-08:00,,,{end},{lifetime},Monday,9,idle\n"


def _count(text: str) -> str:
    return HEADER + text + "\n" + END


# (file name, what is in it, line of the fault or None, words of the sentence)
BAD: list[tuple[str, str, int | None, str]] = [
    ("empty.csv", "", None, "the file is empty"),
    ("blank.csv", "\n \n", None, "the file is empty"),
    ("header_only.csv", AWS, None, "nothing after its first line"),
    ("prose.txt", "Dear reader\n", 1, "unknown trace format"),
    ("other.csv", "name,colour\na,b\n", 1, "no trace format has these columns: colour, name"),
    ("other.json", '{"name": 3}', 1, "unknown JSON: not a trace format"),
    # columns and fields
    ("misspelt.csv", AWS.replace("price_usd", "prise_usd"), 1, "column price_usd_per_hour is missing, and 'prise_usd"),
    ("unknown.csv", AWS.replace("\n", ",produkt\n"), 1, "unknown column 'produkt'; did you mean product?"),
    ("twice.csv", "sample,sample,instance_type\n1,1,a\n", 1, "the column 'sample' appears twice"),
    (
        "short.csv",
        AWS + AT.format(0, 0.1) + "2016-05-06T00:01:00Z,us-east-1a\n",
        3,
        "this row has 2 fields, the header 4",
    ),
    ("quote.csv", AWS + '2016-05-06T00:01:00Z,"us"east,m4,1\n', 2, "this line is not a row of a table"),
    # values
    ("nan.csv", AWS + AT.format(0, 0.1) + AT.format(1, "NaN"), 3, "price_usd_per_hour is 'NaN', which is not a number"),
    ("infinite.csv", AWS + AT.format(1, "inf"), 2, "which is not a number"),
    ("negative_price.csv", AWS + AT.format(1, -0.1), 2, "price_usd_per_hour is -0.1: it cannot be negative"),
    ("cents_of_cents.csv", AWS + AT.format(1, 33400), 2, "33400 USD/h: is it in another unit?"),
    ("no_zone.csv", AWS + AT.format(1, 1).replace("Z,", ","), 2, "without a time zone: write Z"),
    ("no_time.csv", AWS + "yesterday,us-east-1a,m4,1\n", 2, "'yesterday', which is not a time: write it as 2026"),
    ("unit.csv", "0,1\n300,2\n", None, "the unit of its times is unknown: give --unit"),
    ("half_seconds_count.csv", "0,1\n300,1.5\n", 2, "the count is 1.5: it must be a whole number"),
    # order, overlap, negative time
    (
        "order.csv",
        AWS + AT.format(5, 0.1) + AT.format(1, 0.2),
        3,
        "wrong order: this event is 240 s before the one above",
    ),
    ("negative_seconds_count.csv", "-60,1\n0,2\n", 1, "the time is -60 s: it cannot be negative"),
    ("backwards_seconds_count.csv", "0,1\n600,2\n300,1\n", 3, "wrong order: this event is 300 s before"),
    ("negative_life.csv", GOOGLE + _vm(ended="07:00", lifetime=3600), 2, "negative lifetime: preempted_at is before"),
    (
        "overlap.csv",
        GOOGLE + _vm() + _vm(started="08:30", lifetime=1800),
        3,
        "overlap: a1 is already running, by line 2",
    ),
    ("repeated_life.csv", GOOGLE + _vm() + _vm(), 3, "is a row repeated?"),
    (
        "late_first.csv",
        GOOGLE + _vm("a1", "08:30", lifetime=1800) + _vm("a2"),
        3,
        "this lifetime starts 1800 s before the one",
    ),
    ("end.csv", GOOGLE + _vm(end="preemted"), 2, "end_event is 'preemted'; did you mean preempted?"),
    ("preempted.csv", LIFETIMES + "a,m,z,2026-01-01T00:00:00Z,3600,maybe\n", 2, "preempted is 'maybe': write 1 or 0"),
    (
        "there.csv",
        "0,add,a\n60000,add,b\n120000,add,a\n180000,add,c\n240000,add,d\n300000,add,e\n",
        3,
        "a started already",
    ),
    (
        "gone.csv",
        "0,add,a\n60000,add,b\n120000,add,c\n180000,remove,x\n240000,add,d\n300000,add,e\n",
        4,
        "x ends here, but has not started",
    ),
    (
        "event.csv",
        "0,add,a\n60000,ad,b\n120000,add,c\n180000,add,x\n240000,add,d\n300000,add,e\n",
        2,
        "'ad' is not an event",
    ),
    ("minutes.txt", SEGMENT.format(0, "add", '["a"]') + SEGMENT.format(30000, "no-op", "[]"), 2, "overlap"),
    (
        "offset.txt",
        "2021-12-11, 11:11:30, 55\n2021-12-11, 11-13:10, 55\n",
        2,
        "2021-12-11 11-13:10 is not a date and time",
    ),
    (
        "move.txt",
        SEGMENT.format(0, "move", "[]"),
        1,
        "'move' is not an event: choose one of add, migration, no-op, remove",
    ),
    ("segment.txt", "[0, 1]\n", 1, "this is not a line of a segment"),
    # wrong units
    (
        "ms_seconds_count.csv",
        "".join(f"{60_000_000 * n},{n}\n" for n in range(8)),
        None,
        "if the times are in ms, give --unit ms",
    ),
    (
        "h_seconds_count.csv",
        "".join(f"{0.03 * n:.3f},{n}\n" for n in range(8)),
        None,
        "if the times are in h, give --unit h",
    ),
    (
        "life_ms.csv",
        GOOGLE + _vm(lifetime=3_600_000),
        2,
        "lifetime_s is 3.6e+06, but from insert_start to preempted_at",
    ),
    (
        "lives_h.csv",
        "machine_type,lifetime_s,preempted\n" + "".join(f"m,{2 + n},1\n" for n in range(8)),
        None,
        "the median lifetime is 5.5 s (5.5 s): if the times are in h",
    ),
    (
        "lives_ms.csv",
        "machine_type,lifetime_s,preempted\n" + "".join(f"m,{n + 1}0000000,1\n" for n in range(8)),
        None,
        "if the times are in ms, give --unit ms",
    ),
    # SkyPilot's ticks
    ("no_gap.json", '{"metadata": {}, "data": [1]}', None, "gap_seconds, the time between ticks, is missing"),
    (
        "ms_gap.json",
        TICKS.replace("300", "300000"),
        1,
        "gap_seconds is 300000, but ticks of a market are 1 s to 6 h apart",
    ),
    ("cut.json", TICKS[:60], 1, "the file is truncated"),
    ("cut_later.json", TICKS[:-2], 1, "the list does not end: the file is truncated"),
    ("uneven.json", TICKS.replace(", 0.6]", "]"), None, "data has 4 ticks and prices has 3"),
    ("nan.json", TICKS.replace("0, 1]", "NaN, 1]"), 3, "tick 3 of data is 'NaN', which is not a number"),
    ("nested.json", TICKS.replace("0, 1]", "[0], 1]"), 3, "which is not a number"),
    ("key.json", TICKS.replace('"prices"', '"price"'), 1, "unknown key 'price'; known keys are metadata, data, prices"),
    ("after.json", TICKS + " {}", 1, "there is text after the end"),
    ("no_ticks.json", '{"metadata": {"gap_seconds": 300}, "data": []}', None, "the list of counts is empty"),
    # our own format
    ("cut_off.jsonl", HEADER + '{"is": "count", "at_s": 0.0, "count": 3}\n', 2, "is missing: the file is truncated"),
    ("cut_in.jsonl", HEADER + '{"is": "count", "at_s"', 2, "this line is not JSON: the file is truncated"),
    ("lost.jsonl", HEADER + END, 2, "there are 0 events above, not 1: lines are missing"),
    ("more.jsonl", _count('{"is": "count", "at_s": 0.0, "count": 3}') + END, 4, "there are lines after the end"),
    (
        "newer.jsonl",
        HEADER.replace(": 1,", ": 2,"),
        None,
        "trace format 2 is newer than this Windfall reads (1): upgrade Windfall",
    ),
    ("clock.jsonl", HEADER.replace("start", "local"), 1, "'local' is not a valid ClockKind"),
    ("no_clock.jsonl", HEADER.replace('"clock": "start", ', ""), 1, "the header has no 'clock'"),
    ("kind.jsonl", _count('{"is": "counts", "at_s": 0.0}'), 2, "\"is\" is 'counts'; did you mean count?"),
    (
        "key.jsonl",
        _count('{"is": "count", "at": 0.0, "count": 1}'),
        2,
        "unknown key 'at' in a count; did you mean at_s?",
    ),
    ("needs.jsonl", _count('{"is": "count", "at_s": 0.0}'), 2, "a count needs count"),
    ("text.jsonl", _count('{"is": "count", "at_s": "0", "count": 1}'), 2, "at_s is '0', which is not a number"),
    ("nan.jsonl", _count('{"is": "count", "at_s": NaN, "count": 1}'), 2, "at_s is 'nan', which is not a number"),
    ("minus.jsonl", _count('{"is": "count", "at_s": -1, "count": 1}'), 2, "the time is -1 s: it cannot be negative"),
    ("list.jsonl", _count("[1]"), 2, "this line is not a JSON object"),
    (
        "end.jsonl",
        _count('{"is": "lifetime", "at_s": 1, "ended_s": 2, "end": "eaten"}'),
        2,
        "end is 'eaten'; choose one of",
    ),
    ("dies.jsonl", _count('{"is": "lifetime", "at_s": 9, "ended_s": 2}'), 2, "negative lifetime: it ends 7 s before"),
    (
        "utc_ms.jsonl",
        UTC + '{"is": "price", "at_s": 1456360534000, "usd_per_hour": 1}\n' + END,
        2,
        "not between the years 2000 and 2100: is it in milliseconds?",
    ),
    ("utc_start.jsonl", UTC + '{"is": "price", "at_s": 300, "usd_per_hour": 1}\n' + END, 2, "give seconds since 1970"),
    # the journal
    ("journal.jsonl", '{"version": 4, "row": {"type": "Row"}}\n', 1, "this line is not a journal row"),
    ("newer_journal.jsonl", '{"version": 99, "row": {}}\n', None, "the journal has version 99"),
]


@pytest.mark.parametrize(("name", "text", "line", "words"), BAD, ids=[one[0] for one in BAD])
def test_a_bad_trace_is_refused_in_one_sentence(
    name: str, text: str, line: int | None, words: str, tmp_path: Path
) -> None:
    """File and line come first, then what is wrong; the exit code is 2, and no half of an output is left."""
    path = tmp_path / name
    path.write_text(text, "utf-8")

    code, message = run("convert", path, tmp_path / "out.jsonl")

    assert code == 2
    assert words in message
    assert "\n" not in message
    if name != "newer_journal.jsonl":
        assert message.startswith(f"{path}: " if line is None else f"{path}:{line}: ")
    assert sorted(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (bytes(range(256)) * 10, ":1: not a trace: this is not"),
        (b"\x89PNG\r\n\x1a\n\x00\x00", ":1: not a trace: this is not"),
        (b"a,b\n\xff\xfe\n", ":1: not a trace: this is not"),
        (AWS.encode() + AT.format(0, 1).encode() * 3000 + b"\xff\n", ":3002: not a trace: this is not UTF-8 text"),
        (AWS.encode() + AT.format(0, 1).encode() * 3000 + b"\0\n", ":3002: not a trace: this is not text"),
        (b"1,2" * 4_000_000, ":1: not a trace: this line is longer than"),
        (b"\x1f\x8b\x08\x00garbage that is no gzip data at all", ":1: the gzip data is damaged"),
    ],
    ids=["bytes", "picture", "latin", "late byte", "late zero", "no line ends", "false gzip"],
)
def test_what_is_not_text_is_refused(raw: bytes, words: str, tmp_path: Path) -> None:
    """A binary file, wherever it stops being text, is refused with its line."""
    path = tmp_path / "trace.csv"
    path.write_bytes(raw)

    code, message = run("inspect", path)

    assert code == 2
    assert words in message


def _packed(rows: int) -> bytes:
    made = "".join(
        f"2016-05-06T{n // 60 % 24:02}:{n % 60:02}:{n // 1440:02}Z,z{n // 1440},m4,0.{n % 97 + 1}\n"
        for n in range(rows)
    )
    return gzip.compress((AWS + made).encode(), mtime=0)


@pytest.mark.parametrize("share", [0.3, 0.999])
def test_a_truncated_gzip_file_is_refused_with_the_line_where_it_ends(share: float, tmp_path: Path) -> None:
    """However little is missing, the trace is not taken for a shorter one."""
    path = tmp_path / "trace.csv.gz"
    whole = _packed(2_000)
    path.write_bytes(whole[: int(len(whole) * share)])

    code, message = run("inspect", path)

    assert code == 2
    assert message.startswith(f"{path}:")
    assert "the gzip file is truncated here: copy it again" in message


def test_a_gzip_file_with_a_flipped_bit_is_refused(tmp_path: Path) -> None:
    """Damaged data do not become other prices."""
    path = tmp_path / "trace.csv.gz"
    raw = bytearray(_packed(2_000))
    raw[len(raw) // 2] ^= 16
    path.write_bytes(raw)

    code, message = run("inspect", path)

    assert code == 2
    assert message.startswith(f"{path}:")


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    """A folder, and a name with nothing behind it, are named."""
    assert run("inspect", tmp_path) == (2, f"{tmp_path}: this is a folder: give one of its files")
    assert run("inspect", tmp_path / "no.csv") == (2, f"{tmp_path / 'no.csv'} does not exist")


GOOD = [
    ("a.csv", AWS + AT.format(0, 0.1) + AT.format(1, 0.2)),
    ("b.csv", GOOGLE + _vm() + _vm("a2")),
    ("c.csv", LIFETIMES + "a,m,z,2026-01-01T00:00:00Z,3600,1\n"),
    ("d_seconds_count.csv", "0,1\n300,2\n600,1\n"),
    ("e.csv", "".join(f"{60_000 * number},add,n{number}\n" for number in range(8))),
    ("f.txt", SEGMENT.format(0, "add", '["a"]') + SEGMENT.format(60000, "no-op", "[]")),
    ("zone_g.json", TICKS),
    ("h.jsonl", _count('{"is": "lifetime", "at_s": 1, "ended_s": 2, "end": "preempted"}')),
    ("i.txt", "2021-12-11, 11:11:30, 55\n2021-12-11, 11:13:10, 55\n"),
    ("j.csv", "instance_type,on_demand_usd_per_hour\nm4,0.2\n"),
    ("k.jsonl", codec.row_to_line(Row(Term(1), 1, Instant(1e9), WallTime(1e9), ())) + "\n"),
]
NOISE = [
    "",
    "\n",
    ",",
    '"',
    "-",
    "1e999",
    "[" * 5000,
    "{",
    "}",
    "\r",
    "\u00e9",
    "null",
    ":",
    "9" * 400,
    "\x00",
    "Z",
    "0",
]


@pytest.mark.parametrize(("name", "text"), GOOD, ids=[one[0] for one in GOOD])
def test_no_damage_makes_a_traceback(name: str, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever is cut out of a trace or put into it, it is read, or refused in one sentence."""
    stream, path = random.Random(name), tmp_path / name
    refused = 0
    for _ in range(60):
        begin = stream.randrange(len(text))
        end = min(len(text), begin + stream.choice([0, 1, 1, 5, 30]))
        path.write_text(text[:begin] + stream.choice(NOISE) + text[end:], "utf-8")

        code, message = run("inspect", path)

        assert code in (0, 2)
        assert "\n" not in message
        refused += code == 2
    assert refused > 10


def test_repeated_rows_are_left_out_and_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A source that repeats each row gives the same trace as one that does not, and the count of repeats."""
    path = tmp_path / "trace.csv"
    path.write_text(AWS + "".join(AT.format(n, 0.1) * 2 for n in range(3)))

    assert run("inspect", path) == (0, "")

    assert survey(open_trace(path)).events == 3
    assert "3 repeated events left out" in capsys.readouterr().out


def test_a_gap_is_streamed_and_told_with_its_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A silence in which the source would have spoken is a gap: its length, start, line and series are reported."""
    path = tmp_path / "trace.csv"
    path.write_text(AWS + AT.format(0, 0.1) + AT.format(1, 0.1) + "2016-05-09T12:00:00Z,us-east-1a,m4.xlarge,0.2\n")

    assert run("inspect", path) == (0, "")

    printed = capsys.readouterr().out
    assert "1 silence of more than 25 h 12 min, where data are missing" in printed
    assert "3.5 days from 2016-05-06T00:01Z, line 3 m4.xlarge us-east-1a" in printed


def test_a_missing_sample_of_a_grid_is_a_hole(tmp_path: Path) -> None:
    """A grid's times come from its numbers, so that a missing one shifts nothing."""
    (tmp_path / "grid_series.csv").write_text(
        "instance_type,availability_zone,samples,step_s,start_utc\nm4,z,5,300,2016-06-22T00:00:00Z\n"
    )
    path = tmp_path / "grid.csv"
    path.write_text("instance_type,availability_zone,sample,price_usd_per_hour\nm4,z,0,0.1\nm4,z,1,0.2\nm4,z,4,0.3\n")

    surveyed = survey(open_trace(path))

    assert (surveyed.span_s, surveyed.gaps[0].length_s, surveyed.gaps[0].line) == (1200.0, 900.0, 3)


def test_a_grid_without_its_side_file_is_refused(tmp_path: Path) -> None:
    """Samples without start and step have no time."""
    path = tmp_path / "grid.csv"
    path.write_text("instance_type,availability_zone,sample,price_usd_per_hour\nm4,z,0,0.1\n")

    code, message = run("inspect", path)

    assert (code, "grid_series.csv: this file is missing" in message) == (2, True)


@pytest.mark.parametrize(("unit", "step"), [("ms", 60_000), ("h", 0.05)])
def test_a_unit_that_nobody_says_is_concluded_and_told(
    unit: str, step: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Unlabelled times are taken in the only unit in which the market's steps make sense, with a note."""
    path = tmp_path / "trace.csv"
    path.write_text("".join(f"{step * n:.3f},{n % 3}\n" for n in range(9)))

    assert run("inspect", path) == (0, "")

    assert f"times read as {unit}, which makes the median step" in capsys.readouterr().out


def test_a_unit_can_be_given_and_is_refused_where_it_is_known(tmp_path: Path) -> None:
    """`--unit` decides for bare numbers; a format with dates refuses it, and so does one that does not exist."""
    bare, dated = tmp_path / "a.csv", tmp_path / "b.csv"
    bare.write_text("0,1\n2,2\n")
    dated.write_text(AWS + AT.format(0, 1))

    assert run("inspect", bare, "--unit", "m")[0] == 0
    assert run("inspect", bare, "--unit", "days") == (
        2,
        "--unit: 'days' is not a unit of time; choose one of ms, s, m, h",
    )
    assert "fixes the unit of its times" in run("inspect", dated, "--unit", "s")[1]


def test_series_without_end_are_refused_before_they_fill_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A column that is no zone (a number that grows) is not kept for ever."""
    monkeypatch.setattr("windfall.simulation.traces.trace_checks.SERIES_MAX", 100)
    path = tmp_path / "trace.csv"
    path.write_text(AWS + "".join(f"2016-05-06T00:00:00Z,z{n},m4,1\n" for n in range(200)))

    code, message = run("inspect", path)

    assert (code, "more than 100 types and zones" in message) == (2, True)


_STREAM = """
import json, resource, sys
from pathlib import Path
from windfall import codec
from windfall.events import Row
from windfall.simulation.traces.trace_reader import open_trace
from windfall.simulation.traces.trace_survey import survey
from windfall.terms import Instant, Term, WallTime
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
trace = open_trace(Path(sys.argv[1]))
print(json.dumps([survey(trace).events, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before]))
"""


def _peak_mib(path: Path) -> tuple[int, float]:
    done = subprocess.run([sys.executable, "-c", _STREAM, path], capture_output=True, text=True, check=True)
    events, grown_kib = json.loads(done.stdout)
    return events, grown_kib / 1024


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["prices", "ticks", "windfall"])
def test_a_file_larger_than_memory_is_streamed(kind: str, tmp_path: Path) -> None:
    """300 MB of a trace, unpacked, raise the peak memory by less than 24 MiB, whatever the format."""
    path = tmp_path / ("zone_type.json.gz" if kind == "ticks" else "big.csv.gz")
    size = 0
    with gzip.open(path, "wb", compresslevel=1) as file:
        if kind == "ticks":
            size += file.write(b'{"metadata": {"gap_seconds": 300}, "data": [1')
            block = b", 1" * 99_999 + b", 0"
        elif kind == "windfall":
            size += file.write(HEADER.encode())
            block = b'{"is": "lifetime", "at_s": 5.0, "ended_s": 3605.0, "end": "preempted"}\n' * 10_000
        else:
            size += file.write(AWS.encode())
            block = b"".join(AT.format(0, price).encode() for price in (0.1, 0.2)) * 10_000
        blocks = -(-300_000_000 // len(block))
        for _ in range(blocks):
            size += file.write(block)
        if kind == "ticks":
            file.write(b"]}")
        elif kind == "windfall":
            file.write(json.dumps({"is": "end", "events": 10_000 * blocks}).encode() + b"\n")

    events, grown_mib = _peak_mib(path)

    assert size >= 300_000_000
    assert events == {"ticks": 2 * blocks, "windfall": 10_000 * blocks, "prices": 20_000 * blocks}[kind]
    assert grown_mib < 24.0
