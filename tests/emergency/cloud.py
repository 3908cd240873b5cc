"""A cloud in small: machines that are folders and processes, a metadata service that announces, SIGKILL at the deadline."""

from __future__ import annotations

import contextlib
import math
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from tests.support.live import living
from windfall.codec import row_from_line
from windfall.core.replay import replay
from windfall.events import CheckpointCommitted, Decision, Fact, Row
from windfall.storage import object_stores
from windfall.storage.spool_journal import read_journal
from windfall.wire.metadata_server import MetadataServer, serve

WINDFALL = str(Path(sys.executable).with_name("windfall"))
TRAINER = str(Path(__file__).with_name("trainer.py"))
JOURNAL = re.compile(r"journal-.*\.jsonl")
PATIENCE_S = 60.0
"""How long any condition is waited for [s]."""
POLL_S = 0.005

F = TypeVar("F", bound=Fact)


@dataclass(frozen=True)
class Work:
    """What the machines of a run do.

    Attributes:
        rate_bytes_per_s: of the uplink [B/s].
        size_bytes: of the state [B].
        step_s: of a step [s].
        first_save: step of a save by the script's own schedule; 0 for none.
        options: further ones of `windfall exec`.
    """

    rate_bytes_per_s: int
    size_bytes: int
    step_s: float = 0.03
    first_save: int = 0
    policy: str = "never"
    options: tuple[str, ...] = ()


@dataclass(frozen=True)
class Moment:
    """A line of the trainer's record."""

    word: str
    step: int
    at: float


class Machine:
    """One machine of a run, from its start to its end."""

    def __init__(self, run: Path, folder: Path, work: Work) -> None:
        self.folder, self.work = folder, work
        (folder / "work").mkdir(parents=True)
        self._progress = folder / "progress"
        self.metadata: MetadataServer = serve((), "aws", now=time.time)
        line = [WINDFALL, "exec", "--provider", "local", "--metadata-url", self.metadata.url, "--policy", work.policy]
        line += ["--uplink", f"{work.rate_bytes_per_s}B/s", "--lease", "4s", *work.options, str(run), "--"]
        line += [sys.executable, TRAINER, str(self._progress)]
        line += [str(work.size_bytes), str(work.step_s), str(work.first_save)]
        with open(folder / "output", "wb") as output:
            self.process = subprocess.Popen(
                line,
                cwd=folder / "work",
                env=os.environ | {"XDG_STATE_HOME": str(folder / "state")},
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    @property
    def moments(self) -> list[Moment]:
        """What the trainer has recorded, whole lines only."""
        if not self._progress.exists():
            return []
        lines = self._progress.read_text().splitlines(keepends=True)
        words = [line.split() for line in lines if line.endswith("\n")]
        return [Moment(word, int(step), float(at)) for word, step, at in words]

    @property
    def resumed_at(self) -> int:
        """The step at which this machine took the run up, once it has."""
        self.wait(lambda: bool(self.moments), "the trainer starts")
        return self.moments[0].step

    @property
    def step(self) -> int:
        """The newest complete step."""
        moments = self.moments
        return moments[-1].step if moments else 0

    def trains_for(self, steps: int) -> None:
        """Wait until so many steps are complete on this machine."""
        goal = self.resumed_at + steps
        self.wait(lambda: self.step >= goal, f"step {goal}")

    def commits(self, count: int) -> None:
        """Wait until so many points are committed on this machine."""
        self.wait(lambda: len(facts(self.spool, CheckpointCommitted)) >= count, f"{count} commits")

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        """Wait for a condition as long as the machine lives."""
        until = time.monotonic() + PATIENCE_S
        while not condition():
            assert self.process.poll() is None, f"waiting for {what}, the machine ended: {self.output}"
            assert time.monotonic() < until, f"waited {PATIENCE_S:g} s for {what}: {self.output}"
            time.sleep(POLL_S)

    @property
    def output(self) -> str:
        """What the user saw."""
        return (self.folder / "output").read_text(errors="replace")

    def announce(self, notice_s: float) -> float:
        """Announce the end so that exactly the notice is left; return the deadline (wall clock).

        The format has whole seconds, so the announcement waits for the moment from which the notice ends on one.
        """
        deadline = math.ceil(time.time() + notice_s)
        time.sleep(max(deadline - notice_s - time.time(), 0.0))
        told = self.metadata.announce(deadline - time.time() + 0.001)
        assert deadline == told
        return deadline

    def preemption_at(self, deadline: float) -> int:
        """Kill the machine at the deadline; return how `windfall exec` had ended by then (-9: it had not)."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(max(deadline - time.time(), 0.0))
        return self.vanish()

    def vanish(self) -> int:
        """Kill the machine now."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        code = self.process.wait()
        self.metadata.close()
        return code

    @property
    def spool(self) -> list[Row]:
        """The journal as this machine's disk has it; empty once `windfall exec` has tidied up."""
        files = sorted(item for item in living(self.folder / "state").items() if JOURNAL.fullmatch(item[0].name))
        lines = [line for _, text in files for line in text.decode().splitlines(keepends=True) if line.endswith("\n")]
        return [row_from_line(line[:-1]) for line in lines]


class Cloud:
    """The machines of one run, one after the other."""

    def __init__(self, folder: Path, work: Work) -> None:
        self.folder, self.work = folder, work
        self.run = folder / "run"
        self.machines: list[Machine] = []

    @contextlib.contextmanager
    def machine(self, work: Work | None = None) -> Iterator[Machine]:
        """Start the next machine; it is gone at the latest when the block ends."""
        machine = Machine(self.run, self.folder / f"machine-{len(self.machines) + 1}", work or self.work)
        self.machines.append(machine)
        try:
            yield machine
        finally:
            machine.vanish()

    def shipped(self) -> tuple[Row, ...]:
        """The journal as the store has it."""
        return object_stores.open_reader(f"file://{self.run}").run(read_journal()).rows

    def rows(self) -> list[Row]:
        """The journal of all machines: what the store has, and what vanished machines' disks have beyond it."""
        rows = {(row.term, row.sequence): row for machine in self.machines for row in machine.spool}
        rows |= {(row.term, row.sequence): row for row in self.shipped()}
        return [rows[key] for key in sorted(rows)]

    def differences(self) -> list[str]:
        """Where the journal fed back gives other decisions than were taken."""
        return [str(difference) for difference in replay(self.shipped())]


def facts(rows: list[Row], kind: type[F]) -> list[tuple[Row, F]]:
    """Return all facts of a kind, each with its row."""
    return [(row, fact) for row in rows for fact in row.facts if isinstance(fact, kind)]


def decisions(rows: list[Row], words: str) -> list[Decision]:
    """Return the decisions that begin so."""
    return [decision for row in rows for decision in row.decisions if decision.choice.startswith(words)]


def quoted(decision: Decision) -> dict[str, float]:
    """Return the numbers that a decision compared."""
    return {item.name: item.value for item in decision.rationale}


def p95(values: list[float]) -> float:
    """Return the smallest value that at least 95 % do not exceed."""
    return sorted(values)[math.ceil(0.95 * len(values)) - 1]
