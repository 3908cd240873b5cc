"""What a machine reads of a running item's metric: only what is new, whole lines, and a curve that stays short."""

from __future__ import annotations

import itertools
import json
import os
from pathlib import Path

import pytest

from windfall.agent.item_metrics import POINTS, MetricFile
from windfall.bags import ResultRule, StopItem

RULE = ResultRule("energy", "log.txt", r"energy = (\S+)")


def metric_file(folder: Path, rule: ResultRule = RULE, before_s: float = 0.0, **stop: object) -> MetricFile:
    return MetricFile(folder, rule, StopItem("energy", above=1.0, **stop), before_s)  # type: ignore[arg-type]


def append(folder: Path, text: str, name: str = "log.txt") -> None:
    with (folder / name).open("a") as file:
        file.write(text)


def test_a_line_that_is_not_whole_waits(tmp_path: Path) -> None:
    """Half a number is no value; at the item's end, a last line without its end is whole."""
    file = metric_file(tmp_path)
    assert not file.read(1.0), "a file that is not there"
    append(tmp_path, "energy = 5\nenergy = -1")
    assert file.read(2.0)
    assert file.curve() == ((2.0, 5.0),)
    append(tmp_path, "2.5\nenergy = -1")
    assert file.read(4.0)
    assert not file.read(5.0)
    assert file.curve() == ((2.0, 5.0), (4.0, -12.5))
    file.read(8.0, last=True)

    assert file.shares(8.0) == ((0.25, 5.0), (0.5, -12.5), (1.0, -1.0))


def test_where_nothing_grew_a_file_is_not_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One look at its length is all."""
    file = metric_file(tmp_path)
    append(tmp_path, "energy = 5\n")
    file.read(1.0)

    def opened(*_: object, **__: object) -> None:
        raise AssertionError("opened")

    monkeypatch.setattr(Path, "open", opened)
    assert not file.read(2.0)


@pytest.mark.parametrize("how", ["truncated", "replaced"])
def test_a_file_that_starts_again_makes_a_new_curve(how: str, tmp_path: Path) -> None:
    """What it had before is no longer a part of the item's run."""
    file = metric_file(tmp_path)
    append(tmp_path, "energy = 5\nenergy = 6\n")
    file.read(1.0)
    if how == "replaced":
        (tmp_path / "other").write_text("energy = 7\nenergy = 8\nenergy = 9\n")
        os.replace(tmp_path / "other", tmp_path / "log.txt")
        expected = [7.0, 8.0, 9.0]
    else:
        (tmp_path / "log.txt").write_text("energy = 7\n")
        expected = [7.0]
    assert file.read(2.0)

    assert [value for _, value in file.curve()] == expected


def test_a_curve_stays_short_and_keeps_its_ends_and_extremes(tmp_path: Path) -> None:
    """Of a thousand values in small and large parts some thirty are left, spread over the run."""
    file = metric_file(tmp_path)
    values = [float(place % 10) for place in range(1000)]
    values[333], values[777] = -50.0, 70.0
    for place, value in enumerate(values[:500]):
        append(tmp_path, f"energy = {value}\n")
        file.read(place + 1.0)
    append(tmp_path, "".join(f"energy = {value}\n" for value in values[500:]))
    file.read(1000.0)
    curve = file.curve()

    assert len(curve) == POINTS
    assert (curve[0], curve[-1]) == ((1.0, 0.0), (1000.0, 9.0))
    assert min(curve, key=lambda one: one[1]) == (334.0, -50.0)
    assert max(curve, key=lambda one: one[1]) == (778.0, 70.0)
    gaps = [after[0] - before[0] for before, after in itertools.pairwise(curve)]
    assert max(gaps) < 100.0


def test_progress_follows_from_steps_where_they_are_printed(tmp_path: Path) -> None:
    """The step on the line of a value, before or after it, or else the last one before."""
    file = metric_file(tmp_path, steps=r"step (\d+)", steps_of=200)
    append(tmp_path, "energy = 1\nstep 50 energy = 2\nenergy = 3 step 100\nenergy = 4\nstep 180\n")
    file.read(1.0)
    append(tmp_path, "energy = 5\nstep 400 energy = nan\nenergy = 6\n")
    file.read(2.0)

    assert file.curve() == ((0.0, 1.0), (0.25, 2.0), (0.5, 3.0), (0.5, 4.0), (0.9, 5.0), (1.0, 6.0))
    assert file.shares(99.0) == file.curve()


def test_a_file_of_json_adds_a_value_each_time_that_it_changes(tmp_path: Path) -> None:
    """Not when it is half written, nor when the same is written again."""
    file = metric_file(tmp_path, ResultRule("energy", "out.json", None, "last.energy"))
    path = tmp_path / "out.json"
    for second, text in enumerate(
        [json.dumps({"last": {"energy": 4}}), '{"last": {"ener', json.dumps({"last": {"energy": 3}})], 1
    ):
        path.write_text(text)
        os.utime(path, ns=(second, second))
        file.read(float(second))
    path.write_text(json.dumps({"last": {"energy": 3}}))
    os.utime(path, ns=(9, 9))
    file.read(9.0)

    assert file.curve() == ((1.0, 4.0), (3.0, 3.0))


def test_what_a_save_brought_along_is_of_the_time_before(tmp_path: Path) -> None:
    """An item that had run for 8 s of its work continues at 8 s, with the values that it had."""
    append(tmp_path, "energy = 1\nenergy = 2\nenergy = 3\nenergy = 4\n")
    file = metric_file(tmp_path, before_s=8.0)
    file.read(0.0)
    append(tmp_path, "energy = 5\n")
    file.read(2.0)

    assert file.curve() == ((2.0, 1.0), (4.0, 2.0), (6.0, 3.0), (8.0, 4.0), (10.0, 5.0))
    assert file.shares(2.0)[-1] == (1.0, 5.0)


def test_a_file_of_the_code_is_not_the_items(tmp_path: Path) -> None:
    """A log that lies in workdir, to which an item's folder has a link, says nothing until the item writes to it."""
    append(tmp_path, "energy = 99\n", "old.txt")
    (tmp_path / "log.txt").symlink_to(tmp_path / "old.txt")
    file = metric_file(tmp_path)
    file.read(1.0)
    append(tmp_path, "energy = 5\n")
    file.read(2.0)

    assert file.curve() == ((2.0, 5.0),)
