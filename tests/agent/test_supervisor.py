"""The supervisor: keeps exit statuses, restarts the agent, and takes every descendant with it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.processes import alive
from windfall.linux import processes

FAKE_AGENT = """
import json, os, socket, sys
session, fd = sys.argv[1:3]
channel = socket.socket(fileno=int(fd))
lines = channel.makefile("rb")
def send(**message):
    channel.sendall(json.dumps(message).encode() + b"\\n")
with open(session + "/heard", "a") as heard:
    for line in lines:
        message = json.loads(line)
        heard.write(json.dumps({"agent": os.getpid(), **message}) + "\\n")
        heard.flush()
        script = open(session + "/plan").read()
        exec(script)
"""

DRIVER = """
import sys
from windfall.agent.supervisor import Supervisor
session, isolation, agent = sys.argv[1:4]
sys.exit(Supervisor(session, isolation, (sys.executable, agent)).run())
"""

SPREAD = """
import os, subprocess, sys, time
from pathlib import Path
here = Path(sys.argv[1])
# A grandchild in a session of its own, as torchrun gives each rank one.
child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
(here / "ready.new").write_text("")
(here / "ready.new").rename(here / "ready")
time.sleep(1000)
"""


def wait_for(condition: Callable[[], object], limit_s: float = 20.0) -> None:
    """Poll until the condition holds, or fail."""
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end, "the condition did not come true in time"
        time.sleep(0.01)


def wakings(pid: int) -> int:
    """How often a process has gone to sleep, and so been woken."""
    words = Path(f"/proc/{pid}/status").read_text().split()
    return int(words[words.index("voluntary_ctxt_switches:") + 1])


class Rig:
    """A supervisor with a fake agent whose reactions are the lines of `plan`."""

    def __init__(self, folder: Path, isolation: str, plan: str, err: int = subprocess.PIPE) -> None:
        self.folder = folder
        (folder / "plan").write_text(plan)
        (folder / "agent.py").write_text(FAKE_AGENT)
        (folder / "driver.py").write_text(DRIVER)
        (folder / "spread.py").write_text(SPREAD)
        command = [sys.executable, str(folder / "driver.py"), str(folder), isolation, str(folder / "agent.py")]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=err, text=True)

    def heard(self, it: str) -> list[dict[str, object]]:
        """What the agents were told, of one kind."""
        path = self.folder / "heard"
        lines = path.read_text().splitlines() if path.exists() else []
        return [message for message in map(json.loads, lines) if message["type"] == it]

    def descendants(self) -> set[int]:
        """Every process below the supervisor."""
        found, frontier = set(), [self.process.pid]
        while frontier:
            children = processes.children_of(frontier.pop())
            found.update(children)
            frontier.extend(children)
        return found


@pytest.fixture(params=["namespace", "subreaper"])
def rig(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[str], Rig]]:
    """A maker of rigs, under both ways to isolate."""
    made: list[Rig] = []

    def make(plan: str) -> Rig:
        made.append(Rig(tmp_path, request.param, plan))
        return made[-1]

    yield make
    for each in made:
        each.process.kill()
        each.process.communicate()


def start(script: str) -> str:
    """A plan: start this command at the first hello, exit with its status."""
    return f"""
if message["type"] == "hello" and message["attempt"] == 0:
    send(type="start", attempt=1, argv={script}, cwd=session, env=dict(os.environ))
if message["type"] == "exited":
    send(type="exit", code=message["status"])
"""


def test_the_exit_status_of_the_script_becomes_that_of_exec(rig: Callable[[str], Rig]) -> None:
    """A script's own exit code comes out at the end, and its output goes through."""
    process = rig(start('["sh", "-c", "echo out; echo err >&2; exit 41"]')).process
    out, err = process.communicate(timeout=20)
    assert (process.returncode, out, err) == (41, "out\n", "err\n")


def test_a_script_killed_by_a_signal_shows_as_in_a_shell(rig: Callable[[str], Rig]) -> None:
    """Signal n is status 128 + n."""
    process = rig(start('["sh", "-c", "kill -SEGV $$"]')).process
    process.communicate(timeout=20)
    assert process.returncode == 128 + signal.SIGSEGV


def test_a_command_that_does_not_exist_is_one_sentence(rig: Callable[[str], Rig]) -> None:
    """A missing command is told by name and ends with 127."""
    process = rig(start('["no-such-command-anywhere"]')).process
    _, err = process.communicate(timeout=20)
    assert process.returncode == 127, err
    assert "no-such-command-anywhere: no such command" in err
    assert "Traceback" not in err


def test_killing_the_supervisor_kills_every_descendant_in_any_session(rig: Callable[[str], Rig]) -> None:
    """Nothing of a machine that is gone lives on, whatever session it put itself into."""
    this = rig(start("[sys.executable, session + '/spread.py', session]"))
    wait_for((this.folder / "ready").exists)
    below = this.descendants()
    names = {Path(f"/proc/{pid}/cmdline").read_text().split("\0")[0] for pid in below}
    assert "sleep" in names
    this.process.kill()
    this.process.wait()
    wait_for(lambda: not any(map(alive, below)))


