"""A machine of a parameter server before it trains: what it lacks is said in a sentence, and how Ray knows it."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from windfall.agent import exec_request
from windfall.agent.exec_request import ExecRequest
from windfall.cli import tier_process
from windfall.errors import EXIT_FAILED, EXIT_MISUSE, EXIT_RETRY
from windfall.extras import install
from windfall.runtimes.tier_log import TierLog
from windfall.storage.object_stores import open_store
from windfall.terms import RunOptions
from windfall.wire.environment import PEERS_TOKEN
from windfall.wire.ray_environment import ray_environment

pytest.importorskip("ray", reason="Ray is not installed: pip install 'windfall[paramserver]'")
SECRET = "hunter2-of-the-generation"


class Machine:
    """Starts a machine's program in this process.

    Attributes:
        folder: of the user's code.
    """

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self._monkeypatch = folder, monkeypatch
        # A program finds the user's modules by it.
        monkeypatch.setattr(sys, "path", list(sys.path))
        monkeypatch.chdir(folder)

    def request(self, **settings: Any) -> str:
        """Write what the node agent asks for, and return where."""
        request = ExecRequest(
            f"file://{self.folder}/run", (), str(self.folder), RunOptions(), str(self.folder), settings=settings
        )
        path = str(self.folder / "request.json")
        exec_request.save(request, path)
        return path

    def start(self, *words: str, **settings: Any) -> int:
        """Return the exit code."""
        self._monkeypatch.setattr(sys, "argv", ["tier_process", self.request(**settings), *words])
        return tier_process.main()


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A machine with a folder of code."""
    return Machine(tmp_path, monkeypatch)


def refusal(machine: Machine, capsys: pytest.CaptureFixture[str], **settings: Any) -> str:
    """What a machine says that refuses to train; it is the user's to mend, so the exit code is that of misuse."""
    assert machine.start("0", str(machine.folder), **settings) == EXIT_MISUSE
    (line,) = capsys.readouterr().err.splitlines()
    return line


