"""An item of several MPI ranks on one machine starts and ends as one: nothing of it is left, whichever of it dies."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from tests.bags.machines import BagRig, bag_rig, below
from tests.support.processes import alive
from windfall.bags import ItemEnd

TOGETHER_S = 2.0
RANKS = 2
SETTINGS = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_btl_vader_single_copy_mechanism": "none",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "OMP_NUM_THREADS": "1",
}
# A run that lasts for minutes.
LIQUID = """
units lj
lattice fcc 0.8
region box block 0 5 0 5 0 5
create_box 1 box
create_atoms 1 box
mass 1 1.0
velocity all create 1.5 4711
pair_style lj/cut 2.5
pair_coeff 1 1 1.0 1.0 2.5
fix move all nve
thermo 100
run 1000000
"""
MISSING = [name for name in ("mpirun", "lmp") if shutil.which(name) is None]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        bool(MISSING), reason=f"not installed: {' and '.join(MISSING)} (apt install openmpi-bin lammps)"
    ),
]


def running(mark: Path, *names: str) -> list[int]:
    """The processes of a folder's items, by the environment that they have inherited."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            if f"WINDFALL_ITEM_FOLDER={mark}".encode() not in Path(f"/proc/{name}/environ").read_bytes():
                continue
            if alive(int(name)) and (not names or Path(f"/proc/{name}/comm").read_text().strip() in names):
                found.append(int(name))
    return found


def gone_within(folder: Path, limit_s: float) -> float:
    """Wait until no process of the item is left; return how long that took [s]."""
    started = time.monotonic()
    while left := running(folder):
        assert time.monotonic() < started + limit_s, f"still there after {limit_s:g} s: {left}"
        time.sleep(0.01)
    return time.monotonic() - started


def kill_a_rank(rig: BagRig, folder: Path) -> None:
    """One rank dies, as if the kernel had no memory left."""
    del rig
    os.kill(running(folder, "lmp")[0], signal.SIGKILL)


def kill_the_launcher(rig: BagRig, folder: Path) -> None:
    """The process that started the ranks dies, and cannot end them."""
    del rig
    os.kill(running(folder, "mpirun", "orterun")[0], signal.SIGKILL)


def lose_the_machine(rig: BagRig, folder: Path) -> None:
    """The machine is lost without a word."""
    del folder
    rig.lose(rig.machines[0])


@pytest.mark.parametrize("happens", [kill_a_rank, kill_the_launcher, lose_the_machine])
def test_all_ranks_of_an_item_end_together(tmp_path: Path, happens: Callable[[BagRig, Path], None]) -> None:
    """Within two seconds no process of the item is left, and the item is tried again."""
    code = tmp_path / "code"
    code.mkdir()
    (code / "in.liquid").write_text(LIQUID)
    command = f"mpirun -np {RANKS} lmp -in in.liquid -log none -screen none"
    with bag_rig(tmp_path, [(1,)], ("x",), command, code=code, settings={"cores": float(RANKS)}) as rig:
        rig.environment = SETTINGS
        machine = rig.machine()
        first = machine.folder / "state" / "items" / "0-1"
        rig.until(lambda: len(running(first, "lmp")) == RANKS, "the ranks run")
        happens(rig, first)
        took_s = gone_within(first, TOGETHER_S)
        if happens is lose_the_machine:
            rig.machine()
        again = rig.machines[-1].folder / "state" / "items" / "0-2"
        rig.until(lambda: len(running(again, "lmp")) == RANKS, "the item is tried again")
        ends = [outcome.end for outcome in rig.outcomes()]
        rig.lose(rig.machines[-1])
        gone_within(again, TOGETHER_S)
        left = below(rig.machines[-1].process.pid)

    print(f"{happens.__name__}: {took_s:.2f} s")
    assert ends == ([] if happens is lose_the_machine else [ItemEnd.FAILED])
    assert left == []
