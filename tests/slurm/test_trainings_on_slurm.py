"""Trainings on a real Slurm that lose machines, and end with the losses of those that lost none."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from tests.slurm import two_nodes
from tests.slurm.cluster import SlurmCluster
from tests.slurm.conftest import StartSlurm
from tests.slurm.samplers import machines, remains
from tests.slurm.trainings import ROOT, bill, losses, training
from tests.support.processes import alive
from windfall.providers.slurm.machine_names import machine_name

pytestmark = [pytest.mark.slow, pytest.mark.timeout(480)]
STEPS = 400


def until_empty(cluster: SlurmCluster) -> None:
    """Wait until no job is left in the queue."""
    cluster.until(lambda: cluster.run("squeue", "--noheader") == "", "the queue is empty", 20.0)


def weights_of(model: Mapping[str, torch.Tensor]) -> dict[str, bytes]:
    """The bits of each weight."""
    return {name: weight.numpy().tobytes() for name, weight in model.items()}


def test_the_demo_loses_three_machines_and_ends_the_same(start_slurm: StartSlurm, tmp_path: Path) -> None:
    """The demo on three nodes, preempted, killed, and left behind on a lost node: losses and weights are those of one alone.

    A job of the higher partition preempts the first machine; the grace is a minute, and it leaves once it has saved. Every
    process of the second is killed. The third's slurmd dies, and Slurm gives the node up while the machine trains on.
    """
    cluster, lab = start_slurm(grace_s=60), tmp_path
    for name in ("demo", "alone"):
        shutil.copytree(ROOT / "examples" / "demo", lab / name)
    job = {
        "name": "on-slurm",
        "workdir": str(lab / "demo"),
        "resources": {"infra": "slurm/low"},
        "run": f"{shlex.quote(sys.executable)} train.py --steps {STEPS} --print-every 20",
        "work": {"steps": STEPS},
        "checkpoint": {"insure": "5s"},
    }
    alone = subprocess.run(
        [sys.executable, "train.py", "--steps", str(STEPS), "--print-every", "20"], cwd=lab / "alone",
        env=os.environ | {"FINAL": "final.pt"}, capture_output=True, text=True, check=True,
    )  # fmt: skip

    with training(cluster, lab, job) as run:
        run.until_printed("step   100")
        high = cluster.submit("sleep 3", "--partition=high", "--nodes=3")
        cluster.until(lambda: cluster.state(high) != "PENDING", "the higher job has the node", 30.0)
        run.until_printed("preempted", 60.0)
        run.until_printed("step   200")
        kill_all_of(cluster)
        run.until_printed("step   300")
        behind = lose_node(cluster)
        run.until_done()
        told = bill(run)
        run.ask("get", "on-slurm", str(lab / "result"))
        cluster.until(lambda: not machines(cluster), "the machine that was left behind has read its release", 20.0)
        until_empty(cluster)

    (saved,) = (lab / "result").iterdir()
    assert losses(run.printed) == losses(alone.stdout)
    assert weights_of(torch.load(saved)["model"]) == weights_of(torch.load(lab / "alone" / "final.pt"))
    assert [one["outcome"] for one in told] == ["preempted", "failed", "failed", "released"]
    assert told[2]["machine_id"] == behind


def kill_all_of(cluster: SlurmCluster) -> None:
    """Kill the only machine's processes, all at once, the outermost first."""
    for pid in remains(cluster):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def lose_node(cluster: SlurmCluster) -> str:
    """Kill the slurmd of the only machine's node, and have Slurm see it at once; the machine's processes live; its name."""
    ((job, pid),) = machines(cluster)
    node = cluster.job_field(job, "NodeList")
    cluster.kill(node)
    cluster.run("scontrol", "update", f"nodename={node}", "state=down", "reason=lost")
    cluster.until(lambda: cluster.state(job) == "NODE_FAIL", "Slurm gives the node up")
    assert alive(pid)
    return machine_name(job)


def alone_on_two(folder: Path) -> str:
    """What rank 0 prints of two that nobody disturbs."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    folder.mkdir()
    own = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2", "GLOO_SOCKET_IFNAME": "lo"}
    ranks = [
        subprocess.Popen(
            [sys.executable, two_nodes.__file__], cwd=folder, env=os.environ | own | {"RANK": str(rank)},
            stdout=subprocess.PIPE, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    printed = [rank.communicate(timeout=120)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0]
    return printed[0]


def kill_one(cluster: SlurmCluster, machines: list[int]) -> None:
    """Kill what one node runs."""
    del cluster
    os.kill(machines[-1], signal.SIGKILL)


def cancel_one(cluster: SlurmCluster, machines: list[int]) -> None:
    """Cancel the job of one node, a task of an array: by the task's own job id `scancel` does nothing, and says nothing."""
    lines = Path(f"/proc/{machines[-1]}/environ").read_bytes().split(b"\0")
    values = dict(line.decode().partition("=")[::2] for line in lines)
    cluster.run("scancel", f"{values['SLURM_ARRAY_JOB_ID']}_{values['SLURM_ARRAY_TASK_ID']}")


@pytest.mark.parametrize("lose", [kill_one, cancel_one])
def test_two_nodes_lose_one_and_end_the_same(
    lose: Callable[[SlurmCluster, list[int]], None], start_slurm: StartSlurm, tmp_path: Path
) -> None:
    """One of two nodes is lost in the middle: both resume, and the losses are those of an undisturbed run."""
    cluster = start_slurm()
    shutil.copytree(Path(two_nodes.__file__).parent, tmp_path / "work", ignore=shutil.ignore_patterns("test_*", "__*"))
    job = {
        "name": "two",
        "num_nodes": 2,
        "workdir": str(tmp_path / "work"),
        "resources": {"infra": "slurm/low"},
        "envs": {"STEP_S": "0.1", "GLOO_SOCKET_IFNAME": "lo"},
        "checkpoint": {"insure": "5s"},
        "run": f"{shlex.quote(sys.executable)} two_nodes.py",
        "work": {"steps": two_nodes.STEPS},
    }
    expected = losses(alone_on_two(tmp_path / "alone"))

    with training(cluster, tmp_path, job) as run:
        run.until_printed("step   150")
        machines = run.machines()
        lose(cluster, machines)
        run.until_printed("rank 0 resumed at step")
        run.until_done()

        assert len(machines) == 2
        assert len(expected) == two_nodes.STEPS // 50
        assert losses(run.printed) == expected
        assert "rank 1 resumed at step" in run.printed
        until_empty(cluster)


def test_a_job_that_waits_in_the_queue_says_why(start_slurm: StartSlurm, tmp_path: Path) -> None:
    """`windfall ps` has Slurm's reason and what it means; the job is not ordered a second time, and runs once there is room."""
    cluster = start_slurm()
    other = cluster.submit("sleep 1000", "--partition=high", "--nodes=3")
    cluster.until(lambda: cluster.state(other) == "RUNNING", "all nodes are taken")
    (tmp_path / "work").mkdir()
    job = {
        "name": "waits",
        "workdir": str(tmp_path / "work"),
        "resources": {"infra": "slurm/low"},
        "run": "echo my turn",
    }

    with training(cluster, tmp_path, job) as run:
        run.cluster.until(lambda: "queued (Resources: no fitting node is free)" in run.ask("ps"), "ps tells", 60.0)
        waiting = cluster.run("squeue", "--noheader", "--states=PENDING", "--format=%i").split()
        cluster.run("scancel", other)
        run.until_printed("my turn")
        run.until_done()

    assert len(waiting) == 1
