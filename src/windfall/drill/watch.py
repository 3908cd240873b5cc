"""Watches a script during `windfall drill`: runs inside its processes, next to the SDK, and changes none of its state.

Theory of operation.  A `sitecustomize` that the drill puts first on `PYTHONPATH` calls `install`, which wraps the calls
of `Session` and waits for the import of torch.  From then on, each process that has the page of a rank writes a trace,
one JSON object per line:

    start    the process has its page
    last     the script asked for its checkpoint
    again    the first step restarts, because something was loaded
    begin    a step starts (first forward, first backward or enter_step since the last one ended): the whole state
    update   an optimizer is about to step: learning rates and gradients
    end      a step has ended: losses, data, duration; the whole state if no `begin` was seen, and at the last step
    after    the whole state at the end of a step, for each step from k until the save: what a checkpoint must hold
    backup   a checkpoint was handed over; the drill keeps a copy
    wrote    a file outside the drill's folder was opened for writing
    left     the process has run enough steps and exits

This module itself writes the request to save on the page, before the first step, so that its step is known.  Random
generators are read, never drawn from.  Processes without a page (launchers, data-loader workers) write nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
from time import monotonic
from types import FrameType
from typing import Any

from windfall.drill import digest, variables
from windfall.drill.digest import Record
from windfall.sdk import session
from windfall.wire import script_page

VARIABLE = "WINDFALL_DRILL"
"""Environment variable with the path of the task file; without it `install` has no effect."""
OUTSIDE_MAX = 20
EARLY_MAX = 20
"""A process that has not called the SDK after this many trace lines is not a rank."""
_PERIODIC = script_page.KINDS.index("periodic")
_WRITING = os.O_WRONLY | os.O_RDWR
_PASSING = ("/tmp/", "/dev/", "/proc/", "/sys/", "/var/tmp/", "/run/")  # noqa: S108 - writes there are ignored


class Watch:
    """The watch of one process.

    Args:
        folder: of the traces and of the checkpoints handed over.
        save_at: step at which to request a save; 0, after a restore, requests none.
        steps: how many steps to run after the save or restore.
        inside: folder in which the script may write files.
    """

    def __init__(self, folder: str, save_at: int, steps: int, inside: str) -> None:
        self._folder = folder
        self._inside = os.path.join(os.path.abspath(inside), "")
        self._save_at, self._steps = save_at, steps
        self._session: session.Session | None = None
        self._before: dict[str, str] = {}
        self._early: list[str] = []
        self._file: Any = None
        self._ended = 0
        self._in_step = False
        self._saved_at: int | None = None
        self._outside: set[str] = set()
        self._resumed_at = monotonic()
        self._overhead_s = 0.0
        self._losses: list[float] = []
        self._data: list[tuple[str | None, str]] = []
        self._inputs: list[str] = []
        self._updates = 0
        self._workers = 0
        self._reported: dict[str, Record] = {}
        self.known: dict[str, object] = {}

    @property
    def active(self) -> bool:
        """Whether this process has a rank's page or may still get one: many scripts first call at the end of a step."""
        return self._session is None or self._session.attached

    @property
    def attached(self) -> bool:
        """Whether a session was found."""
        return self._session is not None

    # ---------------------------------------------------------------------------------------------------- the session

    def attach(self, opened: session.Session) -> None:
        """Watch this session, and write the request to save on its page."""
        self._session = opened
        self._file = open(self._path(f"rank-{self._rank}.jsonl"), "a")  # noqa: SIM115 - stays open until the process exits
        if self._save_at:
            script_page.publish(opened._words, request=1, target=self._save_at, exact=False, kind=_PERIODIC)
        self._write("start", step=self._step)
        self._file.writelines(self._early)
        self._early = []

    @property
    def _rank(self) -> int:
        return 0 if self._session is None else self._session._rank

    @property
    def _step(self) -> int:
        return 0 if self._session is None else int(self._session._words[script_page.STEP])

    def asked(self, path: str | None) -> None:
        """Record that the script asked for its checkpoint."""
        self._write("last", path=path, step=self._step)
        self.again()

    def reported(self, metrics: dict[str, object]) -> None:
        """Record the numbers that the script reported."""
        for name, value in metrics.items():
            with contextlib.suppress(TypeError, ValueError, RuntimeError):
                self._reported[f"report:{name}"] = digest.scalar(float(value))  # type: ignore[arg-type]

    def loaded(self, message: str | None) -> None:
        """Record that an object loaded a state; `message` says how it did not fit, if it did not."""
        if message is not None:
            self._write("load", message=message)
        self.again()

    def again(self) -> None:
        """Discard what was seen of the first step: a trial pass before the restore is not a step."""
        if self._ended == 0 and self._in_step:
            self._in_step, self._updates = False, 0
            self._data, self._inputs, self._losses = [], [], []
            self._write("again")

    # ------------------------------------------------------------------------------------------------------- the steps

    def begin(self, frame: FrameType | None) -> None:
        """Record the start of a step."""
        if self._in_step or not self.active:
            return
        self._in_step = True
        since = monotonic()
        del self._data[:-1]  # batches that were skipped to reach the position
        self._write("begin", step=self._step, items=self._state(frame) | self._seen_data())
        self._overhead_s += monotonic() - since

    def update(self, frame: FrameType | None, rates: dict[str, float], gradients: dict[str, Record]) -> None:
        """Record that an optimizer is about to step."""
        if not self.active:
            return
        self.begin(frame)
        since = monotonic()
        self._updates += 1
        items = {f"lr:{name}": digest.scalar(rate) for name, rate in rates.items()}
        self._write("update", step=self._step, items=items | gradients)
        self._overhead_s += monotonic() - since

    def end(self, frame: FrameType | None, since: float) -> None:
        """Record the end of a step; exit once the drill has enough steps."""
        self._ended += 1
        duration_s = max(since - self._resumed_at - self._overhead_s, 0.0)
        last = self._is_last()
        items = self._seen_data() | self._reported
        items["loss:loss"] = {"v": self._losses[0] if len(self._losses) == 1 else [*self._losses]}
        items["value:(updates of the optimizer)"] = digest.scalar(self._updates)
        if last or not self._in_step:
            items |= self._state(frame)
        self._write("end", step=self._step, duration_s=duration_s, items=items)
        if self._save_at and self._ended >= self._save_at and self._saved_at is None:
            self._write("after", items=self._state(frame))
        self._data, self._inputs, self._losses, self._reported = [], [], [], {}
        self._in_step, self._updates, self._overhead_s = False, 0, 0.0
        if last:
            self._leave()
        self._resumed_at = monotonic()

    def _is_last(self) -> bool:
        if not self._save_at:
            return self._ended >= self._steps
        if self._saved_at is None:
            with contextlib.suppress(OSError, ValueError), open(self._path("saved")) as file:
                self._saved_at = int(file.read())
        return self._ended >= (2 * self._save_at if self._saved_at is None else self._saved_at) + self._steps

    def _leave(self) -> None:
        self._write("left")
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)

    def loss(self, frame: FrameType | None, value: float) -> None:
        """Record a loss, at its backward pass."""
        if self.active:
            self.begin(frame)
            self._losses.append(value)

    def batch(self, ids: object, batch: object, *, workers: int) -> None:
        """Record a batch from a loader, made by `workers` worker processes."""
        if self.active:
            since = monotonic()
            self._workers = workers
            self._data.append((None if ids is None else digest.anything(ids), digest.anything(batch)))
            self._overhead_s += monotonic() - since

    def forward(self, frame: FrameType | None, inputs: object) -> None:
        """Record the input of a training forward pass, unless it comes from another module or after an update."""
        if self.active:
            since = monotonic()
            if self._updates == 0 and not digest.is_computed(inputs):
                self._inputs.append(digest.anything(inputs))
            self._overhead_s += monotonic() - since
            self.begin(frame)

    def _seen_data(self) -> dict[str, Record]:
        found: dict[str, Record] = {}
        if self._data:
            found["data:workers"] = digest.scalar(self._workers)
            found["data:batch"] = {"d": digest.bytes_digest([one for _, one in self._data])}
            if all(ids is not None for ids, _ in self._data):
                found["data:ids"] = {"d": digest.bytes_digest([ids for ids, _ in self._data])}
        if self._inputs:
            found["data:input"] = {"d": digest.bytes_digest(self._inputs)}
        return found

    def _state(self, frame: FrameType | None) -> dict[str, Record]:
        walk = variables.VariableWalk(self.known)
        walk.collect(frame)
        return walk.items | variables.random_states()

    # -------------------------------------------------------------------------------------------------- the hand-over

    def backup(self, path: session.StrPath | None, since: float) -> None:
        """Record a hand-over, and keep a copy of the checkpoint, as the agent would."""
        stall_s = since - self._resumed_at
        if self._save_at and self._ended >= self._save_at and self._saved_at in (None, self._ended):
            held = None if path is None else self._keep_copy(os.fsdecode(path))
            self._write("backup", step=self._step, number=self._ended, path=held, stall_s=stall_s, none=path is None)
            if self._saved_at is None and path is not None and held is not None:
                self._saved_at = self._ended
                with open(self._path("saved"), "w") as file:
                    file.write(str(self._ended))
        self._resumed_at = monotonic()

    def _keep_copy(self, path: str) -> str | None:
        target = self._path(os.path.join("held", str(self._rank), os.path.basename(os.path.normpath(path))))
        os.makedirs(os.path.dirname(target), exist_ok=True)
        try:
            if os.path.isdir(path):
                shutil.copytree(path, target, dirs_exist_ok=True)
            else:
                shutil.copy2(path, target)
        except OSError:
            return None
        return target

    # ---------------------------------------------------------------------------------------------------------- the rest

    def audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Record files that are opened for writing, from an audit event of Python."""
        if event != "open" or len(self._outside) >= OUTSIDE_MAX:
            return
        path, _, flags = arguments
        if isinstance(path, str) and isinstance(flags, int) and flags & _WRITING:
            there = os.path.abspath(path)
            if not there.startswith((self._inside, *_PASSING)) and there not in self._outside:
                self._outside.add(there)
                self._write("wrote", path=there)

    def _path(self, name: str) -> str:
        return os.path.join(self._folder, name)

    def _write(self, kind: str, *, items: dict[str, Record] | None = None, **more: object) -> None:
        """Append a line; unchanged items are listed by name only."""
        if self._file is None and len(self._early) >= EARLY_MAX:
            return
        line: dict[str, object] = {"m": kind, "n": self._ended, "at_s": monotonic(), **more}
        if items is not None:
            texts = {name: json.dumps(record) for name, record in items.items()}
            line["items"] = {name: items[name] for name, text in texts.items() if self._before.get(name) != text}
            line["same"] = [name for name, text in texts.items() if self._before.get(name) == text]
            self._before |= texts
        if self._file is None:
            self._early.append(json.dumps(line) + "\n")
        else:
            self._file.write(json.dumps(line) + "\n")
            self._file.flush()


def install() -> None:
    """Watch this process if the drill requests it; called by the drill's `sitecustomize`."""
    path = os.environ.get(VARIABLE)
    if not path:
        return
    with open(path) as file:
        task = json.load(file)
    watch = Watch(task["folder"], task["save_at"], task["steps"], task["inside"])
    _wrap_session(watch)
    sys.addaudithook(watch.audit)
    from windfall.drill import torch_hooks  # noqa: PLC0415 - only in a drill

    torch_hooks.when_imported(watch)


