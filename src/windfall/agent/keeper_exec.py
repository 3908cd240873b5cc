"""The keeper's hand on `windfall exec`: one process at a time, asked to stop by signals as a person at a terminal would."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import IO

from windfall.agent import beliefs, standing
from windfall.agent.keeper_ports import Secrets
from windfall.core.keeping_facts import Standing, StartExec
from windfall.errors import EXIT_FAILED
from windfall.events import Fact
from windfall.wire.boot import KEPT, UPLINK, BootData
from windfall.wire.environment import LENT
from windfall.wire.programs import our_environment, program, users_environment

_STATUS = "standing.json"
_BELIEFS = "beliefs.json"
_OURS = b"windfall: "
_LINE_BYTES_MAX = 4096


@dataclass(frozen=True, slots=True)
class Place:
    """Where and as whom this machine works.

    Attributes:
        folder: the keeper's own; the agent's sessions are below it.
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
        """Return a path inside the keeper's folder."""
        return os.path.join(self.folder, *names)

    def work(self, boot: BootData) -> str:
        """Return the folder in which setup and script run."""
        return self.path("work") if boot.bundle is not None else os.path.dirname(self.folder)

    def environment(self, boot: BootData, secrets: Secrets) -> dict[str, str]:
        """Return the environment of `exec`: the machine's, the job's, its secrets, nothing of the keeper's.

        What the controller lent for the store stays marked as such, but for what the job brings itself.
        """
        mine = users_environment({name: value for name, value in self.environ.items() if name not in KEPT})
        given = dict(boot.envs) | dict(secrets)
        lent = [name for name in mine.get(LENT, "").split(",") if name and name not in given]
        return mine | given | {LENT: ",".join(lent)}


def exec_argv(place: Place, boot: BootData, how: StartExec) -> list[str]:
    """Return the command line of `windfall exec` for a job on a machine; no secret is in it."""
    options = {
        "--machine": place.machine_id,
        "--status": place.path(_STATUS),
        "--beliefs": place.path(_BELIEFS),
        "--state": place.path("state"),
        "--policy": boot.policy,
        "--max-failures": str(boot.failures_max),
        "--grace": f"{boot.grace_s:.3f}s",
        "--lease": f"{boot.lease_s:.3f}s",
        "--provider": place.provider,
    }
    if place.metadata_url is not None:
        options["--metadata-url"] = place.metadata_url
    if boot.retry_codes:
        options["--retry-codes"] = ",".join(str(code) for code in boot.retry_codes)
    if boot.keep is not None:
        options["--keep"] = str(boot.keep)
    if uplink := boot.uplink or place.environ.get(UPLINK):
        options["--uplink"] = uplink
    if how.mttp_s is not None:
        options["--mttp"] = f"{how.mttp_s:.3f}s"
    if how.generation > 0:
        options["--generation"] = str(how.generation)
        options["--node-rank"] = str(how.rank)
        options["--peers"] = ",".join(peer.address for peer in how.peers)
    words = [word for option in options.items() for word in option]
    return [*program("windfall.cli.main", "exec", "--wait", *words, place.url, "--", *boot.command)]


class ExecProcess:
    """`keeper_ports.Exec` as a process; used by the keeper's one thread, and by its signal handler (`terminate`)."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._process: subprocess.Popen[bytes] | None = None
        self._pump: threading.Thread | None = None
        self._words = b""
        self._interrupts = 0
        self._refused = False

    def start(self, boot: BootData, secrets: Secrets, how: StartExec) -> None:
        """Start it in a session of its own; what it prints is this process's output."""
        # A file of the last one would say that this one holds the run, and what to believe of another life of it.
        for name in (_STATUS, _BELIEFS):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._place.path(name))
        self._words, self._interrupts, self._refused = b"", 0, False
        try:
            self._process = subprocess.Popen(
                exec_argv(self._place, boot, how),
                cwd=self._place.work(boot),
                env=our_environment(self._place.environment(boot, secrets)),
                stdin=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            self._words, self._refused = f"windfall exec could not be started: {error.strerror}".encode(), True
            return
        assert self._process.stderr is not None
        self._pump = threading.Thread(target=self._copy, args=(self._process.stderr,), name="exec-stderr", daemon=True)
        self._pump.start()

    def _copy(self, source: IO[bytes]) -> None:
        with source:
            while line := source.readline(_LINE_BYTES_MAX):
                if line.startswith(_OURS):
                    self._words = line
                with contextlib.suppress(OSError):  # nobody reads any more: the run goes on
                    os.write(2, line)

    def tell(self, facts: Sequence[Fact]) -> None:
        """Leave facts for its agent."""
        beliefs.write(self._place.path(_BELIEFS), facts)

    def stop(self, *, now: bool) -> None:
        """Interrupt it once for a save, twice to go without; the second follows with `poll`, lest the two become one."""
        self._interrupts = 1 if now else 0
        self._signal(signal.SIGINT)

    def terminate(self) -> None:
        """Pass on that this machine will be taken."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the supervisor; the kernel and the guard take everything below it along."""
        self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        if self._process is not None:
            self._process.send_signal(number)

    def poll(self) -> int | None:
        """Return its exit code as a shell shows it, once."""
        if self._process is None:
            refused, self._refused = self._refused, False
            return EXIT_FAILED if refused else None
        code = self._process.poll()
        if code is None:
            if self._interrupts:
                self._interrupts = 0
                self._signal(signal.SIGINT)
            return None
        self._process = None
        if self._pump is not None:
            # Whatever inherited the pipe may keep it open for ever.
            self._pump.join(1.0)
        return code if code >= 0 else 128 - code

    def standing(self) -> Standing | None:
        """Read what its agent wrote."""
        return standing.read(self._place.path(_STATUS))

    def last_words(self) -> str:
        """Return the newest line of Windfall's on its standard error."""
        return self._words.removeprefix(_OURS).decode(errors="replace").strip()
