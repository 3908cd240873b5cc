"""Twenty trainings on a real Slurm whose controller, daemons and machines are killed: one machine at a time, nothing lost."""

from __future__ import annotations

import itertools
import json
import os
import random
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest

from tests.slurm import noted_steps
from tests.slurm.cluster import CONTROLLER, SlurmCluster
from tests.slurm.conftest import StartSlurm
from tests.slurm.samplers import Seen, machines, remains, watched
from tests.slurm.trainings import Training, bill, records, training
from windfall.terms import RecordKind

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.timeout(240)]
STEPS, STEP_S = 160, 0.07
SEEDS = range(20)
CLOCKS_S = 0.2
"""How far apart the notes of two machines may be written that were one after the other."""


@dataclass
class Note:
    """A step that a machine took."""

    at: float
    job: str
    pid: str
    step: int
    loss: str


def notes_of(path: Path) -> list[Note]:
    """All steps taken, in the order of the notes; the last note of a machine that was killed may be cut off."""
    words = (line.split() for line in path.read_text().splitlines())
    return [Note(float(at), job, pid, int(step), loss) for at, job, pid, step, loss in words]


@dataclass
class Storm:
    """Faults at drawn moments, what is still to be undone, and what was done."""

    cluster: SlurmCluster
    run: Training
    chance: random.Random
    done: list[str] = field(default_factory=list)
    later: list[tuple[float, Callable[[], None]]] = field(default_factory=list)

    def pass_time(self, duration_s: float) -> None:
        """Wait, and undo what is due."""
        until = time.monotonic() + duration_s
        while (now := time.monotonic()) < until:
            for due in [one for one in self.later if one[0] <= now]:
                self.later.remove(due)
                due[1]()
            time.sleep(0.05)

    def settle(self, limit_s: float) -> None:
        """Wait for the training's end, and undo what is due."""
        until = time.monotonic() + limit_s
        while self.run.process.poll() is None or self.later:
            assert time.monotonic() < until, f"it does not end; {self.done}\n{self.run.printed}"
            self.pass_time(0.1)

    def strike(self, kind: str) -> None:
        """Do one fault as soon as there is something to strike, unless the training has ended."""
        while self.run.process.poll() is None:
            if (told := FAULTS[kind](self)) is not None:
                self.done.append(f"{time.time():.1f} {told}")
                return
            self.pass_time(0.1)

    def after(self, least_s: float, most_s: float, action: Callable[[], None]) -> str:
        """Do something later; say when."""
        delay_s = self.chance.uniform(least_s, most_s)
        self.later.append((time.monotonic() + delay_s, action))
        return f"{delay_s:.1f} s"

    def kill(self, word: str) -> str | None:
        """Kill -9 the newest process whose command line has a word."""
        found = [pid for pid, line in self.cluster.processes().items() if word in line]
        for pid in found[-1:]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                return f"killed {word} {pid}"
        return None


def kill_controller(storm: Storm) -> str | None:
    """Windfall's own; `windfall run` starts another."""
    return storm.kill("windfall.cli.controller_process")


def kill_agent(storm: Storm) -> str | None:
    """A machine's node agent."""
    return storm.kill("windfall.cli.node_agent_process")


def kill_keeper(storm: Storm) -> str | None:
    """A machine's outermost process."""
    for job, pid in sorted(machines(storm.cluster)):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            return f"killed the keeper {pid} of job {job}"
    return None


def kill_slurmctld(storm: Storm) -> str | None:
    """Slurm's controller, started again seconds later."""
    if not running(storm.cluster, CONTROLLER):
        return None
    storm.cluster.kill(CONTROLLER)
    return f"killed slurmctld, back in {storm.after(1.0, 4.0, lambda: storm.cluster.start(CONTROLLER))}"


def stop_slurmctld(storm: Storm) -> str | None:
    """Slurm's controller answers nothing for several seconds."""
    if not running(storm.cluster, CONTROLLER):
        return None
    storm.cluster.stop()
    return f"stopped slurmctld for {storm.after(3.0, 8.0, storm.cluster.resume)}"


def kill_slurmd(storm: Storm) -> str | None:
    """The daemon of a machine's node, started again later; an admin may give the node up while the machine works on."""
    for _, pid in sorted(machines(storm.cluster)):
        with suppress(OSError):
            environ = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            node = next(one for one in environ if one.startswith(b"SLURMD_NODENAME=")).partition(b"=")[2].decode()
            if running(storm.cluster, node):
                storm.cluster.kill(node)
                told = f"killed slurmd {node}, back in {storm.after(3.0, 16.0, partial(storm.cluster.start, node))}"
                if storm.chance.random() < 0.5:
                    down = storm.cluster.call("scontrol", "update", f"nodename={node}", "state=down", "reason=lost")
                    told += " and given up" if down.returncode == 0 else ""
                return told
    return None


FAULTS: dict[str, Callable[[Storm], str | None]] = {
    "controller": kill_controller,
    "slurmctld": kill_slurmctld,
    "slurmctld stopped": stop_slurmctld,
    "slurmd": kill_slurmd,
    "keeper": kill_keeper,
    "agent": kill_agent,
}
FALSE_DEATHS = frozenset({"slurmctld", "slurmd"})
"""After these Slurm calls machines gone that may still work for a while."""


