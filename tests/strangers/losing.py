"""Real losses at random instants, and what the script itself wrote down of its steps: the other side of an account.

The script appends a line to a log of its own (`O_APPEND`, one write) when it begins, when it has finished a step, and
when it has told Windfall so.  A step of which it was killed between those two counts either way.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

WINDFALL = (sys.executable, "-m", "windfall.cli.main")
PATIENCE_S = 120.0
SCRIPT = """
import os, sys, time
log = os.open(os.environ["STEPS_LOG"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
def say(what, step):
    os.write(log, f"{what} {step} {os.getpid()} {time.time():.6f}\\n".encode())
say("began", 0)
import windfall as wf
STEPS, STEP_S, EVERY = int(os.environ["STEPS"]), float(os.environ["STEP_S"]), int(os.environ["EVERY"])
found = wf.last()
first = int(open(found).read()) if found else 0
os.makedirs("checkpoints", exist_ok=True)
say("from", first)
for step in range(first, STEPS):
    time.sleep(STEP_S)
    say("done", step + 1)
    asked = wf.step()
    say("told", step + 1)
    if asked or (step + 1) % EVERY == 0 or step + 1 == STEPS:
        path = f"checkpoints/{step + 1}-{os.getpid()}.txt"
        with open(path, "w") as file:
            file.write(str(step + 1))
        wf.backup(path)
say("ended", STEPS)
"""
WAYS = ("script", "agent", "supervisor", "tree")
"""Who is killed: `agent` alone costs nothing, `script` an attempt, the others the machine."""


@dataclass
class Life:
    """One start of the script, from its own log.

    Attributes:
        first: the step it began from; None if it was killed before it knew.
        done, told: the steps it finished, and of which Windfall heard, with the times.
    """

    began: float
    first: int | None = None
    done: list[tuple[int, float]] = field(default_factory=list)
    told: list[tuple[int, float]] = field(default_factory=list)
    last: float = 0.0


def read_lives(log: Path) -> list[Life]:
    """The script's log as lives, oldest first."""
    lives: list[Life] = []
    for line in log.read_text().splitlines() if log.exists() else ():
        what, number, _, at = line.split()
        if what == "began":
            lives.append(Life(float(at)))
        life = lives[-1]
        life.last = float(at)
        if what == "from":
            life.first = int(number)
        elif what in ("done", "told"):
            getattr(life, what).append((int(number), float(at)))
    return lives


@dataclass(frozen=True)
class Counted:
    """What the script's own log says of a run.

    Attributes:
        redone: how many steps were computed again, at least and at most.
        new_s: how long the steps took that were computed for the first time.
        script_s: how long the script lived, all lives together.
    """

    redone: tuple[int, int]
    new_s: float
    script_s: float


def count(lives: Sequence[Life]) -> Counted:
    """Count what a log says."""
    new_s, furthest = 0.0, 0
    for life in lives:
        before = life.began
        for step, at in life.done:
            new_s += at - before if step > furthest and before != life.began else 0.0
            furthest, before = max(furthest, step), at
    redone = [
        sum(len(steps(life)) for life in lives) - len({step for life in lives for step, _ in steps(life)})
        for steps in (lambda life: life.told, lambda life: life.done)
    ]
    return Counted((min(redone), max(redone)), new_s, sum(life.last - life.began for life in lives))


def low_high(value: Any) -> tuple[float, float]:
    """A figure of an account: a range, or a number that is claimed to be exact."""
    return (value["low"], value["high"]) if isinstance(value, dict) else (value, value)


@dataclass
class Run:
    """A run under `windfall exec`, whose processes are killed by a seed; all machines are this host."""

    folder: Path
    steps: int
    step_s: float
    every: int
    url: str = ""
    losses: int = 0
    machine_s: float = 0.0
    process: subprocess.Popen[bytes] | None = None
    _began: float = 0.0

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "train.py").write_text(SCRIPT)
        self.url = self.url or f"file://{self.folder / 'run'}"

    @property
    def log(self) -> Path:
        return self.folder / "steps.log"

    def environment(self) -> dict[str, str]:
        """What the user's shell has."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("WINDFALL_", "AWS_"))}
        numbers = {"STEPS": str(self.steps), "STEP_S": str(self.step_s), "EVERY": str(self.every)}
        return kept | numbers | {"STEPS_LOG": str(self.log), "XDG_STATE_HOME": str(self.folder / "state")}

    def start(self) -> None:
        """Start the line again."""
        line = [*WINDFALL, "exec", "--provider", "local", "--policy", "never", "--max-failures", "1000", self.url]
        self._began = time.monotonic()
        with (self.folder / "printed").open("ab") as out:
            self.process = subprocess.Popen(
                [*line, "--", sys.executable, str(self.folder / "train.py")],
                cwd=self.folder, env=self.environment(), stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                start_new_session=True,
            )  # fmt: skip

    def over(self) -> bool:
        """Whether the machine has ended; its hours are counted once."""
        assert self.process is not None
        if self.process.poll() is None:
            return False
        if self._began:
            self.machine_s += time.monotonic() - self._began
            self._began = 0.0
        return True

    def below(self) -> dict[int, str]:
        """Every living process of the machine with its command line."""
        assert self.process is not None
        parents: dict[int, int] = {}
        for name in os.listdir("/proc"):
            with contextlib.suppress(OSError, IndexError, ValueError):
                if name.isdigit():
                    parents[int(name)] = int(Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[1])
        found, grown = {self.process.pid}, True
        while grown:
            more = {pid for pid, parent in parents.items() if parent in found} - found
            found, grown = found | more, bool(more)
        lines = {}
        for pid in found:
            with contextlib.suppress(OSError):
                lines[pid] = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        return lines

    def kill(self, way: str) -> None:
        """Kill the script, the agent, the supervisor, or all of them at once (SIGKILL)."""
        assert self.process is not None
        lines = self.below()
        of = {
            "script": [pid for pid, line in lines.items() if "train.py" in line and "windfall" not in line.split()[:4]],
            "agent": [pid for pid, line in lines.items() if "windfall.cli.agent_process" in line],
            "supervisor": [self.process.pid],
            "tree": list(lines),
        }
        for pid in of[way]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if way in ("supervisor", "tree"):
            self.process.wait(PATIENCE_S)
            self.over()

    def lose(self, rng: random.Random, losses: int, life_s: tuple[float, float], ways: Sequence[str] = WAYS) -> None:
        """Lose it so many times at random instants, then let it finish: it has as many steps as that takes."""
        few, self.steps = self.steps, 10**6
        while self.losses < losses:
            if self.process is None or self.over():
                self.start()
            began, lives = time.monotonic(), len(read_lives(self.log))
            wanted_s = rng.uniform(*life_s)
            while not self.over() and len(read_lives(self.log)) <= lives and time.monotonic() - began < PATIENCE_S:
                time.sleep(0.01)
            time.sleep(wanted_s)
            assert not self.over(), (self.folder / "printed").read_text()[-3000:]
            # The last one takes the machine: the next one knows how many steps there are.
            way = "tree" if self.losses == losses - 1 else ways[self.losses % len(ways)]
            if way == "agent":
                self.kill("agent")
                time.sleep(rng.uniform(0.0, 0.5))
                way = rng.choice([one for one in ways if one != "agent"])
            self.kill(way)
            self.losses += 1
        self.steps = max((step for life in read_lives(self.log) for step, _ in life.done), default=0) + few
        self.finish()

    def finish(self) -> None:
        """Let the run end by itself."""
        if self.process is None or self.over():
            self.start()
        assert self.process is not None
        end = time.monotonic() + PATIENCE_S
        while not self.over():
            assert time.monotonic() < end, f"it does not end:\n{(self.folder / 'printed').read_text()[-3000:]}"
            time.sleep(0.01)
        assert self.process.returncode == 0, (self.folder / "printed").read_text()[-3000:]

    def cost(self) -> dict[str, Any]:
        """`windfall cost --json`."""
        return cost(self.url, self.environment())


def cost(what: str, environment: dict[str, str], *options: str) -> dict[str, Any]:
    """`windfall cost --json` of a run or a job."""
    done = subprocess.run(
        [*WINDFALL, "cost", what, "--json", *options],
        env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    made: dict[str, Any] = json.loads(done.stdout)
    return made


def disagreements(told: dict[str, Any], counted: Counted, *, losses: int, step_s: float, held_s: float) -> list[str]:
    """Where an account and the script's own log differ; empty if nowhere.

    Args:
        told: the account.
        counted: the script's log.
        losses: how many there were.
        step_s: how long a step takes.
        held_s: how long the machines' processes lived.
    """
    found = []
    low, high = low_high(told["steps_redone"])
    if not (low <= counted.redone[1] and counted.redone[0] <= high):
        found.append(f"steps redone: {low} to {high}, the script's log has {counted.redone}")
    if (high - low) * step_s > 2.0 * losses:
        found.append(f"steps redone: {low} to {high} is wider than 2 s for each of {losses} losses")
    low, high = low_high(told["machine_hours"])
    # The processes live a little longer than they hold the run, and the script a little shorter.
    if not (low * 3600 <= held_s + 0.1 and counted.script_s - 0.1 <= high * 3600):
        found.append(
            f"machine-hours: {low * 3600:.2f} to {high * 3600:.2f} s, {counted.script_s:.2f} to {held_s:.2f} s"
        )
    low, high = low_high(told["goodput"])
    goodput = counted.new_s / told["total_s"]
    if not low - 0.03 <= goodput <= high + 0.03:
        found.append(f"goodput: {low:.3f} to {high:.3f}, by the script's log {goodput:.3f}")
    return found
