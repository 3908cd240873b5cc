"""What each node of a Slurm job runs: starts the machine's process, tells it of its end, and ends everything with it.

    python -m windfall.providers.slurm.node_start FOLDER

It runs as a step, so Slurm's TERM reaches this process and all below it at the start of a preemption's grace.  Two further
ends are announced by a notice service on loopback: the job's time limit, and a rehearsed preemption.  A release arrives
through the order's folder, so it also ends a machine whose node Slurm has given up while its processes live.

A machine starts once.  A slurmctld that is killed soon after a job's start has not written the start down, and starts the
job again under its number, without a restart counted and despite `--no-requeue`.  So the first start leaves a file in the
order's folder that can be created only once, and a start that finds it ends.

The machine's disk is in the node's own temporary folder: state with locks, sockets and a write-ahead log does not belong on
a network home, and a socket's path has at most 107 characters.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from windfall.linux import processes
from windfall.linux.clock import SystemClock
from windfall.linux.process_tree import SUBREAPER, MachinePlan, ProcessTree, start_tree
from windfall.providers.slurm.machine_names import machine_name
from windfall.providers.slurm.slurm_commands import TIMES_AS_SECONDS
from windfall.providers.slurm.slurm_states import LEAD_S, lead_s
from windfall.structs import Struct
from windfall.terms import Instant, Seconds, WallTime
from windfall.wire import environment
from windfall.wire.metadata_server import MetadataServer, serve

if TYPE_CHECKING:
    from windfall.ports import Clock

TICK_S = Seconds(0.1)
READ_S = Seconds(1.0)
"""How often the machine looks for a request [s]: one look at one file on a shared disk."""
ASK_S = 30.0
_DISK, _LOCK = "wf", "lock"
_NEVER_STARTED = 69
_TEMPORARY = ("/tmp", "/var/tmp")  # noqa: S108 - a new folder is made there, for this user alone
_STEP = re.compile(
    "SLURM_(STEP|PROCID|LOCALID|NODEID|TASK_PID|GTIDS|SRUN_COMM|CPU_BIND|LAUNCH_NODE|DISTRIBUTION|UMASK|KILL_BAD_EXIT|WAIT)|PMI"
)
"""Variables of the machines' own step, which a program that starts a step of its own would take for its options."""
_LAUNCH = {
    "SLURM_NTASKS": "{ranks}",
    "SLURM_NPROCS": "{ranks}",
    "SLURM_NTASKS_PER_NODE": "{ranks_each}",
    "SLURM_TASKS_PER_NODE": "{ranks_each}(x{nodes})",
    # The machines' own step has all CPUs.
    "SLURM_OVERLAP": "1",
}
"""What `sbatch --nodes=N --ntasks-per-node=R` gives a batch script, which srun and mpirun read."""
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


class NodePlace(Struct, frozen=True):
    """Which machine of which job this is.

    Attributes:
        machine_id: as the provider lists it.
        index: of its files in the order's folder.
        several: whether it is one of several nodes of its job.
    """

    machine_id: str
    index: int
    several: bool = False


def place_of(environ: Mapping[str, str]) -> NodePlace:
    """Return the place that Slurm's variables say."""
    job, task, rank = environ["SLURM_JOB_ID"], environ.get("SLURM_ARRAY_TASK_ID"), int(environ.get("SLURM_PROCID", "0"))
    if task is not None:
        return NodePlace(machine_name(f"{environ['SLURM_ARRAY_JOB_ID']}_{task}"), int(task))
    several = int(environ.get("SLURM_JOB_NUM_NODES", "1")) > 1
    return NodePlace(machine_name(job, rank if several else None), rank, several)


def allocation_variables(environ: Mapping[str, str], place: NodePlace, disk: str) -> dict[str, str]:
    """Return what a machine knows of the allocation that it is a node of.

    Args:
        environ: Slurm's variables.
        place: of the machine.
        disk: the name of its disk, which no machine of another order has.
    """
    step = dict.fromkeys(sorted(name for name in environ if _STEP.match(name)))
    return {
        environment.ALLOCATION: allocation_of(place, disk),
        environment.ALLOCATION_RANK: str(place.index),
        environment.ALLOCATION_HOSTS: ",".join(hosts_of(environ.get("SLURM_JOB_NODELIST", ""))),
        environment.ALLOCATION_ADDRESS: environ.get("SLURM_LAUNCH_NODE_IPADDR", ""),
        environment.ALLOCATION_LAUNCH: json.dumps(step | _LAUNCH),
    }


