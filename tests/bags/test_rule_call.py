"""A user's function that stops items, in its process: what it answers, and what it may do wrong."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.bags.machines import below
from windfall.agent.item_rule_call import RuleCall, RuleProgram
from windfall.bags import ItemLease
from windfall.core.item_runner import RuleAnswered
from windfall.linux.clock import SystemClock

RULES = """
import os, sys, time
from limits import WORST
print("loaded in", os.getcwd())
def worse(parameters, values):
    print("asked")
    x = parameters["x"]
    if x == "raises":
        raise ValueError("no such\\n energy")
    if x == "hangs":
        time.sleep(60)
    if x == "exits":
        os._exit(3)
    if x == "truth":
        return values[-1] > WORST
    return f"{values[-1]:g} is more than {WORST}" if values[-1] > WORST else ""
"""


@contextmanager
def asked(folder: Path, name: str = "rules.py:worse", **limits: float) -> Iterator[tuple[RuleCall, list[str]]]:
    """The function in a folder, and what is written to the machine's output."""
    (folder / "rules.py").write_text(RULES)
    (folder / "limits.py").write_text("WORST = 5\n")
    logged: list[str] = []
    argv = (sys.executable, "-P", "-m", "windfall.cli.stop_rule_process", name)
    call = RuleCall(
        RuleProgram(SystemClock(), name, argv, str(folder), dict(os.environ), lambda: None, logged.append, **limits)
    )
    try:
        yield call, logged
    finally:
        call.close()


def answer(call: RuleCall, count: int = 1) -> list[RuleAnswered]:
    """Wait for answers."""
    found: list[RuleAnswered] = []
    deadline = time.monotonic() + 20.0
    while len(found) < count:
        assert time.monotonic() < deadline, found
        found += call.answers()
        time.sleep(0.01)
    return found


def test_true_or_a_sentence_stops_an_item(tmp_path: Path) -> None:
    """It finds the modules beside it, and may print; what is false or empty lets the item run."""
    with asked(tmp_path) as (call, logged):
        for number, (x, value) in enumerate([("a", 4.0), ("truth", 5.0), ("a", 6.0), ("truth", 7.0)]):
            call.ask(ItemLease(number, 1), {"x": x}, [9.0, value])

        assert answer(call, 2) == [
            RuleAnswered(ItemLease(2, 1), "6 is more than 5"),
            RuleAnswered(ItemLease(3, 1), "rules.py:worse returned true"),
        ]
        assert logged == []


@pytest.mark.parametrize(
    ("does", "problem"),
    [
        ("raises", "it raised ValueError: no such energy"),
        ("hangs", "a call took longer than 0.5 s"),
        ("exits", "its process ended during a call"),
    ],
)
def test_what_goes_wrong_for_an_item_leaves_that_item_alone(does: str, problem: str, tmp_path: Path) -> None:
    """It is not asked about again; others are, by a new process where need be; the machine's log has one sentence."""
    with asked(tmp_path, call_s=0.5) as (call, logged):
        call.ask(ItemLease(1, 1), {"x": does}, [9.0])
        expected = f"stop_item.call rules.py:worse: {problem}; item 1 runs without it"
        assert answer(call) == [RuleAnswered(None, expected)]
        call.ask(ItemLease(1, 1), {"x": "a"}, [9.0])
        call.ask(ItemLease(3, 1), {"x": does}, [9.0])
        call.ask(ItemLease(2, 1), {"x": "a"}, [9.0])

        assert answer(call) == [RuleAnswered(ItemLease(2, 1), "9 is more than 5")]
        assert logged == [expected]


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("none.py:worse", "none.py cannot be loaded: FileNotFoundError"),
        ("rules.py:worst", "rules.py cannot be loaded: AttributeError"),
    ],
)
def test_a_function_that_cannot_be_loaded_stops_nothing(name: str, problem: str, tmp_path: Path) -> None:
    """It is tried once."""
    with asked(tmp_path, name) as (call, logged):
        call.ask(ItemLease(1, 1), {"x": "a"}, [9.0])
        (found,) = answer(call)
        call.ask(ItemLease(2, 1), {"x": "a"}, [9.0])
        call.close()

        assert found.lease is None
        assert found.reason.startswith(f"stop_item.call {name}: {problem}")
        assert found.reason.endswith("no item is stopped by it here")
        assert logged == [found.reason]
        assert call.answers() == []


def test_a_file_that_cannot_be_loaded_is_loaded_once(tmp_path: Path) -> None:
    """Not again for each item, each second."""
    (tmp_path / "broken.py").write_text("open('tries', 'a').write('x')\nraise RuntimeError('no licence')\n")
    with asked(tmp_path, "broken.py:worse") as (call, _):
        for number in range(3):
            call.ask(ItemLease(number, 1), {"x": "a"}, [9.0])
        (found,) = answer(call)
        # A second try would take a tenth of that.
        time.sleep(0.5)

    assert "broken.py cannot be loaded: RuntimeError: no licence" in found.reason
    assert (tmp_path / "tries").read_text() == "x"


def test_its_process_ends_with_the_runner(tmp_path: Path) -> None:
    """Also while a call runs that would take a minute."""
    before = set(below(os.getpid()))
    with asked(tmp_path) as (call, _):
        call.ask(ItemLease(1, 1), {"x": "hangs"}, [9.0])
        deadline = time.monotonic() + 10.0
        while not set(below(os.getpid())) - before:
            assert time.monotonic() < deadline
            time.sleep(0.01)

    assert not set(below(os.getpid())) - before
    assert "stop rule" not in [thread.name for thread in threading.enumerate()]
