"""Bags of short items on a live installation, and whoever kills its processes."""

from __future__ import annotations

import contextlib
import os
import random
import shlex
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tests.bags import short_item, witness
from tests.bags.witness import LogWatch, Plan
from tests.live.rig import OVER, Rig
from windfall.linux import processes

ORPHANS_S = 2.0
"""What ran below a process that was lost is gone after this time [s]."""
PROGRAMS = {
    "controller": "windfall.cli.controller_process",
    "machine": "windfall.providers.local.machine_init",
    "agent": "windfall.cli.node_agent_process",
    "runner's parent": "windfall.cli.item_process",
    "runner": "windfall.cli.item_process",
    "item": "train.py",
    "rank": "train.py",
}
KINDS = (*PROGRAMS, "notice", "no notice")
_LEAVES_S = 4.0
"""The notice of a machine that is taken back [s]."""


def bag_job(plan: Plan, notes: Path, name: str, *, machines: int, seconds: str, ranks: int) -> dict[str, Any]:
    """The job file of a bag of `short_item`."""
    run = f"exec {shlex.quote(sys.executable)} -I -S train.py {{{{x}}}} {{{{seed}}}} {seconds} {ranks}"
    bag: dict[str, Any] = {
        "parameters": {"x": list(plan.xs)},
        "seed": plan.seed,
        "finish": plan.finish,
        "retries": plan.retries,
        "results": {"printed": {"regex": "value = (.*)"}, "written": {"json": "out.json", "key": "value"}},
        "collect": ["out.json"],
    }
    if plan.at_once is not None:
        bag["at_once"] = plan.at_once
    return {
        "name": name,
        "num_nodes": machines,
        "resources": {"infra": "local"},
        "envs": {"NOTES": str(notes)},
        "run": run,
        "bag": bag,
    }


@dataclass(frozen=True)
class Found:
    """A process and when it started, which together no other process has."""

    pid: int
    started: int | None
    line: tuple[str, ...]

    @property
    def lives(self) -> bool:
        """Whether it has not ended."""
        return self.started is not None and processes.started_at(self.pid) == self.started


def find(mark: Path, kind: str) -> list[Found]:
    """The processes of one kind of an installation."""
    program = PROGRAMS[kind]
    found = [one for one in _all_of(mark) if any(word == program or word.endswith(f"/{program}") for word in one.line)]
    match kind:
        case "runner's parent":
            return [one for one in found if _words(one) == 1 and not _is_below_one_of(one, found)]
        case "runner":
            return [one for one in found if _words(one) == 2]
        case "item":
            return [one for one in found if "rank" not in one.line]
        case "rank":
            return [one for one in found if "rank" in one.line]
    return [one for one in found if not _is_below_one_of(one, found)]


def _words(one: Found) -> int:
    """How many arguments the program of a runner has: its parent has one, the runner two."""
    return len(one.line) - one.line.index("windfall.cli.item_process") - 1


def _is_below_one_of(one: Found, others: list[Found]) -> bool:
    with contextlib.suppress(OSError, IndexError):
        parent = int(Path(f"/proc/{one.pid}/stat").read_text().rpartition(")")[2].split()[1])
        return any(other.pid == parent for other in others)
    return False


def _all_of(mark: Path) -> list[Found]:
    sign, found = os.fsencode(str(mark)), []
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            line = Path(f"/proc/{name}/cmdline").read_bytes()
            if line and (sign in line or sign in Path(f"/proc/{name}/environ").read_bytes()):
                words = tuple(word.decode(errors="replace") for word in line.rstrip(b"\0").split(b"\0"))
                found.append(Found(int(name), processes.started_at(int(name)), words))
    return found


