"""How long a turn of an application computes on this computer, measured once: small machines then do not follow its moods.

The speed of a computer whose cores others share drifts by a third within minutes, and a machine of 1 % of its speed would be
slower by as much.  A machine whose turns have a known time really computes, and then rests until that time has passed.
"""

from __future__ import annotations

import importlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

TURNS = 15
"""Of each program; those of several programs take turns, so that all find the computer in the same mood."""


def turns_s(app: str, settings: Mapping[str, Any], partitions: Sequence[int]) -> dict[int, float]:
    """Return the median processor time of a turn, by the number of data partitions, in a process with one thread [s].

    Args:
        app: module of the application.
        settings: of it.
        partitions: numbers of data partitions; the first partition of each is computed.
    """
    about = json.dumps({"app": app, "settings": dict(settings), "partitions": list(partitions)})
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks._turn_time", about], check=True, stdout=subprocess.PIPE, env=environ
    )
    found = {int(count): float(took_s) for count, took_s in json.loads(done.stdout.splitlines()[-1]).items()}
    print(
        f"    a turn takes {', '.join(f'{took_s:.4g} s ({count})' for count, took_s in found.items())}", file=sys.stderr
    )
    return found


class _Table:
    """A table in this process; what is pushed is in it at once."""

    def __init__(self, program: Any) -> None:
        import numpy as np

        self._values = program.first(np.arange(program.rows))

    def pull(self, rows: Any) -> Any:
        return self._values[rows]

    def push(self, rows: Any, changes: Any) -> None:
        self._values[rows] += changes


def _measured(about: dict[str, Any]) -> dict[int, float]:
    app = importlib.import_module(about["app"])
    programs = {count: app.program(about["settings"], count) for count in about["partitions"]}
    tables = {count: _Table(program) for count, program in programs.items()}
    loaded = {count: program.load(0) for count, program in programs.items()}
    found: dict[int, list[float]] = {count: [] for count in programs}
    for clock in range(1, TURNS + 2):
        for count, program in programs.items():
            began_s = time.thread_time()
            program.compute(loaded[count], clock, tables[count])
            found[count].append(time.thread_time() - began_s)
    # The first turn compiles, and finds memory cold.
    return {count: statistics.median(times[1:]) for count, times in found.items()}


if __name__ == "__main__":
    print(json.dumps(_measured(json.loads(sys.argv[1]))))
