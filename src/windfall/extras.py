"""How to install what an extra of Windfall needs, from where this Windfall itself was installed."""

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
    """Return the line that adds an extra to this very environment, as it can be typed.

    An index knows `windfall[lab]` only if it has Windfall: what was installed from a clone, an archive or a repository
    is named by that.
    """
    python = Path(sys.prefix, "bin", "python3")
    found = shutil.which("pip")
    pip = "pip" if found and Path(found).parent == python.parent else f"{shlex.quote(str(python))} -m pip"
    editable, what = _source(extra)
    return f"{pip} install {'-e ' if editable else ''}'{what}'"


def _source(extra: str) -> tuple[bool, str]:
    """Say whether this installation follows its source, and what names that source together with the extra."""
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
    """Return what the installer wrote down of where it had Windfall from; nothing for an index."""
    try:
        found = json.loads(metadata.distribution(NAME).read_text("direct_url.json") or "{}")
    except (metadata.PackageNotFoundError, ValueError, OSError):
        return {}
    return found if isinstance(found, dict) else {}
