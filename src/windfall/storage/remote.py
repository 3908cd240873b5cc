"""The object store in a bucket: S3, Google Cloud Storage, Azure Blob, through obstore.

Addresses and credentials come from the environment and the machine's own identity, as obstore documents them
(`AWS_ENDPOINT_URL`, `AWS_ACCESS_KEY_ID`, ..., `GOOGLE_SERVICE_ACCOUNT`, ..., `AZURE_STORAGE_ACCOUNT_NAME`, ...).

obstore runs threads of its own, which a fork does not copy: a child of a process that used it hangs in its first call.
So this module is imported when the first bucket is opened and nowhere else, and nothing forks after that.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import wait
from datetime import timedelta
from typing import TYPE_CHECKING, Literal

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import AzureStore, GCSStore, S3Store

from windfall.errors import Abandoned, StoreDenied, StoreError, StoreFull, StoreMissing, StoreUnreachable
from windfall.storage.failpoints import hit
from windfall.storage.streams import BLOCK_BYTES, Buffers, Digest, read_fully, write_fully
from windfall.terms import Bytes

if TYPE_CHECKING:
    from obstore.store import ClientConfig, RetryConfig

Scheme = Literal["s3", "gs", "az"]
Client = S3Store | GCSStore | AzureStore

WHOLE_MAX_BYTES = 64 << 20
"""Stretches up to this length are one request, from one buffer that is used again; longer ones go in parts [B]."""
STOP_POLL_S = 0.02
"""How often a request that is under way is asked whether it is still wanted [s]."""
PART_BYTES = 32 << 20
SMALL_TIMEOUT_S = 20
BULK_TIMEOUT_S = 300
"""Time for one request with a stretch of a file: 64 MiB at 0.22 MB/s [s]."""
RETRIES_MAX = 2
"""How often the client itself asks again, which helps its search for credentials; patience is `storage.patience`'s."""
RETRY_TIMEOUT_S = 10

