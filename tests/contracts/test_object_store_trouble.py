"""Stores in trouble: what a user is told, what is tried again, which store is refused."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.contracts.servers import Bucket, fake_bucket, free_port, s3_environment
from windfall.errors import Misuse, StoreDenied, StoreFull, StoreUnreachable, StoreUnsupported
from windfall.linux.clock import SystemClock
from windfall.ports import ObjectStore
from windfall.storage.bucket_store import RemoteStore
from windfall.storage.disk_operations import DiskOps
from windfall.storage.file_store import FileStore
from windfall.storage.object_stores import ThrottledStore, Uplink, open_store, prove_conditions
from windfall.storage.store_operations import run

pytestmark = pytest.mark.real
SECRET = "a-secret-key"


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    with fake_bucket() as (endpoint, bucket):
        use(monkeypatch, s3_environment(endpoint, SECRET))
        yield bucket


def use(monkeypatch: pytest.MonkeyPatch, environment: dict[str, str]) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)


def told(error: pytest.ExceptionInfo[Exception], *words: str) -> None:
    """One line that names what is asked for and gives away nothing."""
    text = str(error.value)
    assert all(word in text for word in words), text
    assert "\n" not in text
    assert SECRET not in text
    assert len(text) < 300


# ------------------------------------------------------------------------------------------------------------- buckets


def test_a_store_that_ignores_conditions_is_refused(bucket: Bucket) -> None:
    """A second creation that succeeds is found out before any run is built on it, and the probe is removed."""
    bucket.honest = False
    with pytest.raises(StoreUnsupported) as error:
        run(prove_conditions("ab12"), open_store("s3://lab/run"), SystemClock())
    told(error, "conditional writes")
    assert bucket.objects == {}


def test_an_honest_store_is_not_refused_for_a_lost_reply(bucket: Bucket) -> None:
    """The first creation arrives, its reply does not, and the client's retry finds the key: content tells whose it is."""
    bucket.lost_replies = 1
    run(prove_conditions("ab12"), open_store("s3://lab/run"), SystemClock())
    assert bucket.objects == {}


def test_a_lost_reply_may_say_false_though_the_object_is_ours(bucket: Bucket) -> None:
    """Creation is tried again after a lost connection; its answer may be False while the content is the caller's."""
    bucket.lost_replies = 1
    store = open_store("s3://lab/run")
    assert store.create("log/00000001", b"nonce 1") is False
    assert store.get("log/00000001") == b"nonce 1"


def test_a_busy_store_is_asked_again_and_not_for_ever(bucket: Bucket) -> None:
    """Three answers of 503 are survived; a store that never answers otherwise ends in one sentence."""
    bucket.failures = 3
    store = RemoteStore("s3", "lab", "run", retries_max=3)
    store.put("a", b"x")
    assert bucket.objects == {"run/a": b"x"}

    bucket.failures = 1000
    with pytest.raises(StoreUnreachable) as error:
        RemoteStore("s3", "lab", "run", retries_max=1).put("a", b"x")
    told(error, "s3://lab/run", "503 Service Unavailable")


def test_wrong_credentials_are_said_to_be_wrong(bucket: Bucket) -> None:
    """A refused signature names the variables to check, for reads and writes."""
    bucket.denies = True
    store = open_store("s3://lab/run")
    for attempt in (lambda: store.put("a", b"x"), lambda: store.get("a"), lambda: store.list("")):
        with pytest.raises(StoreDenied) as error:
            attempt()
        told(error, "s3://lab/run", "AWS_ACCESS_KEY_ID", "403 Forbidden")


def test_a_wrong_azure_key_is_said_to_be_wrong(monkeypatch: pytest.MonkeyPatch, azure: dict[str, str]) -> None:
    """Azurite checks signatures: another key is refused and the sentence names the variables."""
    use(monkeypatch, {**azure, "AZURE_STORAGE_ACCOUNT_KEY": "d3Jvbmc="})
    with pytest.raises(StoreDenied) as error:
        open_store("az://lab/run").put("a", b"x")
    told(error, "az://lab/run", "AZURE_STORAGE_ACCOUNT_KEY")


