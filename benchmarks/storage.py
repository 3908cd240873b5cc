"""The store against what the disk and the socket can do, and against boto3."""

from __future__ import annotations

import contextlib
import itertools
import mmap
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.harness import Benchmark

STATE_BYTES = 1_000_000_000 // (16 << 20) * (16 << 20)
PART_BYTES = 64 << 20
BLOCK_BYTES = 16 << 20
THREADS = 8


def benchmarks() -> list[Callable[[], Benchmark]]:
    return [commit_1gb_vs_direct_write, verified_restore_vs_cold_direct_read, upload_vs_boto3]


class TrialContext:
    """A folder on a real disk with a state of 1 GB in it, and one touched, aligned buffer."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="windfall-bench-", dir=os.environ.get("BENCH_DIR", "/var/tmp")))
        self.state = str(self.folder / "state")
        self.buffer = mmap.mmap(-1, BLOCK_BYTES)
        self.buffer[:] = os.urandom(1 << 20) * (BLOCK_BYTES >> 20)
        self.numbers = itertools.count()
        with open(self.state, "wb") as file:
            file.writelines(itertools.repeat(self.buffer, STATE_BYTES // BLOCK_BYTES))
            os.fsync(file.fileno())

    def open(self, name: str, flags: int) -> int:
        """Open past the page cache, or through it where that is refused."""
        path = self.folder / name
        with contextlib.suppress(OSError):
            return os.open(path, flags | os.O_DIRECT, 0o644)
        return os.open(path, flags, 0o644)

    def close(self) -> None:
        shutil.rmtree(self.folder)


def ranges() -> list[tuple[int, int, int]]:
    """(number, offset, length) of each part of the state, as a checkpoint has them."""
    offsets = range(0, STATE_BYTES, PART_BYTES)
    return [(number, offset, min(PART_BYTES, STATE_BYTES - offset)) for number, offset in enumerate(offsets)]


def settle() -> None:
    """Let the disk finish what others asked of it, so that nobody pays for the one before."""
    os.sync()


def commit_1gb_vs_direct_write() -> Benchmark:
    """All parts hashed and durable, then the manifest, against the same bytes from memory to one synced file."""
    from windfall.storage.file_store import FileStore

    context = TrialContext()
    store = FileStore(str(context.folder / "run"))

    def ours() -> float:
        settle()
        prefix = f"shards/{next(context.numbers)}"
        begin = time.perf_counter()
        with ThreadPoolExecutor(THREADS) as threads:
            digests = list(
                threads.map(lambda part: store.put_range(f"{prefix}/{part[0]}", context.state, *part[1:]), ranges())
            )
        store.create(f"checkpoints/{prefix}/manifest.json", "\n".join(digests).encode())
        elapsed = time.perf_counter() - begin
        shutil.rmtree(context.folder / "run" / prefix)
        return elapsed

    def yardstick() -> float:
        settle()
        begin = time.perf_counter()
        handle = context.open("direct", os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        for offset in range(0, STATE_BYTES, BLOCK_BYTES):
            os.pwrite(handle, context.buffer, offset)
        os.fsync(handle)
        os.close(handle)
        elapsed = time.perf_counter() - begin
        os.unlink(context.folder / "direct")
        return elapsed

    return Benchmark("commit_1gb_vs_direct_write", ours, yardstick, 1.3, True, "s", close=context.close)


def verified_restore_vs_cold_direct_read() -> Benchmark:
    """Rate of parts read cold, verified and written to a file, against reading the same parts cold into touched memory.

    The file's pages are touched too: what a fresh page costs differs more between machines than all that is measured here.
    """
    from windfall.storage.file_store import FileStore

    context = TrialContext()
    store = FileStore(str(context.folder / "run"))
    digests = [store.put_range(f"shards/{number}", context.state, offset, size) for number, offset, size in ranges()]
    target = str(context.folder / "restored")
    shutil.copyfile(context.state, target)

    def forget() -> None:
        settle()
        for number, _, size in ranges():
            with open(context.folder / "run" / "parts" / str(number), "rb") as part:
                os.posix_fadvise(part.fileno(), 0, size, os.POSIX_FADV_DONTNEED)

    def ours() -> float:
        forget()
        begin = time.perf_counter()
        with ThreadPoolExecutor(THREADS) as threads:
            found = list(threads.map(lambda part: store.get_range(f"shards/{part[0]}", target, *part[1:]), ranges()))
        elapsed = time.perf_counter() - begin
        assert found == digests
        return STATE_BYTES / elapsed / 1e9

    def yardstick() -> float:
        forget()
        begin = time.perf_counter()
        for number, _, size in ranges():
            handle = context.open(f"run/parts/{number}", os.O_RDONLY)
            for offset in range(0, size, BLOCK_BYTES):
                os.preadv(handle, [context.buffer], offset)
            os.close(handle)
        return STATE_BYTES / (time.perf_counter() - begin) / 1e9

    return Benchmark("verified_restore_vs_cold_direct_read", ours, yardstick, 0.7, False, "GB/s", close=context.close)


def upload_vs_boto3() -> Benchmark:
    """Rate of eight parts of 64 MiB at a time, hashed, against `upload_file` as it comes, into a sink on the loopback."""
    import boto3

    context = TrialContext()
    sink = subprocess.Popen([sys.executable, "-m", "benchmarks._sink"], stdout=subprocess.PIPE, text=True)
    assert sink.stdout is not None
    endpoint = f"http://127.0.0.1:{int(sink.stdout.readline())}"
    os.environ.update(
        AWS_ENDPOINT_URL=endpoint, AWS_ACCESS_KEY_ID="bench", AWS_SECRET_ACCESS_KEY="bench", AWS_REGION="us-east-1"
    )
    from windfall.storage.object_stores import open_store

    store = open_store("s3://lab/run")
    client = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1")

    def ours() -> float:
        begin = time.perf_counter()
        with ThreadPoolExecutor(THREADS) as threads:
            list(threads.map(lambda part: store.put_range(f"shards/{part[0]}", context.state, *part[1:]), ranges()))
        return STATE_BYTES / (time.perf_counter() - begin) / 1e9

    def yardstick() -> float:
        begin = time.perf_counter()
        client.upload_file(context.state, "lab", "whole")
        return STATE_BYTES / (time.perf_counter() - begin) / 1e9

    def close() -> None:
        sink.kill()
        sink.wait()
        context.close()

    return Benchmark("upload_vs_boto3", ours, yardstick, 3.0, False, "GB/s", close=close)