def test_the_end_of_the_script_ends_what_it_left_behind(rig: Callable[[str], Rig]) -> None:
    """A daemon that the script leaves behind does not outlive the attempt."""
    this = rig(start('["sh", "-c", "setsid sleep 1000 & sleep 0.1; exit 0"]'))
    this.process.communicate(timeout=20)
    assert this.process.returncode == 0
    assert not this.descendants()


def test_a_dead_agent_is_started_again_and_learns_the_status(rig: Callable[[str], Rig]) -> None:
    """The exit status survives the agent that should have heard it."""
    this = rig(
        """
if message["type"] == "hello" and message["attempt"] == 0:
    send(type="start", attempt=1, argv=["sh", "-c", "sleep 0.3; exit 7"], cwd=session, env=dict(os.environ))
    os.kill(os.getpid(), 9)
if message["type"] == "hello" and message["attempt"] == 1 and message["status"] is not None:
    send(type="exit", code=message["status"])
if message["type"] == "exited":
    os.kill(os.getpid(), 9)
"""
    )
    this.process.communicate(timeout=30)
    assert this.process.returncode == 7
    assert len({message["agent"] for message in this.heard("hello")}) >= 2


def test_killing_the_guard_ends_the_script_and_is_told(rig: Callable[[str], Rig]) -> None:
    """If somebody kills the process between supervisor and script, the script ends too and counts as killed."""
    this = rig(start("[sys.executable, session + '/spread.py', session]"))
    wait_for((this.folder / "ready").exists)
    below = this.descendants()
    agents = {message["agent"] for message in this.heard("hello")}
    guard = next(pid for pid in processes.children_of(this.process.pid) if pid not in agents)
    os.kill(guard, signal.SIGKILL)
    this.process.communicate(timeout=20)
    assert this.process.returncode == 128 + signal.SIGKILL
    wait_for(lambda: not any(map(alive, below - {guard})))


def test_a_message_never_joins_a_line_that_the_script_has_not_ended(rig: Callable[[str], Rig]) -> None:
    """A message that comes between a line's text and its end has a line of its own, in the output and in the log."""
    this = rig(
        start('["sh", "-c", "printf \'step 17\' >&2; sleep 1000"]')
        + """
if message["type"] == "signal":
    send(type="log", text="saving")
    send(type="kill")
"""
    )
    log = this.folder / "output.log"
    wait_for(lambda: log.exists() and log.read_bytes().endswith(b"step 17"))
    this.process.send_signal(signal.SIGUSR1)
    _, err = this.process.communicate(timeout=20)
    assert err == "step 17\nwindfall: saving\n"
    assert log.read_text() == err


def test_a_message_ends_a_line_of_the_other_stream_where_both_are_one(tmp_path: Path) -> None:
    """On a terminal, a message also stays apart from a line that the script writes to its standard output."""
    plan = (
        start('["sh", "-c", "printf \'step 17\'; sleep 1000"]')
        + """
if message["type"] == "signal":
    send(type="log", text="saving")
    send(type="kill")
"""
    )
    this = Rig(tmp_path, "subreaper", plan, subprocess.STDOUT)
    log = tmp_path / "output.log"
    wait_for(lambda: log.exists() and log.read_bytes().endswith(b"step 17"))
    this.process.send_signal(signal.SIGUSR1)
    out, _ = this.process.communicate(timeout=20)
    assert out == "step 17\nwindfall: saving\n"


def test_signals_reach_the_agent_as_messages_and_kill_nobody(rig: Callable[[str], Rig]) -> None:
    """SIGTERM to the supervisor is a message, not an end; the script does not see it."""
    this = rig(
        start("[sys.executable, session + '/spread.py', session]")
        + """
if message["type"] == "signal":
    send(type="kill")
"""
    )
    wait_for((this.folder / "ready").exists)
    this.process.send_signal(signal.SIGTERM)
    this.process.communicate(timeout=20)
    assert [message["number"] for message in this.heard("signal")] == [signal.SIGTERM]
    assert this.process.returncode == 128 + signal.SIGKILL


def test_the_supervisor_sleeps_while_the_script_runs(rig: Callable[[str], Rig]) -> None:
    """It looks for nothing again and again: whatever happens wakes it."""
    this = rig(start("[sys.executable, session + '/spread.py', session]"))
    wait_for((this.folder / "ready").exists)
    at_rest = [wakings(this.process.pid)]
    while len(at_rest) < 3 or at_rest[-1] != at_rest[-3]:  # the start of the script has something to tell
        assert len(at_rest) < 20, f"it woke up each time it was looked at: {at_rest}"
        time.sleep(0.5)
        at_rest.append(wakings(this.process.pid))


@pytest.mark.slow
def test_death_of_the_script_is_told_within_20_ms(rig: Callable[[str], Rig]) -> None:
    """The agent hears of a death at once (best of five: the machine may be busy)."""
    delays = []
    for _ in range(5):
        this = rig(
            """
if message["type"] == "exited":
    import time
    open(session + "/at", "w").write(str(time.monotonic_ns()))
"""
            + start("[sys.executable, '-c', 'import os, time; print(time.monotonic_ns(), flush=True); os._exit(3)']")
        )
        out, _ = this.process.communicate(timeout=20)
        delays.append(int((this.folder / "at").read_text()) - int(out))
        (this.folder / "heard").unlink()
    assert min(delays) < 20_000_000
