"""The verbs that look at a run or send it a message; each works from any machine that reaches the store."""

from __future__ import annotations

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
from windfall.cli import bringing, jobs, named
from windfall.cli.exec import absolute_url
from windfall.core import replay as core_replay
from windfall.errors import EXIT_FAILED, Misuse, RunFailed
from windfall.events import Row
from windfall.report.showing import console
from windfall.spelling import plain
from windfall.storage import journal, log, restore
from windfall.storage.operations import get, keys_under
from windfall.terms import Cause, Checkpoint, CheckpointRef, Outcome, RunState, Step, Term
from windfall.units import duration_s, duration_text, size_text
from windfall.wire.layout import OUTPUT, inbox_key

Json = Annotated[bool, Parameter(name="--json", negative="")]
Folder = Annotated[Path | None, Parameter(name="--state")]
Machines = Annotated[bool, Parameter(name="--machines", negative="")]
_POLL_S = 0.5


def open_run(url: str) -> tuple[wiring.Reader, RunState]:
    """Open a run that exists.

    Raises:
        Misuse: there is none at the URL.
    """
    reader = wiring.open_reader(absolute_url(url))
    head = reader.run(log.read_head())
    if head is None:
        raise Misuse(f"there is no run at {url}: start one with `windfall exec {url} -- COMMAND`")
    return reader, head.state


def read_rows(reader: wiring.Reader) -> tuple[Row, ...]:
    """Return the run's journal as far as it was shipped."""
    return reader.run(journal.read_journal()).rows


def ps(*runs: str, state: Folder = None, json_: Json = False) -> None:
    """Show what has become of jobs and runs; without a name, all jobs.

    Example: `windfall ps`

    Args:
        runs: jobs by id, name or beginning of the id, or URLs of runs.
        state: this installation's folder (default: $XDG_STATE_HOME/windfall).
        json_: one JSON object a line.
    """
    urls = tuple(run for run in runs if named.is_url(run))
    names = tuple(run for run in runs if not named.is_url(run))
    if names or not urls:
        jobs.ps(names, state, json_=json_)
    if urls:
        _ps_urls(urls, json_=json_)


def _ps_urls(urls: tuple[str, ...], *, json_: bool) -> None:
    table = Table("run", "state", "stored step", "points", "starts", "lost", "held by", box=None)
    for url in urls:
        _, state = open_run(url)
        newest = max((point.step for point in state.checkpoints), default=0)
        holder = state.holder.host if state.holder else "-"
        if json_:
            print(json.dumps({"url": url, "newest_step": newest, "state": codec.encode(state)}))
        counts = (str(newest), str(len(state.checkpoints)), str(state.attempts), str(state.preemptions))
        table.add_row(plain(url), state.outcome.value, *counts, plain(holder))
    if not json_:
        console().print(table)


def logs(
    run: str,
    *,
    follow: Annotated[bool, Parameter(name=("-f", "--follow"))] = False,
    state: Folder = None,
) -> int:
    """Print what the script printed, all machines as one stream.

    What a machine prints reaches the store within some seconds.  Of a job, -f tells what happens to its machines too.

    Example: `windfall logs -f gpt-3f9a2c`

    Args:
        run: a job, or a run's URL.
        follow: go on, from machine to machine, until the run is done or has failed.
        state: this installation's folder (default: $XDG_STATE_HOME/windfall).
    """
    if follow and not named.is_url(run):
        return jobs.logs_following(run, state)
    url = named.url_of(run, state)
    reader, _ = open_run(url)
    seen: set[str] = set()
    waiting = False
    while True:
        _, stands = open_run(url)
        for data in _output(reader, seen):
            sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
        if not follow or stands.outcome in (Outcome.DONE, Outcome.FAILED):
            return 0
        if stands.outcome is Outcome.WAITING and not waiting:
            print("windfall: the run waits for its next machine; Ctrl-C ends this", file=sys.stderr)
        waiting = stands.outcome is Outcome.WAITING
        time.sleep(_POLL_S)


def _output(reader: wiring.Reader, seen: set[str]) -> Iterator[bytes]:
    for key in reader.run(keys_under(OUTPUT)):
        if key not in seen:
            seen.add(key)
            yield reader.run(get(key)) or b""


