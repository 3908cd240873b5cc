"""`windfall import` and `windfall schema`: other tools' task files as job files, and the schemas of all formats."""

from __future__ import annotations

import json
import sys

from windfall.cli.options import Json
from windfall.errors import Misuse
from windfall.extras import for_job_files
from windfall.spelling import nearest


def import_(file: str, /, *, json_: Json = False) -> None:
    """Convert a SkyPilot or dstack task file, or a bag of SciSpot's, to a job file.

    Keys that cannot be converted are listed on stderr, with the reason.  Values that only you know are marked for you to
    fill in; until then, the job file does not run.

    Example: `windfall import sky.yaml > job.yaml`

    Args:
        file: the task file; a file with a `type` key is read as dstack's; SciSpot's is its parameter space or its settings.
        json_: print one JSON object: the job file, and the keys that were not converted.
    """
    with for_job_files():
        from windfall.spec import dstack, import_draft, scispot_files, sky, yaml_positions  # noqa: PLC0415 - their packages are an extra

    text = yaml_positions.read(file)
    value = import_draft.document_of(text, file).value
    if scispot_files.is_scispot(value):
        made = scispot_files.import_scispot(text, file)
    else:
        made = (dstack.import_dstack if "type" in value else sky.import_sky)(text, file)
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


def schema(name: str | None = None, /) -> None:
    """Print the JSON Schema of the job file, of --json output, or of stored objects.

    Draft 2020-12.  Editors check and complete a job file that starts with
    `# yaml-language-server: $schema=job.schema.json` and has the schema next to it.

    Example: `windfall schema job > job.schema.json`

    Args:
        name: name of the schema; without it, list the names.
    """
    from windfall.report import json_schema as schemas  # noqa: PLC0415 - only this verb needs the account's code

    if name is None:
        for known, document in schemas.DOCUMENTS.items():
            print(f"{known:<11} {document.where}")
        return
    if name not in schemas.DOCUMENTS:
        raise Misuse(f"no schema {name!r}; {nearest(name, schemas.DOCUMENTS)}")
    print(json.dumps(schemas.schema(name), indent=2))
