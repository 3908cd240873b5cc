"""A whole installation in a folder: the verbs as processes, the embedded controller, a fast local market, a tiny script."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.live import TRAINER, WINDFALL, eventually, plain_environment

MARKET = """
types:
  tiny: {on_demand: 36.0, cpus: 1, memory_gib: 1}
zones: [here]
prices:
  points: {tiny/here: [[0s, 9.0]]}
allocation_delay: 200ms
notice: 8s
billing: {lag: 200ms}
idle_exit: 5s
"""
"""One type at a hundredth of a dollar a second on demand, a quarter of that as spot."""
JOB = """
name: tiny
workdir: .
run: |
  exec {python} train.py
envs: {{STEPS: "{steps}", STEP_S: "{step_s}", AT_STEP: "{at_step}"}}
work: {{steps: {steps}}}
"""


@dataclass
class Shop:
    """An installation and what is started in it."""

    folder: Path

    @property
    def state(self) -> Path:
        return self.folder / "state" / "windfall"

    @property
    def environment(self) -> dict[str, str]:
        return {**plain_environment(), "XDG_STATE_HOME": str(self.folder / "state"), "COLUMNS": "80"}

    def job(self, *, steps: int = 30, step_s: float = 0.05, at_step: str = "", more: str = "") -> Path:
        """Write a job file and its script; `at_step` is run after each step, and has no double quotes."""
        code = self.folder / "code"
        code.mkdir(exist_ok=True)
        (code / "train.py").write_text(TRAINER)
        text = JOB.format(python=shlex.quote(sys.executable), steps=steps, step_s=step_s, at_step=at_step)
        (code / "job.yaml").write_text(text + more)
        return code

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start a verb in the folder of the job."""
        return subprocess.Popen(
            [*WINDFALL, *arguments],
            cwd=self.folder / "code",
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def say(self, *arguments: str, timeout_s: float = 90) -> subprocess.CompletedProcess[str]:
        """Run a verb to its end."""
        return subprocess.run(
            [*WINDFALL, *arguments],
            cwd=self.folder / "code",
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            text=True,
            timeout=timeout_s,
        )

    def ps(self, job: str = "tiny") -> dict[str, Any]:
        """Return how a job stands."""
        answer = self.say("ps", "--json", job)
        assert answer.returncode == 0, answer.stderr
        told: dict[str, Any] = json.loads(answer.stdout)
        return told

    def controller(self) -> int:
        """Return the controller's process."""
        return int(json.loads((self.state / "controller.json").read_text())["pid"])

    def close(self) -> None:
        """End the controller; with the market's folder the market and all machines end by themselves."""
        with suppress(OSError, ValueError, KeyError):
            os.kill(self.controller(), signal.SIGKILL)
        shutil.rmtree(self.state / "market", ignore_errors=True)
        eventually(lambda: not self._processes(), f"the end of the processes of {self.folder}")

    def _processes(self) -> list[str]:
        """Return the command lines of all processes that work in this folder."""
        shutil.rmtree(self.state / "market", ignore_errors=True)
        found = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with suppress(OSError):
                if str(self.folder) in (line := path.read_bytes().replace(b"\0", b" ").decode(errors="replace")):
                    found.append(line)
        return found


@contextmanager
def shop(folder: Path) -> Iterator[Shop]:
    """An installation, ended with everything that it started."""
    made = Shop(folder)
    (made.state / "market").mkdir(parents=True)
    made.state.chmod(0o700)
    (made.state / "market" / "market.yaml").write_text(MARKET)
    made.job()
    try:
        yield made
    finally:
        made.close()
