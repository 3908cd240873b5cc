"""The user's code: packed so that it can travel with the run, and listed so that a change between attempts is noticed.

What belongs to the code says `code_files`.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import shutil
import tarfile
import zlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from windfall import codec
from windfall.errors import LogDamaged, Misuse, StoreError
from windfall.ports import Steps
from windfall.storage import code_files
from windfall.storage.manifest import digest_of
from windfall.storage.operations import create, get
from windfall.terms import Bundle
from windfall.wire.layout import bundle_key, code_key

SIZE_BYTES_MAX = 512 * 1024 * 1024
"""The largest bundle, before compression [B]: more than this is data or checkpoints, not code."""
FILES_MAX = 20_000
"""The most files of a bundle: more than this is a data set, not code."""
_ENTRY_BYTES_MAX = 16 << 10
"""What a file's entry takes in an archive beside its content [B]: a long path three times over."""
_KEYS_SHOWN = 5
CODE_SUFFIXES = (
    *(".py", ".pyi", ".pyx", ".c", ".cc", ".cpp", ".cu", ".cuh", ".h", ".hpp", ".rs", ".go", ".jl", ".r", ".lua"),
    *(".sh", ".yaml", ".yml", ".toml", ".cfg", ".ini"),
)
"""Files whose change is told.  JSON is not among them: training scripts write it beside their code."""


@dataclass(frozen=True, slots=True)
class Packed:
    """Code that is ready to travel.

    Attributes:
        folder: where it lies, as a whole path.
        paths: relative, sorted.
        size_bytes: of the files together.
        data: the archive.
    """

    folder: str
    paths: tuple[str, ...]
    size_bytes: int
    data: bytes

    @property
    def digest(self) -> str:
        """Name of the archive: the same for the same code."""
        return hashlib.sha256(self.data).hexdigest()


def pack(folder: str, without: Collection[str] = ()) -> bytes:
    """Return the folder's code as a tar.gz; the same code gives the same bytes, whoever packs it, whenever.

    Args:
        folder: of the code.
        without: files and folders in it, as relative paths, that are left out.

    Raises:
        Misuse: it is too large, a link leads outside, the folder is a run.
    """
    if code_files.is_run(folder):
        raise Misuse(f"{folder} is a run itself, not a folder of code: keep code and runs in folders of their own")
    kept = (path for path in code_files.code_files(folder) if not code_files.below(path, without))
    return _archive(folder, sorted(_bounded(kept, folder)))


def pack_for_others(folder: str) -> Packed:
    """Return the folder's code as it leaves for a store and other machines.

    Raises:
        Misuse: as `pack`; and if something in it looks like a key, by name.
    """
    if code_files.is_run(folder):
        raise Misuse(f"{folder} is a run itself, not a folder of code: keep code and runs in folders of their own")
    paths = sorted(_bounded(code_files.code_files(folder), folder))
    keys = list(code_files.key_files(folder, paths))
    if keys:
        shown = "; ".join(f"{path} ({why})" for path, why in keys[:_KEYS_SHOWN])
        more = f"; and {len(keys) - _KEYS_SHOWN} more" if len(keys) > _KEYS_SHOWN else ""
        raise Misuse(
            f"the code in {folder} has what looks like keys, which would travel to the store and to every machine: "
            f"{shown}{more}. Name them in {code_files.IGNORE} or .gitignore to leave them here; a line !{keys[0][0]} in "
            f"{code_files.IGNORE} says that one is meant to travel"
        )
    data = _archive(folder, paths)
    size_bytes = sum(os.lstat(os.path.join(folder, path)).st_size for path in paths)
    return Packed(os.path.abspath(folder), tuple(paths), size_bytes, data)


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
            f"{source} is a link to {real}, outside the code that shall travel: "
            "name the link in .windfallignore, or copy what it points to"
        )
    return os.path.relpath(real, os.path.realpath(os.path.dirname(source)))


