"""The code that travels with a job, as its plan tells it: how much leaves this machine, and what it seems to lack."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from windfall.policies.refusing import amount
from windfall.storage.bundle import CODE_SUFFIXES, Packed

_SCRIPT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./-]*\.(py|sh|jl|R|lua)")
_CALLS = re.compile(rb"\bwindfall\b|\bWINDFALL_")
_SETTINGS = (".yaml", ".yml", ".toml", ".cfg", ".ini")
_TEXT_BYTES_MAX = 1 << 20


def code_told(code: Packed | None) -> dict[str, Any] | None:
    """Return what a plan says of the code as JSON; None without any."""
    if code is None:
        return None
    return {
        "folder": code.folder,
        "files": len(code.paths),
        "size_bytes": code.size_bytes,
        "packed_bytes": len(code.data),
        "digest": code.digest,
    }


def code_line(told: Mapping[str, Any]) -> str:
    """Return the plan's line on the code."""
    count = f"{told['files']} file{'' if told['files'] == 1 else 's'}"
    size = f"{amount(told['size_bytes'])}, packed {amount(told['packed_bytes'])}"
    return f"{told['folder']}: {count}, {size}, digest {told['digest'][:12]}"


def code_warnings(run: str, setup: str | None, code: Packed | None) -> Iterator[str]:
    """Yield what the user should know of a job's code before saying yes.

    Args:
        run: the job's command, as shell text.
        setup: what each machine runs before, which may bring code too.
        code: what travels.
    """
    missing = [path for path in _scripts(run) if code is None or path not in code.paths]
    if missing and not setup:
        where = f"not in the code of {code.folder}" if code else "and no code travels: the job file has no workdir"
        yield f"run names {', '.join(missing)}, {where}"
    if code is not None and not missing and not _CALLS.search(run.encode()) and not _calls(code):
        yield (
            "nothing in the code calls Windfall: no step will be known, nothing is saved, and each lost machine begins "
            "the job anew (wf.step() and wf.backup(path), or `windfall backup` from a shell)"
        )


def _scripts(run: str) -> list[str]:
    """Return the relative paths in a command that look like scripts; behind a `cd` they count from elsewhere."""
    try:
        words = shlex.split(run, comments=True)
    except ValueError:
        return []
    if "cd" in words or "git" in words:
        return []
    return list(dict.fromkeys(word.removeprefix("./") for word in words if _SCRIPT.fullmatch(word.removeprefix("./"))))


def _calls(code: Packed) -> bool:
    for path in code.paths:
        place = Path(code.folder, path)
        if place.suffix not in ("", *CODE_SUFFIXES) or place.suffix in _SETTINGS or place.name.startswith("."):
            continue
        if place.is_file() and place.stat().st_size <= _TEXT_BYTES_MAX and _CALLS.search(place.read_bytes()):
            return True
    return False
