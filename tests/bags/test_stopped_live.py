"""Live bags whose items are stopped early: on machines alone, and on a controller with a local market."""

from __future__ import annotations

import json
import random
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.bags.machines import bag_rig
from tests.live.rig import Rig
from windfall.bags import ItemEnd, ResultRule, StopItem
from windfall.cli.bag_verbs import find_bag

SIMULATION = """
import signal, sys, time
x, steps, step_s, how = float(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), sys.argv[4]
def end(number, frame):
    print("asked to end", flush=True)
    if how == "ends":
        open("final.txt", "w").write("early\\n")
        sys.exit(0)
if how != "plain":
    signal.signal(signal.SIGTERM, end)
for step in range(1, steps + 1):
    time.sleep(step_s)
    print(f"step {step} energy = {x + 10.0 / step:.4f}", flush=True)
open("final.txt", "w").write("whole\\n")
"""
PYTHON = shlex.quote(sys.executable)
ENERGY = ResultRule("energy", "-", r"energy = (\S+)")
FINAL = ResultRule("final", "final.txt", r"(\w+)")


def simulation(folder: Path) -> Path:
    """A folder with the program and a rule."""
    code = folder / "code"
    code.mkdir()
    (code / "sim.py").write_text(SIMULATION)
    return code


@pytest.mark.parametrize(
    ("how", "final"), [("plain", None), pytest.param("ends", "early", marks=pytest.mark.slow),
                       pytest.param("stays", None, marks=pytest.mark.slow)]
)  # fmt: skip
def test_an_item_beyond_a_bound_ends_with_what_it_has(how: str, final: str | None, tmp_path: Path) -> None:
    """One that handles SIGTERM may write its results, one that does not end is killed; it counts as done, and runs once."""
    settings = {"results": (ENERGY, FINAL), "stop_item": StopItem("energy", above=50.0)}
    command = f"{PYTHON} sim.py {{{{x}}}} 100 0.05 {how}; echo after"
    with bag_rig(tmp_path / "bag", [(90.0,)], ("x",), command, settings=settings, code=simulation(tmp_path)) as rig:
        rig.machine()
        rig.until_over(20.0)
        (outcome,) = rig.outcomes()
        printed = rig.printed(outcome)

    assert outcome.end is ItemEnd.STOPPED
    assert outcome.stopped.startswith("energy: its value, 1")
    assert outcome.values.get("final") == final
    assert isinstance(outcome.values["energy"], float)
    assert 1.0 <= outcome.run_s < 4.5
    assert ("asked to end" in printed) == (how != "plain")
    assert (rig.dispatcher.table.counts.done, rig.dispatcher.table.lease(0).number) == (1, 1)


@pytest.mark.slow
def test_a_verdict_outlives_the_machine_that_should_have_heard_it(tmp_path: Path) -> None:
    """Its machine is killed once the verdict is in the log: an item that can be spared is not run again."""
    settings = {
        "results": (ENERGY,), "stop_item": StopItem("energy", above=50.0), "finish": 0.5,
    }  # fmt: skip
    command = f"{PYTHON} sim.py {{{{x}}}} 400 0.05 stays"
    with bag_rig(
        tmp_path / "bag", [(90.0,), (0.0,)], ("x",), command, settings=settings, code=simulation(tmp_path)
    ) as rig:
        machine = rig.machine()
        rig.until(lambda: rig.dispatcher.table.verdicts, "a verdict", 20.0)
        rig.lose(machine)
        rig.until(lambda: rig.dispatcher.table.counts.discarded, "it is given up")
        (recovery,) = [one for record in rig.records() for one in record.recovered if one.item == 0]

    assert recovery.action == "discard"
    assert recovery.reason.startswith("it is not run again: energy: its value, ")
    assert not rig.outcomes()


def rows_of_bag(rig: Rig, job_id: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in rig.say("results", job_id, "--json").splitlines()]


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.timeout(240)
def test_the_worse_item_is_stopped_and_the_others_are_not(new_rig: Callable[..., Rig]) -> None:
    """The sixth of eight runs has an energy far above the others: the table, ps, explain, events and the reduce step say so."""
    rig = new_rig()
    rig.start_controller()
    code = simulation(rig.folder)
    job = {
        "name": "worse", "num_nodes": 2, "resources": {"infra": "local"}, "workdir": str(code),
        "run": f"{PYTHON} sim.py {{{{x}}}} 40 0.1 plain",
        "bag": {
            "order": "given", "parameters": {"x": [0.1, 0.2, 0.3, 0.4, 0.5, 80, 0.6, 0.7]},
            "results": {"energy": {"regex": r"energy = (\S+)"}},
            "stop_item": {
                "metric": "energy", "median": "min", "from": 0.3, "min_done": 3,
                "steps": {"regex": r"step (\d+)", "of": 40},
            },
            "reduce": "cat results.csv > table.csv", "collect": ["table.csv"],
        },
    }  # fmt: skip
    job_id = rig.submit(job, None)
    told = rig.ended(job_id)
    rows = rows_of_bag(rig, job_id)

    assert told["phase"] == "done", f"{told['message']}\n{rig.log()}"
    assert [row["state"] for row in rows] == ["done"] * 8
    assert [row["stopped"] is not None for row in rows] == [row["item"] == 5 for row in rows]
    bad, good = rows[5], [row for row in rows if row["item"] != 5]
    assert bad["stopped"].startswith("energy: its best, 8")
    assert "is worse than the median of" in bad["stopped"]
    assert bad["run_s"] < 0.85 * min(row["run_s"] for row in good)
    assert (bad["attempts"], bad["problem"]) == (1, None)
    assert 80.0 < bad["energy"] < 91.0
    assert "1 item stopped early, by energy" in rig.say("ps", job_id)
    for verb in ("explain", "events"):
        assert f"item 5: stop, {bad['stopped']}" in rig.say(verb, job_id)
    assert "item 5: stop" in rig.say("explain", f"{job_id}/5")
    assert "step 14 energy" in rig.say("logs", f"{job_id}/5")
    rig.check(job_id, told, nodes=2)


