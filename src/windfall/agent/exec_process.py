"""Runs `windfall exec` for the node agent: one process at a time, stopped by signals as from a terminal."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import IO

from windfall.agent import status_files
from windfall.agent.exec_request import ExecRequest, save
from windfall.agent.node_agent import Secrets
from windfall.agent.session_folder import REQUEST
from windfall.core.node_agent_state import RunStatus, StartExec
from windfall.errors import EXIT_FAILED, EXIT_MISUSE, Misuse
from windfall.events import Fact
from windfall.settings import patience_s
from windfall.structs import Struct, replace
from windfall.terms import RunOptions
from windfall.units import rate_bytes_per_s
from windfall.wire.boot_data import (
    NETWORK,
    RESERVED_VARIABLES,
    UPLINK,
    BootData,
    grace_of,
    kernel_speed_of,
    size_of,
    turn_s_of,
)
from windfall.wire.environment import STORE_VARIABLES
from windfall.wire.python_programs import program, program_environment, user_environment

_STATUS_FILE = "status.json"
_ESTIMATES = "estimates.json"
NOTICES = "notices.json"
"""The notices that the node agent relays."""
_MESSAGE_PREFIX = b"windfall: "
_LINE_BYTES_MAX = 4096


class MachineContext(Struct, frozen=True):
    """The run and the machine that a node agent works for.

    Attributes:
        folder: the node agent's own; the agent's sessions are below it.
        provider, metadata_url: as `windfall exec` takes them.
        environ: the machine's own environment.
    """

    url: str
    machine_id: str
    folder: str
    provider: str
    metadata_url: str | None
    environ: Mapping[str, str]

    def path(self, *names: str) -> str:
        """Return a path inside the node agent's folder."""
        return os.path.join(self.folder, *names)

    def work(self, boot: BootData) -> str:
        """Return the folder in which the setup and the script run."""
        return self.path("work") if boot.bundle is not None else os.path.dirname(self.folder)

    def environment(self, boot: BootData, secrets: Secrets) -> dict[str, str]:
        """Return the environment of `exec`: the machine's, the job's and its secrets, without the node agent's variables.

        Variables that the controller lent for the store stay marked as lent, unless the job sets them itself.
        """
        machine_environment = user_environment(
            {name: value for name, value in self.environ.items() if name not in RESERVED_VARIABLES}
        )
        given = dict(boot.envs) | dict(secrets)
        lent = [name for name in machine_environment.get(STORE_VARIABLES, "").split(",") if name and name not in given]
        return machine_environment | given | {STORE_VARIABLES: ",".join(lent)}


def exec_request(machine: MachineContext, boot: BootData, start: StartExec) -> ExecRequest:
    """Return the request for `windfall exec` for a job on a machine.

    Raises:
        Misuse: a variable of the machine's environment is not valid.
    """
    uplink, network = machine.environ.get(UPLINK), machine.environ.get(NETWORK)
    cpus, memory_gib = size_of(machine.environ)
    return ExecRequest(
        url=machine.url,
        argv=boot.command,
        cwd=machine.work(boot),
        options=_options(machine, boot, start),
        state=machine.path("state"),
        provider=machine.provider,
        metadata_url=machine.metadata_url,
        patience_s=patience_s(machine.environ),
        wait=True,
        uplink_bytes_per_s=rate_bytes_per_s(uplink, UPLINK) if uplink else None,
        link_bytes_per_s=rate_bytes_per_s(network, NETWORK) if network else None,
        kernel_speed=kernel_speed_of(machine.environ),
        turn_s=turn_s_of(machine.environ),
        cpus=cpus,
        memory_gib=memory_gib,
        machine=machine.machine_id,
        status=machine.path(_STATUS_FILE),
        estimates=machine.path(_ESTIMATES),
        notices=machine.path(NOTICES),
        generation=start.generation,
        node_rank=start.rank,
        peers=tuple(peer.address for peer in start.peers),
        role=start.role,
        settings=boot.runtime.settings,
        assignment=start.assignment,
    )


