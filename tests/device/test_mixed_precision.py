"""Mixed precision on a device: state there, a scaler, dropout from the device's generator; on the CPU where that is all."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.real.machines import Run, wait_for

torch = pytest.importorskip("torch")

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]
no_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no CUDA device")

TRAINING = str(Path(__file__).with_name("training.py"))
STEPS = 600


def run(job: Run, hold_at: int, device: str) -> tuple[list[str], int]:
    """One machine: it stands still at a step (0: at none), and is killed without a word once something new is stored."""
    stored = job.committed_step()
    folder = Path(tempfile.mkdtemp(dir=job.folder))
    command = [
        sys.executable,
        "-m",
        "windfall.cli.main",
        "exec",
        "--policy",
        "every 100 steps",
        "--lease",
        "2s",
        job.url,
    ]
    with subprocess.Popen(
        [*command, "--", sys.executable, TRAINING, device, str(STEPS), str(hold_at)],
        cwd=folder,
        env=os.environ | {"XDG_STATE_HOME": str(folder / "state")},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        lines = []
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line.strip())
            if line.strip() == f"step {hold_at}":
                wait_for(lambda: job.committed_step() > stored, f"a save after step {stored}")
                process.kill()
        return lines, process.wait()


@pytest.mark.slow
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=no_gpu)])
def test_a_run_that_lost_two_machines_has_the_weights_of_an_undisturbed_one(tmp_path: Path, device: str) -> None:
    """Bit for bit: parameters, optimizer, scheduler, scaler, the device's generator and the data's position come back."""
    undisturbed = subprocess.run(
        [sys.executable, TRAINING, device, str(STEPS), "0"], cwd=tmp_path, capture_output=True, text=True, check=True
    ).stdout.split()[-1]
    job = Run(tmp_path)
    _, first = run(job, 250, device)
    resumed, second = run(job, 450, device)
    lines, last = run(job, 0, device)
    starts = [int(each[0].split()[-1]) for each in (resumed, lines)]
    assert (first, second, last) == (-9, -9, 0)
    assert 0 < starts[0] <= 250 < starts[1] <= 450
    assert lines[-1].split()[-1] == undisturbed
