"""The verbs that read a run or send it a message; each works from any machine that reaches the store."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from rich.table import Table

from windfall import codec, wiring
from windfall.cli import bag_verbs, job_verbs, run_plots, run_reference, run_results, shape_verbs, tier_verbs
from windfall.cli.locations import absolute_url
from windfall.cli.options import Detach, Json, Plot, StateFolder, Switch
from windfall.core import replay as core_replay
from windfall.errors import EXIT_FAILED, Misuse, RunFailed
from windfall.events import Row
from windfall.linux.random_names import new_nonce
from windfall.report.console import console
from windfall.spelling import plain
from windfall.storage import object_stores, restore, run_log, spool_journal
from windfall.storage.store_operations import get, keys_under
from windfall.terms import Cause, Checkpoint, CheckpointRef, Outcome, RunState, Step, Term
from windfall.units import duration_s, duration_text, size_text
from windfall.wire.run_layout import OUTPUT, inbox_key

_POLL_S = 0.5


def open_run(url: str, *, may_start: bool = False) -> tuple[object_stores.Reader, RunState]:
    """Open an existing run.

    Args:
        url: of the run.
        may_start: whether a user who finds no run there may want to start one.

    Raises:
        Misuse: there is no run at the URL.
    """
    reader = object_stores.open_reader(absolute_url(url))
    head = reader.run(run_log.read_head())
    if head is None:
        advice = f": start one with `windfall exec {url} -- COMMAND`" if may_start else ""
        raise Misuse(f"there is no run at {url}{advice}")
    return reader, head.state


def read_rows(reader: object_stores.Reader) -> tuple[Row, ...]:
    """Return the part of the run's journal that has reached the store."""
    return reader.run(spool_journal.read_journal()).rows


def ps(*runs: str, plot: Plot = None, profile: Switch = False, state: StateFolder = None, json_: Json = False) -> None:
    """List all jobs, or show the status of some jobs or runs.

    Example: `windfall ps`

    Args:
        runs: jobs by id, id prefix or name (the newest with that name), or URLs of runs.
        plot: of one parameter server or elastic training: also draw it over time to this file (.png or .svg).
        profile: of one elastic training: print what it has measured of its layers, as a block of a job file.
        state: folder for Windfall's own files (default: $XDG_STATE_HOME/windfall).
        json_: print one JSON object per line.
    """
    if plot is not None:
        if len(runs) != 1:
            raise Misuse("--plot draws one training: name one job, or the URL of its run")
        run_plots.draw(run_reference.url_of(runs[0], state), plot)
    if profile:
        shape_verbs.print_profile(runs, state, json_=json_)
        return
    urls = tuple(run for run in runs if run_reference.is_url(run))
    names = tuple(run for run in runs if not run_reference.is_url(run))
    if names or not urls:
        job_verbs.ps(names, state, json_=json_)
    if urls:
        _ps_urls(urls, json_=json_)


def _ps_urls(urls: tuple[str, ...], *, json_: bool) -> None:
    table = Table("run", "status", "last checkpoint", "checkpoints", "attempts", "lost", "lease holder", box=None)
    for url in urls:
        if (bag := bag_verbs.find_bag(url)) is not None:
            bag_verbs.show(bag, None, json_=json_)
            continue
        if (tiers := tier_verbs.find_tiers(url)) is not None:
            tier_verbs.show(tiers, json_=json_)
            continue
        if (shapes := shape_verbs.find_shapes(url)) is not None:
            shape_verbs.show(shapes, json_=json_)
            continue
        _, state = open_run(url, may_start=True)
        newest = max((checkpoint.step for checkpoint in state.checkpoints), default=None)
        died = state.holder is not None and wiring.has_died_here(state.holder)
        holder = "-" if state.holder is None else f"{state.holder.host}{' (died)' if died else ''}"
        if json_:
            print(json.dumps({"url": url, "newest_step": newest or 0, "state": codec.encode(state)}))
        counts = (
            "-" if newest is None else str(newest),
            str(len(state.checkpoints)),
            str(state.attempts),
            str(state.preemptions),
        )
        table.add_row(plain(url), _status(state, died=died), *counts, plain(holder))
    if not json_ and table.row_count:
        console().print(table)


