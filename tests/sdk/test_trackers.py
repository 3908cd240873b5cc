"""The page on experiment trackers, run as written with the real libraries, offline: one run over two machines."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import struct
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.house.source import ROOT
from tests.support.live import eventually

PAGE = (ROOT / "docs" / "howto" / "trackers.md").read_text("utf-8")
STEPS = 12
SCRIPT = """
import json, os, time

IDENTITY

steps = STEPS_OF_THE_RUN
checkpoint = wf.last()
first = json.load(open(checkpoint))["step"] if checkpoint else 0

def train(step):
    if not checkpoint and step == 8:
        open("REACHED", "w").close()
        time.sleep(600)
    return 1.0 / (step + 1)

def save_if_asked(step):
    if wf.step() or step == 4:
        with open(f"{step}.json", "w") as file:
            json.dump({"step": step + 1}, file)
        wf.backup(f"{step}.json")
        time.sleep(1.5)

TRACKER
"""


def _block(heading: str) -> str:
    section = PAGE if not heading else PAGE.split(f"\n## {heading}\n", 1)[1]
    found = re.search(r"```python\n(.*?)```", section, re.DOTALL)
    assert found is not None
    return found[1]


def _trained_on_two_machines(folder: Path, heading: str, environment: dict[str, str]) -> None:
    """Train to step 8, lose the machine without notice, and train to the end on the next."""
    text = SCRIPT.replace("IDENTITY", _block("")).replace("TRACKER", _block(heading))
    (folder / "train.py").write_text(textwrap.dedent(text).replace("STEPS_OF_THE_RUN", str(STEPS)))
    line = [sys.executable, "-m", "windfall.cli.main", "exec", "--state", str(folder / "state")]
    line += ["--provider", "local", "--policy", "every 5 steps", str(folder / "run"), "--", sys.executable, "train.py"]
    variables = os.environ | environment | {"PYTHONPATH": str(ROOT / "src")}
    with subprocess.Popen(line, cwd=folder, env=variables, start_new_session=True) as first:
        eventually((folder / "REACHED").exists, "step 8 is reached", 60.0)
        os.killpg(first.pid, signal.SIGKILL)
    again = subprocess.run(line, cwd=folder, env=variables, check=False, capture_output=True, text=True)
    assert again.returncode == 0, again.stderr


def _needs(*modules: str) -> None:
    for module in modules:
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{module} is not installed")


_BLOCK, _HEAD, _FILE_HEAD, _WHOLE, _LAST = 32_768, 7, 7, 1, 4


def _records(data: bytes) -> Iterator[bytes]:
    """The records of a `.wandb` file, which is a LevelDB log; one that its machine did not finish is left out."""
    position, parts = _FILE_HEAD, b""
    while position + _HEAD <= len(data):
        if _BLOCK - position % _BLOCK < _HEAD:
            position += _BLOCK - position % _BLOCK
            continue
        length, kind = struct.unpack_from("<HB", data, position + 4)
        parts += data[position + _HEAD : position + _HEAD + length]
        position += _HEAD + length
        if kind in (_WHOLE, _LAST) and position <= len(data):
            yield parts
            parts = b""


@pytest.mark.real
@pytest.mark.trial("F3")
def test_weights_and_biases_sees_one_run(tmp_path: Path) -> None:
    """Both machines write under the same id; the second has every step from the checkpoint on."""
    _needs("wandb")
    from wandb.proto.wandb_internal_pb2 import Record

    _trained_on_two_machines(tmp_path, "Weights & Biases", {"WANDB_MODE": "offline", "WANDB_SILENT": "true"})
    files = sorted((tmp_path / "wandb").glob("offline-run-*/run-*.wandb"))
    assert len(files) == 2
    assert len({file.stem for file in files}) == 1, "one id"
    records = [Record.FromString(data) for data in _records(files[-1].read_bytes())]
    steps = {record.history.step.num for record in records if record.WhichOneof("record_type") == "history"}
    assert steps == set(range(5, STEPS)), "what the first had not sent is gone with it"


@pytest.mark.real
@pytest.mark.trial("F3")
def test_mlflow_sees_one_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second machine finds the first one's run by its tag and adds to it."""
    _needs("mlflow")
    from mlflow.tracking import MlflowClient

    place = (tmp_path / "mlruns").as_uri()
    settings = {"MLFLOW_TRACKING_URI": place, "MLFLOW_ALLOW_FILE_STORE": "true"}
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    _trained_on_two_machines(tmp_path, "MLflow", settings)
    client = MlflowClient(place)
    experiment = client.get_experiment_by_name("gpt")
    (run,) = client.search_runs([experiment.experiment_id])
    assert {metric.step for metric in client.get_metric_history(run.info.run_id, "loss")} == set(range(STEPS))
    assert run.info.status == "FINISHED"


@pytest.mark.real
@pytest.mark.trial("F3")
def test_tensorboard_shows_each_step_once(tmp_path: Path) -> None:
    """What the first machine wrote behind its last checkpoint is hidden, and no step is missing."""
    _needs("tensorboard", "torch")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    _trained_on_two_machines(tmp_path, "TensorBoard", {})
    read = EventAccumulator(str(tmp_path / "logs"))
    read.Reload()
    assert [event.step for event in read.Scalars("loss")] == list(range(STEPS))
