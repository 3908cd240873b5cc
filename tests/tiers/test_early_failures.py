"""A program that fails before training has begun: its job ends, with the reason, in place of trying for ever."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live.rig import Rig
from windfall.cli import tier_verbs
from windfall.linux.crashes import crash_text
from windfall.runtimes.tier_log import TierLog
from windfall.storage.object_stores import folder_url, open_store
from windfall.tier_layout import TierFailure

CRASHES = {
    "raises": ("raise RuntimeError('no data at /data')", "the program raised RuntimeError: no data at /data"),
    "exits": ("import sys\nsys.exit('no licence')", "the program ended its process by sys.exit('no licence')"),
    "ends its process": (
        "import os\nos._exit(7)",
        "the program ended its process with exit code 7 while it was imported",
    ),
    "lacks a module": ("import no_such_library", "app early needs the module no_such_library, which is not here"),
    "has no program": ("programme = 3", "app early has no function program(settings, partitions)"),
    "exits later": (
        "import sys\ndef program(settings, partitions):\n    sys.exit(4)",
        "the program raised RuntimeError: sys.exit(4)",
    ),
    "reads no memory": (
        "import ctypes\ndef program(settings, partitions):\n    ctypes.string_at(0)",
        "the program crashed its process: Segmentation fault, at file",
    ),
}
"""What a module does, and what a user reads of it."""
SCRIPT = (
    "import sys\nsys.exit('no data')",
    "`python -m early` failed with exit status 1 before it called windfall.paramserver.connect or wrap: no data",
)


def test_what_failed_before_training_began_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """There is no status yet; `logs` prints all failures, `ps` the newest, and nothing else."""
    url = folder_url(str(tmp_path))
    log = TierLog(open_store(url))
    assert tier_verbs.find_tiers(url) is None
    for number in (1, 2):
        log.write_failure(TierFailure(f"m-{number}", f"failure {number}"))
    found = tier_verbs.find_tiers(url)
    assert found is not None

    tier_verbs.print_failures(found)
    assert capsys.readouterr().out.splitlines() == ["m-1: failure 1", "m-2: failure 2"]
    tier_verbs.show(found, json_=False)
    assert capsys.readouterr().out == "failure failure 2 (m-2; the newest of 2)\n"


@pytest.mark.parametrize(
    ("written", "text"),
    [
        (None, ""),
        ("", ""),
        ("Fatal Python error: Aborted\n\nCurrent thread 0x1 (most recent call first):\n", ""),
        (
            'Fatal Python error: Bus error\n\nCurrent thread 0x1 (most recent call first):\n  File "/a b/c.py", line 3 in f\n',
            'the program crashed its process: Bus error, at file "/a b/c.py", line 3 in f',
        ),
        ("Fatal Python error: Segmentation fault\n\n", "the program crashed its process: Segmentation fault"),
    ],
)
def test_a_crash_is_told_by_its_signal_and_place(written: str | None, text: str, tmp_path: Path) -> None:
    """From what Python wrote as it ended; nothing was written by a process that was killed."""
    if written is not None:
        (tmp_path / "crash.txt").write_text(written)
    assert crash_text(str(tmp_path / "crash.txt")) == text


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    """An installation with a controller."""
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'windfall[paramserver]'")
    made = Rig(tmp_path / "lab")
    try:
        made.start_controller()
        yield made
    finally:
        made.close()


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("kind", [*CRASHES, "script"])
def test_a_program_that_cannot_begin_ends_its_job_with_the_reason(kind: str, rig: Rig) -> None:
    """After three tries: in the job's message, in `ps` and in `logs`; nothing is left alive."""
    text, reason = CRASHES.get(kind, SCRIPT)
    work = rig.folder / "work-early"
    work.mkdir()
    (work / "early.py").write_text(text)
    tiers = {"workers": 1, "clocks": 5} | ({} if kind == "script" else {"app": "early"})
    job = {"name": "early", "run": "python -m early", "runtime": {"paramserver": tiers}}
    job_id = rig.submit(job, None)
    told = rig.ended(job_id, 300.0)

    assert told["phase"] == "failed"
    assert reason in told["message"], told["message"]
    assert reason in rig.say("logs", job_id)
    assert reason in rig.say("ps", job_id)
    rig.until(lambda: not rig.processes("machine", "keeper"), "nothing is left alive")
