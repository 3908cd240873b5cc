"""The memory that items use, of real processes: it is measured fairly, and one that uses too much is ended alone."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.bags.machines import bag_rig, below
from windfall.bags import ItemEnd
from windfall.linux import process_memory

MIB = 1 << 20
GROUP = """
import os, sys
data = bytearray(os.urandom(1 << 20)) * {own}
kids = int(sys.argv[1])
for _ in range(kids):
    if os.fork() == 0:
        if {leaves}: os.setsid()
        more = bytearray(os.urandom(1 << 20)) * {each}
        print("ready", flush=True)
        sys.stdin.read()
        os._exit(0)
if not kids: print("ready", flush=True)
sys.stdin.read()
"""


@contextmanager
def group(kids: int, *, own: int, each: int = 0, leaves: bool = False) -> Iterator[int]:
    """A process in a session of its own with `own` MiB, which its children share, and each of them with `each` MiB more."""
    process = subprocess.Popen(
        [sys.executable, "-c", GROUP.format(own=own, each=each, leaves=leaves), str(kids)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdin is not None
    for _ in range(max(kids, 1)):
        process.stdout.readline()
    yield process.pid
    process.stdin.close()
    process.wait()
    process.stdout.close()


@pytest.mark.real
def test_what_processes_share_counts_once_and_children_count_wherever_they_are() -> None:
    """Four children share 60 MiB: not 300; two with 40 MiB each, in sessions of their own: 80 more; one is small."""
    with group(4, own=60) as shared, group(2, own=1, each=40, leaves=True) as grown, group(0, own=1) as small:
        found = process_memory.used_bytes((shared, grown, small), 50 * MIB)

    assert found.keys() == {shared, grown}
    assert 60 * MIB < found[shared] < 120 * MIB
    assert 80 * MIB < found[grown] < 130 * MIB


@pytest.mark.real
def test_an_item_that_uses_more_memory_than_its_share_is_ended_alone(tmp_path: Path) -> None:
    """One sentence says how much it used; what it printed is kept, its own children end too, and the others are done."""
    grows = (
        f"echo grows; {shlex.quote(sys.executable)} -c 'import time; data = b\"x\" * (90 << 20); time.sleep(60)' & wait"
    )
    command = f"if [ {{{{how}}}} = bad ]; then {grows}; fi; echo fine"
    settings = {"retries_max": 0, "memory_gib": 50 / 1024, "cores": 0.5}
    with bag_rig(tmp_path / "rig", [["good"], ["bad"]], ["how"], command, settings=settings) as rig:
        machine = rig.machine()
        rig.until_over(20.0)
        outcomes = {one.lease.item: one for one in rig.outcomes()}
        below_it = [
            pid for pid in below(machine.process.pid) if b"90 << 20" in Path(f"/proc/{pid}/cmdline").read_bytes()
        ]

    assert outcomes[0].end is ItemEnd.DONE
    assert (outcomes[1].end, outcomes[1].exit_code) == (ItemEnd.FAILED, None)
    assert re.fullmatch(r"it used 0\.(09|1)\d* GiB, more than bag\.memory_per_item 0\.0488 GiB", outcomes[1].problem)
    assert rig.printed(outcomes[1]) == "grows\n"
    assert below_it == []
