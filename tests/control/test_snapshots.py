"""A restart from a snapshot decides what a restart from the whole journal decides; what cannot be used is passed over."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest

from tests.control.house import House
from windfall import codec, stored_forms
from windfall.control import state_snapshots
from windfall.control.job_loop import JobLoop
from windfall.control.state_snapshots import JournalUnreadable, LoopState, restore
from windfall.core import driver
from windfall.core.fleet_state import FleetState
from windfall.errors import DatabaseUnreachable
from windfall.events import TimerFired
from windfall.structs import replace

EVERY = 3


@dataclass
class Kept:
    """Snapshots that are all kept."""

    content: dict[int, bytes] = field(default_factory=dict)
    broken: bool = False

    def newest(self) -> Iterator[tuple[int, bytes]]:
        yield from sorted(self.content.items(), reverse=True)

    def write(self, sequence: int, data: bytes) -> None:
        if self.broken:
            raise DatabaseUnreachable("the database does not answer")
        self.content[sequence] = data


def job_loop(
    house: House,
    snapshots: Kept,
    in_background: Callable[[Callable[[], None]], None] = lambda call: call(),
    every: int = EVERY,
) -> JobLoop:
    """A job loop that makes snapshots."""
    house.term += 1
    ports = house.ports()
    ports.snapshots, ports.snapshot_rows, ports.in_background = snapshots, every, in_background
    return JobLoop(house.job, ports)


@pytest.fixture
def lived() -> tuple[House, Kept]:
    """A job that trained, lost a machine to a notice, and got another: some twenty rows."""
    house, snapshots = House(), Kept()
    loop = job_loop(house, snapshots)
    for _ in range(3):
        name = house.trains(loop)
        house.market.preempt(name, None)
        house.turns(loop, 8.0)
    assert len(snapshots.content) >= 3
    return house, snapshots


def whole(house: House) -> LoopState:
    """What all rows lead to."""
    return restore(house.journal, None, house.logged.append).kept


def test_replay_agrees_across_snapshots(lived: tuple[House, Kept]) -> None:
    """From each snapshot the rows after it lead to the state, timers, bills and decisions that all rows lead to."""
    house, snapshots = lived
    rows = [codec.row_from_line(line) for line in house.journal.lines]
    for sequence, data in snapshots.content.items():
        found = restore(house.journal, Kept({sequence: data}), house.logged.append)
        assert found.kept == whole(house)
        assert found.replayed == len(rows) - sequence
        state = state_snapshots.from_bytes(data, house.journal.lines[sequence - 1]).state
        for row in rows[sequence:]:
            state, decisions, commands = driver.react(state, row.at, row.facts)
            assert (decisions, commands) == (row.decisions, row.commands)
        assert state == whole(house).state
    assert house.logged == []


def test_a_restart_reads_only_the_rows_after_the_newest_snapshot(lived: tuple[House, Kept]) -> None:
    """Fewer than lie between two snapshots, and the row that the snapshot follows."""
    house, snapshots = lived
    asked: list[int] = []
    rows = house.journal.rows
    house.journal.rows = lambda after=0: asked.append(after) or rows(after)  # type: ignore[func-returns-value, method-assign]
    again = job_loop(house, snapshots)

    assert asked == [max(snapshots.content) - 1]
    assert len(house.journal.lines) - asked[0] <= EVERY + 1
    assert again.state == whole(house).state


def test_a_job_goes_on_from_a_snapshot_as_from_its_journal(lived: tuple[House, Kept]) -> None:
    """The next controller's rows are the same: its facts, decisions, commands and their times."""
    house, snapshots = lived
    lines, at = list(house.journal.lines), house.timeline.time
    house.turns(job_loop(house, snapshots), 5.0)
    assert house.timeline.time > at
    first = codec.row_from_line(house.journal.lines[len(lines)])
    state, decisions, commands = driver.react(whole_of(lines).state, first.at, first.facts)

    assert (decisions, commands) == (first.decisions, first.commands)
    assert first.sequence == len(lines) + 1
    assert state.listed == frozenset()


def whole_of(lines: list[str]) -> LoopState:
    house = House()
    house.journal.lines = lines
    return whole(house)


def test_a_timer_that_was_set_before_a_snapshot_fires_after_it() -> None:
    """The command that set it lies before the rows that are read."""
    house, snapshots = House(capacity=0), Kept()
    loop = job_loop(house, snapshots, every=1)
    while not whole(house).timers:
        house.turns(loop, 1.0)
    (due,) = whole(house).timers.values()
    newest = max(snapshots.content)
    house.journal.lines = house.journal.lines[:newest]
    assert restore(house.journal, snapshots, house.logged.append).replayed == 0
    again = job_loop(house, snapshots)
    house.turns(again, due - whole(house).state.now + 120.0)
    later = [codec.row_from_line(line) for line in house.journal.lines[newest:]]

    assert any(isinstance(fact, TimerFired) for row in later for fact in row.facts)


