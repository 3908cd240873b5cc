"""The state folder of an installation: its files' names, and whose they are; light, for verbs that only ask a controller."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

from windfall.errors import Misuse

ADDRESS, TOKEN, LOG, LOCK, DATABASE = "controller.json", "token", "controller.log", "controller.lock", "controller.db"


def prepare(state: Path) -> None:
    """Make the state folder, for this user alone.

    Raises:
        Misuse: it cannot be made.
    """
    try:
        state.mkdir(parents=True, mode=0o700, exist_ok=True)
    except OSError as error:
        raise Misuse(f"{state} cannot be made ({error.strerror}): name another place with --state") from error


def local_user() -> str:
    """Return the name of the user of this process."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return f"uid-{os.getuid()}"
