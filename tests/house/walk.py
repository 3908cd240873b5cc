"""How many modules one thing passes through: `python -m tests.house.walk notice|run|simulate [--tree DIR] [--list]`.

A module counts if one of its functions was called in any process between start and end; classes and constants that are
made while a module is loaded do not count.  `--tree` measures another checkout of Windfall with this environment.

- notice: AWS announces the end of a machine under `windfall exec`, until the emergency save is committed.
- run: `windfall run job.yaml`, until the first machine runs the job's setup.
- simulate: `windfall simulate job.yaml`, to its end.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from tests.house.source import ROOT
from windfall.wire import metadata_server

OUT = "WINDFALL_WALK_OUT"
RECORDER = """
import os, sys, threading
OUT, ROOT, FUNCTION, SEEN = os.environ["WINDFALL_WALK_OUT"], os.environ["WINDFALL_WALK_ROOT"], 1, set()
def seen(frame, event, _argument):
    code = frame.f_code
    if event == "call" and code.co_filename not in SEEN and code.co_flags & FUNCTION:
        if code.co_filename.startswith(ROOT):
            SEEN.add(code.co_filename)
            with open(OUT, "a") as file:
                file.write(code.co_filename + "\\n")
threading.setprofile(seen)
sys.setprofile(seen)
"""
SCRIPT = """
import json, time
import windfall as wf
checkpoint = wf.last()
for step in range(600):
    time.sleep(0.1)
    if wf.step():
        with open(f"{step}.json", "w") as file:
            json.dump({"step": step + 1}, file)
        wf.backup(f"{step}.json")
"""
JOB = "name: walk\nworkdir: .\nsetup: touch {reached}; sleep 60\nrun: |\n  {python} train.py\nwork: {{steps: 600}}\n"
LIMIT_S = 120.0


def windfall(*words: str) -> list[str]:
    """The command line of a verb."""
    return [sys.executable, "-m", "windfall.cli.main", *words]


def called(line: list[str], folder: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, with a bound."""
    return subprocess.run(
        line, cwd=folder, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )


def notice(folder: Path, environment: dict[str, str]) -> None:
    """A notice of AWS, until the machine has left with its emergency save."""
    (folder / "train.py").write_text(SCRIPT)
    with served() as url:
        line = windfall("exec", "--provider", "aws", "--metadata-url", url, "run", "--", sys.executable, "train.py")
        ended = called(line, folder, environment)
    if ended.returncode != 75:
        raise SystemExit(f"exec ended with {ended.returncode}: {ended.stderr}")


@contextlib.contextmanager
def served() -> Iterator[str]:
    """AWS's metadata service with one notice."""
    event = metadata_server.ScriptedEvent(6.0, "announce", notice_s=60.0)
    server = metadata_server.serve((event,), "aws", now=time.time)
    try:
        yield server.url
    finally:
        server.close()


def run(folder: Path, environment: dict[str, str]) -> None:
    """A job, until its first machine is prepared."""
    reached = folder / "reached"
    (folder / "train.py").write_text(SCRIPT)
    (folder / "job.yaml").write_text(JOB.format(reached=reached, python=shlex.quote(sys.executable)))
    line = windfall("run", "-y", "-d", "job.yaml")
    ended = called(line, folder, environment)
    end = time.monotonic() + LIMIT_S
    while not reached.exists():
        if time.monotonic() > end:
            raise SystemExit(f"no machine came: {ended.stdout}{ended.stderr}")
        time.sleep(0.05)


def simulate(_: Path, environment: dict[str, str]) -> None:
    """A simulation of the example job, from the top of its checkout, where its folder is found by every version."""
    top = Path(environment["PYTHONPATH"].split(os.pathsep)[1]).parent
    costs = ("--step", "4.6s", "--save", "2.5s", "--upload", "3s", "--trials", "200")
    line = windfall("simulate", "examples/jobs/training.yaml", *costs)
    ended = called(line, top, environment)
    if ended.returncode != 0:
        raise SystemExit(f"simulate ended with {ended.returncode}: {ended.stderr}")


WALKS = {"notice": notice, "run": run, "simulate": simulate}


def walked(what: str, tree: Path) -> list[str]:
    """Return the modules that a walk passes through, as paths below `src/windfall`."""
    folder = Path(tempfile.mkdtemp(prefix="windfall-walk-"))
    out, source = folder / "modules", tree / "src"
    (folder / "recorder").mkdir()
    (folder / "recorder" / "sitecustomize.py").write_text(RECORDER)
    work = folder / "work"
    work.mkdir()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("WINDFALL_")}
    environment |= {"PYTHONPATH": f"{folder / 'recorder'}{os.pathsep}{source}", OUT: str(out)}
    environment |= {"WINDFALL_WALK_ROOT": f"{source / 'windfall'}{os.sep}", "HOME": str(folder)}
    environment |= {"XDG_STATE_HOME": str(folder / "state")}
    try:
        WALKS[what](work, environment)
        found = set(out.read_text().split())
    finally:
        end_all(str(out))
        shutil.rmtree(folder, ignore_errors=True)
    return sorted(os.path.relpath(path, source / "windfall") for path in found)


def end_all(mark: str) -> None:
    """Kill every process that the walk left, known by its environment."""
    for _ in range(50):
        pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
        left = [pid for pid in pids if pid != os.getpid() and _has(pid, mark)]
        if not left:
            return
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        threading.Event().wait(0.1)


def _has(pid: int, mark: str) -> bool:
    try:
        return f"{OUT}={mark}".encode() in Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False


def main() -> None:
    """Print how many modules a walk passes through, or which."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=sorted(WALKS))
    parser.add_argument("--tree", type=Path, default=ROOT)
    parser.add_argument("--list", action="store_true")
    asked = parser.parse_args()
    modules = walked(asked.what, asked.tree.resolve())
    if asked.list:
        print("\n".join(modules))
    rooms = sorted({path.split(os.sep)[0] for path in modules if os.sep in path})
    print(f"{asked.what}: {len(modules)} modules in {len(rooms)} rooms ({', '.join(rooms)})")


if __name__ == "__main__":
    main()
