"""Items that run on two machines of one allocation: they start on both, and end on both whatever becomes of one.

The ranks are started by the test, as a cluster's daemon starts them for mpirun or srun: they are below no machine, so that they
end only if a machine looks for them.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.bags.machines import BagMachine, BagRig, bag_rig
from windfall.bags import ItemEnd

pytestmark = pytest.mark.slow
TOGETHER_S = 2.0
NAME = "wf-7-test-slurm-4"
LAUNCH = {"TASKS": "{ranks_each}(x{nodes})", "STEP": None}
# It asks for ranks and waits for a file with its exit code.
LAUNCHER = "env -0 > env.new; mv env.new env; until [ -e over ]; do sleep 0.05; done; exit $(cat over)"


def allocation(rank: int, name: str = NAME) -> dict[str, str]:
    """The variables of a machine of the allocation."""
    return {
        "WINDFALL_ALLOCATION": name,
        "WINDFALL_ALLOCATION_RANK": str(rank),
        "WINDFALL_ALLOCATION_HOSTS": "n0,n1",
        "WINDFALL_ALLOCATION_ADDRESS": "127.0.0.1",
        "WINDFALL_ALLOCATION_LAUNCH": json.dumps(LAUNCH),
        "STEP": "of the machine",
    }


def machine(rig: BagRig, rank: int, name: str = NAME) -> BagMachine:
    """Start a machine of the allocation."""
    rig.environment = allocation(rank, name)
    return rig.machine()


@contextmanager
def gang(folder: Path, command: str, **settings: object) -> Iterator[tuple[BagRig, BagMachine, BagMachine]]:
    """A bag of one item on two machines."""
    with bag_rig(folder, [(1,)], ("x",), command, settings={"ranks": 4, "nodes": 2, **settings}) as rig:
        yield rig, machine(rig, 0), machine(rig, 1)


def folder_of(machine: BagMachine, number: int = 1) -> Path:
    """The folder of a try of the item."""
    return machine.folder / "state" / "items" / f"0-{number}"


@contextmanager
def started_ranks(rig: BagRig, folder: Path) -> Iterator[list[int]]:
    """Ranks as the daemon of a cluster starts them: below no machine, with the environment of the launcher."""
    rig.until((folder / "env").exists, "the launcher runs")
    environ = dict(line.split("=", 1) for line in (folder / "env").read_text().split("\0") if "=" in line)
    found = [subprocess.Popen(["sleep", "300"], env=environ, start_new_session=True) for _ in range(2)]
    try:
        yield [one.pid for one in found]
    finally:
        for one in found:
            one.kill()
            one.wait()


def lives(pid: int) -> bool:
    """Whether a process has not ended."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


def gone_s(pids: list[int]) -> float:
    """How long processes take to be gone [s]; fail after the limit."""
    started = time.monotonic()
    while left := [pid for pid in pids if lives(pid)]:
        assert time.monotonic() < started + TOGETHER_S, f"still there after {TOGETHER_S:g} s: {left}"
        time.sleep(0.005)
    return time.monotonic() - started


def test_an_item_finds_its_nodes_and_ranks(tmp_path: Path) -> None:
    """A launcher reads how many ranks to start on each node, and nothing of the machine's own step."""
    command = 'echo "$TASKS ${STEP-unset} $WINDFALL_ITEM_HOSTS $WINDFALL_ITEM_RANKS {{ranks}}"'
    with gang(tmp_path, command) as (rig, first, second):
        rig.until_over()
        printed = rig.printed(rig.done()[0])
        codes = [one.process.wait(10) for one in (first, second)]

    assert printed == "2(x2) unset n0,n1 4 4\n"
    assert codes == [0, 0]


@pytest.mark.parametrize("lost", [0, 1])
def test_losing_a_machine_ends_the_ranks_on_all(tmp_path: Path, lost: int) -> None:
    """Either machine is killed without a word: no rank is left, and the item, which has not failed, runs elsewhere."""
    with gang(tmp_path, LAUNCHER, retries_max=0) as (rig, first, second):
        with started_ranks(rig, folder_of(first)) as pids:
            assert all(map(lives, pids))
            rig.lose((first, second)[lost])
            took_s = gone_s(pids)
        again, _ = machine(rig, 0, "wf-7-test-slurm-5"), machine(rig, 1, "wf-7-test-slurm-5")
        with started_ranks(rig, folder_of(again, 2)) as pids:
            (folder_of(again, 2) / "over").write_text("0")
            rig.until_over()
            gone_s(pids)
        outcomes = rig.outcomes()

    print(f"machine {lost}: {took_s:.2f} s")
    assert [(one.end, one.lease.number) for one in outcomes] == [(ItemEnd.DONE, 2)]


def test_a_launcher_that_fails_for_a_lost_machine_is_no_failure_of_the_item(tmp_path: Path) -> None:
    """mpirun may know sooner that a node is gone, and exit with 1: the item is given back all the same."""
    with gang(tmp_path, LAUNCHER, retries_max=0) as (rig, first, second), started_ranks(rig, folder_of(first)) as pids:
        (folder_of(first) / "over").write_text("1")
        gone_s(pids)
        rig.lose(second)
        rig.until(lambda: not folder_of(first).exists(), "the item has ended")
        rig.until(lambda: first.process.poll() is not None, "machine 0 leaves")
        rig.turn()
        outcomes, closed = rig.outcomes(), rig.dispatcher.table.closed

    assert outcomes == []
    assert not closed


def test_what_an_item_leaves_on_any_machine_ends_with_it(tmp_path: Path) -> None:
    """Also when the item fails by itself, which is a failure."""
    with gang(tmp_path, LAUNCHER, retries_max=0) as (rig, first, _), started_ranks(rig, folder_of(first)) as pids:
        (folder_of(first) / "over").write_text("3")
        took_s = gone_s(pids)
        rig.until_over()
        outcomes = rig.outcomes()

    print(f"{took_s:.2f} s")
    assert [(one.end, one.exit_code) for one in outcomes] == [(ItemEnd.FAILED, 3)]


def test_a_program_that_dies_on_a_machine_that_lives_comes_back(tmp_path: Path) -> None:
    """The other machine's program ends the item's ranks, and both start again: the allocation is whole."""
    with gang(tmp_path, LAUNCHER, retries_max=0) as (rig, first, second):
        with started_ranks(rig, folder_of(first)) as pids:
            second.kill()
            gone_s(pids)
            assert first.process.wait(5) == 75
        for rank, one in enumerate((first, second)):
            rig.environment = allocation(rank)
            rig.restart(one)
        rig.until((folder_of(first, 2) / "env").exists, "the item runs again")
        (folder_of(first, 2) / "over").write_text("0")
        rig.until_over()

    assert [one.end for one in rig.outcomes()] == [ItemEnd.DONE]
