"""What somebody may have meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(word: str, known: Iterable[str]) -> str:
    """Return the end of a sentence: the known word that is nearest, or all of them."""
    names = list(known)
    close = difflib.get_close_matches(word.lower(), names, n=1)
    return f"did you mean {close[0]}?" if close else f"choose one of {', '.join(names)}"
