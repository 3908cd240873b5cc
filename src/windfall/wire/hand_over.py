"""The files by which an item's script hands over a save to its runner, and by which the runner answers.

Both are in the item's folder and are replaced whole.  Standard library only.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

HANDED, ANSWER = ".handed.json", ".handed-answer.json"
"""What the script hands over, and the runner's answer."""


def read_handed(folder: Path) -> tuple[int, tuple[str, ...]]:
    """Return the number of the newest save that was handed over, and its files; 0 for none."""
    try:
        written = json.loads((folder / HANDED).read_bytes())
        return int(written["number"]), tuple(str(path) for path in written["files"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0, ()


def write_handed(folder: Path, number: int, files: Sequence[str]) -> None:
    """Hand over files, relative to the folder, the newest last."""
    _replace(folder / HANDED, {"number": number, "files": list(files)})


def read_answer(folder: Path) -> tuple[int, str]:
    """Return the number of the newest save that the runner has answered, and what was wrong with it; 0 before the first."""
    try:
        written = json.loads((folder / ANSWER).read_bytes())
        return int(written["number"]), str(written["problem"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0, ""


def write_answer(folder: Path, number: int, problem: str) -> None:
    """Answer: up to this number saves are stored, or were not for a reason."""
    _replace(folder / ANSWER, {"number": number, "problem": problem})


def _replace(path: Path, content: dict[str, object]) -> None:
    new = path.with_name(f"{path.name}.new")
    new.write_text(json.dumps(content))
    os.replace(new, path)
