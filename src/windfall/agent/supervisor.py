"""The supervisor: the foreground process of `windfall exec`, parent of agent and guard.

It is small and imports the standard library only, so it has few reasons to fail.  It keeps the script's exit status if the
agent dies, restarts a dead agent, copies everything the script prints to its own output and to the session's log file,
and turns signals into messages.  Its own death ends the agent, the script and every descendant.

Messages are JSON lines over a socket pair.

    agent -> supervisor   {"type": "start", "attempt", "argv", "cwd", "env"} | {"type": "kill"} | {"type": "log", "text"}
                          {"type": "vanish", "in_s"} | {"type": "exit", "code"}
    supervisor -> agent   {"type": "hello", "attempt", "running", "status", "refused"}
                          {"type": "exited", "attempt", "status", "refused"} | {"type": "signal", "number", "at_ns"}

`refused` says why the script could not be isolated as requested; null otherwise.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable

from windfall.agent.session_folder import CRASHES, SIGNALS
from windfall.errors import EXIT_RETRY, EXIT_STOPPED
from windfall.linux import guard, processes
from windfall.wire.python_programs import program

AGENT = program("windfall.cli.agent_process")
"""The agent's command line; the session folder and the socket's descriptor are appended."""
_AGENT_TRIES_MAX = 5
"""After this many deaths of the agent in a row while no script runs, the supervisor gives up."""
_RESTART_PAUSE_S_MAX = 5.0
_UNHANDLED_SIGNAL_DEATHS_MAX = 3
"""After this many deaths of the agent following a signal, the supervisor acts on the signal itself."""


class Supervisor:
    """The state of one `windfall exec` and its event loop."""

    def __init__(self, session: str, isolation: str, agent: tuple[str, ...] = AGENT) -> None:
        self._session = session
        self._isolation = isolation
        self._agent_command = agent
        self._select = selectors.DefaultSelector()
        self._log_fd = os.open(os.path.join(session, "output.log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._agent: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None
        self._received = b""
        self._agent_deaths = 0
        self._deaths_since_signal = 0
        self._signals: list[dict[str, object]] = []
        self._guard: int | None = None
        self._outputs: dict[int, int] = {}
        self._unfinished: dict[int, bool] = {}
        self._one_output = _are_one(1, 2)
        self._attempt = 0
        self._status: int | None = None
        self._refused: str | None = None
        self._timers: dict[str, tuple[float, Callable[[], None]]] = {}
        self._exit_code: int | None = None

    def run(self) -> int:
        """Supervise until the agent orders the exit; return the exit code."""
        processes.become_subreaper()
        self._catch_signals()
        self._start_agent()
        while self._exit_code is None:
            for key, _ in self._select.select(self._timeout_s()):
                # An earlier event of this batch may have closed this file, and its descriptor may be in use again.
                if self._select.get_map().get(key.fd) is key:
                    key.data()
            self._fire_timers()
        self._kill_script()
        processes.kill_descendants(os.getpid())
        self._drain_output()
        return self._exit_code

    # ------------------------------------------------------------------------------------------------------- signals

    def _catch_signals(self) -> None:
        reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        for number in SIGNALS:
            signal.signal(number, lambda *_: None)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)  # blocked by `windfall exec` until now

        def deliver() -> None:
            at_ns = time.monotonic_ns()
            for number in os.read(reader, 64):
                self._signals.append({"type": "signal", "number": number, "at_ns": at_ns})
                self._send(self._signals[-1])

        self._select.register(reader, selectors.EVENT_READ, deliver)

    # --------------------------------------------------------------------------------------------------------- agent

    def _start_agent(self) -> None:
        ours, theirs = socket.socketpair()
        parent = os.getpid()
        self._agent = subprocess.Popen(
            [*self._agent_command, self._session, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=lambda: processes.die_with_parent(parent),  # noqa: PLW1509 - the supervisor has one thread
        )
        theirs.close()
        self._channel, self._received = ours, b""
        self._select.register(ours, selectors.EVENT_READ, self._receive_from_agent)
        running = self._guard is not None
        hello = {"type": "hello", "attempt": self._attempt, "running": running, "status": self._status}
        self._send({**hello, "refused": self._refused})
        for message in self._signals:
            # An earlier agent may have died before it received them or wrote them to the journal.
            self._send(message)

    def _send(self, message: dict[str, object]) -> None:
        if self._channel is not None:
            with contextlib.suppress(OSError):
                self._channel.sendall(json.dumps(message).encode() + b"\n")

    def _receive_from_agent(self) -> None:
        assert self._channel is not None
        try:
            data = self._channel.recv(1 << 20)
        except ConnectionResetError:
            data = b""
        if not data:
            self._reap_agent()
            return
        *lines, self._received = (self._received + data).split(b"\n")
        for line in lines:
            self._execute(json.loads(line))

    def _reap_agent(self) -> None:
        assert self._channel is not None
        assert self._agent is not None
        self._select.unregister(self._channel)
        self._channel.close()
        self._channel = None
        self._agent.kill()
        self._agent.wait()
        self._agent_deaths += 1
        self._deaths_since_signal += bool(self._signals)
        if self._deaths_since_signal >= _UNHANDLED_SIGNAL_DEATHS_MAX:
            self._log("the agent keeps crashing and cannot handle the signal: stopping the script without a save")
            stopped = self._signals[0]["number"] == signal.SIGINT
            self._exit_code = EXIT_STOPPED if stopped else EXIT_RETRY
            return
        if self._guard is None and self._agent_deaths >= _AGENT_TRIES_MAX:
            when = "before the script started" if self._attempt == 0 else "after the script ended"
            self._log(f"the agent crashed {self._agent_deaths} times {when}: giving up")
            self._exit_code = 1
            return
        pause_s = min(0.05 * 2**self._agent_deaths, _RESTART_PAUSE_S_MAX)
        self._timers["agent"] = (time.monotonic() + pause_s, self._start_agent)

    def _execute(self, message: dict[str, object]) -> None:
        kind = message["type"]
        if kind == "start":
            self._start_script(message)
        elif kind == "kill":
            self._kill_script()
        elif kind == "log":
            self._log(str(message["text"]))
        elif kind == "vanish":
            at = time.monotonic() + float(str(message["in_s"]))
            self._timers["vanish"] = (at, lambda: os.kill(os.getpid(), signal.SIGKILL))
        elif kind == "exit":
            self._exit_code = int(str(message["code"]))

    def _log(self, text: str) -> None:
        line = f"windfall: {text}\n".encode()
        for fd in (2, self._log_fd):
            # Unbuffered Python writes a line and its end apart: a message between the two would join the line.
            unfinished = self._unfinished.get(fd, False)
            self._write(fd, b"\n" + line if unfinished else line)

    # -------------------------------------------------------------------------------------------------------- script

    def _start_script(self, message: dict[str, object]) -> None:
        assert self._guard is None, "the agent starts one attempt at a time"
        argv, env = message["argv"], message["env"]
        assert isinstance(argv, list)
        assert isinstance(env, dict)
        self._attempt, self._status, self._refused = int(str(message["attempt"])), None, None
        out, out_w = os.pipe()
        err, err_w = os.pipe()
        status, status_w = os.pipe()
        launch = guard.ScriptLaunch(tuple(argv), str(message["cwd"]), env, out_w, err_w, status_w, self._isolation)
        supervisor_pid = os.getpid()
        pid = os.fork()
        if pid == 0:
            _close_all_but({0, 1, 2, out_w, err_w, status_w})
            guard.run(launch, supervisor_pid)
        for fd in (out_w, err_w, status_w):
            os.close(fd)
        self._guard = pid
        self._outputs = {out: 1, err: 2}
        self._select.register(out, selectors.EVENT_READ, lambda: self._copy(out))
        self._select.register(err, selectors.EVENT_READ, lambda: self._copy(err))
        self._select.register(status, selectors.EVENT_READ, lambda: self._script_ended(status))

    def _copy(self, source: int) -> None:
        data = os.read(source, 1 << 16)
        if not data:
            self._select.unregister(source)
            os.close(source)
            del self._outputs[source]
            return
        self._write(self._outputs[source], data)
        self._write(self._log_fd, data)

    def _write(self, fd: int, data: bytes) -> None:
        _write_all(fd, data)
        for one in (1, 2) if fd in (1, 2) and self._one_output else (fd,):
            self._unfinished[one] = not data.endswith(b"\n")

    def _drain_output(self) -> None:
        """Copy what is left in the pipes; every process that could write to them is dead, so they end."""
        for source in tuple(self._outputs):
            while source in self._outputs:
                self._copy(source)

    def _script_ended(self, status_fd: int) -> None:
        """Handle the status pipe: the script has ended, or guard and script were killed."""
        text = os.read(status_fd, 4096).decode(errors="replace").strip()
        self._select.unregister(status_fd)
        os.close(status_fd)
        assert self._guard is not None
        pid, self._guard = self._guard, None
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        spare = frozenset({self._agent.pid}) if self._agent is not None else frozenset[int]()
        processes.kill_descendants(os.getpid(), spare)
        self._drain_output()
        self._agent_deaths = 0
        if text.startswith("!"):
            self._status, self._refused = 126, text[2:]
        else:
            self._status = int(text) if text else 128 + signal.SIGKILL
        self._send({"type": "exited", "attempt": self._attempt, "status": self._status, "refused": self._refused})

    def _kill_script(self) -> None:
        if self._guard is not None:
            # In a namespace this kills PID 1 and with it everything; without one, `_script_ended` kills what is left.
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._guard, signal.SIGKILL)

    # --------------------------------------------------------------------------------------------------------- timers

    def _timeout_s(self) -> float | None:
        if not self._timers:
            return None
        return max(0.0, min(at for at, _ in self._timers.values()) - time.monotonic())

    def _fire_timers(self) -> None:
        now = time.monotonic()
        for name, (at, action) in list(self._timers.items()):
            if at <= now:
                del self._timers[name]
                action()


def _write_all(fd: int, data: bytes) -> None:
    """Write everything; a reader that is gone (a closed terminal) or a full disk must not end the run."""
    view = memoryview(data)
    with contextlib.suppress(OSError):
        while view:
            view = view[os.write(fd, view) :]


def _are_one(fd: int, other: int) -> bool:
    """Return whether two descriptors lead to the same file, pipe or terminal."""
    try:
        return os.path.sameopenfile(fd, other)
    except OSError:
        return False


def _close_all_but(spared: set[int]) -> None:
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in spared:
            with contextlib.suppress(OSError):
                os.close(int(name))


def main() -> int:
    """Run as `python -m windfall.agent.supervisor SESSION PAGES ISOLATION`, which `windfall exec` becomes."""
    session, pages, isolation = sys.argv[1:4]
    code = Supervisor(session, isolation).run()
    shutil.rmtree(pages, ignore_errors=True)
    if not os.path.exists(os.path.join(session, CRASHES)):
        shutil.rmtree(session, ignore_errors=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
