"""Items that are preempted continue from what they saved: files that match a pattern, and files that are handed over."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest

from tests.bags.machines import BagRig, bag_rig, below
from windfall.agent import item_files
from windfall.bags import ItemEnd, ItemLease, ItemSave, RestartRule
from windfall.terms import Seconds
from windfall.wire import restart_layout

COUNTER = """
import os, sys, time
steps, step_s, per_save = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
done = 0
if sys.argv[4] == "1":
    done = int(open(sys.argv[5]).read())
    print("from", done, flush=True)
log = open("log.txt", "a", buffering=1)
print("started", done, file=log)
while done < steps:
    time.sleep(step_s)
    done += 1
    print("step", done, file=log)
    if done % per_save == 0:
        with open(f"state.{done}", "w") as file:
            file.write(str(done))
print("sum", done, flush=True)
"""
COMMAND = "python3 sim.py {{steps}} {{step_s}} {{per_save}} {{restart}} {{restart_file}}"


def with_program(folder: Path, text: str = COUNTER) -> Path:
    """A folder with the program."""
    code = folder / "code"
    code.mkdir()
    (code / "sim.py").write_text(text)
    return code


def tries(rig: BagRig, item: int) -> list[tuple[int, int]]:
    """The first and the last step of each try of an item, by the log that it carries along."""
    text = rig.file(rig.done()[item], "log.txt").decode()
    found = []
    for part in text.split("started ")[1:]:
        steps = [int(step) for step in re.findall(r"^step (\d+)$", part, re.MULTILINE)]
        found.append((int(part.split()[0]), max(steps, default=int(part.split()[0]))))
    return found


def newest(rig: BagRig) -> ItemSave:
    """The newest save of the first item."""
    return restart_layout.save_from_bytes(rig.store.get(rig.saves(0)[-1]) or b"")


def test_an_item_whose_machine_is_lost_continues_from_its_newest_save(tmp_path: Path) -> None:
    """It starts again where its last whole file was, log included, and leaves nothing behind once it is done."""
    settings = {"restart": RestartRule(("state.*", "log.txt")), "collect": ("log.txt",)}
    names, code = ("steps", "step_s", "per_save"), with_program(tmp_path)
    with bag_rig(tmp_path, [(60, 0.02, 10)], names, COMMAND, settings=settings, mttp_s=0.2, code=code) as rig:
        machine = rig.machine()
        rig.until(lambda: len(rig.saves(0)) == 2, "two saves are stored")
        rig.lose(machine)
        save = newest(rig)
        rig.machine()
        rig.until_over()
        (first, _), (again, last) = tries(rig, 0)
        rig.until(lambda: not rig.store.list(restart_layout.RESTART), "nothing is left of its saves")

    assert [file.path for file in save.files] == ["log.txt", f"state.{again}"]
    assert (first, last) == (0, 60)
    assert again > 0
    assert f"from {again}\n" in rig.printed(rig.done()[0])


def test_a_save_whose_document_is_not_there_is_not_used(tmp_path: Path) -> None:
    """A runner that is killed after its files are stored leaves the save before that one."""
    settings = {"restart": RestartRule(("state.*",))}
    names, code = ("steps", "step_s", "per_save"), with_program(tmp_path)
    with bag_rig(tmp_path, [(60, 0.02, 5)], names, COMMAND, settings=settings, mttp_s=0.2, code=code) as rig:
        # A runner creates nothing but the documents of saves.
        rig.environment = {"WINDFALL_FAILPOINT": "store.create:before:2"}
        machine = rig.machine()
        rig.until(lambda: machine.process.poll() is not None, "the runner is dead")
        rig.lose(machine)
        stored = rig.store.list(restart_layout.save_files_prefix(ItemLease(0, 1), 2))
        (document,) = rig.saves(0)
        step = restart_layout.save_from_bytes(rig.store.get(document) or b"").files[-1].path.removeprefix("state.")
        rig.environment = {}
        rig.machine()
        rig.until_over()
        printed = rig.printed(rig.done()[0])

    assert stored, "the files of the second save are there"
    assert printed.splitlines() == [f"from {step}", "sum 60"]


@pytest.mark.slow
def test_a_try_that_lost_its_lease_does_not_replace_what_a_later_one_saved(tmp_path: Path) -> None:
    """Its machine was declared gone, but it lives and saves on: the third try continues from what the second one saved."""
    settings = {"restart": RestartRule(("state.*",))}
    names, code = ("steps", "step_s", "per_save"), with_program(tmp_path)
    with bag_rig(tmp_path, [(400, 0.02, 5)], names, COMMAND, settings=settings, mttp_s=0.2, code=code) as rig:
        old = rig.machine()
        rig.until(lambda: rig.saves(0), "the first try has saved")
        os.kill(old.process.pid, signal.SIGSTOP)
        for pid in below(old.process.pid):
            os.kill(pid, signal.SIGSTOP)
        rig.gone.add(old.name)
        new = rig.machine()
        rig.until(lambda: newest(rig).lease.number == 2, "the second try has saved")
        # The old runner wakes up and stores what it has, before it learns that it has lost its lease.
        save = ItemSave(ItemLease(0, 1), 99, ())
        rig.store.create(restart_layout.save_key(save.lease, save.place), restart_layout.save_to_bytes(save))
        rig.lose(new)
        after = newest(rig)
        step = after.files[-1].path.removeprefix("state.")
        third = rig.machine().folder / "state" / "items" / "0-3" / item_files.OUTPUT
        rig.until(lambda: third.exists() and third.read_text(), "the third try has started")
        printed = third.read_text()

    assert after.lease.number == 2, "the newest save is still the second try's"
    assert printed == f"from {step}\n"


@pytest.mark.slow
def test_a_save_from_which_a_try_fails_is_not_used_again(tmp_path: Path) -> None:
    """The program cannot read what it saved: the next try starts from nothing and ends well."""
    program = """
