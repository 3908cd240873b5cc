"""`windfall drill`: does the script really resume, and what do step, save and restore cost?"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import statistics
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from rich.status import Status

from windfall import wiring
from windfall.cli import drill_running as running
from windfall.cli import drill_store
from windfall.cli.drill_running import Phase, Wanted
from windfall.cli.exec import absolute_url, state_folder
from windfall.cli.named import extra
from windfall.errors import EXIT_DONE, EXIT_FORGOTTEN, Misuse, RunFailed, WindfallError
from windfall.report import drill as judging
from windfall.report.drill_show import Costs, Drilled, as_json, folded, lines
from windfall.report.drill_trace import Trace
from windfall.report.showing import console
from windfall.storage import bundle
from windfall.storage.clocks import SystemClock
from windfall.storage.objects import folder_url
from windfall.units import duration_s

if TYPE_CHECKING:
    from windfall.cli.starting import Draft

STEPS = 11
"""Where to save: a prime number, so that it seldom falls on the end of an epoch or of an accumulation."""
LEAST_S = 1.0
_FILES = (".yaml", ".yml")
_NOT_FOUND = re.compile(r"No such file or directory: '(?P<path>[^']+)'")


@dataclass(frozen=True, slots=True)
class _Subject:
    """What is drilled: a job file's command or a bare one."""

    argv: tuple[str, ...]
    envs: dict[str, str]
    code: str | None
    store: str | None
    draft: Draft | None


def drill(
    *what: Annotated[str, Parameter(show=False, allow_leading_hyphen=True)],
    steps: int = STEPS,
    limit: str = "10m",
    store: str | None = None,
    link: tuple[str, ...] = (),
    keep: Annotated[bool, Parameter(negative="")] = False,
    set_: Annotated[tuple[str, ...], Parameter(name="--set")] = (),
    state: Path | None = None,
    json_: Annotated[bool, Parameter(name="--json", negative="")] = False,
) -> int:
    """Find out whether a script really resumes, and what step, save and restore cost.

    Saves at step k and runs on to 2k; restores that save in two fresh processes and compares them with the continuation
    and with one another, step by step.  What was forgotten is named.  Runs in copies of the code's folder; what a job
    file's script cost is used by `windfall plan`.

    Exit code 0: resumes faithfully.  5: something was forgotten.  1: the script could not be drilled.  2: misuse.

    Example: `windfall drill job.yaml`, or `windfall drill -- python train.py`

    Args:
        what: a job file, or after `--` a command.
        steps: k: after how many steps to save; the script must last for 2k.
        limit: after how long to give up.
        store: a folder or URL below which the checkpoint is stored for the time of the drill: where your runs save, to
            learn what uploading costs; the job file's own if it names one.
        link: a file or folder of the code's folder that does not travel with the code (data that git ignores, or that
            is large) and that the script only reads: the copies link to it.
        keep: keep the folder of the drill: copies, traces, what the script printed.
        set_: replace a value of the job file: `--set envs.SIZE=small`.
        state: this installation's folder (default: $XDG_STATE_HOME/windfall).
        json_: one JSON object.
    """
    if steps < 2:
        raise Misuse(f"--steps: {steps} is too few; 2 is the least, and more show more")
    limit_s = float(duration_s(limit, "--limit"))
    if limit_s < LEAST_S:
        raise Misuse(f"--limit: {limit!r} is too short; write for example 10m")
    home = state or state_folder()
    subject = _subject(what, set_, home)
    filler = _filler(subject.code, _linked(subject.code, link))
    with _ended_tidily(), _folder(home, keep=keep) as folder:
        clock = SystemClock()
        until = clock.now() + limit_s
        wanted = Wanted(folder, subject.argv, subject.envs, filler, steps, until, limit_s)
        with _progress(json_=json_) as tell, _missing_told(subject.code):
            drilled = _drilled(wanted, absolute_url(store) if store else subject.store, tell)
        kept = _keep(subject, drilled, home)
    drilled = replace(drilled, kept=kept, folder=str(folder) if keep else None, left_out=_left_out(subject))
    if json_:
        print(json.dumps(as_json(drilled)))
    else:
        screen = console()
        for line in lines(drilled):
            print(folded(line, screen.width))
    return EXIT_FORGOTTEN if any(one.forgotten for one in drilled.findings) else EXIT_DONE


# ---------------------------------------------------------------------------------------------------------- the subject


def _subject(what: tuple[str, ...], sets: tuple[str, ...], home: Path) -> _Subject:
    if not what:
        raise Misuse("JOB.yaml is missing: `windfall drill job.yaml`, or `windfall drill -- python train.py`")
    if len(what) > 1 or not what[0].endswith(_FILES):
        if shutil.which(what[0]) is None:
            raise Misuse(f"{what[0]}: no such command; give a job file (.yaml), or a command that is on PATH")
        if sets:
            raise Misuse("--set replaces values of a job file, and there is none")
        return _Subject(what, {}, os.getcwd(), None, None)
    with extra():
        from windfall.cli import starting  # noqa: PLC0415 - its packages are an extra
    draft = starting.read(Path(what[0]), sets, None, home)
    job = draft.job()
    envs = {**dict(job.envs), **starting.secrets_of(draft.file)}
    named = draft.file.checkpoint.store
    return _Subject(job.command, envs, draft.file.workdir, absolute_url(named) if named else None, draft)