def test_without_a_controller_a_machine_says_what_starts_it(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The secret of the run's machines is the controller's to give; no folder of Ray's is made."""
    monkeypatch.delenv(PEERS_TOKEN, raising=False)
    monkeypatch.setattr(tier_process, "_new_folder", lambda: pytest.fail("a folder was made"))

    assert machine.start(clocks=5) == EXIT_MISUSE
    said = capsys.readouterr().err
    assert said.startswith("windfall: WINDFALL_PEERS_TOKEN is not set: a controller starts")
    assert "windfall run JOB" in said


def test_a_machine_without_ray_says_what_to_install(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The extra that has it."""

    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    assert refusal(machine, capsys, clocks=5) == (
        f"windfall: runtime paramserver needs Ray, which this machine lacks: {install('paramserver')}"
    )


@pytest.mark.parametrize(
    ("version", "is_old"), [("2.9.3", True), ("2.49.2", True), ("1.13.0", True), ("2.50.0rc1", False), ("3.0", False)]
)
def test_a_ray_that_is_too_old_is_refused(
    version: str, is_old: bool, monkeypatch: pytest.MonkeyPatch, machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    """Versions are compared as numbers, not as text."""
    monkeypatch.setattr(importlib.metadata, "version", lambda _: version)
    said = refusal(machine, capsys, clocks=5, app="no_such_app")

    assert ("needs Ray 2.50 or newer, and this machine has " + version in said) == is_old
    assert ("no_such_app" in said) != is_old


@pytest.mark.parametrize("app", ["no_such_app", "no_such.app"])
def test_an_application_that_is_not_there_is_named(
    app: str, machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    """With where it belongs."""
    said = refusal(machine, capsys, clocks=5, app=app)

    assert f"there is no module {app.partition('.')[0]}, which app {app} names: put it into workdir" in said


def test_a_module_that_an_application_needs_is_named(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    """It is not the application that is missing."""
    (machine.folder / "needing_app.py").write_text("import no_such_library\n")

    said = refusal(machine, capsys, clocks=5, app="needing_app")
    assert "app needing_app needs the module no_such_library, which is not here; setup can install it" in said


def test_a_module_that_is_no_application_is_refused(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    """It lacks the function that returns the program."""
    (machine.folder / "empty_app.py").write_text("program = 3\n")

    said = refusal(machine, capsys, clocks=5, app="empty_app")
    assert "app empty_app has no function program(settings, partitions), which returns what trains" in said


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("raise OSError('no data')", "the program raised OSError: no data"),
        ("raise SystemExit(3)", "the program ended its process by sys.exit(3)"),
    ],
)
def test_an_import_that_fails_is_a_failure_of_the_program(
    text: str, says: str, machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is in the run's store, where the controller counts it, and has an exit code of its own."""
    (machine.folder / "early_app.py").write_text(text)
    sys.modules.pop("early_app", None)

    assert machine.start("0", str(machine.folder), clocks=5, app="early_app") == EXIT_FAILED
    assert capsys.readouterr().err == f"windfall: {says}\n"
    log = TierLog(open_store(f"file://{machine.folder}/run"))
    failure = log.failure(1)
    assert (log.failures(), failure and failure.message) == (1, says)


@pytest.mark.parametrize(
    ("ends", "code", "says"),
    [
        (
            "import ctypes; ctypes.string_at(0)",
            EXIT_FAILED,
            ["the program crashed its process: Segmentation fault, at file"],
        ),
        ("import os; os.abort()", EXIT_RETRY, []),
    ],
)
def test_a_crash_outside_the_actor_is_a_failure_of_the_program_too(
    ends: str, code: int, says: list[str], machine: Machine
) -> None:
    """The first machine evaluates in a process of its own; only Ray's processes abort, when their node is lost."""
    loaded = f"import pathlib, sys; pathlib.Path(sys.argv[1], {tier_process.LOADED!r}).touch()"
    keeps = f"from windfall.linux.crashes import keep_crash; keep_crash(f'{{sys.argv[1]}}/{tier_process.CRASH}')"
    text = (
        "import sys; from windfall.cli import tier_process\n"
        f"program = {f'{loaded}; {keeps}; {ends}'!r}\n"
        "tier_process.program = lambda *words: [sys.executable, '-c', program, words[-1]]\n"
        "sys.exit(tier_process.main())"
    )
    # It ends all that is below its process, and takes over what others leave: not the process of the tests.
    command = [sys.executable, "-c", text, machine.request(clocks=5)]
    done = subprocess.run(command, env={**os.environ, PEERS_TOKEN: SECRET}, timeout=60, check=False)

    assert done.returncode == code
    log = TierLog(open_store(f"file://{machine.folder}/run"))
    told = [log.failure(number + 1) for number in range(log.failures())]
    assert [one.message.partition(' "')[0] for one in told if one] == says


def test_settings_that_are_wrong_are_refused_on_the_machine_too(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    """A request need not come from a job file."""
    assert "runtime paramserver has reliable 0: write a whole number" in refusal(machine, capsys, clocks=5, reliable=0)


@pytest.mark.parametrize(
    ("address", "host"),
    [
        ("127.0.0.1:8080", "127.1.31.144"),
        ("127.0.0.1:256", "127.1.1.0"),
        ("127.0.0.1:65535", "127.1.255.255"),
        ("10.0.0.5:8080", "10.0.0.5"),
        ("node-7.lab:8080", "node-7.lab"),
    ],
)
def test_ray_knows_a_machine_by_a_host_of_its_own(address: str, host: str) -> None:
    """Machines of one computer get loopback addresses made of their ports; others keep theirs."""
    from windfall.wiring_tiers import _host

    assert _host(address) == host


def test_machines_of_one_computer_have_different_hosts() -> None:
    """Each port gives another one."""
    from windfall.wiring_tiers import _host

    assert len({_host(f"127.0.0.1:{port}") for port in range(1, 65536)}) == 65535


def test_rays_token_is_not_the_secret() -> None:
    """It follows from the secret, is the same on all machines of the run, and another run has another one."""
    first, again, other = (ray_environment(secret) for secret in (SECRET, SECRET, f"{SECRET}-2"))

    assert first == again
    assert first["RAY_AUTH_TOKEN"] != other["RAY_AUTH_TOKEN"]
    assert first["RAY_AUTH_MODE"] == "token"
    assert not any(SECRET in value for value in first.values())
    assert len(first["RAY_AUTH_TOKEN"]) == 64


def test_heads_of_two_users_on_one_computer_share_no_port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray's server for its clients, too, has a port of its own: with Ray's default the second head would end."""
    from windfall.runtimes import tier_node

    started: list[list[str]] = []
    monkeypatch.setattr(tier_node.subprocess, "Popen", lambda argv, **_: started.append(argv))
    for number in (1, 2):
        (folder := tmp_path / str(number)).mkdir()
        head = f"127.1.0.{number}:4000{number}"
        tier_node.start_ray(tier_node.TierNodePlace(head, True, f"127.1.0.{number}", str(folder), 1 << 27, 1))

    ports = [{word.partition("=")[2] for word in argv if "port=" in word} for argv in started]
    assert [len(each) for each in ports] == [2, 2]
    assert not ports[0] & ports[1]
    assert "10001" not in ports[0] | ports[1]
