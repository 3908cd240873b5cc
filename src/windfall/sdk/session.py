"""The script's side of a session: the calls of the thesis (Table 5.1) and a few more, over the shared-memory page.

Theory of operation.  The first call claims the page of this process's rank.  After that, a step costs two stores and
one load of mapped memory, and no call waits for another process, except for the pause after a machine's last save
(`standstill`).  A process without a session writes to a private page that no other process reads, so the hot path has no
branch.  This covers forked children, helper processes that find the page of a live process in place (data-loader
workers), and sessions whose folder cannot be used.

No error of the agent, the disk or the session's folder reaches the script: messages that cannot be written are counted
(`context().messages_lost`).  Only misuse raises: an unknown phase, or an argument that is not a path.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from time import monotonic_ns
from types import FrameType
from typing import NamedTuple, TypeVar

from windfall.sdk import attachment, standstill
from windfall.sdk.contexts import PhaseContext, StepContext, absolute, check_phase, line_of
from windfall.wire import environment, script_page
from windfall.wire.script_page import (
    ACK,
    ACK_NS,
    ACK_STEP,
    DEADLINE_NS,
    EXACT,
    LOCAL_WORLD,
    MESSAGES,
    NOTICE,
    PHASE,
    PHASE_SINCE_NS,
    REQUEST,
    SERVED,
    SIGTERM_NS,
    STEP,
    STEP_END_NS,
    STEP_START_NS,
    TARGET,
)

Item = TypeVar("Item")
StrPath = str | os.PathLike[str]

DATA_WAIT_REPORTED_NS = 1_000_000_000
"""Shorter waits of `steps` for its loader appear on the page only; no message is written [ns]."""

_BETWEEN = script_page.PHASES.index("between")
_SAVE = script_page.PHASES.index("save")
_DATA = script_page.PHASES.index("data")
_SHOWN_LEVELS = {script_page.LEVELS.index(level): level for level in ("hint", "announced", "gone")}


class Notice(NamedTuple):
    """What is known about this machine's end.

    Attributes:
        level: `hint` (the end may never come), `announced` (it has a deadline) or `gone`.
        seconds_left: time until the deadline [s], never below 0; None if the notice names no deadline.
    """

    level: str
    seconds_left: float | None


class Context(NamedTuple):
    """The run, attempt and step that this process works on.

    Attributes:
        run: URL of the run; None outside a Windfall run.
        attempt: number of this start of the script within the run, from 1.
        term: number of the record by which this machine acquired the run; 0 outside a Windfall run.
        step: complete steps since the start of the run.
        rank: rank of this process among all processes.
        node_rank: rank of this machine among all machines.
        node_count: number of machines.
        messages_lost: checkpoints, results and reports that could not be handed to the agent.
    """

    run: str | None
    attempt: int
    term: int
    step: int
    rank: int
    node_rank: int
    node_count: int
    messages_lost: int


def open_session() -> Session:
    """Return this process's session; outside a Windfall run, one whose calls have no effect."""
    if not os.environ.get(environment.SESSION):
        return _Outside(os.environ)
    return Session(os.environ)


