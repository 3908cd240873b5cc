"""Items whose MPI ranks are on two nodes of a real Slurm: whatever is killed, they end on both, and run again elsewhere."""

from __future__ import annotations

import csv
import os
import shutil
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from tests.slurm.cluster import SlurmCluster
from tests.slurm.conftest import StartSlurm
from tests.slurm.samplers import remains
from tests.slurm.trainings import Training, bill, training

pytestmark = [
    pytest.mark.real,
    pytest.mark.slow,
    pytest.mark.timeout(200),
    pytest.mark.skipif(shutil.which("mpirun") is None, reason="mpirun is not installed (apt install openmpi-bin)"),
]
TOGETHER_S = 2.0
LAUNCHER_S = 5.0
"""mpirun itself takes two seconds to end its daemons once a rank has died; its ranks are gone before [s]."""
LAUNCHERS = ("mpirun sh", "srun sh")
SETTINGS = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
# Each rank writes down who and where it is, and waits; rank 0 prints the item's result.
RANK = """
rank=${OMPI_COMM_WORLD_RANK:-$SLURM_PROCID}
note="$1/$2-$WINDFALL_ATTEMPT-$rank"
echo "$$ $SLURMD_NODENAME ${OMPI_COMM_WORLD_SIZE:-$SLURM_NTASKS}" > "$note.new"
mv "$note.new" "$note"
until [ -e "$1/go" ]; do sleep 0.1; done
[ "$rank" != 0 ] || echo "square = $(($2 * $2))"
"""


def job(folder: Path, launcher: str) -> dict[str, object]:
    """The job file of a bag of two items, each with a rank on each of two nodes."""
    work, notes = folder / "work", folder / "notes"
    work.mkdir()
    notes.mkdir()
    (work / "rank.sh").write_text(RANK)
    bag = {
        "parameters": {"x": [3, 4]}, "order": "given", "ranks": 2, "nodes_per_item": 2,
        "results": {"square": {"regex": "square = (.*)"}},
    }  # fmt: skip
    return {
        "name": "gang", "workdir": str(work), "resources": {"infra": "slurm/low"}, "envs": SETTINGS,
        "run": f"{launcher} sh rank.sh {notes} {{{{x}}}}", "bag": bag,
    }  # fmt: skip


def ranks(folder: Path, item: int, attempt: int = 1) -> list[tuple[int, str]]:
    """Pid and node of the ranks of an item's try that have started."""
    paths = [folder / "notes" / f"{item}-{attempt}-{rank}" for rank in range(2)]
    words = [path.read_text().split() for path in paths if path.exists()]
    return [(int(one[0]), one[1]) for one in words]


def mark_of(pid: int) -> bytes:
    """The variable that all processes of a try of an item have inherited, on all nodes."""
    words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return next(word for word in words if word.startswith(b"WINDFALL_ITEM_FOLDER="))


def marked(mark: bytes) -> list[int]:
    """The processes with a variable."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            state = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[0]
            if state not in "ZX" and mark in Path(f"/proc/{name}/environ").read_bytes():
                found.append(int(name))
    return found


def gone_s(find: Callable[[], list[int]], limit_s: float = TOGETHER_S) -> float:
    """How long it takes until no process is found any more [s]; fail after the limit."""
    started = time.monotonic()
    while left := find():
        assert time.monotonic() < started + limit_s, f"still there after {limit_s:g} s: {left}"
        time.sleep(0.01)
    return time.monotonic() - started


def lose_node(cluster: SlurmCluster, node: str) -> None:
    """A node loses its power: all of its processes end at once, Slurm's daemons among them."""
    victims = {cluster.pid(node)}
    for pid in cluster.processes():
        with suppress(OSError):
            if f"SLURMD_NODENAME={node}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                # With Slurm's daemon of the step, from which it descends.
                above = pid
                while above > 1:
                    victims.add(above)
                    above = int(Path(f"/proc/{above}/stat").read_text().rpartition(")")[2].split()[1])
    victims -= {os.getpid(), os.getppid()}
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in victims:
            with suppress(ProcessLookupError):
                os.kill(pid, number)


def lose_other_node(cluster: SlurmCluster, run: Training) -> None:
    """The node without the runner is gone."""
    lose_node(cluster, ranks(run.lab, 3)[1][1])


def lose_first_node(cluster: SlurmCluster, run: Training) -> None:
    """The node with the runner and the launcher is gone."""
    lose_node(cluster, ranks(run.lab, 3)[0][1])


def kill_rank(cluster: SlurmCluster, run: Training) -> None:
    """A rank dies, as if the kernel had no memory left."""
    del cluster
    os.kill(ranks(run.lab, 3)[1][0], signal.SIGKILL)


def kill_launcher(cluster: SlurmCluster, run: Training) -> None:
    """The process that started the ranks dies, and cannot end them."""
    lines = cluster.processes()
    found = [pid for pid in marked(mark_of(ranks(run.lab, 3)[0][0])) if lines.get(pid, "").startswith(LAUNCHERS)]
    for pid in found:
        # `srun` is two processes, of which the second may follow the first by itself.
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    assert found


@pytest.mark.parametrize(
    ("launcher", "happens"),
    [
        ("mpirun", lose_other_node), ("mpirun", lose_first_node), ("mpirun", kill_rank), ("mpirun", kill_launcher),
        ("srun", lose_first_node), ("srun", kill_launcher),
    ],
)  # fmt: skip
def test_ranks_on_two_nodes_end_together(
    launcher: str, happens: Callable[[SlurmCluster, Training], None], start_slurm: StartSlurm, tmp_path: Path
) -> None:
    """Within two seconds no process of the item is left on any node; it runs again, and each result is there once."""
    cluster = start_slurm(nodes=4, node_timeout_s=4)
    with training(cluster, tmp_path, job(tmp_path, launcher)) as run:
        cluster.until(lambda: len(ranks(tmp_path, 3)) == 2, f"both ranks run: {run.printed}", 60.0)
        assert len({node for _, node in ranks(tmp_path, 3)}) == 2, "a rank on each node"
        found = ranks(tmp_path, 3)
        mark, pids = mark_of(found[0][0]), {pid for pid, _ in found}
        happens(cluster, run)
        took_s = gone_s(lambda: [pid for pid in marked(mark) if pid in pids])
        gone_s(lambda: marked(mark), LAUNCHER_S if happens is kill_rank else TOGETHER_S - took_s)
        # What has failed waits behind the others; what was lost does not.
        cluster.until(lambda: max(len(ranks(tmp_path, *one)) for one in ((3, 2), (4, 1))) == 2, "an item runs", 90.0)
        (tmp_path / "notes" / "go").touch()
        run.until_done(90.0)
        rows = list(csv.DictReader(run.ask("results", "gang").splitlines()))
        machines = bill(run)
        cluster.until(lambda: not remains(cluster) and not marked(b"WINDFALL_ITEM_ALLOCATION="), "nothing lives", 40.0)

    print(f"{launcher}: {happens.__name__}: {took_s:.2f} s, {len(machines)} machines")
    assert {(row["x"], row["state"], row["square"]) for row in rows} == {("3", "done", "9"), ("4", "done", "16")}
    assert len(rows) == 2
    assert len(ranks(tmp_path, 3, 2)) == 2
    assert len(machines) == (2 if happens in (kill_rank, kill_launcher) else 4)
    assert all(one["ended"] is not None for one in machines)