def test_missing_credentials_are_said_to_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without keys in the environment and without a role the user reads which variables to set."""
    # The machine's own identity service, as far as the client knows, is a port where nobody listens.
    use(monkeypatch, {"AWS_METADATA_ENDPOINT": f"http://127.0.0.1:{free_port()}", "AWS_REGION": "us-east-1"})
    use(monkeypatch, {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{free_port()}"})
    monkeypatch.delenv("AWS_ACCESS_KEY_ID", raising=False)
    with pytest.raises(StoreDenied) as error:
        RemoteStore("s3", "lab", "run", retries_max=0).put("a", b"x")
    told(error, "no credentials for s3://lab/run", "AWS_ACCESS_KEY_ID")


def test_a_full_store_is_said_to_be_full(bucket: Bucket) -> None:
    """A bucket out of quota is StoreFull, not a network failure."""
    bucket.full = True
    with pytest.raises(StoreFull) as error:
        RemoteStore("s3", "lab", "run", retries_max=0).put("a", b"x")
    told(error, "s3://lab/run", "space")


def test_a_bucket_that_does_not_exist_is_no_empty_store(monkeypatch: pytest.MonkeyPatch, s3: dict[str, str]) -> None:
    """Reading from a missing bucket is an error, not None: a run there was not lost, the name is wrong."""
    use(monkeypatch, s3)
    store = open_store("s3://lap/run")
    for attempt in (lambda: store.get("a"), lambda: store.create("a", b"x"), lambda: store.list("")):
        with pytest.raises(StoreUnreachable) as error:
            attempt()
        told(error, "s3://lap/run", "does not exist")


def test_an_address_where_nobody_listens_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A refused connection says so, after bounded retries."""
    use(monkeypatch, s3_environment(f"http://127.0.0.1:{free_port()}", SECRET))
    with pytest.raises(StoreUnreachable) as error:
        RemoteStore("s3", "lab", "run", retries_max=1).get("a")
    told(error, "s3://lab/run", "connection refused", "AWS_ENDPOINT_URL")


def test_a_long_stretch_goes_in_parts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, s3: dict[str, str]) -> None:
    """More than one request's worth of a file arrives whole, under the digest of its bytes."""
    source, target = tmp_path / "a", tmp_path / "b"
    source.write_bytes(os.urandom(1 << 20) * 70)
    target.write_bytes(b"")
    use(monkeypatch, s3)
    store = open_store("s3://lab/long")
    stored = store.put_range("shards/0", str(source), 0, 70 << 20)
    assert store.get_range("shards/0", str(target), 0, 70 << 20) == stored
    assert target.read_bytes() == source.read_bytes()


# --------------------------------------------------------------------------------------------------------------- files


class FailingOps(DiskOps):
    """A disk on which one operation fails with one error."""

    def __init__(self, operation: str, number: int) -> None:
        self.failing, self.number = operation, number

    def write(self, handle: int, data: memoryview, offset: int) -> None:
        if self.failing == "write":
            raise OSError(self.number, os.strerror(self.number))
        super().write(handle, data, offset)

    def close(self, handle: int) -> None:
        super().close(handle)
        if self.failing == "close":
            raise OSError(self.number, os.strerror(self.number))


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("operation", ["write", "close"])
def test_a_full_disk_is_said_to_be_full_and_keeps_the_old_object(tmp_path: Path, operation: str, number: int) -> None:
    """No space, no quota, told at the write or only at the close: one sentence, the old object stays, nothing is left."""
    FileStore(str(tmp_path)).put("heartbeats/1", b"old")
    source = tmp_path / "source"
    source.write_bytes(bytes(3 << 20))
    store = FileStore(str(tmp_path / "."), FailingOps(operation, number))
    for attempt in (
        lambda: store.put("heartbeats/1", b"new"),
        lambda: store.create("log/00000001", b"new"),
        lambda: store.put_range("shards/0", str(source), 0, 3 << 20),
    ):
        with pytest.raises(StoreFull) as error:
            attempt()
        told(error, f"file://{tmp_path}", "space")
    assert FileStore(str(tmp_path)).get("heartbeats/1") == b"old"
    assert FileStore(str(tmp_path)).list("") == ["heartbeats/1", "source"]


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS])
def test_a_disk_that_may_not_be_written_is_said_to_be_closed(tmp_path: Path, number: int) -> None:
    """No right to write, or a read-only mount, is StoreDenied."""
    with pytest.raises(StoreDenied) as error:
        FileStore(str(tmp_path), FailingOps("write", number)).create("log/00000001", b"new")
    told(error, f"file://{tmp_path}", "cannot be accessed")