class Session:
    """One rank's session with the agent on its machine.

    Args:
        environ: the environment variables of `wire.environment`.
    """

    __slots__ = (
        "__weakref__",
        "_attached",
        "_counted",
        "_environ",
        "_in_iteration",
        "_last_handover",
        "_last_request",
        "_lost",
        "_open_request",
        "_own_end_ns",
        "_phases_ns",
        "_rank",
        "_step_context",
        "_words",
    )

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self._counted = False
        self._in_iteration = False
        self._open_request = 0
        self._last_request = 0
        self._last_handover: tuple[int, str | None] = (-1, None)  # (step, path)
        self._own_end_ns = 0  # end of the last step that `backup` counted
        self._lost = 0
        self._step_context = StepContext(self)
        self._rank = attachment.rank_of(environ)
        self._phases_ns = (0, 0)
        words = attachment.claim(environ, self._rank)
        self._attached = words is not None
        self._words = attachment.private_page() if words is None else words
        if self._attached:
            os.register_at_fork(after_in_child=self._detach)
            self._install_sigterm_handler()

    @property
    def attached(self) -> bool:
        """Whether this process has the page of its rank."""
        return self._attached

    # ------------------------------------------------------------------------------------------------------ the steps

    def step(self, step: int | None = None) -> bool:
        """End a training step; return True if the script must save a checkpoint now and pass it to `backup`.

        Call it once after every step: a step runs from one call to the next.  It replaces the three calls of the
        thesis (Table 5.1): `enter_step`, `exit_step` and `check_save`.  It does not wait for other processes; only
        after the last save before a machine's end does it pause, until Windfall ends the process.

        Outside a Windfall run this has no effect and returns False.

        Args:
            step: number of complete steps since the start of the run; default: one more than before.

        Returns:
            True once for each save that Windfall requests; otherwise False.
        """
        words = self._words
        done = words[STEP] + 1 if step is None else step
        words[STEP_END_NS] = monotonic_ns()
        words[STEP] = done
        if words[PHASE] != _BETWEEN or self._in_iteration:
            self._settle()
        return done >= words[TARGET] and self._answer()

    def enter_step(self) -> None:
        """Mark the start of a training step, if the script does not use `step`.

        Outside a Windfall run this has no effect.
        """
        words = self._words
        words[STEP_START_NS] = monotonic_ns()
        if words[PHASE] == _SAVE and self._last_request:
            self._settle()

    def exit_step(self) -> None:
        """Mark the end of a training step, if the script does not use `step`; it counts as complete.

        Outside a Windfall run this has no effect.
        """
        words = self._words
        words[STEP_END_NS] = monotonic_ns()
        words[STEP] += 1
        if words[PHASE] != _BETWEEN or self._in_iteration:
            self._settle()

    def step_context(self) -> AbstractContextManager[object]:
        """Return a context manager that calls `enter_step` and `exit_step` around a training step.

        A step that raises an exception does not count as complete.

        Outside a Windfall run this has no effect.
        """
        return self._step_context

    def check_save(self) -> bool:
        """Return True if the script must save a checkpoint now and pass it to `backup`.

        Call it between steps, if the script does not use `step`, which returns the same.

        Outside a Windfall run this has no effect and returns False.

        Returns:
            True once for each save that Windfall requests; otherwise False.
        """
        if self._in_iteration:
            self.exit_step()
        words = self._words
        return words[STEP] >= words[TARGET] and self._answer()

    def steps(self, loader: Iterable[Item]) -> Iterator[Item]:
        """Yield the items of a data loader; each pass through the loop's body is one training step.

        The step ends at the first `check_save`, `backup` or `step` in the body, otherwise at the end of the body.  A
        body that ends by `break` or an exception before any of these is not a complete step.  Time spent waiting for
        the loader counts as data, not as training.

        Outside a Windfall run this yields the same items and has no other effect.

        Args:
            loader: any iterable.
        """
        words = self._words
        iterator = iter(loader)
        while True:
            before = words[PHASE], words[PHASE_SINCE_NS]
            begin = words[PHASE_SINCE_NS] = monotonic_ns()
            words[PHASE] = _DATA
            try:
                item = next(iterator)
            except StopIteration:
                return
            finally:
                words[PHASE], words[PHASE_SINCE_NS] = before
            if (waited := monotonic_ns() - begin) >= DATA_WAIT_REPORTED_NS:
                self._report_phase("data", waited)
            self._in_iteration = True
            self.enter_step()
            try:
                yield item
            except BaseException:
                self._in_iteration = False
                raise
            if self._in_iteration:
                self.exit_step()

    def _settle(self) -> None:
        """Close what a finished step ends: the start phase, a save, an iteration of `steps`."""
        self._in_iteration = False
        self._words[PHASE] = _BETWEEN
        if self._last_request:
            # Every rank has finished the last save of this machine: further steps would only be computed again elsewhere.
            request, self._last_request = self._last_request, 0
            standstill.stand_still(self._words, request)

    def _answer(self) -> bool:
        """Acknowledge the request whose step is reached; return False if there is none for this step."""
        words = self._words
        target, request, done = words[TARGET], words[REQUEST], words[STEP]
        exact = words[EXACT]
        if done < target or request == words[ACK] or (exact and done != target):
            return False
        if words[TARGET] != target or words[REQUEST] != request:
            return False
        now = monotonic_ns()
        words[ACK_STEP] = done
        words[ACK_NS] = now
        words[PHASE_SINCE_NS] = now
        words[PHASE] = _SAVE
        words[ACK] = request
        self._open_request = request
        self._last_request = request if standstill.is_last(words) else 0
        return True

    # -------------------------------------------------------------------------------------------------- checkpoints

    def backup(self, path: StrPath | None, *, keep: bool = False) -> None:
        """Hand over a checkpoint that the script has saved; Windfall uploads it while training continues.

        Call it after each save, whether `step` requested it or the script saves on a schedule of its own.  Every rank
        calls it: ranks without a shard pass None.  Do not change or overwrite the file afterwards; give each save a
        new name.  In a script that never calls `step`, each call counts as one step.

        Outside a Windfall run this has no effect: the file stays where it is.

        Args:
            path: the checkpoint, a file or a folder; None if this rank has no shard of it.
            keep: keep this checkpoint as a periodic save, although `step` or `check_save` requested one at the same
                step.
        """
        begin, answered = monotonic_ns(), self._open_request
        if self._in_iteration:
            self.exit_step()
        words = self._words
        text = None if path is None else absolute(path)
        step, before = self._last_handover
        if words[STEP_END_NS] == self._own_end_ns and text is not None and before not in (None, text):
            self._own_end_ns = words[STEP_END_NS] = begin
            words[STEP] += 1
        if step != words[STEP] or before == text:
            self._answer()  # a second path at the same step may not be a checkpoint at all, so it answers nothing
        self._last_handover = words[STEP], text
        same_step = self._open_request and words[ACK_STEP] == words[STEP]
        request = self._open_request if same_step else 0
        stall_ns = self._stall_ns(begin)
        self._open_request = 0
        self._send(
            {
                "type": "backup",
                "at_ns": begin,
                "step": words[STEP],
                "request": request,
                "path": text,
                "stall_ns": stall_ns,
                "own": keep or answered != request or request == 0,
                "counted": words[STEP_END_NS] == begin,
            }
        )
        if request:
            self._finish_request(request, stall_ns)
        elif words[PHASE] == _SAVE:
            words[PHASE] = _BETWEEN

    def _finish_request(self, request: int, stall_ns: int) -> None:
        """Mark a request as served; after this machine's last save, pause as soon as no other rank needs this one."""
        words, environ = self._words, self._environ
        words[SERVED] = request
        if not self._last_request:
            words[PHASE] = _BETWEEN
            return
        alone = environ.get(environment.NODE_COUNT, "1") == "1"
        if alone and (words[LOCAL_WORLD] == 1 or standstill.all_served(environ[environment.SESSION], words, stall_ns)):
            self._settle()

    def save_result(self, path: StrPath, name: str | None = None) -> None:
        """Store a file or folder that the script produced under a name: a result.

        Windfall uploads it before the run counts as done.  A restart does not restore results.  A later call with the
        same name replaces the result; each rank has its own names.  Download it with `windfall get RUN --result NAME`.

        Outside a Windfall run this has no effect: the file stays where it is.

        Args:
            path: the file or folder; do not change it until the script ends or stores the next one.
            name: name of the result; default: the last component of the path.
        """
        begin, step, text = monotonic_ns(), self._words[STEP], absolute(path)
        result_name = os.path.basename(text) if name is None else name
        stall_ns = self._stall_ns(begin)
        # The stall counts once: a save that follows at the same step does not count it again.
        counted_ns = self._phases_ns[1] if self._phases_ns[0] == step else 0
        self._phases_ns = (step, counted_ns + stall_ns)
        message = {"type": "result", "at_ns": begin, "step": step, "request": 0, "path": text, "name": result_name}
        self._send({**message, "stall_ns": stall_ns})

    def _stall_ns(self, now_ns: int) -> int:
        """Return how long the save has blocked the script; phases in between are reported separately."""
        words = self._words
        step, phases_ns = self._phases_ns
        since_ns = max(words[STEP_END_NS], words[ACK_NS])
        # Before the first step has ended, training and save cannot be told apart.
        return max(0, now_ns - (since_ns or now_ns) - (phases_ns if step == words[STEP] else 0))

    def last(self) -> str | None:
        """Return the path of the checkpoint to resume from; None if the run has none yet.

        Windfall has downloaded and verified it.  Each rank gets its own shard; a rank without one gets the lowest
        rank's.  After this call, steps are counted from the checkpoint's step.

        Outside a Windfall run this has no effect and returns None.

        Returns:
            The restored file or folder on this machine's disk, or None.
        """
        path = self._own_shard() or self._environ.get(environment.CHECKPOINT)
        if path is None or not os.path.exists(path):
            return None
        if not self._counted and self._words[STEP] == 0:
            self._words[STEP] = int(self._environ.get(environment.STEP, "0"))
        self._counted = True
        return path

    def _own_shard(self) -> str | None:
        checkpoint = self._environ.get(environment.CHECKPOINT_DIR)
        if not checkpoint:
            return None
        folder = os.path.join(checkpoint, str(self._rank))
        try:
            names = os.listdir(folder)
        except OSError:
            return None
        return os.path.join(folder, names[0]) if len(names) == 1 else None

    # ---------------------------------------------------------------------------------------------- other information

    def phase(self, name: str) -> AbstractContextManager[object]:
        """Return a context manager around work that is not a training step and that a save cannot interrupt.

        `windfall cost` lists its time separately, and policies take it into account when they plan a save.

        Outside a Windfall run this has no effect.

        Args:
            name: `evaluation`, `compile`, `data` or `save`.

        Raises:
            ValueError: the name is not one of these; raised outside a run too.
        """
        check_phase(name)
        return PhaseContext(self, name)

    def _report_phase(self, name: str, duration_ns: int) -> None:
        step = self._words[STEP]
        before_ns = self._phases_ns[1] if self._phases_ns[0] == step else 0
        self._phases_ns = (step, before_ns + duration_ns)
        self._send({"type": "phase", "step": step, "name": name, "duration_ns": duration_ns})

    def notice(self) -> Notice | None:
        """Return what is known about this machine's end; None if there is no notice.

        It is cheap enough to call at every step.  A script does not need it to save in time: `step` requests the save.

        Outside a Windfall run this has no effect and returns None.

        Returns:
            A `Notice(level, seconds_left)`, or None.
        """
        level = self._words[NOTICE]
        return self._notice(level) if level else None

    def _notice(self, level: int) -> Notice | None:
        if level not in _SHOWN_LEVELS:
            return None
        deadline_ns = self._words[DEADLINE_NS]
        left_s = max(0.0, (deadline_ns - monotonic_ns()) / 1e9) if deadline_ns else None
        return Notice(_SHOWN_LEVELS[level], left_s)

    def context(self) -> Context:
        """Return the run, attempt, term, step, rank and machine of this process.

        Outside a Windfall run, `run` is None and `step` is 0.

        Returns:
            A `Context(run, attempt, term, step, rank, node_rank, node_count, messages_lost)`.
        """
        environ = self._environ
        return Context(
            run=environ.get(environment.RUN),
            attempt=int(environ.get(environment.ATTEMPT, "1")),
            term=int(environ.get(environment.TERM, "0")),
            step=self._words[STEP],
            rank=self._rank,
            node_rank=int(environ.get(environment.NODE_RANK, "0")),
            node_count=int(environ.get(environment.NODE_COUNT, "1")),
            messages_lost=self._lost,
        )

    def report(self, **metrics: object) -> None:
        """Write metrics of the current step into the run's journal.

        Outside a Windfall run this has no effect.

        Args:
            metrics: by name.  A value that `float` accepts is stored as a number, any other as text.
        """
        self._send({"type": "report", "at_ns": monotonic_ns(), "step": self._words[STEP], "metrics": metrics})

    def _send(self, message: dict[str, object]) -> None:
        """Append one line to the message file, then count it; a line that does not fit is removed and counted as lost."""
        if not self._attached:
            return
        words = self._words
        line = line_of({"seq": words[MESSAGES] + 1, **message})
        try:
            attachment.append(self._environ[environment.SESSION], self._rank, line)
        except OSError:
            self._lost += 1
            return
        words[MESSAGES] += 1

    # --------------------------------------------------------------------------------------------------- the process

    def _install_sigterm_handler(self) -> None:
        """Record SIGTERM on the page, unless the script has its own handler or this is not the main thread."""
        if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
            return
        try:
            signal.signal(signal.SIGTERM, self._on_sigterm)
        except ValueError:
            return

    def _on_sigterm(self, _number: int, _frame: FrameType | None) -> None:
        self._words[SIGTERM_NS] = monotonic_ns()

    def _detach(self) -> None:
        """Leave the page to the parent; runs in a forked child, which must still terminate on SIGTERM."""
        self._words = attachment.private_page()
        self._attached = False
        if signal.getsignal(signal.SIGTERM) == self._on_sigterm:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


class _Outside(Session):
    """The session of a script that runs outside Windfall: no call has an effect.

    The methods have the docstrings of `Session`, so that `help(wf.step)` says the same inside and outside a run.
    """

    __slots__ = ()

    def step(self, step: int | None = None) -> bool:  # noqa: ARG002 - the signature of Session
        return False

    def enter_step(self) -> None:
        pass

    def exit_step(self) -> None:
        pass

    def step_context(self) -> AbstractContextManager[object]:
        return nullcontext()

    def check_save(self) -> bool:
        return False

    def steps(self, loader: Iterable[Item]) -> Iterator[Item]:
        return iter(loader)

    def phase(self, name: str) -> AbstractContextManager[object]:
        check_phase(name)
        return nullcontext()

    def backup(self, path: StrPath | None, *, keep: bool = False) -> None:
        pass

    def save_result(self, path: StrPath, name: str | None = None) -> None:
        pass

    def report(self, **metrics: object) -> None:
        pass

    def last(self) -> str | None:
        return None

    def notice(self) -> Notice | None:
        return None


for _name, _method in vars(_Outside).items():
    if not _name.startswith("_"):
        _method.__doc__ = getattr(Session, _name).__doc__
