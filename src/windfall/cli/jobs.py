"""The job side of the verbs: what is asked of the controller, or read from its journal."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from windfall import codec
from windfall.cli import named
from windfall.control.service import JobView
from windfall.core import replay as core_replay
from windfall.errors import Misuse
from windfall.events import Row
from windfall.fleet import TERMINAL, JobPhase
from windfall.report.showing import console
from windfall.spelling import plain
from windfall.units import duration_text

if TYPE_CHECKING:
    from windfall.cli.client import Client

_POLL_S = 0.3
_RESUME_S = 10.0
_COLUMNS_MAX = 160


def rows_of(client: Client, job_id: str) -> Iterator[Row]:
    """Yield a job's journal."""
    for row in client.rows(job_id):
        yield codec.row_from_line(row.line)


# ---------------------------------------------------------------------------------------------------------------- ps


def ps(references: tuple[str, ...], state: Path | None, *, json_: bool) -> None:
    """List all jobs, or show some in detail."""
    if not references and not named.any_jobs(state):
        _list([], json_=json_)
        return
    with named.controller(state) as client:
        views = client.jobs() if not references else [named.find(client, reference) for reference in references]
    if not references:
        _list(views, json_=json_)
    for view in views if references else ():
        if json_:
            print(json.dumps(codec_of(view)))
        else:
            _show(view)


def codec_of(view: JobView) -> dict[str, Any]:
    """Return a view as a JSON object."""
    return {name: getattr(view, name) for name in JobView.__dataclass_fields__}


def _list(views: list[JobView], *, json_: bool) -> None:
    if json_:
        for view in views:
            print(json.dumps(codec_of(view)))
        return
    if not views:
        print("no jobs yet: `windfall run job.yaml` starts one")
        return
    table = Table(box=None, pad_edge=False)
    for name in ("job", "user", "phase"):
        table.add_column(name, no_wrap=True)
    for name in ("age", "step", "done in", "USD", "USD/h"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("what it does")
    for view in views:
        told = view.details
        cost, rate = _usd(told.get("money", {}).get("due_usd", 0.0)), _usd(told.get("rate_usd_per_hour", 0.0))
        now = time.time()
        left = "-" if view.finish_at is None else duration_text(max(0.0, view.finish_at - now))
        age, step = duration_text(max(0.0, now - view.created)), str(told.get("step", 0))
        who = (plain(view.job_id), plain(view.user), str(view.phase))
        table.add_row(*who, age, step, left, cost, rate, plain(view.sentence))
    console(width=_width()).print(table)


def _width() -> int | None:
    """Return how wide a table may be: a terminal's width; a file and a pipe do not cut it."""
    return None if sys.stdout.isatty() else _COLUMNS_MAX


def _since(view: JobView) -> str:
    """Say when a job was submitted, how long that is ago, and when it will be done as far as anybody knows."""
    now = time.time()
    at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(view.created))
    left = "" if view.finish_at is None else f", done in {duration_text(max(0.0, view.finish_at - now))} at this pace"
    return f"{at}, {duration_text(max(0.0, now - view.created))} ago{left}"


def _usd(amount: float) -> str:
    return f"{amount:.4f}" if abs(amount) < 1 else f"{amount:.2f}"


def _show(view: JobView) -> None:
    told = view.details
    screen = console(width=_width())
    money = told.get("money", {})
    cost = f"{_usd(money.get('due_usd', 0.0))} USD so far, {_usd(told.get('rate_usd_per_hour', 0.0))} USD/h now"
    code = "" if view.exit_code is None else f" (exit code {view.exit_code})"
    lines = [
        ("job", f"{view.job_id} of {view.user}"),
        ("since", _since(view)),
        ("phase", f"{view.phase}{code}: {view.sentence}"),
        ("step", f"{told.get('step', 0)}, of which {told.get('saved_step', 0)} are stored"),
        ("cost", f"{cost}, {money.get('hours', 0.0):.3f} machine-hours"),
        ("losses", f"{told.get('preemptions', 0)} machines lost, {told.get('failures', 0)} failures of the script"),
        ("run", f"{view.run_url}{' (deleted)' if view.run_deleted else ''}"),
    ]
    lines += [("lacking", reason) for reason in told.get("reasons", ())]
    for label, text in lines:
        print(f"{label:<8}{plain(text)}")
    table = Table(box=None, pad_edge=False)
    for name in ("slot", "machine", "type", "zone", "USD/h", "state"):
        table.add_column(name, no_wrap=True)
    table.add_column("what it does")
    for row in _machine_rows(told):
        table.add_row(*map(plain, row))
    if table.row_count:
        screen.print()
        screen.print(table)


