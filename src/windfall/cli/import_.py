"""`windfall import`: other tools' files as job files."""

from __future__ import annotations

import json
import sys

from windfall.cli.runs import Json
from windfall.spec.needed import needed


def import_(file: str, *, json_: Json = False) -> None:
    """Print a SkyPilot or dstack task as a job file.

    What does not carry over is listed on stderr, key by key, with the reason.  What nobody but you knows is left to be
    filled in: the job file is refused until it is.

    Example: `windfall import sky.yaml > job.yaml`

    Args:
        file: the other tool's file.  It is taken for dstack's if it has a `type`.
        json_: one JSON object instead: the file, and what did not carry over.
    """
    with needed():
        from windfall.spec import carry, dstack, places, sky  # noqa: PLC0415 - their packages are an extra

    text = places.read(file)
    ours = dstack.import_dstack if "type" in carry.document_of(text, file).value else sky.import_sky
    made = ours(text, file)
    if json_:
        dropped = [{"place": str(one.place), "key": one.key, "why": one.why} for one in made.dropped]
        print(json.dumps({"yaml": made.text, "dropped": dropped, "unfilled": list(made.unfilled)}))
        return
    print(made.text, end="")
    for one in made.dropped:
        print(f"{one.place}: {one.key} {one.why}", file=sys.stderr)
    if made.unfilled:
        count = len(made.unfilled)
        places_ = f"{count} place{'' if count == 1 else 's'}"
        print(f"windfall: {places_} to fill in before it runs: {', '.join(made.unfilled)}", file=sys.stderr)
