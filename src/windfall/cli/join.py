"""What a bought machine runs from its start on: `python -m windfall.cli.join`; when it ends, the machine ends."""

from __future__ import annotations

import os
import sys

from windfall.errors import EXIT_DONE, WindfallError
from windfall.wiring_keeper import run_keeper


def main() -> int:
    """Keep this machine; everything it needs is in its environment (`wire.boot`)."""
    try:
        run_keeper(os.environ)
    except WindfallError as error:
        print(f"windfall: {error}", file=sys.stderr)
        return error.exit_code
    return EXIT_DONE


if __name__ == "__main__":
    sys.exit(main())