def _status(state: RunState, *, died: bool) -> str:
    """Return the status of a run: a holder that has died on this host no longer runs it."""
    if died:
        return "waiting"
    stopped = state.outcome is Outcome.WAITING and bool(state.losses) and state.losses[-1].cause is Cause.STOPPED
    return "stopped" if stopped else state.outcome.value


def logs(
    run: str,
    /,
    *,
    follow: Annotated[bool, Parameter(name=("--follow", "-f"), negative="")] = False,
    attempt: Annotated[int | None, Parameter(metavar="N")] = None,
    state: StateFolder = None,
) -> int:
    """Print the script's output, from all machines as one stream.

    Of a bag, `BAG/ITEM` prints what one item printed: `windfall logs lj-3f9a2c/17`.

    Output reaches the store within a few seconds.  For a job, -f also reports what happens to its machines.

    Example: `windfall logs -f gpt-3f9a2c`

    Args:
        run: a job, or the URL of a run; BAG/ITEM for an item of a bag, by its number.
        follow: keep printing, across machines, until the run is done or has failed.
        attempt: of an item: print this attempt, counted from 1 (default: the newest that is stored).
        state: folder for Windfall's own files (default: $XDG_STATE_HOME/windfall).
    """
    if (named := bag_verbs.split_item(run)) is not None:
        if follow:
            raise Misuse("-f cannot follow one item: what it prints is stored when it has ended")
        bag_verbs.print_item(*named, attempt, state)
        return 0
    if attempt is not None:
        raise Misuse(f"--attempt is for an item of a bag: name it as {run}/0")
    if follow and not run_reference.is_url(run):
        return job_verbs.logs_following(run, state)
    url = run_reference.url_of(run, state)
    if (tiers := tier_verbs.find_tiers(url)) is not None:
        tier_verbs.print_failures(tiers)
        return 0
    if (shapes := shape_verbs.find_shapes(url)) is not None:
        for data in _output(object_stores.open_reader(absolute_url(url)), set()):
            sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
        shape_verbs.print_failures(shapes)
        return 0
    reader, _ = open_run(url, may_start=True)
    seen: set[str] = set()
    waiting = False
    while True:
        _, run_state = open_run(url)
        for data in _output(reader, seen):
            sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
        if not follow or run_state.outcome in (Outcome.DONE, Outcome.FAILED):
            return 0
        if run_state.outcome is Outcome.WAITING and not waiting:
            print("windfall: the run is waiting for its next machine; press Ctrl-C to stop watching", file=sys.stderr)
        waiting = run_state.outcome is Outcome.WAITING
        time.sleep(_POLL_S)


def _output(reader: object_stores.Reader, seen: set[str]) -> Iterator[bytes]:
    for key in reader.run(keys_under(OUTPUT)):
        if key not in seen:
            seen.add(key)
            yield reader.run(get(key)) or b""


def events(run: str, /, *, machines: Switch = False, state: StateFolder = None, json_: Json = False) -> None:
    """Print the journal: facts, decisions, commands.

    For a job, this is the controller's journal; `--machines` merges in the journals of its machines, by time.  For a bag also
    the decisions on items that were preempted, or stopped by their metric.

    Times are in UTC.  A terminal cuts lines at its width; files, pipes and --json get them whole.

    Example: `windfall events s3://lab/run42 --json | jq .row.facts`

    Args:
        run: a job, or the URL of a run.
        machines: also print the journals of the job's machines.
        state: folder for Windfall's own files (default: $XDG_STATE_HOME/windfall).
        json_: print one journal row per line, as stored.
    """
    columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    for source, row in _journals(run, state, machines=machines):
        if json_:
            print(codec.row_to_line(row))
            continue
        when = time.strftime("%H:%M:%S", time.gmtime(row.wall_time))
        lines = [
            *(_one_line(fact) for fact in row.facts),
            *(f"  decided: {decision.choice}" for decision in row.decisions),
            *(f"  -> {_one_line(command)}" for command in row.commands),
        ]
        for words in lines:
            line = plain(f"{when}  {source}{row.term}.{row.sequence:<5d} {words}")
            print(line if columns is None or len(line) <= columns else f"{line[: columns - 3]}...")


