"""A stranger: somebody with a long home, a folder with spaces and a script, whose machine is taken away by a plan.

The plan follows from a seed: a loss in the first second, some in the middle, one at the end (while the last save or the
release is under way).  What the script itself wrote down, a line a finished step, is the other side of the account.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.real.machines import descendants
from tests.strangers import losing
from tests.support.processes import alive
from windfall.linux import processes

SCRIPTS = Path(__file__).parent / "scripts"
BIN = Path(sys.executable).parent
PATIENCE_S = 240.0
KINDS = {
    "arrays": 150, "average": 100, "ddp": 100, "evaluation": 90, "gan": 100, "lightning_fit": 80, "memory": 150,
    "overwriting": 150, "plain": 120, "shell": 120, "trainer": 80, "workers": 120,
}  # fmt: skip
"""Each kind of user with the steps of the script."""
WITHOUT_PAGE = {"shell"}
"""Scripts that tell Windfall of no step but those that they save at."""
WAYS = ("tree", "script", "agent", "supervisor", "notice")
_UNDISTURBED: dict[str, str] = {}


def seeds() -> list[int]:
    """The seeds of `SEEDS` ("1-5", "3", "1,4"), else the first."""
    found: list[int] = []
    for part in filter(None, os.environ.get("SEEDS", "").split(",")):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found or [1]


def wait_until(condition: Callable[[], object], what: Callable[[], str], limit_s: float = PATIENCE_S) -> None:
    """Poll until a condition holds, or fail."""
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end, f"not within {limit_s:g} s: {what()}"
        time.sleep(0.01)


@dataclass
class Stranger:
    """One user with one script; all machines are this host, each in an empty folder that holds the script alone."""

    root: Path
    kind: str
    url: str = ""
    losses: list[str] = field(default_factory=list)
    machines: int = 0
    process: subprocess.Popen[bytes] | None = None
    here: Path = field(default_factory=Path)

    def __post_init__(self) -> None:
        self.home = self.root / ("a-user-with-a-long-name-" + "x" * 16)
        self.home.mkdir(parents=True, exist_ok=True)
        self.work = self.home / "my training runs"
        self.work.mkdir(exist_ok=True)
        self.url = self.url or str(self.work / "stores" / f"run of {self.kind}")

    # ------------------------------------------------------------------------------------------------------- the script

    @property
    def steps(self) -> int:
        return KINDS[self.kind]

    @property
    def file(self) -> Path:
        return SCRIPTS / (self.kind + (".sh" if self.kind == "shell" else ".py"))

    @property
    def command(self) -> list[str]:
        if self.kind == "ddp":
            return ["torchrun", "--standalone", "--nproc-per-node", "2", self.file.name]
        return ["sh" if self.kind == "shell" else "python", self.file.name]

    @property
    def log(self) -> Path:
        return self.work / f"steps of {self.kind}"

    @property
    def printed(self) -> str:
        path = self.work / f"printed by {self.kind}"
        return path.read_text(errors="replace") if path.exists() else ""

    def lines(self, log: Path | None = None) -> list[int]:
        """The steps that the script says it finished, in the order it did."""
        path = log or self.log
        return [int(line) for line in path.read_text().splitlines()] if path.exists() else []

    def environment(self, log: Path | None = None) -> dict[str, str]:
        """What the user's shell has."""
        kept = ("LANG", "LC_ALL", "LD_LIBRARY_PATH", "AWS_ENDPOINT_URL")
        given = {name: os.environ[name] for name in kept if name in os.environ}
        quiet = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
        path = f"{BIN}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
        return {**given, **quiet, "PATH": path, "HOME": str(self.home), "LOG": str(log or self.log)}

    def results(self, text: str) -> set[str]:
        """Every result that was printed."""
        return {line for line in text.splitlines() if line.startswith("result ")}

    def undisturbed(self) -> str:
        """The result of the script as it is, without Windfall: the same for every seed, and found once."""
        if self.kind not in _UNDISTURBED:
            _UNDISTURBED[self.kind] = self._alone()
        return _UNDISTURBED[self.kind]

    def _alone(self) -> str:
        place = self.work / f"{self.kind} alone"
        place.mkdir()
        shutil.copy(self.file, place)
        done = subprocess.run(
            self.command, cwd=place, env=self.environment(place / "log"), capture_output=True, text=True,
            timeout=PATIENCE_S, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-2000:]
        assert self.lines(place / "log") == list(range(1, self.steps + 1))
        (result,) = self.results(done.stdout)
        return result

    # ------------------------------------------------------------------------------------------------------ its machines

    def start(self) -> None:
        """The same line again, on a machine that holds nothing but the script."""
        self.machines += 1
        self.here = self.work / f"machine {self.machines} of {self.kind}"
        self.here.mkdir()
        shutil.copy(self.file, self.here)
        line = ["windfall", "exec", "--provider", "local", "--max-failures", "1000", "--wait", self.url, "--"]
        with (self.work / f"printed by {self.kind}").open("ab") as out:
            self.process = subprocess.Popen(
                [*line, *self.command], cwd=self.here, env=self.environment(), stdin=subprocess.DEVNULL,
                stdout=out, stderr=out, start_new_session=True, executable=str(BIN / "windfall"),
            )  # fmt: skip

    @property
    def ended(self) -> bool:
        return self.process is not None and self.process.poll() is not None

    def code(self) -> int:
        """Wait for the machine's end."""
        assert self.process is not None
        try:
            return self.process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it does not end:\n{self.printed[-3000:]}") from None

    def lose(self, way: str) -> None:
        """Take the machine, the script or the agent away; a notice comes through `windfall inject`."""
        assert self.process is not None
        if self.ended:
            return
        self.losses.append(f"{way} at {max(self.lines(), default=0)}")
        if way == "notice":
            self.say("inject", self.url, "--notice", "5s", check=False)
            self.code()
        elif way in ("script", "agent"):
            self._kill_one(way)
        else:
            below = descendants(self.process.pid)
            for pid in [self.process.pid, *(below if way == "tree" else ())]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self.process.wait()
            wait_until(lambda: not any(alive(pid) for pid in below), lambda: "every descendant is dead")

    def _kill_one(self, way: str) -> None:
        assert self.process is not None
        for pid in descendants(self.process.pid):
            with contextlib.suppress(OSError):
                words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                is_agent = any(word.startswith(b"windfall.cli.agent_process") for word in words)
                is_script = self.file.name.encode() in words and b"windfall.agent.supervisor" not in b" ".join(words)
                # The supervisor's command line names the script too: its children are the script's own processes.
                is_script = is_script and not any(b"supervisor" in word for word in words)
                if is_agent if way == "agent" else is_script and processes.children_of(pid) is not None:
                    os.kill(pid, signal.SIGKILL)

    def live(self, seed: int, middle: int = 2) -> None:
        """A loss in the first second, some in the middle, one at the end; then nobody disturbs it any more."""
        dice = random.Random(f"{self.kind} {seed}")
        self.start()
        self._pause(dice.uniform(0.0, 1.0))
        self.lose(dice.choice(("tree", "supervisor", "agent")))
        for _ in range(middle):
            self._again()
            goal = dice.randint(1, self.steps - 2)
            self._until(lambda goal=goal: max(self.lines(), default=0) >= goal)
            self.lose(dice.choice(WAYS))
        self._again()
        first = self.steps if dice.random() < 0.5 else self.steps - 1
        self._until(lambda: max(self.lines(), default=0) >= first)
        if first == self.steps:
            self._until(lambda: self.results(self.printed))
        self._pause(dice.uniform(0.0, 0.3))
        self.lose(dice.choice(("tree", "supervisor", "agent")))
        while True:
            self._again()
            code = self.code()
            assert code in (0, 75, 137, -9), f"code {code}:\n{self.printed[-3000:]}"
            if code == 0:
                return

    def live_as_a_job(self, seed: int) -> None:
        """`windfall run` on the local market; a machine dies at a step of the seed, and a later one is taken with a notice."""
        dice = random.Random(f"job of {self.kind} {seed}")
        name = self.url = f"job-of-{self.kind.replace('_', '-')}"
        market = self.home / ".local" / "state" / "windfall" / "market"
        market.mkdir(parents=True)
        (market / "market.yaml").write_text("idle_exit: 2s\n")
        self.here = self.work / f"folder of {name}"
        self.here.mkdir()
        shutil.copy(self.file, self.here)
        given = {key: value for key, value in self.environment().items() if key not in ("PATH", "HOME")}
        job = {"name": name, "workdir": ".", "run": shlex.join(self.command), "envs": given}
        (self.here / "job.yaml").write_text(json.dumps(job))
        with (self.work / f"printed by {self.kind}").open("ab") as out:
            self.process = subprocess.Popen(
                ["windfall", "run", "-y", "job.yaml"], cwd=self.here, env=self.environment(), stdin=subprocess.DEVNULL,
                stdout=out, stderr=out, start_new_session=True, executable=str(BIN / "windfall"),
            )  # fmt: skip
        goal = dice.randint(1, self.steps - 10)
        self._until(lambda: max(self.lines(), default=0) >= goal)
        for life in market.glob("machines/*/life.json"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(json.loads(life.read_text())["pid"], signal.SIGKILL)
        self.losses.append(f"killed at {max(self.lines())}")
        until = len(self.lines()) + dice.randint(1, 20)
        self._until(lambda: len(self.lines()) >= until)
        self._until(lambda: self._says("inject", name, "--notice", "4s"))
        self.losses.append(f"notice at {max(self.lines())}")
        assert self.code() == 0, self.printed[-3000:]

    def _again(self) -> None:
        if self.ended:
            self.start()

    def _until(self, condition: Callable[[], object]) -> None:
        wait_until(lambda: condition() or self.ended, lambda: f"a moment of {self.kind}:\n{self.printed[-3000:]}")

    def _pause(self, seconds: float) -> None:
        """Let a random time pass (that is the plan, not a wait for something)."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and not self.ended:
            time.sleep(0.002)

    def finish(self) -> None:
        """Leave nothing behind."""
        if self.process is not None and not self.ended:
            self.lose("tree")

    # ------------------------------------------------------------------------------------------------- what is to be seen

    def say(self, *words: str, check: bool = True) -> str:
        """Run a verb; return what it printed."""
        done = subprocess.run(
            ["windfall", *words], cwd=self.work, env=self.environment(), capture_output=True, text=True,
            timeout=PATIENCE_S, check=False, executable=str(BIN / "windfall"),
        )  # fmt: skip
        assert not check or done.returncode == 0, done.stderr
        return done.stdout

    def _says(self, *words: str) -> bool:
        """Whether a verb can do now what it is asked."""
        line = ["windfall", *words]
        done = subprocess.run(
            line, cwd=self.work, env=self.environment(), capture_output=True, timeout=PATIENCE_S, check=False,
            executable=str(BIN / "windfall"),
        )  # fmt: skip
        return done.returncode == 0

    def account(self) -> dict[str, Any]:
        """`windfall cost --json`."""
        told: dict[str, Any] = json.loads(self.say("cost", self.url, "--json"))
        return told

    def cost(self) -> dict[str, Any]:
        """The account of the run, or of the job's run."""
        told = self.account()
        run: dict[str, Any] = told.get("run", told)
        return run

    def disagreements(self) -> list[str]:
        """Where the account and the script's own log differ; empty if nowhere."""
        if self.kind in WITHOUT_PAGE:
            return []
        lines = self.lines()
        redone = len(lines) - len(set(lines))
        low, high = losing.low_high(self.cost()["steps_redone"])
        # A step that was written down and not yet told of when the script was killed counts either way.
        if low <= redone and redone - len(self.losses) <= high:
            return []
        return [f"steps redone: the account says {low} to {high}, the script's log {redone} ({', '.join(self.losses)})"]
