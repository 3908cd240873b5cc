"""`windfall drill`: whether a script really resumes, and what step, save and restore cost."""

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
from typing import TYPE_CHECKING, Annotated, Protocol

from cyclopts import Parameter
from rich.status import Status

from windfall.cli.locations import absolute_url, state_folder
from windfall.cli.options import Duration, OptionalUrl, SetValues, StateFolder
from windfall.drill import diagnosis as judging
from windfall.drill import drill_phases as running
from windfall.drill import store_costs
from windfall.drill.drill_phases import DrillPhase, DrillRequest
from windfall.drill.drill_report import DrillCosts, DrillResult, as_json, folded, lines
from windfall.drill.drill_trace import ScriptTrace
from windfall.errors import EXIT_DONE, EXIT_NOT_RESUMED, Misuse, RunFailed, WindfallError
from windfall.extras import for_jobs, install
from windfall.linux.clock import SystemClock
from windfall.linux.random_names import new_nonce
from windfall.policies.policy_registry import ELASTIC
from windfall.report.console import console
from windfall.storage import bundle
from windfall.storage.object_stores import folder_url
from windfall.units import duration_s

if TYPE_CHECKING:
    from windfall.cli.job_submit import Draft

STEPS = 11
"""Where to save: a prime number, so that it rarely coincides with the end of an epoch or of an accumulation."""
LEAST_S = 1.0
_FILES = (".yaml", ".yml")
_NOT_FOUND = re.compile(r"No such file or directory: '(?P<path>[^']+)'")


class _Show(Protocol):
    """Shows what the drill is doing: the phase, and its progress."""

    def __call__(self, phase: str, detail: str = "") -> None: ...


@dataclass(frozen=True, slots=True)
class _DrillTarget:
    """What to drill: a job file's command, or a bare command."""

    argv: tuple[str, ...]
    envs: dict[str, str]
    code: str | None
    store: str | None
    draft: Draft | None


def drill(
    *what: Annotated[str, Parameter(show=False, allow_leading_hyphen=True)],
    steps: int = STEPS,
    limit: Duration = "10m",
    store: OptionalUrl = None,
    link: Annotated[tuple[str, ...], Parameter(metavar="PATH")] = (),
    keep: Annotated[bool, Parameter(negative="")] = False,
    profile: Annotated[bool, Parameter(negative="")] = False,
    turns: int | None = None,
    out: Path | None = None,
    set_: SetValues = (),
    state: StateFolder = None,
    json_: Annotated[bool, Parameter(name="--json", negative="")] = False,
) -> int:
    """Check that a script really resumes, and measure what step, save and restore cost.

    Saves at step k and continues to step 2k; then restores that save in two fresh processes and compares each step with
    the continuation, and the two with each other.  Names everything that was not restored.  Runs in copies of the code
    folder.  With a job file, `windfall plan` uses the measured costs.

    With `--profile`, the training of a parameter server is measured instead, on small machines on this host: one of each type
    alone, then clusters of 2, 4 and 7.  Shows the constants by which `windfall plan` predicts time and loss on any machines of
    these types, and the block of the job file that holds them.  Of an elastic training it measures the layers, and what changes
    of shape cost: up to three machines on this host (more if its smallest shape needs them), and a spare, train `--steps` in
    each of up to five shapes.

    Exit codes: 0, it resumes; 5, something was not restored; 1, the script cannot be drilled; 2, misuse.

    Example: `windfall drill job.yaml`, or `windfall drill -- python train.py`, or `windfall drill --profile job.yaml`

    Args:
        what: a job file, or a command after `--`.
        steps: save after this many steps (k); the script must run for 2k. With `--profile`, steps in each shape.
        limit: give up after this long.
        store: folder or URL under which the checkpoint is stored during the drill; use your own store to measure
            uploads (default: the job file's store).
        link: a file or folder of the code folder that is not uploaded with the code (ignored by git, or large) and that
            the script only reads; the copies link to it.
        keep: keep the drill's folder: copies, traces, the script's output.
        profile: measure the training of a parameter server, or an elastic training.
        turns: of each cluster of a parameter server, with `--profile` (default: 300).
        out: with `--profile`, a file for the block `profile` of the job file.
        set_: override a value of the job file: `--set envs.SIZE=small`.
        state: folder for Windfall's own files (default: $XDG_STATE_HOME/windfall).
        json_: print one JSON object.
    """
    if steps < 2:
        raise Misuse("--steps must be at least 2; more steps reveal more")
    limit_s = float(duration_s(limit, "--limit"))
    if limit_s < LEAST_S:
        raise Misuse(f"--limit must be at least {LEAST_S:g} s, for example 10m")
    home = state or state_folder()
    subject = _subject(what, set_, home)
    filler = _filler(subject.code, _linked(subject.code, link))
    if profile:
        return _profile(subject, filler, home, limit_s, steps=steps, turns=turns, out=out, keep=keep, json_=json_)
    if turns is not None or out is not None:
        raise Misuse("--turns and --out are for --profile")
    with _exit_on_signals(), _folder(home, keep=keep) as folder:
        clock = SystemClock()
        until = clock.now() + limit_s
        wanted = DrillRequest(folder, subject.argv, subject.envs, filler, steps, until, limit_s)
        with _progress(json_=json_) as show, _explain_missing_file(subject.code):
            drilled = _drilled(wanted, absolute_url(store) if store else subject.store, show)
        kept = _keep(subject, drilled, home)
    drilled = replace(drilled, kept=kept, folder=str(folder) if keep else None, left_out=_left_out(subject))
    if json_:
        print(json.dumps(as_json(drilled)))
    else:
        screen = console()
        for line in lines(drilled):
            print(folded(line, screen.width))
    return EXIT_NOT_RESUMED if any(one.forgotten for one in drilled.findings) else EXIT_DONE