def _journals(run: str, state: Path | None, *, machines: bool) -> list[tuple[str, Row]]:
    """Return rows, each with its source: `c` for the controller, `m` for machines, `i` for items of a bag; else empty."""
    if run_reference.is_url(run):
        return [("", row) for row in read_rows(open_run(run)[0])]
    rows = job_verbs.rows(run, state)
    found = [("c" if machines else "", row) for row in rows]
    found += [("i", row) for row in _of_items(run, rows, state)]
    if machines:
        found += [("m", row) for row in read_rows(open_run(run_reference.url_of(run, state))[0])]
    return sorted(found, key=lambda one: one[1].wall_time)


def _one_line(word: object) -> str:
    data = codec.encode(word)
    assert isinstance(data, dict)
    fields = " ".join(f"{name}={_short(value)}" for name, value in data.items() if name != "type")
    return f"{data['type']} {fields}".strip()


def _short(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, (dict, list)):
        text = json.dumps(value, separators=(",", ":"))
        return text if len(text) <= 60 else f"{text[:57]}..."
    return str(value)


def checkpoints(run: str, /, *, results: Switch = False, state: StateFolder = None, json_: Json = False) -> None:
    """List a run's checkpoints or results, newest first.

    Example: `windfall checkpoints s3://lab/run42`

    Args:
        run: a job, or the URL of a run.
        results: list the results of the script instead of the checkpoints.
        state: folder for Windfall's own files (default: $XDG_STATE_HOME/windfall).
        json_: print one JSON object per line.
    """
    _, run_state = open_run(run_reference.url_of(run, state))
    if results:
        run_results.show_results(run_state, json_=json_)
        return
    table = Table("step", "kind", "size", "committed (UTC)", "checkpoint", box=None)
    for checkpoint in reversed(run_state.checkpoints):
        if json_:
            print(json.dumps(codec.encode(checkpoint)))
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(checkpoint.committed_at))
        row = (str(checkpoint.step), checkpoint.kind.value, size_text(checkpoint.size_bytes), when)
        table.add_row(*row, plain(checkpoint.checkpoint_id))
    if not json_:
        console().print(table if run_state.checkpoints else "no checkpoints yet")


def get_(
    run: str,
    folder: Path = Path(),
    /,
    *,
    checkpoint: Annotated[str | None, Parameter(metavar="ID")] = None,
    result: Annotated[str | None, Parameter(metavar="NAME")] = None,
    results: Switch = False,
    state: StateFolder = None,
    json_: Json = False,
) -> None:
    """Download the files of a checkpoint, or results.

    Example: `windfall get s3://lab/run42 out`

    Args:
        run: a job, or the URL of a run.
        folder: where to put the files; created if missing.
        checkpoint: id of the checkpoint (see `windfall checkpoints`); the newest intact one by default.
        result: download this result of the script instead.
        results: download all results of the script instead.
        state: folder for Windfall's own files (default: $XDG_STATE_HOME/windfall).
        json_: print one JSON object.
    """
    url = run_reference.url_of(run, state)
    if (tiers := tier_verbs.find_tiers(url)) is not None:
        if checkpoint is not None or result is not None:
            raise Misuse(
                f"the run at {url} is of a parameter server: leave --checkpoint and --result out to get its product"
            )
        _make_folder(folder)
        tier_verbs.download(tiers, url, folder, json_=json_)
        return
    if (shapes := shape_verbs.find_shapes(url)) is not None:
        if checkpoint is not None or result is not None or results:
            raise Misuse(
                f"the run at {url} is of an elastic training: leave --checkpoint, --result and --results out to get its model"
            )
        _make_folder(folder)
        shape_verbs.download(shapes, url, folder, json_=json_)
        return
    reader, run_state = open_run(url)
    if result is not None or results:
        if checkpoint is not None:
            raise Misuse("--checkpoint cannot be combined with --result or --results: choose one")
        chosen = run_results.select_results(run_state, [] if result is None else [result], url)
        _make_folder(folder)
        run_results.download_results(reader, chosen, folder, json_=json_)
        return
    requested = _select(run_state, checkpoint, url)
    if not requested:
        instead = "; pass --results to download its results" if run_state.results else ""
        raise Misuse(f"the run at {url} has no checkpoint yet{instead}")
    draft = str(folder / f".windfall-get-{os.getpid()}")
    _make_folder(folder)
    found = reader.run(restore.restore(requested, draft))
    assert found.checkpoint is not None
    for message in found.skipped:
        print(f"windfall: {message}; using the checkpoint before it", file=sys.stderr)
    try:
        moved = _move(found.checkpoint, Path(draft), folder)
    finally:
        shutil.rmtree(draft)
    if json_:
        print(json.dumps({"step": found.checkpoint.step, "checkpoint": found.checkpoint.checkpoint_id, "files": moved}))
    else:
        print(f"step {found.checkpoint.step}: {', '.join(moved)}")


