"""Machines that are started, watched and taken away: each is a real `windfall exec` in an empty folder of its own."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.real import training_plain
from tests.support.processes import alive
from windfall.core.replay import replay
from windfall.events import Row
from windfall.linux import processes
from windfall.storage import object_stores, restore, run_log, spool_journal
from windfall.terms import Outcome, Record, RecordKind, RunState

WINDFALL = (sys.executable, "-m", "windfall.cli.main")
PLAIN = Path(training_plain.__file__)
PATIENCE_S = 60.0
QUICK = ("--provider", "local", "--policy", "every 10 steps", "--lease", "2s", "--grace", "10s")

# An agent that was killed at its failpoint once is started again without it.
ONCE = """
import os, sys
if "windfall.cli.agent_process" in sys.orig_argv:
    try:
        os.close(os.open(os.environ["DIED_ONCE"], os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        os.environ.pop("WINDFALL_FAILPOINT", None)
        open(os.environ["DIED_ONCE"] + ".heir", "w").close()
"""


def wait_for(condition: Callable[[], object], what: str, limit_s: float = PATIENCE_S) -> None:
    """Poll until a condition holds, or fail."""
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end, f"not within {limit_s} s: {what}"
        time.sleep(0.005)


def environment_of_a_machine() -> dict[str, str]:
    """This process's environment without what a run, a launcher or a cloud left in it."""
    foreign = ("WINDFALL_", "AWS_", "WANDB_", "RANK", "LOCAL_WORLD_SIZE", "OMPI_", "PMI_")
    return {name: value for name, value in os.environ.items() if not name.startswith(foreign)}


def with_path(folder: Path) -> str:
    """PYTHONPATH with a folder in front."""
    return os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))


def die_once(folder: Path, failpoint: str) -> dict[str, object]:
    """Variables with which the first agent of a machine dies at a failpoint, and its heir does not (see `had_heir`)."""
    (folder / "once").mkdir()
    (folder / "once" / "sitecustomize.py").write_text(ONCE)
    place = with_path(folder / "once")
    return {"PYTHONPATH": place, "DIED_ONCE": folder / "died", "WINDFALL_FAILPOINT": failpoint}


def had_heir(folder: Path) -> bool:
    """Whether the agent that `die_once` is about really died."""
    return (folder / "died.heir").exists()


