"""The adapters with the real libraries: an interrupted run ends with the weights of an uninterrupted one."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

import pytest

from tests.support.fake_agent import FakeAgent, finish, start

OFFLINE = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "WANDB_DISABLED": "true"}


def _train(
    agent: FakeAgent, library: str, *, restored: str = "", at: int = 0, save_at: int = 0, steps: int = 11
) -> str:
    """Run a training script; return its last line: steps and digest."""
    script = Path(__file__).with_name(f"training_{library}.py")
    variables = agent.environment(restored=restored or None, step=at) | OFFLINE
    if save_at:
        variables["SAVE_AT"] = str(save_at)
    out = finish(start([sys.executable, str(script), str(steps), str(agent.folder.parent / "out")], variables))
    return next(line for line in out.splitlines() if line.startswith("DIGEST"))


@pytest.mark.real
@pytest.mark.parametrize("library", ["transformers", "lightning"])
def test_a_resumed_run_ends_with_the_same_weights(tmp_path: Path, library: str) -> None:
    """Asked to save in the middle of an epoch, then started elsewhere: every bit of the result is the same."""
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    whole = _train(FakeAgent(tmp_path / "whole" / "session"), library)
    first = FakeAgent(tmp_path / "first" / "session")
    assert _train(first, library, save_at=5).startswith("DIGEST 5 ")
    handed = next(backup for backup in first.backups() if backup["request"] == 1)
    assert handed["step"] == 5
    assert os.path.exists(str(handed["path"]))
    second = FakeAgent(tmp_path / "second" / "session")
    assert _train(second, library, restored=str(handed["path"]), at=5) == whole


@pytest.mark.real
def test_the_trainers_pruning_does_not_touch_what_was_handed_over(tmp_path: Path) -> None:
    """With `save_total_limit=1` the Trainer deletes its folders; the newest two that were handed over stay whole."""
    pytest.importorskip("transformers")
    agent = FakeAgent(tmp_path / "session")
    _train(agent, "transformers", steps=6)
    assert [message["name"] for message in agent.messages() if message["it"] == "phase"] == ["evaluation"]
    assert [backup["step"] for backup in agent.backups()] == [2, 4, 6]
    kept = [Path(str(backup["path"])) for backup in agent.backups() if Path(str(backup["path"])).exists()]
    assert [path.name for path in kept] == ["checkpoint-4", "checkpoint-6"]
    assert not (tmp_path / "out" / "checkpoint-4").exists()
    assert all(
        (path / name).exists() for path in kept for name in ("model.safetensors", "optimizer.pt", "rng_state.pth")
    )
