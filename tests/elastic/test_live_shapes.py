"""An elastic training on a local market's machines: real verbs, real torch, machines that vanish; the same end to the bit."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.live.rig import OVER, Rig
from windfall.runtimes.shape_log import ShapeLog
from windfall.shape_status import ShapeStatus
from windfall.storage.object_stores import open_store

pytest.importorskip("torch", reason="torch is not installed: pip install 'windfall[torch]'")
pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.timeout(400)]
STEPS, WAIT_S = 150, 0.004
SCRIPT = Path(__file__).with_name("live_script.py")


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    """An installation with a controller."""
    made = Rig(tmp_path / "lab")
    try:
        made.start_controller()
        yield made
    finally:
        made.close()


def submit(rig: Rig, name: str, **settings: Any) -> str:
    """Run the script as a job."""
    run = f"{shlex.quote(sys.executable)} train.py {rig.folder / name} {STEPS} {WAIT_S}"
    runtime = {"elastic": {"deterministic": True, "save_every": 40, **settings}}
    return rig.submit({"name": name, "run": run, "runtime": runtime, "work": {"steps": STEPS}}, SCRIPT)


def status(rig: Rig, job_id: str) -> ShapeStatus | None:
    """What the coordinator last wrote."""
    return ShapeLog(open_store(rig.run_url(job_id))).status()


def until_step(rig: Rig, job_id: str, step: int, machines: int) -> ShapeStatus:
    """Wait until so many machines train, with a backup, and have come to a step."""

    def there() -> bool:
        found = status(rig, job_id)
        return (
            found is not None
            and found.backup is not None
            and found.step >= step
            and found.pipelines * found.stages >= machines
        )

    rig.until(there, f"step {step} on {machines} machines")
    found = status(rig, job_id)
    assert found is not None
    return found


def digests(rig: Rig, name: str) -> set[str]:
    """What each machine that saw the end has written."""
    return {path.read_text() for path in rig.folder.glob(f"{name}.*")}


def test_a_machine_is_killed_and_the_result_is_the_same_to_the_bit(rig: Rig) -> None:
    """One of three vanishes; the others go back one step at most, and end where one machine alone ends."""
    job_id = submit(rig, "three", nodes=3)
    before = until_step(rig, job_id, 20, 3)
    victim = next(one.name for one in before.machines if one.stage is not None)
    rig.take(victim.rpartition("-")[0], None)

    told = rig.ended(job_id)

    found = status(rig, job_id)
    assert told["phase"] in OVER
    assert told["exit_code"] == 0, rig.log()
    assert found is not None
    assert (found.step, found.checkpoint, found.over) == (STEPS, STEPS, True)
    assert found.redone <= 1
    assert found.term >= 2
    printed = rig.say("logs", job_id).splitlines()
    assert [line.partition(": ")[2] for line in printed if "step 150:" in line], printed
    assert not any(line.startswith(f"{victim.rpartition('-')[0]}: step 150") for line in printed)
    alone = submit(rig, "alone", nodes=1)
    assert rig.ended(alone)["exit_code"] == 0
    assert digests(rig, "three") == digests(rig, "alone")
    assert len(digests(rig, "alone")) == 1


def test_a_notice_in_time_costs_no_step(rig: Rig) -> None:
    """The machine that is to go trains until another has its place; nothing is given up, and nothing redone."""
    job_id = submit(rig, "noticed", nodes=2)
    before = until_step(rig, job_id, 20, 2)
    leaving = next(one.name for one in before.machines if one.stage is not None)
    rig.take(leaving.rpartition("-")[0], 30.0)

    assert rig.ended(job_id)["exit_code"] == 0, rig.log()

    found = status(rig, job_id)
    assert found is not None
    assert (found.step, found.redone, found.term, found.lost) == (STEPS, 0, 1, 0)
    assert leaving not in {one.name for one in found.machines}
    assert len(digests(rig, "noticed")) == 1


def test_the_leading_machine_is_lost_and_another_one_leads(rig: Rig) -> None:
    """With it go the coordinator, the TCP store and the backup; machines that train keep what they have."""
    job_id = submit(rig, "led", nodes=2)
    before = until_step(rig, job_id, 20, 2)
    leader = next(one.name for one in before.machines if one.reliable)
    rig.take(leader.rpartition("-")[0], None)

    assert rig.ended(job_id)["exit_code"] == 0, rig.log()

    found = status(rig, job_id)
    assert found is not None
    assert (found.step, found.over) == (STEPS, True)
    assert found.coordinator >= 2
    assert found.redone <= 1
    assert len(digests(rig, "led")) == 1


def test_a_model_that_fits_no_shape_fails_with_a_sentence(rig: Rig, tmp_path: Path) -> None:
    """The coordinator finds it out, on a machine whose script is well: the job fails, and its machines go."""
    script = tmp_path / "one_layer.py"
    script.write_text(
        "import torch\n"
        "from windfall import elastic\n"
        "pairs = torch.utils.data.TensorDataset(torch.ones(8, 2), torch.ones(8, 2))\n"
        "layers, mse = [torch.nn.Linear(2, 2)], torch.nn.functional.mse_loss\n"
        "model = elastic.Model(layers, mse, lambda one: torch.optim.SGD(one, lr=0.1), batch=4, micro_batch=2)\n"
        "list(model.train(pairs, 9))\n"
    )
    run = f"{shlex.quote(sys.executable)} train.py"
    runtime = {"elastic": {"nodes": 2, "shapes": ["1x2"]}}
    job_id = rig.submit({"name": "deep", "run": run, "runtime": runtime, "work": {"steps": 9}}, script)

    told = rig.ended(job_id)

    assert (told["phase"], told["exit_code"]) == ("failed", 1)
    assert "the nearest, 1x2: 2 stages need at least" in told["message"]
    rig.until(lambda: not rig.processes("machine", "keeper"), "nothing is left alive")
