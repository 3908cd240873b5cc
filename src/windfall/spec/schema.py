"""The job file's JSON Schema (draft 2020-12), for editors and for other programs that write job files."""

from __future__ import annotations

from typing import Any

from windfall.spec.jobfile import JobFile

FILE = "job.schema.json"
"""What the schema's file is called."""
LINK = f"# yaml-language-server: $schema={FILE}\n"
"""The first line of a job file that an editor shall check and complete; `windfall schema job` writes the file beside."""


def job_schema() -> dict[str, Any]:
    """Return the schema of a job file, with its definitions under `$defs`."""
    made: dict[str, Any] = _plain(JobFile.model_json_schema())
    return made


def _plain(node: Any) -> Any:
    """Leave out what pydantic adds: titles, defaults as they are inside, and that a key may be empty, which it may not."""
    if isinstance(node, list):
        return [_plain(item) for item in node]
    if not isinstance(node, dict):
        return node
    made = {key: _plain(item) for key, item in node.items() if key not in ("title", "default")}
    if "properties" in node:
        made["properties"] = {key: _plain(item) for key, item in node["properties"].items()}
    options = [option for option in made.get("anyOf", ()) if option != {"type": "null"}]
    if options and len(options) < len(made["anyOf"]):
        del made["anyOf"]
        made |= options[0] if len(options) == 1 else {"anyOf": options}
    return made
