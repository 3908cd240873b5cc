"""The node agent: the first process of a machine bought for a job, from the machine's start to its end.

It has no clock and no thread: `turn` collects facts, lets `core.node_agent_reducer` decide, executes the actions through
ports, and returns when the next turn is due.  It keeps no state that must survive it.  If it dies, the machine ends,
because the provider ends a machine whose first process has ended; the run's log has what was saved.

What the node agent needs from the outside, as protocols, and its calls in threads.

The job's setup: a shell script that runs once on each machine before the job's command.
"""

from __future__ import annotations

import contextlib
import os
import queue
import shutil
import signal
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from windfall import codec, fleet
from windfall.core import node_agent_reducer, node_agent_state
from windfall.core.node_agent_state import (
    Answered,
    EndMachine,
    ExecEnded,
    JobDataRead,
    JobDataUnavailable,
    JobLimits,
    Join,
    Joined,
    KillExec,
    MailboxFailed,
    MailboxRead,
    NodeAgentAction,
    NodeAgentFact,
    NodeAgentIdentity,
    NotAnswered,
    NotifyExec,
    NotPrepared,
    Prepare,
    Prepared,
    ReadJobData,
    RunStatus,
    RunStatusRead,
    SendReport,
    StartExec,
    StopExec,
    SyncMailbox,
)
from windfall.errors import ControllerError, StoreError, WindfallError
from windfall.events import Fact
from windfall.fleet import Directive, Report
from windfall.ports import Clock, ObjectStore
from windfall.structs import Struct
from windfall.terms import GRACE_S, Seconds, Term
from windfall.wire.boot_data import BootData, ClaimResponse, boot_from_json, missing_secrets
from windfall.wire.run_layout import CONTROLLER, JOB, directive_key, report_key

Secrets = tuple[tuple[str, str], ...]
"""Names and values of secrets."""
Facts = tuple[NodeAgentFact, ...]


class ReportClient(Protocol):
    """The direct channel to the controller.  Calls block for a bounded time and may raise `ControllerUnreachable`."""

    def claim(self) -> ClaimResponse:
        """Exchange the one-time credential; a repeated call of the same machine gets the same answer.

        Raises:
            ControllerError: the controller refuses.
        """
        ...

    def report(self, report: Report) -> Directive | None:
        """Send a report and return the controller's directive; None if it has none yet.

        Raises:
            ControllerError: the controller refuses.
        """
        ...


class Exec(Protocol):
    """At most one `windfall exec` at a time.  No call blocks."""

    def start(self, boot: BootData, secrets: Secrets, options: StartExec) -> None:
        """Start it."""
        ...

    def notify(self, facts: Sequence[Fact]) -> None:
        """Leave facts for its agent, replacing earlier ones."""
        ...

    def stop(self, *, now: bool) -> None:
        """Ask it to stop after a save, or `now` without one."""
        ...

    def kill(self) -> None:
        """Kill it and everything below it."""
        ...

    def poll(self) -> int | None:
        """Return the exit code, once, after its end; None while it runs or if none was started."""
        ...

    def run_status(self) -> RunStatus | None:
        """Return the run's status; None while this machine does not hold the run."""
        ...

    def last_message(self) -> str:
        """Return the last message that Windfall printed."""
        ...


class CallRunner(Protocol):
    """Runs calls that may block."""

    def start(self, name: str, call: Callable[[], Facts], otherwise: Facts) -> None:
        """Start a call; `otherwise` is its result if it fails unexpectedly."""
        ...

    def results(self) -> Facts:
        """Return the results of the calls that have ended since the last call of this method."""
        ...


class NodeAgentPorts(Struct, frozen=True):
    """Everything a node agent depends on.

    Attributes:
        direct: None if the machine has no address of its controller.
        store: of the run; the mailbox is in it.
        exec_: the job's `windfall exec`.
        prepare: fetches the code and runs the setup; raises `WindfallError`, and is retried after a `StoreError`.
        received: returns the notices and stop requests since its last call.
        calls: for `direct`, `store` and `prepare`.
        shut_down: ends the machine; takes the reason.
    """

    clock: Clock
    store: ObjectStore
    direct: ReportClient | None
    exec_: Exec
    prepare: Callable[[BootData, Secrets], None]
    received: Callable[[], Facts]
    calls: CallRunner
    shut_down: Callable[[str], None]
    identity: NodeAgentIdentity