@dataclass
class Machine:
    """One `windfall exec`; `folder` is all the disk it has."""

    folder: Path
    process: subprocess.Popen[bytes]
    started: float = field(default_factory=time.monotonic)

    @property
    def printed(self) -> str:
        return self.folder.with_name(f"{self.folder.name}-printed").read_text(errors="replace")

    def until(self, text: str, limit_s: float = PATIENCE_S) -> None:
        """Wait until it has printed something."""
        wait_for(lambda: text in self.printed or self.ended, f"{text!r}", limit_s)
        assert text in self.printed, f"it ended without saying {text!r}:\n{self.printed}"

    def until_step(self, step: int) -> None:
        """Wait until the script has finished a step (or a later one)."""
        wait_for(lambda: self.ended or self.step() >= step, f"step {step} in:\n{self.printed[-2000:]}")
        assert self.step() >= step, f"it ended before step {step}:\n{self.printed}"

    def step(self) -> int:
        words = [line.split() for line in self.printed.splitlines() if line.startswith("step ")]
        return max((int(line[1]) for line in words if len(line) > 1 and line[1].isdigit()), default=0)

    def until_held(self) -> None:
        """Wait until the script stands still at the moment it was told to hold."""
        wait_for(lambda: (self.folder / "held").exists() or self.ended, f"a held moment:\n{self.printed[-2000:]}")
        assert not self.ended, f"it ended before the moment came:\n{self.printed}"

    def let_go(self) -> None:
        """Let the script go on."""
        (self.folder / "held").unlink()

    @property
    def ended(self) -> bool:
        return self.process.poll() is not None

    def code(self, limit_s: float = PATIENCE_S) -> int:
        """Wait for its end; return the exit code as a shell shows it."""
        try:
            code = self.process.wait(limit_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it does not end:\n{self.printed}") from None
        return code if code >= 0 else 128 - code

    def starts(self) -> list[tuple[int, int]]:
        """(attempt, first step) of each start of the script on this machine."""
        path = self.folder / "starts"
        lines = path.read_text().splitlines() if path.exists() else []
        return [(int(line.split()[0]), int(line.split()[1])) for line in lines]

    # ------------------------------------------------------------------------------------------------- its processes

    @property
    def supervisor(self) -> int:
        return self.process.pid

    def agent(self) -> int | None:
        """The agent's PID, None while there is none."""
        return next(
            (pid for pid in processes.children_of(self.supervisor) if "windfall.cli.agent_process" in _command(pid)),
            None,
        )

    def guard(self) -> int | None:
        """The guard's PID: a fork of the supervisor."""
        mine = processes.children_of(self.supervisor)
        return next((pid for pid in mine if "windfall.agent.supervisor" in _command(pid)), None)

    def script(self) -> int | None:
        """The PID of the script's first process."""
        guard = self.guard()
        below = descendants(guard) if guard is not None else set[int]()
        own = sorted(pid for pid in below if "windfall.agent.supervisor" not in _command(pid))
        return own[0] if own else None

    def kill(self, pid: int | None) -> bool:
        """SIGKILL a process; False if it was not there (any more)."""
        if pid is None:
            return False
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            return True
        return False

    def until_agent_dies(self, unless: Callable[[], bool] = lambda: False) -> bool:
        """Wait until an agent that was told to kill itself has done so; the supervisor would start another.

        Args:
            unless: stop waiting when this holds.

        Returns:
            Whether it died.
        """
        known: set[int] = set()

        def gone() -> bool:
            agent = self.agent()
            known.update({agent} - {None})  # type: ignore[arg-type]
            return len(known) > 1 or (bool(known) and agent is None)

        wait_for(lambda: gone() or unless() or self.ended, f"the agent dies:\n{self.printed[-2000:]}")
        return gone()

    def vanish(self) -> None:
        """Take the machine away: kill the supervisor, see everything below it die."""
        below = descendants(self.supervisor)
        self.process.kill()
        self.process.wait()
        wait_for(lambda: not any(alive(pid) for pid in below), "every descendant is dead")

    def finish(self) -> None:
        """Leave nothing behind."""
        if not self.ended:
            self.vanish()


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def descendants(of_pid: int) -> set[int]:
    """Every process below another, whatever session or namespace it is in."""
    found: set[int] = set()
    frontier = [of_pid]
    while frontier:
        children = processes.children_of(frontier.pop())
        found |= set(children)
        frontier += children
    return found


def marked(name: str, value: str) -> set[int]:
    """Every living process of this computer that has a variable in its environment."""
    needle = f"{name}={value}".encode()
    found = set()
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        with contextlib.suppress(OSError):
            if needle in Path(f"/proc/{entry}/environ").read_bytes().split(b"\0") and alive(int(entry)):
                found.add(int(entry))
    return found


class Run:
    """A run, and the machines that hold it one after the other."""

    def __init__(self, folder: Path, steps: int = 60) -> None:
        self.folder = folder
        self.place = folder / "run"
        self.url = f"file://{self.place}"
        self.steps = steps
        self.machines: list[Machine] = []

    @contextlib.contextmanager
    def machine(
        self,
        *command: str,
        options: Sequence[str] = QUICK,
        prefix: Sequence[str] = (),
        code: Sequence[Path] = (),
        bare: bool = False,
        **environment: object,
    ) -> Iterator[Machine]:
        """Start the line of every machine in an empty folder; whatever is left of it at the end is killed.

        Args:
            command: after `--`; the plain training if not given.
            options: of `windfall exec`.
            prefix: a command that starts it.
            code: files that are copied into the folder first.
            bare: give the URL alone.
            environment: more variables.
        """
        here = self.folder / f"machine-{len(self.machines) + 1}"
        here.mkdir(parents=True)
        for file in code:
            (here / file.name).write_bytes(file.read_bytes())
        line = [*prefix, *WINDFALL, "exec", *options, self.url]
        if not bare:
            line += ["--", *(command or (sys.executable, str(PLAIN)))]
        variables = {
            "XDG_STATE_HOME": str(here.parent / f"{here.name}-state"),
            "STEPS": self.steps,
            "HELD": here / "held",
            "STARTS": here / "starts",
            **environment,
        }
        with here.with_name(f"{here.name}-printed").open("wb") as out:
            process = subprocess.Popen(
                line,
                cwd=here,
                env=environment_of_a_machine() | {name: str(value) for name, value in variables.items()},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        made = Machine(here, process)
        self.machines.append(made)
        try:
            yield made
        finally:
            made.finish()

    def say(self, *arguments: str, limit_s: float = PATIENCE_S) -> subprocess.CompletedProcess[str]:
        """Run another verb."""
        environment = environment_of_a_machine()
        return subprocess.run(
            [*WINDFALL, *arguments], capture_output=True, text=True, timeout=limit_s, env=environment, check=False
        )

    def inject(self, notice: str) -> None:
        done = self.say("inject", self.url, "--notice", notice)
        assert done.returncode == 0, done.stderr

    # ------------------------------------------------------------------------------------------------- what is stored

    def records(self) -> list[Record]:
        """The whole log."""
        reader = object_stores.open_reader(self.url)
        found = []
        while (record := reader.run(run_log.read_record(len(found) + 1))) is not None:
            found.append(record)
        return found

    def state(self) -> RunState:
        return self.records()[-1].state

    def rows(self) -> tuple[Row, ...]:
        return object_stores.open_reader(self.url).run(spool_journal.read_journal()).rows

    def committed_step(self) -> int:
        """The step of the newest point; 0 without one."""
        records = self.records()
        return max((checkpoint.step for checkpoint in records[-1].state.checkpoints), default=0) if records else 0

    def newest(self, rank: int = 0) -> bytes:
        """The bytes of the newest checkpoint's part, each checked."""
        reader, checkpoint = object_stores.open_reader(self.url), self.state().checkpoints[-1]
        place = Path(tempfile.mkdtemp(dir=self.folder))
        found = reader.run(restore.restore((checkpoint,), str(place)))
        assert found.checkpoint is not None
        (file,) = (place / str(rank)).iterdir()
        return file.read_bytes()

    def check(self) -> None:
        """Every promise that holds at any time: nothing twice, nothing forgotten, the same decisions again."""
        records = self.records()
        assert [record.number for record in records] == list(range(1, len(records) + 1))
        for before, after in itertools.pairwise(records):
            if after.kind is RecordKind.COMMIT:
                (new,) = set(after.state.checkpoints) - set(before.state.checkpoints)
                assert all(new.step >= checkpoint.step for checkpoint in before.state.checkpoints)
        names = [checkpoint.checkpoint_id for checkpoint in records[-1].state.checkpoints]
        assert len(names) == len(set(names))
        differences = replay(self.rows())
        assert not differences, "\n".join(map(str, differences))

    def check_done(self, outcome: Outcome = Outcome.DONE) -> None:
        """The run has ended, and nobody could tell from its result that it was disturbed."""
        self.check()
        assert self.state().outcome is outcome
        assert self.newest() == training_plain.undisturbed(self.steps)
