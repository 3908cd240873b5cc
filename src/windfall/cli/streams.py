"""What the verbs print: somebody else's words reach the terminal as words.

A job's name, a machine's sentence, a path in a store may hold escapes that move the cursor, rename the window, or hide a
line.  While a verb runs, its standard output and error show such characters instead of sending them on.  What a script
printed goes through `buffer`, and rich's own styles go to `raw`: those are meant.
"""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Iterator
from typing import Any, TextIO, cast

from windfall.spelling import plain


class PlainStream:
    """A text stream to which nothing but text can be printed; otherwise the stream it was made of."""

    def __init__(self, raw: TextIO) -> None:
        self.raw = raw
        if isinstance(raw, io.TextIOWrapper):
            raw.reconfigure(errors="backslashreplace")

    def __getattr__(self, name: str) -> Any:
        return getattr(self.raw, name)

    def write(self, text: str) -> int:
        """Write text; its line breaks and tabs are kept."""
        return self.raw.write(plain(text, lines=True))


@contextlib.contextmanager
def plain_streams() -> Iterator[None]:
    """Let standard output and error show text alone."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (cast("TextIO", PlainStream(stream)) for stream in before)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
