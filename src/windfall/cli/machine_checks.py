"""The checks of `windfall doctor` on this machine."""

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

from windfall.cli.locations import state_folder
from windfall.extras import install
from windfall.linux.clock import SystemClock
from windfall.linux.listening import listeners
from windfall.notices import notice_sources
from windfall.notices.aws import AWS_URL
from windfall.notices.azure import AZURE_URL
from windfall.notices.google import GOOGLE_URL
from windfall.notices.metadata_http import MetadataUnavailable, fetch
from windfall.report.doctor_checks import Check, Verdict
from windfall.spelling import plain
from windfall.terms import Seconds
from windfall.units import size_text
from windfall.wire import notice_formats as wire
from windfall.wire.python_programs import snippet

METADATA_TIMEOUT_S = Seconds(2.0)
DISK_FREE_BYTES_MIN = 5 * 10**9
"""Less than this [B] is probably too little for a restored checkpoint and the script's own saves."""
SHARED_FREE_BYTES_MIN = 1 << 20
CLOCK_STEP_S_MAX = 0.05
"""If the wall clock drifts from the monotonic one by more than this during the check [s], it is being set."""
EXTRAS = {
    "control": ("fastapi", "`windfall run`, `plan`, `simulate`, `serve`"),
    "plot": ("matplotlib", "pictures (`--plot`)"),
    "lab": ("scipy", "`windfall lab` and saves by fitted lifetimes"),
    "postgres": ("psycopg", "a team's controller on PostgreSQL"),
    "torch": ("torch", "the PyTorch adapter"),
    "transformers": ("transformers", "the Trainer callback"),
    "lightning": ("lightning", "the Lightning callback"),
}
"""For each extra, a package that shows that it is installed, and what needs it."""
EXTRA_ALL = frozenset({"control", "plot", "lab"})
"""What the extra `all` brings."""
AMD_DEVICE = Path("/dev/kfd")
GPU_TIMEOUT_S = 20.0
_NAMESPACE_TRIAL = """
import os, sys
from windfall.linux import processes
processes.enter_pid_namespace()
child = os.fork()
if child == 0:
    try:
        processes.mount_proc()
    finally:
        os._exit(0 if os.path.exists("/proc/1") and os.getpid() == 1 and not sys.exc_info()[0] else 1)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
_STA_UNSYNC = 0x0040
"""Bit of `struct timex.status` in the Linux user-space headers: the clock is not synchronised."""


def checks(provider: str, metadata_url: str | None, state: Path | None) -> Iterator[Check]:
    """Check this machine; each result is yielded as soon as it is known.

    Args:
        provider: as detected by `notice_sources.detect`, or as given by the user.
        metadata_url: address of its metadata service, if not the usual one.
        state: folder for this machine's own files, if not the usual one.
    """
    yield _python()
    yield _isolation()
    yield _pidfd()
    yield _pages()
    yield _state(state or state_folder())
    yield _clock(provider)
    yield _notices(provider, metadata_url)
    yield _gpus()
    yield _network()
    yield listening(state or state_folder())
    yield _extras()


def _python() -> Check:
    says = f"Python {platform.python_version()} on {platform.system()} {platform.release()}"
    if platform.system() != "Linux":
        return Check("python", Verdict.FAIL, says, "`windfall exec` needs Linux; the other commands work here")
    return Check("python", Verdict.OK, says)


def _isolation() -> Check:
    trial = subprocess.run(snippet(_NAMESPACE_TRIAL), capture_output=True, check=False, timeout=30)
    if trial.returncode == 0:
        return Check("isolation", Verdict.OK, "PID namespaces work: all processes of the script end with the run")
    advice = "a process that leaves its parent's session could outlive the run for a moment"
    return Check("isolation", Verdict.WARN, "PID namespaces are not allowed; /proc is scanned instead", advice)


def _pidfd() -> Check:
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError as error:
        return Check("pidfd", Verdict.FAIL, f"pidfd_open does not work ({error.strerror})", "use Linux 5.3 or newer")
    return Check("pidfd", Verdict.OK, "the end of the script is noticed immediately")


def _pages() -> Check:
    shared = Path("/dev/shm")  # noqa: S108 - the very folder `exec` uses
    if not os.access(shared, os.W_OK):
        return Check(
            "shared memory",
            Verdict.WARN,
            f"cannot write to {shared}; pages go to the state folder",
            "give this user or container a writable /dev/shm",
        )
    free = shutil.disk_usage(shared).free
    if free < SHARED_FREE_BYTES_MIN:
        advice = "free some space, or give the container more (docker run --shm-size)"
        return Check("shared memory", Verdict.FAIL, f"{shared} has {size_text(free)} left", advice)
    return Check("shared memory", Verdict.OK, f"{shared}, {size_text(free)} free")


def _state(folder: Path) -> Check:
    there = next(above for above in (folder, *folder.parents) if above.exists())
    if not os.access(there, os.W_OK) or not there.is_dir():
        return Check("state folder", Verdict.FAIL, f"cannot write to {folder}", "choose another folder with --state")
    free = shutil.disk_usage(there).free
    verdict = Verdict.OK if free >= DISK_FREE_BYTES_MIN else Verdict.WARN
    advice = "" if verdict is Verdict.OK else "a restored checkpoint must fit: choose a larger disk with --state"
    return Check("state folder", verdict, f"{folder}, {size_text(free)} free", advice, {"free_bytes": float(free)})


def _clock(provider: str) -> Check:
    clock = SystemClock()
    before_s = clock.wall_time() - clock.now()
    synchronised = _synchronised()
    clock.sleep(Seconds(0.05))
    step_s = abs(clock.wall_time() - clock.now() - before_s)
    numbers = {"step_s": step_s}
    if step_s > CLOCK_STEP_S_MAX:
        says = f"the wall clock jumped by {step_s:.2f} s during the check"
        return Check("clock", Verdict.WARN, says, "run chrony or ntpd; otherwise notices are misread", numbers)
    if not synchronised and provider in ("aws", "azure"):
        advice = f"run chrony or ntpd: {provider} gives deadlines in wall-clock time"
        return Check("clock", Verdict.WARN, "the wall clock is not synchronised", advice, numbers)
    says = "the wall clock is stable" + (" and synchronised" if synchronised else "")
    return Check("clock", Verdict.OK, says, numbers=numbers)


def _synchronised() -> bool:
    # struct timex: `modes` (0: only read), offset, freq, maxerror, esterror, then `status`; 208 bytes on 64-bit Linux.
    words = (ctypes.c_long * 26)()
    known = ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.byref(words)) >= 0
    return known and not ctypes.c_int(words[5]).value & _STA_UNSYNC


def _notices(provider: str, metadata_url: str | None) -> Check:
    askers: dict[str, Callable[[str], int]] = {"aws": _ask_aws, "google": _ask_google, "azure": _ask_azure}
    if provider not in askers:
        return Check("notices", Verdict.OK, f"provider {provider}: {notice_sources.provider_named(provider).notices}")
    base = metadata_url or {"aws": AWS_URL, "google": GOOGLE_URL, "azure": AZURE_URL}[provider]
    advice = "preemptions would be unannounced: allow this address, and a hop limit of 2 for containers on AWS"
    clock = SystemClock()
    started = clock.now()
    try:
        status = askers[provider](base.rstrip("/"))
    except MetadataUnavailable as error:
        says = f"provider {provider}: its metadata service does not answer ({error})"
        return Check("notices", Verdict.WARN, says, advice)
    took_ms = (clock.now() - started) * 1000
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
    return fetch(url, clock=SystemClock(), timeout_s=METADATA_TIMEOUT_S, stopped=lambda: False, headers=headers).status


def _ask_aws(base: str) -> int:
    token = fetch(
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


def _gpus() -> Check:
    """List the GPUs by the driver's own tool; torch takes seconds to load, and may be of another environment."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        amd = f"{AMD_DEVICE} exists: an AMD GPU" if AMD_DEVICE.exists() else "none found (no nvidia-smi)"
        return Check("GPU", Verdict.OK, amd)
    query = [tool, "--query-gpu=name,memory.total", "--format=csv,noheader"]
    try:
        listed = subprocess.run(query, capture_output=True, text=True, check=True, timeout=GPU_TIMEOUT_S).stdout
    except (OSError, subprocess.SubprocessError) as error:
        reason = str(getattr(error, "stderr", "") or error).strip().splitlines()[0]
        return Check("GPU", Verdict.WARN, f"nvidia-smi does not answer: {plain(reason)}", "check the NVIDIA driver")
    gpus = [plain(line.strip()) for line in listed.splitlines() if line.strip()]
    return Check("GPU", Verdict.OK, f"{len(gpus)}: {'; '.join(sorted(set(gpus)))}" if gpus else "none found")


