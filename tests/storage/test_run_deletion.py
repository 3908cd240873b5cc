"""The deletion of a run, cut anywhere, is finished by the next; and whether a job that nobody here knows is alive."""

from __future__ import annotations

import pytest

from tests.support.simulated_store import MemoryStore
from windfall.ports import Pause, Steps, T, Together
from windfall.simulation.virtual_time import Timeline, VirtualClock
from windfall.storage import run_deletion
from windfall.storage.store_operations import perform
from windfall.terms import Seconds
from windfall.wire import bag_layout, run_layout, tier_files

OWN = (
    run_layout.JOB, run_layout.MARKER, run_layout.CONTROLLER, run_layout.record_key(1), run_layout.record_key(2),
    bag_layout.item_record_key(1), bag_layout.calls_key(1), tier_files.layout_key(1), tier_files.PRODUCT,
    run_layout.bundle_key("a"), run_layout.report_key("m-1"), run_layout.setup_output_key("m-1"),
)  # fmt: skip
FOREIGN = "notes.txt"


def run(steps: Steps[T], store: MemoryStore, *, cut: int = 10**6) -> bool:
    """Execute at most so many operations, those of one `Together` counted each; return whether the steps have ended."""
    try:
        operation = next(steps)
        while True:
            results: list[object] = []
            for one in operation.ops if isinstance(operation, Together) else (operation,):
                if cut == 0:
                    return False
                cut -= 1
                results.append(0.0 if isinstance(one, Pause) else perform(one, store, VirtualClock(Timeline())))
            operation = steps.send(results if isinstance(operation, Together) else results[0])
    except StopIteration:
        return True


def whole_deletion(store: MemoryStore) -> Steps[None]:
    """What `windfall rm` does."""
    yield from run_deletion.begin_deletion("job-1")
    yield from run_deletion.delete_objects([key for key in store.list("") if run_deletion.belongs(key)])


@pytest.mark.parametrize("cut", range(len(OWN) + 2))
def test_a_deletion_that_is_cut_leaves_its_note_until_nothing_else_is_left(cut: int) -> None:
    """Whatever is left is found as being deleted; once the marker is gone, nothing resumes it; the next deletion ends it."""
    store = MemoryStore(objects=dict.fromkeys((*OWN, FOREIGN), b"{}"))

    assert not run(whole_deletion(store), store, cut=cut)
    left = [key for key in store.list("") if run_deletion.belongs(key)]
    if cut:
        assert run_deletion.DELETING in store.objects, "found again"
    if run_layout.JOB in left or run_layout.MARKER in left:
        assert run_layout.record_key(1) in left, "what could still be resumed is whole"

    assert run(whole_deletion(store), store)
    assert store.list("") == [FOREIGN]


def test_every_layout_lists_its_objects_among_those_that_are_deleted() -> None:
    """A run's own keys belong to it; a user's file does not, nor does the note before the rest is gone."""
    assert all(run_deletion.belongs(key) for key in OWN)
    assert not run_deletion.belongs(FOREIGN)
    assert not run_deletion.belongs(run_layout.DELETING)


def test_a_bag_is_forgotten_beside_the_runs_and_no_other_is() -> None:
    """Only keys that end with its folder's name."""
    mine, other = (f"{bag_layout.submitted_prefix('sweep', 'f')}code/{run_}" for run_ in ("sweep-1", "sweep-11"))
    store = MemoryStore(objects={mine: b"", other: b""})

    assert run(run_deletion.forget_bag("sweep-1"), store)
    assert store.list("") == [other]


@pytest.mark.parametrize(
    "key",
    [run_layout.CONTROLLER, tier_files.STATUS_KEY, run_layout.report_key("m-1"), bag_layout.runner_report_key("r-1")],
)
def test_one_sign_of_life_is_enough(key: str) -> None:
    """A controller's heartbeat, a coordinator's status, a machine's report, a runner's, each changed or new."""
    store = MemoryStore(objects=dict.fromkeys(OWN, b"{}"))
    heard: list[bool] = []

    def listening(change: bytes | None) -> Steps[None]:
        found = run_deletion.is_silent(Seconds(1.0))
        operation = next(found)
        try:
            while True:
                if isinstance(operation, Pause) and change is not None:
                    store.put(key, change)
                operation = found.send((yield operation))
        except StopIteration as end:
            heard.append(end.value)

    for change in (None, b"1", b"2", None):
        assert run(listening(change), store)
    assert heard == [True, False, False, True]
