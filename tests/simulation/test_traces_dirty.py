"""Real tables are dirty: the good rows are taken, the others counted and named; and what the AWS CLI prints is read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from windfall.errors import Misuse
from windfall.lab.traces_verb import inspect

LIFETIMES = "machine_type,began_utc,lifetime_s,preempted"
GOOGLE = "vm,launch_batch,zone,machine_type,insert_start,insert_end,preempted_at,stop_start,end_event,lifetime_s,load"


def inspected(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, object]:
    """What `windfall lab traces inspect --json` says."""
    inspect(words[0], json_=True)
    output: dict[str, object] = json.loads(capsys.readouterr().out)
    return output


def dirty(path: Path, rows: int, bad: dict[int, str]) -> Path:
    """A table of lives of an hour, some of whose rows are replaced."""
    good = [f"n1-highcpu-2,2026-01-{1 + n // 24:02d}T{n % 24:02d}:00:00Z,3600,1" for n in range(rows)]
    path.write_text("\n".join([LIFETIMES, *(bad.get(n, row) for n, row in enumerate(good))]) + "\n")
    return path


@pytest.mark.trial("E4")
def test_bad_rows_are_left_out_counted_and_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One life without an end, one stamp that is empty, one row cut short: a hundred others are good."""
    bad = {5: "n1-highcpu-2,2026-01-01T05:00:00Z,,1", 9: "n1-highcpu-2,,3600,1", 40: "n1-highcpu-2,2026-01-02"}
    output = inspected(capsys, str(dirty(tmp_path / "lives.csv", 100, bad)))

    assert (output["events"], output["left_out"]) == (97, 3)
    rows = output["left_out_rows"]
    assert isinstance(rows, list)
    assert [row["line"] for row in rows] == [7, 11, 42]
    assert "lifetime_s" in rows[0]["reason"]


@pytest.mark.trial("E4")
def test_strict_refuses_the_table_for_its_first_bad_row(tmp_path: Path) -> None:
    """Who wants every row to be good says so, and gets file, line and reason."""
    path = dirty(tmp_path / "lives.csv", 100, {9: "n1-highcpu-2,,3600,1"})
    with pytest.raises(Misuse, match=r"lives\.csv:11: began_utc is ''"):
        inspect(str(path), strict=True)


@pytest.mark.trial("E4")
def test_a_table_that_is_bad_throughout_is_still_refused(tmp_path: Path) -> None:
    """If a third of the rows cannot be true, it is the table that is not understood."""
    path = dirty(tmp_path / "lives.csv", 90, dict.fromkeys(range(0, 90, 3), "n1-highcpu-2,,3600,1"))
    with pytest.raises(Misuse, match="began_utc"):
        inspect(str(path))


@pytest.mark.trial("E4")
def test_end_stamps_that_are_a_little_off_are_no_wrong_unit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A life of ten hours whose end stamp is 64 s off is within a hundredth of it; one that is hours off is left out."""
    rows = []
    for n in range(50):
        day = f"2026-02-{1 + n // 2:02d}T{12 * (n % 2):02d}:00:00Z"
        end = f"2026-02-{1 + n // 2:02d}T{10 + 12 * (n % 2):02d}:{'01:04' if n % 5 == 0 else '00:00'}Z"
        lifetime_s = 36_000 if n != 7 else 10
        rows.append(f"vm-{n},b,us-east1-b,n1-highcpu-2,{day},{day},{end},,preempted,{lifetime_s},idle")
    (tmp_path / "google.csv").write_text("\n".join([GOOGLE, *rows]) + "\n")

    output = inspected(capsys, str(tmp_path / "google.csv"))
    assert (output["events"], output["left_out"]) == (49, 1)


PRICES = [
    ("us-east-1a", "m4.xlarge", "Linux/UNIX", "0.033400", "2016-02-25T03:35:34+00:00"),
    ("us-east-1a", "m4.xlarge", "Linux/UNIX", "0.031000", "2016-02-25T02:35:34+00:00"),
    ("us-east-1b", "m4.xlarge", "Linux/UNIX", "0.040000", "2016-02-25T01:00:00+00:00"),
]
KEYS = ("AvailabilityZone", "InstanceType", "ProductDescription", "SpotPrice", "Timestamp")


def as_table() -> str:
    """The prices as `--output table` prints them."""
    rule = "|+" + "-" * 90 + "+|"
    cells = ["||  " + "  |  ".join(row) + "  ||" for row in (KEYS, *PRICES)]
    return "\n".join(["-" * 92, "|   DescribeSpotPriceHistory   |", rule, cells[0], rule, *cells[1:], rule]) + "\n"


@pytest.mark.trial("E4")
@pytest.mark.parametrize(
    "text",
    [
        json.dumps({"SpotPriceHistory": [dict(zip(KEYS, row, strict=True)) for row in PRICES]}, indent=4),
        "".join("\t".join(("SPOTPRICEHISTORY", *row)) + "\n" for row in PRICES),
        as_table(),
    ],
    ids=["json", "text", "table"],
)
def test_the_aws_cli_s_own_price_history_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str) -> None:
    """What `aws ec2 describe-spot-price-history` printed, newest first, in each of its forms."""
    (tmp_path / "prices.txt").write_text(text)
    output = inspected(capsys, str(tmp_path / "prices.txt"))

    assert (output["events"], output["zones"], output["format"]) == (3, ["us-east-1a", "us-east-1b"], "aws-cli-prices")
    series = output["series"]
    assert isinstance(series, list)
    assert (series[0]["lowest"], series[0]["highest"], series[0]["last_s"]) == (0.031, 0.0334, 1456371334.0)
