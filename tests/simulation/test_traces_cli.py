"""`windfall lab traces` as its users see it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.simulation.shared_data import DATA, found, needs_data
from tests.simulation.traces_run import run
from windfall.simulation.traces.trace_events import Series
from windfall.simulation.traces.trace_reader import open_trace

AWS = "timestamp_utc,availability_zone,instance_type,price_usd_per_hour\n"
ROWS = (
    "2016-05-06T00:00:00Z,us-east-1a,m4.xlarge,0.1\n"
    "2016-05-06T06:00:00Z,us-east-1a,m4.xlarge,0.3\n"
    "2016-05-06T12:00:00Z,us-east-1a,m4.xlarge,0.1\n"
    "2016-05-06T00:00:00Z,us-east-1c,m4.xlarge,0.2\n"
)


@pytest.fixture
def prices(tmp_path: Path) -> Path:
    """A small price history of two zones."""
    path = tmp_path / "prices.csv"
    path.write_text(AWS + ROWS)
    return path


def test_inspect_says_what_a_trace_is(prices: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Format, span, zones, counts, means over time and the longest silence are on the screen."""
    assert run("inspect", prices) == (0, "")

    # The file's name above may take more than one line.
    assert capsys.readouterr().out.splitlines()[-5:] == [
        "aws-prices: prices, 2016-05-06T00:00Z to 2016-05-06T12:00Z (12 h)",
        "4 events, 2 series; 2 zones: us-east-1a, us-east-1c; 1 machine type: m4.xlarge",
        "type       zone        prices  mean USD/h  lowest  highest  silence",
        "m4.xlarge  us-east-1a       3         0.2     0.1      0.3   6.00 h",
        "m4.xlarge  us-east-1c       1         0.2     0.2      0.2   0.00 h",
    ]


def test_inspect_gives_data(prices: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--json` is one object with every series, times in seconds."""
    assert run("inspect", prices, "--json") == (0, "")

    output = json.loads(capsys.readouterr().out)
    assert (output["format"], output["events"], output["span_s"]) == ("aws-prices", 4, 43_200.0)
    assert output["zones"] == ["us-east-1a", "us-east-1c"]
    first = output["series"][0]
    assert (first["content"], first["unit"], first["zone"], first["mean"]) == (
        "prices",
        "USD/h",
        "us-east-1a",
        pytest.approx(0.2),
    )


def test_inspect_and_convert_take_a_slice(prices: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A part of a trace is looked at, and written, as a trace of its own."""
    part, out = f"{prices}:us-east-1a:5h..7h", tmp_path / "part.jsonl"

    assert run("inspect", part) == (0, "")
    assert "prices, 2 h from its start (no dates)" in capsys.readouterr().out
    assert run("convert", part, "--to", "windfall", out) == (0, "")
    assert capsys.readouterr().out == f"{out}: 3 events\n"
    assert [json.loads(line)["is"] for line in out.read_text().splitlines()] == [
        "trace",
        "price",
        "price",
        "until",
        "end",
    ]


def test_convert_overwrites_nothing(prices: Path, tmp_path: Path) -> None:
    """A file that exists stays as it is; so does the trace itself."""
    out = tmp_path / "out.jsonl"
    out.write_text("mine")

    assert run("convert", prices, out) == (2, f"{out} already exists: choose another name, or remove it")
    assert run("convert", prices, prices)[0] == 2
    assert (out.read_text(), prices.read_text()) == ("mine", AWS + ROWS)


def test_convert_into_no_folder_is_refused(prices: Path, tmp_path: Path) -> None:
    """Where nothing can be written is said in a sentence."""
    out = tmp_path / "none" / "out.jsonl"

    assert run("convert", prices, out) == (2, f"cannot write {out}: No such file or directory")


def test_what_a_file_does_not_name_can_be_named(tmp_path: Path) -> None:
    """`--type` and `--zone` name the machines of a file that names none, and are kept by the conversion."""
    path, out = tmp_path / "trace.csv", tmp_path / "out.jsonl"
    path.write_text("".join(f"{60_000 * number},{number % 3}\n" for number in range(9)))

    assert run("convert", path, out, "--type", "p3.2xlarge", "--zone", "us-east-1a") == (0, "")

    assert {event.series for event in open_trace(out).events()} == {Series("p3.2xlarge", "us-east-1a")}


@needs_data
@pytest.mark.parametrize(
    "pattern",
    [
        "aws_spot_prices/201[03]_*.csv.gz",
        "aws_spot_prices/2022*.csv.gz",
        "gcp*/*changes*",
        "gcp*/lifetimes.csv",
        "instance_catalog/*_us*.csv",
        "bamboo_traces/g*",
        "parcae_p3/*.csv",
        "skypilot_spot_traces/preemption/1-node/aws-04-19-2023/*",
    ],
)
def test_every_look_fits_80_columns(
    pattern: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the trace, nothing is printed beyond column 80 and nothing is cut off."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(DATA)
    for path in found(pattern):
        assert run("inspect", path.relative_to(DATA)) == (0, "")

        lines = capsys.readouterr().out.splitlines()
        assert max(len(line.rstrip()) for line in lines) <= 80
        assert not any("\N{HORIZONTAL ELLIPSIS}" in line for line in lines)


@needs_data
def test_a_file_of_another_kind_beside_the_traces_is_refused() -> None:
    """A licence, and a list of dates, are no traces."""
    assert run("inspect", DATA / "bamboo_traces" / "LICENSE.bamboo")[0] == 2
    assert run("inspect", DATA / "gcp_spot_prices" / "observations.csv")[0] == 2


def test_the_example_of_the_documentation_is_a_trace(tmp_path: Path) -> None:
    """The lines that the page shows are read as they stand."""
    page = (Path(__file__).parents[2] / "docs" / "howto" / "traces.md").read_text("utf-8")
    path = tmp_path / "example.jsonl"
    path.write_text(page.split("```json\n")[1].split("```")[0])

    assert [type(event).__name__ for event in open_trace(path).events()] == [
        "Price",
        "MachineStarted",
        "MachineEnded",
        "WatchedUntil",
    ]


def test_the_last_tick_lasts_as_long_as_the_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Four ticks of five minutes are twenty minutes, and the share up counts all of them."""
    path = tmp_path / "zone-a_v100_1.json"
    path.write_text('{"metadata": {"gap_seconds": 300}, "data": [1, 1, 0, 1]}')

    assert run("inspect", path, "--json") == (0, "")

    output = json.loads(capsys.readouterr().out)
    assert (output["span_s"], output["series"][0]["mean"]) == (1200.0, 0.75)


def test_a_name_may_live_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A machine that ended may come back under its name; it only cannot live twice at once."""
    path = tmp_path / "lives.csv"
    path.write_text(
        "machine,machine_type,zone,began_utc,lifetime_s,preempted\n"
        "a,m4,z,2026-01-01T00:00:00Z,3600,1\n"
        "b,m4,z,2026-01-01T00:30:00Z,7200,0\n"
        "a,m4,z,2026-01-01T01:00:00Z,1800,1\n"
    )

    assert run("inspect", path) == (0, "")

    assert "2 of 3 lifetimes ended by a preemption" in capsys.readouterr().out
