"""Which files of a folder are code that may travel, and which must not leave without a word.

In a git tree it is what git would consider (`git ls-files`); elsewhere everything but what tools make (`SKIPPED`) and what
`.gitignore` names.  In both `.windfallignore`, of the same syntax and at any depth, leaves out more.  Never part of it:
runs of Windfall and its state folders, by the files that mark them.  What looks like a key is found here too
(`key_files`); a line `!path` in `.windfallignore` says that it is meant to travel.
"""

from __future__ import annotations

import fnmatch
import functools
import json
import os
import re
import subprocess
from collections.abc import Callable, Iterable, Iterator

from pathspec import GitIgnoreSpec

from windfall.wire.layout import MARKER

SKIPPED = (".git", ".venv", "venv", "node_modules", "__pycache__", "*.pyc", ".windfall")
"""Names that are no code, at any depth."""
ENVIRONMENT = "pyvenv.cfg"
"""A folder that holds this is a virtual environment, whatever its name."""
IGNORE = ".windfallignore"
"""What stays behind, in the syntax of `.gitignore`."""
STATE = ("controller.db", "controller.lock")
"""A folder that holds these is the state folder of a Windfall."""
KEY_NAMES: tuple[tuple[str, str], ...] = (
    (".env", "variables with keys"),
    (".env.*", "variables with keys"),
    (".envrc", "variables with keys"),
    ("id_rsa", "an SSH key"),
    ("id_dsa", "an SSH key"),
    ("id_ecdsa", "an SSH key"),
    ("id_ed25519", "an SSH key"),
    ("*.ppk", "an SSH key"),
    ("*.pem", "a private key"),
    ("*.p12", "a private key"),
    ("*.pfx", "a private key"),
    ("*.jks", "a store of keys"),
    ("*.keystore", "a store of keys"),
    ("*.kdbx", "a store of passwords"),
    (".netrc", "passwords"),
    ("_netrc", "passwords"),
    (".pgpass", "passwords"),
    (".htpasswd", "passwords"),
    (".pypirc", "passwords"),
    (".git-credentials", "passwords"),
    ("credentials", "a cloud's credentials"),
    ("credentials.json", "a cloud's credentials"),
    ("application_default_credentials.json", "a cloud's credentials"),
    ("service[-_]account*.json", "a cloud's credentials"),
    ("kubeconfig", "a cluster's credentials"),
)
"""Names of files that hold keys, and what they are."""
_HARMLESS = re.compile(r"\.(example|sample|template|dist|pub)$", re.IGNORECASE)
_KEY_FOLDERS = (".ssh", ".gnupg", ".aws", ".kube", ".azure", ".docker")
_CERTIFICATE = re.compile(rb"-----BEGIN (?:TRUSTED )?CERTIFICATE|-----BEGIN (?:RSA )?PUBLIC KEY")
_PRIVATE = rb"-----BEGIN (?:[A-Z]+ )*PRIVATE KEY(?: BLOCK)?-----"
_CONTENTS: tuple[tuple[re.Pattern[bytes], str], ...] = (
    (re.compile(_PRIVATE + rb"[A-Za-z0-9+/=\\nr\s:,-]{64}"), "a private key in it"),
    (re.compile(rb"\b(?:AKIA|ASIA)[A-Z2-7]{16}\b(?<!EXAMPLE)"), "an AWS key in it"),
    (re.compile(rb"\b(?:gh[pousr]_[A-Za-z0-9]{36}|hf_[A-Za-z0-9]{34})\b"), "a token in it"),
)
CONTENT_BYTES_MAX = 256 * 1024
"""Files up to this size are looked into [B]."""


def code_files(folder: str) -> Iterator[str]:
    """Yield the relative paths of the files and links that belong to the code."""
    listed = _listed_by_git(folder)
    leaves = _Ignoring(folder, (IGNORE,) if listed is not None else (IGNORE, ".gitignore"))
    if listed is None:
        yield from _walk(folder, leaves)
        return
    places = {os.path.dirname(path) for path in listed if os.path.basename(path) in (ENVIRONMENT, MARKER, STATE[0])}
    apart = {place for place in places if place and _is_apart(os.path.join(folder, place))}
    for path in listed:
        source = os.path.join(folder, path)
        if _skipped(path) or below(path, apart) or not os.path.lexists(source) or leaves(path):
            continue
        if os.path.isdir(source) and not os.path.islink(source):
            yield from (f"{path.rstrip('/')}/{inner}" for inner in code_files(source))
        else:
            yield path


def below(path: str, places: Iterable[str]) -> bool:
    """Say whether a path is one of the places, or inside one."""
    return any(path == place or path.startswith(f"{place}/") for place in places)


