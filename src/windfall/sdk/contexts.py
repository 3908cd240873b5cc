"""Context managers of a session, and how what a script gives is written down.

Standard library only, like all that `import windfall` can lead to.
"""

from __future__ import annotations

import json
import os
from time import monotonic_ns
from types import TracebackType

from windfall.wire import page
from windfall.wire.page import PHASE, PHASE_SINCE_NS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from windfall.sdk.session import Session

USER_PHASES = ("evaluation", "compile", "data", "save")
WHY_MAX = 200
"""So much of an error's words is passed on."""


class StepContext:
    """From `enter_step` to `exit_step`."""

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
    """A phase on the page, and its length in the message file; phases may nest."""

    __slots__ = ("_before", "_begin_ns", "_name", "_session")

    def __init__(self, session: Session, name: str) -> None:
        self._session = session
        self._name = name

    def __enter__(self) -> None:
        words = self._session._words
        self._before = words[PHASE], words[PHASE_SINCE_NS]
        self._begin_ns = words[PHASE_SINCE_NS] = monotonic_ns()
        words[PHASE] = page.PHASES.index(self._name)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        words = self._session._words
        words[PHASE], words[PHASE_SINCE_NS] = self._before
        self._session._tell_phase(self._name, monotonic_ns() - self._begin_ns)


def absolute(path: str | os.PathLike[str]) -> str:
    """Return the absolute path; as it is if it is none, or if the working folder is gone."""
    text = os.fsdecode(path)
    try:
        return os.path.abspath(text) if text else text
    except OSError:
        return text


def plain(value: object) -> object:
    """Turn what JSON does not know into a number where that is possible, else into text."""
    try:
        return float(value)  # type: ignore[arg-type]  # tensors and numpy's scalars have __float__
    except (TypeError, ValueError, RuntimeError):
        return str(value)


def check_phase(name: str) -> None:
    """Refuse a phase that does not exist."""
    if name not in USER_PHASES:
        raise ValueError(f"there is no phase {name!r}: the phases are {', '.join(USER_PHASES)}")


def line_of(message: dict[str, object]) -> bytes:
    """Return a message as a line; one that cannot be written says so in its place."""
    try:
        text = json.dumps(message, default=plain)
    except (ValueError, TypeError, RecursionError) as error:
        why = str(error)[:WHY_MAX]
        text = json.dumps({"seq": message["seq"], "it": "unsaid", "what": message["it"], "why": why})
    return text.encode() + b"\n"