@pytest.mark.parametrize("refused", ["open", "transfer"])
def test_where_direct_transfers_are_refused_the_page_cache_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: str
) -> None:
    """File systems that refuse O_DIRECT, at once or only at the first transfer, store and restore the same bytes."""
    system_open, system_pwrite, system_preadv, direct = os.open, os.pwrite, os.preadv, []

    def refuse_direct(handle: int) -> None:
        if fcntl.fcntl(handle, fcntl.F_GETFL) & os.O_DIRECT:
            direct.append(handle)
            raise OSError(errno.EINVAL, "Invalid argument")

    def picky_open(path: str, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_DIRECT and refused == "open":
            os.close(system_open(path, flags & ~os.O_DIRECT, mode))
            direct.append(0)
            raise OSError(errno.EINVAL, "Invalid argument")
        return system_open(path, flags, mode)

    def picky_pwrite(handle: int, data: memoryview, offset: int) -> int:
        refuse_direct(handle)
        return system_pwrite(handle, data, offset)

    def picky_preadv(handle: int, into: list[memoryview], offset: int) -> int:
        refuse_direct(handle)
        return system_preadv(handle, into, offset)

    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(os.urandom(3_000_001))
    target.write_bytes(b"")
    monkeypatch.setattr(os, "open", picky_open)
    monkeypatch.setattr(os, "pwrite", picky_pwrite)
    monkeypatch.setattr(os, "preadv", picky_preadv)
    store = FileStore(str(tmp_path / "run"))
    stored = store.put_range("shards/0", str(source), 0, 3_000_001)
    assert store.get_range("shards/0", str(target), 0, 3_000_001) == stored
    assert target.read_bytes() == source.read_bytes()
    assert len(direct) == 2, "asked once for the write, once for the read"


def test_a_root_that_is_a_file_is_named(tmp_path: Path) -> None:
    """A run's place that is no folder ends in one sentence."""
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StoreUnreachable) as error:
        open_store(str(tmp_path / "file" / "run")).put("a", b"")
    told(error, str(tmp_path / "file"))


def test_the_leavings_of_a_dead_writer_go_and_those_of_a_live_one_stay(tmp_path: Path) -> None:
    """The first write of a process clears the workshops whose lock is free, never one that is held."""
    FileStore(str(tmp_path)).put("a", b"")
    (live,) = (tmp_path / ".tmp").iterdir()
    (live / "77").write_bytes(b"half a part of a writer at work")
    script = (
        "import sys; from windfall.storage.file_store import FileStore; from pathlib import Path; root = Path(sys.argv[1]);"
        "FileStore(str(root)).put('b', b''); [(mine / '77').touch() for mine in root.glob('.tmp/*')]"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=True)
    (dead,) = set((tmp_path / ".tmp").iterdir()) - {live}
    assert (live / "77").exists()
    FileStore(str(tmp_path)).put("c", b"")
    assert not dead.exists()
    assert (live / "77").exists()


# ---------------------------------------------------------------------------------------------------------------- URLs


class SweptOps(DiskOps):
    """Another writer takes the new staging folder for one that a dead writer left, before it is locked."""

    def __init__(self) -> None:
        self.swept: list[str] = []

    def lock(self, path: str) -> int | None:
        if not self.swept:
            self.swept.append(path)
            os.rmdir(os.path.dirname(path))
        return super().lock(path)


