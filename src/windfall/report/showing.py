"""The one way to rich's console: markup, emoji and highlighting are for our own words, which say it with `Text`.

A path called `lr[small]` is shown as it is, `[/x]` ends nothing, and escapes in a name are shown, not sent.
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
    """Return a console for standard output, or error, as it is now.

    Args:
        stderr: which of them.
        width: in columns; None: the terminal's.
    """
    stream = sys.stderr if stderr else sys.stdout
    # Styles are escapes too: they go past what the verbs' own output goes through.
    raw: Any = getattr(stream, "raw", stream)
    return _PlainConsole(file=raw, width=width, markup=False, emoji=False, highlight=False)
