"""Items that go wrong while they run: each has one sentence in its outcome, nothing of it is left, and the bag continues."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.bags.machines import BagRig, bag_rig
from windfall.bags import ItemEnd, ItemOutcome, ResultRule
from windfall.terms import Seconds

TIMEOUT_S = 1.0
RULES = (ResultRule("v", "-", "v = (.*)"), ResultRule("w", "out.json", None, "w"))
DAEMON_S = "4711.25"
ANSWER = "echo v = 1; echo '{\"w\": 2}' > out.json"
# What each kind of item does, by the value of its parameter.
DOES = {
    "good": ANSWER,
    "no-command": "no-such-program --input x",
    "no-file": "echo v = 1",
    "no-match": "echo energy is unknown; echo '{\"w\": 2}' > out.json",
    "not-json": "echo v = 1; echo 'w: 2' > out.json",
    "crashes": "echo nearly there; kill -SEGV $$",
    "fails": "echo cannot open box.dat; exit 3",
    "hangs": "sleep 600",
    "ignores": "trap '' TERM INT HUP; while true; do sleep 0.2; done",
    "stops": "kill -STOP $$",
    "daemon": f"{ANSWER}; (setsid sh -c 'setsid sleep {DAEMON_S} & exec sleep {DAEMON_S}' >/dev/null 2>&1 &); sleep 0.2",
    "pipe": f"{ANSWER}; mkfifo answer.log; ln -s /etc/hostname link.log; echo kept > kept.log",
}
TOO_LONG = "x" * 200_000
SAYS = {
    "no-command": "the command ended with exit code 127: bash: line 1: no-such-program: command not found",
    "no-file": "result w: the command left no file out.json",
    "no-match": "result v: nothing in what it printed matches v = (.*)",
    "not-json": "result w: out.json is not JSON (Expecting value: line 1 column 1 (char 0))",
    "crashes": "the command was ended by SIGSEGV: nearly there",
    "fails": "the command ended with exit code 3: cannot open box.dat",
    "hangs": "it took longer than 1 s",
    "ignores": "it took longer than 1 s",
    "stops": "it took longer than 1 s",
    TOO_LONG: "the command cannot be started: its parameters are too long for a command",
}
KINDS = (*DOES, TOO_LONG)
COMMAND = "; ".join((*(f"case {{{{how}}}} in {how}) {does};; esac" for how, does in DOES.items()),))


def left_of(rig: BagRig) -> list[str]:
    """The command lines of what runs in the folder of an item."""
    sign, found = f"WINDFALL_ITEM_FOLDER={rig.folder}".encode(), []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            if sign in Path(f"/proc/{name}/environ").read_bytes():
                found.append(Path(f"/proc/{name}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip())
    return [line for line in found if line]


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, ItemOutcome]]:
    """The outcome of each kind of item, of one bag on one machine."""
    settings = {
        "retries_max": 0, "item_timeout_s": Seconds(TIMEOUT_S), "results": RULES, "collect": ("*.log",), "cores": 0.2,
    }  # fmt: skip
    folder = tmp_path_factory.mktemp("bad-items")
    with bag_rig(folder / "rig", [[how] for how in KINDS], ["how"], COMMAND, settings=settings) as rig:
        rig.machine()
        rig.until_over(30.0)
        assert rig.dispatcher.table.reason == "too many items failed"
        found = {KINDS[outcome.lease.item]: outcome for outcome in rig.outcomes()}
        assert rig.machines[0].process.poll() is None or rig.machines[0].process.returncode == 0, rig.machines[0].text
        assert left_of(rig) == [], "what an item left behind lives on while its machine does"
        yield found


@pytest.mark.real
@pytest.mark.parametrize("how", SAYS, ids=lambda how: how[:12])
def test_a_bad_item_is_explained_in_a_sentence(how: str, outcomes: dict[str, ItemOutcome]) -> None:
    """It fails, or is timed out, and its outcome says why."""
    timed_out = how in ("hangs", "ignores", "stops")
    assert outcomes[how].end is (ItemEnd.TIMED_OUT if timed_out else ItemEnd.FAILED)
    assert outcomes[how].problem == SAYS[how]


@pytest.mark.real
@pytest.mark.parametrize("how", ["good", "daemon", "pipe"])
def test_other_items_are_done_beside_bad_ones(how: str, outcomes: dict[str, ItemOutcome]) -> None:
    """A good one, one whose daemon was ended with it, and one whose pipe is no file to keep."""
    assert outcomes[how].end is ItemEnd.DONE
    assert outcomes[how].values == {"v": 1, "w": 2}
    assert [file.path for file in outcomes[how].files] == (["kept.log"] if how == "pipe" else [])


@pytest.mark.real
def test_a_machine_that_cannot_start_items_fails_none(tmp_path: Path) -> None:
    """Its runner ends with a sentence, and another machine runs what it had, without a failure that counts."""
    with bag_rig(tmp_path / "rig", [[1], [2]], ["x"], "echo {{x}}", settings={"retries_max": 0}) as rig:
        (tmp_path / "rig" / "m-0" / "state").mkdir(parents=True)
        (tmp_path / "rig" / "m-0" / "state" / "items").write_text("a file where a folder must be")
        unfit = rig.machine()
        rig.until(lambda: unfit.process.poll() is not None, "the runner gives up")
        rig.gone.add(unfit.name)
        rig.machine()
        rig.until_over()

        assert unfit.process.returncode == 1
        assert unfit.text.strip() == "windfall: cannot make the folder of an item: Not a directory"
        assert sorted(rig.done()) == [0, 1]
        assert rig.dispatcher.table.failures == 0


@pytest.mark.real
def test_a_new_runner_of_a_machine_gets_what_the_old_one_had(tmp_path: Path) -> None:
    """At once, not after the time in which a silent runner is taken for lost."""
    with bag_rig(tmp_path / "rig", [[1]], ["x"], f"echo try >> {tmp_path}/tries; sleep 0.4") as rig:
        first = rig.machine()
        rig.until((tmp_path / "tries").exists, "the item runs")
        first.kill()
        began = time.monotonic()
        rig.restart(first)
        rig.until_over(20.0)

        assert time.monotonic() - began < 15.0
        assert (tmp_path / "tries").read_text() == "try\ntry\n"
        assert sorted(rig.done()) == [0]


@pytest.mark.real
@pytest.mark.slow
def test_a_flood_of_output_costs_no_memory(tmp_path: Path) -> None:
    """Of a gigabyte that an item prints the end is kept, and its runner stays small."""
    command = "head -c 1000000000 /dev/zero | tr '\\0' x; echo; echo the end"
    with bag_rig(tmp_path / "rig", [[1], [2]], ["x"], command, settings={"cores": 2.0}) as rig:
        machine = rig.machine()
        rig.until(lambda: rig.dispatcher.table.counts.done == 1, "the first flood has passed", 110.0)
        status = Path(f"/proc/{runner_of(machine.process.pid)}/status").read_text()
        most_kib = int(status.partition("VmHWM:")[2].split()[0])
        rig.until_over(110.0)

        (outcome, _) = rig.done().values()
        assert rig.printed(outcome).endswith("\nthe end\n")
        assert len(rig.printed(outcome)) == 256 << 10
        assert most_kib < 150 << 10, f"{most_kib} KiB"


def runner_of(pid: int) -> int:
    """The process that runs items, below the one that waits for it."""
    while True:
        below = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        words = Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").split(b"\0")
        if words[-2].endswith(b"request"):
            return pid
        pid = int(below[0])


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A folder of 8 MiB."""
    folder = tmp_path / "rig" / "m-0" / "state"
    folder.mkdir(parents=True)
    line = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(folder)]
    if subprocess.run(line, capture_output=True, check=False).returncode != 0:
        pytest.skip("this user may not mount a file system")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.real
@pytest.mark.slow
def test_an_item_that_fills_its_disk_fails_alone(tmp_path: Path, small_disk: Path) -> None:
    """It fails by its own word, its folder goes, and the next item has the disk again."""
    rows = [["fills"], ["good"], ["fills"], ["good"]]
    command = "case {{how}} in fills) cat /dev/zero > big;; good) head -c 6M /dev/zero > some;; esac"
    with bag_rig(tmp_path / "rig", rows, ["how"], command, settings={"cores": 2.0, "retries_max": 1}) as rig:
        machine = rig.machine()
        rig.until_over(60.0)
        said = [outcome.problem for outcome in rig.outcomes() if outcome.end is ItemEnd.FAILED]

        assert sorted(rig.done()) == [1, 3]
        assert said == ["the command ended with exit code 1; the machine's disk is full"] * 4
        machine.kill()
        assert list((small_disk / "items").iterdir()) == []
