"""SIGTERM to every process of the machine, data-loader workers included, still ends in a save."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("torch")

from tests.support.fake_agent import FakeAgent, finish, wait_for
from windfall.wire import script_page

SCRIPT = """
import sys, time, torch
import windfall as wf
from torch import nn
from windfall.sdk.torch import Checkpoint

class Slow(torch.utils.data.Dataset):
    def __len__(self): return 100_000
    def __getitem__(self, index):
        time.sleep(0.001)
        return torch.ones(4)

torch.set_num_threads(1)
model = nn.Linear(4, 4)
checkpoint = Checkpoint(model=model)
batches = checkpoint.loader(Slow(), batch_size=4, num_workers=2, persistent_workers=PERSISTENT)
for batch in batches:
    model(batch).sum().backward()
    if checkpoint.step():
        if FAIL: raise RuntimeError("the script's own bug")
        break
"""


def _group(process: subprocess.Popen[str]) -> list[int]:
    """Return the processes of the script's process group."""
    members = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if os.getpgid(int(entry.name)) == process.pid:
                    members.append(int(entry.name))
            except ProcessLookupError:
                continue
    return members


def _trained_until_saved(agent: FakeAgent, *, fail: bool, persistent: bool = False) -> subprocess.Popen[str]:
    process = agent.start(SCRIPT.replace("FAIL", str(fail)).replace("PERSISTENT", str(persistent)))
    words = agent.words()
    wait_for(lambda: words[script_page.STEP] >= 3 or process.poll() is not None, "three steps")
    assert len(_group(process)) >= 3
    os.killpg(process.pid, signal.SIGTERM)
    wait_for(lambda: words[script_page.SIGTERM_NS] or process.poll() is not None, "the signal")
    noticed_at = words[script_page.STEP]
    request = agent.request(noticed_at + 12, kind="emergency")
    wait_for(lambda: agent.backups() or process.poll() is not None, "the hand-over")
    (backup,) = agent.backups()
    assert backup["request"] == request
    assert os.path.exists(str(backup["path"]))
    return process


@pytest.mark.real
def test_sigterm_to_every_process_ends_in_a_save(agent: FakeAgent) -> None:
    """Workers outlive the signal for as many batches as the save needs, and the script ends well."""
    assert finish(_trained_until_saved(agent, fail=False, persistent=True)) == ""


@pytest.mark.real
def test_a_script_that_fails_with_shielded_workers_does_not_hang(agent: FakeAgent) -> None:
    """Workers that ignore everybody's SIGTERM still obey their parent's, so that an exception ends the script."""
    process = _trained_until_saved(agent, fail=True)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "the script's own bug" in err
    wait_for(lambda: not _group(process), "the workers to go")