def allocation_of(place: NodePlace, disk: str) -> str:
    """Return the name of a machine's allocation."""
    return disk.removesuffix(f".{place.index}")


def hosts_of(nodes: str) -> tuple[str, ...]:
    """Return the nodes of a list such as `n[0-3,7]`, as Slurm writes them out; none if its command fails."""
    line = ("scontrol", "show", "hostnames", nodes)
    try:
        done = subprocess.run(line, capture_output=True, text=True, timeout=ASK_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return ()
    return tuple(done.stdout.split())


def is_first_start(folder: Path, index: int) -> bool:
    """Record that a machine starts; return False if it had started before.

    Args:
        folder: the order's.
        index: of the machine's files in it.

    Raises:
        OSError: the folder cannot be written.
    """
    try:
        os.close(os.open(folder / f"started-{index}", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except FileExistsError:
        return False
    return True


def limit_of(job: str) -> WallTime | None:
    """Return when a job's time limit is, as Slurm says; None if it does not answer."""
    line = ("squeue", "--noheader", f"--jobs={job}", "-O", "EndTime:|")
    try:
        done = subprocess.run(
            line, capture_output=True, text=True, timeout=ASK_S, env=os.environ | dict([TIMES_AS_SECONDS]), check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    text = done.stdout.strip().rstrip("|")
    return WallTime(float(text)) if text.isdigit() else None


def machine_environment(
    environ: Mapping[str, str], boot: Mapping[str, Any], place: NodePlace, disk: Path, url: str
) -> dict[str, str]:
    """Return the environment of the machine's process: Slurm's and the site's, the order's, and where its own things are."""
    ours = {
        "WINDFALL_MACHINE_ID": place.machine_id,
        "WINDFALL_PROVIDER": "slurm",
        "WINDFALL_METADATA_URL": url,
        "WINDFALL_GRACE": f"{boot['grace_s']:g}",
        "XDG_STATE_HOME": str(disk / "state"),
        "TMPDIR": str(disk / "tmp"),
    }
    given = {name: str(value) for name, value in boot["env"].items()}
    ours |= allocation_variables(environ, place, disk.name) if place.several else {}
    controller = given.get("WINDFALL_CONTROLLER", "")
    if urlsplit(controller).hostname in _LOOPBACK and boot["host"] != socket.gethostname():
        # The controller is on another host: whatever listens here is not it, and the run's store is the mailbox.
        given["WINDFALL_CONTROLLER"] = ""
    return {**environ, **given, **ours}


def make_disk(base: Path, folder: Path, machine_id: str) -> tuple[Path, int]:
    """Make the machine's disk and lock it; remove those that killed machines of this user left on this node.

    Args:
        base: the node's temporary folder.
        folder: the order's, by which machines of two clusters with one name differ.
        machine_id: its name.
    """
    prefix = f"{_DISK}-{os.getuid()}-"
    for left in base.glob(f"{prefix}*"):
        with contextlib.suppress(OSError):
            fd = os.open(left / _LOCK, os.O_RDWR)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(left, ignore_errors=True)
            finally:
                os.close(fd)
    disk = base / f"{prefix}{hashlib.sha256(str(folder).encode()).hexdigest()[:8]}-{machine_id}"
    shutil.rmtree(disk, ignore_errors=True)
    for name in ("", "state", "tmp", "work"):
        (disk / name).mkdir(mode=0o700)
    lock = os.open(disk / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    return disk, lock


def temporary_base(environ: Mapping[str, str]) -> Path:
    """Return the node's own temporary folder; not one whose path is too long for sockets."""
    for text in (environ.get("SLURM_TMPDIR", ""), environ.get("TMPDIR", ""), *_TEMPORARY):
        if text.startswith("/") and len(text) <= 30 and os.access(text, os.W_OK | os.X_OK):
            return Path(text)
    return Path.cwd()


class NodeStart:
    """One machine from its start to its end."""

    def __init__(self, folder: Path, place: NodePlace, clock: Clock, terminated: Sequence[int]) -> None:
        """Create it; nothing is started yet.

        Args:
            folder: the order's.
            place: which of its machines this is.
            clock: time.
            terminated: the SIGTERMs received so far; a signal handler appends to it.
        """
        self._folder, self._place, self._clock, self._terminated = folder, place, clock, terminated
        self._deadline: Instant | None = None
        self._limit: WallTime | None = None
        self._lead_s = LEAD_S
        self._read_at = clock.now()

    def run(self, environ: Mapping[str, str]) -> int:
        """Run the machine to its end and return the exit code: 0 for whatever its own process did."""
        if self._request().get("release"):
            # A submission that was under way for long: its order has been given back meanwhile.
            _log(f"{self._place.machine_id} was released before it started: nothing is started")
            return 0
        path = self._folder / f"boot-{self._place.index}.json"
        try:
            if not is_first_start(self._folder, self._place.index):
                _log(f"{self._place.machine_id} has started before, and Slurm starts it again: nothing is started")
                return _NEVER_STARTED
            boot = json.loads(path.read_bytes())
        except OSError as error:
            _log(
                f"cannot start from {path} on {socket.gethostname()} ({error.strerror}): its order was withdrawn, or "
                "providers.slurm.folder is no folder that the nodes can write under the same name"
            )
            return _NEVER_STARTED
        os.unlink(path)
        disk, _ = make_disk(temporary_base(environ), self._folder, self._place.machine_id)
        # Before the notice service has its threads.
        tree = start_tree(MachinePlan(tuple(boot["argv"]), str(disk / "work"), 1), SUBREAPER)
        try:
            with serve((), "aws", now=self._clock.wall_time) as metadata:
                env = machine_environment(environ, boot, self._place, disk, metadata.url)
                tree.go(env)
                if boot["limited"] and (limit := limit_of(environ["SLURM_JOB_ID"])) is not None:
                    self._limit, self._lead_s = limit, lead_s(limit - self._clock.wall_time())
                return self._live(tree, metadata)
        finally:
            tree.kill()
            if self._place.several:
                # The ranks of an item are below Slurm's daemon, not below this process.
                processes.kill_marked(environment.ITEM_ALLOCATION, allocation_of(self._place, disk.name))
            shutil.rmtree(disk, ignore_errors=True)

    def _live(self, tree: ProcessTree, metadata: MetadataServer) -> int:
        passed_on = 0
        while not select.select([tree.status_fd], [], [], TICK_S)[0]:
            if passed_on < len(self._terminated):
                passed_on = len(self._terminated)
                self._read_at = self._clock.now()  # a release cancels the job, and its request is there already
                with contextlib.suppress(ProcessLookupError):
                    os.kill(tree.first, signal.SIGTERM)
            if self._is_over(metadata):
                return 0
        status = os.read(tree.status_fd, 64).strip()
        return 127 if status and os.waitstatus_to_exitcode(int(status)) == 127 else 0

    def _is_over(self, metadata: MetadataServer) -> bool:
        """Look for requests and deadlines; return whether the machine must end now."""
        now = self._clock.now()
        if now >= self._read_at:
            self._read_at = Instant(now + READ_S)
            request = self._request()
            if request.get("release"):
                return True
            if "preempt_at" in request:
                self._announce(metadata, float(request["preempt_at"]) - self._clock.wall_time(), ours=True)
        if self._limit is not None and self._limit - self._clock.wall_time() <= self._lead_s:
            self._announce(metadata, self._limit - self._clock.wall_time(), ours=False)
            self._limit = None
        return self._deadline is not None and now >= self._deadline

    def _announce(self, metadata: MetadataServer, left_s: float, *, ours: bool) -> None:
        if ours:
            if self._deadline is not None:
                return
            self._deadline = Instant(self._clock.now() + left_s)
        metadata.announce(max(left_s, 0.0))

    def _request(self) -> Mapping[str, Any]:
        try:
            found = json.loads((self._folder / f"request-{self._place.index}.json").read_bytes())
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}


def _log(message: str) -> None:
    sys.stderr.write(f"windfall: {message}\n")
    sys.stderr.flush()


def main() -> int:
    """Run as `python -m windfall.providers.slurm.node_start FOLDER`."""
    if int(os.environ.get("SLURM_RESTART_COUNT", "0")) > 0:
        # Its order is over, and another machine may be in its place.
        _log("this job was requeued, and its machine is gone: nothing is started")
        return 0
    os.umask(0o077)
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        # Handled, not ignored: the machine's own programs would inherit that.
        signal.signal(number, lambda *_: None)
    terminated: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: terminated.append(number))
    code = NodeStart(Path(sys.argv[1]), place_of(os.environ), SystemClock(), terminated).run(os.environ)
    sys.stderr.flush()
    # Threads of the notice service may be in the middle of an answer, which no process is left to receive.
    os._exit(code)


if __name__ == "__main__":
    sys.exit(main())
