"""What a machine of an elastic training does before it is admitted, and when it ends."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from windfall.runtimes.shape_node import PlaceFile

pytest.importorskip("torch", reason="torch is not installed: pip install 'windfall[elastic]'")

from windfall.runtimes import shape_watch
from windfall.shape_layout import ShapeReport

WITHIN_S = 20.0


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


class _HeldStore:
    """A store whose first report is held while it is written, and that keeps what is set."""

    def __init__(self) -> None:
        self.writing, self.go_on = threading.Event(), threading.Event()
        self.reports: list[ShapeReport] = []

    def check(self, keys: list[str]) -> bool:
        return False

    def set(self, key: str, value: bytes) -> None:
        self.writing.set()
        assert self.go_on.wait(WITHIN_S)
        self.reports.append(msgspec.json.decode(value, type=ShapeReport))


def test_a_failure_that_is_reported_while_the_report_before_is_written_is_written_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine whose script fails ends at once: else the others would never hear why it did."""
    file = PlaceFile(str(tmp_path / "place.json"))
    file.write({"store": "127.0.0.1:1", "machine": "a"})
    store = _HeldStore()

    def held(address: str) -> Any:
        return store

    monkeypatch.setattr(shape_watch, "connected", held)
    watch = shape_watch.ShapeWatch(file.path)
    watch.start()
    assert store.writing.wait(WITHIN_S)

    watch.update(failure="the script failed")
    closing = threading.Thread(target=watch.close)
    closing.start()
    while not watch._closed:
        assert closing.is_alive()
    store.go_on.set()
    closing.join(WITHIN_S)

    assert [report.failure for report in store.reports] == [None, "the script failed"]
