"""The executor: carries operations out, side by side where it may, and gives errors to whoever asked."""

from __future__ import annotations

import threading

import pytest

from tests.storage.make import Bench
from tests.support.simulated_store import ManualClock, MemoryStore
from windfall.errors import StoreUnreachable
from windfall.ports import Create, Delete, Get, List, Pause, Put, Steps, Together
from windfall.storage import store_operations
from windfall.terms import Seconds


def collect(*operations: object) -> Steps[list[object]]:
    results: list[object] = []
    for operation in operations:
        results += [(yield operation)]
    return results


def test_each_operation_gives_its_result(bench: Bench) -> None:
    """What `ports` promises of each operation comes back, in order."""
    told = bench.run(
        collect(
            Put("a/1", b"x"), Get("a/1"), Create("a/1", b"y"), Create("a/2", b"y"), List("a/"), Delete("a/1"),
            Get("a/1"), Pause(Seconds(2.5)), Together((Get("a/2"), Get("b"))), Together(()),
        )
    )  # fmt: skip
    assert told == [None, b"x", False, True, ["a/1", "a/2"], None, None, 1002.5, [b"y", None], []]


class Meeting(MemoryStore):
    """Every read waits until all have come."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.all_here = threading.Barrier(count, timeout=10)

    def get(self, key: str) -> bytes | None:
        self.all_here.wait()
        return super().get(key)


def test_operations_given_together_run_side_by_side() -> None:
    """Four reads that wait for each other come to an end."""
    reads = Together(tuple(Get(str(number)) for number in range(4)))
    assert store_operations.run(collect(reads), Meeting(4), ManualClock(), parallel=4) == [[None] * 4]


class Broken(MemoryStore):
    """Reads of `bad` fail at once, writes take their time."""

    def get(self, key: str) -> bytes | None:
        if key == "bad":
            raise StoreUnreachable("no answer")
        return super().get(key)

    def put(self, key: str, data: bytes) -> None:
        threading.Event().wait(0.05)
        super().put(key, data)


@pytest.mark.parametrize("operation", [Get("bad"), Together((Put("a", b"1"), Get("bad"), Put("b", b"2")))])
def test_an_error_is_thrown_where_the_operation_was_asked_for(operation: Get | Together) -> None:
    """The step function may catch it and go on; its companions have been carried out."""
    store = Broken()

    def steps() -> Steps[str]:
        try:
            yield operation
        except StoreUnreachable as error:
            companions = sorted(store.objects)
            yield Put("c", b"3")
            return f"{error}, beside it {companions}"
        return "no error"

    beside = [] if isinstance(operation, Get) else ["a", "b"]
    assert store_operations.run(steps(), store, ManualClock()) == f"no answer, beside it {beside}"
    assert "c" in store.objects


def test_an_error_nobody_catches_comes_out() -> None:
    """Errors are never swallowed."""
    with pytest.raises(StoreUnreachable):
        store_operations.run(collect(Get("bad")), Broken(), ManualClock())