def running(cluster: SlurmCluster, daemon: str) -> bool:
    """Whether a daemon runs and is not stopped."""
    with suppress(OSError):
        return Path(f"/proc/{cluster.pid(daemon)}/stat").read_text().rpartition(")")[2].split()[0] not in "TZ"
    return False


def committed(lab: Path) -> Iterator[tuple[int, int]]:
    """Term and step of each checkpoint, in the order in which the run's log has them."""
    newest = 0
    for record in records(lab):
        if record.kind is RecordKind.COMMIT and record.state.checkpoints:
            newest = record.state.checkpoints[-1].step
            yield record.state.term, newest


def overlap_s(notes: list[Note]) -> float:
    """For how long at most two machines took steps at once."""
    first: dict[str, float] = {}
    last: dict[str, float] = {}
    for note in notes:
        first.setdefault(note.pid, note.at)
        last[note.pid] = note.at
    order = sorted(first, key=first.__getitem__)
    return max((last[a] - first[b] for a, b in itertools.pairwise(order)), default=0.0)


def check_one_at_a_time(seen: Seen, notes: list[Note], kinds: set[str]) -> None:
    """At no moment did two machines work, by Slurm's listing, by the host's processes, and by the steps."""
    assert seen.crowds() == []
    if not kinds & FALSE_DEATHS:
        assert overlap_s(notes) < CLOCKS_S
        assert seen.together_s() < CLOCKS_S


def check_nothing_lost(lab: Path, notes: list[Note]) -> None:
    """Each step has the loss of an undisturbed run, each commit is newer than the one before, and the last is the end."""
    expected = noted_steps.undisturbed(STEPS)
    assert {note.step for note in notes} == set(expected)
    assert [note for note in notes if note.loss != expected[note.step]] == []
    commits = [*committed(lab)]
    assert commits == sorted(set(commits)), "a machine that was replaced has committed"
    steps = [step for _, step in commits]
    assert steps == sorted(set(steps)), "a step was committed twice"
    assert steps[-1] == STEPS


def check_bill(cluster: SlurmCluster, told: list[dict[str, float | str]], seen: Seen) -> None:
    """Every machine has ended, and was billed for the time that Slurm has of it, if Slurm has not forgotten its start."""
    for one in told:
        assert one["ended"] is not None, one
        job = str(one["machine_id"]).removeprefix("slurm-")
        shown = cluster.call("env", "SLURM_TIME_FORMAT=%s", "scontrol", "--oneliner", "show", "job", job).stdout
        words = dict(word.partition("=")[::2] for word in shown.split())
        if job in seen.second_starts() or "JobName=" not in shown or one["started"] is None:
            continue
        assert abs(float(one["started"]) - float(words["StartTime"])) <= 1.0, (one, shown)
        assert abs(float(one["ended"]) - float(words["EndTime"])) <= 1.0, (one, shown)


@pytest.mark.parametrize("seed", SEEDS)
def test_kills_on_slurm_lose_nothing(seed: int, start_slurm: StartSlurm, tmp_path: Path) -> None:
    """Two or three kills by seed: at most one machine works, each step is done once, and nothing is left in the queue."""
    cluster, chance = start_slurm(node_timeout_s=4), random.Random(f"slurm kills {seed}")
    kinds = chance.sample(sorted(FAULTS), chance.choice((2, 3)))
    work = tmp_path / "work"
    work.mkdir()
    shutil.copy(noted_steps.__file__, work)
    notes = tmp_path / "notes"
    job = {
        "name": f"kills-{seed}",
        "workdir": str(work),
        "resources": {"infra": "slurm/low"},
        "envs": {"STEPS": str(STEPS), "STEP_S": str(STEP_S), "NOTES": str(notes)},
        "checkpoint": {"insure": "20 steps"},
        "run": f"{shlex.quote(sys.executable)} noted_steps.py",
        "work": {"steps": STEPS},
    }
    began = time.monotonic()

    with watched(cluster) as seen, training(cluster, tmp_path, job) as run:
        cluster.until(lambda: machines(cluster) or run.process.poll() is not None, "a machine starts", 60.0)
        storm = Storm(cluster, run, chance)
        for kind in kinds:
            storm.pass_time(chance.uniform(0.0, 6.0))
            storm.strike(kind)
        storm.settle(150.0)
        assert run.process.poll() == 0, run.printed
        cluster.until(lambda: cluster.run("squeue", "--noheader") == "", "the queue is empty", 40.0)
        cluster.until(lambda: not remains(cluster), f"nothing lives: {remains(cluster)}", 40.0)
        told = bill(run)

    taken = notes_of(notes)
    print(
        f"seed {seed}: {'; '.join(storm.done)}; {len(told)} machines, {time.monotonic() - began:.0f} s; started twice: "
        f"{sorted(seen.second_starts())}; {seen.together_s():.1f} s with two alive, {max(overlap_s(taken), 0.0):.1f} s with "
        f"two at work; {json.dumps([one['outcome'] for one in told])}"
    )
    check_one_at_a_time(seen, taken, set(kinds))
    check_nothing_lost(tmp_path, taken)
    check_bill(cluster, told, seen)
