"""A job's journal as rows of the controller's database: numbered without gaps, written by one controller at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine

from windfall.errors import LogDamaged
from windfall.storage.sql_schema import ROWS, reading

_PAGE = 500
"""Rows that are read at once: a month of a job is longer than memory should be."""


class SqlJournal:
    """`ports.Journal` of one job for one controller's term; used by one thread.

    After `DatabaseUnreachable` the row may be there or not: the same line again is right in both cases.  Who cannot
    repeat it makes another journal and reads what is there.
    """

    def __init__(self, engine: Engine, fenced: Callable[[], AbstractContextManager[Connection]], job_id: str) -> None:
        self._engine = engine
        self._fenced = fenced
        self._job_id = job_id
        self._next: int | None = None

    def append(self, line: str) -> None:
        """Append one row; it is on the database's disk when this returns.

        Raises:
            ControllerReplaced: another controller took the installation; nothing was written.
            DatabaseUnreachable: whether it was written is not known.
            LogDamaged: another row than this one is at its place, or rows before it are missing.
        """
        with self._fenced() as connection:
            number = self._next or self._count(connection) + 1
            found = connection.execute(
                sa.select(ROWS.c.sequence, ROWS.c.line)
                .where(ROWS.c.job_id == self._job_id, ROWS.c.sequence >= number - 1)
                .order_by(ROWS.c.sequence)
                .limit(3)
            ).all()
            before = [row.sequence for row in found if row.sequence < number]
            here = [row for row in found if row.sequence >= number]
            if (not before and number > 1) or len(here) > 1 or (here and here[0].line != line):
                raise LogDamaged(
                    f"row {number} of the journal of {self._job_id} is not where this controller left it: start the "
                    "controller again"
                )
            if not here:
                connection.execute(sa.insert(ROWS).values(job_id=self._job_id, sequence=number, line=line))
            self._next = number  # an answer that is lost from here on leaves the same number for the same line
        self._next = number + 1

    def rows(self) -> Iterator[str]:
        """Yield the rows so far, oldest first; rows appended meanwhile are yielded too."""
        for _, line in read_rows(self._engine, self._job_id, after=0):
            yield line

    def _count(self, connection: Connection) -> int:
        last = sa.select(sa.func.max(ROWS.c.sequence)).where(ROWS.c.job_id == self._job_id)
        return connection.execute(last).scalar_one() or 0


def read_rows(engine: Engine, job_id: str, *, after: int, limit: int | None = None) -> Iterator[tuple[int, str]]:
    """Yield a job's rows with their numbers, from the one behind `after` on, a page at a time.

    Raises:
        LogDamaged: a row is missing.
    """
    while limit is None or limit > 0:
        size = _PAGE if limit is None else min(limit, _PAGE)
        with reading(engine) as connection:
            page = connection.execute(
                sa.select(ROWS.c.sequence, ROWS.c.line)
                .where(ROWS.c.job_id == job_id, ROWS.c.sequence > after)
                .order_by(ROWS.c.sequence)
                .limit(size)
            ).all()
        for number, line in page:
            if number != after + 1:
                raise LogDamaged(f"row {after + 1} of the journal of {job_id} is missing")
            after = number
            yield number, line
        if len(page) < size:
            return
        limit = None if limit is None else limit - len(page)