def key_files(folder: str, paths: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield each path that looks like a key, and why, unless `.windfallignore` says that it is meant to travel."""
    meant = _Ignoring(folder, (IGNORE,))
    for path in paths:
        if meant.decided(path) is not False and (why := _key(os.path.join(folder, path), path)):
            yield path, why


def _key(source: str, path: str) -> str | None:
    name = os.path.basename(path)
    if _HARMLESS.search(name):
        return None
    content = b""
    if os.path.isfile(source) and os.path.getsize(source) <= CONTENT_BYTES_MAX:
        with open(source, "rb") as file:
            content = file.read()
    named = next((what for pattern, what in KEY_NAMES if fnmatch.fnmatch(name.lower(), pattern)), None)
    if named and not (name.endswith(".pem") and _CERTIFICATE.search(content) and not re.search(_PRIVATE, content)):
        return f"{named}, by its name"
    folders = set(path.split("/")[:-1]) & set(_KEY_FOLDERS)
    if (folders and name not in ("known_hosts", "config")) or (
        folders & {".kube", ".docker"} and name.startswith("config")
    ):
        return f"keys, by its folder {min(folders)}"
    return next((what for pattern, what in _CONTENTS if pattern.search(content)), None)


class _Ignoring:
    """What the ignore files of a folder and of the folders inside it say of a path."""

    def __init__(self, folder: str, names: tuple[str, ...]) -> None:
        self._folder = folder
        self._names = names
        self._rules = functools.cache(self._read)

    def _read(self, place: str, name: str) -> GitIgnoreSpec | None:
        try:
            with open(os.path.join(self._folder, place, name), encoding="utf-8", errors="replace") as file:
                return GitIgnoreSpec.from_lines(file)
        except OSError:
            return None

    def __call__(self, path: str) -> bool:
        """Say whether a path, or a folder above it, is left out; folders are written with a `/` at their end."""
        parts = path.rstrip("/").split("/")
        above = ["/".join(parts[:number]) + "/" for number in range(1, len(parts))]
        return any(self.decided(one) is True for one in (*above, path))

    def decided(self, path: str) -> bool | None:
        """Return True for left out, False for taken in by a line that begins with `!`, None if nothing speaks of it."""
        places = path.rstrip("/").split("/")[:-1]
        found: bool | None = None
        for name in self._names:
            for depth in range(len(places), -1, -1):
                rules = self._rules("/".join(places[:depth]), name)
                said = None if rules is None else rules.check_file(path.split("/", depth)[depth]).include
                if said is not None:
                    found = said if found is None else found or said
                    break
        return found


def _listed_by_git(folder: str) -> list[str] | None:
    """Return what git considers in this folder; None if git is absent, or the folder is of no tree or ignored by it."""
    command = ("git", "-C", folder, "ls-files", "--cached", "--others", "--exclude-standard", "-z")
    try:
        ended = subprocess.run(command, capture_output=True, check=False)
    except FileNotFoundError:
        return None
    if ended.returncode != 0:
        return None
    return sorted({os.fsdecode(path) for path in ended.stdout.split(b"\0") if path}) or None


def _skipped(path: str) -> bool:
    return any(fnmatch.fnmatch(name, pattern) for name in path.split("/") for pattern in SKIPPED)


def _is_apart(place: str) -> bool:
    """Say whether a folder is no code whatever lies in it: an environment, a run, a state folder."""
    if os.path.exists(os.path.join(place, ENVIRONMENT)) or is_run(place):
        return True
    return all(os.path.exists(os.path.join(place, name)) for name in STATE)


def is_run(place: str) -> bool:
    """Say whether a folder is a run of Windfall."""
    try:
        with open(os.path.join(place, MARKER), encoding="utf-8") as file:
            said = json.loads(file.read(4096))
    except (OSError, ValueError):
        return False
    return isinstance(said, dict) and {"v", "run_id"} <= said.keys()


def _walk(folder: str, leaves: Callable[[str], bool]) -> Iterator[str]:
    for place, folders, names in os.walk(folder):
        inside = os.path.relpath(place, folder)
        head = "" if inside == "." else f"{inside}/"
        if head and _is_apart(place):
            folders.clear()
            continue
        links = [name for name in folders if os.path.islink(os.path.join(place, name))]
        folders[:] = sorted(
            name for name in folders if not _skipped(name) and name not in links and not leaves(f"{head}{name}/")
        )
        for name in sorted((*names, *links)):
            source = os.path.join(place, name)
            wanted = os.path.islink(source) or os.path.isfile(source)
            if wanted and not _skipped(name) and not leaves(f"{head}{name}"):
                yield f"{head}{name}"
