"""`windfall schema`: the JSON Schemas of everything that other programs can read."""

from __future__ import annotations

import json

from windfall.errors import Misuse
from windfall.spelling import nearest


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
            print(f"{known:<10} {document.where}")
        return
    if name not in schemas.DOCUMENTS:
        raise Misuse(f"no schema {name!r}; {nearest(name, schemas.DOCUMENTS)}")
    print(json.dumps(schemas.schema(name), indent=2))
