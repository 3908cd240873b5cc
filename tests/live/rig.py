"""Everything real on one host: a controller, a local market, its machines, `windfall run`; and whoever kills them.

What a rig says of machines and money it reads from the market's own books, which the controller's account never sees.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shlex
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import yaml

from tests.storage.databases import Postgres
from windfall import codec
from windfall.core import driver
from windfall.events import Row
from windfall.linux.clock import SystemClock
from windfall.providers.local.local_provider import LocalProvider
from windfall.storage import object_stores, run_log, spool_journal
from windfall.storage.database import open_database
from windfall.terms import CheckpointRef, Seconds

WINDFALL = (sys.executable, "-m", "windfall.cli.main")
OVER = ("done", "failed", "stopped")
NOTICE_S = 8.0
USD_PER_HOUR = 3600.0
"""A second costs a dollar on demand, so that a cent is ten milliseconds."""
CENT = 0.01
MODULES = {
    "controller": ("windfall.cli.controller_process", "windfall.cli.main serve"),
    "market": ("windfall.providers.local.market_daemon",),
    "machine": ("windfall.providers.local.machine_init",),
    "keeper": ("windfall.cli.node_agent_process",),
    "supervisor": ("windfall.agent.supervisor",),
    "agent": ("windfall.cli.agent_process",),
}


@dataclass(frozen=True)
class Stay:
    """A machine's life as the market's books have it [s since 1970]; `told` is when it was noticed, None if it was not."""

    machine_id: str
    token: str
    price: float
    ordered: float
    started: float | None
    ended: float | None
    told: float | None
    preemption_at: float | None
    cause: str | None


@dataclass
class Rig:
    """An installation in a folder of its own."""

    folder: Path
    database: str | None = None
    market: dict[str, Any] = field(default_factory=dict)
    allocation_s: float = 0.5
    notice_s: float = NOTICE_S
    killed: list[str] = field(default_factory=list)
    _port: int = 0
    _controllers: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.state.mkdir(parents=True)
        (self.state / "market").mkdir(mode=0o700)
        (self.folder / "home").mkdir()
        described = {
            "types": {"small": {"on_demand": USD_PER_HOUR}},
            "zones": ["zone-a", "zone-b"],
            "allocation_delay": self.allocation_s,
            "notice": self.notice_s,
            "billing": {"lag": 0.5},
            "prices": {"points": {"small/zone-a": [[0, 900]], "small/zone-b": [[0, 1080]]}},
            **self.market,
        }
        (self.state / "market" / "market.yaml").write_text(yaml.safe_dump(described))
        self._port = _free_port()

    @property
    def state(self) -> Path:
        return self.folder / "windfall"

    # ------------------------------------------------------------------------------------------------- the controller

    def start_controller(self) -> None:
        """Start the controller that the verbs below talk to; wait until it answers."""
        # An embedded controller names a port of its own at each start; a team's keeps its address.
        line = [sys.executable, "-m", "windfall.cli.controller_process", str(self.state), "3600"]
        if self.database is not None:
            line = [*WINDFALL, "serve", "--state", str(self.state), "--port", str(self._port)]
            line += ["--database", self.database]
        with (self.folder / "controller.log").open("ab") as log:
            process = subprocess.Popen(
                line, cwd=self.folder, env=self.environment(), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip
        self._controllers.append(process)
        self.until(lambda: self._ping() is not None, "the controller answers")

    def _ping(self) -> str | None:
        try:
            url = str(json.loads((self.state / "controller.json").read_text())["url"])
            return url if httpx.get(f"{url}/v1/ping", timeout=2, trust_env=False).status_code == 200 else None
        except (OSError, ValueError, httpx.HTTPError):
            return None

    def environment(self) -> dict[str, str]:
        """What a user's shell has here."""
        keep = ("PATH", "LANG", "LC_ALL", "VIRTUAL_ENV", "PYTHONPATH")
        given = {name: os.environ[name] for name in keep if name in os.environ}
        return given | {"HOME": str(self.folder / "home"), "XDG_STATE_HOME": str(self.folder / "user")}

    def say(self, *words: str, limit_s: float = 90.0) -> str:
        """Run a verb; return what it printed."""
        environment = self.environment() | {"XDG_STATE_HOME": str(self.folder)}
        if self.database is not None:
            environment |= {
                "WINDFALL_CONTROLLER": f"http://127.0.0.1:{self._port}",
                "WINDFALL_TOKEN_FILE": str(self.state / "token"),
            }
        done = subprocess.run(
            [*WINDFALL, *words], cwd=self.folder, env=environment, capture_output=True,
            text=True, timeout=limit_s, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{words}: {done.stderr}{done.stdout}\n{self.log()}"
        return done.stdout

    def submit(self, job: dict[str, Any], script: Path | None, inject: str | None = None) -> str:
        """`windfall run -y -d`; return the job's id."""
        work = self.folder / f"work-{job['name']}"
        work.mkdir(exist_ok=True)
        if script is not None:
            (work / "train.py").write_bytes(script.read_bytes())
        file = work / "job.yaml"
        file.write_text(yaml.safe_dump({"workdir": str(work), "run": f"{shlex.quote(sys.executable)} train.py", **job}))
        words = ("--inject", inject) if inject else ()
        return json.loads(self.say("run", str(file), "-y", "-d", "--json", *words).splitlines()[-1])["job_id"]

    def plan(self, name: str, inject: str | None = None) -> dict[str, Any]:
        """`windfall plan` of a job that was submitted before."""
        words = ("--inject", inject) if inject else ()
        told: dict[str, Any] = json.loads(
            self.say("plan", str(self.folder / f"work-{name}" / "job.yaml"), "--json", *words)
        )
        return told

    def job(self, job_id: str) -> dict[str, Any] | None:
        """The job as the controller shows it; None if no controller answers."""
        url = self._ping()
        if url is None:
            return None
        token = (self.state / "token").read_text().strip()
        try:
            answer = httpx.get(
                f"{url}/v1/jobs/{job_id}", headers={"authorization": f"Bearer {token}"}, timeout=10, trust_env=False
            )
        except httpx.HTTPError:
            return None
        if answer.status_code != 200:
            return None
        told: dict[str, Any] = answer.json()
        return told

    def ended(self, job_id: str, limit_s: float = 180.0) -> dict[str, Any]:
        """Wait until the job has ended and its bill is complete; return how it stands."""
        found: list[dict[str, Any]] = []

        def over() -> bool:
            told = self.job(job_id)
            if told is None or told["phase"] not in OVER or told["details"]["money"]["unsettled"]:
                return False
            found.append(told)
            return True

        self.until(over, f"{job_id} ends", limit_s)
        return found[-1]

    def rows(self, job_id: str) -> list[Row]:
        """The job's journal, read from the database itself."""
        url = self.database or f"sqlite:///{self.state / 'controller.db'}"
        with contextlib.closing(open_database(url, SystemClock())) as database:
            return [codec.row_from_line(line) for _, line in database.rows(job_id)]

    def result(self, told: dict[str, Any]) -> bytes:
        """The final checkpoint of a job, as `windfall get` brings it."""
        told = json.loads(
            self.say("get", self.run_url(told["job_id"]), str(self.folder / f"result-{told['job_id']}"), "--json")
        )
        (path,) = told["files"]
        return (self.folder / path).read_bytes()

    def checkpoints(self, job_id: str) -> tuple[CheckpointRef, ...]:
        """The run's checkpoints, by its own log."""
        head = object_stores.open_reader(self.run_url(job_id)).run(run_log.read_head())
        return () if head is None else head.state.checkpoints

    def saved_step(self, job_id: str) -> int:
        """The newest step that is safe; 0 before the first."""
        return max((checkpoint.step for checkpoint in self.checkpoints(job_id)), default=0)

    def starts(self, job_id: str) -> int:
        """How often the script was started, by the run's own log."""
        head = object_stores.open_reader(self.run_url(job_id)).run(run_log.read_head())
        assert head is not None
        return head.state.attempts

    def run_rows(self, job_id: str) -> tuple[Row, ...]:
        """The run's own journal, of all machines."""
        return object_stores.open_reader(self.run_url(job_id)).run(spool_journal.read_journal()).rows

    def run_url(self, job_id: str) -> str:
        return f"file://{self.state / 'runs' / job_id}"

    # ------------------------------------------------------------------------------------------------ the market's books

    def stays(self, job_id: str) -> list[Stay]:
        """Every machine of a job from the market's own books, oldest order first."""
        with contextlib.closing(
            sqlite3.connect(f"file:{self.state / 'market' / 'market.db'}?mode=ro", uri=True)
        ) as database:
            rows = database.execute(
                "SELECT machine_id, token, price, due, started, ended, preemption_at, cause FROM machines WHERE job_id = ?"
                " ORDER BY due",
                (job_id,),
            ).fetchall()
        return [
            Stay(
                name,
                token,
                price,
                due - self.allocation_s,
                started,
                ended,
                None if preemption_at is None else preemption_at - self.notice_s,
                preemption_at,
                cause,
            )
            for name, token, price, due, started, ended, preemption_at, cause in rows
        ]

    def metered_usd(self, job_id: str) -> float:
        """What the job's machines cost, by their starts, ends and prices in the books."""
        lives = [stay for stay in self.stays(job_id) if stay.started is not None]
        assert all(stay.ended is not None for stay in lives), "a machine's meter still runs"
        return sum((stay.ended - stay.started) / 3600.0 * stay.price for stay in lives)  # type: ignore[operator]

    def check(self, job_id: str, told: dict[str, Any], *, nodes: int = 1) -> None:
        """Whatever happened: the bill is the meter's, nothing lives, no slot had two, the journal decides the same."""
        money, metered = told["details"]["money"], self.metered_usd(job_id)
        for name in ("settled_usd", "due_usd", "estimated_usd"):
            assert abs(money[name] - metered) < CENT, f"{name} {money[name]:.4f} USD, the meter {metered:.4f} USD"
        assert abs(money["unexplained_usd"]) < 1e-9
        assert money["disputed"] == 0
        self.until(lambda: not self.processes("machine", "keeper", "supervisor", "agent"), "nothing is left alive")
        assert all(stay.ended is not None for stay in self.stays(job_id)), "a machine is listed alive"
        crowd = self.crowd(job_id, nodes)
        assert crowd is None, f"more machines than needs: {crowd}"
        replay(self.rows(job_id))

    def crowd(self, job_id: str, nodes: int) -> list[str] | None:
        """Machines that were bought or ran at one moment without notice, more than the job needs; None if never."""
        spans = []
        for stay in self.stays(job_id):
            until = stay.ended if stay.told is None else min(stay.told, stay.ended or stay.told)
            spans.append((stay.machine_id, stay.ordered, float("inf") if until is None else until))
        for _, since, _ in spans:
            there = [name for name, ordered, until in spans if ordered <= since < until]
            if len(there) > nodes:
                return there
        return None

    # ---------------------------------------------------------------------------------------------- what may be killed

    def processes(self, *kinds: str) -> list[int]:
        """The processes of this installation of these kinds, those that stand above their forks only."""
        wanted = [words for kind in kinds for words in MODULES[kind]]
        found = {pid: line for pid, line in self._everything() if any(words in line for words in wanted)}
        return [pid for pid in found if _parent(pid) not in found]

    def _everything(self) -> Iterator[tuple[int, str]]:
        mark = os.fsencode(str(self.folder))
        for name in os.listdir("/proc"):
            if not name.isdigit() or int(name) == os.getpid():
                continue
            try:
                line = Path(f"/proc/{name}/cmdline").read_bytes()
                known = mark in line or mark in Path(f"/proc/{name}/environ").read_bytes()
            except OSError:
                continue
            if known and line:
                yield int(name), line.replace(b"\0", b" ").decode(errors="replace")

    def take(self, machine_id: str, notice_s: float | None) -> None:
        """Take a machine back as the market would, with so much notice, None for none."""
        market = LocalProvider(str(self.state / "market"), SystemClock(), start=False)
        with contextlib.closing(market):
            market.preempt(machine_id, None if notice_s is None else Seconds(notice_s))

    def kill(self, kind: str, chance: random.Random) -> bool:
        """Kill -9 one process of a kind, if there is one now."""
        pids = self.processes(kind)
        if not pids:
            return False
        pid = chance.choice(pids)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        self.until(lambda: pid not in self.processes(kind), f"{kind} {pid} is dead")
        self.killed.append(kind)
        return True

    def close(self) -> None:
        """Kill everything."""
        deadline = time.monotonic() + 20.0
        while pids := [pid for pid, _ in self._everything()]:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._reap()
            assert time.monotonic() < deadline, f"processes that do not end: {pids}"
            time.sleep(0.05)
        for process in self._controllers:
            process.wait(20.0)  # a process that was killed may need a moment to give its memory back

    # --------------------------------------------------------------------------------------------------------- waiting

    def until(self, done: Callable[[], bool], what: str, limit_s: float = 120.0) -> None:
        """Wait on a condition."""
        deadline = time.monotonic() + limit_s
        while not done():
            assert time.monotonic() < deadline, f"not within {limit_s:g} s: {what}; killed {self.killed}\n{self.log()}"
            time.sleep(0.05)
        self._reap()

    def _reap(self) -> None:
        """Take the exit codes of controllers that were killed."""
        self._controllers = [process for process in self._controllers if process.poll() is None]

    def log(self) -> str:
        """The end of the controller's log, and of each machine's output."""
        files = [
            self.folder / "controller.log",
            *sorted((self.state / "market" / "machines").glob("*/output.log"))[-4:],
        ]
        return "\n".join(f"--- {path}\n{_last_words(path)}" for path in files if path.exists())


def storm(
    rig: Rig,
    job_id: str,
    kinds: list[str],
    chance: random.Random,
    *,
    pause_s: tuple[float, float],
    server: Postgres | None,
) -> None:
    """Kill one after the other, at drawn moments, and bring back what nobody else does; stop where the job has ended."""
    for kind in kinds:
        _wait(rig, job_id, chance.uniform(*pause_s))
        if _is_over(rig, job_id):
            return
        if kind == "postgres":
            assert server is not None
            server.kill()
            rig.killed.append(kind)
            time.sleep(chance.uniform(0.1, 2.0))
            server.start()
        else:
            # A machine that is being bought has no keeper yet; whoever waits for it draws another moment.
            rig.until(lambda: rig.kill(kind, chance) or _is_over(rig, job_id), f"there is a {kind} to kill")  # noqa: B023
        if kind in ("controller", "postgres") and not rig.processes("controller"):
            time.sleep(chance.uniform(0.0, 3.0))
            rig.start_controller()


def _wait(rig: Rig, job_id: str, duration_s: float) -> None:
    until = time.monotonic() + duration_s
    while time.monotonic() < until and not _is_over(rig, job_id):
        time.sleep(min(0.25, max(until - time.monotonic(), 0.0)))


def _is_over(rig: Rig, job_id: str) -> bool:
    told = rig.job(job_id)
    return told is not None and told["phase"] in OVER


def _last_words(path: Path) -> str:
    lines = path.read_text(errors="replace").splitlines()
    return "\n".join(line for line in lines if not line.startswith("step "))[-2000:]


def replay(rows: list[Row]) -> None:
    """Feed the journal back: each row must decide and command the same again."""
    state = driver.initial_state()
    for number, row in enumerate(rows, 1):
        assert row.sequence == number, "the journal has a gap"
        state, decisions, commands = driver.react(state, row.at, row.facts)
        again = f"decides {decisions}, {commands} and not {row.decisions}, {row.commands}"
        assert (decisions, commands) == (row.decisions, row.commands), f"row {number} fed back {again}: {row.facts}"


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, IndexError):
        return 0


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
