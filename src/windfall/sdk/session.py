"""The script's side of a session: the calls of the thesis (Table 5.1) and a few more, over the shared-memory page.

Theory of operation.  The first call claims the page of this process's rank; from then on a step is two stores and one
load of mapped memory, and nothing here waits for anybody.  A process that has no session writes to a private page that
nobody reads: the same code, no case distinction in the hot path.  That is so for forked children, for helper processes
that find the page of a living process in place (data-loader workers), and when the session's folder cannot be used.

No error of the agent, of the disk or of the session's folder reaches the script: messages that could not be written are
counted (`context().messages_lost`).  What raises is misuse: a phase that does not exist, a path that is none.
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
from windfall.wire import environment, page
from windfall.wire.page import (
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
    STEP_BEGIN_NS,
    STEP_END_NS,
    TARGET,
)

Item = TypeVar("Item")
StrPath = str | os.PathLike[str]

DATA_WAIT_REPORTED_NS = 1_000_000_000
"""Waits of `steps` for its loader that are shorter are seen on the page alone, not written down [ns]."""

_BETWEEN = page.PHASES.index("between")
_SAVE = page.PHASES.index("save")
_DATA = page.PHASES.index("data")
_SPOKEN = {page.LEVELS.index(level): level for level in ("hint", "announced", "gone")}


class Notice(NamedTuple):
    """What is known of this machine's end.

    Attributes:
        level: `hint` (may never happen), `announced` (has a deadline) or `gone`.
        seconds_left: until the deadline [s], never below 0; None where nobody says.
    """

    level: str
    seconds_left: float | None


class Context(NamedTuple):
    """Where this process stands.

    Attributes:
        run: URL of the run; None outside Windfall.
        attempt: number of this start of the script within the run, from 1.
        term: number of the record by which this machine took the run.
        step: complete steps since the run began.
        rank, node_rank, node_count: this process among all, this machine among all.
        messages_lost: hand-overs and reports that could not be written down.
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
    """Return this process's session: the real one inside Windfall, one that does nothing outside."""
    if not os.environ.get(environment.SESSION):
        return Outside(os.environ)
    return Session(os.environ)


