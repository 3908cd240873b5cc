"""The journal of a run: first on the machine's disk, then in the store as numbered segments, merged when read.

Each term writes its own spool; rows are numbered within it, so that rows a vanished machine could not ship appear as a
gap.
"""

from __future__ import annotations

import errno
import itertools
import os
import weakref
from collections.abc import Iterator

from windfall import codec
from windfall.errors import LogDamaged, StoreFull
from windfall.events import ReleaseRun, Row
from windfall.ports import Steps
from windfall.storage.store_operations import get_all, keys_under, put
from windfall.structs import Struct
from windfall.terms import Term
from windfall.wire.run_layout import SPOOL, spool_key

SEGMENT_BYTES_MAX = 4 * 1024 * 1024
"""Maximum length of a segment [B]; a spool that grew while the store was unreachable is sent as several."""
SEGMENTS_AT_ONCE = 16


class SpoolSegment(Struct, frozen=True):
    """A range of complete rows to be shipped: the bytes of the spool from `start` to `end`."""

    key: str
    number: int
    start: int
    end: int
    data: bytes


class SpoolJournal:
    """A term's journal on the local disk (`ports.Journal`), with the position up to which it has been shipped.

    One thread may append while another ships.  A restarted agent opens the same folder and continues; an incomplete last
    row, left by a crash, is removed when the spool is opened.
    """

    def __init__(self, folder: str, term: int) -> None:
        os.makedirs(folder, exist_ok=True)
        self.term = term
        self._path = os.path.join(folder, f"journal-{term:08d}.jsonl")
        self._mark = f"{self._path}.shipped"
        self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        self._let_go = weakref.finalize(self, os.close, self._file)
        self._cut_torn_row()

    def _cut_torn_row(self) -> None:
        with open(self._path, "rb") as file:
            whole = sum(len(line) for line in file if line.endswith(b"\n"))
        os.ftruncate(self._file, whole)

    def append(self, line: str) -> None:
        """Append one row; it survives this process, but not necessarily the machine: then the store's copy counts.

        There is no fsync: it would wait for the write-back of a checkpoint to the same disk, possibly during a notice.

        Raises:
            StoreFull: the disk is full; nothing was appended.
        """
        assert "\n" not in line, "a row is one line"
        data = f"{line}\n".encode()
        end = os.fstat(self._file).st_size
        try:
            written = os.write(self._file, data)
            if written < len(data):
                raise OSError(errno.ENOSPC, "no space left for a complete row")
        except OSError as error:
            os.ftruncate(self._file, end)
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise StoreFull(f"{self._path} cannot be written, the disk is full: free some space") from error

    def rows(self, after: int = 0) -> Iterator[str]:
        """Yield the rows so far after row `after`, oldest first."""
        with open(self._path, encoding="utf-8") as file:
            for line in itertools.islice(file, after, None):
                if line.endswith("\n"):
                    yield line[:-1]

    def unshipped(self) -> SpoolSegment | None:
        """Return the next range of complete rows that is not in the store, None if there is none."""
        number, start = self._shipped()
        data = os.pread(self._file, SEGMENT_BYTES_MAX, start)
        length = data.rfind(b"\n") + 1
        if length == 0:
            if len(data) == SEGMENT_BYTES_MAX:
                raise LogDamaged(f"{self._path} has a row of more than {SEGMENT_BYTES_MAX} bytes")
            return None
        key = spool_key(self.term, number + 1)
        return SpoolSegment(key, number + 1, start, start + length, data[:length])

    def _shipped(self) -> tuple[int, int]:
        try:
            with open(self._mark, encoding="ascii") as file:
                number, end = file.read().split()
        except FileNotFoundError:
            return 0, 0
        return int(number), int(end)

    def mark_shipped(self, segment: SpoolSegment) -> None:
        """Record that the store has this segment; if the record is lost, the segment is written again, never shorter."""
        draft = f"{self._mark}.new"
        with open(draft, "w", encoding="ascii") as file:
            file.write(f"{segment.number} {segment.end}")
        os.replace(draft, self._mark)

    def close(self) -> None:
        """Close the file; happens at the latest when this object is garbage-collected."""
        self._let_go()


def ship(journal: SpoolJournal) -> Steps[int]:
    """Ship all rows so far to the store; return the number of segments."""
    count = 0
    while (segment := journal.unshipped()) is not None:
        yield from put(segment.key, segment.data)
        journal.mark_shipped(segment)
        count += 1
    return count


class JournalGap(Struct, frozen=True):
    """Missing rows: those between `after` and `before` (None: unknown number, the end of the term is missing)."""

    term: Term
    after: int
    before: int | None


class MergedJournal(Struct, frozen=True):
    """The rows of all terms in order, and where rows are missing."""

    rows: tuple[Row, ...]
    gaps: tuple[JournalGap, ...]


def read_spool(term: int) -> Steps[list[Row]]:
    """Return the shipped rows of one term, oldest first.

    Raises:
        LogDamaged: a segment cannot be read.
        NewerFormat: it was written by a newer Windfall.
    """
    rows: list[Row] = []
    first = 1
    while True:
        keys = [spool_key(term, number) for number in range(first, first + SEGMENTS_AT_ONCE)]
        for key, data in zip(keys, (yield from get_all(keys)), strict=True):
            if data is None:
                return rows
            rows.extend(_parse(key, data))
        first += SEGMENTS_AT_ONCE


def _parse(key: str, data: bytes) -> Iterator[Row]:
    for number, line in enumerate(data.decode(errors="replace").splitlines(), start=1):
        try:
            yield codec.row_from_line(line)
        except (ValueError, KeyError, TypeError) as error:
            raise LogDamaged(f"{key} is damaged in line {number} ({error})") from error


def read_journal() -> Steps[MergedJournal]:
    """Return the rows of all terms, in order of term and sequence, with the gaps between them."""
    keys = yield from keys_under(SPOOL)
    terms = sorted({int(name) for key in keys if (name := key.split("/")[1]).isdecimal()})
    rows: list[Row] = []
    gaps: list[JournalGap] = []
    for term in terms:
        found = yield from read_spool(term)
        gaps.extend(_gaps(found, Term(term), newest=term == terms[-1]))
        rows.extend(found)
    return MergedJournal(tuple(rows), tuple(gaps))


def _gaps(rows: list[Row], term: Term, *, newest: bool) -> Iterator[JournalGap]:
    last = 0
    for row in rows:
        if row.sequence != last + 1:
            yield JournalGap(term, last, row.sequence)
        last = row.sequence
    ended = any(isinstance(command, ReleaseRun) for row in rows for command in row.commands)
    if not newest and not ended:
        yield JournalGap(term, last, None)