def _check_size(folder: str, paths: list[str]) -> None:
    sizes = {path: os.lstat(os.path.join(folder, path)).st_size for path in paths}
    if sum(sizes.values()) > SIZE_BYTES_MAX:
        largest = max(sizes, key=lambda path: sizes[path])
        raise Misuse(
            f"the code in {folder} has {sum(sizes.values()) / 1e6:.0f} MB, more than the {SIZE_BYTES_MAX / 1e6:.0f} MB "
            "that may travel: keep data elsewhere, or name data and checkpoints in .windfallignore "
            f"(the largest file is {largest})"
        )


def _bounded(paths: Iterator[str], folder: str) -> Iterator[str]:
    for count, path in enumerate(paths):
        if count == FILES_MAX:
            raise Misuse(
                f"{folder} has more than {FILES_MAX} files, too many for code: start in the folder of the code alone, "
                "or name data in .windfallignore"
            )
        yield path


def unpack(data: bytes, folder: str) -> None:
    """Unpack a bundle; nothing is written outside the folder, no owner, device or special permission is taken over.

    Done by hand because `tarfile`'s own filters came only with Python 3.11.4, and 3.11.2 is what many machines have.

    Raises:
        StoreError: it is damaged, or tries to leave the folder.
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
                    raise tarfile.TarError("it is larger than code can be")
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
    """An archive as it comes out of its compression, up to what `pack` would ever have put in."""

    def __init__(self, source: gzip.GzipFile) -> None:
        self._source = source
        self._left = SIZE_BYTES_MAX + FILES_MAX * _ENTRY_BYTES_MAX

    def read(self, size: int) -> bytes:
        data = self._source.read(size)
        self._left -= len(data)
        if self._left < 0:
            raise tarfile.TarError("it is larger than code can be")
        return data


def _unpack_one(archive: tarfile.TarFile, member: tarfile.TarInfo, root: str) -> None:
    target = _inside(root, os.path.join(root, member.name), member)
    os.makedirs(os.path.dirname(target), exist_ok=True)
    # What an earlier attempt left under this name must not be written through, should it be a link.
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
    """Return the path if it stays inside the root with all links on the way followed."""
    parent = os.path.realpath(os.path.dirname(path))
    whole = os.path.normpath(os.path.join(parent, os.path.basename(path)))
    if os.path.isabs(member.name) or os.path.commonpath((root, whole)) != root or whole == root:
        raise tarfile.TarError(f"{member.name} leads outside")
    return whole


def describe(data: bytes) -> Bundle:
    """Return the name under which a packed bundle is stored."""
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
        raise StoreError(f"the run's code ({bundle.key}) is larger than code can be: give it anew with --new-code")
    data = yield from get(bundle.key)
    if data is None or hashlib.sha256(data).hexdigest() != bundle.digest:
        what = "missing" if data is None else "damaged"
        raise StoreError(f"the run's code ({bundle.key}) is {what} in the store: give it anew with --new-code")
    return data


def listing(folder: str) -> dict[str, str]:
    """Return path -> digest of the code files of a folder; of its top level alone if it is too large to be only code."""
    try:
        paths = [path for path in _bounded(code_files.code_files(folder), folder) if _is_code(folder, path)]
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
    """Return one phrase for each file that differs between two listings, sorted by path."""
    return tuple(_difference(path, old, new) for path in sorted({*old, *new}) if old.get(path) != new.get(path))


def _difference(path: str, old: Mapping[str, str], new: Mapping[str, str]) -> str:
    if path not in old:
        return f"{path} added"
    return f"{path} changed" if path in new else f"{path} removed"


def store_listing(digests: Mapping[str, str]) -> Steps[str]:
    """Store a listing; return the name by which a run's state refers to it."""
    data = json.dumps(dict(sorted(digests.items()))).encode()
    name = hashlib.sha256(data).hexdigest()
    yield from create(code_key(name), data)
    return name


def read_listing(name: str) -> Steps[dict[str, str] | None]:
    """Return a stored listing, None if it is not there.

    Raises:
        LogDamaged: it is not a listing.
    """
    data = yield from get(code_key(name))
    if data is None:
        return None
    try:
        listed: dict[str, str] = codec.decode(codec.parse(data), dict[str, str])
        return listed
    except ValueError as error:
        raise LogDamaged(f"{code_key(name)} is not a listing of code ({error})") from error
