"""The state folder of an installation: its files' names, and whose they are; light, for verbs that only ask a controller."""

from __future__ import annotations

import os
import pwd
from pathlib import Path
from urllib.parse import urlsplit

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


def web_address(url: str, option: str, example: str) -> str:
    """Return an address that something can answer at.

    Raises:
        Misuse: nothing ever could: another scheme, no host, a port that is none, a password in it.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:  # a port that is none, half of an IPv6 address
        parts, port = urlsplit(""), None
    fit = parts.scheme in ("http", "https") and parts.hostname and port != 0 and url.isprintable() and " " not in url
    if not fit or parts.query or parts.fragment or "@" in parts.netloc:
        raise Misuse(f"{option} {url!r} is no address: write for example {example}")
    return url
