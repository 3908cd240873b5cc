"""How soon the agent reacts, in whole runs of `windfall exec`; the moments are read from the run's journal."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.harness import Benchmark
from windfall.cli.run_verbs import read_rows
from windfall.events import NoticeReceived, PublishSave, Row, ScriptExited
from windfall.storage import object_stores
from windfall.wire.metadata_server import serve

DETECTION_LIMIT_S = 0.020
POLL_S = 1.0
REQUEST_LIMIT_S = POLL_S + 0.050

DYING = "import os, time; print(time.monotonic_ns(), flush=True); os.kill(os.getpid(), 9)"
STEPPING = """
import time
import windfall as wf
for step in range(100_000):
    wf.enter_step(); time.sleep(0.005); wf.exit_step()
    if wf.check_save():
        open("state", "w").write(str(step))
        wf.backup("state")
    if step == 50:
        print("steps", flush=True)
"""


def _exec(run: Path, script: str, *options: str) -> subprocess.Popen[str]:
    run.mkdir(parents=True)
    line = [sys.executable, "-m", "windfall.cli.main", "exec", *options, str(run / "store"), "--"]
    return subprocess.Popen(
        [*line, sys.executable, "-c", script],
        cwd=run,
        env=os.environ | {"XDG_STATE_HOME": str(run / "state")},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


def _rows(run: Path) -> tuple[Row, ...]:
    return read_rows(object_stores.open_reader(str(run / "store")))


def _moment(run: Path, wanted: Callable[[Row], bool]) -> float:
    return next(row.at for row in _rows(run) if wanted(row))


def _has_fact(kind: type) -> Callable[[Row], bool]:
    return lambda row: any(isinstance(fact, kind) for fact in row.facts)


def death_to_detection() -> Benchmark:
    """From the script's last act before SIGKILL to the agent's fact that it has ended, against the limit of 20 ms."""
    folder = tempfile.TemporaryDirectory()
    rounds = iter(range(1000))

    def once() -> float:
        run = Path(folder.name) / str(next(rounds))
        process = _exec(run, DYING, "--max-failures", "1")
        out, _ = process.communicate(timeout=60)
        return _moment(run, _has_fact(ScriptExited)) - int(out) / 1e9

    return Benchmark(
        "death of the script -> detection",
        once,
        lambda: DETECTION_LIMIT_S,
        target=1.0,
        at_most=True,
        unit="s",
        close=folder.cleanup,
    )


def notice_to_request() -> Benchmark:
    """From the cloud's announcement to the request in the script's page, against one poll (1 s) + 50 ms."""
    folder = tempfile.TemporaryDirectory()
    rounds = iter(range(1000))
    chance = random.Random(1)

    def once() -> float:
        run = Path(folder.name) / str(next(rounds))
        with serve((), "aws", now=time.time) as cloud:
            process = _exec(run, STEPPING, "--provider", "aws", "--metadata-url", cloud.url)
            assert process.stdout is not None
            process.stdout.readline()
            # The announcement comes at any phase of the poll.
            time.sleep(chance.random() * POLL_S)
            announced = time.monotonic()
            cloud.announce(20.0)
            process.communicate(timeout=60)

        def asks(row: Row) -> bool:
            return _has_fact(NoticeReceived)(row) and any(isinstance(each, PublishSave) for each in row.commands)

        return _moment(run, asks) - announced

    return Benchmark(
        "notice -> request in the page",
        once,
        lambda: REQUEST_LIMIT_S,
        target=1.0,
        at_most=True,
        unit="s",
        close=folder.cleanup,
    )


def benchmarks() -> list[Callable[[], Benchmark]]:
    return [death_to_detection, notice_to_request]
