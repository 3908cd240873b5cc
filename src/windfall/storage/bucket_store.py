"""The object store in a bucket: S3, Google Cloud Storage or Azure Blob Storage, through obstore.

Addresses and credentials come from the environment and the machine's own identity, as documented by obstore
(`AWS_ENDPOINT_URL`, `AWS_ACCESS_KEY_ID`, ..., `GOOGLE_SERVICE_ACCOUNT`, ..., `AZURE_STORAGE_ACCOUNT_NAME`, ...).

obstore starts threads, which a fork does not copy: a child of a process that used it hangs in its first call.  So this
module is imported only when the first bucket is opened, and the process does not fork afterwards.
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

from windfall.errors import StoreDenied, StoreError, StoreFull, StoreMissing, StoreUnreachable, TransferCancelled
from windfall.storage.failpoints import hit
from windfall.storage.shard_transfer import BLOCK_BYTES, Buffers, Digest, read_fully, write_fully
from windfall.terms import Bytes

if TYPE_CHECKING:
    from obstore.store import ClientConfig, RetryConfig

Scheme = Literal["s3", "gs", "az"]
Client = S3Store | GCSStore | AzureStore

WHOLE_MAX_BYTES = 64 << 20
"""Ranges up to this length are one request, from a reused buffer; longer ones are sent in parts [B]."""
STOP_POLL_S = 0.02
"""How often a running request is checked for cancellation [s]."""
PART_BYTES = 32 << 20
SMALL_TIMEOUT_S = 20
BULK_TIMEOUT_S = 300
"""Timeout of one request with a file range: 64 MiB at 0.22 MB/s [s]."""
RETRIES_MAX = 2
"""Retries by the client itself, which help its search for credentials; `storage.store_operations` does the rest."""
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
"""Parts of addresses that are used only without credentials in the environment, and Azure's error without an account."""
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
    ("BadScheme", "plain http is not allowed without an http endpoint"),
    ("ConnectionReset", "the connection was reset"),
    ("BrokenPipe", "the connection was reset"),
    ("IncompleteMessage", "the connection was closed before the reply"),
    ("body error", "its reply was truncated"),
    ("IncompleteBody", "its reply was truncated"),
    ("TimedOut", "timed out"),
    ("timed out", "timed out"),
)
_DOUBTFUL_ADDRESS = ("ConnectionRefused", "dns error", "BadScheme")
_NO_BUCKET = ("NoSuchBucket", "ContainerNotFound", "bucket does not exist")


