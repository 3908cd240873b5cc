"""A real Slurm on one host: slurmctld, some slurmd, and for accounting slurmdbd on MariaDB; all in one folder, ended by pid.

    with SlurmCluster() as slurm:
        job = slurm.submit("srun sleep 60", "--partition=low", "--no-requeue")
        slurm.until(lambda: slurm.state(job) == "RUNNING", "the job runs")
        slurm.stop("slurmctld")  # nobody answers until slurm.resume("slurmctld")

What a test starts with `slurm.environment()` is this cluster's, too: `SLURM_CONF` in its environment tells, and at the end it
is killed. Tried with Slurm 22.05 (Debian 12).
"""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.slurm.configuration import (
    CGROUP_CONF,
    CLUSTER,
    NODE_PORT,
    ClusterSettings,
    Place,
    node_names,
    slurm_conf,
    slurmdbd_conf,
)
from tests.slurm.packages import Installation, SlurmUnavailable, find_slurm

START_LIMIT_S = 40.0
CALL_LIMIT_S = 60.0
PATIENCE_S = 60.0
POLL_S = 0.05
CONTROLLER, ACCOUNTS, DATABASE = "slurmctld", "slurmdbd", "mariadbd"
FIRST_PORT, LAST_PORT, PORTS_EACH = 20000, 30000, 32


def no_slurm(*, accounting: bool = False) -> str | None:
    """Why no cluster can be started here, in a sentence; None if one can, once this has returned. It may download."""
    try:
        find_slurm(accounting=accounting)
    except SlurmUnavailable as error:
        return str(error)
    return None


