"""`windfall lab fit`: a table of lives in, a law with its reason out; wrong tables are refused by file, line and column."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.models.lifetimes import H, drawn
from windfall.errors import InvalidFile, Misuse
from windfall.lab import lifetimes_report
from windfall.lab.fit_verb import fit, read_lifetimes
from windfall.models.lifetimes import model_selection
from windfall.models.lifetimes.families import Exponential


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Sixty machines with a mean life of 5 h, in two zones."""
    lifetimes = drawn(Exponential(1 / (5 * H)), 60, watched_s=30 * H)
    rows = zip(lifetimes.duration_s / H, lifetimes.lost, lifetimes.batch, strict=True)
    lines = [f"{hours:.5f},{int(lost)},b{batch},z{batch % 2}" for hours, lost, batch in rows]
    path = tmp_path / "lives.csv"
    path.write_text("\n".join(["hours,event,batch,zone", *lines]) + "\n")
    return path


def test_a_fit_names_its_law_its_reason_and_its_bounds(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The printed fit fits 80 columns and says what was read, chosen and why, and up to which age life is counted."""
    fit(table, by="zone")

    out = capsys.readouterr().out
    assert "60 lifetimes in 15 launch batches" in out
    assert "Chosen: exponential" in out
    assert "counted up to age" in out
    assert "By zone" in out
    assert max(len(line) for line in out.splitlines()) <= 80


def test_json_and_pictures(table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As data it is one JSON object with every law; pictures are drawn on light and on dark paper."""
    light, dark = tmp_path / "light.png", tmp_path / "dark.png"
    fit(table, plot=light, json_=True)
    found = json.loads(capsys.readouterr().out)
    lifetimes_report.draw(
        model_selection.fit_lifetimes(read_lifetimes(table), families=model_selection.FAMILIES[:2]),
        dark,
        title="x",
        dark=True,
    )

    assert found["chosen"] == "exponential"
    assert {law["law"] for law in found["laws"]} >= {"exponential", "weibull", "blended", "bathtub", "piecewise"}
    assert found["mean_lifetime_note"].startswith("the lifetime from the start to")
    assert light.read_bytes()[:4] == dark.read_bytes()[:4] == b"\x89PNG"
    assert light.read_bytes() != dark.read_bytes()


@pytest.mark.trial("E5")
@pytest.mark.filterwarnings("error")
def test_twelve_memoryless_lives_are_no_reason_for_warnings_or_doubt(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A law that holds one of them for impossible scores minus infinity; the chosen one is as near as chance lets it be."""
    lifetimes_s = (5539, 2332, 1365, 808, 1737, 18892, 12712, 11832, 11604, 1548, 2670, 7100)
    path = tmp_path / "lives.csv"
    path.write_text("\n".join(["lifetime_s,event", *(f"{life_s},1" for life_s in lifetimes_s)]) + "\n")
    fit(path)

    out = capsys.readouterr().out
    assert max(len(line) for line in out.splitlines()) <= 80
    assert "-inf" in out
    assert not re.search(r"nan|\d{8}", out)
    assert "Chosen: exponential" in out
    assert "Do not trust" not in out


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "lives.csv:1:1: the header line must name exactly one lifetime column"),
        ("hours,duration_s,event\n", "must name exactly one lifetime column"),
        ("hours,zone\n1,a\n", "has no column `event`"),
        ("hours,event\n", "has no lifetimes"),
        ("hours,event\n1,1\n-2,1\n", "lives.csv:3:1: '-2' is not a lifetime"),
        ("hours,event\nnan,1\n", "lives.csv:2:1: 'nan' is not a lifetime"),
        ("event,hours\nmaybe,1\n", "lives.csv:2:1: 'maybe' is not an event; write 1 .lost. or 0 .censored."),
        ("hours,event\n1,1,7\n", "lives.csv:2:1: 3 values, but the header line has 2"),
        ('hours,event\n"1,1\n', "is not a CSV table in UTF-8"),
        ("hours,event\n1,0\n2,0\n", "wait for the first loss"),
    ],
)
def test_wrong_tables_are_refused_by_line(tmp_path: Path, text: str, message: str) -> None:
    """Each mistake is one sentence that says where it is."""
    path = tmp_path / "lives.csv"
    path.write_text(text)

    with pytest.raises(Misuse, match=message):
        fit(path)


def test_other_mistakes_are_refused_by_name(table: Path, tmp_path: Path) -> None:
    """A missing file, a wrong column, a limit that is no duration, a picture in no folder, bytes that are no text."""
    with pytest.raises(Misuse, match=r"nowhere.csv does not exist"):
        fit(tmp_path / "nowhere.csv")
    with pytest.raises(Misuse, match=r"--by: .* has no column 'type'; it has: hours, event, batch, zone"):
        fit(table, by="type")
    with pytest.raises(Misuse, match=r"--limit: '24' is not a duration"):
        fit(table, limit="24")
    with pytest.raises(Misuse, match="--plot"):
        fit(table, plot=tmp_path / "no" / "x.png")
    (tmp_path / "bytes.csv").write_bytes(b"hours,event\n\xff\xfe,1\n")
    with pytest.raises(Misuse, match="not a CSV table in UTF-8"):
        fit(tmp_path / "bytes.csv")


def test_published_tables_are_read_as_they_are(tmp_path: Path) -> None:
    """Names of columns and events of public data sets are understood; seconds and hours are told apart by name."""
    path = tmp_path / "public.csv"
    path.write_text("vm,launch_batch,lifetime_s,end_event\na1,a,3600,preempted\na2,a,7200,user_stop\n")
    lifetimes = read_lifetimes(path)

    assert lifetimes.duration_s.tolist() == [3600, 7200]
    assert lifetimes.lost.tolist() == [True, False]
    assert lifetimes.batches == 1
    path.write_text("duration_h,lost\n2,true\n")
    assert read_lifetimes(path).duration_s.tolist() == [7200]


@pytest.mark.trial("E4")
def test_a_life_of_no_length_is_left_out_and_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One of twenty lives lasted 0 s: the others are read, and the row is named; `--strict` refuses the table."""
    path = tmp_path / "lives.csv"
    path.write_text("duration_s,event\n" + "".join(f"{60 * n},1\n" for n in range(20)))

    assert len(read_lifetimes(path, strict=False).duration_s) == 19
    assert "lives.csv:2:1" in capsys.readouterr().err
    with pytest.raises(InvalidFile):
        read_lifetimes(path)