def damaged(data: bytes) -> bytes:
    """The same with another character in a name, which any decoder would believe."""
    assert b"gpt-1" in data
    return data.replace(b"gpt-1", b"gpt-2")


def of_other_code(data: bytes, monkeypatch: pytest.MonkeyPatch, house: House, sequence: int) -> bytes:
    """The same state as a Windfall would write it whose rows have another version."""
    line = house.journal.lines[sequence - 1]
    kept = state_snapshots.from_bytes(data, line)
    with monkeypatch.context() as patch:
        patch.setattr(state_snapshots, "_form", lambda: f"{stored_forms.ROW.version + 1} {'0' * 32}")
        return state_snapshots.to_bytes(kept, line)


@pytest.mark.parametrize("what", ["damaged", "half", "empty", "not one", "foreign", "future"])
@pytest.mark.parametrize("count", [1, 99])
def test_a_snapshot_that_cannot_be_used_is_passed_over(
    what: str, count: int, lived: tuple[House, Kept], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An older one serves, or the whole journal; a line in the log says so for each, and the state is the same."""
    house, snapshots = lived
    others = sorted(snapshots.content)
    for sequence in others[::-1][:count]:
        data = snapshots.content[sequence]
        line = house.journal.lines[sequence - 1]
        snapshots.content[sequence] = {
            "damaged": lambda: damaged(data),  # noqa: B023
            "half": lambda: data[: len(data) // 2],  # noqa: B023
            "empty": lambda: b"",
            "not one": lambda: b"0" * 4000,
            "foreign": lambda: state_snapshots.to_bytes(LoopState(), line.replace("1", "2")),  # noqa: B023
            "future": lambda: of_other_code(data, monkeypatch, house, sequence),  # noqa: B023
        }[what]()
    found = restore(house.journal, snapshots, house.logged.append)

    assert found.kept == whole(house)
    assert found.replayed == len(house.journal.lines) - (others[-2] if count == 1 else 0)
    assert len(house.logged) == min(count, len(others))
    assert all("of row" in line and "is not used" in line for line in house.logged)


def test_a_snapshot_behind_the_end_of_the_journal_is_not_used(lived: tuple[House, Kept]) -> None:
    """A database that was put back from a copy has fewer rows than its snapshots followed."""
    house, snapshots = lived
    house.journal.lines = house.journal.lines[: min(snapshots.content) - 1]
    found = restore(house.journal, snapshots, house.logged.append)

    assert found.kept == whole(house)
    assert found.replayed == len(house.journal.lines)


def test_a_turn_does_not_wait_for_its_snapshot() -> None:
    """Neither encoding nor writing happens before it returns, and the next one is not begun before that."""
    house, snapshots = House(), Kept()
    waiting: list[Callable[[], None]] = []
    loop = job_loop(house, snapshots, waiting.append)
    house.trains(loop)
    assert len(house.journal.lines) >= 2 * EVERY
    assert len(waiting) == 1
    assert snapshots.content == {}

    written = len(house.journal.lines)
    waiting.pop()()
    (sequence,) = snapshots.content
    assert sequence < written, "the state of its own row, however late it is written"
    assert restore(house.journal, snapshots, house.logged.append).kept == whole(house)


def test_a_snapshot_that_cannot_be_written_ends_nothing() -> None:
    """The job goes on, the log says it once, and the next one is tried."""
    house, snapshots = House(), Kept(broken=True)
    loop = job_loop(house, snapshots)
    house.trains(loop)
    assert [line for line in house.logged if "snapshot" in line] == [
        "no snapshot was written, so a restart will take longer: the database does not answer"
    ]

    snapshots.broken = False
    house.market.preempt(house.alive[0].machine_id, None)
    house.turns(loop, 10.0)
    assert snapshots.content


def test_a_journal_that_cannot_be_read_is_not_hidden_by_a_snapshot(lived: tuple[House, Kept]) -> None:
    """A damaged row after the snapshot sets the job aside, as without one."""
    house, snapshots = lived
    house.journal.lines[-1] = "no row"
    snapshots.content = {
        number: data for number, data in snapshots.content.items() if number < len(house.journal.lines)
    }
    with pytest.raises(JournalUnreadable, match=f"row {len(house.journal.lines)} of its journal cannot be read"):
        job_loop(house, snapshots)


def test_another_field_is_another_shape() -> None:
    """A state whose types have a field more, less, or of another type is not read as this one."""
    more = type("FleetState", (FleetState,), {"__annotations__": {"extra": int}, "extra": 0}, frozen=True)

    assert codec.shape(FleetState) == codec.shape(FleetState)
    assert codec.shape(more) != codec.shape(FleetState)
    assert replace(LoopState(), cursors={"p": "1"}) != LoopState()
