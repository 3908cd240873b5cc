"""The packages of the `control` extra, and the command that installs an extra from the source of this installation."""

from __future__ import annotations

import contextlib
import json
import shlex
import shutil
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from urllib.parse import unquote, urlsplit

from windfall.errors import Misuse

NAME = "windfall"
JOB_FILE_PACKAGES = ("yaml", "pydantic")
"""What reading a job file needs, and a training environment does not."""
CONTROL_PACKAGES = ("fastapi", "httpx", "pydantic", "sqlalchemy", "starlette", "uvicorn", "yaml")
"""What jobs need, and a machine that only trains does not."""


@contextlib.contextmanager
def for_job_files() -> Iterator[None]:
    """Turn a missing package into a message; put the import of `spec` inside.

    Raises:
        Misuse: one of `JOB_FILE_PACKAGES` is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = _missing(error, JOB_FILE_PACKAGES)
        raise Misuse(f"job files need the package {package}, which is not installed: {install('control')}") from error


@contextlib.contextmanager
def for_jobs() -> Iterator[None]:
    """Turn a missing package into a message; put the imports of the controller's and its client's modules inside.

    Raises:
        Misuse: one of `CONTROL_PACKAGES` is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = _missing(error, CONTROL_PACKAGES)
        raise Misuse(
            f"jobs need the package {package}, which is not installed: {install('control')}; commands on the URL of a "
            "run work without it"
        ) from error


def _missing(error: ModuleNotFoundError, packages: tuple[str, ...]) -> str:
    """Return the name of the missing package; raise the error again if it is another one."""
    package = (error.name or "").partition(".")[0]
    if package not in packages:
        raise error
    return package


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
