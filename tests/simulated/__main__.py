"""`python -m tests.simulated [--json]`: run the jobs of the table live, simulate them, print the table; about 20 minutes."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

from tests.simulated import living, matrix


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulated", description=__doc__)
    parser.add_argument("--json", action="store_true", help="table and inputs as one JSON object")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, living.installation(Path(folder) / "rig") as rig:
        made = matrix.run(rig)
    print(json.dumps(matrix.as_json(made)) if arguments.json else matrix.report(made))
    errors = (matrix.steps_mae(made.cells), matrix.finish_mae(made.cells))
    return 1 if max(errors) > matrix.ERROR_MAX else 0


if __name__ == "__main__":
    sys.exit(main())
