"""The job side of the verbs: requests to the controller, and what its journal holds."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from windfall import codec
from windfall.cli import bag_verbs, run_reference, shape_verbs, tier_verbs
from windfall.control.controller_views import JobView
from windfall.core import replay as core_replay
from windfall.errors import LogDamaged, Misuse, StoreError
from windfall.events import Row
from windfall.fleet import TERMINAL, JobPhase, JobSubmitted, MachinesObserved
from windfall.market import Machine
from windfall.policies.layout.bag_rules import ROLE
from windfall.policies.layout.tier_rules import LEADER_SLOT
from windfall.policies.policy_registry import BAG
from windfall.report import bag_page, shape_page, tier_page
from windfall.report.bag_types import TriedType, tried_types
from windfall.report.console import console
from windfall.spelling import plain
from windfall.structs import replace
from windfall.terms import WallTime
from windfall.units import count_text, duration_text

if TYPE_CHECKING:
    from windfall.cli.client import Client

_POLL_S = 0.3
_ROWS_MAX = 50_000
"""At most this many rows of a journal are read to know a bag's machines: some seconds."""
_RESUME_S = 10.0
_COLUMNS_MAX = 160
_STATUS_MIN = 12
"""With less room than this, the list has no column for the status: the phase must do."""


def rows_of(client: Client, job_id: str) -> Iterator[Row]:
    """Yield a job's journal."""
    for row in client.rows(job_id):
        yield codec.row_from_line(row.line)


def is_bag(rows: Iterable[Row]) -> bool:
    """Return whether a job runs the items of a bag, by its journal."""
    return any(isinstance(fact, JobSubmitted) and fact.job.runtime.name == BAG for row in rows for fact in row.facts)


# ---------------------------------------------------------------------------------------------------------------- ps


def ps(references: tuple[str, ...], state: Path | None, *, json_: bool) -> None:
    """List all jobs, or show some in detail."""
    if not references and not run_reference.may_have_jobs(state):
        _list([], json_=json_)
        return
    with run_reference.controller(state) as client:
        if not references:
            _list(client.jobs(), json_=json_)
        for view in [run_reference.find(client, reference) for reference in references]:
            now, bag = WallTime(time.time()), _bag_of(view)
            types = () if bag is None else tried_types(bag.log, _machines_of(client, view.job_id), now)
            tiers, shapes = _tiers_of(view), _shapes_of(view)
            if json_:
                more = {} if bag is None else {"bag": bag_page.as_json(bag.log, now, view.details, types)}
                more |= {} if tiers is None else {"tiers": tier_page.as_json(tiers.record)}
                more |= {} if shapes is None else {"shapes": shape_page.as_json(shapes.record)}
                print(json.dumps(view_as_json(view) | more))
            elif bag is not None:
                _show_bag(view, bag, types)
            else:
                _show(view, tiers)
                if shapes is not None:
                    print()
                    shape_verbs.show(shapes, json_=False)


def _tiers_of(view: JobView) -> tier_verbs.OpenTiers | None:
    """Return the parameter server of a job; None if it is none, has not begun, or cannot be read now."""
    if view.run_deleted or all(one["name"] != LEADER_SLOT for one in view.details.get("slots", ())):
        return None
    try:
        return tier_verbs.find_tiers(view.run_url)
    except (StoreError, LogDamaged) as error:
        print(f"windfall: the parameter server cannot be read: {error}", file=sys.stderr)
        return None


def _shapes_of(view: JobView) -> shape_verbs.OpenShapes | None:
    """Return the elastic training of a job; None if it is none, has not begun, or cannot be read now."""
    if view.run_deleted or all(one["name"] != LEADER_SLOT for one in view.details.get("slots", ())):
        return None
    try:
        return shape_verbs.find_shapes(view.run_url)
    except (StoreError, LogDamaged) as error:
        print(f"windfall: the elastic training cannot be read: {error}", file=sys.stderr)
        return None


