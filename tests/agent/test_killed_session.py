"""A session whose processes were all killed: the next `windfall exec` of the run on this host brings in what it left."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support.live import TRAINER, WINDFALL, Machine, eventually, plain_environment

LIMIT_S = 40.0


def start(folder: Path, **environment: str) -> Machine:
    """One machine that trains on this host, with the same state folder each time."""
    (folder / "train.py").write_text(TRAINER)
    line = [*WINDFALL, "exec", "--lease", "3s", "--provider", "local", "--state", "state", "run"]
    with (folder / "printed").open("wb") as out:
        process = subprocess.Popen(
            [*line, "--", sys.executable, "train.py"],
            cwd=folder,
            env=plain_environment() | environment,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    return Machine(process, folder)


def test_the_last_output_of_a_killed_session_is_shipped_and_its_folder_removed(tmp_path: Path) -> None:
    """Whoever reads the log later finds what the script printed right before its death; no folder stays for a week."""
    first = start(tmp_path, STEPS="4000", AT_STEP="if state['step'] == 20: print('THE LAST WORDS', flush=True)")
    first.until("THE LAST WORDS")
    first.vanish()
    (folder,) = (tmp_path / "state" / "sessions").iterdir()

    second = start(tmp_path, STEPS="10")
    assert second.code() == 0, second.text

    eventually(lambda: not folder.exists(), "the dead session's folder is removed")
    logs = [*WINDFALL, "logs", str(tmp_path / "run")]
    shown = subprocess.run(logs, capture_output=True, text=True, timeout=LIMIT_S, env=plain_environment(), check=True)
    assert "THE LAST WORDS" in shown.stdout
