"""The user's code: packed for upload with the run, and listed to detect changes between attempts.

`code_files` defines which files are code.

Selects the files of a folder that are code, and detects credentials among them.

In a git tree, these are the files that git considers (`git ls-files`); elsewhere, all files except those made by tools
(`SKIPPED`) or matched by `.gitignore`.  In both cases `.windfallignore`, with the same syntax and at any depth, excludes
more.  Runs of Windfall and its state folders are always excluded, recognised by their marker files.  `key_files` detects
files that look like credentials; a line `!path` in `.windfallignore` includes them.
"""

from __future__ import annotations

import fnmatch
import functools
import gzip
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import tarfile
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from windfall import codec
from windfall.errors import LogDamaged, Misuse, StoreError
from windfall.ports import Steps
from windfall.storage.manifest import digest_of
from windfall.storage.store_operations import create, get
from windfall.structs import Struct
from windfall.terms import Bundle
from windfall.wire.run_layout import MARKER, bundle_key, code_key

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

SKIPPED = (".git", ".venv", "venv", "node_modules", "__pycache__", "*.pyc", ".windfall")
"""Names that are not code, at any depth."""
ENVIRONMENT = "pyvenv.cfg"
"""Marks a folder as a virtual environment, whatever its name."""
IGNORE = ".windfallignore"
"""Lists files to exclude, in the syntax of `.gitignore`."""
STATE = ("controller.db", "controller.lock")
"""Mark a folder as a state folder of Windfall."""
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
"""Names of files that contain credentials, and what they are."""
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
"""Files up to this size are searched for credentials [B]."""


def code_files(folder: str) -> Iterator[str]:
    """Yield the relative paths of the files and links that are code."""
    listed = _listed_by_git(folder)
    ignored = _Ignoring(folder, (IGNORE,) if listed is not None else (IGNORE, ".gitignore"))
    if listed is None:
        yield from _walk(folder, ignored)
        return
    places = {os.path.dirname(path) for path in listed if os.path.basename(path) in (ENVIRONMENT, MARKER, STATE[0])}
    excluded = {place for place in places if place and _is_excluded(os.path.join(folder, place))}
    for path in listed:
        source = os.path.join(folder, path)
        if _skipped(path) or below(path, excluded) or not os.path.lexists(source) or ignored(path):
            continue
        if os.path.isdir(source) and not os.path.islink(source):
            yield from (f"{path.rstrip('/')}/{inner}" for inner in code_files(source))
        else:
            yield path


def below(path: str, places: Iterable[str]) -> bool:
    """Return whether a path is one of `places`, or inside one."""
    return any(path == place or path.startswith(f"{place}/") for place in places)


