"""The only way to rich's console: without markup, emoji and highlighting; styled output uses `Text`.

A path such as `lr[small]` or `[/x]` is printed as it is, and escape sequences in a name are shown, not sent.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from windfall.spelling import plain


class _PlainConsole(Console):
    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=plain(segment.text, lines=True))


def console(*, stderr: bool = False, width: int | None = None) -> Console:
    """Return a console for the current standard output or standard error.

    Args:
        stderr: whether to write to standard error.
        width: in columns; None: the terminal's width.
    """
    stream = sys.stderr if stderr else sys.stdout
    # Styles are escape sequences too, so they bypass the filter of the verbs' own output.
    raw: Any = getattr(stream, "raw", stream)
    return _PlainConsole(file=raw, width=width, markup=False, emoji=False, highlight=False)
