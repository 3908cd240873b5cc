"""What somebody may have meant, and what somebody else wrote, made fit to be shown."""

from __future__ import annotations

import difflib
import unicodedata
from collections.abc import Iterable

_BREAKS = frozenset("\n\t")


def nearest(word: str, known: Iterable[str]) -> str:
    """Return the end of a sentence: the known word that is nearest, or all of them."""
    names = list(known)
    close = difflib.get_close_matches(word.lower(), names, n=1)
    return f"did you mean {close[0]}?" if close else f"choose one of {', '.join(names)}"


def plain(text: str, *, lines: bool = False) -> str:
    r"""Return somebody else's text so that a terminal shows it and does nothing else.

    Control characters, among them escapes, line breaks and what turns the direction of writing, and halves of surrogate
    pairs are shown as `\x1b`.

    Args:
        text: of a job, a machine, a store, a file.
        lines: leave line breaks and tabs alone.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(one if _harmless(one, lines=lines) else ascii(one)[1:-1] for one in text)


def _harmless(one: str, *, lines: bool) -> bool:
    # Printable is what is neither a control nor a format character, a surrogate, a separator but the space, or unassigned.
    return one.isprintable() or unicodedata.category(one) == "Zs" or (lines and one in _BREAKS)
