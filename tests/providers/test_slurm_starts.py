"""What a node of a Slurm job runs, without Slurm: a machine's process from the order's folder, once."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from windfall.providers.slurm.node_start import LEAD_S, is_first_start, lead_s

NEVER_STARTED = 69


def start(folder: Path, index: int = 0, **more: str) -> subprocess.CompletedProcess[str]:
    """Start a machine as `srun` does; return when it has ended."""
    own = {"SLURM_JOB_ID": "7", "SLURM_PROCID": str(index), "SLURM_JOB_NUM_NODES": "2", **more}
    line = [sys.executable, "-m", "windfall.providers.slurm.node_start", str(folder)]
    return subprocess.run(line, env=os.environ | own, capture_output=True, text=True, check=False, timeout=30)


def write_boot(folder: Path, index: int = 0) -> None:
    """What the provider leaves for a machine that prints its name."""
    folder.mkdir(exist_ok=True)
    boot = {"argv": ["sh", "-c", "echo I am $WINDFALL_MACHINE_ID"], "env": {}, "grace_s": 6.0, "limited": False}
    (folder / f"boot-{index}.json").write_text(json.dumps(boot | {"host": socket.gethostname()}))


def test_a_machine_starts_once(tmp_path: Path) -> None:
    """A second start under its number runs nothing and fails, also while what it would start from is still there."""
    write_boot(tmp_path / "own-1")
    first = start(tmp_path / "own-1")
    write_boot(tmp_path / "own-1")
    second = start(tmp_path / "own-1")

    assert (first.returncode, first.stdout) == (0, "I am slurm-7.0\n")
    assert (second.returncode, second.stdout) == (NEVER_STARTED, "")
    assert "slurm-7.0 has started before, and Slurm starts it again: nothing is started" in second.stderr


def test_each_machine_of_an_order_starts(tmp_path: Path) -> None:
    """One that has started keeps no other from it."""
    for index in range(2):
        write_boot(tmp_path / "own-1", index)

    assert [start(tmp_path / "own-1", index).stdout for index in range(2)] == ["I am slurm-7.0\n", "I am slurm-7.1\n"]


def test_a_node_of_several_knows_its_allocation(tmp_path: Path) -> None:
    """A step of its own is told nothing of the machines' step, and shares its processors."""
    scontrol = tmp_path / "scontrol"
    scontrol.write_text('#!/bin/sh\n[ "$*" = "show hostnames n[0-1]" ] && printf "n0\\nn1\\n"\n')
    scontrol.chmod(0o700)
    folder = tmp_path / "own-1"
    folder.mkdir()
    boot = {"argv": ["sh", "-c", "env | grep ^WINDFALL_ALLOCATION | sort"], "env": {}, "grace_s": 6.0, "limited": False}
    told = []
    for index in range(2):
        (folder / f"boot-{index}.json").write_text(json.dumps(boot | {"host": socket.gethostname()}))
        more = {"SLURM_JOB_NODELIST": "n[0-1]", "SLURM_LAUNCH_NODE_IPADDR": "10.0.0.4", "SLURM_STEP_NUM_TASKS": "2"}
        done = start(folder, index, PATH=f"{tmp_path}:{os.environ['PATH']}", **more)
        told.append(dict(line.split("=", 1) for line in done.stdout.splitlines()))
    launch = [json.loads(one.pop("WINDFALL_ALLOCATION_LAUNCH")) for one in told]

    assert [one.pop("WINDFALL_ALLOCATION_RANK") for one in told] == ["0", "1"]
    assert told[0] == told[1]
    assert told[0].pop("WINDFALL_ALLOCATION").endswith("-slurm-7")
    assert told[0] == {"WINDFALL_ALLOCATION_HOSTS": "n0,n1", "WINDFALL_ALLOCATION_ADDRESS": "10.0.0.4"}
    assert launch[0]["SLURM_STEP_NUM_TASKS"] is None
    assert (launch[0]["SLURM_TASKS_PER_NODE"], launch[0]["SLURM_OVERLAP"]) == ("{ranks_each}(x{nodes})", "1")
    assert "SLURM_JOB_ID" not in launch[0]


def test_of_two_starts_at_once_one_is_the_first(tmp_path: Path) -> None:
    """What decides is the creation of one file, which both see."""
    assert [is_first_start(tmp_path, 3), is_first_start(tmp_path, 3), is_first_start(tmp_path, 4)] == [
        True,
        False,
        True,
    ]


def test_a_machine_that_was_released_before_its_start_starts_nothing(tmp_path: Path) -> None:
    """A submission may arrive when its order has long been given back: what it starts from is not even read."""
    write_boot(tmp_path / "own-1")
    (tmp_path / "own-1" / "request-0.json").write_text(json.dumps({"release": True}))
    late = start(tmp_path / "own-1")

    assert (late.returncode, late.stdout) == (0, "")
    assert "slurm-7.0 was released before it started: nothing is started" in late.stderr
    assert (tmp_path / "own-1" / "boot-0.json").exists()


def test_a_requeued_job_is_no_machine(tmp_path: Path) -> None:
    """Its order is over."""
    write_boot(tmp_path / "own-1")
    again = start(tmp_path / "own-1", SLURM_RESTART_COUNT="1")

    assert (again.returncode, again.stdout) == (0, "")
    assert "nothing is started" in again.stderr


@pytest.mark.parametrize("made", [True, False])
def test_a_machine_without_its_folder_says_why(tmp_path: Path, made: bool) -> None:
    """Whether the folder is missing on this node, or what it starts from was removed with its order."""
    if made:
        (tmp_path / "own-1").mkdir()
    done = start(tmp_path / "own-1")

    assert done.returncode == NEVER_STARTED
    assert "its order was withdrawn, or providers.slurm.folder is no folder that the nodes can write" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_machine_with_a_short_time_limit_works_before_it_is_told_of_its_end() -> None:
    """Two minutes ahead, but never before half of its time: else no machine would ever begin anything."""
    assert lead_s(4 * 3600.0) == LEAD_S
    assert lead_s(100.0) == 50.0