class RemoteStore:
    """`ObjectStore` under a prefix of a bucket.

    Args:
        scheme: the protocol.
        bucket: the bucket or container.
        prefix: prefix of all keys, without slashes at its ends; may be empty.
        small_timeout_s: timeout of a request without a file range [s].
        retries_max: how often a request is retried after a temporary failure.
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
        with self._translate_errors():
            self._small = _client(scheme, bucket, prefix, small_timeout_s, retries_max)
            self._bulk = _client(scheme, bucket, prefix, BULK_TIMEOUT_S, retries_max)
        self._buffers = Buffers(WHOLE_MAX_BYTES)
        self._lock = threading.Lock()
        self._sending: asyncio.AbstractEventLoop | None = None

    def create(self, key: str, data: bytes) -> bool:
        """Create an object on the condition that it does not exist."""
        with self._translate_errors():
            for _ in range(CONFLICTS_MAX):
                try:
                    obstore.put(self._small, key, data, mode="create")
                except AlreadyExistsError as error:
                    # S3 answers 409 to simultaneous creations, each of which may have failed.
                    if _CONFLICT not in str(error) or self.size(key) is not None:
                        return False
                else:
                    return True
        raise StoreUnreachable(f"{self.url} reports a conflict at every attempt to create {key}: try again later")

    def put(self, key: str, data: bytes) -> None:
        """Write or replace an object in one request."""
        with self._translate_errors():
            obstore.put(self._bulk if len(data) > BLOCK_BYTES else self._small, key, data, use_multipart=False)

    def get(self, key: str) -> bytes | None:
        """Return an object's content."""
        with self._translate_errors():
            try:
                return bytes(obstore.get(self._bulk, key).bytes())
            except FileNotFoundError as error:
                _only_the_object_is_missing(error)
                return None

    def size(self, key: str) -> Bytes | None:
        """Return an object's length [B]."""
        with self._translate_errors():
            try:
                return Bytes(obstore.head(self._small, key)["size"])
            except FileNotFoundError as error:
                _only_the_object_is_missing(error)
                return None

    def delete(self, key: str) -> None:
        """Delete an object."""
        with self._translate_errors():
            try:
                obstore.delete(self._small, key)
            except FileNotFoundError as error:
                _only_the_object_is_missing(error)

    def list(self, prefix: str) -> list[str]:
        """Return the keys that start with `prefix`: the client lists whole folders, which are filtered here."""
        with self._translate_errors():
            folder = prefix.rpartition("/")[0]
            pages = obstore.list(self._small, folder or None, chunk_size=1000)
            return sorted(entry["path"] for page in pages for entry in page if entry["path"].startswith(prefix))

    def put_range(
        self, key: str, path: str, offset: int, size_bytes: int, cancelled: Callable[[], bool] | None = None
    ) -> str:
        """Store a range of a local file, hashed as it is read; the store's own payload hash is not computed."""
        digest = Digest()
        source = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            with self._translate_errors():
                file_range = _FileRange(source, path, offset, size_bytes, digest, cancelled=cancelled)
                if size_bytes <= WHOLE_MAX_BYTES:
                    self._put_whole(key, file_range)
                else:
                    parts = _parts(file_range)
                    obstore.put(self._bulk, key, parts, chunk_size=PART_BYTES, max_concurrency=4)
        finally:
            os.close(source)
        return digest.text()

    def get_range(self, key: str, path: str, offset: int, size_bytes: int) -> str | None:
        """Write an object into a local file, hashed as it arrives."""
        target = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            with self._translate_errors():
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

    def _put_whole(self, key: str, file_range: _FileRange) -> None:
        memory = self._buffers.take()
        view = memoryview(memory)[: file_range.size_bytes]
        half = file_range.size_bytes // 2
        file_range.read(view[:half], 0)
        hit("store.put_range:middle")
        file_range.read(view[half:], half)
        self._send(key, view, file_range.cancelled)
        # A cancelled connection may still send from this memory: then the buffer is dropped, not reused.
        with contextlib.suppress(BufferError):
            view.release()
            self._buffers.give(memory)

    def _send(self, key: str, view: memoryview, cancelled: Callable[[], bool] | None) -> None:
        """Send one request; cancel it once it is no longer needed, so that the connection is free for another."""
        if cancelled is None:
            obstore.put(self._bulk, key, view, use_multipart=False)
            return

        async def send() -> None:
            await obstore.put_async(self._bulk, key, view, use_multipart=False)

        sending = asyncio.run_coroutine_threadsafe(send(), self._loop())
        while not wait([sending], timeout=STOP_POLL_S).done:
            if cancelled():
                sending.cancel()
                raise TransferCancelled(f"the upload of {key} was cancelled")
        sending.result()

    def _loop(self) -> asyncio.AbstractEventLoop:
        """Return the event loop, in its own thread, that sends cancellable requests."""
        with self._lock:
            if self._sending is None:
                self._sending = asyncio.new_event_loop()
                threading.Thread(target=self._sending.run_forever, name="windfall-send", daemon=True).start()
            return self._sending

    @contextlib.contextmanager
    def _translate_errors(self) -> Iterator[None]:
        """Convert errors of the client to store errors, without the content of requests."""
        try:
            yield
        except (BaseError, FileNotFoundError, ValueError, OSError) as error:
            raise self._store_error(error) from error

    def _store_error(self, error: Exception) -> StoreError:
        text = str(error)
        if isinstance(error, OSError) and error.errno is not None:
            kind = StoreFull if error.errno in (errno.ENOSPC, errno.EDQUOT) else StoreUnreachable
            return kind(
                f"a local file for {self.url} cannot be accessed ({error.strerror}): {error.filename or 'see above'}"
            )
        if any(sign in text for sign in _NO_CREDENTIALS):
            return StoreDenied(f"no credentials for {self.url} were found: set {_CREDENTIALS[self._scheme]}")
        if any(sign in text for sign in _DENIED):
            return StoreDenied(
                f"{self.url} rejected the credentials ({_reason(text)}): check {_CREDENTIALS[self._scheme]}, "
                "and their permissions"
            )
        if any(sign in text for sign in _NO_BUCKET):
            return StoreMissing(f"the bucket of {self.url} does not exist: create it, or correct the name")
        if any(sign in text for sign in _NO_ROOM):
            return StoreFull(f"{self.url} has no space left ({_reason(text)}): free some space or use another location")
        return StoreUnreachable(
            f"{self.url}{_host(text)} does not answer correctly ({_reason(text)})" + self._hint(text)
        )

    def _hint(self, text: str) -> str:
        """Return advice if the address may be wrong; after a broken connection it is right."""
        doubtful = any(sign in text for sign in _DOUBTFUL_ADDRESS)
        return f": check {_ENDPOINTS[self._scheme][0]}, and that the store is running" if doubtful else ""


class _FileRange:
    """A range of an open local file, hashed in the order in which it is read."""

    def __init__(
        self,
        handle: int,
        path: str,
        offset: int,
        size_bytes: int,
        digest: Digest,
        *,
        cancelled: Callable[[], bool] | None,
    ) -> None:
        self.cancelled = cancelled
        self._handle = handle
        self._path = path
        self._offset = offset
        self.size_bytes = size_bytes
        self._digest = digest

    def read(self, into: memoryview, at: int) -> None:
        """Fill `into` from `at` bytes after the start of the range."""
        if self.cancelled is not None and self.cancelled():
            raise TransferCancelled(f"the upload of {self._path} was cancelled")
        got = read_fully(self._handle, into, self._offset + at)
        if got < len(into):
            raise EOFError(f"{self._path} is {len(into) - got} bytes shorter than expected")
        self._digest.update(into)


def _parts(file_range: _FileRange) -> Iterator[bytearray]:
    half = file_range.size_bytes // 2
    passed = False
    for at in range(0, file_range.size_bytes, PART_BYTES):
        if not passed and at >= half:
            hit("store.put_range:middle")
            passed = True
        part = bytearray(min(PART_BYTES, file_range.size_bytes - at))
        file_range.read(memoryview(part), at)
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
        # The manifest has its own digest; also signing the payload's SHA-256 costs 3x (performance notes, I).
        # Keys are deleted one by one: not every S3-compatible store supports bulk deletion.
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
    """Ignore a missing object, but not a missing bucket."""
    if any(sign in str(error) for sign in _NO_BUCKET):
        raise error


def _host(text: str) -> str:
    """Return the host in a client's error message."""
    found = re.search(r"https?://([^/\s]+)/", text)
    return f" at {found[1]}" if found else ""


def _reason(text: str) -> str:
    """Return the useful part of a client's error message: never a request, a header or a body."""
    for sign, reason in _REASONS:
        if sign in text:
            return reason
    status = re.search(r"status code: (\d{3} [A-Za-z ]+)", text)
    return status[1] if status else "no valid answer"
