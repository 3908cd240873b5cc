"""The archive with which the node agent arrives on a bare machine: Windfall and what it needs, to be unpacked anywhere.

    python -m windfall.wire.agent_archive windfall-agent.zip

It holds the files of the packages that are installed here, so it fits machines with the same Python and processor, and
needs neither an index nor pip there.  The same packages give the same bytes.  Put it where machines can read it, and its
URL and digest into the configuration file (`agent: {url: ..., sha256: ...}`).
"""

from __future__ import annotations

import hashlib
import json
import platform
import re
import sys
import zipfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from windfall.errors import Misuse, WindfallError
from windfall.wire.agent_start import MANIFEST

NAME = "windfall"
_MOMENT = (1980, 1, 1, 0, 0, 0)
"""The date of every file: the oldest that the format knows."""


def write_archive(path: Path) -> str:
    """Write the archive to a new file and return its SHA-256 in hexadecimal.

    Raises:
        Misuse: a package is missing.
    """
    manifest = {"python": "{}.{}".format(*sys.version_info[:2]), "machine": platform.machine()}
    files = {MANIFEST: json.dumps(manifest, sort_keys=True).encode()}
    for name in _needed(NAME):
        files.update(_files(name))
    files.update(_source())  # where Windfall is installed in place, from a clone, its package does not list them
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(files):
            archive.writestr(zipfile.ZipInfo(name, _MOMENT), files[name], zipfile.ZIP_DEFLATED)
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _needed(name: str) -> list[str]:
    """Return a package and everything that it needs without extras, as far as that is installed."""
    found: list[str] = []
    waiting = [name]
    while waiting:
        one = waiting.pop()
        if one in found:
            continue
        try:
            requirements = metadata.distribution(one).requires or []
        except metadata.PackageNotFoundError:
            continue  # for another platform or version of Python
        found.append(one)
        plain = (re.match(r"[A-Za-z0-9._-]+", line) for line in requirements if "extra ==" not in line)
        waiting += [re.sub(r"[-_.]+", "-", match[0]).lower() for match in plain if match]
    if name not in found:
        raise Misuse(f"the package {name} is not installed in {sys.prefix}")
    return found


def _files(name: str) -> Iterator[tuple[str, bytes]]:
    """Yield the files of an installed package, without its commands and what was compiled here."""
    for file in metadata.distribution(name).files or ():
        path = Path(str(file.locate()))
        here_only = file.suffix == ".pth" or file.name == "direct_url.json"  # both name folders of this machine
        if ".." not in file.parts and "__pycache__" not in file.parts and not here_only and path.is_file():
            yield file.as_posix(), path.read_bytes()


def _source() -> Iterator[tuple[str, bytes]]:
    """Yield the files of Windfall itself, as they are imported here."""
    package = Path(__file__).parents[1]
    for path in package.rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts:
            yield path.relative_to(package.parent).as_posix(), path.read_bytes()


def main(arguments: list[str]) -> int:
    """Run as `python -m windfall.wire.agent_archive`; prints the archive's SHA-256."""
    if len(arguments) != 1:
        sys.stderr.write("windfall: write: python -m windfall.wire.agent_archive ARCHIVE\n")
        return Misuse.exit_code
    try:
        digest = write_archive(Path(arguments[0]))
    except WindfallError as error:
        sys.stderr.write(f"windfall: {error}\n")
        return error.exit_code
    except OSError as error:
        sys.stderr.write(f"windfall: cannot write {arguments[0]}: {error.strerror}\n")
        return Misuse.exit_code
    sys.stdout.write(f"{digest}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
