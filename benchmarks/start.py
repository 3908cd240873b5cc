"""What starting costs: `windfall exec` until its script runs, and `windfall --help`; CPU seconds of all processes together.

The yardstick is a bare interpreter (`python -c pass`) of the same run, which is taken off first: a ratio of 5 means that
Windfall's part costs five bare interpreters.  The bounds are 0.25 s and 0.15 s where a bare interpreter takes 10 ms.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.harness import Benchmark

MARK = "START_BENCHMARK"
REPEATS = 3
# The script's first instruction tells the benchmark, outside its process namespace, to look; the script then waits.
SCRIPT = "echo > started; read line < measured"


def benchmarks() -> list[Callable[[], Benchmark]]:
    """The pairs of this module."""
    return [exec_vs_bare_interpreter, help_vs_bare_interpreter]


def exec_vs_bare_interpreter() -> Benchmark:
    """From `windfall exec` to the first instruction of its script."""
    return Benchmark(
        "start: windfall exec vs python -c pass", lambda: _beyond(_exec_cpu_s), _bare_cpu_s, 25.0, True, "s of CPU"
    )


def help_vs_bare_interpreter() -> Benchmark:
    """`windfall --help`."""
    return Benchmark(
        "start: windfall --help vs python -c pass", lambda: _beyond(_help_cpu_s), _bare_cpu_s, 15.0, True, "s of CPU"
    )


def _beyond(cpu_s: Callable[[], float]) -> float:
    return statistics.median(cpu_s() for _ in range(REPEATS)) - _bare_cpu_s()


def _ended_cpu_s(line: list[str]) -> float:
    """Run a command to its end; return what it and its children used [s]."""
    with subprocess.Popen(line, stdout=subprocess.DEVNULL, cwd=tempfile.gettempdir()) as process:
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, line
    return used.ru_utime + used.ru_stime


def _bare_cpu_s() -> float:
    return statistics.median(_ended_cpu_s([sys.executable, "-c", "pass"]) for _ in range(2 * REPEATS))


def _help_cpu_s() -> float:
    return _ended_cpu_s([sys.executable, "-m", "windfall.cli.main", "--help"])


def _exec_cpu_s() -> float:
    with tempfile.TemporaryDirectory() as folder:
        started, measured = Path(folder, "started"), Path(folder, "measured")
        os.mkfifo(started)
        os.mkfifo(measured)
        line = [sys.executable, "-m", "windfall.cli.main", "exec", str(Path(folder, "run")), "--", "sh", "-c", SCRIPT]
        environment = os.environ | {MARK: folder, "XDG_STATE_HOME": folder}
        with subprocess.Popen(line, cwd=folder, env=environment, stderr=subprocess.DEVNULL) as process:
            started.read_text()
            used = sum(_marked_cpu_s(int(name), folder) for name in os.listdir("/proc") if name.isdigit())
            measured.write_text("\n")
        assert process.returncode == 0, line
    return used


def _marked_cpu_s(pid: int, folder: str) -> float:
    """Return what a process of this start and its ended children used, by the kernel's own clock [s]; 0 for any other."""
    try:
        proc = Path("/proc", str(pid))
        if f"{MARK}={folder}".encode() not in (proc / "environ").read_bytes():
            return 0.0
        waited = (proc / "stat").read_text().rpartition(")")[2].split()[13:15]
        # The clock of all threads of another process (clock_getcpuclockid).
        return time.clock_gettime((~pid << 3) | 2) + sum(map(int, waited)) / os.sysconf("SC_CLK_TCK")
    except OSError:
        return 0.0