class ThreadCallRunner:
    """`CallRunner` with a thread for each call, so that a store that does not answer cannot block the direct channel."""

    def __init__(self, wake: Callable[[], None], log: Callable[[str], None]) -> None:
        """Prepare; `wake` is called when a call ends, `log` with unexpected errors."""
        self._results: queue.SimpleQueue[Facts] = queue.SimpleQueue()
        self._wake, self._log = wake, log

    def start(self, name: str, call: Callable[[], Facts], otherwise: Facts) -> None:
        """Start a call in a new thread."""
        threading.Thread(target=self._run, args=(name, call, otherwise), name=f"node-agent-{name}", daemon=True).start()

    def _run(self, name: str, call: Callable[[], Facts], otherwise: Facts) -> None:
        try:
            facts = call()
        except Exception as error:
            self._log(f"{name} failed unexpectedly: {type(error).__name__}: {error}")
            facts = otherwise
        self._results.put(facts)
        self._wake()

    def results(self) -> Facts:
        """Return the results of the calls that have ended."""
        found: list[NodeAgentFact] = []
        while not self._results.empty():
            found += self._results.get()
        return tuple(found)


_ROUNDS_MAX = 16
"""How often one turn checks for results of its own actions; they are immediate only where nothing blocks."""


class NodeAgent:
    """The node agent of one machine."""

    def __init__(self, ports: NodeAgentPorts) -> None:
        self._ports = ports
        self._state = node_agent_state.initial_state(ports.identity, ports.clock.now())
        self._boot: BootData | None = None
        self._secrets: Secrets = ()

    @property
    def over(self) -> bool:
        """Whether the machine is shutting down."""
        return self._state.over

    @property
    def has_job(self) -> bool:
        """Whether the machine has received its job."""
        return self._boot is not None

    @property
    def grace_s(self) -> Seconds:
        """How long this machine keeps running after SIGTERM, as the job says [s]."""
        configured = None if self._boot is None else self._boot.options.grace_s
        return GRACE_S if configured is None else configured

    def turn(self) -> float:
        """Do what is due; return the time until the next turn is due at the latest [s]."""
        facts = (*self._ports.received(), *self._poll_exec(), *self._ports.calls.results())
        for _ in range(_ROUNDS_MAX):
            self._state, actions = node_agent_reducer.react(self._state, self._ports.clock.now(), facts)
            for action in actions:
                self._execute(action)
            facts = self._ports.calls.results()
            if not facts and not actions:
                break
        return node_agent_reducer.pause_s(self._state, self._ports.clock.now())

    def _poll_exec(self) -> Facts:
        if self._state.running is None:
            return ()
        code = self._ports.exec_.poll()  # before the file: a status written just before the end is then read too
        status = RunStatusRead(self._ports.exec_.run_status())
        return (status,) if code is None else (status, ExecEnded(code, self._ports.exec_.last_message()))

    # ---------------------------------------------------------------------------------------------------- the actions

    def _execute(self, action: NodeAgentAction) -> None:
        match action:
            case Join() | ReadJobData() | Prepare() | SendReport() | SyncMailbox():
                self._call(action)
            case StartExec():
                assert self._boot is not None, "nothing starts before the job is known"
                self._ports.exec_.start(self._boot, self._secrets, action)
            case NotifyExec(facts):
                self._ports.exec_.notify(facts)
            case StopExec(now):
                self._ports.exec_.stop(now=now)
            case KillExec():
                self._ports.exec_.kill()
            case EndMachine(reason):
                self._ports.shut_down(reason)

    def _call(self, action: Join | ReadJobData | Prepare | SendReport | SyncMailbox) -> None:
        start = self._ports.calls.start
        match action:
            case Join():
                start("claim", self._join, (NotAnswered(),))
            case ReadJobData():
                start("job", self._read_job_data, (JobDataUnavailable("cannot read the job's data in the store"),))
            case Prepare():
                start("setup", self._prepare, (NotPrepared("cannot run the setup", final=False),))
            case SendReport(report):
                start("report", lambda: self._send_report(report), (NotAnswered(),))
            case SyncMailbox(report):
                start("mailbox", lambda: self._sync_mailbox(report), (MailboxFailed(),))

    def _join(self) -> Facts:
        assert self._ports.direct is not None
        try:
            claimed = self._ports.direct.claim()
        except WindfallError as error:
            return (NotAnswered(str(error)),)
        self._accept_job(claimed.boot, claimed.secrets)
        return Joined(), *_job_facts(claimed.boot, claimed.secrets)

    def _read_job_data(self) -> Facts:
        """Read the job from the store, unless it needs secrets, which only the controller has."""
        try:
            data = self._ports.store.get(JOB)
            if data is None:
                return (JobDataUnavailable("no answer from the controller, and no job in the store yet"),)
            boot = boot_from_json(codec.parse(data))
        except (WindfallError, ValueError) as error:
            return (JobDataUnavailable(f"cannot read the job's data: {error}"),)
        facts = _job_facts(boot, ())
        if any(isinstance(fact, JobDataRead) for fact in facts):
            self._accept_job(boot, ())
        return facts

    def _accept_job(self, boot: BootData, secrets: Secrets) -> None:
        if self._boot is None:
            self._boot, self._secrets = boot, secrets

    def _prepare(self) -> Facts:
        assert self._boot is not None
        try:
            self._ports.prepare(self._boot, self._secrets)
        except StoreError as error:
            return (NotPrepared(f"cannot fetch the job's code: {error}", final=False),)
        except WindfallError as error:
            return (NotPrepared(str(error), final=True),)
        return (Prepared(),)

    def _send_report(self, report: Report) -> Facts:
        assert self._ports.direct is not None
        try:
            return (Answered(self._ports.direct.report(report)),)
        except ControllerError as error:
            return (NotAnswered(str(error)),)

    def _sync_mailbox(self, report: Report) -> Facts:
        try:
            return (sync_mailbox(self._ports.store, report),)
        except StoreError:
            return (MailboxFailed(),)


