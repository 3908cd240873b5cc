"""`windfall cost`: where a run's time went, in words, as a picture, as data."""

from __future__ import annotations

import dataclasses
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from rich.console import Console

from windfall import wiring
from windfall.cli import jobs, named
from windfall.cli.runs import Folder, Json, open_run
from windfall.errors import Misuse, RunFailed, StoreError
from windfall.events import Row
from windfall.ports import Steps
from windfall.report import bill, bill_tables, lives, tables, timeline
from windfall.report.account import Account, Tenure, account, as_json
from windfall.report.showing import console
from windfall.storage import journal, log
from windfall.terms import CheckpointRef, Record, RecordKind, Term, WallTime


def cost(run: str, *, plot: Path | None = None, state: Folder = None, json_: Json = False) -> None:
    """Say what it cost, where the time went, what was lost and why.

    Of a job: hours and dollars of each machine, estimated and settled apart, and what the same would have cost on demand.

    Example: `windfall cost gpt-3f9a2c --plot timeline.png`

    Args:
        run: a job, or a run's URL.
        plot: write the timeline as a picture (PNG or SVG) to this file.
        state: this installation's folder (default: $XDG_STATE_HOME/windfall).
        json_: one JSON object.
    """
    if plot is not None:
        if plot.suffix not in (".png", ".svg"):
            raise Misuse(f"--plot: {plot} must end in .png or .svg")
        if not os.access(plot.absolute().parent, os.W_OK):
            raise Misuse(f"--plot: {plot} cannot be written: name a file in a folder that exists and is yours")
    if not named.is_url(run):
        _cost_of_job(run, state, plot, json_=json_)
        return
    made = account_of(run)
    if plot is not None:
        timeline.draw(made, plot, title=run)
    if json_:
        print(json.dumps(as_json(made)))
        return
    screen = console()
    screen.print(tables.whole(made))
    screen.print(timeline.text(made, columns=min(screen.width, 100)))
    _name_plot(screen, plot)


def _cost_of_job(reference: str, state: Path | None, plot: Path | None, *, json_: bool) -> None:
    with named.controller(state) as client:
        view = named.find(client, reference)
        made = bill.bill(jobs.rows_of(client, view.job_id), WallTime(time.time()))
    if made is None:
        raise RunFailed(f"nothing has happened to {view.job_id} yet: ask again in a moment")
    run, unread = None, ""
    try:
        if view.run_deleted:
            raise Misuse("the run was deleted, and its journal with it.")
        run = account_of(view.run_url, made.ends())
    except (Misuse, StoreError, ValueError) as error:
        unread = f"Where the time went is not known: {error}"
    if plot is not None:
        lives.draw(made, run, plot)
    if json_:
        undisturbed = None if run is None else made.undisturbed_usd(run)
        told = bill.as_json(made) | {
            "run_deleted": view.run_deleted,
            "undisturbed_usd": undisturbed,
            "run": None if run is None else as_json(run),
        }
        print(json.dumps(told))
        return
    screen = console()
    screen.print(bill_tables.whole(made, run, unread))
    screen.print(lives.text(made, run, columns=min(screen.width, 100)))
    _name_plot(screen, plot)


def _name_plot(screen: Console, plot: Path | None) -> None:
    if plot is not None:
        screen.print(f"timeline: {plot}")


def account_of(url: str, gone: Mapping[str, WallTime] = MappingProxyType({})) -> Account:
    """Read a run's log and journal and make its account.

    Args:
        url: the run's.
        gone: when machines ended, by what their provider says.
    """
    reader, state = open_run(url)
    records = reader.run(_records())
    rows: dict[Term, list[Row]] = {}
    for row in reader.run(journal.read_journal()).rows:
        rows.setdefault(row.term, []).append(row)
    alive = state.term if state.holder is not None and _beats(reader, state.term) else None
    tenures = [_with_reach(reader, tenure, gone.get(tenure.holder)) for tenure in _tenures(records)]
    return account(rows, tenures, commits=_commits(records), alive=alive)


def _with_reach(reader: wiring.Reader, tenure: Tenure, gone_at: WallTime | None) -> Tenure:
    """Add what is known of the end of a machine that never released the run."""
    if tenure.released_at is not None:
        return tenure
    reached = tenure.reached
    if reached is None and (last := reader.run(log.read_beat(tenure.term))) is not None:
        reached = last.reached
    return dataclasses.replace(tenure, reached=reached, gone_at=gone_at)


def _records() -> Steps[list[Record]]:
    records: list[Record] = []
    while (found := (yield from log.read_record(len(records) + 1))) is not None:
        records.append(found)
    return records


def _tenures(records: list[Record]) -> list[Tenure]:
    tenures: dict[Term, Tenure] = {}
    for record in records:
        state = record.state
        if record.kind is RecordKind.TAKE and state.holder is not None:
            if state.losses and (lost := tenures.get(state.losses[-1].term)) is not None and lost.released_at is None:
                tenures[lost.term] = dataclasses.replace(lost, reached=state.losses[-1].reached)
            tenures[state.term] = Tenure(state.term, state.holder.host, state.holder_since)
        elif record.kind is RecordKind.RELEASE:
            begun = tenures[state.term]
            cause = state.losses[-1].cause
            tenures[state.term] = Tenure(begun.term, begun.holder, begun.taken_at, record.wall, cause)
    return list(tenures.values())


def _commits(records: list[Record]) -> list[CheckpointRef]:
    points = {point.checkpoint_id: point for record in records for point in record.state.checkpoints}
    return list(points.values())


def _beats(reader: wiring.Reader, term: Term) -> bool:
    """Whether the holder's last sign of life, by its own wall clock, is younger than half a minute."""
    last = reader.run(log.read_beat(term))
    return last is not None and reader.clock.wall() - last.wall < 30
