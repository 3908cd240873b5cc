"""`windfall drill --profile` of an elastic training: its shapes, its report, what it refuses, and a real one."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.control.house import a_job
from windfall.cli.main import main
from windfall.drill import elastic_drill_report
from windfall.drill.elastic_drill import elastic_job_of, shapes_to_drill
from windfall.drill.elastic_drill_report import DrilledShape, ElasticDrillResult
from windfall.errors import EXIT_DONE, EXIT_FAILED, EXIT_MISUSE, Misuse
from windfall.jobs import RuntimeSpec
from windfall.models.elastic_profile import even_profile, profile_of
from windfall.policies.layout import shape_rules
from windfall.shape_measurements import ChangeMeasurement

LAYER = {"forward_s": 0.01, "backward_s": 0.02, "parameters": 10}
JOB = """\
name: letters
workdir: code
run: python train.py
work: {steps: 100000}
runtime: {elastic: {nodes: 1..4}}
"""
SCRIPT = """\
import time
import torch
from windfall import elastic

torch.set_num_threads(1)
torch.manual_seed(1)

class Slow(torch.nn.Linear):
    def forward(self, values):
        time.sleep(0.002)
        return super().forward(values)

class Numbers:
    def __len__(self):
        return 64
    def __getitem__(self, number):
        values = torch.randn(16, generator=torch.Generator().manual_seed(number))
        return values, values

layers = torch.nn.Sequential(*(Slow(16, 16) for _ in range(4)))
model = elastic.Model(
    layers, torch.nn.functional.mse_loss, lambda parameters: torch.optim.SGD(parameters, lr=0.01), batch=12, micro_batch=2
)
for step, loss in model.train(Numbers(), steps=100_000):
    pass
"""


@pytest.mark.parametrize(
    ("settings", "shapes"),
    [
        ({"nodes": "2..30"}, ["1x1", "2x1", "3x1", "1x3", "1x2"]),
        ({"nodes": 2}, ["1x1", "2x1", "1x2"]),
        ({"nodes": 1}, ["1x1"]),
        ({"nodes": "1..8", "shapes": ["2x2", "4x2", "1x4"]}, ["2x2", "1x4"]),
        ({"nodes": "1..8", "shapes": ["1x1", "1x2", "4x2"]}, ["1x1", "1x2"]),
    ],
)
def test_each_change_of_a_drill_adds_a_machine_or_cuts_layers_differently(
    settings: dict[str, Any], shapes: list[str]
) -> None:
    """Of three machines, or of as many as the smallest shape needs."""
    assert [str(shape) for shape in shapes_to_drill(shape_rules.job_of(settings))] == shapes


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"profile": {"batch": 8, "micro_batch": 1, "layers": [LAYER]}}, "take it out of the file first"),
        ({"nodes": 16, "shapes": ["4x4"]}, "needs 16 machines, and a drill has 8 on this host"),
    ],
)
def test_a_training_that_cannot_be_drilled_is_refused(settings: dict[str, Any], says: str) -> None:
    """By what to change."""
    with pytest.raises(Misuse, match=says):
        elastic_job_of(a_job(runtime=RuntimeSpec("elastic", settings)))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--turns", "50"), "--turns is for parameter servers"),
        (("--steps", "3"), "--steps must be at least 4 with --profile"),
        (("--out", "nowhere/profile.yaml"), "there is no folder nowhere"),
    ],
)
def test_options_that_an_elastic_training_has_not_are_refused(
    options: tuple[str, ...], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Before anything starts."""
    monkeypatch.chdir(tmp_path)
    Path("code").mkdir()
    Path("job.yaml").write_text(JOB)

    assert main(["drill", "--profile", "job.yaml", "--state", str(tmp_path / "state"), *options]) == EXIT_MISUSE
    assert says in capsys.readouterr().err


def result(busy: float = 0.5) -> ElasticDrillResult:
    """Two shapes, and changes of two kinds."""
    changes = (
        ChangeMeasurement(1, 1, 2, 1, 0.4), ChangeMeasurement(2, 1, 1, 2, 0.7), ChangeMeasurement(1, 2, 1, 2, 0.2),
    )  # fmt: skip
    shapes = (DrilledShape("2x1", 0.3, 0.31), DrilledShape("1x2", 0.4, 0.39))
    return ElasticDrillResult("letters", even_profile(4, 6, 2, 0.6), shapes, changes, busy)