def _left_out(subject: _Subject) -> tuple[str, ...]:
    """Return what of a job file the drill does not try."""
    if subject.draft is None:
        return ()
    file = subject.draft.file
    setup = ("whether `setup` works: it was not run",) if file.setup else ()
    others = (f"the ranks of other machines: the job has num_nodes: {file.num_nodes}, the drill ran on one",)
    return (*setup, *(others if file.num_nodes > 1 else ()))


def _linked(code: str | None, link: tuple[str, ...]) -> tuple[str, ...]:
    """Return the paths to link, relative to the code's folder.

    Raises:
        Misuse: one is not there, or lies elsewhere.
    """
    if code is None:
        if link:
            raise Misuse("--link names files of the code's folder, and this job has no `workdir`")
        return ()
    paths = tuple(os.path.relpath(os.path.join(code, one), code) for one in link)
    for given, path in zip(link, paths, strict=True):
        if path.startswith("..") or path == ".":
            raise Misuse(f"--link {given}: not in {code}; what lies elsewhere needs no link, name it by its whole path")
        if not os.path.exists(os.path.join(code, path)):
            raise Misuse(f"--link {given}: there is no such file or folder in {code}")
    return paths


def _filler(code: str | None, links: tuple[str, ...]) -> Callable[[Path], None]:
    """Return what puts the code that would travel with the run into a folder."""
    if code is None:
        return lambda _: None
    try:
        packed = bundle.pack(code, links)
    except Misuse as error:
        raise Misuse(f"{error}; a drill can do without a copy of what is only read: --link PATH") from error

    def fill(folder: Path) -> None:
        bundle.unpack(packed, str(folder))
        for path in links:
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).symlink_to(os.path.abspath(os.path.join(code, path)))

    return fill


@contextlib.contextmanager
def _missing_told(code: str | None) -> Iterator[None]:
    """If the script misses a file that lies in the code's folder, say how to give it."""
    try:
        yield
    except RunFailed as error:
        found = _NOT_FOUND.search(str(error))
        path = found["path"] if found else ""
        if not path or code is None or os.path.isabs(path) or not os.path.exists(os.path.join(code, path)):
            raise
        top = Path(os.path.normpath(path)).parts[0]
        raise RunFailed(
            f"the script needs {path}, which does not travel with the code (.gitignore); drill it with --link {top}, and "
            "for a real run keep it where each machine finds it"
        ) from error


@contextlib.contextmanager
def _ended_tidily() -> Iterator[None]:
    """Leave by an exception when a terminal closes or somebody ends the drill, so that nothing stays behind."""

    def leave(number: int, _frame: object) -> None:
        raise SystemExit(128 + number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _folder(home: Path, *, keep: bool) -> Iterator[Path]:
    parent = home / "drills"
    try:
        parent.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(dir=parent))
    except OSError as error:
        raise Misuse(f"{parent} cannot be made ({error.strerror}): name another place with --state") from error
    try:
        yield folder
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _progress(*, json_: bool) -> Iterator[Callable[[str], None]]:
    """Show what the drill is doing: one line that changes on a terminal, a line each otherwise."""
    screen = console(stderr=True)
    if json_:
        yield lambda _: None
    elif screen.is_terminal:
        with Status("", console=screen) as status:
            yield status.update
    else:
        told: set[str] = set()

        def tell(sentence: str) -> None:
            head = sentence.partition(":")[0]
            if head not in told:
                told.add(head)
                print(f"windfall: {head}", file=sys.stderr, flush=True)

        yield tell


# ------------------------------------------------------------------------------------------------------------ the drill


def _drilled(wanted: Wanted, store: str | None, tell: Callable[[str], None]) -> Drilled:
    clock, k = SystemClock(), wanted.steps
    first = running.run_phase(
        wanted, "continued", clock, steps=k, tell=lambda done: tell(f"save at step {k}, run on: step {done} of {2 * k}")
    )
    saved_at, further = _checked(first, wanted)
    number = first.traces[0].numbers.get(saved_at - 1, saved_at)
    place = f"{store.rstrip('/')}/drill-{wiring.new_nonce()}" if store else folder_url(f"{wanted.folder}/run")
    parts = {trace.rank: trace.saved[1] for trace in first.traces if trace.saved and trace.saved[1]}
    tell("store the checkpoint")
    again: list[Phase] = []
    taken: list[float] = []
    with drill_store.stored(place, wanted.folder / "hold", number, parts) as point:
        for name in ("restored-1", "restored-2"):
            folder = wanted.folder / name / "points" / "1"
            folder.parent.mkdir(parents=True)
            restored, restore_s = point.restore(folder)
            taken.append(restore_s)
            title = f"restore in process {name[-1]} of 2"
            phase = running.run_phase(
                wanted,
                name,
                clock,
                restored=restored,
                steps=further,
                tell=_counted(tell, title, further),
            )
            again.append(_resumed(phase, first, number))
    b1, b2 = (_matching(first, phase) for phase in again)
    costs = _costs(first, again, point, taken, store)
    return Drilled(judging.diagnose(first.traces, b1, b2), costs, first.traces, b1, b2, number, further)


