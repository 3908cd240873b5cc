"""The text of the code that is uploaded with a job, to see which of Windfall's names it uses."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from windfall.storage.bundle import CODE_SUFFIXES, PackedBundle

_SETTINGS = (".yaml", ".yml", ".toml", ".cfg", ".ini")
_TEXT_BYTES_MAX = 1 << 20


def code_texts(code: PackedBundle) -> Iterator[bytes]:
    """Yield the content of each file that is code: neither settings, nor hidden, nor large."""
    for path in code.paths:
        place = Path(code.folder, path)
        if place.suffix not in ("", *CODE_SUFFIXES) or place.suffix in _SETTINGS or place.name.startswith("."):
            continue
        if place.is_file() and place.stat().st_size <= _TEXT_BYTES_MAX:
            yield place.read_bytes()