def _machines_of(client: Client, job_id: str) -> list[Machine]:
    """Return the machines of a job as they were listed last; none if its journal is so long that a user would wait for it."""
    found: dict[str, Machine] = {}
    mark = f'"{MachinesObserved.__name__}"'
    for place, row in enumerate(client.rows(job_id)):
        if place >= _ROWS_MAX:
            return []
        # Most rows are about progress; to decode all of them takes much longer than to look.
        if mark in row.line:
            facts = (fact for fact in codec.row_from_line(row.line).facts if isinstance(fact, MachinesObserved))
            found |= {machine.machine_id: machine for fact in facts for machine in fact.machines}
    return list(found.values())


def _bag_of(view: JobView) -> bag_verbs.OpenBag | None:
    """Return the bag of a job; None if it is none, or cannot be read now."""
    # Each machine of a bag is a runner; that of a wf.Executor has no number of items.
    runs_items = "items" in view.details or any(
        one["name"].startswith(f"{ROLE}-") for one in view.details.get("slots", ())
    )
    if not runs_items or view.run_deleted:
        return None
    try:
        return bag_verbs.find_bag(view.run_url)
    except (StoreError, LogDamaged) as error:
        print(f"windfall: the bag cannot be read: {error}", file=sys.stderr)
        return None


def _show_bag(view: JobView, bag: bag_verbs.OpenBag, types: Sequence[TriedType]) -> None:
    code = "" if view.exit_code is None else f" (exit code {view.exit_code})"
    lines = [
        ("bag", f"{view.job_id} (user {view.user})"),
        # Its items say better how long it takes than its pace since the submission.
        ("since", _since(replace(view, finish_at=None))),
        ("phase", f"{view.phase}{code}: {view.message}"),
        ("run", view.run_url),
    ]
    lines += [("waiting", reason) for reason in view.details.get("reasons", ())]
    for label, text in lines:
        print(f"{label:<10}{plain(text)}")
    bag_verbs.show(bag, view, json_=False, types=types)


def view_as_json(view: JobView) -> dict[str, Any]:
    """Return a view as a JSON object."""
    return {name: getattr(view, name) for name in JobView.__struct_fields__}


def _list(views: list[JobView], *, json_: bool) -> None:
    if json_:
        for view in views:
            print(json.dumps(view_as_json(view)))
        return
    if not views:
        print("no jobs yet: start one with `windfall run job.yaml`")
        return
    users = len({view.user for view in views}) > 1
    words = ("job", "user", "phase") if users else ("job", "phase")
    names = (*words, "age", "step", "left", "USD", "USD/h", "status")
    rows = [_job_row(view, users=users) for view in views]
    screen = console(width=_width())
    *widths, _ = (max(map(len, column)) for column in zip(names, *rows, strict=True))
    room = screen.width - sum(width + 2 for width in widths)
    table = Table(box=None, pad_edge=False)
    for name in names[:-1]:
        table.add_column(name, justify="left" if name in words else "right", no_wrap=True)
    if room >= _STATUS_MIN:
        table.add_column(names[-1])
    for *cells, status in rows:
        cut = sys.stdout.isatty() and len(status) > room
        table.add_row(*cells, *([f"{status[: room - 1]}\u2026" if cut else status] if room >= _STATUS_MIN else []))
    screen.print(table)


def _job_row(view: JobView, *, users: bool) -> tuple[str, ...]:
    """Return a job's line of the list; its times in one unit, to leave room for the status."""
    details, now = view.details, time.time()
    cost, rate = _usd(details.get("money", {}).get("due_usd", 0.0)), _usd(details.get("rate_usd_per_hour", 0.0))
    left = "-" if view.finish_at is None else _about(view.finish_at - now)
    who = (plain(view.job_id), *([plain(view.user)] if users else []), str(view.phase))
    of = f"/{details['items']}" if "items" in details else ""
    step, status = f"{details.get('step', 0)}{of}", plain(view.message).removeprefix(f"{view.phase}: ")
    return (*who, _about(now - view.created), step, left, cost, rate, status)


def _about(duration_s: float) -> str:
    return " ".join(duration_text(max(0.0, duration_s)).split()[:2])


def _width() -> int | None:
    """Return the width of a table: the terminal's, or wide enough for a file or pipe."""
    return None if sys.stdout.isatty() else _COLUMNS_MAX


def _since(view: JobView) -> str:
    """Return when a job was submitted, how long ago that was, and the time left at its present pace, if known."""
    now = time.time()
    at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(view.created))
    left = "" if view.finish_at is None else f", {duration_text(max(0.0, view.finish_at - now))} left at this pace"
    return f"{at}, {duration_text(max(0.0, now - view.created))} ago{left}"


