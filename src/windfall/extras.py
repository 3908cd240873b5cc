"""The command that installs an extra of Windfall, from the source of the current installation."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from importlib import metadata
from pathlib import Path
from urllib.parse import unquote, urlsplit

NAME = "windfall"


def install(extra: str) -> str:
    """Return the command that installs an extra into this environment.

    `windfall[lab]` works only if Windfall came from a package index; an installation from a clone, an archive or a
    repository is named by that source.
    """
    python = Path(sys.prefix, "bin", "python3")
    found = shutil.which("pip")
    pip = "pip" if found and Path(found).parent == python.parent else f"{shlex.quote(str(python))} -m pip"
    editable, what = _source(extra)
    return f"{pip} install {'-e ' if editable else ''}'{what}'"


def _source(extra: str) -> tuple[bool, str]:
    """Return whether this installation is editable, and the requirement that names its source with the extra."""
    origin = _origin()
    url = str(origin.get("url", ""))
    if not url:
        return False, f"{NAME}[{extra}]"
    parts = urlsplit(url)
    if parts.scheme == "file" and "dir_info" in origin:
        return bool(origin["dir_info"].get("editable")), f"{unquote(parts.path)}[{extra}]"
    if vcs := origin.get("vcs_info"):
        url = f"{vcs['vcs']}+{url}@{vcs['commit_id']}"
    return False, f"{NAME}[{extra}] @ {url}"


def _origin() -> dict[str, dict[str, str]]:
    """Return the installer's record of the source of Windfall; empty for a package index."""
    try:
        found = json.loads(metadata.distribution(NAME).read_text("direct_url.json") or "{}")
    except (metadata.PackageNotFoundError, ValueError, OSError):
        return {}
    return found if isinstance(found, dict) else {}
