"""Context managers of a session, and the text form of the messages a script sends.

Standard library only, like everything that `import windfall` loads.
"""

from __future__ import annotations

import json
import os
from time import monotonic_ns
from types import TracebackType

from windfall.wire import script_page
from windfall.wire.script_page import PHASE, PHASE_SINCE_NS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from windfall.sdk.session import Session

USER_PHASES = ("evaluation", "compile", "data", "save")
WHY_MAX = 200
"""Longest error text that a message carries [characters]."""


class StepContext:
    """Calls `enter_step` on entry and `exit_step` on exit; an exception leaves the step incomplete."""

    __slots__ = ("_session",)

    def __init__(self, session: Session) -> None:
        self._session = session

    def __enter__(self) -> None:
        self._session.enter_step()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._session.exit_step()


class PhaseContext:
    """Shows a phase on the page and writes its duration to the message file; phases may nest."""

    __slots__ = ("_before", "_name", "_session", "_start_ns")

    def __init__(self, session: Session, name: str) -> None:
        self._session = session
        self._name = name

    def __enter__(self) -> None:
        words = self._session._words
        self._before = words[PHASE], words[PHASE_SINCE_NS]
        self._start_ns = words[PHASE_SINCE_NS] = monotonic_ns()
        words[PHASE] = script_page.PHASES.index(self._name)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        words = self._session._words
        words[PHASE], words[PHASE_SINCE_NS] = self._before
        self._session._report_phase(self._name, monotonic_ns() - self._start_ns)


def absolute(path: str | os.PathLike[str]) -> str:
    """Return the absolute path; unchanged if it is empty or the working folder no longer exists."""
    text = os.fsdecode(path)
    try:
        return os.path.abspath(text) if text else text
    except OSError:
        return text


def plain(value: object) -> object:
    """Convert a value that JSON cannot represent to a number if possible, otherwise to text."""
    try:
        return float(value)  # type: ignore[arg-type]  # tensors and numpy's scalars have __float__
    except (TypeError, ValueError, RuntimeError):
        return str(value)


def check_phase(name: str) -> None:
    """Raise ValueError if a phase does not exist."""
    if name not in USER_PHASES:
        raise ValueError(f"unknown phase {name!r}: use one of {', '.join(USER_PHASES)}")


def line_of(message: dict[str, object]) -> bytes:
    """Return a message as one line of JSON; a message that cannot be encoded is replaced by one that says why."""
    try:
        text = json.dumps(message, default=plain)
    except (ValueError, TypeError, RecursionError) as error:
        reason = str(error)[:WHY_MAX]
        text = json.dumps({"seq": message["seq"], "type": "unencodable", "what": message["type"], "reason": reason})
    return text.encode() + b"\n"
