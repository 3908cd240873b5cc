"""The adapters with the real libraries: an interrupted run ends with the weights of an uninterrupted one."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest

from tests.support.fake_agent import FakeAgent
from tests.support.forked import server
from windfall.wire import script_page

OFFLINE = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "WANDB_DISABLED": "true"}


def _variables(
    agent: FakeAgent, *, restored: str = "", at: int = 0, save_at: int = 0, steps: int = 11
) -> dict[str, str]:
    """Return the environment of one training."""
    job = {"STEPS": str(steps), "OUT": str(agent.folder.parent / "out"), "SAVE_AT": str(save_at)}
    return agent.environment(restored=restored or None, step=at) | OFFLINE | job


@pytest.mark.real
@pytest.mark.parametrize("library", ["transformers", "lightning"])
def test_a_resumed_run_ends_with_the_same_weights(tmp_path: Path, library: str) -> None:
    """Saved in mid-epoch and started elsewhere, or sent SIGTERM with its workers: the same result to the bit."""
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    first, second = FakeAgent(tmp_path / "first" / "session"), FakeAgent(tmp_path / "second" / "session")
    with server(f"tests.sdk.training_{library}") as train:
        whole = train(_variables(FakeAgent(tmp_path / "whole" / "session")))
        assert train(_variables(first, save_at=5)).startswith("5 ")
        handed = next(backup for backup in first.backups() if backup["request"] == 1)
        assert handed["step"] == 5
        assert os.path.exists(str(handed["path"]))
        assert train(_variables(second, restored=str(handed["path"]), at=5)) == whole
        warned = FakeAgent(tmp_path / "warned" / "session")
        assert train(_variables(warned) | {"SIGTERM_AT": "3", "WORKERS": "1"}) == whole
        assert warned.words()[script_page.SIGTERM_NS] > 0


@pytest.mark.real
def test_the_trainers_pruning_does_not_touch_what_was_handed_over(tmp_path: Path) -> None:
    """With `save_total_limit=1` the Trainer deletes its folders; the newest two that were handed over stay whole."""
    pytest.importorskip("transformers")
    agent = FakeAgent(tmp_path / "session")
    with server("tests.sdk.training_transformers") as train:
        train(_variables(agent, steps=6))
    evaluations = [message["step"] for message in agent.messages() if message["type"] == "phase"]
    assert evaluations == [4, 6]
    assert [backup["step"] for backup in agent.backups()] == [2, 4, 6]
    kept = [Path(str(backup["path"])) for backup in agent.backups() if Path(str(backup["path"])).exists()]
    assert [path.name for path in kept] == ["checkpoint-4", "checkpoint-6"]
    assert not (tmp_path / "out" / "checkpoint-4").exists()
    assert all(
        (path / name).exists() for path in kept for name in ("model.safetensors", "optimizer.pt", "rng_state.pth")
    )