def _network() -> Check:
    """Say whether this machine has a way to other machines; what a store's address needs is checked with the store."""
    v4 = [line.split() for line in _lines("/proc/net/route")[1:]]
    v6 = [line.split() for line in _lines("/proc/net/ipv6_route")]
    default = any(route[1] == "0" * 8 for route in v4)
    if default or any(route[:2] == ["0" * 32, "00"] and route[-1] != "lo" for route in v6):
        return Check("network", Verdict.OK, "there is a default route; check a store with `windfall doctor URL`")
    advice = "only stores on this machine's disks and networks can be reached"
    return Check("network", Verdict.WARN, "no default route", advice)


def listening(state: Path) -> Check:
    """Name the sockets of an installation's processes that other machines may reach."""
    reached = [one for one in listeners(state) if one.beyond_loopback]
    if not reached:
        return Check("listening", Verdict.OK, "nothing of this installation listens beyond this machine")
    named: dict[tuple[str, str, bool], set[int]] = {}
    for one in reached:
        named.setdefault((plain(one.program), one.address, one.guarded), set()).add(one.port)
    says = "; ".join(
        f"{program} at {address}, port {', '.join(map(str, sorted(ports)))}, {'with a token' if guarded else 'WITHOUT a token'}"
        for (program, address, guarded), ports in sorted(named.items())
    )
    numbers = {"sockets": float(len(reached)), "without_token": float(sum(not one.guarded for one in reached))}
    advice = "nothing that passes through them is encrypted: keep other networks out of these ports"
    return Check("listening", Verdict.WARN, says, advice, numbers)


def _lines(path: str) -> list[str]:
    with contextlib.suppress(OSError):
        return Path(path).read_text("ascii", "replace").splitlines()
    return []


def _extras() -> Check:
    missing = [extra for extra, (module, _) in EXTRAS.items() if not _installed(module)]
    there = [extra for extra in EXTRAS if extra not in missing]
    says = f"installed: {', '.join(there) or 'none'}"
    if not missing:
        return Check("extras", Verdict.OK, says)
    needed = "; ".join(f"{extra} for {EXTRAS[extra][1]}" for extra in missing)
    core = [extra for extra in missing if extra in EXTRA_ALL]
    advice = f"`{install('all' if len(core) > 1 else core[0])}`" if core else f"`{install(missing[0])}`"
    return Check(
        "extras", Verdict.OK, f"{says}; not installed: {needed}", f"to add {'them' if core else 'it'}: {advice}"
    )


def _installed(module: str) -> bool:
    with contextlib.suppress(ValueError, ImportError):
        return importlib.util.find_spec(module) is not None
    return False
