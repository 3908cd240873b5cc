"""What starting costs: `windfall exec` until its script runs, and `windfall --help`; CPU seconds of all processes together.

The yardstick is a bare interpreter (`python -c pass`) of the same run, which is taken off first: a ratio of 5 means that
Windfall's part costs five bare interpreters.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from benchmarks.harness import Benchmark

MARK = "WINDFALL_BENCHMARK_START"
REPEATS = 3
# The first instruction of the script: the CPU time of every other process of this start, by the kernel's own clock.
SCRIPT = f"""
import os, time
def cpu_s(pid):
    try:
        if b"{MARK}=" + os.environb[b"{MARK}"] not in open(f"/proc/{{pid}}/environ", "rb").read():
            return 0.0
        waited = open(f"/proc/{{pid}}/stat").read().rpartition(")")[2].split()[13:15]
        return time.clock_gettime((~pid << 3) | 2) + sum(map(int, waited)) / os.sysconf("SC_CLK_TCK")
    except OSError:
        return 0.0
others = [int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) != os.getpid()]
print(sum(map(cpu_s, others)), flush=True)
"""


def benchmarks() -> list[Callable[[], Benchmark]]:
    """The pairs of this module."""
    return [exec_vs_bare_interpreter, help_vs_bare_interpreter]


def exec_vs_bare_interpreter() -> Benchmark:
    """From `windfall exec` to the first instruction of its script."""
    return Benchmark(
        "start: windfall exec vs python -c pass", lambda: _beyond(_exec_cpu_s), _bare_cpu_s, 12.5, True, "s of CPU"
    )


def help_vs_bare_interpreter() -> Benchmark:
    """`windfall --help`."""
    return Benchmark(
        "start: windfall --help vs python -c pass", lambda: _beyond(_help_cpu_s), _bare_cpu_s, 7.5, True, "s of CPU"
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
        line = [
            sys.executable,
            "-m",
            "windfall.cli.main",
            "exec",
            str(Path(folder, "run")),
            "--",
            sys.executable,
            "-c",
            SCRIPT,
        ]
        environment = os.environ | {MARK: folder, "XDG_STATE_HOME": folder}
        ran = subprocess.run(line, cwd=folder, env=environment, capture_output=True, text=True, check=True)
    return float(ran.stdout.splitlines()[0])