def _machine_rows(told: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    for slot in told.get("slots", ()):
        if not slot["machines"]:
            expected = f"awaits order {slot['awaits']}" if slot["awaits"] else "has no machine"
            yield (slot["name"], "-", "", "", "", "", expected)
        for machine in slot["machines"]:
            yield (slot["name"], *_machine_row(machine))
    for machine in told.get("surplus", ()):
        yield ("-", *_machine_row(machine))


def _machine_row(machine: dict[str, Any]) -> tuple[str, ...]:
    doing = machine["doing"] or "has not spoken yet"
    notes = [
        f"{machine['role']}: {doing}" if machine["role"] != "incumbent" else str(doing),
        "silent" if machine["silent"] else "",
        f"its end is announced ({time.strftime('%H:%M:%S', time.localtime(machine['ends_at']))})"
        if machine["ends_at"]
        else "",
        machine["sentence"],
    ]
    price = f"{machine['price_usd_per_hour']:.4g}"
    place = (machine["machine_id"], machine["machine_type"], machine["zone"])
    return (*place, price, machine["state"], ", ".join(note for note in notes if note))


# ------------------------------------------------------------------------------------------------------ stop and resume


def stop(reference: str, state: Path | None, *, now: bool, wait: bool) -> int:
    """Stop a job, and wait until it has stopped."""
    with named.controller(state) as client:
        view = named.find(client, reference)
        if view.phase in TERMINAL:
            print(f"nothing runs there: {view.job_id} is {view.phase}{_and_deleted(view)}")
            return 0
        client.stop(view.job_id, now=now)
        began = time.monotonic()
        told = ""
        while wait and view.phase not in TERMINAL:
            if view.sentence != told:
                told = view.sentence
                print(f"windfall: {told}", file=sys.stderr)
            time.sleep(_POLL_S)
            view = client.job(view.job_id)
    if not wait:
        print("asked to stop")
        if not now:
            print(f"windfall: it saves first; `windfall ps {view.job_id}` says for how long at most", file=sys.stderr)
        return 0
    stored = view.details.get("saved_step", 0)
    kept = f"step {stored} is stored" if stored else "nothing is stored yet"
    print(f"{view.phase} after {duration_text(time.monotonic() - began)}: {view.sentence}, {kept}")
    if view.phase is JobPhase.STOPPED:
        print(f"windfall: `windfall resume {view.job_id}` goes on from there", file=sys.stderr)
    return 0


def _and_deleted(view: JobView) -> str:
    return ", and its run was deleted" if view.run_deleted else ""


def resume(reference: str, state: Path | None, *, detach: bool) -> int:
    """Let a stopped or failed job go on, and follow it."""
    with named.controller(state) as client:
        view = named.find(client, reference)
        if view.phase not in TERMINAL:
            print(f"windfall: {view.job_id} goes on anyway: {view.sentence}", file=sys.stderr)
        else:
            told = max((row.sequence for row in client.rows(view.job_id)), default=0)
            client.resume(view.job_id)
            if not detach:
                return _follow_on(client, view.job_id, told)
        if detach:
            print(view.job_id)
            return 0
        return _follow_on(client, view.job_id, None)


def _follow_on(client: Client, job_id: str, told: int | None) -> int:
    """Follow a job from now on.

    Args:
        client: of the controller.
        job_id: the job.
        told: a row behind which a resumed job goes on; None if it was not at its end.
    """
    from windfall.cli.follow import follow, printed  # noqa: PLC0415 - its packages are an extra

    began = time.monotonic()
    while told is not None and time.monotonic() - began < _RESUME_S and client.job(job_id).phase in TERMINAL:
        time.sleep(_POLL_S)
    return follow(client, job_id, after=told, seen=printed(client.job(job_id).run_url))


def logs_following(reference: str, state: Path | None) -> int:
    """Print what a job's script printed, and from now on what happens to its machines too."""
    with named.controller(state) as client:
        from windfall.cli.follow import follow  # noqa: PLC0415 - its packages are an extra

        view = named.find(client, reference)
        if view.run_deleted:
            raise Misuse(named.deleted(view))
        last = max((row.sequence for row in client.rows(view.job_id)), default=0)
        return follow(client, view.job_id, after=last)


# ------------------------------------------------------------------------------------------------------------ rehearsals


def inject(reference: str, state: Path | None, *, notice: str, notice_s: float | None) -> None:
    """Let the provider take the machine that trains."""
    with named.controller(state) as client:
        view = named.find(client, reference)
        machines = [machine for slot in view.details.get("slots", ()) for machine in slot["machines"]]
        training = [machine for machine in machines if machine["doing"] == "training"]
        chosen = next(iter(training or machines), None)
        if chosen is None:
            raise Misuse(f"{view.job_id} has no machine now: {view.sentence}")
        client.preempt(view.job_id, chosen["machine_id"], notice_s)
    how = "without notice" if notice_s is None else f"{notice} notice"
    print(f"{chosen['machine_id']} of {view.job_id} will be taken away, {how}")


# ---------------------------------------------------------------------------------------------------------- the journal


def rows(reference: str, state: Path | None) -> list[Row]:
    """Return the controller's journal of a job."""
    with named.controller(state) as client:
        view = named.find(client, reference)
        if view.run_deleted:
            print(f"windfall: {named.deleted(view)}, and so is what the controller did", file=sys.stderr)
        return list(rows_of(client, view.job_id))


def replay(reference: str, state: Path | None) -> tuple[list[Row], list[core_replay.Difference]]:
    """Feed the controller's journal of a job back; return it and where the driver decides otherwise today."""
    found = rows(reference, state)
    return found, core_replay.replay(found)
