"""The file that names a machine of an elastic training, as its watch reads it."""

from __future__ import annotations

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
