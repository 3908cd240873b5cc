"""The supervisor: the foreground process of `windfall exec`, parent of agent and guard.

It is tiny and of the standard library alone, so that it hardly ever has a reason to die.  It keeps the script's exit
status over the agent's death, starts a dead agent again, writes everything the script prints to its own output and to
the session's log file, and turns signals into messages.  Its own death ends agent, script and every descendant.

Messages are JSON lines over a socket pair.

    agent -> supervisor   {"do": "start", "attempt", "argv", "cwd", "env"} | {"do": "kill"} | {"do": "say", "text"}
                          {"do": "vanish", "in_s"} | {"do": "exit", "code"}
    supervisor -> agent   {"it": "hello", "attempt", "running", "status"} | {"it": "exited", "attempt", "status"}
                          {"it": "signal", "number", "at_ns"} | {"it": "refused", "attempt", "sentence"}
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

from windfall.agent import guard, kernel
from windfall.agent.session import CRASHES, SIGNALS
from windfall.errors import EXIT_AGAIN, EXIT_STOPPED
from windfall.wire.programs import program

AGENT = program("windfall.cli.agent")
"""What runs as the agent; the session folder and the socket's number follow."""
_AGENT_TRIES_MAX = 5
"""How often the agent may die in a row while no script runs before the supervisor gives up."""
_RESTART_PAUSE_S_MAX = 5.0
_DEAF_DEATHS_MAX = 3
"""How often the agent may die after a signal before the supervisor obeys it by itself."""


