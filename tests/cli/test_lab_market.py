"""`windfall lab market`: what can be bought, how risky it is, and how fresh each number is."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from windfall.errors import InvalidFile, Misuse
from windfall.lab import catalogue, market_verb
from windfall.lab.catalogue import CLOUDS

HEAD = "provider,zone,machine_type,cpus,on_demand_usd_per_hour,spot_usd_per_hour,priced"
ROW = "mine,cellar,box,8,1.0,0.25,2026-07-30"


def show(capsys: pytest.CaptureFixture[str], folder: Path, **options: object) -> str:
    """Return what the verb prints."""
    market_verb.market(state=folder, **options)  # type: ignore[arg-type]
    return capsys.readouterr().out


def file(folder: Path, *lines: str) -> Path:
    """Return a catalogue of these lines."""
    path = folder / "types.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_the_packages_catalogue_is_sound() -> None:
    """Hundreds of rows of three clouds, spot below on demand, every number dated, no type twice in a zone."""
    rows = catalogue.own()
    assert len(rows) > 300
    assert {row.provider for row in rows} == set(CLOUDS)
    assert len({(row.provider, row.zone, row.machine_type) for row in rows}) == len(rows)
    for row in rows:
        assert row.cpus > 0.0, row
        assert row.memory_gib > 0.0, row
        assert row.priced, row
        assert row.spot_usd_per_hour is None or 0.0 < row.spot_usd_per_hour <= row.on_demand_usd_per_hour, row
        assert (row.spot_usd_per_hour is None) is (row.spot_as_of == ""), row
        assert (row.lost_per_month is None) is (row.losses_as_of == ""), row


def test_the_table_says_how_fresh_each_number_is(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """In 80 columns: the installation's own offers as quoted now, the clouds' as of the date of their lists."""
    text = show(capsys, tmp_path)
    assert max(map(len, text.splitlines())) <= 80
    assert "local: " in text
    assert "prices: quoted just now" in text
    assert "losses: no machine of it was observed; a mean lifetime of 3 h is assumed" in text
    assert re.search(
        r"aws: \d+ offers\n  spot: derived from the savings of 20\d\d-\d\d; on-demand prices of 20\d\d", text
    )
    assert "notice 120 s; billed at the price in effect, by the second, at least 60 s" in text


def test_filters_narrow_it_and_json_has_all(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The same rows in both; the cheapest cores first."""
    rows = json.loads(show(capsys, tmp_path, provider="aws", machine_type="p3", json_=True))
    assert [row["machine_type"] for row in rows] == ["p3.8xlarge", "p3.16xlarge", "p3.2xlarge"]
    assert {row["risk"] for row in rows} == {"> 20 % a month"}
    text = show(capsys, tmp_path, provider="aws", machine_type="p3")
    assert "p3.8xlarge in us-east-1                      32" in text
    assert "local" not in text


def test_a_catalogue_of_ones_own_may_have_machines_that_cost_nothing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Owned capacity stands first, and nothing is divided by its price."""
    path = file(tmp_path, "# ours", HEAD, ROW, "mine,cellar,owned,16,0,0,2026-07-30")
    rows = json.loads(show(capsys, tmp_path, catalogue_=path, provider="mine", json_=True))
    assert [(row["machine_type"], row["price_usd_per_hour"]) for row in rows] == [("owned", 0.0), ("box", 0.25)]
    text = show(capsys, tmp_path, catalogue_=path, provider="mine")
    assert "box in cellar" in text
    assert "75 %" in text


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ((), ":1:1: the catalogue is empty"),
        (("# nothing", ""), ":1:1: the catalogue is empty"),
        ((HEAD,), ":1:1: the catalogue has no row below its header"),
        (("provider,zone,machine_type,cpus,priced", "a,b,c,1,"), ":1:1: the header lacks on_demand_usd_per_hour"),
        (
            (HEAD.replace("on_demand_usd_per_hour", "on_demand_eur_per_hour"), ROW),
            "on_demand_eur_per_hour is not a price in USD",
        ),
        ((HEAD.replace("spot_usd_per_hour", "spot_usd_per_month"), ROW), "name it spot_usd_per_hour"),
        ((f"{HEAD},colour", f"{ROW},red"), "'colour' is an unknown column; known: provider, zone"),
        ((HEAD, ROW.replace("1.0", "-1")), ":2:1: on_demand_usd_per_hour must be a number from 0, not '-1'"),
        ((HEAD, "# c", ROW.replace("0.25", "cheap")), ":3:1: spot_usd_per_hour must be a number from 0, not 'cheap'"),
        ((HEAD, ROW.replace("box", "")), ":2:1: machine_type is empty"),
        ((HEAD, ROW.replace("2026-07-30", "July")), ":2:1: priced must be a date as 2026-07-30, not 'July'"),
        ((HEAD, f"{ROW},1"), ":2:1: the row has 8 values, and the header 7 columns"),
    ],
)
def test_a_bad_catalogue_is_refused_with_its_place(tmp_path: Path, lines: tuple[str, ...], words: str) -> None:
    """File, line, and what to write instead."""
    path = file(tmp_path, *lines)
    with pytest.raises(InvalidFile) as caught:
        catalogue.read(path)
    assert str(caught.value).startswith(str(path))
    assert words in str(caught.value)


def test_a_catalogue_that_is_not_there_is_a_sentence(tmp_path: Path) -> None:
    """With the file's name."""
    with pytest.raises(Misuse, match=r"cannot read the catalogue .*none\.csv: No such file"):
        catalogue.read(tmp_path / "none.csv")


def test_the_picture_is_drawn_for_light_and_dark_paper(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Into a new folder."""
    pytest.importorskip("matplotlib")
    show(capsys, tmp_path, plot=tmp_path / "pictures")
    assert sorted(path.name for path in (tmp_path / "pictures").iterdir()) == ["market-dark.png", "market.png"]