def _make_folder(folder: Path) -> None:
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        raise Misuse(f"cannot create the folder {folder} ({error.strerror}): choose another folder") from error


def _move(checkpoint: Checkpoint, draft: Path, folder: Path) -> list[str]:
    """Move the downloaded files to `folder` under their own names; no existing file is replaced."""
    single = len(checkpoint.shards) == 1
    targets = [folder if single else folder / f"rank-{shard.rank}" for shard in checkpoint.shards]
    for shard, target in zip(checkpoint.shards, targets, strict=True):
        if os.path.lexists(target / shard.name):
            raise Misuse(f"{target / shard.name} already exists: choose another folder")
    for shard, target in zip(checkpoint.shards, targets, strict=True):
        target.mkdir(exist_ok=True)
        os.rename(draft / str(shard.rank) / shard.name, target / shard.name)
    return [str(target / shard.name) for shard, target in zip(checkpoint.shards, targets, strict=True)]


def _select(state: RunState, checkpoint: str | None, url: str) -> tuple[CheckpointRef, ...]:
    newest_first = tuple(reversed(state.checkpoints))
    if checkpoint is None:
        return newest_first
    chosen = tuple(ref for ref in newest_first if ref.checkpoint_id == checkpoint)
    if not chosen:
        raise Misuse(f"the run at {url} has no checkpoint {checkpoint}: list them with `windfall checkpoints {url}`")
    return chosen


def stop(
    run: str,
    /,
    *,
    now: Switch = False,
    wait: Annotated[bool, Parameter(name="--wait", negative="--no-wait", show_default=False)] = True,
    state: StateFolder = None,
) -> int:
    """Save and stop a job or a run, so that it can be resumed; a job's machines are released.

    Example: `windfall stop gpt-3f9a2c`

    Args:
        run: a job, or the URL of a run.
        now: stop without saving.
        wait: wait until it has stopped, and report how it ended (the default).
        state: folder for Windfall's own files (default: $XDG_STATE_HOME/windfall).
    """
    if run_reference.is_url(run):
        return _stop_url(run, now=now, wait=wait)
    return job_verbs.stop(run, state, now=now, wait=wait)


def _stop_url(url: str, *, now: bool, wait: bool) -> int:
    reader, state = open_run(url)
    if state.holder is None:
        print(f"nothing to stop: {_without_holder(state, url)}")
        return 0
    if wiring.has_died_here(state.holder):
        print(
            f"nothing to stop: {state.holder.host} died without releasing the run; resume it with `windfall exec {url}`"
        )
        return 0
    _send(reader, state, {"type": "stop", "now": now, "reason": "windfall stop"})
    started, term = time.monotonic(), state.term
    if wait and not now:
        from windfall.core.shutdown import STOP_PATIENCE_S  # noqa: PLC0415 - the other verbs need not wait for it

        at_most = duration_text(STOP_PATIENCE_S)
        print(
            f"windfall: saving first, for at most {at_most}; to stop without a save: `windfall stop {url} --now`",
            file=sys.stderr,
        )
    while wait:
        _, state = open_run(url)
        if state.term != term or state.holder is None:
            print(_ended(state, term, url, duration_text(time.monotonic() - started)))
            return 0
        if time.monotonic() - started > 2 * state.lease_s and _silent(reader, state):
            raise RunFailed(
                f"{state.holder.host} does not answer: other machines can take the run once its lease expires"
            )
        time.sleep(_POLL_S)
    print("stop requested")
    return 0


