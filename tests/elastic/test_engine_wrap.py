"""A data-parallel script on machines that come and go, and sums that need not be the same to the last bit."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.elastic.elastic_script import run_file, train_wrapped
from tests.elastic.scripted_fleet import alone, fleet

STEPS = 15
DDP_SCRIPT = Path(__file__).with_name("ddp_script.py")
CHANGED = {
    "from torch.nn.parallel import DistributedDataParallel": "from windfall import elastic",
    "model = DistributedDataParallel(model)": "training = elastic.wrap(model, optimizer, loader, schedule, steps=18)",
    "    for values, targets, numbers in loader:": "    for values, targets, numbers in training:",
}
"""The three lines of the script that change."""
GONE = {
    'dist.init_process_group("gloo")': "",
    "sampler = DistributedSampler(dataset, shuffle=False)": "",
    "    sampler.set_epoch(epoch)": "",
    "batch_size=16 // dist.get_world_size(), sampler=sampler": "batch_size=16",
}
"""What belongs to the process group and its ranks, and goes with them."""


def states(folder: Path) -> list[Any]:
    return [torch.load(path) for path in sorted(folder.glob("*.pt"))]


@pytest.mark.real
@pytest.mark.timeout(300)
def test_an_ordinary_script_for_ddp_goes_from_two_to_four_to_one_to_three_machines(tmp_path: Path) -> None:
    """With three lines changed it ends with the parameters that torchrun gives it on two ranks; each sample once an epoch."""
    folder, ranks = tmp_path / "run", tmp_path / "ranks"
    for one in (folder, ranks):
        one.mkdir()
    line = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        DDP_SCRIPT,
        ranks,
        "0",
    ]
    subprocess.run(line, check=True, capture_output=True, timeout=200)
    text = DDP_SCRIPT.read_text()
    for old, new in (CHANGED | GONE).items():
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    script = tmp_path / "elastic.py"
    script.write_text(text)

    with fleet(folder, run_file, 1, file=str(script), argv=[str(folder), "0.1"]) as machines:
        machines.start("a", "b")
        machines.begin(2, 1, ["a", "b"])
        machines.start("c", "d")
        machines.wait_step(["a", "b"], 3)
        machines.plan(4, 1, ["a", "b", "c", "d"])
        machines.wait_step(["c", "d"], 7)
        machines.plan(1, 1, ["c"])
        machines.wait_step(["c"], 11)
        machines.plan(3, 1, ["a", "c", "b"])
        machines.finish(["a", "b", "c"], 18)

    (expected, _), found = states(ranks), states(folder)
    assert len(found) == 4
    for state in found:
        assert all(torch.allclose(value, state[name], rtol=1e-4, atol=1e-5) for name, value in expected.items())
    seen = [one for path in folder.glob("*.log") for row in path.read_text().splitlines() for one in json.loads(row)]
    assert sorted(seen) == sorted([*range(48)] * 6)


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_data_parallel_script_trains_on_two_four_one_and_three_machines(tmp_path: Path) -> None:
    """Parameters, momentum and schedule follow: the result is that of one process but for the order of sums; no step twice."""
    alone(tmp_path / "alone", {"steps": STEPS}, train_wrapped)
    with fleet(tmp_path / "run", train_wrapped, 1, steps=STEPS, wait_s=0.05) as machines:
        machines.start("a", "b")
        machines.begin(2, 1, ["a", "b"])
        machines.start("c", "d")
        machines.wait_step(["a", "b"], 3)
        machines.plan(4, 1, ["a", "b", "c", "d"])
        machines.wait_step(["c", "d"], 6)
        machines.plan(1, 1, ["c"])
        machines.wait_step(["c"], 9)
        machines.plan(3, 1, ["a", "c", "b"])
        machines.finish(["a", "b", "c"], STEPS)

        expected, found = (
            torch.load(path) for path in (tmp_path / "alone" / "alone.model", machines.folder / "a.model")
        )
        assert all(torch.allclose(value, found[name], rtol=1e-4, atol=1e-5) for name, value in expected.items())
        assert len(machines.digests()) == 1
        assert set(machines.repeated().values()) == {0}
        samples = machines.samples()
        for first in range(1, STEPS, 3):
            assert sorted(one for step in range(first, first + 3) for one in samples[step]) == list(range(40))


@pytest.mark.real
@pytest.mark.timeout(300)
def test_a_data_parallel_script_loses_a_machine(tmp_path: Path) -> None:
    """One of three is killed, then the backup's state serves a machine that joins: the result is that of one process."""
    alone(tmp_path / "alone", {"steps": STEPS}, train_wrapped)
    with fleet(tmp_path / "run", train_wrapped, 1, steps=STEPS, wait_s=0.05) as machines:
        machines.start("a", "b", "c", "R")
        machines.begin(3, 1, ["a", "b", "c"], backup="R")
        machines.wait_step(["a", "b", "c"], 4)
        machines.kill("a")
        machines.wait(["b", "c", "R"], lambda report: report.stopped)
        machines.begin(2, 1, ["b", "c"], step=machines.common_step(["b", "c", "R"]), gone=["a"], backup="R")
        machines.wait_step(["b", "c"], 8)
        machines.start("d")
        machines.kill("b", "c")
        machines.wait(["R"], lambda report: report.stopped)
        machines.begin(1, 1, ["d"], step=machines.common_step(["R"]), gone=["a", "b", "c"], backup="R")
        machines.finish(["d", "R"], STEPS)

        expected, found = (
            torch.load(path) for path in (tmp_path / "alone" / "alone.model", machines.folder / "d.model")
        )
        assert all(torch.allclose(value, found[name], rtol=1e-4, atol=1e-5) for name, value in expected.items())


@pytest.mark.real
@pytest.mark.timeout(300)
def test_running_statistics_are_the_same_on_all_machines(tmp_path: Path) -> None:
    """With BatchNorm in training mode all machines end with one state, statistics included, after a change of their number."""
    with fleet(tmp_path / "run", train_wrapped, 1, steps=8, wait_s=0.05, statistics=True) as machines:
        machines.start("a", "b")
        machines.begin(2, 1, ["a", "b"])
        machines.wait_step(["a", "b"], 3)
        machines.start("c")
        machines.plan(3, 1, ["b", "a", "c"])
        machines.finish(["a", "b", "c"], 8)

        first, *others = (torch.load(path) for path in sorted(machines.folder.glob("*.model")))
        assert len(others) == 2
        assert first["1.num_batches_tracked"] == 8
        assert all(torch.equal(value, other[name]) for other in others for name, value in first.items())


@pytest.mark.real
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "shape", [(2, 2), pytest.param((3, 1), marks=pytest.mark.slow)], ids=lambda shape: f"{shape[0]}x{shape[1]}"
)
def test_sums_in_any_order_give_nearly_the_same(shape: tuple[int, int], tmp_path: Path) -> None:
    """Without `deterministic` losses differ from one process's by no more than rounding does."""
    losses, _ = alone(tmp_path / "alone", {"steps": 6, "deterministic": False})
    names = [f"m{number}" for number in range(shape[0] * shape[1])]
    with fleet(tmp_path / "run", steps=6, deterministic=False) as machines:
        machines.start(*names)
        machines.begin(*shape, names)
        machines.finish(names, 6)

        assert machines.losses() == pytest.approx(losses, rel=1e-3)
