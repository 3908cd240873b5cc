"""Pains of others: symbolic links in a checkpoint, `latest` for one."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.support.live import fast, new_run

pytestmark = pytest.mark.real
SAVES = """
import os, sys
import windfall as wf
if found := wf.last():
    sys.exit(print("found", open(os.path.join(found, "latest")).read(), flush=True))
for step in range(1, 5):
    with wf.step_context():
        folder = f"ck-{step}"
        os.mkdir(folder)
        open(f"{folder}/w.bin", "w").write(f"of step {step}")
        os.symlink(sys.argv[1] or os.path.abspath(f"{folder}/w.bin"), f"{folder}/latest")
    wf.backup(folder)
sys.exit(0 if sys.argv[1] else 3)
"""


def test_an_absolute_link_within_the_checkpoint_is_stored(tmp_path: Path) -> None:
    """The next start finds under its name what it led to."""
    machine = new_run(tmp_path).start(sys.executable, "-c", SAVES, "")
    assert machine.code() == 0, machine.text
    assert "found of step 4" in machine.text
    assert "could not be stored" not in machine.text


def test_a_link_out_of_the_checkpoint_is_told(tmp_path: Path) -> None:
    """One sentence in the script's own words, in the output and in the account."""
    outside = tmp_path / "data"
    outside.write_text("big")
    run = new_run(tmp_path)
    machine = run.start(sys.executable, "-c", SAVES, str(outside), options=fast("--policy", "never"))
    assert machine.code() == 1, machine.text
    account = json.dumps(json.loads(run.say("cost", "--json", run.url).stdout))
    reason = f"{machine.folder}/ck-4/latest is a link to {outside}, outside the checkpoint: copy what it points to"
    assert machine.text.count(f"the save at step 4 could not be stored: {reason}") == 1, machine.text
    assert reason in account
