"""What a script prints on its machines, in the run's store."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.processes import alive
from tests.support.simulated_store import MemoryStore
from windfall.errors import StoreUnreachable
from windfall.linux.clock import SystemClock
from windfall.runtimes import shape_output
from windfall.runtimes.shape_node import ShapeScript
from windfall.runtimes.shape_output import ShapeOutput
from windfall.wire.run_layout import OUTPUT


class AwayForAWhile(MemoryStore):
    """Refuses what is put as long as `away` is set; `asked` counts."""

    away, asked = True, 0

    def put(self, key: str, data: bytes) -> None:
        self.asked += 1
        if self.away:
            raise StoreUnreachable("memory://run does not answer")
        super().put(key, data)


def printed(store: MemoryStore) -> str:
    return b"".join(store.objects[key] for key in store.list(OUTPUT)).decode()


def until(condition: Callable[[], object]) -> None:
    end_s = time.monotonic() + 30.0
    while not condition():
        assert time.monotonic() < end_s
        time.sleep(0.01)


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shape_output, "PUT_EVERY_S", 0.02)


def test_lines_of_both_streams_arrive_whole_and_with_their_machine() -> None:
    """Pieces of a line are put together, streams are not mixed, and the last line needs no end."""
    store = MemoryStore()
    output = ShapeOutput(store, "m-1", SystemClock())
    output.take(1, b"step 1: lo")
    output.take(2, b"a warning\n")
    until(lambda: store.list(OUTPUT))
    output.take(1, b"ss 2.5\nstep 2")
    output.take(1, b"")
    output.take(2, b"")
    output.close()

    assert printed(store).splitlines() == ["m-1: a warning", "m-1: step 1: loss 2.5", "m-1: step 2"]


def test_a_store_that_is_away_gets_the_lines_later_and_in_order() -> None:
    """Nothing is lost or doubled while a store does not answer for a while."""
    store = AwayForAWhile()
    output = ShapeOutput(store, "m-1", SystemClock())
    output.take(1, b"one\n")
    until(lambda: store.asked >= 2)
    output.take(1, b"two\n")
    store.away = False
    output.close()

    assert printed(store) == "m-1: one\nm-1: two\n"


def test_what_does_not_fit_is_left_out_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """While a store is away memory does not grow: the oldest lines go, and the reader is told how many."""
    monkeypatch.setattr(shape_output, "UNSENT_BYTES_MAX", 20)
    store = AwayForAWhile()
    output = ShapeOutput(store, "m-1", SystemClock())
    for number in range(10):
        output.take(1, b"line %d\n" % number)
    until(lambda: store.asked >= 2)
    store.away = False
    output.close()

    assert printed(store).splitlines() == ["m-1: windfall: 8 lines are left out", "m-1: line 8", "m-1: line 9"]


def test_a_script_that_ends_tells_all_that_it_printed_and_its_last_error(tmp_path: Path) -> None:
    """Stdout and stderr are passed on; what a failure is told by is the last line of stderr that is not empty."""
    code = "import sys; print('out'); sys.stderr.write('ValueError: too large\\n\\n')"
    found: dict[int, bytes] = {1: b"", 2: b""}
    ends: list[int] = []

    def take(stream: int, data: bytes) -> None:
        found[stream] += data
        if not data:
            ends.append(stream)

    script = ShapeScript([sys.executable, "-c", code], str(tmp_path), {}, take)
    until(lambda: script.code() is not None)
    script.end()

    assert found == {1: b"out\n", 2: b"ValueError: too large\n\n"}
    assert sorted(ends) == [1, 2]
    assert script.last_line == "ValueError: too large"


def test_a_process_that_the_script_leaves_behind_does_not_hold_its_end(tmp_path: Path) -> None:
    """A child that keeps stdout open ends with the script."""
    said: list[bytes] = []
    line = ["sh", "-c", "sleep 1000 & echo $!"]
    script = ShapeScript(line, str(tmp_path), {"PATH": "/usr/bin:/bin"}, lambda _, data: said.append(data))
    until(lambda: script.code() is not None)
    script.end()

    until(lambda: not alive(int(said[0])))
