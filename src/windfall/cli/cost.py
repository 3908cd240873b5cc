"""`windfall cost`: where a run's time went, in words, as a picture, as data."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path

from rich.console import Console

from windfall import wiring
from windfall.cli.runs import Json, open_run
from windfall.errors import Misuse
from windfall.events import Row
from windfall.ports import Steps
from windfall.report import tables, timeline
from windfall.report.account import Account, Tenure, account, as_json
from windfall.storage import journal, log
from windfall.terms import Epoch, PointRef, Record, RecordKind


def cost(url: str, *, plot: Path | None = None, json_: Json = False) -> None:
    """Say where the time went, what was lost and why.

    Example: `windfall cost s3://lab/run42 --plot timeline.png`

    Args:
        url: the run.
        plot: write the timeline as a picture (PNG or SVG) to this file.
        json_: one JSON object.
    """
    if plot is not None:
        if plot.suffix not in (".png", ".svg"):
            raise Misuse(f"--plot: {plot} must end in .png or .svg")
        if not os.access(plot.absolute().parent, os.W_OK):
            raise Misuse(f"--plot: {plot} cannot be written: name a file in a folder that exists and is yours")
    made = account_of(url)
    if plot is not None:
        timeline.draw(made, plot, title=url)
    if json_:
        print(json.dumps(as_json(made)))
        return
    console = Console(highlight=False)
    console.print(tables.whole(made))
    console.print(timeline.text(made, columns=min(console.width, 100)), markup=False, highlight=False)
    if plot is not None:
        console.print(f"timeline: {plot}", highlight=False)


def account_of(url: str) -> Account:
    """Read a run's log and journal and make its account."""
    reader, state = open_run(url)
    records = reader.run(_records())
    rows: dict[Epoch, list[Row]] = {}
    for row in reader.run(journal.read_journal()).rows:
        rows.setdefault(row.epoch, []).append(row)
    alive = state.epoch if state.holder is not None and _beats(reader, state.epoch) else None
    tenures = [_with_beat(reader, tenure) for tenure in _tenures(records)]
    return account(rows, tenures, commits=_commits(records), alive=alive)


def _with_beat(reader: wiring.Reader, tenure: Tenure) -> Tenure:
    """Add the last sign of life of a machine that never released the run."""
    last = None if tenure.released_at is not None else reader.run(log.read_beat(tenure.epoch))
    return tenure if last is None else dataclasses.replace(tenure, beat_at=last.wall)


def _records() -> Steps[list[Record]]:
    records: list[Record] = []
    while (found := (yield from log.read_record(len(records) + 1))) is not None:
        records.append(found)
    return records


def _tenures(records: list[Record]) -> list[Tenure]:
    tenures: dict[Epoch, Tenure] = {}
    for record in records:
        state = record.state
        if record.kind is RecordKind.TAKE and state.holder is not None:
            tenures[state.epoch] = Tenure(state.epoch, state.holder.host, state.holder_since)
        elif record.kind is RecordKind.RELEASE:
            begun = tenures[state.epoch]
            cause = state.losses[-1].cause
            tenures[state.epoch] = Tenure(begun.epoch, begun.holder, begun.taken_at, record.wall, cause)
    return list(tenures.values())


def _commits(records: list[Record]) -> list[PointRef]:
    points = {point.point_id: point for record in records for point in record.state.points}
    return list(points.values())


def _beats(reader: wiring.Reader, epoch: Epoch) -> bool:
    """Whether the holder's last sign of life, by its own wall clock, is younger than half a minute."""
    last = reader.run(log.read_beat(epoch))
    return last is not None and reader.clock.wall() - last.wall < 30