def _profile(
    subject: _DrillTarget,
    filler: Callable[[Path], None],
    home: Path,
    limit_s: float,
    *,
    steps: int,
    turns: int | None,
    out: Path | None,
    keep: bool,
    json_: bool,
) -> int:
    if subject.draft is None:
        raise Misuse("--profile measures a parameter server or an elastic training: name its job file")
    if out is not None and not out.absolute().parent.is_dir():
        raise Misuse(f"--out {out}: there is no folder {out.parent}")
    if subject.draft.job().runtime.name == ELASTIC:
        if turns is not None:
            raise Misuse(
                "--turns is for parameter servers; of an elastic training, --steps says how many in each shape"
            )
        return _elastic_profile(subject, filler, home, (steps, limit_s), out=out, keep=keep, json_=json_)
    # Needs numpy, which a machine that drills a script need not have.
    from windfall.drill import profile_drill, profile_report  # noqa: PLC0415

    turns = profile_drill.TURNS if turns is None else turns
    if turns < profile_drill.TURNS_MIN:
        raise Misuse(f"--turns must be at least {profile_drill.TURNS_MIN}; more turns narrow the intervals")
    job = subject.draft.job()
    profile_drill.tiers_of(job)
    with _exit_on_signals(), _folder(home, keep=keep) as folder, _progress(json_=json_) as show:
        request = profile_drill.ProfileRequest(job, filler, subject.envs, turns, limit_s, home, folder)
        found = profile_drill.profiled(request, show)
    if out is not None:
        profile_report.write(found, out)
    if json_:
        print(json.dumps(profile_report.as_json(found)))
    else:
        for line in profile_report.lines(found):
            print(line)
    return EXIT_DONE