def resume(job: str, /, *, detach: Detach = False, state: StateFolder = None) -> int:
    """Resume a stopped or failed job, and follow it.

    Example: `windfall resume gpt-3f9a2c`

    Args:
        job: the job: its id, id prefix or name.
        detach: return at once, and print only the job's id.
        state: folder for Windfall's own files (default: $XDG_STATE_HOME/windfall).
    """
    if run_reference.is_url(job):
        raise Misuse(f"{job} is a run, not a job: resume it with `windfall exec {job}`")
    return job_verbs.resume(job, state, detach=detach)


def _ended(state: RunState, term: Term, url: str, took: str) -> str:
    """Describe how the term that was asked to stop ended; another machine may have taken the run since."""
    loss = next((loss for loss in state.losses if loss.term == term), None)
    step = Step(0) if loss is None else loss.step
    stored = f"last checkpoint: step {step}" if step else "no checkpoint yet"
    if loss is not None and loss.cause in (Cause.DONE, Cause.SCRIPT_FAILED):
        return f"it ended on its own after {took}: {_without_holder(state, url)}"
    if state.holder is not None:
        return f"stopped after {took} ({stored}); {state.holder.host} has since taken the run and is training"
    return f"stopped after {took} ({stored}); resume with `windfall exec {url}`"


def _without_holder(state: RunState, url: str) -> str:
    """Describe the status of a run that no machine holds."""
    if state.outcome is Outcome.WAITING:
        return f"no machine holds the run; resume with `windfall exec {url}`"
    return "the run has failed" if state.outcome is Outcome.FAILED else f"the run is {state.outcome.value}"


def _silent(reader: object_stores.Reader, state: RunState) -> bool:
    first = reader.run(run_log.read_heartbeat(state.term))
    time.sleep(state.lease_s)
    return reader.run(run_log.read_heartbeat(state.term)) == first


def inject(
    run: str, /, *, notice: Annotated[str, Parameter(metavar="DURATION|none")], state: StateFolder = None
) -> None:
    """Preempt the machine that is training, as a rehearsal.

    The notice arrives the way a real one does; when it expires, every process of the run on that machine is killed.  For
    a job, the provider takes the machine back.

    Example: `windfall inject gpt-3f9a2c --notice 30s`

    Args:
        run: a job, or the URL of a run.
        notice: how long before its end the machine gets the notice, such as 30s; none for a preemption without one.
        state: folder for Windfall's own files (default: $XDG_STATE_HOME/windfall).
    """
    notice_s = None if notice == "none" else float(duration_s(notice, "--notice"))
    if not run_reference.is_url(run):
        job_verbs.inject(run, state, notice=notice, notice_s=notice_s)
        return
    reader, run_state = open_run(run)
    if run_state.holder is None:
        raise Misuse(f"nothing to preempt at {run}: {_without_holder(run_state, run)}")
    _send(reader, run_state, {"type": "inject", "notice_s": notice_s})
    how = "without notice" if notice_s is None else f"with {notice} of notice"
    print(f"machine {run_state.holder.host} will be preempted {how}")


def _send(reader: object_stores.Reader, state: RunState, message: dict[str, object]) -> None:
    """Write a message to the machine that holds the run now; a later holder ignores it."""
    addressed = message | {"term": state.term}
    reader.store.create(inbox_key(new_nonce()), json.dumps(addressed).encode())