@dataclass
class Storm:
    """Kills at drawn moments, one after the other; what was killed, and how long what was below it lived on [s]."""

    rig: Rig
    job_id: str
    chance: random.Random
    watch: LogWatch
    kills: Counter[str] = field(default_factory=Counter)
    orphans_s: list[float] = field(default_factory=list)

    def is_over(self) -> bool:
        """Whether the job has ended, if anybody can say."""
        self.watch.look()
        told = self.rig.job(self.job_id)
        return told is not None and told["phase"] in OVER

    def pass_time(self, duration_s: float) -> None:
        """Wait, and look at the bag's log again and again."""
        until = time.monotonic() + duration_s
        while time.monotonic() < until and not self.is_over():
            time.sleep(0.1)

    def strike(self, kind: str) -> None:
        """Kill one process of a kind, or take a machine, as soon as there is one; nothing if the job ends before."""
        done = False

        def struck() -> bool:
            nonlocal done
            done = self._take(kind) if kind in ("notice", "no notice") else self._kill(kind)
            return done or self.is_over()

        self.rig.until(struck, f"there is a {kind} to strike")
        if done:
            self.kills[kind] += 1
            self.rig.killed.append(kind)
        if kind == "controller" and done:
            self.rig.say("ps")  # the next command starts another

    def _kill(self, kind: str) -> bool:
        there = find(self.rig.folder, kind)
        if not there:
            return False
        victim = self.chance.choice(there)
        below = [] if kind == "controller" else processes.descendants(victim.pid)
        left = [Found(pid, processes.started_at(pid), ()) for pid in below]
        if not victim.lives:
            return False
        with contextlib.suppress(ProcessLookupError):
            os.kill(victim.pid, signal.SIGKILL)
        self._gone([victim, *left], f"the {kind} {victim.pid} was killed")
        return True

    def _take(self, kind: str) -> bool:
        stays = [stay for stay in self.rig.stays(self.job_id) if stay.started and not stay.ended and not stay.told]
        if not stays:
            return False
        stay = self.chance.choice(stays)
        if kind == "notice":
            self.rig.take(stay.machine_id, _LEAVES_S)
            return True
        there = [one for one in find(self.rig.folder, "machine") if any(stay.machine_id in word for word in one.line)]
        below = [pid for one in there for pid in processes.descendants(one.pid)]
        left = [Found(pid, processes.started_at(pid), ()) for pid in below]
        self.rig.take(stay.machine_id, None)
        self.rig.until(lambda: self._has_ended(stay.machine_id), f"the market has taken {stay.machine_id}")
        self._gone(left, f"{stay.machine_id} was taken without notice")
        return True

    def _has_ended(self, machine_id: str) -> bool:
        return any(stay.machine_id == machine_id and stay.ended for stay in self.rig.stays(self.job_id))

    def _gone(self, those: list[Found], what: str) -> None:
        since = time.monotonic()
        while alive := [one for one in those if one.lives]:
            lasted_s = time.monotonic() - since
            assert lasted_s < ORPHANS_S, f"{lasted_s:.1f} s after {what} there live: {[_line(one) for one in alive]}"
            time.sleep(0.01)
        self.orphans_s.append(time.monotonic() - since)


def _line(one: Found) -> str:
    with contextlib.suppress(OSError):
        return f"{one.pid} {Path(f'/proc/{one.pid}/cmdline').read_bytes().replace(bytes(1), b' ').decode()}"
    return str(one.pid)


def submit(rig: Rig, job: Mapping[str, Any]) -> str:
    """Submit a bag of `short_item`."""
    return rig.submit(dict(job), Path(short_item.__file__))


def write(work: Path, job: Mapping[str, Any]) -> Path:
    """Write the job file of a bag of `short_item` and its code into a new folder; return the file."""
    work.mkdir()
    shutil.copy(short_item.__file__, work / "train.py")
    file = work / "job.yaml"
    file.write_text(yaml.safe_dump({**job, "workdir": str(work)}))
    return file


def check(rig: Rig, job_id: str, plan: Plan, told: Mapping[str, Any], notes: Path, watch: LogWatch) -> witness.Account:
    """All promises about results; the bill and the processes are `Rig.check`'s."""
    account = witness.add_up(watch.records(), plan)
    tries = witness.tries_of(notes)
    witness.check_results(run_folder(rig, job_id), plan, account, tries)
    witness.check_share(plan, account, tries, told["details"]["step"])
    witness.check_crowd(plan, tries)
    return account


def run_folder(rig: Rig, job_id: str) -> Path:
    """Where the store of a bag is."""
    return rig.state / "runs" / job_id