class Supervisor:
    """The state of one `windfall exec` and its event loop."""

    def __init__(self, session: str, isolation: str, agent: tuple[str, ...] = AGENT) -> None:
        self._session = session
        self._isolation = isolation
        self._agent_command = agent
        self._select = selectors.DefaultSelector()
        self._log = os.open(os.path.join(session, "output.log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._agent: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None
        self._inbox = b""
        self._agent_deaths = 0
        self._deaths_since_signal = 0
        self._signals: list[dict[str, object]] = []
        self._guard: int | None = None
        self._outputs: dict[int, int] = {}
        self._attempt = 0
        self._status: int | None = None
        self._refused: str | None = None
        self._timers: dict[str, tuple[float, Callable[[], None]]] = {}
        self._exit_code: int | None = None

    def run(self) -> int:
        """Supervise until the agent says how to exit; return that code."""
        kernel.become_subreaper()
        self._catch_signals()
        self._start_agent()
        while self._exit_code is None:
            for key, _ in self._select.select(self._patience_s()):
                # An earlier event of this batch may have closed this one's file, and its number may be in use again.
                if self._select.get_map().get(key.fd) is key:
                    key.data()
            self._ring_timers()
        self._kill_script()
        guard.kill_descendants(os.getpid())
        self._drain_output()
        return self._exit_code

    # ------------------------------------------------------------------------------------------------------- signals

    def _catch_signals(self) -> None:
        reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        for number in SIGNALS:
            signal.signal(number, lambda *_: None)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)  # `windfall exec` kept them for this moment

        def deliver() -> None:
            at_ns = time.monotonic_ns()
            for number in os.read(reader, 64):
                self._signals.append({"it": "signal", "number": number, "at_ns": at_ns})
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
            preexec_fn=lambda: kernel.die_with_parent(parent),  # noqa: PLW1509 - the supervisor has one thread
        )
        theirs.close()
        self._channel, self._inbox = ours, b""
        self._select.register(ours, selectors.EVENT_READ, self._hear_agent)
        running = self._guard is not None
        hello = {"it": "hello", "attempt": self._attempt, "running": running, "status": self._status}
        self._send({**hello, "refused": self._refused})
        for message in self._signals:
            # An earlier agent may have died before it heard of them, or before it wrote them down.
            self._send(message)

    def _send(self, message: dict[str, object]) -> None:
        if self._channel is not None:
            with contextlib.suppress(OSError):
                self._channel.sendall(json.dumps(message).encode() + b"\n")

    def _hear_agent(self) -> None:
        assert self._channel is not None
        try:
            data = self._channel.recv(1 << 20)
        except ConnectionResetError:
            data = b""
        if not data:
            self._bury_agent()
            return
        *lines, self._inbox = (self._inbox + data).split(b"\n")
        for line in lines:
            self._obey(json.loads(line))

    def _bury_agent(self) -> None:
        assert self._channel is not None
        assert self._agent is not None
        self._select.unregister(self._channel)
        self._channel.close()
        self._channel = None
        self._agent.kill()
        self._agent.wait()
        self._agent_deaths += 1
        self._deaths_since_signal += bool(self._signals)
        if self._deaths_since_signal >= _DEAF_DEATHS_MAX:
            self._say("the agent dies before it can obey: everything is ended, nothing more is saved")
            stopped = self._signals[0]["number"] == signal.SIGINT
            self._exit_code = EXIT_STOPPED if stopped else EXIT_AGAIN
            return
        if self._guard is None and self._agent_deaths >= _AGENT_TRIES_MAX:
            when = "before the script was started" if self._attempt == 0 else "after the script had ended"
            self._say(f"the agent died {self._agent_deaths} times {when}; giving up")
            self._exit_code = 1
            return
        pause_s = min(0.05 * 2**self._agent_deaths, _RESTART_PAUSE_S_MAX)
        self._timers["agent"] = (time.monotonic() + pause_s, self._start_agent)

    def _obey(self, message: dict[str, object]) -> None:
        kind = message["do"]
        if kind == "start":
            self._start_script(message)
        elif kind == "kill":
            self._kill_script()
        elif kind == "say":
            self._say(str(message["text"]))
        elif kind == "vanish":
            at = time.monotonic() + float(str(message["in_s"]))
            self._timers["vanish"] = (at, lambda: os.kill(os.getpid(), signal.SIGKILL))
        elif kind == "exit":
            self._exit_code = int(str(message["code"]))

    def _say(self, text: str) -> None:
        line = f"windfall: {text}\n".encode()
        _write_all(2, line)
        _write_all(self._log, line)

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
        launch = guard.Launch(tuple(argv), str(message["cwd"]), env, out_w, err_w, status_w, self._isolation)
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
        _write_all(self._outputs[source], data)
        _write_all(self._log, data)

    def _drain_output(self) -> None:
        """Copy what is left in the pipes: every process that could write to them is dead, so they end."""
        for source in tuple(self._outputs):
            while source in self._outputs:
                self._copy(source)

    def _script_ended(self, status_fd: int) -> None:
        """The status pipe spoke or closed: the script has ended, or guard and script were killed."""
        text = os.read(status_fd, 4096).decode(errors="replace").strip()
        self._select.unregister(status_fd)
        os.close(status_fd)
        assert self._guard is not None
        pid, self._guard = self._guard, None
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        spare = frozenset({self._agent.pid}) if self._agent is not None else frozenset[int]()
        guard.kill_descendants(os.getpid(), spare)
        self._drain_output()
        self._agent_deaths = 0
        if text.startswith("!"):
            self._status, self._refused = 126, text[2:]
        else:
            self._status = int(text) if text else 128 + signal.SIGKILL
        self._send({"it": "exited", "attempt": self._attempt, "status": self._status, "refused": self._refused})

    def _kill_script(self) -> None:
        if self._guard is not None:
            # In a namespace this kills PID 1 and with it everything; without one, `_script_ended` walks what is left.
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._guard, signal.SIGKILL)

    # --------------------------------------------------------------------------------------------------------- timers

    def _patience_s(self) -> float | None:
        if not self._timers:
            return None
        return max(0.0, min(at for at, _ in self._timers.values()) - time.monotonic())

    def _ring_timers(self) -> None:
        now = time.monotonic()
        for name, (at, action) in list(self._timers.items()):
            if at <= now:
                del self._timers[name]
                action()


def _write_all(fd: int, data: bytes) -> None:
    """Write everything; a reader that went away (a closed terminal) or a full disk must not end the run."""
    view = memoryview(data)
    with contextlib.suppress(OSError):
        while view:
            view = view[os.write(fd, view) :]


def _close_all_but(keep: set[int]) -> None:
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in keep:
            with contextlib.suppress(OSError):
                os.close(int(name))


def main() -> int:
    """Run as `python -m windfall.agent.supervisor SESSION PAGES ISOLATION`, in the place of `windfall exec`."""
    session, pages, isolation = sys.argv[1:4]
    code = Supervisor(session, isolation).run()
    shutil.rmtree(pages, ignore_errors=True)
    if not os.path.exists(os.path.join(session, CRASHES)):
        shutil.rmtree(session, ignore_errors=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
