"""DistributedDataParallel over two machines: weights after losses are, bit for bit, those of an undisturbed run."""

from __future__ import annotations

import io
import os
import shlex
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.real.generations import Generations, until_committed

torch = pytest.importorskip("torch")

STEPS = 60
DDP = ("-m", "tests.real.training_ddp")
LINE = "--nnodes $WINDFALL_NODE_COUNT --node-rank $WINDFALL_NODE_RANK --master-addr $WINDFALL_MASTER_ADDR"
LAUNCHER = shlex.quote(str(Path(sys.executable).with_name("torchrun")))
TORCHRUN = f"exec {LAUNCHER} {LINE} --master-port $WINDFALL_MASTER_PORT --nproc-per-node 1 {' '.join(DDP)}"
PLAIN = (sys.executable, *DDP)


def _job(folder: Path, command: Sequence[str]) -> Generations:
    job = Generations(folder, steps=STEPS, command=command)
    job.variables |= {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": 1}
    return job


def _weights(job: Generations) -> list[dict[str, object]]:
    """Every rank's last part."""
    return [torch.load(io.BytesIO(job.run.newest(rank)), weights_only=True) for rank in range(job.nodes)]


def _same(one: object, other: object) -> bool:
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[name], other[name]) for name in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return torch.equal(one, other)
    return one == other


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("command", [PLAIN, ("sh", "-c", TORCHRUN)], ids=["env", "torchrun"])
def test_weights_are_the_same_after_a_notice_and_a_loss(command: tuple[str, ...], tmp_path: Path) -> None:
    """A member preempted with notice, then one killed without: both resume together, and nobody can tell in the end."""
    quiet = _job(tmp_path / "quiet", command)
    with quiet.generation(1) as machines:
        assert quiet.codes(machines) == [0, 0], [machine.printed for machine in machines]
    job = _job(tmp_path / "disturbed", command)
    with job.generation(1) as machines:
        machines[0].until_step(13)
        os.kill(machines[1].supervisor, signal.SIGTERM)
        assert job.codes(machines) == [75, 75], [machine.printed for machine in machines]
    saved = job.run.committed_step()
    assert saved >= 13
    with job.generation(2) as machines:
        machines[0].until_step(min(saved + 14, STEPS - 2))
        until_committed(job.run, saved + 9)
        machines[1].vanish()
        assert machines[0].code() == 75, machines[0].printed
    assert job.first_steps(machines) == {saved}
    saved = job.run.committed_step()
    with job.generation(3) as machines:
        assert job.codes(machines) == [0, 0], [machine.printed for machine in machines]
    assert job.first_steps(machines) == {saved}
    job.run.check()
    job.check_points()
    assert all(map(_same, _weights(job), _weights(quiet)))
