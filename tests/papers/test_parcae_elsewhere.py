"""Forecasts and plans on traces of other places."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import pytest

from tests.simulation.shared_data import DATA, needs_data
from windfall.errors import Misuse
from windfall.lab import parcae, parcae_elsewhere
from windfall.lab.published_rows import Options, PublishedRow
from windfall.models import count_forecasts


def quiet(words: str) -> None:
    del words


@functools.cache
def errors() -> dict[str, float]:
    """The mean error of each forecast over all other traces."""
    rows: tuple[PublishedRow, ...] = parcae.PARTS["elsewhere"].rows(Options(0, folder=str(DATA.parent)), quiet)
    ending = f", {parcae.WHOLE}"
    return {row.item.removesuffix(ending): row.ours or 0.0 for row in rows if row.item.endswith(ending)}


@needs_data
def test_the_last_value_is_best_on_other_traces() -> None:
    """Of all forecasts that were tried, the one that plans use has the least error where Parcae's trace had no part."""
    found = errors()

    assert len(found) == 7
    assert min(found, key=lambda name: found[name]) == "last value"
    assert all(value > found["last value"] for name, value in found.items() if name != "last value")


@needs_data
def test_traces_are_read_by_the_minute() -> None:
    """Six traces of up to 32 machines: Bamboo's three and one halved, SkyPilot's two of 16 machines."""
    found = {trace.name: trace.counts for trace in parcae_elsewhere.other_traces(DATA.parent)}

    assert len(found) == 6
    assert max(map(max, found.values())) == 32
    assert len(found["p2.xlarge_2020-11-20_to_2020-11-23_hours_count"]) == pytest.approx(88.7 * 60.0, abs=60.0)


def _folder(tmp_path: Path, name: str, text: str) -> Path:
    place = tmp_path / "data" / "bamboo_traces"
    place.mkdir(parents=True)
    (place / name).write_text(text)
    return tmp_path


def test_a_count_holds_until_the_next_one(tmp_path: Path) -> None:
    """Seconds and counts, not on whole minutes: each minute has what was held then."""
    folder = _folder(tmp_path, "a_seconds_count.csv", "10,6\n130,8\n190,7\n250,7\n")

    (found,) = parcae_elsewhere.other_traces(folder)

    assert found.counts == (6, 6, 8, 7, 7)


def test_a_large_fleet_is_halved(tmp_path: Path) -> None:
    """64 machines are 32, since the tables have no more."""
    (found,) = parcae_elsewhere.other_traces(
        _folder(tmp_path, "gcloud_a.txt", "2021-12-11, 11:00:00, 64\n2021-12-11, 11:02:00, 41\n")
    )

    assert found.counts == (32, 32, 20)


def test_no_trace_beside_the_tables_is_no_row(tmp_path: Path) -> None:
    """A folder with the tables alone has no rows of other traces, and neither has none."""
    for folder in (None, str(tmp_path)):
        for part in ("elsewhere", "look-ahead"):
            assert parcae.PARTS[part].rows(Options(0, folder=folder), quiet) == ()


def test_a_damaged_trace_is_refused_by_name(tmp_path: Path) -> None:
    """Words in place of numbers, and a single count."""
    with pytest.raises(Misuse, match=r"cannot read .*a_seconds_count\.csv as a trace"):
        parcae_elsewhere.other_traces(_folder(tmp_path / "a", "a_seconds_count.csv", "ten,6\n"))
    with pytest.raises(Misuse, match=r"b_seconds_count\.csv has fewer than two counts"):
        parcae_elsewhere.other_traces(_folder(tmp_path / "b", "b_seconds_count.csv", "10,6\n"))
    place = tmp_path / "c" / "data" / "skypilot_spot_traces" / "availability" / "16-node" / "x"
    place.mkdir(parents=True)
    (place / "z.json").write_text(json.dumps({"data": [5, 6]}))
    with pytest.raises(Misuse, match=r"cannot read .*z\.json as a trace: 'metadata'"):
        parcae_elsewhere.other_traces(tmp_path / "c")


def test_errors_are_summed_before_they_are_divided() -> None:
    """One window of 12 counts of 10 after twelve of 8: 24 machines off of 120."""
    counts = (*(8,) * 12, *(10,) * 12)

    found = parcae_elsewhere.error_share(counts, lambda history: count_forecasts.last_value(history, 12))

    assert found == pytest.approx(24.0 / 120.0)


def test_a_gain_has_an_interval_of_blocks() -> None:
    """Equal gains of each hour have no width; one of two hours gains 10 %, so that the interval is from 0 to 10 %."""
    alike = parcae_elsewhere.gain_pct((1.1,) * 180, (1.0,) * 180, 0)
    mixed = parcae_elsewhere.gain_pct((*(1.1,) * 60, *(1.0,) * 60), (1.0,) * 120, 0)

    assert alike == pytest.approx((10.0, 10.0, 10.0))
    assert mixed == pytest.approx((5.0, 0.0, 10.0))