class SlurmCluster:
    """A Slurm of its own ports and folder, run by whoever runs the tests; several may run at once.

    Its partitions are `low` (the default; its jobs give way, with a grace) and `high`; its nodes have one core each. Daemons
    are called `slurmctld`, `n0`, `n1`, ..., `slurmdbd`, `mariadbd`.
    """

    def __init__(self, wanted: ClusterSettings | None = None) -> None:
        self.wanted = wanted or ClusterSettings()
        self.slurm: Installation = find_slurm(accounting=self.wanted.accounting)
        self.nodes = node_names(self.wanted.nodes)
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        self._ports, self.port = _free_ports(self.wanted.nodes)
        self.folder = Path(tempfile.mkdtemp(prefix="wf-slurm-", dir="/tmp"))
        try:
            self._configure()
            if self.wanted.accounting:
                self._start_accounting()
            self.start(CONTROLLER)
            for node in self.nodes:
                self.start(node)
            self.until(self.all_idle, "all nodes are idle", START_LIMIT_S)
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            error.add_note(self._logs())
        self.end()

    # ------------------------------------------------------------------------------------------------ the site's commands

    def environment(self) -> dict[str, str]:
        """The variables with which the site's commands find this cluster, and nothing of another Slurm's."""
        own = {
            name: value
            for name, value in os.environ.items()
            if not re.match("(SLURM|SBATCH|SRUN|SALLOC|SQUEUE)_", name)
        }
        own["PATH"] = os.pathsep.join(dict.fromkeys((*self.slurm.path, *own["PATH"].split(os.pathsep))))
        own["SLURM_CONF"] = str(self.folder / "slurm.conf")
        if self.slurm.libraries:
            others = filter(None, own.get("LD_LIBRARY_PATH", "").split(os.pathsep))
            own["LD_LIBRARY_PATH"] = os.pathsep.join(dict.fromkeys((*self.slurm.libraries, *others)))
        return own

    def call(self, *command: str, text: str = "", limit_s: float = CALL_LIMIT_S) -> subprocess.CompletedProcess[str]:
        """Run a command in the cluster's folder, `text` its input, whatever its exit code."""
        return subprocess.run(
            command,
            cwd=self.folder,
            env=self.environment(),
            input=text,
            capture_output=True,
            text=True,
            check=False,
            timeout=limit_s,
        )

    def run(self, *command: str, text: str = "", limit_s: float = CALL_LIMIT_S) -> str:
        """What a command printed; it must succeed."""
        done = self.call(*command, text=text, limit_s=limit_s)
        assert done.returncode == 0, f"{' '.join(command)}: exit code {done.returncode}: {done.stderr.strip()}"
        return done.stdout.strip()

    def submit(self, script: str, *options: str) -> str:
        """Submit the lines of a shell script; the job's number. Its output goes to `output_of`."""
        return self.run("sbatch", "--parsable", "--output=%j.out", *options, text=f"#!/bin/sh\n{script}\n").split(";")[
            0
        ]

    def output_of(self, job: str) -> str:
        """What a submitted job has printed so far."""
        path = self.folder / f"{job}.out"
        return path.read_text("utf-8") if path.exists() else ""

    def job_field(self, job: str, name: str) -> str:
        """One value of `scontrol show job` (`JobState`, `Reason`, `RestartCnt`, ...)."""
        shown = self.run("scontrol", "--oneliner", "show", "job", job)
        found = re.search(rf"(?:^| ){name}=(\S*)", shown)
        assert found, f"no {name} in {shown}"
        return found[1]

    def state(self, job: str) -> str:
        """`PENDING`, `RUNNING`, `COMPLETED`, `PREEMPTED`, `NODE_FAIL`, ..."""
        return self.job_field(job, "JobState")

    def node_states(self) -> dict[str, str]:
        """Each node's state in `sinfo`'s words: `idle`, `allocated`, `down*`, ..."""
        lines = self.run("sinfo", "--noheader", "--Node", "--partition=low", "--format=%N %T").splitlines()
        return {node: state for line in lines for node, state in [line.split()]}

    def all_idle(self) -> bool:
        """Whether the controller answers and every node waits for work."""
        done = self.call("sinfo", "--noheader", "--Node", "--partition=low", "--states=idle", "--format=%N %T")
        return sorted(done.stdout.split()) == sorted([*self.nodes, *(["idle"] * len(self.nodes))])

    def until(self, condition: Callable[[], object], what: str, limit_s: float = PATIENCE_S) -> None:
        """Poll until a condition holds, or fail with the daemons' logs."""
        end = time.monotonic() + limit_s
        while not condition():
            ended = [name for name, process in self._daemons.items() if process.poll() is not None]
            assert time.monotonic() < end, f"not within {limit_s:.0f} s: {what}; ended: {ended}\n{self._logs()}"
            time.sleep(POLL_S)

    # --------------------------------------------------------------------------------------------------------- the daemons

    def start(self, daemon: str) -> None:
        """Start a daemon of this cluster; do not wait for what it does."""
        conf = str(self.folder / "slurm.conf")
        more: dict[str, str] = {}
        if daemon == CONTROLLER:
            command = [self._program("slurmctld"), "-D", "-i", "-f", conf]
        elif daemon == ACCOUNTS:
            command, more = [self._program("slurmdbd"), "-D"], {"MYSQL_UNIX_PORT": str(self.folder / "db.sock")}
        elif daemon == DATABASE:
            command = self._database_command("mariadbd", f"--socket={self.folder}/db.sock", "--skip-networking")
        else:
            assert daemon in self.nodes, f"{daemon} is no daemon of this cluster"
            step = self.slurm.programs.get("slurmstepd")
            command = [self._program("slurmd"), "-D", "-N", daemon, "-f", conf, *(["-d", str(step)] if step else [])]
        with (self.folder / "log" / f"{daemon}.out").open("ab") as log:
            self._daemons[daemon] = subprocess.Popen(
                command,
                cwd=self.folder,
                env={**self.environment(), **more},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def pid(self, daemon: str) -> int:
        """The daemon's process."""
        return self._daemons[daemon].pid

    def kill(self, daemon: str, number: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal to one daemon; after SIGKILL and SIGTERM, return when it has ended. Its jobs' processes live on."""
        self._daemons[daemon].send_signal(number)
        if number in (signal.SIGKILL, signal.SIGTERM):
            self._daemons[daemon].wait(START_LIMIT_S)

    def stop(self, daemon: str = CONTROLLER) -> None:
        """Have a daemon accept connections, and answer nothing, until `resume`."""
        self.kill(daemon, signal.SIGSTOP)

    def resume(self, daemon: str = CONTROLLER) -> None:
        """Undo `stop`."""
        self.kill(daemon, signal.SIGCONT)

    def restart(self, daemon: str, number: signal.Signals = signal.SIGTERM) -> None:
        """End a daemon that still runs, as a site does or with SIGKILL, and start it; return when the controller answers."""
        if self._daemons[daemon].poll() is None:
            self.kill(daemon, number)
        self.start(daemon)
        self.until(lambda: self.call("scontrol", "ping").returncode == 0, "the controller answers", START_LIMIT_S)

    def processes(self, job: str | None = None) -> dict[int, str]:
        """Pid and command line of each process of this cluster, or of one job; its daemons' steps are among them."""
        marks = {f"SLURM_CONF={self.folder}/slurm.conf".encode()}
        if job is not None:
            marks.add(f"SLURM_JOB_ID={job}".encode())
        parents, found = {}, set()
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            with contextlib.suppress(OSError):
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                if marks <= set((entry / "environ").read_bytes().split(b"\0")):
                    found.add(int(entry.name))
        while more := {pid for pid, parent in parents.items() if parent in found and pid not in found}:
            found |= more
        return {pid: line for pid in sorted(found) if pid != os.getpid() and (line := _command_line(pid))}

    def end(self) -> None:
        """Kill every process of the cluster, its jobs' among them, and remove the folder; a second call does nothing."""
        end = time.monotonic() + START_LIMIT_S
        for process in self._daemons.values():
            process.kill()
            process.wait()
        while left := self.processes():
            assert time.monotonic() < end, f"processes of {self.folder} do not end: {left}"
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(POLL_S)
        shutil.rmtree(self.folder, ignore_errors=True)
        self._ports.close()

    # ------------------------------------------------------------------------------------------------------------- inside

    def _program(self, name: str) -> str:
        return str(self.slurm.programs[name])

    def _configure(self) -> None:
        self.folder.chmod(0o755)
        for name in ("state", "log", "run", *(f"spool/{node}" for node in self.nodes)):
            (self.folder / name).mkdir(parents=True)
        plugins = None
        if self.slurm.plugins is not None:
            # A value of slurm.conf ends at a space, and a user's cache may lie beyond one.
            plugins = self.folder / "plugins"
            plugins.symlink_to(self.slurm.plugins, target_is_directory=True)
        place = Place(self.folder, self.port, socket.gethostname().split(".")[0], _user(), plugins)
        (self.folder / "slurm.conf").write_text(slurm_conf(self.wanted, place), "utf-8")
        (self.folder / "cgroup.conf").write_text(CGROUP_CONF, "utf-8")
        gpus = [self.folder / f"gpu{number}" for number in range(self.wanted.gpus_per_node)]
        for gpu in gpus:
            gpu.touch()
        (self.folder / "gres.conf").write_text("".join(f"Name=gpu File={gpu}\n" for gpu in gpus), "utf-8")
        if self.wanted.accounting:
            path = self.folder / "slurmdbd.conf"
            path.touch(0o600)
            path.write_text(slurmdbd_conf(place), "utf-8")

    def _database_command(self, program: str, *options: str) -> list[str]:
        root = []
        if self.slurm.root:
            # MariaDB's own script takes no path with a space, which a user's cache may have.
            base = self.folder / "mariadb"
            if not base.is_symlink():
                base.symlink_to(self.slurm.root / "usr")
            root = [f"--basedir={base}"]
        user = [f"--user={_user()}"] if os.geteuid() == 0 else []
        return [self._program(program), "--no-defaults", *root, *user, f"--datadir={self.folder}/db", *options]

    def _start_accounting(self) -> None:
        install = self._database_command(
            *("mariadb-install-db", "--auth-root-authentication-method=normal", "--skip-test-db")
        )
        self.run(*install)
        self.start(DATABASE)
        client = (self._program("mariadb"), "--no-defaults", f"--socket={self.folder}/db.sock", "--user=root")
        self.until(lambda: self.call(*client, text="select 1").returncode == 0, "MariaDB answers", START_LIMIT_S)
        self.run(
            *client,
            text="create database slurm; create user slurm@localhost identified by 'slurm';"
            " grant all on slurm.* to slurm@localhost;",
        )
        self.start(ACCOUNTS)
        manager = ("sacctmgr", "--immediate", "--quiet")
        self.until(lambda: self.call(*manager, "show", "cluster").returncode == 0, "slurmdbd answers", START_LIMIT_S)
        self.run(*manager, "add", "cluster", CLUSTER)
        self.run(*manager, "add", "account", "lab", f"cluster={CLUSTER}")
        self.run(*manager, "add", "user", _user(), "account=lab", f"cluster={CLUSTER}")
        self.run(*manager, "modify", "user", _user(), "set", "defaultaccount=lab")

    def _logs(self) -> str:
        """The last lines of each log."""
        tails = []
        for daemon in self._daemons:
            path = next(path for end in ("log", "out") if (path := self.folder / "log" / f"{daemon}.{end}").exists())
            lines = path.read_text("utf-8", "replace").splitlines()[-15:]
            tails += [f"--- {path.name}", *lines] if lines else []
        return "\n".join(tails)


def _user() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def _command_line(pid: int) -> str:
    """Empty for a process that has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace").strip()
    except OSError:
        return ""


def _free_ports(nodes: int) -> tuple[socket.socket, int]:
    """The first of a block of free ports, kept from other clusters of this host for as long as the socket is open."""
    assert nodes + NODE_PORT <= PORTS_EACH, f"{nodes} nodes need more than {PORTS_EACH} ports"
    for first in range(FIRST_PORT, LAST_PORT, PORTS_EACH):
        claim = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            claim.bind(f"\0windfall-slurm-{first}")
            for port in range(first, first + NODE_PORT + nodes):
                with socket.socket() as probe:
                    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    probe.bind(("127.0.0.1", port))
        except OSError:
            claim.close()
        else:
            return claim, first
    raise AssertionError(f"all ports from {FIRST_PORT} to {LAST_PORT} are in use")