def events(run: str, *, machines: Machines = False, state: Folder = None, json_: Json = False) -> None:
    """Print the journal: facts, decisions, commands.

    Of a job it is the controller's journal; `--machines` adds those of its machines, by time.

    Times are UTC.  On a terminal a line ends at its edge; a file, a pipe and --json get all of it.

    Example: `windfall events s3://lab/run42 --json | jq .row.facts`

    Args:
        run: a job, or a run's URL.
        machines: what the agents on the job's machines wrote, too.
        state: this installation's folder (default: $XDG_STATE_HOME/windfall).
        json_: one journal row a line, as it is stored.
    """
    columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    for source, row in _journals(run, state, machines=machines):
        if json_:
            print(codec.row_to_line(row))
            continue
        when = time.strftime("%H:%M:%S", time.gmtime(row.wall))
        told = [
            *(_in_words(fact) for fact in row.facts),
            *(f"  decided: {decision.choice}" for decision in row.decisions),
            *(f"  -> {_in_words(command)}" for command in row.commands),
        ]
        for words in told:
            line = f"{when}  {source}{row.term}.{row.sequence:<5d} {words}"
            line = plain(line)
            print(line if columns is None or len(line) <= columns else f"{line[: columns - 3]}...")


def _journals(run: str, state: Path | None, *, machines: bool) -> list[tuple[str, Row]]:
    """Return rows with the mark of who wrote them: nothing for the only source, `c` controller, `m` machines."""
    if named.is_url(run):
        return [("", row) for row in read_rows(open_run(run)[0])]
    found = [("c" if machines else "", row) for row in jobs.rows(run, state)]
    if machines:
        found += [("m", row) for row in read_rows(open_run(named.url_of(run, state))[0])]
        found.sort(key=lambda one: one[1].wall)
    return found


def _in_words(word: object) -> str:
    data = codec.encode(word)
    assert isinstance(data, dict)
    fields = " ".join(f"{name}={_short(value)}" for name, value in data.items() if name != "is")
    return f"{data['is']} {fields}".strip()


def _short(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, (dict, list)):
        text = json.dumps(value, separators=(",", ":"))
        return text if len(text) <= 60 else f"{text[:57]}..."
    return str(value)


def points(
    run: str,
    *,
    results: Annotated[bool, Parameter(name="--results", negative="")] = False,
    state: Folder = None,
    json_: Json = False,
) -> None:
    """List the checkpoints, newest first, or the results.

    Example: `windfall points s3://lab/run42`

    Args:
        run: a job, or a run's URL.
        results: what the script made, in place of what a restart restores.
        state: this installation's folder (default: $XDG_STATE_HOME/windfall).
        json_: one JSON object a line.
    """
    _, stands = open_run(named.url_of(run, state))
    if results:
        bringing.show(stands, json_=json_)
        return
    table = Table("step", "kind", "size", "committed (UTC)", "checkpoint", box=None)
    for point in reversed(stands.checkpoints):
        if json_:
            print(json.dumps(codec.encode(point)))
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(point.committed_at))
        table.add_row(str(point.step), point.kind.value, size_text(point.size_bytes), when, plain(point.checkpoint_id))
    if not json_:
        console().print(table if stands.checkpoints else "no checkpoints yet")


def get_(
    run: str,
    dest: Path = Path(),
    *,
    point: str | None = None,
    result: str | None = None,
    results: Annotated[bool, Parameter(name="--results", negative="")] = False,
    state: Folder = None,
    json_: Json = False,
) -> None:
    """Bring a checkpoint's files back, or a result.

    Example: `windfall get s3://lab/run42 result`

    Args:
        run: a job, or a run's URL.
        dest: folder for the files; made if absent.
        point: which one (see `windfall points`); the newest whole one if not given.
        result: the name of what the script made, in place of a checkpoint.
        results: everything that the script made.
        state: this installation's folder (default: $XDG_STATE_HOME/windfall).
        json_: one JSON object.
    """
    url = named.url_of(run, state)
    reader, stands = open_run(url)
    if result is not None or results:
        if point is not None:
            raise Misuse("--point names a checkpoint, --result and --results what the script made: choose one of them")
        made = bringing.chosen(stands, [] if result is None else [result], url)
        _make_folder(dest)
        bringing.bring(reader, made, dest, json_=json_)
        return
    wanted = _chosen(stands, point, url)
    if not wanted:
        instead = "; `--results` brings what the script made" if stands.results else ""
        raise Misuse(f"the run at {url} has no checkpoint yet{instead}")
    draft = str(dest / f".windfall-get-{os.getpid()}")
    _make_folder(dest)
    found = reader.run(restore.restore(wanted, draft))
    assert found.point is not None
    for sentence in found.skipped:
        print(f"windfall: {sentence}; the point before it is used", file=sys.stderr)
    try:
        moved = _move(found.point, Path(draft), dest)
    finally:
        shutil.rmtree(draft)
    if json_:
        print(json.dumps({"step": found.point.step, "checkpoint": found.point.checkpoint_id, "files": moved}))
    else:
        print(f"step {found.point.step}: {', '.join(moved)}")


