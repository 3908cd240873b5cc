"""The state folder of an installation: its file names and its owner; light, for verbs that only query a controller."""

from __future__ import annotations

import os
import pwd
from pathlib import Path
from urllib.parse import urlsplit

from windfall.errors import Misuse

ADDRESS, TOKEN, LOG, LOCK, DATABASE = "controller.json", "token", "controller.log", "controller.lock", "controller.db"


def prepare(state: Path) -> None:
    """Create the state folder, for this user alone.

    Raises:
        Misuse: it cannot be created.
    """
    try:
        state.mkdir(parents=True, mode=0o700, exist_ok=True)
    except OSError as error:
        raise Misuse(f"cannot create {state} ({error.strerror}): choose another folder with --state") from error


def local_user() -> str:
    """Return the name of the user of this process."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return f"uid-{os.getuid()}"


def web_address(url: str, option: str, example: str) -> str:
    """Return a web address, checked.

    Raises:
        Misuse: it has another scheme, no host, an invalid port, or a password.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:  # an invalid port, half of an IPv6 address
        parts, port = urlsplit(""), None
    fit = parts.scheme in ("http", "https") and parts.hostname and port != 0 and url.isprintable() and " " not in url
    if not fit or parts.query or parts.fragment or "@" in parts.netloc:
        raise Misuse(f"{option}: must be an http(s) address such as {example}, not {url!r}")
    return url
