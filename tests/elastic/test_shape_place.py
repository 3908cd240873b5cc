"""What a machine of an elastic training does before it is admitted: it reads its place, and has its garbage collected."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from windfall.runtimes.shape_node import PlaceFile

pytest.importorskip("torch", reason="torch is not installed: pip install 'windfall[elastic]'")

from windfall.runtimes import shape_watch


def test_a_place_that_is_written_while_it_is_read_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The leading machine was replaced at that very moment: else this machine would look for the old one for ever."""
    file = PlaceFile(str(tmp_path / "place.json"))
    file.write({"store": "127.0.0.1:1", "machine": "a"})
    read = shape_watch.read_place

    def read_late(path: str) -> shape_watch.ElasticPlace:
        found = read(path)
        file.write({"store": "127.0.0.1:2", "machine": "a"})
        return found

    monkeypatch.setattr(shape_watch, "read_place", read_late)
    watch = shape_watch.ShapeWatch(file.path)
    assert watch.place.store == "127.0.0.1:1"
    monkeypatch.undo()

    watch._look_at_file()

    assert watch.place.store == "127.0.0.1:2"


@pytest.fixture
def collected() -> Iterator[list[int]]:
    """The generations of garbage that Python has collected."""
    found: list[int] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "stop":
            found.append(info["generation"])

    gc.callbacks.append(note)
    yield found
    gc.callbacks.remove(note)


@pytest.mark.parametrize("enabled", [True, False])
def test_all_garbage_is_collected_before_the_first_report(
    enabled: bool, collected: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it is in one of the first steps, for which all machines wait; a script that collects by itself is left alone."""
    file = PlaceFile(str(tmp_path / "place.json"))
    file.write({"store": "127.0.0.1:1", "machine": "a"})
    watch = shape_watch.ShapeWatch(file.path)
    collected_first: list[bool] = []
    monkeypatch.setattr(watch, "_thread", _Started(lambda: collected_first.append(2 in collected)))
    monkeypatch.setattr(gc, "isenabled", lambda: enabled)

    watch.start()

    assert collected_first == [enabled]


class _Started:
    """A thread that tells when it is started."""

    def __init__(self, start: Callable[[], None]) -> None:
        self.start = start
