"""What the controller sees of a parameter server, and how it asks one to stop."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.control.house import a_job
from windfall.core.tier_decisions import first_layout, taken_by_next_coordinator
from windfall.linux.clock import SystemClock
from windfall.policies.layout.tiers import TierPlacement
from windfall.runtimes import tier_watch
from windfall.runtimes.tier_log import TierLog
from windfall.runtimes.tier_watch import TierWatch
from windfall.storage.object_stores import folder_url, open_store
from windfall.structs import replace
from windfall.terms import Outcome, Term, Unit, WorkDone
from windfall.tier_layout import ServerLayout, StoredClock, TierFailure

FIRST = replace(first_layout(TierPlacement(("r1",), ("r1",), ("r1",))), nonce="a", checkpoint=StoredClock(0, 40))


@pytest.fixture
def log(tmp_path: Path) -> TierLog:
    """An empty run."""
    return TierLog(open_store(folder_url(str(tmp_path))))


@pytest.fixture
def watch(tmp_path: Path) -> TierWatch:
    """The controller's side of it."""
    return tier_watch.open_runtime(a_job(), open_store(folder_url(str(tmp_path))), SystemClock(), lambda: "n")


def outcome(watch: TierWatch) -> Outcome:
    """How the job stands."""
    found = watch.progress()
    assert found is not None
    return found.progress.outcome


def next_coordinator(log: TierLog) -> ServerLayout:
    """Another coordinator takes over."""
    newest = log.newest_layout()
    assert newest is not None
    layout = replace(taken_by_next_coordinator(newest), nonce="b")
    assert log.write_layout(layout)
    return layout


def test_there_is_no_progress_before_the_first_layout(log: TierLog, watch: TierWatch) -> None:
    """Nor is there one to stop."""
    watch.stop(now=True, reason="a test")

    assert watch.progress() is None
    assert log.stop_asked() == 0


def test_progress_is_the_checkpoint_of_the_newest_layout(log: TierLog, watch: TierWatch) -> None:
    """No loss can undo it; the term is the number of the coordinator."""
    log.write_layout(FIRST)
    found = watch.progress()
    assert found is not None
    assert found.term == Term(1)
    assert found.progress.safe == found.progress.done == WorkDone(40.0, Unit.STEP)
    assert found.progress.outcome is Outcome.RUNNING
    assert found.progress.holders == ()

    second = next_coordinator(log)
    log.write_layout(replace(second, version=3, checkpoint=StoredClock(0, 60)))
    found = watch.progress()
    assert found is not None
    assert (found.term, found.progress.safe.amount) == (Term(2), 60.0)


def test_failures_of_the_program_are_counted_once(log: TierLog, watch: TierWatch) -> None:
    """However often they are looked at."""
    log.write_layout(FIRST)
    counts = []
    for message in ("first", "second"):
        log.write_failure(TierFailure("m-1", message))
        for _ in range(2):
            found = watch.progress()
            assert found is not None
            counts.append(found.progress.failures)

    assert counts == [1, 1, 2, 2]


def test_failures_before_the_first_layout_count_and_the_newest_is_told(log: TierLog, watch: TierWatch) -> None:
    """No work is done, and the term is below that of any coordinator; of a long message the first line."""
    log.write_failure(TierFailure("m-1", "first"))
    log.write_failure(TierFailure("m-2", "no data\nat all"))

    found = watch.progress()
    assert found is not None
    assert (found.term, found.progress.done.amount) == (Term(0), 0.0)
    assert (found.progress.failures, found.progress.failure) == (2, "no data")
    log.write_layout(FIRST)
    later = watch.progress()
    assert later is not None
    assert later.progress.failures == 2


def test_a_job_rests_once_its_coordinator_has_stopped_and_trains_again_with_the_next(
    log: TierLog, watch: TierWatch
) -> None:
    """What an earlier one was asked does not stop a later one."""
    log.write_layout(FIRST)
    watch.stop(now=False, reason="a test")
    assert log.stop_asked() == 1
    assert outcome(watch) is Outcome.RUNNING
    log.write_stopped(1)
    assert outcome(watch) is Outcome.WAITING

    next_coordinator(log)
    assert outcome(watch) is Outcome.RUNNING
    assert log.stop_asked() < 2


def test_a_job_is_done_once_its_product_is_there(log: TierLog, watch: TierWatch) -> None:
    """Not before: the last clock alone is no product; not even a request to stop changes it then."""
    log.write_layout(FIRST)
    log.write_stopped(1)
    log.write_product({"table.npy": b"values"}, 0.5)

    assert outcome(watch) is Outcome.DONE
