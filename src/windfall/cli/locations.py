"""Where things are: the URL of a run, the state folder of an installation with its file names, and its owner."""

from __future__ import annotations

import fcntl
import os
import pwd
import re
from pathlib import Path
from urllib.parse import urlsplit

from windfall.errors import Misuse
from windfall.storage.object_stores import check_url, file_system_of, folder_url

ADDRESS, TOKEN, LOG, LOCK, DATABASE = "controller.json", "token", "controller.log", "controller.lock", "controller.db"
_SCHEMES = ("file", "s3", "gs", "az")


def state_folder() -> Path:
    """Return the folder for this machine's own files."""
    base = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return Path(base) / "windfall"


def absolute_url(url: str) -> str:
    """Return the URL of a run; a path becomes a file:// URL.

    Raises:
        Misuse: it is empty, or the scheme of a store is not followed by two slashes.
    """
    if not url.strip():
        check_url("")
    scheme, colon, rest = url.partition(":")
    if colon and scheme in _SCHEMES and not rest.startswith("//"):
        raise Misuse(f"{url} is not a URL: write {scheme}://{'/' if scheme == 'file' else ''}{rest.lstrip('/')}")
    return url if re.match("[a-z0-9]+://", url) else folder_url(url)


def prepare(state: Path) -> None:
    """Create the state folder, for this user alone.

    Raises:
        Misuse: it cannot be created.
    """
    try:
        state.mkdir(parents=True, mode=0o700, exist_ok=True)
    except OSError as error:
        raise Misuse(f"cannot create {state} ({error.strerror}): choose another folder with --state") from error


def lock_file(handle: int, state: Path, *, wait: bool) -> None:
    """Take flock(2) on a file of the state folder.

    Args:
        handle: the open file.
        state: the state folder.
        wait: whether to wait for another process that has it.

    Raises:
        BlockingIOError: another process has it.
        Misuse: the folder's file system has no locks.
    """
    try:
        fcntl.flock(handle, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError as error:
        kind = file_system_of(str(state)) or "file system"
        raise Misuse(
            f"files in {state} cannot be locked ({error.strerror}; it is on {kind}): set XDG_STATE_HOME, or --state, to a "
            "folder on a local disk"
        ) from error


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
