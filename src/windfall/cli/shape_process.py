"""What a machine of an elastic training runs: `python -m windfall.cli.shape_process REQUEST`, which the node agent starts.

This process only waits and passes signals on; the script, and the coordinator on one machine, are below it and end with it.
"""

from __future__ import annotations

import importlib
import os
import sys

from windfall.agent.contained_program import run_contained
from windfall.agent.exec_request import load
from windfall.errors import EXIT_FAILED, Misuse, WindfallError
from windfall.wire.environment import PEERS_TOKEN
from windfall.wire.python_programs import program


def main() -> int:
    """Run as the process that waits, or, with a descriptor, as the machine's program."""
    try:
        request = load(sys.argv[1])
        if len(sys.argv) > 2:
            machine = importlib.import_module("windfall.wiring_shapes")
            return int(machine.run_machine(request, int(sys.argv[2])))
        if not os.environ.pop(PEERS_TOKEN, ""):
            raise Misuse(
                f"{PEERS_TOKEN} is not set: a controller starts the machines of an elastic training; use windfall run JOB"
            )
        argv = ("windfall.cli.shape_process", sys.argv[1])
        return run_contained(lambda fd: program(*argv, str(fd)), request.cwd, request.isolation)
    except WindfallError as error:
        sys.stderr.write(f"windfall: {error}\n")
        return error.exit_code or EXIT_FAILED


if __name__ == "__main__":
    sys.exit(main())