def _wrap_session(watch: Watch) -> None:
    """Make the calls of the SDK report to the watch."""
    kind = session.Session
    plain = kind.__init__

    def opened(self: session.Session, environ: Any) -> None:
        plain(self, environ)
        if self.attached and not watch.attached:
            watch.attach(self)

    kind.__init__ = opened  # type: ignore[method-assign]
    _wrap_steps(watch, kind)
    _wrap_checkpoints(watch, kind)


def _wrap_steps(watch: Watch, kind: Any) -> None:
    plain_step, plain_exit, plain_enter = kind.step, kind.exit_step, kind.enter_step

    def step(self: session.Session, step: int | None = None) -> bool:
        since = monotonic()
        asked: bool = plain_step(self, step)
        if watch.active:
            watch.end(sys._getframe(1), since)
        return asked

    def exit_step(self: session.Session) -> None:
        since = monotonic()
        plain_exit(self)
        if watch.active:
            watch.end(sys._getframe(1), since)

    def enter_step(self: session.Session) -> None:
        plain_enter(self)
        if "torch" not in sys.modules:
            watch.begin(sys._getframe(1))

    kind.step, kind.exit_step, kind.enter_step = step, exit_step, enter_step


def _wrap_checkpoints(watch: Watch, kind: Any) -> None:
    plain_backup, plain_last, plain_report = kind.backup, kind.last, kind.report

    def backup(self: session.Session, path: session.StrPath | None, *, keep: bool = False) -> None:
        since = monotonic()
        if self._in_iteration:
            self.exit_step()
        if watch.active:
            watch.backup(path, since)
        plain_backup(self, path, keep=keep)

    def last(self: session.Session) -> str | None:
        found: str | None = plain_last(self)
        if watch.active:
            watch.asked(found)
        return found

    def report(self: session.Session, **metrics: object) -> None:
        if watch.active:
            watch.reported(metrics)
        plain_report(self, **metrics)

    kind.backup, kind.last, kind.report = backup, last, report
