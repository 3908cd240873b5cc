"""Runs a site's own Slurm commands, here or on its login node through `ssh`: bounded in time, with one sentence for what fails.

Slurm's commands have no exit codes worth the name; what a failure means is in its text, which is that of
`src/common/slurm_errno.c` and the same in every language setting.
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Protocol

from windfall.errors import ProviderAbsent, ProviderDenied, ProviderUnreachable
from windfall.structs import Struct

TIMEOUT_S = 30.0
"""Time limit of one command [s]; Slurm's own `MessageTimeout` is 10 s by default."""
INHERITED = (
    "PATH",
    "PYTHONPATH",
    "VIRTUAL_ENV",
    "LD_LIBRARY_PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "LANG",
    "LC_ALL",
    "TZ",
    "SLURM_CONF",
    "SSH_AUTH_SOCK",
)
"""What commands, and the jobs they submit, inherit of the controller's environment: where software is, never credentials."""
TIMES_AS_SECONDS = ("SLURM_TIME_FORMAT", "%s")
"""Slurm prints seconds since 1970 instead of the local time of the host that asks."""
_SSH = ("ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10")
_SSH_FAILED, _NOT_FOUND = 255, 127
_REFUSED_KEYS = ("Permission denied", "Host key verification failed", "Too many authentication failures")
_DENIED = (
    "Access/permission denied",
    "Invalid user id",
    "Protocol authentication error",
    "Munge",
    "Invalid authentication credential",
)
_BUSY = "Slurm temporarily unable to accept job"
QUEUE_FULL = f"{_BUSY}: its queue is full (MaxJobCount, or a limit of this account)"


class CommandResult(Struct, frozen=True):
    """What a command answered."""

    code: int
    output: str
    errors: str


class Commands(Protocol):
    """Runs commands where Slurm's are."""

    where: str
    """For messages: `here`, or the login node."""

    @property
    def present(self) -> bool:
        """Whether Slurm's commands are there to be run; a login node is taken to have them."""
        ...

    def run(self, argv: Sequence[str], data: bytes = b"") -> CommandResult:
        """Run a command with `data` as its input and return its result, whatever its code.

        Raises:
            ProviderAbsent: the command does not exist.
            ProviderDenied: the login node refused this user.
            ProviderUnreachable: no answer in time; the command may have been executed.
        """
        ...


class SiteCommands:
    """`Commands` on this host or on a login node."""

    def __init__(self, login: str, environ: Mapping[str, str], timeout_s: float = TIMEOUT_S) -> None:
        """Prepare; nothing is run yet.

        Args:
            login: where `ssh` leads to the commands; empty for this host.
            environ: the controller's, of which little is inherited.
            timeout_s: of one command [s].
        """
        self.where = login or "this host"
        self._login, self._timeout_s = login, timeout_s
        self._environ = {name: environ[name] for name in INHERITED if name in environ} | dict([TIMES_AS_SECONDS])

    @property
    def present(self) -> bool:
        """See `Commands`."""
        return bool(self._login) or shutil.which("squeue", path=self._environ.get("PATH")) is not None

    def run(self, argv: Sequence[str], data: bytes = b"") -> CommandResult:
        """See `Commands`."""
        try:
            done = subprocess.run(
                self._line(argv),
                input=data,
                capture_output=True,
                timeout=self._timeout_s,
                env=self._environ,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            if _BUSY in (error.stderr or b"").decode(errors="replace"):
                return CommandResult(1, "", QUEUE_FULL)
            message = f"{argv[0]} on {self.where} did not answer within {self._timeout_s:g} s"
            raise ProviderUnreachable(message) from error
        except OSError as error:
            raise ProviderAbsent(self._missing(self._line(argv)[0])) from error
        result = CommandResult(
            done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
        )
        self._check_line(argv[0], result)
        return result

    def _line(self, argv: Sequence[str]) -> list[str]:
        if not self._login:
            return list(argv)
        return [*_SSH, "--", self._login, shlex.join(["env", "=".join(TIMES_AS_SECONDS), *argv])]

    def _check_line(self, command: str, result: CommandResult) -> None:
        if not self._login:
            return
        if result.code == _SSH_FAILED:
            text = last_line(result.errors)
            if any(words in text for words in _REFUSED_KEYS):
                raise ProviderDenied(
                    f"ssh {self._login} refused this user's key ({text}): make `ssh {self._login} true` work without a password"
                )
            raise ProviderUnreachable(f"ssh {self._login} failed: {text}")
        if result.code == _NOT_FOUND and "SLURM" not in result.errors:
            raise ProviderAbsent(self._missing(command))

    def _missing(self, command: str) -> str:
        name = PurePath(command).name
        if name == "ssh":
            return "ssh was not found on PATH, and providers.slurm.login needs it"
        advice = (
            "set PATH there for shells that are not interactive"
            if self._login
            else (
                "put Slurm's commands on PATH, or name a login node (providers.slurm.login in the configuration file)"
            )
        )
        return f"{name} was not found on {self.where}: {advice}"


def answer_of(commands: Commands, argv: Sequence[str]) -> str:
    """Return what a query printed.

    Raises:
        ProviderDenied: Slurm refuses this user.
        ProviderUnreachable: it did not answer.
    """
    result = commands.run(argv)
    if result.code != 0:
        raise error_of(argv[0], commands.where, result)
    return result.output


def error_of(command: str, where: str, result: CommandResult) -> ProviderDenied | ProviderUnreachable:
    """Return the error of a command that failed; unless Slurm says no, it may have been carried out."""
    text = last_line(result.errors) or f"exit code {result.code}"
    message = f"{command} on {where} failed: {text}"
    denied = any(words in result.errors for words in _DENIED)
    return ProviderDenied(message) if denied else ProviderUnreachable(message)


def last_line(errors: str) -> str:
    """Return the last thing that a command complained about, without its own name."""
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    if not lines:
        return ""
    text = lines[-1]
    for prefix in ("sbatch: ", "squeue: ", "scancel: ", "scontrol: ", "sinfo: ", "sacct: ", "error: ", "fatal: "):
        text = text.removeprefix(prefix)
    return text.removeprefix("Batch job submission failed: ").removeprefix("allocation failure: ")