def with_rule(rig: Rig, rule: str, name: str) -> str:
    """Submit a bag of six items on one machine with a function as its rule; return its id."""
    code = simulation(rig.folder)
    (code / "rules.py").write_text(rule)
    job = {
        "name": name, "num_nodes": 1, "resources": {"infra": "local"}, "workdir": str(code),
        "run": f"{PYTHON} sim.py {{{{x}}}} 30 0.1 plain",
        "bag": {
            "order": "given", "parameters": {"x": [0, 80, 2, 90]}, "results": {"energy": {"regex": r"energy = (\S+)"}},
            "stop_item": {"metric": "energy", "call": "rules.py:worse"},
        },
    }  # fmt: skip
    return rig.submit(job, None)


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_users_function_stops_items(new_rig: Callable[..., Rig]) -> None:
    """By its sentence, which the table shows; the items that it lets run are done as ever."""
    rig = new_rig()
    rig.start_controller()
    rule = (
        "def worse(parameters, values):\n"
        "    return len(values) >= 3 and values[-1] > 50 and f'{parameters[\"x\"]} is hopeless'\n"
    )
    job_id = with_rule(rig, rule, "called")
    told = rig.ended(job_id)
    rows = rows_of_bag(rig, job_id)

    assert told["phase"] == "done", f"{told['message']}\n{rig.log()}"
    assert [row["stopped"] for row in rows] == [None, "80 is hopeless", None, "90 is hopeless"]
    assert max(rows[1]["run_s"], rows[3]["run_s"]) < 0.95 * min(rows[0]["run_s"], rows[2]["run_s"])
    assert "2 items stopped early, by energy" in rig.say("ps", job_id)
    assert "item 3: stop, 90 is hopeless" in rig.say("explain", job_id)
    rig.check(job_id, told)


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_users_function_that_raises_stops_nothing(new_rig: Callable[..., Rig]) -> None:
    """All items run to their end; ps and explain say why once."""
    rig = new_rig()
    rig.start_controller()
    job_id = with_rule(rig, "def worse(parameters, values):\n    return values[99] > 50\n", "raises")
    told = rig.ended(job_id)
    rows = rows_of_bag(rig, job_id)
    problem = "stop_item.call rules.py:worse: it raised IndexError: list index out of range; item 0 runs without it"

    assert told["phase"] == "done", f"{told['message']}\n{rig.log()}"
    assert [row["stopped"] for row in rows] == [None] * 4
    shown = rig.say("ps", job_id).replace("\n          ", " ")
    assert shown.count(problem) == 1
    assert "stopped early" not in shown
    assert rig.say("explain", job_id).count(problem) == 1
    rig.check(job_id, told)


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_verdict_outlives_the_controller_that_made_it(new_rig: Callable[..., Rig]) -> None:
    """Killed as soon as the verdict is in the log: the next one stops the item, which has run once and counts once."""
    rig = new_rig()
    rig.start_controller()
    code = simulation(rig.folder)
    job = {
        "name": "killed", "num_nodes": 1, "resources": {"infra": "local"}, "workdir": str(code),
        "run": f"{PYTHON} sim.py {{{{x}}}} 1200 0.1 stays",
        "bag": {
            "order": "given", "parameters": {"x": [80]}, "results": {"energy": {"regex": r"energy = (\S+)"}},
            "stop_item": {"metric": "energy", "above": 50},
        },
    }  # fmt: skip
    job_id = rig.submit(job, None)

    def is_judged() -> bool:
        bag = find_bag(rig.run_url(job_id)) if (rig.state / "runs" / job_id).exists() else None
        return bag is not None and bool(bag.log.table.verdicts)

    rig.until(is_judged, "a verdict is in the log")
    assert rig.kill("controller", random.Random(0))
    rig.start_controller()
    told = rig.ended(job_id)
    (row,) = rows_of_bag(rig, job_id)

    assert told["phase"] == "done", f"{told['message']}\n{rig.log()}"
    assert (row["state"], row["attempts"]) == ("done", 1)
    assert row["stopped"].startswith("energy: its value, 9")
    assert row["run_s"] < 110.0
    assert "1 item stopped early, by energy" in rig.say("ps", job_id)
    rig.check(job_id, told)
