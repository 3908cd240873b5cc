"""What an ordered machine runs from its start: `python -m windfall.cli.node_agent_process`; when it ends, the machine ends."""

from __future__ import annotations

import os
import sys

from windfall.errors import EXIT_DONE, WindfallError
from windfall.wiring_node_agent import run_node_agent


def main() -> int:
    """Run the node agent; everything it needs is in its environment (`wire.boot_data`)."""
    try:
        run_node_agent(os.environ)
    except WindfallError as error:
        print(f"windfall: {error}", file=sys.stderr)
        return error.exit_code
    return EXIT_DONE


if __name__ == "__main__":
    sys.exit(main())