def _elastic_profile(
    subject: _DrillTarget,
    filler: Callable[[Path], None],
    home: Path,
    length: tuple[int, float],
    *,
    out: Path | None,
    keep: bool,
    json_: bool,
) -> int:
    assert subject.draft is not None, "it has a job file"
    try:
        # Need numpy and torch, which a machine that drills a script need not have.
        from windfall.drill import elastic_drill, elastic_drill_report  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise Misuse(f"--profile needs the package {error.name}, which is not installed: {install(ELASTIC)}") from None
    steps, limit_s = length
    if steps < elastic_drill.STEPS_MIN:
        raise Misuse(
            f"--steps must be at least {elastic_drill.STEPS_MIN} with --profile: machines say what they measured after their "
            "third step of a shape"
        )
    job = subject.draft.job()
    elastic_drill.elastic_job_of(job)
    with _exit_on_signals(), _folder(home, keep=keep) as folder, _progress(json_=json_) as show:
        request = elastic_drill.ElasticDrillRequest(job, filler, subject.envs, steps, limit_s, folder)
        found = elastic_drill.drilled(request, show)
    if out is not None:
        elastic_drill_report.write(found, out)
    if json_:
        print(json.dumps(elastic_drill_report.as_json(found)))
    else:
        screen = console()
        for line in elastic_drill_report.lines(found):
            print(folded(line, screen.width) if not line.startswith(" ") else line)
    return EXIT_DONE


# ---------------------------------------------------------------------------------------------------------- the subject


def _subject(what: tuple[str, ...], sets: tuple[str, ...], home: Path) -> _DrillTarget:
    if not what:
        raise Misuse("JOB_FILE is missing: type `windfall drill job.yaml`, or `windfall drill -- python train.py`")
    if len(what) > 1 or not what[0].endswith(_FILES):
        if shutil.which(what[0]) is None:
            raise Misuse(f"{what[0]}: no such command; name a job file (.yaml), or a command that is on PATH")
        if sets:
            raise Misuse("--set overrides values of a job file, but a bare command has none")
        return _DrillTarget(what, {}, os.getcwd(), None, None)
    with for_jobs():
        from windfall.cli import job_submit  # noqa: PLC0415 - its packages are an extra
    draft = job_submit.read(Path(what[0]), sets, None, home)
    job = draft.job()
    envs = {**dict(job.envs), **job_submit.secrets_of(draft.file)}
    named = draft.file.checkpoint.store
    return _DrillTarget(job.command, envs, draft.file.workdir, absolute_url(named) if named else None, draft)


def _left_out(subject: _DrillTarget) -> tuple[str, ...]:
    """Return the parts of a job file that the drill does not test."""
    if subject.draft is None:
        return ()
    file = subject.draft.file
    setup = ("whether `setup` works: the drill does not run it",) if file.setup else ()
    others = (f"the ranks of other machines: the job has num_nodes: {file.num_nodes}, the drill ran on one machine",)
    return (*setup, *(others if file.num_nodes > 1 else ()))


def _linked(code: str | None, link: tuple[str, ...]) -> tuple[str, ...]:
    """Return the paths to link, relative to the code folder.

    Raises:
        Misuse: a path does not exist, or lies outside the code folder.
    """
    if code is None:
        if link:
            raise Misuse("--link names files of the code folder, but this job has no `workdir`")
        return ()
    paths = tuple(os.path.relpath(os.path.join(code, one), code) for one in link)
    for given, path in zip(link, paths, strict=True):
        if path.startswith("..") or path == ".":
            raise Misuse(f"--link {given}: not in {code}; the script can read files elsewhere by their absolute path")
        if not os.path.exists(os.path.join(code, path)):
            raise Misuse(f"--link {given}: no such file or folder in {code}")
    return paths


def _filler(code: str | None, links: tuple[str, ...]) -> Callable[[Path], None]:
    """Return a function that copies the code that would be uploaded with the run into a folder."""
    if code is None:
        return lambda _: None
    try:
        packed = bundle.pack(code, links)
    except Misuse as error:
        raise Misuse(
            f"{error}; to link files that the script only reads instead of copying them: --link PATH"
        ) from error

    def fill(folder: Path) -> None:
        bundle.unpack(packed, str(folder))
        for path in links:
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).symlink_to(os.path.abspath(os.path.join(code, path)))

    return fill


