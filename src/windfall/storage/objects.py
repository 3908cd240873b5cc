"""From a URL to an object store, and the proof that a fence can be built on it."""

from __future__ import annotations

import os
import re
from typing import cast
from urllib.parse import quote, unquote_to_bytes, urlsplit

from windfall.errors import Misuse, StoreUnfit
from windfall.ports import Create, Delete, Get, ObjectStore, Steps
from windfall.storage import failpoints
from windfall.storage.clocks import SystemClock
from windfall.storage.disk import DiskOps, FileOps
from windfall.storage.failpoints import FailpointOps, FailpointStore
from windfall.storage.files import FileStore
from windfall.storage.patience import Patience, PatientStore
from windfall.storage.throttle import ThrottledStore, Uplink
from windfall.wire import layout

ALLOWED = "a folder, file:///FOLDER, s3://BUCKET/PATH, gs://BUCKET/PATH or az://CONTAINER/PATH"

_PLAIN = "/ !$&'()*+,;=:@~"
"""What stands for itself in a file URL, beside letters and digits."""
_BUCKET_URL = re.compile(r"[^\x00-\x1f\x7f%\\]*")
"""What comes after the scheme of a bucket's URL, as far as it has one meaning only."""


def open_store(url: str, *, uplink_bytes_per_s: float | None = None, patience: Patience | None = None) -> ObjectStore:
    """Return the store that a URL or path names; nothing is read or written yet.

    Args:
        url: `file://`, `s3://`, `gs://`, `az://`, or a path (relative ones from the current folder).
        uplink_bytes_per_s: limit on uploads of this process through this store [B/s]; None for no limit.
        patience: with which each operation is borne; None for callers that repeat their rounds by themselves.

    Raises:
        Misuse: another scheme, a missing bucket, credentials inside the URL, or a limit that is not positive.
    """
    store = _plain_store(url)
    if failpoints.active():
        store = FailpointStore(store)
    if uplink_bytes_per_s is not None:
        store = ThrottledStore(store, Uplink(uplink_bytes_per_s, SystemClock()))
    return store if patience is None else PatientStore(store, patience)


def folder_url(folder: str) -> str:
    """Return the URL of a folder: what would be read as part of a URL in its name is written so that it names itself."""
    return f"file://{quote(os.fsencode(os.path.abspath(folder)), safe=_PLAIN)}"


def folder_of(url: str) -> str | None:
    """Return the folder that a URL names; None if it is in a bucket."""
    scheme, _, path = _place(url)
    return path if scheme == "file" else None


def check_url(url: str) -> None:
    """Refuse a URL that names no place, before anything is written down that holds it.

    Raises:
        Misuse: see `open_store`.
    """
    _place(url)


def prove_conditions(nonce: str) -> Steps[None]:
    """Create a probe twice, with different content: the second must be refused and change nothing.

    A lost reply may make the first `Create` report that the key exists; content tells whose it is.

    Args:
        nonce: unique to this proof.

    Raises:
        StoreUnfit: the store accepted the second creation, or lost the first.
    """
    key = layout.probe_key(nonce)
    first, second = f"first {nonce}".encode(), f"second {nonce}".encode()
    yield Create(key, first)
    again = yield Create(key, second)
    kept = yield Get(key)
    yield Delete(key)
    if again or kept != first:
        raise StoreUnfit(
            "This store creates an object although one of that name exists, so two machines could hold one run: "
            "use a store that honours conditional writes (If-None-Match)"
        )


def _plain_store(url: str) -> ObjectStore:
    scheme, bucket, path = _place(url)
    if scheme == "file":
        return _file_store(path)
    # Imported here: the client below it must not be loaded before a process forks, nor where only files are used.
    from windfall.storage.remote import RemoteStore, Scheme  # noqa: PLC0415

    return RemoteStore(cast("Scheme", scheme), bucket, path)


def _place(url: str) -> tuple[str, str, str]:
    """Return scheme, bucket (empty for files) and path of a URL or path."""
    scheme, separator, rest = url.partition("://")
    if not separator or scheme == "file":
        path = _path_of(url) if separator else url
        if not path:
            raise Misuse(f"An empty place was named: write {ALLOWED}")
        if "\0" in path:
            raise Misuse(f"{path!r} is no path: it has a zero byte")
        path = os.path.abspath(path)
        if not path.strip("/"):
            raise Misuse("/ is all of this machine: name a folder for the run")
        return "file", "", path
    if scheme not in ("s3", "gs", "az"):
        raise Misuse(f"{scheme}:// is no store that Windfall knows: write {ALLOWED}")
    if not _BUCKET_URL.fullmatch(rest):
        odd = next(letter for letter in rest if not _BUCKET_URL.fullmatch(letter))
        raise Misuse(
            f"{url!r} has {odd!r} in it, which stores and their tools read in two ways: name a place without it"
        )
    parts = urlsplit(url)
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise Misuse(
            f"{scheme}://{parts.hostname or ''}{parts.path} was given with more than a place in its URL: "
            "leave out user, query and fragment; credentials are read from the environment"
        )
    if not parts.netloc:
        raise Misuse(f"{scheme}://{rest} names no bucket: write {ALLOWED}")
    return scheme, parts.netloc, parts.path.strip("/")


def _file_store(path: str) -> ObjectStore:
    ops: FileOps = FailpointOps(DiskOps()) if failpoints.active() else DiskOps()
    return FileStore(path, ops)


def _path_of(url: str) -> str:
    """Return the path of a file URL: %XX is a byte of it, and everything else stands for itself."""
    host, slash, path = url.removeprefix("file://").partition("/")
    if host not in ("", "localhost") or not slash:
        raise Misuse(f"{url} names a machine where a folder should be: write file:///FOLDER with three slashes")
    return os.fsdecode(unquote_to_bytes(os.fsencode(f"/{path}")))
