"""The snapshots of a job's state in the controller's database."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine

from windfall.storage.database_schema import SNAPSHOTS, reading

SNAPSHOTS_KEPT = 2
"""How many snapshots of a job are kept: if the newest is damaged, the one before it still saves most of the replay."""


class SqlSnapshots:
    """`ports.Snapshots` of one job for one controller's term."""

    def __init__(self, engine: Engine, fenced: Callable[[], AbstractContextManager[Connection]], job_id: str) -> None:
        self._engine = engine
        self._fenced = fenced
        self._job_id = job_id

    def newest(self) -> Iterator[tuple[int, bytes]]:
        """Yield the number of the row that each follows, and its content; newest first."""
        mine = SNAPSHOTS.c.job_id == self._job_id
        newest_first = sa.select(SNAPSHOTS.c.sequence).where(mine).order_by(SNAPSHOTS.c.sequence.desc())
        with reading(self._engine) as connection:
            numbers = connection.execute(newest_first).scalars().all()
        for number in numbers:
            one = sa.select(SNAPSHOTS.c.data).where(mine, SNAPSHOTS.c.sequence == number)
            with reading(self._engine) as connection:
                data = connection.execute(one).scalar_one_or_none()
            if data is not None:
                yield number, bytes(data)

    def write(self, sequence: int, data: bytes) -> None:
        """Store the snapshot that follows row `sequence`, and drop all but the newest two.

        Raises:
            ControllerReplaced: another controller took over the installation; nothing was written.
            DatabaseUnreachable: it is unknown whether it was written.
        """
        mine = SNAPSHOTS.c.job_id == self._job_id
        with self._fenced() as connection:
            connection.execute(sa.delete(SNAPSHOTS).where(mine, SNAPSHOTS.c.sequence >= sequence))
            connection.execute(sa.insert(SNAPSHOTS).values(job_id=self._job_id, sequence=sequence, data=data))
            numbers = connection.execute(sa.select(SNAPSHOTS.c.sequence).where(mine)).scalars().all()
            dropped = sorted(numbers)[:-SNAPSHOTS_KEPT]
            connection.execute(sa.delete(SNAPSHOTS).where(mine, SNAPSHOTS.c.sequence.in_(dropped)))