class Session:
    """One rank's session with the agent on its machine.

    Args:
        environ: the environment variables of `wire.environment`.
    """

    __slots__ = (
        "__weakref__",
        "_counted",
        "_environ",
        "_handed",
        "_in_iteration",
        "_last_request",
        "_listening",
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
        self._handed: tuple[int, str | None] = (-1, None)
        self._own_end_ns = 0  # end of the last step that `backup` counted
        self._lost = 0
        self._step_context = StepContext(self)
        self._rank = attachment.rank_of(environ)
        self._phases_ns = (0, 0)
        words = attachment.claim(environ, self._rank)
        self._listening = words is not None
        self._words = attachment.private_page() if words is None else words
        if self._listening:
            os.register_at_fork(after_in_child=self._detach)
            self._listen_to_sigterm()

    @property
    def attached(self) -> bool:
        """Whether this process has the page of its rank."""
        return self._listening

    @property
    def messages(self) -> int:
        """How many messages this rank has written."""
        return self._words[MESSAGES]

    # ------------------------------------------------------------------------------------------------------ the steps

    def step(self, step: int | None = None) -> bool:
        """End a step; return True when a checkpoint shall be saved now and given to `backup`.

        The three calls of Table 5.1 in one: a step reaches from one call to the next.

        Args:
            step: how many steps are complete since the run began; counted by one if not given.
        """
        words = self._words
        done = words[STEP] + 1 if step is None else step
        words[STEP_END_NS] = monotonic_ns()
        words[STEP] = done
        if words[PHASE] != _BETWEEN or self._in_iteration:
            self._settle()
        return done >= words[TARGET] and self._answer()

    def enter_step(self) -> None:
        """Mark the start of a training step."""
        words = self._words
        words[STEP_BEGIN_NS] = monotonic_ns()
        if words[PHASE] == _SAVE and self._last_request:
            self._settle()

    def exit_step(self) -> None:
        """Mark the end of a training step: one more is complete."""
        words = self._words
        words[STEP_END_NS] = monotonic_ns()
        words[STEP] += 1
        if words[PHASE] != _BETWEEN or self._in_iteration:
            self._settle()

    def step_context(self) -> AbstractContextManager[object]:
        """Return a context manager from `enter_step` to `exit_step`; a step left by an exception is not complete."""
        return self._step_context

    def check_save(self) -> bool:
        """Return True, once for each request, when a checkpoint shall be saved now and given to `backup`."""
        if self._in_iteration:
            self.exit_step()
        words = self._words
        return words[STEP] >= words[TARGET] and self._answer()

    def steps(self, loader: Iterable[Item]) -> Iterator[Item]:
        """Yield the loader's items; the body of the loop is a step.

        The step ends at the first `check_save`, `backup` or `step` in the body, else with the body.  A body left by
        `break` or an exception before any of them is not a complete step.
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
                self._tell_phase("data", waited)
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
        """Close what a finished step closes: the start, a save, the iteration of `steps`."""
        self._in_iteration = False
        self._words[PHASE] = _BETWEEN
        if self._last_request:
            # Every rank has done with the last save of this machine: what comes now would be computed again elsewhere.
            request, self._last_request = self._last_request, 0
            standstill.stand_still(self._words, request)

    def _answer(self) -> bool:
        """Acknowledge the request whose step is reached; False if there is none for this step."""
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
        """Hand over a saved checkpoint, a file or a folder, which is uploaded behind the training.

        It also satisfies a request to save that has not been asked for yet.  In a script that never calls `step` each
        hand-over counts as a step.  What was handed over must not be changed: give each save a name of its own.

        Args:
            path: the file or folder; None if this rank has no part of the checkpoint.
            keep: it is a save of your own although `step` or `check_save` asked for one at the same time: it stays.
        """
        begin, told = monotonic_ns(), self._open_request
        if self._in_iteration:
            self.exit_step()
        words = self._words
        text = None if path is None else absolute(path)
        step, before = self._handed
        if words[STEP_END_NS] == self._own_end_ns and text is not None and before not in (None, text):
            self._own_end_ns = words[STEP_END_NS] = begin
            words[STEP] += 1
        if step != words[STEP] or before == text:
            self._answer()  # but a second path at this step may be no checkpoint at all
        self._handed = words[STEP], text
        same_step = self._open_request and words[ACK_STEP] == words[STEP]
        request = self._open_request if same_step else 0
        stall_ns = self._stall_ns(begin)
        self._open_request = 0
        self._tell(
            {
                "it": "backup",
                "at_ns": begin,
                "step": words[STEP],
                "request": request,
                "path": text,
                "stall_ns": stall_ns,
                "own": keep or told != request or request == 0,
                "counted": words[STEP_END_NS] == begin,
            }
        )
        if request:
            self._stay(request, stall_ns)
        elif words[PHASE] == _SAVE:
            words[PHASE] = _BETWEEN

    def _stay(self, request: int, stall_ns: int) -> None:
        """Behind the last save of this machine: stand still, at once where no other rank needs this one any more."""
        words, environ = self._words, self._environ
        words[SERVED] = request
        if not self._last_request:
            words[PHASE] = _BETWEEN
            return
        alone = environ.get(environment.NODE_COUNT, "1") == "1"
        if alone and (words[LOCAL_WORLD] == 1 or standstill.all_served(environ[environment.SESSION], words, stall_ns)):
            self._settle()

    def save_result(self, path: StrPath, name: str | None = None) -> None:
        """Hand over what the script made, a file or a folder: it is stored whole before the run is called done.

        No restart restores a result.  Handed over again under the same name, the newest counts; each rank has names of
        its own.  `windfall get RUN --result NAME` brings it back.

        Args:
            path: the file or folder; it must not be changed until the script has ended or hands over the next.
            name: how it is called; the last part of the path if not given.
        """
        begin, step, text = monotonic_ns(), self._words[STEP], absolute(path)
        called = os.path.basename(text) if name is None else name
        stall_ns = self._stall_ns(begin)
        # What making it took is told once: the save of this step, if there is one behind, does not count it again.
        told_ns = self._phases_ns[1] if self._phases_ns[0] == step else 0
        self._phases_ns = (step, told_ns + stall_ns)
        said = {"it": "result", "at_ns": begin, "step": step, "request": 0, "path": text, "name": called}
        self._tell({**said, "stall_ns": stall_ns})

    def _stall_ns(self, now_ns: int) -> int:
        """Return how long the script has stood still for its save; phases in between are told on their own."""
        words = self._words
        step, phases_ns = self._phases_ns
        since_ns = max(words[STEP_END_NS], words[ACK_NS])
        # Before a step has ended nobody knows what was training and what was the save.
        return max(0, now_ns - (since_ns or now_ns) - (phases_ns if step == words[STEP] else 0))

    def last(self) -> str | None:
        """Return the path of this rank's restored and verified checkpoint; None on a fresh start.

        A rank that had no part of it gets the lowest rank's.  Steps are counted on from the checkpoint's.
        """
        path = self._own_part() or self._environ.get(environment.CHECKPOINT)
        if path is None or not os.path.exists(path):
            return None
        if not self._counted and self._words[STEP] == 0:
            self._words[STEP] = int(self._environ.get(environment.STEP, "0"))
        self._counted = True
        return path

    def _own_part(self) -> str | None:
        point = self._environ.get(environment.CHECKPOINT_DIR)
        if not point:
            return None
        folder = os.path.join(point, str(self._rank))
        try:
            names = os.listdir(folder)
        except OSError:
            return None
        return os.path.join(folder, names[0]) if len(names) == 1 else None

    # ---------------------------------------------------------------------------------------------- what else is said

    def phase(self, name: str) -> AbstractContextManager[object]:
        """Return a context manager around what is not a step and cannot be interrupted.

        Args:
            name: `evaluation`, `compile`, `data` or `save`.

        Raises:
            ValueError: there is no such phase.
        """
        check_phase(name)
        return PhaseContext(self, name)

    def _tell_phase(self, name: str, duration_ns: int) -> None:
        step = self._words[STEP]
        before_ns = self._phases_ns[1] if self._phases_ns[0] == step else 0
        self._phases_ns = (step, before_ns + duration_ns)
        self._tell({"it": "phase", "step": step, "name": name, "duration_ns": duration_ns})

    def notice(self) -> Notice | None:
        """Return what is known of this machine's end, None without a notice (cheap enough for each step)."""
        level = self._words[NOTICE]
        return self._notice(level) if level else None

    def _notice(self, level: int) -> Notice | None:
        if level not in _SPOKEN:
            return None
        deadline_ns = self._words[DEADLINE_NS]
        left_s = max(0.0, (deadline_ns - monotonic_ns()) / 1e9) if deadline_ns else None
        return Notice(_SPOKEN[level], left_s)

    def context(self) -> Context:
        """Return where this process stands: run, attempt, term, step, rank, machine."""
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
        """Write metrics into the run's journal; whatever `float` accepts is a number."""
        self._tell({"it": "report", "at_ns": monotonic_ns(), "step": self._words[STEP], "metrics": metrics})

    def _tell(self, message: dict[str, object]) -> None:
        """Append one line to the message file, then count it; a line that does not fit is taken back and lost."""
        if not self._listening:
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

    def _listen_to_sigterm(self) -> None:
        """Note SIGTERM on the page, unless the script has a handler of its own or this is not the main thread."""
        if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
            return
        try:
            signal.signal(signal.SIGTERM, self._on_sigterm)
        except ValueError:
            return

    def _on_sigterm(self, _number: int, _frame: FrameType | None) -> None:
        self._words[SIGTERM_NS] = monotonic_ns()

    def _detach(self) -> None:
        """Leave the page to the parent (runs in a forked child, which must also die of SIGTERM as before)."""
        self._words = attachment.private_page()
        self._listening = False
        if signal.getsignal(signal.SIGTERM) == self._on_sigterm:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


class Outside(Session):
    """The session of a script that runs without Windfall: every call does nothing."""

    __slots__ = ()

    def step(self, step: int | None = None) -> bool:  # noqa: ARG002 - the face of Session
        """Do nothing; there is never a request."""
        return False

    def enter_step(self) -> None:
        """Do nothing."""

    def exit_step(self) -> None:
        """Do nothing."""

    def step_context(self) -> AbstractContextManager[object]:
        """Return a context manager that does nothing."""
        return nullcontext()

    def check_save(self) -> bool:
        """Do nothing; there is never a request."""
        return False

    def steps(self, loader: Iterable[Item]) -> Iterator[Item]:
        """Yield the loader's items."""
        return iter(loader)

    def phase(self, name: str) -> AbstractContextManager[object]:
        """Return a context manager that does nothing.

        Raises:
            ValueError: there is no such phase.
        """
        check_phase(name)
        return nullcontext()

    def backup(self, path: StrPath | None, *, keep: bool = False) -> None:
        """Do nothing: the file stays where it is."""

    def save_result(self, path: StrPath, name: str | None = None) -> None:
        """Do nothing: the file stays where it is."""

    def report(self, **metrics: object) -> None:
        """Do nothing."""

    def last(self) -> str | None:
        """Return None: nothing was restored."""
        return None

    def notice(self) -> Notice | None:
        """Return None: nobody listens for notices."""
        return None