_ENDPOINTS = {
    "s3": ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT"),
    "gs": ("GOOGLE_BASE_URL",),
    "az": ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"),
}
_CONFLICT = "409 Conflict"
CONFLICTS_MAX = 5
_NO_CREDENTIALS = (
    "latest/api/token",
    "security-credentials",
    "computeMetadata",
    "metadata/identity",
    "Account must be specified",
)
"""Parts of addresses that are asked only where the environment has no credentials, and what Azure says without a name."""
_CREDENTIALS = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (or the machine's role)",
    "gs": "GOOGLE_SERVICE_ACCOUNT (or the machine's service account)",
    "az": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY (or the machine's identity)",
}
_DENIED = ("401 Unauthorized", "403 Forbidden", "InvalidAccessKeyId", "AuthorizationFailure")
_NO_ROOM = ("QuotaExceeded", "InsufficientStorage", "507 ")
_REASONS = (
    ("ConnectionRefused", "connection refused"),
    ("dns error", "no such host"),
    ("BadScheme", "plain http without an endpoint that asks for it"),
    ("ConnectionReset", "the connection was reset"),
    ("BrokenPipe", "the connection was reset"),
    ("IncompleteMessage", "the connection was closed before the reply"),
    ("body error", "its reply broke off"),
    ("IncompleteBody", "its reply broke off"),
    ("TimedOut", "timed out"),
    ("timed out", "timed out"),
)
_DOUBTFUL_ADDRESS = ("ConnectionRefused", "dns error", "BadScheme")
_NO_BUCKET = ("NoSuchBucket", "ContainerNotFound", "bucket does not exist")


class RemoteStore:
    """`ObjectStore` under a prefix of a bucket.

    Args:
        scheme: whose protocol is spoken.
        bucket: the bucket or container.
        prefix: what all keys begin with, without slashes at its ends; may be empty.
        small_timeout_s: limit for a request without a stretch of a file [s].
        retries_max: how often a request is sent again after a failure that may pass.
    """

    def __init__(
        self,
        scheme: Scheme,
        bucket: str,
        prefix: str,
        *,
        small_timeout_s: float = SMALL_TIMEOUT_S,
        retries_max: int = RETRIES_MAX,
    ) -> None:
        self.url = f"{scheme}://{bucket}/{prefix}" if prefix else f"{scheme}://{bucket}"
        self._scheme = scheme
        with self._told():
            self._small = _client(scheme, bucket, prefix, small_timeout_s, retries_max)
            self._bulk = _client(scheme, bucket, prefix, BULK_TIMEOUT_S, retries_max)
        self._buffers = Buffers(WHOLE_MAX_BYTES)
        self._lock = threading.Lock()
        self._sending: asyncio.AbstractEventLoop | None = None

    def create(self, key: str, data: bytes) -> bool:
        """Create an object under the condition that there is none."""
        with self._told():
            for _ in range(CONFLICTS_MAX):
                try:
                    obstore.put(self._small, key, data, mode="create")
                except AlreadyExistsError as error:
                    # S3 answers 409 to creations at one moment, of which each may have failed.
                    if _CONFLICT not in str(error) or self.size(key) is not None:
                        return False
                else:
                    return True
        raise StoreUnreachable(f"{self.url} answers every attempt to create {key} with a conflict: try again later")

    def put(self, key: str, data: bytes) -> None:
        """Write or replace an object in one request."""
        with self._told():
            obstore.put(self._bulk if len(data) > BLOCK_BYTES else self._small, key, data, use_multipart=False)

    def get(self, key: str) -> bytes | None:
        """Return an object's content."""
        with self._told():
            try:
                return bytes(obstore.get(self._bulk, key).bytes())
            except FileNotFoundError as error:
                _only_the_object_is_missing(error)
                return None

    def size(self, key: str) -> Bytes | None:
        """Return an object's length [B]."""
        with self._told():
            try:
                return Bytes(obstore.head(self._small, key)["size"])
            except FileNotFoundError as error:
                _only_the_object_is_missing(error)
                return None

    def delete(self, key: str) -> None:
        """Delete an object."""
        with self._told():
            try:
                obstore.delete(self._small, key)
            except FileNotFoundError as error:
                _only_the_object_is_missing(error)

    def list(self, prefix: str) -> list[str]:
        """Return the keys that begin with `prefix`: the client lists whole folders, the rest is left out here."""
        with self._told():
            folder = prefix.rpartition("/")[0]
            pages = obstore.list(self._small, folder or None, chunk_size=1000)
            return sorted(entry["path"] for page in pages for entry in page if entry["path"].startswith(prefix))

    def put_range(
        self, key: str, path: str, offset: int, size_bytes: int, unwanted: Callable[[], bool] | None = None
    ) -> str:
        """Store a stretch of a local file, hashed as it is read; the store's own payload hash is left out."""
        digest = Digest()
        source = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            with self._told():
                stretch = _Stretch(source, path, offset, size_bytes, digest, unwanted=unwanted)
                if size_bytes <= WHOLE_MAX_BYTES:
                    self._put_whole(key, stretch)
                else:
                    parts = _parts(stretch)
                    obstore.put(self._bulk, key, parts, chunk_size=PART_BYTES, max_concurrency=4)
        finally:
            os.close(source)
        return digest.text()

    def get_range(self, key: str, path: str, offset: int, size_bytes: int) -> str | None:
        """Write an object into a local file, hashed as it comes."""
        target = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            with self._told():
                try:
                    found = obstore.get(self._bulk, key)
                except FileNotFoundError as error:
                    _only_the_object_is_missing(error)
                    return None
                fits = found.meta["size"] == size_bytes
                digest, done, passed = Digest(), 0, False
                for block in found.stream(min_chunk_size=min(BLOCK_BYTES, max(1, size_bytes // 2))):
                    view = memoryview(block)
                    digest.update(view)
                    if fits:
                        write_fully(target, view, offset + done)
                    done += len(view)
                    if not passed and 2 * done >= size_bytes:
                        hit("store.get_range:middle")
                        passed = True
                return digest.text()
        finally:
            os.close(target)

    def _put_whole(self, key: str, stretch: _Stretch) -> None:
        memory = self._buffers.take()
        view = memoryview(memory)[: stretch.size_bytes]
        half = stretch.size_bytes // 2
        stretch.read(view[:half], 0)
        hit("store.put_range:middle")
        stretch.read(view[half:], half)
        self._send(key, view, stretch.unwanted)
        # A connection that was given up may still send from this memory: then it is forgotten, not used again.
        with contextlib.suppress(BufferError):
            view.release()
            self._buffers.give(memory)

    def _send(self, key: str, view: memoryview, unwanted: Callable[[], bool] | None) -> None:
        """Send one request; one that nobody wants any more is broken off, so that the line is free for another."""
        if unwanted is None:
            obstore.put(self._bulk, key, view, use_multipart=False)
            return

        async def send() -> None:
            await obstore.put_async(self._bulk, key, view, use_multipart=False)

        sending = asyncio.run_coroutine_threadsafe(send(), self._loop())
        while not wait([sending], timeout=STOP_POLL_S).done:
            if unwanted():
                sending.cancel()
                raise Abandoned(f"{key} is not stored: nobody wants it any more")
        sending.result()

    def _loop(self) -> asyncio.AbstractEventLoop:
        """Return the loop, in a thread of its own, that sends what may have to be broken off."""
        with self._lock:
            if self._sending is None:
                self._sending = asyncio.new_event_loop()
                threading.Thread(target=self._sending.run_forever, name="windfall-send", daemon=True).start()
            return self._sending

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        """Say in one sentence what the store refused, without anything that a request carried."""
        try:
            yield
        except (BaseError, FileNotFoundError, ValueError, OSError) as error:
            raise self._sentence(error) from error

    def _sentence(self, error: Exception) -> StoreError:
        text = str(error)
        if isinstance(error, OSError) and error.errno is not None:
            kind = StoreFull if error.errno in (errno.ENOSPC, errno.EDQUOT) else StoreUnreachable
            return kind(
                f"A local file for {self.url} cannot be used ({error.strerror}): {error.filename or 'see above'}"
            )
        if any(sign in text for sign in _NO_CREDENTIALS):
            return StoreDenied(f"No credentials for {self.url} were found: set {_CREDENTIALS[self._scheme]}")
        if any(sign in text for sign in _DENIED):
            return StoreDenied(
                f"{self.url} refuses these credentials ({_reason(text)}): check {_CREDENTIALS[self._scheme]}, "
                "and what they are allowed"
            )
        if any(sign in text for sign in _NO_BUCKET):
            return StoreMissing(f"{self.url} names a bucket that does not exist: create it, or correct the name")
        if any(sign in text for sign in _NO_ROOM):
            return StoreFull(f"{self.url} has no room left ({_reason(text)}): free some space or name another place")
        return StoreUnreachable(
            f"{self.url}{_host(text)} does not answer as it should ({_reason(text)})" + self._hint(text)
        )

    def _hint(self, text: str) -> str:
        """Say what to look at where the address may be wrong; a connection that broke was right."""
        doubtful = any(sign in text for sign in _DOUBTFUL_ADDRESS)
        return f": check {_ENDPOINTS[self._scheme][0]}, and that the store is up" if doubtful else ""


class _Stretch:
    """A stretch of an open local file that is hashed in the order in which it is read."""

    def __init__(
        self,
        handle: int,
        path: str,
        offset: int,
        size_bytes: int,
        digest: Digest,
        *,
        unwanted: Callable[[], bool] | None,
    ) -> None:
        self.unwanted = unwanted
        self._handle = handle
        self._path = path
        self._offset = offset
        self.size_bytes = size_bytes
        self._digest = digest

    def read(self, into: memoryview, at: int) -> None:
        """Fill `into` from `at` bytes after the stretch's begin."""
        if self.unwanted is not None and self.unwanted():
            raise Abandoned(f"{self._path} is not stored any further: nobody wants it any more")
        got = read_fully(self._handle, into, self._offset + at)
        if got < len(into):
            raise EOFError(f"{self._path} ends {len(into) - got} bytes short of what was to be stored")
        self._digest.update(into)


def _parts(stretch: _Stretch) -> Iterator[bytearray]:
    half = stretch.size_bytes // 2
    passed = False
    for at in range(0, stretch.size_bytes, PART_BYTES):
        if not passed and at >= half:
            hit("store.put_range:middle")
            passed = True
        part = bytearray(min(PART_BYTES, stretch.size_bytes - at))
        stretch.read(memoryview(part), at)
        yield part


def _client(scheme: Scheme, bucket: str, prefix: str, timeout_s: float, retries_max: int) -> Client:
    options: ClientConfig = {
        "timeout": timedelta(seconds=timeout_s),
        "connect_timeout": timedelta(seconds=5),
        "allow_http": any(os.environ.get(name, "").startswith("http://") for name in _ENDPOINTS[scheme]),
    }
    retry: RetryConfig = {
        "max_retries": retries_max,
        "retry_timeout": timedelta(seconds=RETRY_TIMEOUT_S),
        "backoff": {
            "init_backoff": timedelta(seconds=0.1),
            "max_backoff": timedelta(seconds=5),
            "base": 2,
        },
    }
    where = prefix or None
    if scheme == "s3":
        # Our own digest is in the manifest; signing the payload's SHA-256 as well costs 3x (performance notes, I).
        # Keys are deleted one by one: not every S3-compatible store has the bulk request.
        return S3Store(
            bucket,
            prefix=where,
            unsigned_payload=True,
            disable_bulk_delete=True,
            client_options=options,
            retry_config=retry,
        )
    if scheme == "gs":
        return GCSStore(bucket, prefix=where, client_options=options, retry_config=retry)
    return AzureStore(bucket, prefix=where, client_options=options, retry_config=retry)


def _only_the_object_is_missing(error: FileNotFoundError) -> None:
    """Pass over a missing object; a missing bucket is no answer to a question about an object."""
    if any(sign in str(error) for sign in _NO_BUCKET):
        raise error


def _host(text: str) -> str:
    """Return at which host a request was refused, as a client's message has it."""
    found = re.search(r"https?://([^/\s]+)/", text)
    return f" at {found[1]}" if found else ""


def _reason(text: str) -> str:
    """Return what a person can use of a client's message: never a request, a header or a body."""
    for sign, reason in _REASONS:
        if sign in text:
            return reason
    status = re.search(r"status code: (\d{3} [A-Za-z ]+)", text)
    return status[1] if status else "no usable answer"