def _counted(tell: Callable[[str], None], title: str, steps: int) -> Callable[[int], None]:
    return lambda done: tell(f"{title}: step {done} of {steps}")


def _checked(first: Phase, wanted: Wanted) -> tuple[int, int]:
    """Return after how many steps the save was, and how many steps of the continuation there are.

    Raises:
        RunFailed: the script cannot be drilled; says why.
    """
    k, reached = wanted.steps, max((trace.step for trace in first.traces), default=0)
    if first.code not in (0, None):
        raise RunFailed(
            f"the script ended by itself with exit code {first.code} after {reached} steps, before anything was lost: "
            f"{first.last_words()}"
        )
    if not first.traces:
        raise RunFailed(
            "the script never called Windfall, or its Python was not seen: `import windfall as wf`, then wf.step() after "
            "each step (python -I, -E and -S hide a script from the drill)"
        )
    if not reached:
        raise RunFailed("the script ended no step: call wf.step(), or wf.exit_step(), after each one")
    saved = next((trace.saved for trace in first.traces if trace.saved is not None and trace.saved[1]), None)
    if reached < k and saved is None:
        raise RunFailed(f"the script ended after {reached} steps, before step {k}: use --steps {max(reached // 2, 2)}")
    if saved is None:
        broken = any(trace.saved is not None for trace in first.traces)
        raise RunFailed(
            "what the script handed over was not there: give wf.backup() the path of a file or folder that is written"
            if broken
            else f"the script saved nothing: it was asked to at step {k} and handed nothing over until step {reached}; "
            "when wf.step() or wf.check_save() returns True, save and call wf.backup(path)"
        )
    further = reached - saved[0]
    if further < 1:
        raise RunFailed(f"the script ended with its save at step {saved[0]}: use --steps {max(reached // 2, 2)}")
    return saved[0], min(further, k)


def _resumed(phase: Phase, first: Phase, number: int) -> Phase:
    """Check that a restored run came far enough to be compared.

    Raises:
        RunFailed: it did not.
    """
    reached = min((trace.step for trace in phase.traces), default=0)
    begun_anew = any(trace.ends and reached < 1 for trace in phase.traces)
    if (reached < 1 and not begun_anew) or len(phase.traces) < len(first.traces):
        why = f"with exit code {phase.code}" if phase.code else "without a step"
        raise RunFailed(
            f"the script ended {why} when started from its own checkpoint of step {number}: {phase.last_words()}"
        )
    return phase


def _matching(first: Phase, phase: Phase) -> tuple[Trace, ...]:
    by_rank = {trace.rank: trace for trace in phase.traces}
    return tuple(by_rank[trace.rank] for trace in first.traces)


def _costs(
    first: Phase, again: list[Phase], point: drill_store.Stored, restore_s: list[float], store: str | None
) -> Costs:
    steps = [one for phase in (first, *again) for trace in phase.traces for one in trace.steps_s]
    stalls = [trace.stall_s for trace in first.traces if trace.stall_s is not None]
    step_s = statistics.median(steps) if steps else 0.0
    starts = [
        trace.first_end_at_s - phase.began_at_s - step_s
        for phase in again
        for trace in phase.traces
        if trace.first_end_at_s is not None
    ]
    return Costs(
        step_s=step_s,
        stall_s=max(stalls, default=0.0),
        size_bytes=point.size_bytes,
        upload_s=point.upload_s,
        commit_s=point.commit_s,
        restore_s=statistics.fmean(restore_s),
        start_s=max(statistics.fmean(starts), 0.0),
        store=store,
    )


def _keep(subject: _Subject, drilled: Drilled, home: Path) -> bool:
    """Give what was measured to the controller, for the plans of this job; say if that cannot be done."""
    if subject.draft is None or drilled.costs.step_s <= 0.0:
        return False
    try:
        with extra():
            from windfall.cli import client  # noqa: PLC0415 - its packages are an extra
        with client.connect(home, start=True) as controller:
            controller.learn(subject.draft.job(), drilled.costs.measured())
    except WindfallError as error:
        print(f"windfall: what was measured could not be kept for plans: {error}", file=sys.stderr)
        return False
    return True