import sys, time
if sys.argv[1] == "1":
    sys.exit("cannot read " + sys.argv[2])
open("state", "w").write("damaged")
time.sleep(1.0 if sys.argv[3] == "1" else 0.0)
print("sum 1")
"""
    settings = {"restart": RestartRule(("state",))}
    command = "python3 sim.py {{restart}} {{restart_file}} $WINDFALL_ATTEMPT"
    with bag_rig(
        tmp_path, [(1,)], ("x",), command, settings=settings, mttp_s=0.2, code=with_program(tmp_path, program)
    ) as rig:
        machine = rig.machine()
        rig.until(lambda: rig.saves(0), "it has saved")
        rig.lose(machine)
        rig.machine()
        rig.until_over()
        ends = [(outcome.end, outcome.problem) for outcome in rig.outcomes()]

    assert ends == [
        (ItemEnd.FAILED, "the command ended with exit code 1: cannot read state"),
        (ItemEnd.DONE, ""),
    ]


@pytest.mark.slow
def test_a_file_that_is_still_being_written_is_not_stored(tmp_path: Path) -> None:
    """The newest file is open for two thirds of the time, half of it written: each save has a whole one."""
    program = """
import sys, time
done = int(open(sys.argv[2]).read().split()[0]) if sys.argv[1] == "1" else 0
while done < 12:
    done += 1
    with open(f"state.{done}", "w") as file:
        file.write(f"{done} ")
        file.flush()
        time.sleep(0.1)
        file.write("whole")
    time.sleep(0.05)
"""
    settings = {"restart": RestartRule(("state.*",)), "collect": ("state.*",)}
    command = "python3 sim.py {{restart}} {{restart_file}}"
    found = set()
    with bag_rig(
        tmp_path, [(1,)], ("x",), command, settings=settings, mttp_s=0.01, code=with_program(tmp_path, program)
    ) as rig:
        rig.machine()

        def looks() -> bool:
            for key in rig.store.list("items/restart/0/files/"):
                found.add(rig.store.get(key))
            return rig.dispatcher.table.closed

        rig.until(looks, "the bag is over")

    found.discard(None)
    assert len(found) >= 3
    assert [data for data in found if not (data or b"").endswith(b" whole")] == []


@pytest.mark.slow
def test_a_program_hands_over_its_own_save_and_saves_at_a_signal(tmp_path: Path) -> None:
    """`windfall backup --item` returns once the files are stored; at a notice the signal reaches the program alone."""
    program = """
import signal, subprocess, sys, time
done = int(open("mine").read()) if sys.argv[1] == "1" else 0
print("from", done, flush=True)
def save(*_):
    open("mine", "w").write(str(done))
    subprocess.run(["windfall", "backup", "--item", "mine"], check=True)
signal.signal(signal.SIGUSR1, save)
while done < 40:
    time.sleep(0.05)
    done += 1
    if done == 10 and sys.argv[1] == "0":
        save()
    if done == 12:
        open("later", "w").close()
"""
    settings = {"restart": RestartRule((), int(signal.SIGUSR1), Seconds(0.5))}
    command = "python3 sim.py {{restart}}; echo end"
    with bag_rig(
        tmp_path, [(1,)], ("x",), command, settings=settings, grace_s=4.0, code=with_program(tmp_path, program)
    ) as rig:
        machine = rig.machine()
        rig.until((machine.folder / "state" / "items" / "0-1" / "later").exists, "it has saved and works on")
        assert len(rig.saves(0)) == 1
        machine.process.send_signal(signal.SIGTERM)
        rig.until(lambda: len(rig.saves(0)) == 2, "it has saved at the notice")
        data = rig.store.get(rig.saves(0)[-1])
        saved = rig.store.get(restart_layout.save_from_bytes(data or b"").files[0].key)
        rig.lose(machine)
        rig.machine()
        rig.until_over()
        printed = rig.printed(rig.done()[0])

    assert int(saved or 0) > 10
    assert printed.splitlines() == [f"from {int(saved or 0)}", "end"]


@pytest.mark.slow
@pytest.mark.parametrize(("mttp_s", "saves"), [(0.5, True), (1e6, False)])
def test_short_items_never_save_when_that_costs_more_than_it_brings(tmp_path: Path, mttp_s: float, saves: bool) -> None:
    """The second item knows how long the first one took, and {{save_every_s}} says so."""
    names, code = ("steps", "step_s", "per_save"), with_program(tmp_path)
    settings = {"restart": RestartRule(("state.*",)), "at_once_max": 1}
    with bag_rig(
        tmp_path, [(40, 0.05, 2), (40, 0.05, 2)], names, f"echo every {{{{save_every_s}}}}; {COMMAND}",
        settings=settings, mttp_s=mttp_s, code=code,
    ) as rig:  # fmt: skip
        rig.machine()
        rig.until_over()
        every_s = [float(rig.printed(outcome).split()[1]) for _, outcome in sorted(rig.done().items())]

    assert every_s[0] > 0.0, "of the first item it is not known how long it takes"
    assert (every_s[1] > 0.0) is saves
