"""`windfall schema`: the shape of everything that other programs may read."""

from __future__ import annotations

import json

from windfall.errors import Misuse
from windfall.spelling import nearest


def schema(name: str | None = None) -> None:
    """Print the JSON Schema of the job file, and of what is printed and stored.

    Draft 2020-12.  Editors check and complete a job file whose first line is
    `# yaml-language-server: $schema=job.schema.json`, with the schema beside it.

    Example: `windfall schema job > job.schema.json`

    Args:
        name: which one; without it, their names are listed.
    """
    from windfall.report import schema as schemas  # noqa: PLC0415 - only this verb needs the account's code

    if name is None:
        for known, document in schemas.DOCUMENTS.items():
            print(f"{known:<10} {document.where}")
        return
    if name not in schemas.DOCUMENTS:
        raise Misuse(f"nothing called {name!r} has a schema; {nearest(name, schemas.DOCUMENTS)}")
    print(json.dumps(schemas.schema(name), indent=2))