def _usd(amount: float) -> str:
    return f"{amount:.4f}" if abs(amount) < 1 else f"{amount:.2f}"


def _show(view: JobView, tiers: tier_verbs.OpenTiers | None) -> None:
    details = view.details
    screen = console(width=_width())
    money = details.get("money", {})
    cost = f"{_usd(money.get('due_usd', 0.0))} USD so far, {_usd(details.get('rate_usd_per_hour', 0.0))} USD/h now"
    saved = details.get("saved_step", 0)
    code = "" if view.exit_code is None else f" (exit code {view.exit_code})"
    lines = [
        ("job", f"{view.job_id} (user {view.user})"),
        ("since", _since(view)),
        ("phase", f"{view.phase}{code}: {view.message}"),
        ("step", f"{details.get('step', 0)} ({f'last checkpoint: {saved}' if saved else 'no checkpoint yet'})"),
        ("cost", f"{cost}, {money.get('hours', 0.0):.3f} machine-hours"),
        ("losses", _losses(details.get("preemptions", 0), details.get("failures", 0))),
        ("run", f"{view.run_url}{' (deleted)' if view.run_deleted else ''}"),
    ]
    lines += [("waiting", reason) for reason in details.get("reasons", ())]
    for label, text in lines:
        print(f"{label:<8}{plain(text)}")
    table = Table(box=None, pad_edge=False)
    for name in ("slot", "machine", "type", "zone", "USD/h", "state"):
        table.add_column(name, no_wrap=True)
    table.add_column("status")
    for row in _machine_rows(details):
        table.add_row(*map(plain, row))
    if table.row_count:
        screen.print()
        screen.print(table)
    if tiers is not None:
        print()
        tier_verbs.show(tiers, json_=False)


def _losses(machines: int, failures: int) -> str:
    lost = count_text(machines, "machine lost", "machines lost")
    return f"{lost}, {count_text(failures, 'script failure', 'script failures')}"