def explain(
    run: str, number: int | None = None, /, *, machines: Switch = False, state: StateFolder = None, json_: Json = False
) -> None:
    """Show why each decision was made, with the numbers it compared.

    For a job: what was ordered, and when to stop; `--machines` shows when its machines decided to save.  For a bag also what
    became of each item that was preempted, or stopped by its metric; `BAG/ITEM` shows that of one item.  For an elastic
    training also why each shape was chosen.

    Example: `windfall explain gpt-3f9a2c 3`

    Args:
        run: a job, the URL of a run, or an item of a bag.
        number: show only this decision, counted from 1.
        machines: show the decisions of the job's machines instead of the controller's.
        state: folder for Windfall's own files (default: $XDG_STATE_HOME/windfall).
        json_: print one decision per line, as stored.
    """
    shaped = number is None and not json_ and bag_verbs.split_item(run) is None
    if shaped and run_reference.is_url(run) and shape_verbs.print_layouts(run):
        return
    rows = _explained(run, state, machines=machines)
    decisions = [decision for row in rows for decision in row.decisions]
    if number is not None and not 1 <= number <= len(decisions):
        counted = "1 decision" if len(decisions) == 1 else f"{len(decisions)} decisions"
        there = f"has {counted}, counted from 1" if decisions else "has no decisions yet"
        what = f"run at {run}" if run_reference.is_url(run) else f"job {run}"
        raise Misuse(f"no decision {number}: the {what} {there}")
    if json_:
        for decision in decisions if number is None else decisions[number - 1 : number]:
            print(json.dumps(codec.encode(decision)))
        return
    if not decisions:
        print("no decisions yet")
        return
    for line in core_replay.explain(rows, number):
        print(line)
    if shaped:
        with contextlib.suppress(Misuse):  # its run was deleted, which has been said
            shape_verbs.print_layouts(run_reference.url_of(run, state))


def _explained(run: str, state: Path | None, *, machines: bool) -> Sequence[Row]:
    """Return the rows whose decisions `explain` shows, oldest first."""
    if (named := bag_verbs.split_item(run)) is not None:
        return bag_verbs.decision_rows(*named, state)
    if machines or run_reference.is_url(run):
        items = [] if machines else bag_verbs.decision_rows(run, None, state)
        return items or read_rows(open_run(run_reference.url_of(run, state))[0])
    rows = job_verbs.rows(run, state)
    return sorted((*rows, *_of_items(run, rows, state)), key=lambda row: row.wall_time)


def _of_items(run: str, rows: Sequence[Row], state: Path | None) -> list[Row]:
    """Return the decisions on items of a bag; none of another job, or if its run was deleted."""
    with contextlib.suppress(Misuse):
        return bag_verbs.decision_rows(run, None, state) if job_verbs.is_bag(rows) else []
    return []


def replay(run: str, /, *, state: StateFolder = None, json_: Json = False) -> int:
    """Replay the journal, and check that this version makes the same decisions.

    For a job, both journals are replayed: the controller's and its machines'.

    Exit codes: 0 the same decisions, 1 some differ.

    Example: `windfall replay s3://lab/run42`

    Args:
        run: a job, or the URL of a run.
        state: folder for Windfall's own files (default: $XDG_STATE_HOME/windfall).
        json_: print one JSON object.
    """
    bought: tuple[list[Row], list[core_replay.ReplayDifference]] = ([], [])
    if run_reference.is_url(run):
        reader, _ = open_run(run)
    else:
        bought = job_verbs.replay(run, state)
        reader = object_stores.open_reader(run_reference.url_of(run, state))  # its run may not have started yet
    merged = reader.run(spool_journal.read_journal())
    differences = bought[1] + core_replay.replay(merged.rows)
    if json_:
        found = [str(difference) for difference in differences]
        print(json.dumps({"rows": len(bought[0]) + len(merged.rows), "gaps": len(merged.gaps), "differences": found}))
        return EXIT_FAILED if differences else 0
    for difference in differences:
        print(difference)
    if bought[0]:
        print(f"controller: {_verdict(bought[0], len(bought[1]))}")
    print(f"{'machines:   ' if bought[0] else ''}{_verdict(merged.rows, len(differences) - len(bought[1]))}")
    for gap in merged.gaps:
        print(f"term {gap.term}: the rows after {gap.after} were lost with the machine")
    return EXIT_FAILED if differences else 0


def _verdict(rows: Sequence[Row], differences: int) -> str:
    decisions = sum(len(row.decisions) for row in rows)
    return f"{len(rows)} rows, {decisions} decisions: {f'{differences} differ' if differences else 'the same'}"
