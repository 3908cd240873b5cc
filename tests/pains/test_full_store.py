"""Pains of others: a store that filled up, and what makes room in it."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.live import WINDFALL, plain_environment

SAVES = """
import os, sys, time
import windfall as wf
step = int(open(found).read(8)) if (found := wf.last()) else 0
while step < int(sys.argv[1]):
    with wf.step_context():
        step += 1
    open(f"{step}.bin", "w").write(f"{step:08d}" + "x" * 400_000)
    wf.backup(f"{step}.bin")
    time.sleep(0.7)
"""


@pytest.mark.real
@pytest.mark.slow
def test_a_store_that_is_full_is_healed_by_keep(tmp_path: Path) -> None:
    """Seven checkpoints fill it; the same line with `--keep 2` deletes five of them, and stores what comes."""
    unshare = ["unshare", *(["--mount"] if os.geteuid() == 0 else ["--user", "--map-root-user", "--mount"])]
    if shutil.which("unshare") is None or subprocess.run([*unshare, "true"], check=False).returncode != 0:
        pytest.skip("no mount namespace is allowed here")
    store = tmp_path / "store"
    store.mkdir()
    line = [*WINDFALL, "exec", "--policy", "never", "--state", str(tmp_path / "state")]
    code = tmp_path / "saves.py"
    code.write_text(SAVES)
    script = [str(store / "run"), "--", sys.executable, str(code)]
    full, healed = " ".join([*line, *script, "9"]), " ".join([*line, "--keep", "2", *script, "12"])
    checkpoints = shlex.join([*WINDFALL, "checkpoints", "--json", script[0]])
    both = f"mount -t tmpfs -o size=3m none {store} && cd {tmp_path} && ! {full} && {healed} && {checkpoints}"
    done = subprocess.run(
        [*unshare, "sh", "-c", both], env=plain_environment(), capture_output=True, text=True, timeout=100, check=False
    )
    said = done.stdout + done.stderr
    assert "could not be stored" in done.stderr, said
    assert "the store is full: deleting 5 superseded checkpoints early" in done.stderr, said
    assert done.returncode == 0, said
    assert re.findall(r'"step": (\d+)', done.stdout)[0] == "12", said