@contextlib.contextmanager
def _explain_missing_file(code: str | None) -> Iterator[None]:
    """If the script misses a file of the code folder, add how to provide it to the error."""
    try:
        yield
    except RunFailed as error:
        found = _NOT_FOUND.search(str(error))
        path = found["path"] if found else ""
        if not path or code is None or os.path.isabs(path) or not os.path.exists(os.path.join(code, path)):
            raise
        top = Path(os.path.normpath(path)).parts[0]
        raise RunFailed(
            f"the script needs {path}, which is not uploaded with the code (.gitignore): drill it with --link {top}; for a "
            "real run, put it where each machine can read it"
        ) from error


@contextlib.contextmanager
def _exit_on_signals() -> Iterator[None]:
    """Exit by an exception on SIGTERM and SIGHUP, so that processes and copies are removed."""

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
        raise Misuse(f"cannot create {parent} ({error.strerror}): choose another folder with --state") from error
    try:
        yield folder
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _progress(*, json_: bool) -> Iterator[_Show]:
    """Show what the drill is doing: one changing line on a terminal, otherwise one line per phase."""
    screen = console(stderr=True)
    if json_:
        yield lambda _phase, _detail="": None
    elif screen.is_terminal:
        with Status("", console=screen) as status:
            yield lambda phase, detail="": status.update(f"{phase}: {detail}" if detail else phase)
    else:
        shown: set[str] = set()

        def show(phase: str, detail: str = "") -> None:  # noqa: ARG001 - only a terminal shows the steps
            if phase not in shown:
                shown.add(phase)
                print(f"windfall: {phase}", file=sys.stderr, flush=True)

        yield show


# ------------------------------------------------------------------------------------------------------------ the drill


def _drilled(wanted: DrillRequest, store: str | None, show: _Show) -> DrillResult:
    clock, k = SystemClock(), wanted.steps
    first = running.run_phase(
        wanted,
        "continued",
        clock,
        steps=k,
        on_step=lambda done: show(f"save at step {k}, then continue", f"step {done} of {2 * k}"),
    )
    saved_at, further = _checked(first, wanted)
    number = first.traces[0].numbers.get(saved_at - 1, saved_at)
    place = f"{store.rstrip('/')}/drill-{new_nonce()}" if store else folder_url(f"{wanted.folder}/run")
    shards = {trace.rank: trace.saved[1] for trace in first.traces if trace.saved and trace.saved[1]}
    show("store the checkpoint")
    again: list[DrillPhase] = []
    restores_s: list[float] = []
    with store_costs.stored(place, wanted.folder / "lease", number, shards) as checkpoint:
        for name in ("restored-1", "restored-2"):
            folder = wanted.folder / name / "checkpoints" / "1"
            folder.parent.mkdir(parents=True)
            restored, restore_s = checkpoint.restore(folder)
            restores_s.append(restore_s)
            title = f"restore in process {name[-1]} of 2"
            phase = running.run_phase(
                wanted,
                name,
                clock,
                restored=restored,
                steps=further,
                on_step=_counted(show, title, further),
            )
            again.append(_resumed(phase, first, number))
    b1, b2 = (_matching(first, phase) for phase in again)
    costs = _costs(first, again, checkpoint, restores_s, store)
    return DrillResult(judging.diagnose(first.traces, b1, b2), costs, first.traces, b1, b2, number, further)


def _counted(show: _Show, title: str, steps: int) -> Callable[[int], None]:
    return lambda done: show(title, f"step {done} of {steps}")


