"""On a disk where the job's set-up succeeded, a machine that starts again does not repeat it."""

from __future__ import annotations

from pathlib import Path

import pytest

from windfall.agent.exec_process import MachineContext
from windfall.errors import WindfallError
from windfall.linux.clock import SystemClock
from windfall.storage.object_stores import open_store
from windfall.wire.boot_data import SETUP_KEY, BootData
from windfall.wiring_node_agent import _Preparation


class Disk:
    """A machine's disk, on which agents start one after the other."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / ".windfall").mkdir(parents=True)

    def prepare(self, key: str | None, setup: str = "echo ran >> count") -> int:
        """Start an agent that prepares for a job; return how often the set-up has run on this disk."""
        environ = {"PATH": "/usr/bin:/bin"} | ({} if key is None else {SETUP_KEY: key})
        place = MachineContext("file:///none", "m", str(self.folder / ".windfall"), "local", None, environ)
        store = open_store(f"file://{self.folder}/store")
        _Preparation(place, store, SystemClock()).run(BootData("j", ("x",), setup), ())
        return len((self.folder / "count").read_text().splitlines())


@pytest.mark.real
def test_a_set_up_that_succeeded_here_is_not_repeated(tmp_path: Path) -> None:
    """The same key skips it; another key, or none, runs it."""
    disk = Disk(tmp_path)

    assert [disk.prepare(key) for key in ("a", "a", "b", "b", None, None, "b")] == [1, 1, 2, 2, 3, 4, 5]


@pytest.mark.real
def test_a_set_up_that_failed_is_repeated(tmp_path: Path) -> None:
    """A failure leaves no marker, not even that of an earlier success."""
    disk = Disk(tmp_path)
    assert disk.prepare("a") == 1
    with pytest.raises(WindfallError):
        disk.prepare("b", "echo ran >> count; exit 3")

    assert disk.prepare("b") == 3
    assert Disk(tmp_path / "another").prepare("b") == 1
