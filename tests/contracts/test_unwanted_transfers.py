"""A transfer that nobody wants any more is broken off and leaves the line to the next one."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contracts.servers import s3_environment
from windfall.errors import TransferCancelled
from windfall.linux.clock import SystemClock
from windfall.storage.file_store import FileStore
from windfall.storage.object_stores import ThrottledStore, Uplink, open_store

SIZE_BYTES = 32 << 20


@pytest.fixture
def source(tmp_path: Path) -> str:
    """A file that is worth an upload."""
    path = tmp_path / "source"
    path.write_bytes(bytes(SIZE_BYTES))
    return str(path)


class Doubts:
    """Somebody who wants a transfer until the question was put a number of times."""

    def __init__(self, retry: int) -> None:
        self.retry = retry

    def __call__(self) -> bool:
        """Whether the transfer is unwanted."""
        self.retry -= 1
        return self.retry < 0


def test_a_folder_gets_nothing_of_it(tmp_path: Path, source: str) -> None:
    """Asked between blocks; no object and no draft stay behind."""
    store = FileStore(str(tmp_path / "run"))
    with pytest.raises(TransferCancelled):
        store.put_range("shards/1", source, 0, SIZE_BYTES, Doubts(2))
    assert store.list("shards/") == []
    assert [path.name for path in (tmp_path / "run").rglob("*") if path.is_file()] == ["lock"]


def test_the_line_is_free_at_once(tmp_path: Path, source: str) -> None:
    """Eight parts of 4 s each are stopped while the first is on its way: the next one does not pay for them."""
    clock = SystemClock()
    store = ThrottledStore(FileStore(str(tmp_path / "run")), Uplink(SIZE_BYTES / 4, clock))
    stopped = threading.Event()
    ended: list[str] = []

    def upload(number: int) -> None:
        try:
            store.put_range(f"shards/{number}", source, 0, SIZE_BYTES, stopped.is_set)
        except TransferCancelled:
            ended.append("stopped")

    threads = [threading.Thread(target=upload, args=(number,)) for number in range(8)]
    begin = clock.now()
    for thread in threads:
        thread.start()
    threading.Timer(0.4, stopped.set).start()
    for thread in threads:
        thread.join()
    assert ended == ["stopped"] * 8
    store.put_range("shards/next", source, 0, SIZE_BYTES // 4)
    assert 1.4 <= clock.now() - begin < 2.5, "0.4 s until the stop, one second of its own"


class TarPit:
    """A bucket that takes a request's first bytes and no more until it is told to.

    Attributes:
        flows: set to take the rest.
        taken: the length of each connection's bytes, once it was closed by the other side [B].
    """

    def __init__(self) -> None:
        self.flows = threading.Event()
        self.taken: list[int] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        self.endpoint = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._swallow, args=(connection,), daemon=True).start()

    def _swallow(self, connection: socket.socket) -> None:
        with connection:
            taken = len(connection.recv(1 << 10))
            self.flows.wait()
            with contextlib.suppress(ConnectionResetError):
                while data := connection.recv(1 << 16):
                    taken += len(data)
            self.taken.append(taken)

    def close(self) -> None:
        """Take no more requests."""
        self.flows.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()


@pytest.fixture
def tar_pit(monkeypatch: pytest.MonkeyPatch) -> Iterator[TarPit]:
    """The bucket as the environment's S3."""
    pit = TarPit()
    for name, value in s3_environment(pit.endpoint, "secret").items():
        monkeypatch.setenv(name, value)
    yield pit
    pit.close()


@pytest.mark.real
def test_a_request_to_a_bucket_is_broken_off(tar_pit: TarPit, source: str) -> None:
    """In the midst of its body, within a moment: what was not on the line yet is never sent."""
    store = open_store("s3://bucket/run")
    stop_at = time.monotonic() + 0.5
    with pytest.raises(TransferCancelled):
        store.put_range("shards/1", source, 0, SIZE_BYTES, lambda: time.monotonic() >= stop_at)
    assert time.monotonic() - stop_at < 0.3
    tar_pit.flows.set()
    until = time.monotonic() + 10.0
    while not tar_pit.taken and time.monotonic() < until:
        time.sleep(0.005)
    (taken,) = tar_pit.taken
    assert taken < SIZE_BYTES
