"""Asks a user's function which running items to stop, in a process of its own that ends with the runner.

It is started when the first item has reported, in the folder with the job's code.  Questions and answers are lines of JSON on
its pipes.  A function that raises or takes too long leaves its item alone; one that cannot be loaded, all items.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import select
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from windfall.bags import ItemLease, Value
from windfall.core.item_runner import RuleAnswered
from windfall.ports import Clock
from windfall.structs import Struct

START_S = 60.0
"""How long it may take until the function is loaded [s]."""
CALL_S = 10.0
"""How long a call may take [s]."""


class RuleProgram(Struct, frozen=True):
    """What runs the function.

    Attributes:
        clock: for the limits.
        name: of the function, as the job file has it.
        argv: the command of the process.
        folder: with the job's code.
        env: its environment, without what opens the store.
        wake: called when there is an answer.
        log: takes a message for the machine's output.
        start_s, call_s: limits [s].
    """

    clock: Clock
    name: str
    argv: Sequence[str]
    folder: str
    env: Mapping[str, str]
    wake: Callable[[], None]
    log: Callable[[str], None]
    start_s: float = START_S
    call_s: float = CALL_S


class _Failed(Exception):
    """Why there is no answer; it may be a matter of all items."""

    def __init__(self, reason: str, *, for_all: bool = False) -> None:
        super().__init__(reason)
        self.for_all = for_all


class RuleCall:
    """The function; calls of the methods come from one thread, and return at once."""

    def __init__(self, program: RuleProgram) -> None:
        self._program = program
        self._asked: queue.SimpleQueue[ItemLease | None] = queue.SimpleQueue()
        self._questions: dict[ItemLease, dict[str, object]] = {}
        self._answers: queue.SimpleQueue[RuleAnswered] = queue.SimpleQueue()
        self._process: subprocess.Popen[bytes] | None = None
        self._read = b""
        self._excused: set[ItemLease] = set()
        self._off = self._problem_known = False
        self._thread: threading.Thread | None = None

    def ask(self, lease: ItemLease, parameters: Mapping[str, Value], values: Sequence[float]) -> None:
        """Ask whether an item stops; a newer question takes the place of one that waits."""
        if self._off:
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="stop rule", daemon=True)
            self._thread.start()
        self._questions[lease] = {"parameters": dict(parameters), "values": list(values)}
        self._asked.put(lease)

    def forget(self, lease: ItemLease) -> None:
        """Ask no more about an item: it has ended."""
        self._questions.pop(lease, None)

    def answers(self) -> list[RuleAnswered]:
        """Return what has been answered since the last call."""
        found: list[RuleAnswered] = []
        while not self._answers.empty():
            found.append(self._answers.get())
        return found

    def close(self) -> None:
        """End the process; a call that runs is cut off."""
        self._off = True
        if self._thread is not None:
            if (process := self._process) is not None:
                _kill(process)
            self._asked.put(None)
            # A process that it is starting just now dies with the thread.
            self._thread.join(1.0)

    # ------------------------------------------------------------------------------------------------------- the thread

    def _work(self) -> None:
        while (lease := self._asked.get()) is not None:
            question = self._questions.pop(lease, None)
            if question is None or self._off or lease in self._excused:
                continue
            try:
                answer = self._call(question)
            except _Failed as failed:
                self._give_up(lease, failed)
                continue
            if answer["stop"]:
                self._excused.add(lease)
                self._post(RuleAnswered(lease, answer["reason"] or f"{self._program.name} returned true"))
        self._end()

    def _call(self, question: Mapping[str, object]) -> dict[str, Any]:
        if self._process is None:
            self._read = b""
            try:
                self._process = subprocess.Popen(
                    self._program.argv, cwd=self._program.folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                    env=self._program.env, start_new_session=True,
                )  # fmt: skip
            except OSError as error:
                raise _Failed(f"cannot be started: {error.strerror}", for_all=True) from error
            self._answer(self._program.start_s, "loading it")
        stdin = self._process.stdin
        assert stdin is not None
        with contextlib.suppress(BrokenPipeError):
            stdin.write(json.dumps(question).encode() + b"\n")
            stdin.flush()
        return self._answer(self._program.call_s, "a call")

    def _answer(self, limit_s: float, what: str) -> dict[str, Any]:
        """Return the next line of the process."""
        process = self._process
        assert process is not None
        assert process.stdout is not None
        until = self._program.clock.now() + limit_s
        while b"\n" not in self._read:
            ready, _, _ = select.select([process.stdout], [], [], max(until - self._program.clock.now(), 0.0))
            if not ready:
                self._end()
                raise _Failed(f"{what} took longer than {limit_s:g} s")
            data = os.read(process.stdout.fileno(), 1 << 16)
            if not data:
                self._end()
                raise _Failed(f"its process ended during {what}")
            self._read += data
        line, _, self._read = self._read.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            if answer.get("for_all"):
                self._end()
            raise _Failed(answer["error"], for_all=bool(answer.get("for_all")))
        return answer

    def _give_up(self, lease: ItemLease, failed: _Failed) -> None:
        """Leave an item, or all, without the rule, and report the first problem."""
        if self._off:
            return
        self._excused.add(lease)
        self._off = failed.for_all
        if self._problem_known:
            return
        self._problem_known = True
        alone = "no item is stopped by it here" if failed.for_all else f"item {lease.item} runs without it"
        problem = f"stop_item.call {self._program.name}: {failed}; {alone}"
        self._program.log(problem)
        self._post(RuleAnswered(None, problem))

    def _post(self, answer: RuleAnswered) -> None:
        self._answers.put(answer)
        self._program.wake()

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            _kill(process)
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):
                        pipe.close()


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