def _make_folder(dest: Path) -> None:
    try:
        os.makedirs(dest, exist_ok=True)
    except OSError as error:
        raise Misuse(f"{dest} is no folder and cannot become one ({error.strerror}): name another folder") from error


def _move(point: Checkpoint, draft: Path, dest: Path) -> list[str]:
    """Give what was fetched its names under `dest`; nothing that is there already is replaced."""
    single = len(point.shards) == 1
    places = [dest if single else dest / f"rank-{shard.rank}" for shard in point.shards]
    for shard, place in zip(point.shards, places, strict=True):
        if os.path.lexists(place / shard.name):
            raise Misuse(f"{place / shard.name} is there already: name another folder")
    for shard, place in zip(point.shards, places, strict=True):
        place.mkdir(exist_ok=True)
        os.rename(draft / str(shard.rank) / shard.name, place / shard.name)
    return [str(place / shard.name) for shard, place in zip(point.shards, places, strict=True)]


def _chosen(state: RunState, point: str | None, url: str) -> tuple[CheckpointRef, ...]:
    newest_first = tuple(reversed(state.checkpoints))
    if point is None:
        return newest_first
    chosen = tuple(ref for ref in newest_first if ref.checkpoint_id == point)
    if not chosen:
        raise Misuse(f"the run at {url} has no point {point}: `windfall points {url}` lists them")
    return chosen


def stop(
    run: str,
    *,
    now: bool = False,
    wait: Annotated[bool, Parameter(name="--wait", negative="--no-wait")] = True,
    state: Folder = None,
) -> int:
    """Stop a job or a run; it saves first, and can go on from there.  A job's machines are given back.

    Example: `windfall stop gpt-3f9a2c`

    Args:
        run: a job, or a run's URL.
        now: do not save first.
        wait: until it has stopped, and say how it ended.
        state: this installation's folder (default: $XDG_STATE_HOME/windfall).
    """
    return _stop_url(run, now=now, wait=wait) if named.is_url(run) else jobs.stop(run, state, now=now, wait=wait)


def _stop_url(url: str, *, now: bool, wait: bool) -> int:
    reader, state = open_run(url)
    if state.holder is None:
        print(f"nothing runs there: {_unheld(state, url)}")
        return 0
    if wiring.has_died_here(state.holder):
        print(f"nothing runs there: {state.holder.host} died without letting go; `windfall exec {url}` goes on with it")
        return 0
    _send(reader, state, {"do": "stop", "now": now, "reason": "windfall stop"})
    began, term = time.monotonic(), state.term
    if wait and not now:
        from windfall.core.ending import STOP_PATIENCE_S  # noqa: PLC0415 - the other verbs need not wait for it

        at_most = duration_text(STOP_PATIENCE_S)
        print(f"windfall: it saves first, for {at_most} at most; `windfall stop {url} --now` ends it", file=sys.stderr)
    while wait:
        _, state = open_run(url)
        if state.term != term or state.holder is None:
            print(_ended(state, term, url, duration_text(time.monotonic() - began)))
            return 0
        if time.monotonic() - began > 2 * state.lease_s and _silent(reader, state):
            raise RunFailed(f"{state.holder.host} does not answer: the run is free when its lease has run out")
        time.sleep(_POLL_S)
    print("asked to stop")
    return 0


def resume(
    job: str, *, detach: Annotated[bool, Parameter(name=("--detach", "-d"))] = False, state: Folder = None
) -> int:
    """Let a stopped or failed job go on, and follow it.

    Example: `windfall resume gpt-3f9a2c`

    Args:
        job: the job.
        detach: do not follow.
        state: this installation's folder (default: $XDG_STATE_HOME/windfall).
    """
    if named.is_url(job):
        raise Misuse(f"{job} is a run: `windfall exec {job}` goes on with it; `resume` is for jobs of `windfall run`")
    return jobs.resume(job, state, detach=detach)


def _ended(state: RunState, term: Term, url: str, took: str) -> str:
    """Say how the term that was asked to stop has ended, though another machine may have gone on since."""
    loss = next((loss for loss in state.losses if loss.term == term), None)
    step = Step(0) if loss is None else loss.step
    stored = f"step {step} is stored" if step else "nothing is stored yet"
    if loss is not None and loss.cause in (Cause.DONE, Cause.SCRIPT_FAILED):
        return f"it ended by itself after {took}: {_unheld(state, url)}"
    if state.holder is not None:
        return f"stopped after {took}, {stored}; {state.holder.host} has taken the run since, and trains"
    return f"stopped after {took}, {stored}; `windfall exec {url}` goes on from there"