def test_the_report_says_steps_and_changes_and_ends_with_the_block() -> None:
    """The block is read by a job file; a busy host is named."""
    text = list(elastic_drill_report.lines(result()))

    assert "  2x1             0.3 s       0.31 s" in text
    assert any("another number of stages" in line and "0.7 s" in line for line in text)
    assert not any("busy" in line for line in text)
    block = yaml.safe_load("\n".join(text[text.index("runtime:") :]))["runtime"]["elastic"]["profile"]
    assert profile_of(block) == profile_of(result().block)
    assert any("The cores were 93% busy" in line for line in elastic_drill_report.lines(result(0.93)))
    told = elastic_drill_report.as_json(result())
    assert [(one["kind"], one["seen"], one["median_s"]) for one in told["changes"]] == [
        ("start", 0, None), ("added", 1, 0.4), ("deeper", 1, 0.7), ("kept", 1, 0.2),
    ]  # fmt: skip


WINDFALL = [sys.executable, "-c", "import sys; from windfall.cli.main import main; sys.exit(main(sys.argv[1:]))"]


def write_job(folder: Path, script: str) -> None:
    """Write a job file and its script."""
    (folder / "code").mkdir()
    (folder / "code" / "train.py").write_text(script)
    document = yaml.safe_load(JOB) | {"run": f"{shlex.quote(sys.executable)} train.py"}
    (folder / "job.yaml").write_text(yaml.safe_dump(document))


def drill(folder: Path, script: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Drill a script as a user does."""
    write_job(folder, script)
    return windfall(folder, "drill", "--profile", "job.yaml", *options)


def windfall(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a verb in a folder."""
    return subprocess.run(
        [*WINDFALL, *arguments, "--state", str(folder / "state")],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )


def left(folder: Path) -> list[str]:
    """Return the processes that are about a folder."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            line = Path(f"/proc/{name}/environ").read_bytes()
        except OSError:
            continue
        found += [name] if str(folder / "state" / "drills").encode() in line else []
    return found


@pytest.mark.real
def test_a_script_that_fails_is_told_by_its_own_error(tmp_path: Path) -> None:
    """With the exit code of a failure, and nothing is left."""
    pytest.importorskip("torch", reason="torch is not installed: pip install 'windfall[elastic]'")

    done = drill(tmp_path, "raise ValueError('the data is not there')")

    assert done.returncode == EXIT_FAILED, done.stderr
    assert "with exit code 1: ValueError: the data is not there" in done.stderr
    assert "Traceback" not in done.stderr
    assert left(tmp_path) == []


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_drill_that_is_killed_leaves_no_process(tmp_path: Path) -> None:
    """Its machines end with it."""
    pytest.importorskip("torch", reason="torch is not installed: pip install 'windfall[elastic]'")
    write_job(tmp_path, SCRIPT)
    command = [*WINDFALL, "drill", "--profile", "job.yaml", "--state", str(tmp_path / "state")]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        seen = [next(process.stderr), next(process.stderr)]
        assert "train in shape 1x1" in seen[1], seen
        assert len(left(tmp_path)) == 5
        process.kill()

    end_s = time.monotonic() + 20.0
    while left(tmp_path) and time.monotonic() < end_s:
        time.sleep(0.1)
    assert left(tmp_path) == []


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_drill_of_real_machines_measures_each_kind_of_change_and_plans(tmp_path: Path) -> None:
    """Its block is taken by a job file, whose plan says what each number of machines trains; no process is left."""
    pytest.importorskip("torch", reason="torch is not installed: pip install 'windfall[elastic]'")

    done = drill(tmp_path, SCRIPT, "--out", "profile.yaml", "--json")

    assert done.returncode == EXIT_DONE, done.stderr
    told = json.loads(done.stdout)
    assert [one["shape"] for one in told["shapes"]] == ["1x1", "2x1", "3x1", "1x3", "1x2"]
    assert {one["kind"]: one["seen"] > 0 for one in told["changes"]} == dict.fromkeys(
        ("start", "added", "deeper", "kept"), True
    )
    assert left(tmp_path) == []
    profile = yaml.safe_load((tmp_path / "profile.yaml").read_text())["runtime"]["elastic"]["profile"]
    assert profile == told["profile"]
    # Four layers rest 2 ms in each of six micro-batches.
    forward_s = [layer["forward_s"] for layer in profile["layers"]]
    assert len(forward_s) == 4
    assert all(0.002 <= one < 0.02 for one in forward_s)
    document = yaml.safe_load((tmp_path / "job.yaml").read_text())
    document["runtime"]["elastic"]["profile"] = profile
    (tmp_path / "planned.yaml").write_text(yaml.safe_dump(document))
    planned = windfall(tmp_path, "plan", "planned.yaml")
    assert planned.returncode == EXIT_DONE, planned.stderr
    assert "4 machines" in planned.stdout or "4x1" in planned.stdout
