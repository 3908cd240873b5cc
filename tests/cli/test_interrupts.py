"""Ctrl-C at any instant, and a pipe that nobody reads any more: an exit code, at most a line, never a traceback."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.support.left import none_left
from tests.support.live import WINDFALL, new_run, plain_environment
from windfall.cli import verbs
from windfall.cli.main import main

# As the command does it, with a sign once it hears: when it looks for its verbs, which is the first thing it does.
COMMAND = """
import sys
from windfall.cli.main import main

class Sign:
    begun = False
    def find_spec(self, name, *_):
        if name in ("windfall.cli.verbs", "windfall.cli.exec_line") and not self.begun:
            self.begun = True
            print("begun", flush=True)

sys.meta_path.insert(0, Sign())
sys.exit(main())
"""
ENOUGH = 30


def interrupted(at_s: float, *words: str) -> tuple[int, str]:
    """Press Ctrl-C so long after a command has begun; return its exit code and what it printed."""
    process = subprocess.Popen(
        [sys.executable, "-c", COMMAND, *words], env=plain_environment(), stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    time.sleep(at_s)
    os.killpg(process.pid, signal.SIGINT)
    try:
        said, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    return process.returncode, said


def at_once(calls: dict[str, tuple[float, tuple[str, ...]]]) -> dict[str, tuple[int, str]]:
    """Make several such calls side by side."""
    ends: dict[str, tuple[int, str]] = {}

    def call(name: str) -> None:
        at_s, words = calls[name]
        ends[name] = interrupted(at_s, *words)

    threads = [threading.Thread(target=call, args=(name,)) for name in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ends.keys() == calls.keys()
    return ends


@pytest.mark.real
@pytest.mark.parametrize(
    "instants",
    [
        pytest.param((0.002, 0.05, 0.1, 0.2, 0.4, 0.7, 1.1, 2.0), id="some"),
        pytest.param(tuple(0.002 + 0.03 * number for number in range(100)), id="many", marks=pytest.mark.slow),
    ],
)
def test_ctrl_c_at_any_instant_of_exec_is_a_line(tmp_path: Path, instants: tuple[float, ...]) -> None:
    """While the verbs are imported: one line, 130.  While the supervisor begins, and later: a stop, 6."""
    for first in range(0, len(instants), 4):
        calls = {}
        for at_s in instants[first : first + 4]:
            here = str(tmp_path / f"{at_s:.3f}")
            script = ("--", sys.executable, "-c", f"import time; time.sleep(99) or {here!r}")
            calls[f"{at_s:.3f}"] = (at_s, ("exec", "--state", f"{here}/state", f"{here}/run", *script))
        for at, (code, said) in at_once(calls).items():
            assert "Traceback" not in said, f"at {at} s:\n{said}"
            assert code in (130, 6), f"at {at} s:\n{said}"
            assert code == 6 or said == "windfall: interrupted\n", f"at {at} s"
    none_left(tmp_path)


def test_ctrl_c_of_a_verb_is_a_line(tmp_path: Path) -> None:
    """Of one that only looks, too: while it is imported, while it works, and when its work is done."""
    words = ("schema",)
    for at, (code, said) in at_once({str(at_s): (at_s, words) for at_s in (0.002, 0.1, 0.3, 0.6)}).items():
        assert "Traceback" not in said, f"at {at} s:\n{said}"
        assert code in (130, 0, -signal.SIGINT), f"at {at} s:\n{said}"
        assert code != 130 or said.endswith("windfall: interrupted\n")


def test_ctrl_c_while_a_class_is_made_is_a_line(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Python wraps such an interrupt in an error of its own."""

    def run(*_: object, **__: object) -> int:
        raise RuntimeError("Error calling __set_name__") from KeyboardInterrupt()

    monkeypatch.setattr(verbs, "run", run)

    assert main(["schema"]) == 130
    assert capfd.readouterr().err == "windfall: interrupted\n"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The URL of a run that is done."""
    run = new_run(tmp_path_factory.mktemp("trained"))
    machine = run.train(STEPS="20", EVERY="5")
    assert machine.code() == 0, machine.text
    return run.url


PRINTING = (
    (1, "ps", "--json", *["URL"] * ENOUGH), (0, "events", "--json", "URL"), (0, "cost", "URL"), (0, "--help"),
)  # fmt: skip
"""Verbs that print through print and through rich, and how many lines are read of them."""
MORE = (
    (0, "logs", "URL"), (0, "checkpoints", "--json", "URL"), (0, "explain", "URL"), (0, "replay", "URL"), (0, "schema"),
    (0, "lab", "--help"), (1, "events", "--json", "URL"), (1, "cost", "URL"), (1, "--help"), (0, "get", "URL", "HERE"),
    (0, "doctor"), (0, "ps", "URL"), (0, "stop", "URL"),
)  # fmt: skip


@pytest.mark.parametrize(
    ("reads", "verb"),
    [
        *(pytest.param(reads, verb, id=f"{verb[0]}-{reads}") for reads, *verb in PRINTING),
        *(pytest.param(reads, verb, id=f"{verb[0]}-{reads}-more", marks=pytest.mark.slow) for reads, *verb in MORE),
    ],
)
def test_a_reader_that_has_seen_enough_is_no_error(trained: str, tmp_path: Path, verb: list[str], reads: int) -> None:
    """`windfall ps --json | head -1`: silent, and 141, as other programs of a pipe; or 0, if all was out before."""
    words = [{"URL": trained, "HERE": str(tmp_path)}.get(word, word) for word in verb]
    process = subprocess.Popen(
        [*WINDFALL, *words], env=plain_environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stderr is not None
    if reads:
        assert process.stdout.readline()
    process.stdout.close()
    said = process.stderr.read()
    process.stderr.close()
    assert process.wait(60) in ((141,) if not reads else (141, 0)), said
    assert said == ""