def _options(machine: MachineContext, boot: BootData, start: StartExec) -> RunOptions:
    """Return the job's options with what this machine knows better: its lifetime, and how long it runs after SIGTERM."""
    options = boot.options if start.mttp_s is None else replace(boot.options, mttp_s=start.mttp_s)
    grace_s = grace_of(machine.environ)
    return options if grace_s is None else replace(options, grace_s=grace_s)


class ExecProcess:
    """`node_agent_ports.Exec` as a process; used by the node agent's one thread and its signal handler (`terminate`)."""

    def __init__(self, machine: MachineContext, program_of: Callable[[str], str]) -> None:
        """Prepare; `program_of` returns the module that a runtime runs on a machine."""
        self._program_of = program_of
        self._machine = machine
        self._process: subprocess.Popen[bytes] | None = None
        self._pump: threading.Thread | None = None
        self._last_line = b""
        self._interrupts = 0
        self._refused: int | None = None

    def start(self, boot: BootData, secrets: Secrets, options: StartExec) -> None:
        """Start it in its own session; its output goes to this process's output."""
        # Files of the previous process would report its status, and give estimates for its run, as this one's.
        for name in (_STATUS_FILE, _ESTIMATES):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._machine.path(name))
        self._last_line, self._interrupts, self._refused = b"", 0, None
        try:
            path = self._machine.path(REQUEST)
            save(exec_request(self._machine, boot, options), path)
            self._process = subprocess.Popen(
                program(self._program_of(boot.runtime.name), path),
                cwd=self._machine.work(boot),
                env=program_environment(self._machine.environment(boot, secrets)),
                stdin=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            self._last_line, self._refused = f"cannot start windfall exec: {error.strerror}".encode(), EXIT_FAILED
            return
        except Misuse as error:
            self._last_line, self._refused = str(error).encode(), EXIT_MISUSE
            return
        assert self._process.stderr is not None
        self._pump = threading.Thread(target=self._copy, args=(self._process.stderr,), name="exec-stderr", daemon=True)
        self._pump.start()

    def _copy(self, source: IO[bytes]) -> None:
        with source:
            while line := source.readline(_LINE_BYTES_MAX):
                if line.startswith(_MESSAGE_PREFIX):
                    self._last_line = line
                with contextlib.suppress(OSError):  # no reader is left: the run continues
                    os.write(2, line)

    def notify(self, facts: Sequence[Fact]) -> None:
        """Leave facts for its agent."""
        status_files.write(self._machine.path(_ESTIMATES), facts)

    def stop(self, *, now: bool) -> None:
        """Interrupt it once to stop after a save, twice to stop at once; `poll` sends the second, so the two do not merge."""
        self._interrupts = 1 if now else 0
        self._signal(signal.SIGINT)

    def terminate(self) -> None:
        """Pass on that this machine is being preempted."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the supervisor; the kernel and the guard kill everything below it."""
        self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        if self._process is not None:
            self._process.send_signal(number)

    def poll(self) -> int | None:
        """Return its exit code as a shell shows it, once."""
        if self._process is None:
            refused, self._refused = self._refused, None
            return refused
        code = self._process.poll()
        if code is None:
            if self._interrupts:
                self._interrupts = 0
                self._signal(signal.SIGINT)
            return None
        self._process = None
        if self._pump is not None:
            # A process that inherited the pipe may keep it open forever.
            self._pump.join(1.0)
        return code if code >= 0 else 128 - code

    def run_status(self) -> RunStatus | None:
        """Read what its agent wrote."""
        return status_files.read(self._machine.path(_STATUS_FILE))

    def last_message(self) -> str:
        """Return Windfall's newest message on its standard error."""
        return self._last_line.removeprefix(_MESSAGE_PREFIX).decode(errors="replace").strip()
