"""The journal: on disk before anything else, in the store soon after, and honest about what is missing."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from tests.storage.make import Bench
from windfall import codec
from windfall.errors import LogDamaged, NewerFormat, StoreFull, StoreUnreachable
from windfall.events import AgentResumed, ReleaseRun, Row
from windfall.storage import spool_journal
from windfall.terms import Cause, Instant, Outcome, Term, WallTime
from windfall.wire.run_layout import spool_key


def row(sequence: int, term: int = 1, *, last: bool = False) -> Row:
    commands = (ReleaseRun(Outcome.DONE, Cause.DONE),) if last else ()
    return Row(Term(term), sequence, Instant(1.0 * sequence), WallTime(0), (AgentResumed(),), (), commands)


def write(spool: spool_journal.SpoolJournal, *rows: Row) -> None:
    for one in rows:
        spool.append(codec.row_to_line(one))


def test_rows_survive_the_agent(tmp_path: Path) -> None:
    """What was appended is there for the next agent of the term, in order."""
    spool = spool_journal.SpoolJournal(str(tmp_path), 1)
    write(spool, row(1), row(2))
    spool.close()
    again = spool_journal.SpoolJournal(str(tmp_path), 1)
    write(again, row(3))
    assert [codec.row_from_line(line).sequence for line in again.rows()] == [1, 2, 3]


def test_a_torn_row_is_cut_off(tmp_path: Path) -> None:
    """A crash in the middle of a row loses that row alone, and does not spoil the next one."""
    write(spool_journal.SpoolJournal(str(tmp_path), 1), row(1))
    with (tmp_path / "journal-00000001.jsonl").open("a") as file:
        file.write('{"version": 1, "ro')
    again = spool_journal.SpoolJournal(str(tmp_path), 1)
    assert len(list(again.rows())) == 1
    write(again, row(2))
    assert [codec.row_from_line(line).sequence for line in again.rows()] == [1, 2]


def test_a_full_disk_leaves_no_half_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The row that did not fit is not there, and the sentence says what to do."""
    spool = spool_journal.SpoolJournal(str(tmp_path), 1)
    write(spool, row(1))
    real = os.write

    def short(file: int, data: bytes) -> int:
        return real(file, data[:10])

    monkeypatch.setattr(os, "write", short)
    with pytest.raises(StoreFull, match="the disk is full: free some space"):
        write(spool, row(2))
    monkeypatch.setattr(os, "write", real)
    write(spool, row(2))
    assert [codec.row_from_line(line).sequence for line in spool.rows()] == [1, 2]


def test_other_errors_of_the_disk_are_not_hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that breaks is not called full."""
    spool = spool_journal.SpoolJournal(str(tmp_path), 1)

    def broken(_: int, __: bytes) -> int:
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(os, "write", broken)
    with pytest.raises(OSError, match="broken"):
        write(spool, row(1))


def test_a_row_does_not_wait_for_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sync would stand behind a checkpoint that is being written back, while a notice runs."""
    spool = spool_journal.SpoolJournal(str(tmp_path), 1)
    synced: list[int] = []
    monkeypatch.setattr(os, "fdatasync", synced.append)
    monkeypatch.setattr(os, "fsync", synced.append)
    write(spool, row(1))
    assert synced == []


def test_rows_are_shipped_once_in_segments(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each shipping sends what is new; long spools go in several segments of whole rows."""
    spool = spool_journal.SpoolJournal(str(tmp_path), 1)
    write(spool, row(1))
    assert bench.run(spool_journal.ship(spool)) == 1
    assert bench.run(spool_journal.ship(spool)) == 0
    monkeypatch.setattr(spool_journal, "SEGMENT_BYTES_MAX", 500)
    write(spool, *(row(number) for number in range(2, 12)))
    assert bench.run(spool_journal.ship(spool)) > 2
    assert [one.sequence for one in bench.run(spool_journal.read_spool(1))] == list(range(1, 12))


def test_an_agent_started_again_ships_on(bench: Bench, tmp_path: Path) -> None:
    """Neither a reply that was lost nor a new agent doubles or loses a row."""
    spool = spool_journal.SpoolJournal(str(tmp_path), 1)
    write(spool, row(1))
    bench.run(spool_journal.ship(spool))
    write(spool, row(2))
    steps = spool_journal.ship(spool)
    operation = next(steps)
    bench.store.put(operation.key, operation.data)
    with pytest.raises(StoreUnreachable):
        steps.throw(StoreUnreachable("the reply was lost"))
    again = spool_journal.SpoolJournal(str(tmp_path), 1)
    write(again, row(3))
    bench.run(spool_journal.ship(again))
    assert [one.sequence for one in bench.run(spool_journal.read_spool(1))] == [1, 2, 3]


def test_many_segments_are_read_in_order(bench: Bench, tmp_path: Path) -> None:
    """More segments than are fetched side by side come back in order."""
    spool = spool_journal.SpoolJournal(str(tmp_path), 1)
    for number in range(1, 40):
        write(spool, row(number))
        bench.run(spool_journal.ship(spool))
    assert [one.sequence for one in bench.run(spool_journal.read_spool(1))] == list(range(1, 40))


def ship_term(bench: Bench, folder: Path, *rows: Row) -> None:
    spool = spool_journal.SpoolJournal(str(folder / f"machine-{rows[0].term}"), rows[0].term)
    write(spool, *rows)
    bench.run(spool_journal.ship(spool))


def test_terms_are_merged_and_gaps_are_named(bench: Bench, tmp_path: Path) -> None:
    """A vanished machine's missing end, and rows missing in between, are told; the newest term may still run."""
    ship_term(bench, tmp_path, row(1, 1), row(2, 1, last=True))
    ship_term(bench, tmp_path, row(1, 3), row(2, 3))
    ship_term(bench, tmp_path, row(1, 7), row(4, 7))
    merged = bench.run(spool_journal.read_journal())
    assert [(one.term, one.sequence) for one in merged.rows] == [(1, 1), (1, 2), (3, 1), (3, 2), (7, 1), (7, 4)]
    assert merged.gaps == (spool_journal.JournalGap(Term(3), 2, None), spool_journal.JournalGap(Term(7), 1, 4))


@pytest.mark.parametrize(
    "content", [b"{", b"\xff\xfe", b'{"version": 4}', b'{"version": 4, "row": {"type": "Row"}}', b"null"]
)
def test_a_damaged_segment_is_named(bench: Bench, content: bytes) -> None:
    """The sentence says which object and which line."""
    bench.store.put(spool_key(1, 1), codec.row_to_line(row(1)).encode() + b"\n" + content)
    with pytest.raises(LogDamaged, match=r"^spool/00000001/00000001.jsonl is damaged in line 2"):
        bench.run(spool_journal.read_spool(1))


def test_a_newer_journal_is_refused(bench: Bench) -> None:
    """A row of a newer Windfall is not guessed at."""
    bench.store.put(spool_key(1, 1), b'{"version": 99, "row": {}}')
    with pytest.raises(NewerFormat, match="version 99"):
        bench.run(spool_journal.read_journal())