def _checked(first: DrillPhase, wanted: DrillRequest) -> tuple[int, int]:
    """Return the number of steps before the save, and the number of steps of the continuation.

    Raises:
        RunFailed: the script cannot be drilled; the message says why.
    """
    k, reached = wanted.steps, max((trace.step for trace in first.traces), default=0)
    if first.code not in (0, None):
        raise RunFailed(
            f"the script failed with exit code {first.code} after {reached} steps, in the run before any restore: "
            f"{first.last_output_line()}"
        )
    if not first.traces:
        raise RunFailed(
            "the script never called Windfall, or the drill could not watch its Python: `import windfall as wf`, then call "
            "wf.step() after each step (python -I, -E and -S hide a script from the drill)"
        )
    if not reached:
        raise RunFailed("the script completed no step: call wf.step(), or wf.exit_step(), after each step")
    saved = next((trace.saved for trace in first.traces if trace.saved is not None and trace.saved[1]), None)
    if reached < k and saved is None:
        raise RunFailed(f"the script ended after {reached} steps, before step {k}: use --steps {max(reached // 2, 2)}")
    if saved is None:
        broken = any(trace.saved is not None for trace in first.traces)
        raise RunFailed(
            "the checkpoint that the script handed over does not exist: pass wf.backup() the path of a complete file or folder"
            if broken
            else f"the script saved nothing: a save was requested at step {k}, and none came until step {reached}; when "
            "wf.step() or wf.check_save() returns True, save and call wf.backup(path)"
        )
    further = reached - saved[0]
    if further < 1:
        raise RunFailed(f"the script ended with its save at step {saved[0]}: use --steps {max(reached // 2, 2)}")
    return saved[0], min(further, k)


def _resumed(phase: DrillPhase, first: DrillPhase, number: int) -> DrillPhase:
    """Check that a restored run got far enough to be compared.

    Raises:
        RunFailed: it did not.
    """
    reached = min((trace.step for trace in phase.traces), default=0)
    restarted = any(trace.ends and reached < 1 for trace in phase.traces)
    if (reached < 1 and not restarted) or len(phase.traces) < len(first.traces):
        reason = f"with exit code {phase.code}" if phase.code else "without completing a step"
        raise RunFailed(
            f"the script ended {reason} when started from its own checkpoint of step {number}: {phase.last_output_line()}"
        )
    return phase


def _matching(first: DrillPhase, phase: DrillPhase) -> tuple[ScriptTrace, ...]:
    by_rank = {trace.rank: trace for trace in phase.traces}
    return tuple(by_rank[trace.rank] for trace in first.traces)


def _costs(
    first: DrillPhase,
    again: list[DrillPhase],
    checkpoint: store_costs.StoredCheckpoint,
    restore_s: list[float],
    store: str | None,
) -> DrillCosts:
    steps = [one for phase in (first, *again) for trace in phase.traces for one in trace.steps_s]
    stalls = [trace.stall_s for trace in first.traces if trace.stall_s is not None]
    step_s = statistics.median(steps) if steps else 0.0
    starts = [
        trace.first_end_at_s - phase.started_at_s - step_s
        for phase in again
        for trace in phase.traces
        if trace.first_end_at_s is not None
    ]
    return DrillCosts(
        step_s=step_s,
        stall_s=max(stalls, default=0.0),
        size_bytes=checkpoint.size_bytes,
        upload_s=checkpoint.upload_s,
        commit_s=checkpoint.commit_s,
        restore_s=statistics.fmean(restore_s),
        start_s=max(statistics.fmean(starts), 0.0),
        store=store,
    )


def _keep(subject: _DrillTarget, drilled: DrillResult, home: Path) -> bool:
    """Send the measured costs to the controller, for plans of this job; warn if that fails."""
    if subject.draft is None or drilled.costs.step_s <= 0.0:
        return False
    try:
        with for_jobs():
            from windfall.cli import client  # noqa: PLC0415 - its packages are an extra
        with client.connect(home, start=True) as controller:
            controller.learn(subject.draft.job(), drilled.costs.measured())
    except WindfallError as error:
        print(f"windfall: the measured costs could not be saved for `windfall plan`: {error}", file=sys.stderr)
        return False
    return True