def key_files(folder: str, paths: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield each path that looks like a credential, and why, unless `.windfallignore` includes it."""
    meant = _Ignoring(folder, (IGNORE,))
    for path in paths:
        if meant.decided(path) is not False and (reason := _key(os.path.join(folder, path), path)):
            yield path, reason


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
    """Applies the ignore files of a folder and its subfolders to paths."""

    def __init__(self, folder: str, names: tuple[str, ...]) -> None:
        self._folder = folder
        self._names = names
        self._rules = functools.cache(self._read)

    def _read(self, place: str, name: str) -> GitIgnoreSpec | None:
        try:
            with open(os.path.join(self._folder, place, name), encoding="utf-8", errors="replace") as file:
                from pathspec import GitIgnoreSpec  # noqa: PLC0415 - takes 8 ms, and most folders have no such file

                return GitIgnoreSpec.from_lines(file)
        except OSError:
            return None

    def __call__(self, path: str) -> bool:
        """Return whether a path, or a folder above it, is excluded; paths of folders end in `/`."""
        parts = path.rstrip("/").split("/")
        above = ["/".join(parts[:number]) + "/" for number in range(1, len(parts))]
        return any(self.decided(one) is True for one in (*above, path))

    def decided(self, path: str) -> bool | None:
        """Return True if excluded, False if included by a line that starts with `!`, None if no line matches."""
        places = path.rstrip("/").split("/")[:-1]
        found: bool | None = None
        for name in self._names:
            for depth in range(len(places), -1, -1):
                rules = self._rules("/".join(places[:depth]), name)
                included = None if rules is None else rules.check_file(path.split("/", depth)[depth]).include
                if included is not None:
                    found = included if found is None else found or included
                    break
        return found


def _listed_by_git(folder: str) -> list[str] | None:
    """Return the files that git considers in this folder; None without git, outside a git tree, or if it is ignored."""
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


def _is_excluded(place: str) -> bool:
    """Return whether a folder is never code: a virtual environment, a run, or a state folder."""
    if os.path.exists(os.path.join(place, ENVIRONMENT)) or is_run(place):
        return True
    return all(os.path.exists(os.path.join(place, name)) for name in STATE)


def is_run(place: str) -> bool:
    """Return whether a folder is a run of Windfall."""
    try:
        with open(os.path.join(place, MARKER), encoding="utf-8") as file:
            marker = json.loads(file.read(4096))
    except (OSError, ValueError):
        return False
    return isinstance(marker, dict) and {"version", "run_id"} <= marker.keys()


def _walk(folder: str, ignored: Callable[[str], bool]) -> Iterator[str]:
    for place, folders, names in os.walk(folder):
        inside = os.path.relpath(place, folder)
        head = "" if inside == "." else f"{inside}/"
        if head and _is_excluded(place):
            folders.clear()
            continue
        links = [name for name in folders if os.path.islink(os.path.join(place, name))]
        folders[:] = sorted(
            name for name in folders if not _skipped(name) and name not in links and not ignored(f"{head}{name}/")
        )
        for name in sorted((*names, *links)):
            source = os.path.join(place, name)
            wanted = os.path.islink(source) or os.path.isfile(source)
            if wanted and not _skipped(name) and not ignored(f"{head}{name}"):
                yield f"{head}{name}"


SIZE_BYTES_MAX = 512 * 1024 * 1024
"""Maximum size of a bundle before compression [B]; more is data or checkpoints, not code."""
FILES_MAX = 20_000
"""Maximum number of files in a bundle; more is a data set, not code."""
_ENTRY_BYTES_MAX = 16 << 10
"""Maximum size of a file's archive entry without its content [B]: three times a long path."""
_KEYS_SHOWN = 5
CODE_SUFFIXES = (
    *(".py", ".pyi", ".pyx", ".c", ".cc", ".cpp", ".cu", ".cuh", ".h", ".hpp", ".rs", ".go", ".jl", ".r", ".lua"),
    *(".sh", ".yaml", ".yml", ".toml", ".cfg", ".ini"),
)
"""Files whose changes are reported; without JSON, which training scripts write next to their code."""


class PackedBundle(Struct, frozen=True):
    """Code packed for upload.

    Attributes:
        folder: absolute path of its folder.
        paths: relative paths, sorted.
        size_bytes: total size of the files [B].
        data: the archive.
    """

    folder: str
    paths: tuple[str, ...]
    size_bytes: int
    data: bytes

    @property
    def digest(self) -> str:
        """Digest of the archive; the same for the same code."""
        return hashlib.sha256(self.data).hexdigest()


def pack(folder: str, without: Collection[str] = ()) -> bytes:
    """Return the folder's code as a tar.gz; the same code always gives the same bytes.

    Args:
        folder: folder of the code.
        without: relative paths of files and folders to leave out.

    Raises:
        Misuse: it is too large, a link leads outside, or the folder is a run.
    """
    if is_run(folder):
        raise Misuse(f"{folder} is a run, not a folder with code: keep code and runs in separate folders")
    kept = (path for path in code_files(folder) if not below(path, without))
    return _archive(folder, sorted(_bounded(kept, folder)))


def pack_for_others(folder: str) -> PackedBundle:
    """Return the folder's code, packed for upload to a store and other machines.

    Raises:
        Misuse: as for `pack`; also if files look like credentials, naming them.
    """
    if is_run(folder):
        raise Misuse(f"{folder} is a run, not a folder with code: keep code and runs in separate folders")
    paths = sorted(_bounded(code_files(folder), folder))
    keys = list(key_files(folder, paths))
    if keys:
        shown = "; ".join(f"{path} ({reason})" for path, reason in keys[:_KEYS_SHOWN])
        more = f"; and {len(keys) - _KEYS_SHOWN} more" if len(keys) > _KEYS_SHOWN else ""
        raise Misuse(
            f"the code in {folder} contains files that look like credentials and would be uploaded to the store and every "
            f"machine: {shown}{more}. To exclude them, add them to {IGNORE} or .gitignore; to include one, add "
            f"!{keys[0][0]} to {IGNORE}"
        )
    data = _archive(folder, paths)
    size_bytes = sum(os.lstat(os.path.join(folder, path)).st_size for path in paths)
    return PackedBundle(os.path.abspath(folder), tuple(paths), size_bytes, data)


def _archive(folder: str, paths: list[str]) -> bytes:
    _check_size(folder, paths)
    packed = io.BytesIO()
    with (
        gzip.GzipFile(filename="", mode="wb", fileobj=packed, mtime=0) as squeezed,
        tarfile.open(fileobj=squeezed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for path in paths:
            _add(archive, folder, path)
    return packed.getvalue()


def _add(archive: tarfile.TarFile, folder: str, path: str) -> None:
    source = os.path.join(folder, path)
    entry = tarfile.TarInfo(path)
    if os.path.islink(source):
        entry.type = tarfile.SYMTYPE
        entry.linkname = _link_inside(folder, source)
        archive.addfile(entry)
        return
    with open(source, "rb") as file:
        status = os.fstat(file.fileno())
        entry.size = status.st_size
        entry.mode = 0o755 if status.st_mode & 0o100 else 0o644
        archive.addfile(entry, file)


def _link_inside(folder: str, source: str) -> str:
    root, real = os.path.realpath(folder), os.path.realpath(source)
    if os.path.commonpath((root, real)) != root:
        raise Misuse(
            f"{source} is a link to {real}, outside the code folder: "
            "add the link to .windfallignore, or copy its target"
        )
    return os.path.relpath(real, os.path.realpath(os.path.dirname(source)))


def _check_size(folder: str, paths: list[str]) -> None:
    sizes = {path: os.lstat(os.path.join(folder, path)).st_size for path in paths}
    if sum(sizes.values()) > SIZE_BYTES_MAX:
        largest = max(sizes, key=lambda path: sizes[path])
        raise Misuse(
            f"the code in {folder} has {sum(sizes.values()) / 1e6:.0f} MB, the limit is {SIZE_BYTES_MAX / 1e6:.0f} MB: "
            "keep data elsewhere, or add data and checkpoints to .windfallignore "
            f"(the largest file is {largest})"
        )


def _bounded(paths: Iterator[str], folder: str) -> Iterator[str]:
    for count, path in enumerate(paths):
        if count == FILES_MAX:
            raise Misuse(
                f"{folder} has more than {FILES_MAX} files, too many for code: start in a folder that contains only code, "
                "or add data to .windfallignore"
            )
        yield path


def unpack(data: bytes, folder: str) -> None:
    """Unpack a bundle; writes nothing outside the folder, and ignores owners, devices and special permissions.

    Does not use `tarfile`'s own filters, which need Python 3.11.4, because many machines have 3.11.2.

    Raises:
        StoreError: it is damaged, or a path leads outside the folder.
    """
    os.makedirs(folder, exist_ok=True)
    root = os.path.realpath(folder)
    try:
        with (
            gzip.GzipFile(fileobj=io.BytesIO(data), mode="rb") as squeezed,
            tarfile.open(fileobj=_Bounded(squeezed), mode="r|") as archive,  # type: ignore[call-overload]
        ):
            size_bytes = 0
            for count, member in enumerate(archive):
                size_bytes += member.size
                if count == FILES_MAX or size_bytes > SIZE_BYTES_MAX or member.issparse():
                    raise tarfile.TarError("it is too large for code")
                _unpack_one(archive, member, root)
    except (
        tarfile.TarError,
        zlib.error,
        EOFError,
        OSError,
        ValueError,
        LookupError,
        ArithmeticError,
        RecursionError,
    ) as error:
        raise StoreError(f"the bundle of code cannot be unpacked ({error}): replace it with --new-code") from error


class _Bounded:
    """A decompressed archive, limited to the largest size that `pack` can produce."""

    def __init__(self, source: gzip.GzipFile) -> None:
        self._source = source
        self._left = SIZE_BYTES_MAX + FILES_MAX * _ENTRY_BYTES_MAX

    def read(self, size: int) -> bytes:
        data = self._source.read(size)
        self._left -= len(data)
        if self._left < 0:
            raise tarfile.TarError("it is too large for code")
        return data


def _unpack_one(archive: tarfile.TarFile, member: tarfile.TarInfo, root: str) -> None:
    target = _inside(root, os.path.join(root, member.name), member)
    os.makedirs(os.path.dirname(target), exist_ok=True)
    # If an earlier attempt left a link with this name, it must not be written through.
    if os.path.lexists(target) and not os.path.isdir(target):
        os.unlink(target)
    if member.issym():
        _inside(root, os.path.join(os.path.dirname(target), member.linkname), member)
        os.symlink(member.linkname, target)
        return
    source = archive.extractfile(member) if member.isreg() else None
    if source is None:
        raise tarfile.TarError(f"{member.name} is neither a file nor a link")
    with source, open(target, "wb") as file:
        shutil.copyfileobj(source, file)
    os.chmod(target, 0o755 if member.mode & 0o100 else 0o644)


def _inside(root: str, path: str, member: tarfile.TarInfo) -> str:
    """Return the path if it stays inside the root after following all links."""
    parent = os.path.realpath(os.path.dirname(path))
    whole = os.path.normpath(os.path.join(parent, os.path.basename(path)))
    if os.path.isabs(member.name) or os.path.commonpath((root, whole)) != root or whole == root:
        raise tarfile.TarError(f"{member.name} leads outside")
    return whole


def describe(data: bytes) -> Bundle:
    """Return the reference of a packed bundle."""
    digest = hashlib.sha256(data).hexdigest()
    return Bundle(digest, bundle_key(digest), len(data))


def store(data: bytes) -> Steps[Bundle]:
    """Store a packed bundle; the same code is stored once."""
    bundle = describe(data)
    yield from create(bundle.key, data)
    return bundle


def fetch(bundle: Bundle) -> Steps[bytes]:
    """Return a stored bundle's bytes, checked.

    Raises:
        StoreError: it is missing or damaged.
    """
    if bundle.size_bytes > SIZE_BYTES_MAX:
        raise StoreError(f"the run's code ({bundle.key}) is too large for code: replace it with --new-code")
    data = yield from get(bundle.key)
    if data is None or hashlib.sha256(data).hexdigest() != bundle.digest:
        what = "missing" if data is None else "damaged"
        raise StoreError(f"the run's code ({bundle.key}) is {what} in the store: replace it with --new-code")
    return data


def listing(folder: str) -> dict[str, str]:
    """Return path -> digest of the code files of a folder; only of its top level if it is too large for code."""
    try:
        paths = [path for path in _bounded(code_files(folder), folder) if _is_code(folder, path)]
    except Misuse:
        paths = sorted(path for path in os.listdir(folder) if _is_code(folder, path))
    digests: dict[str, str] = {}
    for path in paths:
        with open(os.path.join(folder, path), "rb") as file:
            digests[path] = digest_of(file.read())
    return digests


def _is_code(folder: str, path: str) -> bool:
    return os.path.splitext(path)[1].lower() in CODE_SUFFIXES and os.path.isfile(os.path.join(folder, path))


def changed(old: Mapping[str, str], new: Mapping[str, str]) -> tuple[str, ...]:
    """Return one phrase for each file that differs between two lists, sorted by path."""
    return tuple(_difference(path, old, new) for path in sorted({*old, *new}) if old.get(path) != new.get(path))


def _difference(path: str, old: Mapping[str, str], new: Mapping[str, str]) -> str:
    if path not in old:
        return f"{path} added"
    return f"{path} changed" if path in new else f"{path} removed"


def store_listing(digests: Mapping[str, str]) -> Steps[str]:
    """Store a list of code files; return its name for the run's state."""
    data = json.dumps(dict(sorted(digests.items()))).encode()
    name = hashlib.sha256(data).hexdigest()
    yield from create(code_key(name), data)
    return name


def read_listing(name: str) -> Steps[dict[str, str] | None]:
    """Return a stored list of code files, None if it is missing.

    Raises:
        LogDamaged: it is damaged.
    """
    data = yield from get(code_key(name))
    if data is None:
        return None
    try:
        listed: dict[str, str] = codec.decode(codec.parse(data), dict[str, str])
        return listed
    except ValueError as error:
        raise LogDamaged(f"{code_key(name)} is not a list of code files ({error})") from error