def _machine_rows(details: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    for slot in details.get("slots", ()):
        if not slot["machines"]:
            expected = f"waiting for order {slot['awaits']}" if slot["awaits"] else "no machine"
            yield (slot["name"], "-", "", "", "", "", expected)
        for machine in slot["machines"]:
            yield (slot["name"], *_machine_row(machine))
    for machine in details.get("surplus", ()):
        yield ("-", *_machine_row(machine))


def _machine_row(machine: dict[str, Any]) -> tuple[str, ...]:
    status = machine["status"] or "no report yet"
    notes = [
        f"{machine['role']}: {status}" if machine["role"] != "incumbent" else str(status),
        "no contact" if machine["silent"] else "",
        f"preemption announced for {time.strftime('%H:%M:%S', time.localtime(machine['ends_at']))}"
        if machine["ends_at"]
        else "",
        machine["message"],
    ]
    price = f"{machine['price_usd_per_hour']:.4g}"
    place = (machine["machine_id"], machine["machine_type"], machine["zone"])
    return (*place, price, machine["state"], ", ".join(note for note in notes if note))


# ------------------------------------------------------------------------------------------------------ stop and resume


def stop(reference: str, state: Path | None, *, now: bool, wait: bool) -> int:
    """Stop a job, and wait until it has stopped."""
    with run_reference.controller(state) as client:
        view = run_reference.find(client, reference)
        if view.phase in TERMINAL:
            print(f"nothing to stop: {view.job_id} {_ended(view.phase)}{_and_deleted(view)}")
            return 0
        client.stop(view.job_id, now=now)
        started = time.monotonic()
        printed = ""
        while wait and view.phase not in TERMINAL:
            # Until the controller has seen the request, the message is about the time before it.
            if view.phase is JobPhase.STOPPING and view.message != printed:
                printed = view.message
                print(f"windfall: {printed}", file=sys.stderr)
            time.sleep(_POLL_S)
            view = client.job(view.job_id)
    if not wait:
        print("stop requested")
        if not now:
            print(f"windfall: saving first; `windfall ps {view.job_id}` shows the time limit", file=sys.stderr)
        return 0
    saved = view.details.get("saved_step", 0)
    checkpoint = f"last checkpoint: step {saved}" if saved else "no checkpoint yet"
    print(f"{view.phase} after {duration_text(time.monotonic() - started)}: {view.message} ({checkpoint})")
    if view.phase is JobPhase.STOPPED:
        print(f"windfall: resume with `windfall resume {view.job_id}`", file=sys.stderr)
    return 0


def _ended(phase: JobPhase) -> str:
    return "has failed" if phase is JobPhase.FAILED else f"is {phase}"


def _and_deleted(view: JobView) -> str:
    return ", and its run was deleted" if view.run_deleted else ""


def resume(reference: str, state: Path | None, *, detach: bool) -> int:
    """Resume a stopped or failed job, and follow it."""
    with run_reference.controller(state) as client:
        view = run_reference.find(client, reference)
        if view.phase not in TERMINAL:
            print(f"windfall: {view.job_id} is already active: {view.message}", file=sys.stderr)
        else:
            bag = _bag_of(view)
            if view.phase is JobPhase.FAILED and bag is not None and bag.log.table.closed:
                raise Misuse(
                    f"{view.job_id} is over, and {bag.log.table.counts.failed:,} items have failed: run them again with "
                    f"`windfall retry-failed {view.job_id}`"
                )
            last = max((row.sequence for row in client.rows(view.job_id)), default=0)
            client.resume(view.job_id)
            if not detach:
                return _follow_from_now(client, view.job_id, last)
        if detach:
            print(view.job_id)
            return 0
        return _follow_from_now(client, view.job_id, None)


def _follow_from_now(client: Client, job_id: str, last: int | None) -> int:
    """Follow a job from now on.

    Args:
        client: of the controller.
        job_id: the job.
        last: the newest row before a job was resumed; None if it had not ended.
    """
    from windfall.cli.follow import follow, printed  # noqa: PLC0415 - its packages are an extra

    started = time.monotonic()
    while last is not None and time.monotonic() - started < _RESUME_S and client.job(job_id).phase in TERMINAL:
        time.sleep(_POLL_S)
    return follow(client, job_id, after=last, seen=printed(client.job(job_id).run_url))


def logs_following(reference: str, state: Path | None) -> int:
    """Print the script's output, and from now on what happens to the job's machines too."""
    with run_reference.controller(state) as client:
        from windfall.cli.follow import follow  # noqa: PLC0415 - its packages are an extra

        view = run_reference.find(client, reference)
        if view.run_deleted:
            raise Misuse(run_reference.deleted(view))
        last = max((row.sequence for row in client.rows(view.job_id)), default=0)
        return follow(client, view.job_id, after=last)


# ------------------------------------------------------------------------------------------------------------ rehearsals


def inject(reference: str, state: Path | None, *, notice: str, notice_s: float | None) -> None:
    """Have the provider preempt the machine that is training."""
    with run_reference.controller(state) as client:
        view = run_reference.find(client, reference)
        machines = [machine for slot in view.details.get("slots", ()) for machine in slot["machines"]]
        training = [machine for machine in machines if machine["status"] == "training"]
        # Of a job that has both, a machine that cannot be preempted would prove little.
        chosen = min(training or machines, key=lambda machine: machine["reliability"] == "reliable", default=None)
        if chosen is None:
            raise Misuse(f"{view.job_id} has no machine to preempt: {view.message}")
        client.preempt(view.job_id, chosen["machine_id"], notice_s)
    how = "without notice" if notice_s is None else f"with {notice} of notice"
    print(f"{chosen['machine_id']} of {view.job_id} will be preempted {how}")


# ---------------------------------------------------------------------------------------------------------- the journal


def rows(reference: str, state: Path | None) -> list[Row]:
    """Return the controller's journal of a job."""
    with run_reference.controller(state) as client:
        view = run_reference.find(client, reference)
        if view.run_deleted:
            print(f"windfall: {run_reference.deleted(view)}, and so is what the controller did", file=sys.stderr)
        return list(rows_of(client, view.job_id))


def replay(reference: str, state: Path | None) -> tuple[list[Row], list[core_replay.ReplayDifference]]:
    """Replay the controller's journal of a job; return it and the decisions that differ."""
    found = rows(reference, state)
    return found, core_replay.replay(found)
