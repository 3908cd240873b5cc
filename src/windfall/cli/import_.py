"""`windfall import`: convert other tools' task files to job files."""

from __future__ import annotations

import json
import sys

from windfall.cli.options import Json
from windfall.extras import for_job_files


def import_(file: str, /, *, json_: Json = False) -> None:
    """Convert a SkyPilot or dstack task file to a job file.

    Keys that cannot be converted are listed on stderr, with the reason.  Values that only you know are marked for you to
    fill in; until then, the job file does not run.

    Example: `windfall import sky.yaml > job.yaml`

    Args:
        file: the task file; a file with a `type` key is read as dstack's.
        json_: print one JSON object: the job file, and the keys that were not converted.
    """
    with for_job_files():
        from windfall.spec import dstack, import_draft, sky, yaml_positions  # noqa: PLC0415 - their packages are an extra

    text = yaml_positions.read(file)
    ours = dstack.import_dstack if "type" in import_draft.document_of(text, file).value else sky.import_sky
    made = ours(text, file)
    if json_:
        dropped = [{"position": str(one.position), "key": one.key, "reason": one.reason} for one in made.dropped]
        print(json.dumps({"yaml": made.text, "dropped": dropped, "unfilled": list(made.unfilled)}))
        return
    print(made.text, end="")
    for one in made.dropped:
        print(f"{one.position}: {one.key} {one.reason}", file=sys.stderr)
    if made.unfilled:
        count = len(made.unfilled)
        values = f"{count} value{'' if count == 1 else 's'}"
        print(f"windfall: {values} to fill in before it runs: {', '.join(made.unfilled)}", file=sys.stderr)
