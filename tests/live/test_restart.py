"""A real controller, killed in the middle of a job of a million rows, is back before anybody misses it."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.restart import LIMIT_S, opened, write_job

from windfall.core import driver
from windfall.core.fleet_state import FleetState
from windfall.events import Row
from windfall.fleet import ControllerStarted

pytestmark = [pytest.mark.real]
STARTS = 3


def again(state: FleetState, rows: list[Row]) -> FleetState:
    """Feed rows to the driver: each must decide and command the same."""
    for row in rows:
        state, decisions, commands = driver.react(state, row.at, row.facts)
        assert (decisions, commands) == (row.decisions, row.commands), f"row {row.sequence} decides otherwise"
    return state


def restarts(folder: Path, rows: int, *, snapshots: bool = True) -> list[float]:
    """Start a controller on so many rows, kill it, and start it again; return how long each restart took [s].

    The first start has no snapshot and replays everything.  What every start adds to the journal is compared with what the
    driver decides that wrote the rows before it and never stopped.
    """
    installation = opened(folder / "state")
    try:
        state = write_job(installation.database, rows)
        written = state_rows = installation.rows_written()
        took = []
        for _ in range(1 + STARTS):
            answered, reacted = installation.start(snapshot=snapshots)
            took.append(max(answered, reacted))
            added = list(installation.rows_after(written))
            assert isinstance(added[0].facts[0], ControllerStarted)
            state, written = again(state, added), installation.rows_written()
        assert written > state_rows
        assert "snapshot" not in (installation.folder / "log").read_text(), "each snapshot was used"
        print(f"{rows} rows: full replay {took[0]:.2f} s, restarts {', '.join(f'{one:.2f}' for one in took[1:])} s")
        return took
    finally:
        installation.close()


def test_restarts_of_a_small_job_decide_as_if_there_had_been_none(tmp_path: Path) -> None:
    """From all rows and from a snapshot, several processes one after the other."""
    restarts(tmp_path, 3000)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_controller_is_back_within_two_seconds_of_a_million_rows(tmp_path: Path) -> None:
    """It answers, and its job has reacted, in the middle one of some starts; a full replay takes over ten times as long."""
    first, *others = restarts(tmp_path / "million", 1_000_000)

    assert sorted(others)[len(others) // 2] < LIMIT_S
    assert min(others) < first / 10
