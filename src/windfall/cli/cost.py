"""`windfall cost`: where a run's time and money went, as text, as a chart, as JSON."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from rich.console import Console

from windfall.cli import job_verbs, run_reference, shape_verbs, tier_verbs
from windfall.cli.options import Json, Plot, StateFolder
from windfall.cli.run_verbs import open_run
from windfall.errors import LogDamaged, Misuse, RunFailed, StoreError
from windfall.events import Row
from windfall.ports import Steps
from windfall.report import account_tables, attempt_timeline, bill, cost_page, machine_timeline, run_leases
from windfall.report.account import Account, Lease, account, as_json
from windfall.report.console import console
from windfall.storage import object_stores, run_log, spool_journal
from windfall.structs import replace
from windfall.terms import Record, Term, WallTime


def cost(run: str, /, *, plot: Plot = None, state: StateFolder = None, json_: Json = False) -> None:
    """Show what a job or run cost, where its time went, and what was lost and why.

    For a job: hours and dollars of each machine, estimated and settled separately, and the cost of the same hours on
    demand.

    Example: `windfall cost gpt-3f9a2c --plot timeline.png`

    Args:
        run: a job, or the URL of a run.
        plot: also draw the timeline to this file (.png or .svg).
        state: folder for Windfall's own files (default: $XDG_STATE_HOME/windfall).
        json_: print one JSON object.
    """
    if plot is not None:
        if plot.suffix not in (".png", ".svg"):
            raise Misuse(f"--plot: {plot} must end in .png or .svg")
        if not os.access(plot.absolute().parent, os.W_OK):
            raise Misuse(f"--plot: cannot write {plot}: choose a file in an existing folder that you can write to")
    if not run_reference.is_url(run):
        _cost_of_job(run, state, plot, json_=json_)
        return
    made = account_of(run)
    if plot is not None:
        attempt_timeline.draw(made, plot, title=run)
    if json_:
        print(json.dumps(as_json(made)))
        return
    screen = console()
    screen.print(account_tables.render(made))
    screen.print()
    screen.print(attempt_timeline.text(made, columns=min(screen.width, 100)))
    _name_plot(screen, plot)


def _cost_of_job(reference: str, state: Path | None, plot: Path | None, *, json_: bool) -> None:
    with run_reference.controller(state) as client:
        view = run_reference.find(client, reference)
        rows = list(job_verbs.rows_of(client, view.job_id))
    made = bill.bill(rows, WallTime(time.time()))
    if made is None:
        raise RunFailed(f"{view.job_id} has no events yet: try again in a moment")
    run, unread = None, ""
    try:
        if job_verbs.is_bag(rows):
            raise Misuse(f"a bag has items, which `windfall ps {view.job_id}` shows")
        if view.run_deleted:
            raise Misuse("its run was deleted, with its journal")
        if tier_verbs.find_tiers(view.run_url) is not None:
            raise Misuse(f"a parameter server has clocks, which `windfall ps {view.job_id}` shows")
        if shape_verbs.find_shapes(view.run_url) is not None:
            raise Misuse(f"an elastic training has steps of its own, which `windfall ps {view.job_id}` shows")
        run = account_of(view.run_url, made.ends())
    except (Misuse, StoreError, LogDamaged, ValueError) as error:
        unread = f"no account of the run's time: {error}"
    if plot is not None:
        machine_timeline.draw(made, run, plot)
    if json_:
        print(json.dumps(cost_page.as_json(made, run, run_deleted=view.run_deleted)))
        return
    screen = console()
    screen.print(cost_page.render(made, run, unread, columns=screen.width))
    _name_plot(screen, plot)


def _name_plot(screen: Console, plot: Path | None) -> None:
    if plot is not None:
        screen.print(f"timeline: {plot}")


def account_of(url: str, gone: Mapping[str, WallTime] = MappingProxyType({})) -> Account:
    """Compute a run's account from its log and journal.

    Args:
        url: of the run.
        gone: when machines ended, as their provider reports it.
    """
    reader, state = open_run(url)
    records = reader.run(_records())
    rows: dict[Term, list[Row]] = {}
    for row in reader.run(spool_journal.read_journal()).rows:
        rows.setdefault(row.term, []).append(row)
    alive = state.term if state.holder is not None and _beats(reader, state.term) else None
    leases = [_with_reach(reader, lease, gone.get(lease.holder)) for lease in run_leases.leases(records)]
    return account(rows, leases, commits=run_leases.commits(records), alive=alive)


def _with_reach(reader: object_stores.Reader, lease: Lease, gone_at: WallTime | None) -> Lease:
    """Add what is known about the end of a machine that never released the run."""
    if lease.released_at is not None:
        return lease
    reached = lease.reached
    if reached is None and (last := reader.run(run_log.read_heartbeat(lease.term))) is not None:
        reached = last.reached
    return replace(lease, reached=reached, gone_at=gone_at)


def _records() -> Steps[list[Record]]:
    records: list[Record] = []
    while (found := (yield from run_log.read_record(len(records) + 1))) is not None:
        records.append(found)
    return records


def _beats(reader: object_stores.Reader, term: Term) -> bool:
    """Whether the holder's last heartbeat, by its own wall clock, is less than half a minute old."""
    last = reader.run(run_log.read_heartbeat(term))
    return last is not None and reader.clock.wall_time() - last.wall_time < 30
