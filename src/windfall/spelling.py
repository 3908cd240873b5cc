"""Suggestions for misspelt names, and safe display of untrusted text."""

from __future__ import annotations

import difflib
import unicodedata
from collections.abc import Iterable

_BREAKS = frozenset("\n\t")


def nearest(word: str, known: Iterable[str]) -> str:
    """Return a suggestion: the closest known word, or all of them if none is close."""
    names = list(known)
    close = closest(word, names)
    return f"choose one of {', '.join(names)}" if close is None else f"did you mean {close}?"


def closest(word: str, known: Iterable[str]) -> str | None:
    """Return the known word that a word may be a misspelling of; None if none is close."""
    return next(iter(difflib.get_close_matches(word.lower(), list(known), n=1)), None)


def plain(text: str, *, lines: bool = False) -> str:
    r"""Return untrusted text in a form that is safe to print on a terminal.

    Control characters, including escapes, line breaks and changes of the writing direction, and lone surrogates are
    shown as `\x1b`.

    Args:
        text: from a job, a machine, a store or a file.
        lines: keep line breaks and tabs.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(one if _harmless(one, lines=lines) else ascii(one)[1:-1] for one in text)


def _harmless(one: str, *, lines: bool) -> bool:
    # Not printable are control and format characters, surrogates, unassigned characters, and separators except the space.
    return one.isprintable() or unicodedata.category(one) == "Zs" or (lines and one in _BREAKS)
