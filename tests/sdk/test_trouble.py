"""Whatever happens to the agent, the disk or the session's folder, training goes on; helpers never touch the page."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.fake_agent import FakeAgent, finish, start, wait_for
from windfall.sdk.session import Session
from windfall.wire import environment, script_page

TRAIN = """
import sys
import windfall as wf
wf.context()
print("ready", flush=True)
for line in sys.stdin:
    if wf.step():
        wf.backup("model.pt")
        wf.report(loss=1.0)
        with wf.phase("evaluation"): pass
    print(wf.context().step, wf.context().messages_lost, flush=True)
"""


class Trainer:
    """A script that makes one step for each line it is sent."""

    def __init__(self, agent: FakeAgent, prefix: tuple[str, ...] = (), **variables: str) -> None:
        self.process = subprocess.Popen(
            [*prefix, sys.executable, "-c", TRAIN],
            env=os.environ | agent.environment() | variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n"

    def step(self) -> tuple[int, int]:
        """Make a step; return the count of steps and of lost messages."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        steps, lost = self.process.stdout.readline().split()
        return int(steps), int(lost)

    def end(self) -> None:
        self.process.communicate(timeout=60)
        assert self.process.returncode == 0


@pytest.mark.real
def test_a_dead_agents_request_is_answered_once(agent: FakeAgent) -> None:
    """A request whose agent never takes it back is answered once and then costs nothing but its comparison."""
    trainer = Trainer(agent)
    agent.request(2)
    assert [trainer.step() for _ in range(5)] == [(step, 0) for step in range(1, 6)]
    trainer.end()
    assert len(agent.backups()) == 1


@pytest.mark.real
def test_a_deleted_session_folder_never_breaks_training(agent: FakeAgent) -> None:
    """The page lives on in memory, messages are lost and counted."""
    trainer = Trainer(agent)
    words = agent.words()
    shutil.rmtree(agent.folder)
    script_page.publish(words, request=1, target=2, exact=False, kind=2)
    assert [trainer.step() for _ in range(3)] == [(1, 0), (2, 3), (3, 3)]
    trainer.end()
    assert not agent.folder.exists()


@pytest.mark.real
@pytest.mark.parametrize("folder", ["/nonexistent/folder", "/proc"])
def test_a_folder_that_cannot_be_used_never_breaks_training(agent: FakeAgent, folder: str) -> None:
    """Without a page the script runs as if nobody ever asked."""
    trainer = Trainer(agent, WINDFALL_SESSION=folder)
    assert [trainer.step() for _ in range(2)] == [(1, 0), (2, 0)]
    trainer.end()


def test_a_full_disk_loses_the_message_whole(
    session: Session, agent: FakeAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line that fits only in part is taken back, so that the next one is not glued to it."""
    write = os.write
    session.report(a=1)
    monkeypatch.setattr(os, "write", lambda fd, line: write(fd, line[:7]))
    session.backup("model.pt")
    monkeypatch.undo()
    session.report(a=2)
    assert session.context().messages_lost == 1
    assert [(message["seq"], message["metrics"]) for message in agent.messages()] == [(1, {"a": 1}), (2, {"a": 2})]


@pytest.mark.real
def test_a_disk_that_fills_up_never_breaks_training(agent: FakeAgent) -> None:
    """On a really full file system messages are lost, the page works on, and the process is not killed by SIGBUS."""
    mount = f"mount -t tmpfs -o size=16k none {agent.folder} && "
    if subprocess.run(["unshare", "-rm", "sh", "-c", mount + "true"], check=False, capture_output=True).returncode:
        pytest.skip("this machine does not let us mount a small file system")
    script = (
        "import os, windfall as wf\n"
        "folder = os.environ['WINDFALL_SESSION']\n"
        "if FIRST: wf.context()\n"
        "try:\n"
        "    with open(folder + '/filler', 'wb', buffering=0) as file:\n"
        "        while True: file.write(bytes(512))\n"
        "except OSError: pass\n"
        "for _ in range(100): wf.step()\n"
        "wf.backup('x' * 4000)\n"
        "wf.report(text='x' * 4000)\n"
        "print(wf.context().step, wf.context().messages_lost)\n"
    )
    for first, expected in (("True", "100 2\n"), ("False", "100 0\n")):
        inner = [
            "unshare",
            "-rm",
            "sh",
            "-c",
            mount + 'exec "$0" "$@"',
            sys.executable,
            "-c",
            f"FIRST = {first}\n{script}",
        ]
        assert finish(start(inner, agent.environment())) == expected


@pytest.mark.real
def test_a_forked_child_leaves_the_page_alone(agent: FakeAgent) -> None:
    """After a fork the child's calls go nowhere, and it still dies of SIGTERM as any child does."""
    script = (
        "import os, signal, windfall as wf\n"
        "step = wf.step\n"
        "step()\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    [step() for _ in range(10)]\n"
        "    wf.backup('child.pt'); wf.report(loss=1)\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "    os._exit(0)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))\n"
    )
    assert finish(agent.start(script)) == "-15\n"
    assert agent.words()[script_page.STEP] == 1
    assert agent.words()[script_page.SIGTERM_NS] == 0
    assert agent.messages() == []


@pytest.mark.real
def test_a_spawned_helper_leaves_the_page_alone(agent: FakeAgent) -> None:
    """A process that finds the page of its living parent does nothing."""
    script = (
        "import subprocess, sys, windfall as wf\n"
        "wf.step()\n"
        "helper = 'import windfall as wf; [wf.step() for _ in range(5)]; wf.backup(\"h.pt\"); print(wf.context().step)'\n"
        "print(subprocess.run([sys.executable, '-c', helper], capture_output=True, text=True).stdout, end='')\n"
    )
    assert finish(agent.start(script)) == "5\n"
    assert agent.words()[script_page.STEP] == 1
    assert agent.messages() == []


@pytest.mark.real
def test_a_page_left_by_a_dead_process_is_taken_over(agent: FakeAgent) -> None:
    """A launcher that restarts a rank inside the attempt finds the page of its predecessor and goes on with it."""
    script = "import windfall as wf\nwf.step(); wf.step()\nwf.report(loss=1)\nprint(wf.context().step)\n"
    assert finish(agent.start(script)) == "2\n"
    assert finish(agent.start(script)) == "2\n"
    assert [message["seq"] for message in agent.messages()] == [1, 2]
    assert agent.words()[script_page.MESSAGES] == 2


@pytest.mark.real
def test_sigterm_is_noted_and_nothing_else(agent: FakeAgent) -> None:
    """SIGTERM sets a word of the page; the script goes on until it is asked to save."""
    trainer = Trainer(agent)
    trainer.process.send_signal(signal.SIGTERM)
    wait_for(lambda: agent.words()[script_page.SIGTERM_NS], "the signal to be noted")
    assert trainer.step() == (1, 0)
    trainer.end()


def test_a_handler_of_the_users_own_stays(environ: dict[str, str]) -> None:
    """The SDK takes no handler away from the script."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        Session(environ)
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_page_of_another_version_is_left_alone(environ: dict[str, str], agent: FakeAgent) -> None:
    """What is not a page of this version is neither used nor changed."""
    path = Path(environ[environment.SESSION]) / script_page.page_name(0)
    path.write_bytes(b"something else")
    session = Session(environ)
    assert not session.step()
    assert path.read_bytes() == b"something else"