def sync_mailbox(store: ObjectStore, report: Report) -> MailboxRead:
    """Leave a report in the mailbox and return what the controller left there; invalid objects count as missing.

    Raises:
        StoreError: the store did not answer, or refused.
    """
    store.put(report_key(report.machine_id), codec.encode_document(fleet.VERSION, "report", report))
    return MailboxRead(
        _directive(store.get(directive_key(report.machine_id))),
        _heartbeat(store.get(CONTROLLER)),
    )


def _directive(data: bytes | None) -> Directive | None:
    try:
        directive: Directive | None = (
            None
            if data is None
            else codec.decode_document(data, "directive", Directive, version=fleet.VERSION, what="a directive")
        )
    except (ValueError, WindfallError):
        return None
    return directive


def _heartbeat(data: bytes | None) -> tuple[Term, int] | None:
    try:
        heartbeat = codec.parse(data or b"{}")
        return Term(codec.decode(heartbeat["term"], int)), codec.decode(heartbeat["counter"], int)
    except (ValueError, KeyError, TypeError):
        return None


def _job_facts(boot: BootData, secrets: Secrets) -> tuple[NodeAgentFact, ...]:
    missing = missing_secrets(boot, secrets)
    if missing:
        return (JobDataUnavailable(f"waiting for the controller to provide the secret {', '.join(missing)}"),)
    return (JobDataRead(JobLimits(boot.addressed or boot.nodes > 1, boot.dead_man_s, boot.save_timeout_s)),)


KEPT_BYTES_MAX = 256 << 10
"""How much of the end of the setup's output is stored with the run [B]."""
_TAIL_LINES, _TAIL_CHARACTERS = 5, 600
_LINE_BYTES_MAX = 8192
_SECRET_CHARACTERS_MIN = 4
"""Shorter secrets occur by chance in any output; masking them would make it unreadable."""


class SetupFailed(WindfallError):
    """The job's setup failed on this machine."""


class JobSetup:
    """One run of the setup: call `run` in one thread, `kill` from any."""

    def __init__(self, secrets: tuple[str, ...]) -> None:
        self._secrets = tuple(value for value in secrets if len(value) >= _SECRET_CHARACTERS_MIN)
        self._lines: deque[bytes] = deque()
        self._kept_bytes = 0
        self._process: subprocess.Popen[bytes] | None = None

    def run(self, script: str, cwd: str, env: Mapping[str, str]) -> None:
        """Run a script with a shell that stops at the first error; print its lines with the prefix `setup | `.

        Args:
            script: path of the script.
            cwd: where it runs.
            env: its environment.

        Raises:
            SetupFailed: its exit code is not 0; the message has its last lines.
        """
        shell = shutil.which("bash") or "/bin/sh"
        try:
            self._process = subprocess.Popen(
                [shell, "-e", script],
                cwd=cwd,
                env=dict(env),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            raise SetupFailed(f"cannot start the setup in {cwd}: {error.strerror}") from error
        with self._process as process:
            assert process.stdout is not None
            while line := process.stdout.readline(_LINE_BYTES_MAX):
                self._record(line)
        if self._process.returncode != 0:
            raise SetupFailed(f"the setup exited with {self._process.returncode}: {self._tail()}")

    def _record(self, line: bytes) -> None:
        for value in self._secrets:
            line = line.replace(value.encode(), b"***")
        line = b"setup | " + line.rstrip(b"\n") + b"\n"
        with contextlib.suppress(OSError):
            os.write(1, line)
        self._lines.append(line)
        self._kept_bytes += len(line)
        while self._kept_bytes > KEPT_BYTES_MAX:
            self._kept_bytes -= len(self._lines.popleft())

    def output(self) -> bytes:
        """Return the end of its output."""
        return b"".join(self._lines)

    def _tail(self) -> str:
        last = [line.decode(errors="replace").removeprefix("setup | ").strip() for line in self._lines]
        text = " / ".join([line for line in last if line][-_TAIL_LINES:])
        return text[-_TAIL_CHARACTERS:] or "no output"

    def kill(self) -> None:
        """Kill it and its children, if it is running."""
        if self._process is not None and self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
