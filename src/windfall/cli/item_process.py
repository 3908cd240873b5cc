"""What a machine of a bag runs: `python -m windfall.cli.item_process REQUEST`, which the node agent starts.

This process only waits and passes signals on; the runner is below it, with all items, so that they end with it.
"""

from __future__ import annotations

import os
import sys

from windfall.agent.contained_program import run_contained
from windfall.agent.exec_request import ExecRequest, load
from windfall.errors import WindfallError
from windfall.linux import processes
from windfall.wire import environment
from windfall.wire.python_programs import program
from windfall.wiring_items import run_items


def main() -> int:
    """Run as the process that waits, or with a descriptor, from which signals are read, as the runner."""
    try:
        request = load(sys.argv[1])
        if len(sys.argv) > 2:
            return run_items(request, int(sys.argv[2]), program("windfall.cli.reduce_process", sys.argv[1]))
        return _wait(request, sys.argv[1])
    except WindfallError as error:
        sys.stderr.write(f"windfall: {error}\n")
        return error.exit_code


def _wait(request: ExecRequest, path: str) -> int:
    allocation = os.environ.get(environment.ALLOCATION, "")
    # Ranks that Slurm's daemon starts on this machine are in no namespace of this process, and must be seen.
    isolation = "subreaper" if allocation else request.isolation
    code = run_contained(lambda fd: program("windfall.cli.item_process", path, str(fd)), request.cwd, isolation)
    if allocation:
        processes.kill_marked(environment.ITEM_ALLOCATION, allocation)
    return code


if __name__ == "__main__":
    sys.exit(main())