def _unheld(state: RunState, url: str) -> str:
    """Say how a run stands that no machine holds."""
    if state.outcome is Outcome.WAITING:
        return f"no machine holds the run; `windfall exec {url}` goes on with it"
    return "the run has failed" if state.outcome is Outcome.FAILED else f"the run is {state.outcome.value}"


def _silent(reader: wiring.Reader, state: RunState) -> bool:
    first = reader.run(log.read_beat(state.term))
    time.sleep(state.lease_s)
    return reader.run(log.read_beat(state.term)) == first


def inject(run: str, *, notice: str, state: Folder = None) -> None:
    """Rehearse a preemption of the machine that trains.

    The notice takes the way of a real one; at its end everything there is killed.  Of a job, the provider takes the machine.

    Example: `windfall inject gpt-3f9a2c --notice 30s`

    Args:
        run: a job, or a run's URL.
        notice: how long before the end the machine is told (30s), or none.
        state: this installation's folder (default: $XDG_STATE_HOME/windfall).
    """
    notice_s = None if notice == "none" else float(duration_s(notice, "--notice"))
    if not named.is_url(run):
        jobs.inject(run, state, notice=notice, notice_s=notice_s)
        return
    reader, stands = open_run(run)
    if stands.holder is None:
        raise Misuse(f"nothing can be taken away at {run}: {_unheld(stands, run)}")
    _send(reader, stands, {"do": "inject", "notice_s": notice_s})
    print(f"{stands.holder.host} will be taken away, {'without notice' if notice_s is None else f'{notice} notice'}")


def _send(reader: wiring.Reader, state: RunState, message: dict[str, object]) -> None:
    """Write to the machine that holds the run now, and to no later one."""
    addressed = message | {"term": state.term}
    reader.store.create(inbox_key(wiring.new_nonce()), json.dumps(addressed).encode())


def explain(
    run: str, number: int | None = None, *, machines: Machines = False, state: Folder = None, json_: Json = False
) -> None:
    """Say why decisions were taken, with the numbers compared.

    Of a job: what was bought, and when it ended; `--machines` tells of the decisions to save.

    Example: `windfall explain gpt-3f9a2c 3`

    Args:
        run: a job, or a run's URL.
        number: one decision, counted from 1; all if not given.
        machines: what the agents on the job's machines decided, instead.
        state: this installation's folder (default: $XDG_STATE_HOME/windfall).
        json_: the decisions as stored, one a line.
    """
    is_run = machines or named.is_url(run)
    rows = list(read_rows(open_run(named.url_of(run, state))[0])) if is_run else jobs.rows(run, state)
    decisions = [decision for row in rows for decision in row.decisions]
    if number is not None and not 1 <= number <= len(decisions):
        counted = "1 decision" if len(decisions) == 1 else f"{len(decisions)} decisions"
        there = f"has {counted}, counted from 1" if decisions else "has no decisions yet"
        what = f"run at {run}" if named.is_url(run) else f"job {run}"
        raise Misuse(f"there is no decision {number}: the {what} {there}")
    if json_:
        for decision in decisions if number is None else decisions[number - 1 : number]:
            print(json.dumps(codec.encode(decision)))
        return
    for line in core_replay.explain(rows, number):
        print(line)


def replay(run: str, *, state: Folder = None, json_: Json = False) -> int:
    """Feed the journal back: are the decisions the same?

    Of a job both are: the controller's journal and its machines'.

    Exit code 0 if they are, else 1.  Example: `windfall replay s3://lab/run42`

    Args:
        run: a job, or a run's URL.
        state: this installation's folder (default: $XDG_STATE_HOME/windfall).
        json_: one JSON object.
    """
    bought: tuple[list[Row], list[core_replay.Difference]] = ([], [])
    if named.is_url(run):
        reader, _ = open_run(run)
    else:
        bought = jobs.replay(run, state)
        reader = wiring.open_reader(named.url_of(run, state))  # its run may not have begun yet
    merged = reader.run(journal.read_journal())
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
        print(f"term {gap.term}: what happened after row {gap.after} was lost with the machine")
    return EXIT_FAILED if differences else 0


def _verdict(rows: Sequence[Row], differences: int) -> str:
    decisions = sum(len(row.decisions) for row in rows)
    return f"{len(rows)} rows, {decisions} decisions: {f'{differences} differ' if differences else 'the same'}"
