"""What `windfall doctor` looks at on this machine."""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import os
import platform
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

from windfall.cli.exec import state_folder
from windfall.extras import install
from windfall.notices.aws import AWS_URL
from windfall.notices.azure import AZURE_URL
from windfall.notices.google import GOOGLE_URL
from windfall.notices.http import NoAnswer, ask
from windfall.report.checks import Check, Verdict
from windfall.storage.clocks import SystemClock
from windfall.terms import Seconds
from windfall.units import size_text
from windfall.wire import notices as wire
from windfall.wire.programs import snippet

METADATA_TIMEOUT_S = Seconds(2.0)
DISK_FREE_BYTES_MIN = 5 * 10**9
"""Less than this is probably too little for a restored checkpoint and the script's own saves."""
SHARED_FREE_BYTES_MIN = 1 << 20
CLOCK_STEP_S_MAX = 0.05
"""A wall clock that runs apart from the monotonic one by more than this within the look is being set [s]."""
EXTRAS = {
    "torch": "torch",
    "transformers": "transformers",
    "lightning": "lightning",
    "plot": "matplotlib",
    "control": "fastapi",
    "lab": "scipy",
    "postgres": "psycopg",
}
"""A package by which each extra is known."""
_NAMESPACE_TRIAL = """
import os, sys
from windfall.agent import kernel
kernel.enter_pid_namespace()
child = os.fork()
if child == 0:
    try:
        kernel.mount_proc()
    finally:
        os._exit(0 if os.path.exists("/proc/1") and os.getpid() == 1 and not sys.exc_info()[0] else 1)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
_STA_UNSYNC = 0x0040
"""Bit of `struct timex.status` in the Linux user-space headers: nobody keeps the clock right."""


def checks(provider: str, metadata_url: str | None, state: Path | None) -> Iterator[Check]:
    """Look at this machine; each check is yielded as soon as it is known.

    Args:
        provider: as `notices.detect` found it, or as the user said.
        metadata_url: where its metadata service answers, if not at the usual address.
        state: folder for this machine's own files, if not the usual one.
    """
    yield _python()
    yield _isolation()
    yield _pidfd()
    yield _pages()
    yield _state(state or state_folder())
    yield _clock(provider)
    yield _notices(provider, metadata_url)
    yield _extras()


def _python() -> Check:
    says = f"Python {platform.python_version()} on {platform.system()} {platform.release()}"
    if platform.system() != "Linux":
        return Check("python", Verdict.FAIL, says, "`windfall exec` needs Linux; the other verbs work here")
    return Check("python", Verdict.OK, says)


def _isolation() -> Check:
    trial = subprocess.run(snippet(_NAMESPACE_TRIAL), capture_output=True, check=False, timeout=30)
    if trial.returncode == 0:
        return Check("isolation", Verdict.OK, "a PID namespace of its own: every descendant ends with the run")
    advice = "a process that leaves its parent's session between two looks could outlive the run for a moment"
    return Check("isolation", Verdict.WARN, "no PID namespace is allowed here, /proc is walked instead", advice)


def _pidfd() -> Check:
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError as error:
        return Check("pidfd", Verdict.FAIL, f"pidfd_open does not work ({error.strerror})", "use Linux 5.3 or newer")
    return Check("pidfd", Verdict.OK, "the script's end is seen at once")


def _pages() -> Check:
    shared = Path("/dev/shm")  # noqa: S108 - the very folder `exec` uses
    if not os.access(shared, os.W_OK):
        return Check(
            "shared memory",
            Verdict.WARN,
            f"{shared} cannot be written, the pages go to the state folder",
            "give this user (or container) a /dev/shm",
        )
    free = shutil.disk_usage(shared).free
    if free < SHARED_FREE_BYTES_MIN:
        advice = "remove what fills it, or give the container more (docker run --shm-size)"
        return Check("shared memory", Verdict.FAIL, f"{shared} has {size_text(free)} left", advice)
    return Check("shared memory", Verdict.OK, f"{shared}, {size_text(free)} free")


def _state(folder: Path) -> Check:
    there = next(above for above in (folder, *folder.parents) if above.exists())
    if not os.access(there, os.W_OK) or not there.is_dir():
        return Check("state folder", Verdict.FAIL, f"{folder} cannot be written", "name another place with --state")
    free = shutil.disk_usage(there).free
    verdict = Verdict.OK if free >= DISK_FREE_BYTES_MIN else Verdict.WARN
    advice = "" if verdict is Verdict.OK else "a restored checkpoint must fit; name a larger place with --state"
    return Check("state folder", verdict, f"{folder}, {size_text(free)} free", advice, {"free_bytes": float(free)})


def _clock(provider: str) -> Check:
    clock = SystemClock()
    before_s = clock.wall() - clock.now()
    synchronised = _synchronised()
    clock.sleep(Seconds(0.05))
    step_s = abs(clock.wall() - clock.now() - before_s)
    numbers = {"step_s": step_s}
    if step_s > CLOCK_STEP_S_MAX:
        says = f"the wall clock moved by {step_s:.2f} s while we looked"
        return Check("clock", Verdict.WARN, says, "let chrony or ntpd run, or notices are understood wrongly", numbers)
    if not synchronised and provider in ("aws", "azure"):
        advice = f"let chrony or ntpd run: {provider} tells deadlines in wall-clock time"
        return Check("clock", Verdict.WARN, "nobody keeps the wall clock right", advice, numbers)
    says = "wall and monotonic clock run alike" + (", synchronised" if synchronised else "")
    return Check("clock", Verdict.OK, says, numbers=numbers)


def _synchronised() -> bool:
    # struct timex: `modes` (0: only read), offset, freq, maxerror, esterror, then `status`; 208 bytes on 64-bit Linux.
    words = (ctypes.c_long * 26)()
    known = ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.byref(words)) >= 0
    return known and not ctypes.c_int(words[5]).value & _STA_UNSYNC


def _notices(provider: str, metadata_url: str | None) -> Check:
    askers: dict[str, Callable[[str], int]] = {"aws": _ask_aws, "google": _ask_google, "azure": _ask_azure}
    if provider not in askers:
        told = {
            "slurm": "SIGTERM and the signal of sbatch --signal",
            "kubernetes": "SIGTERM, terminationGracePeriodSeconds before the end",
        }.get(provider, "SIGTERM and `windfall inject`")
        return Check("notices", Verdict.OK, f"provider {provider}: {told}")
    base = metadata_url or {"aws": AWS_URL, "google": GOOGLE_URL, "azure": AZURE_URL}[provider]
    advice = "preemptions would come unannounced; allow this address, and a hop limit of 2 for containers on AWS"
    clock = SystemClock()
    began = clock.now()
    try:
        status = askers[provider](base.rstrip("/"))
    except NoAnswer as error:
        says = f"provider {provider}: its metadata service does not answer ({error})"
        return Check("notices", Verdict.WARN, says, advice)
    took_ms = (clock.now() - began) * 1000
    if status not in (200, 404):
        says = f"provider {provider}: its metadata service at {base} answers with status {status}"
        return Check("notices", Verdict.WARN, says, advice)
    return Check(
        "notices",
        Verdict.OK,
        f"provider {provider}: metadata answers in {took_ms:.0f} ms",
        numbers={"took_ms": took_ms},
    )


def _status(url: str, headers: dict[str, str]) -> int:
    return ask(url, clock=SystemClock(), timeout_s=METADATA_TIMEOUT_S, stopped=lambda: False, headers=headers).status


def _ask_aws(base: str) -> int:
    token = ask(
        base + wire.AWS_TOKEN_PATH,
        clock=SystemClock(),
        timeout_s=METADATA_TIMEOUT_S,
        stopped=lambda: False,
        method="PUT",
        headers={wire.AWS_TOKEN_TTL_HEADER: "60"},
    )
    if token.status != 200:
        return token.status
    return _status(base + wire.AWS_ACTION_PATH, {wire.AWS_TOKEN_HEADER: token.body.decode(errors="replace")})


def _ask_google(base: str) -> int:
    return _status(base + wire.GOOGLE_PREEMPTED_PATH, {wire.GOOGLE_FLAVOR_HEADER: "Google"})


def _ask_azure(base: str) -> int:
    return _status(f"{base}{wire.AZURE_EVENTS_PATH}?{wire.AZURE_EVENTS_QUERY}", {wire.AZURE_HEADER: "true"})


def _extras() -> Check:
    found = {extra: _installed(module) for extra, module in EXTRAS.items()}
    there = [extra for extra, is_there in found.items() if is_there]
    missing = [extra for extra, is_there in found.items() if not is_there]
    says = f"installed: {', '.join(there) or 'none'}"
    if missing:
        says += f"; not installed: {', '.join(missing)} ({install(missing[0])})"
    return Check("extras", Verdict.OK, says)


def _installed(module: str) -> bool:
    with contextlib.suppress(ValueError, ImportError):
        return importlib.util.find_spec(module) is not None
    return False