def test_a_writer_whose_new_folder_another_removes_makes_one_again(tmp_path: Path) -> None:
    """Two writers may begin in the same store at the same moment."""
    ops = SweptOps()

    assert FileStore(f"{tmp_path}/run", ops).create("log/1", b"first")
    assert ops.swept
    assert FileStore(f"{tmp_path}/run").get("log/1") == b"first"


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("memory://run", ["memory://", "s3://BUCKET"]),
        ("http://host/run", ["http://", "s3://BUCKET"]),
        ("s3://", ["has no bucket"]),
        ("s3://key:a-secret-key@lab/run", ["environment", "s3://lab/run"]),
        ("az://lab/run?sig=a-secret-key", ["environment", "az://lab/run"]),
        ("file://host/run", ["three slashes"]),
        ("", ["empty"]),
    ],
)
def test_a_url_that_cannot_be_is_refused_by_name(url: str, words: list[str]) -> None:
    """Unknown schemes, missing buckets, secrets in URLs and hosts in file URLs are refused before anything is touched."""
    with pytest.raises(Misuse) as error:
        open_store(url)
    told(error, *words)


def test_paths_and_file_urls_are_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A path, a relative path and a file URL with an escape all name the folder they look like."""
    monkeypatch.chdir(tmp_path)
    open_store("my run").put("a", b"1")
    assert open_store(f"{tmp_path}/my run/").get("a") == b"1"
    assert open_store(f"file://{tmp_path}/my%20run").get("a") == b"1"
    assert open_store("my run").url == f"file://{tmp_path}/my run"


def test_a_key_cannot_leave_the_store(tmp_path: Path) -> None:
    """Keys with '..', empty parts, a leading slash or in the workshop are no keys."""
    store = FileStore(str(tmp_path / "run"))
    for key in ("../a", "a/../../b", "/etc/passwd", "a//b", "", ".tmp/x"):
        with pytest.raises(ValueError, match="invalid key"):
            store.put(key, b"")


def test_the_client_of_buckets_is_not_loaded_for_files(tmp_path: Path) -> None:
    """A process that uses a folder may fork: obstore, whose threads a fork loses, is not even imported."""
    script = (
        "import sys; from windfall.storage.object_stores import open_store; open_store(sys.argv[1]).put('a', b'');"
        "assert 'obstore' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=True)


# ------------------------------------------------------------------------------------------------------------ bandwidth


@pytest.mark.parametrize("slower", [1.5, pytest.param(1.05, marks=pytest.mark.slow)])
def test_the_limit_holds_over_threads(tmp_path: Path, slower: float) -> None:
    """Eight threads together upload at the limit: never faster, slower by a few percent (on a quiet host) and the disk."""
    source = tmp_path / "source"
    source.write_bytes(bytes(256 << 10))
    clock = SystemClock()

    def took_s(store: ObjectStore) -> float:
        begin = clock.now()
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(lambda n: store.put_range(f"shards/{n}", str(source), 0, 256 << 10), range(40)))
        return clock.now() - begin

    unlimited_s = took_s(FileStore(str(tmp_path / "unlimited")))
    limited_s, ideal_s = took_s(ThrottledStore(FileStore(str(tmp_path / "run")), Uplink(8 << 20, clock))), 40 / 32
    assert ideal_s <= limited_s < slower * ideal_s + unlimited_s


def test_a_small_write_does_not_wait_behind_a_checkpoint(tmp_path: Path) -> None:
    """A heartbeat goes at once while a second of parts is queued, and its bytes are paid all the same."""
    source = tmp_path / "source"
    source.write_bytes(bytes(1 << 20))
    clock = SystemClock()
    store = ThrottledStore(FileStore(str(tmp_path / "run")), Uplink(2 << 20, clock))
    with ThreadPoolExecutor(2) as threads:
        parts = [threads.submit(store.put_range, f"shards/{n}", str(source), 0, 1 << 20) for n in range(2)]
        begin = clock.now()
        store.put("heartbeats/1", bytes(1000))
        assert clock.now() - begin < 0.4
        assert not all(part.done() for part in parts)


def test_a_limit_of_nothing_is_refused(tmp_path: Path) -> None:
    """A rate that carries nothing is a mistake, not a store that hangs."""
    with pytest.raises(Misuse):
        open_store(str(tmp_path), uplink_bytes_per_s=0)
