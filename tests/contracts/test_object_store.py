"""What every object store promises, held against each one: folders, a simulated disk, memory, S3, Azure, Google."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import xxhash

from tests.contracts.servers import fake_bucket, google_environment
from tests.support.simulated_disk import SimulatedDisk
from tests.support.simulated_store import MemoryStore
from windfall.linux.clock import SystemClock
from windfall.ports import ObjectStore
from windfall.storage.file_store import FileStore
from windfall.storage.object_stores import open_store, prove_conditions
from windfall.storage.store_operations import run

KINDS = ("folder", "simulated disk", "memory", "s3", "azure", "google")
MB = 1 << 20


@pytest.fixture(scope="module")
def opener(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[], ObjectStore]]:
    """Opens an empty store of one kind; its server, if any, lives as long as the module's tests of that kind."""
    folder = tmp_path_factory.mktemp("runs")
    numbers = itertools.count()
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "folder":
            yield lambda: open_store(str(folder / f"run{next(numbers)}" / "deep"))
        elif request.param == "simulated disk":
            yield lambda: FileStore("/disk/run", SimulatedDisk())
        elif request.param == "memory":
            yield MemoryStore
        elif request.param == "s3":
            _set(patch, request.getfixturevalue("s3"))
            yield lambda: open_store(f"s3://lab/team/run{next(numbers)}")
        elif request.param == "azure":
            _set(patch, request.getfixturevalue("azure"))
            yield lambda: open_store(f"az://lab/team/run{next(numbers)}")
        else:
            with fake_bucket() as (endpoint, _):
                _set(patch, google_environment(endpoint))
                yield lambda: open_store(f"gs://lab/team/run{next(numbers)}")


def _set(patch: pytest.MonkeyPatch, environment: dict[str, str]) -> None:
    for name, value in environment.items():
        patch.setenv(name, value)


@pytest.fixture
def store(opener: Callable[[], ObjectStore]) -> ObjectStore:
    return opener()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "checkpoint.bin"
    path.write_bytes(bytes(range(253)) * (5 * MB // 253) + b"the end")
    return path


def digest(data: bytes) -> str:
    return f"xxh3-128:{xxhash.xxh3_128_hexdigest(data)}"


pytestmark = [pytest.mark.real, pytest.mark.parametrize("opener", KINDS, indirect=True, scope="module")]


def test_an_object_is_created_once(store: ObjectStore) -> None:
    """The second creation of a key reports False and changes nothing."""
    assert store.create("log/00000001", b"first") is True
    assert store.create("log/00000001", b"second") is False
    assert store.get("log/00000001") == b"first"


def test_of_many_creations_at_one_moment_one_wins(store: ObjectStore) -> None:
    """Exactly one of eight threads creates the key, and its content is what stays."""
    with ThreadPoolExecutor(8) as threads:
        for round_number in range(4):
            key = f"log/{round_number:08d}"
            won = list(threads.map(lambda n, key=key: store.create(key, f"writer {n}".encode()), range(8)))
            assert won.count(True) == 1
            assert store.get(key) == f"writer {won.index(True)}".encode()


def test_put_writes_and_replaces(store: ObjectStore) -> None:
    """The last put is what is read, also if it is shorter, and a created key can be replaced too."""
    store.put("heartbeats/00000001", b"beat one")
    store.put("heartbeats/00000001", b"beat")
    assert store.get("heartbeats/00000001") == b"beat"
    assert store.create("marker", b"a")
    store.put("marker", b"")
    assert store.get("marker") == b""


def test_what_is_not_there_reads_as_none(store: ObjectStore) -> None:
    """No content, no length, no error for a key that was never written, in no folder or in one."""
    assert store.get("windfall.json") is None
    assert store.size("checkpoints/10/manifest.json") is None
    store.put("checkpoints/10/other", b"")
    assert store.get("checkpoints/10/manifest.json") is None


def test_size_is_the_length(store: ObjectStore) -> None:
    """An object's length is told without its content."""
    store.put("a/b", b"12345")
    store.put("a/empty", b"")
    assert (store.size("a/b"), store.size("a/empty")) == (5, 0)


def test_delete_removes_and_forgives(store: ObjectStore) -> None:
    """A deleted key is gone, deleting again is no error, and the key can be created anew."""
    store.put("shards/1-ab/10/0/0", b"x")
    store.delete("shards/1-ab/10/0/0")
    store.delete("shards/1-ab/10/0/0")
    store.delete("never/was")
    assert store.get("shards/1-ab/10/0/0") is None
    assert store.list("shards/") == []
    assert store.create("shards/1-ab/10/0/0", b"y")


def test_list_gives_the_keys_that_begin_so(store: ObjectStore) -> None:
    """Keys are listed sorted, by any beginning, also one that ends inside a name; temporary files are never among them."""
    keys = ["checkpoints/10/manifest.json", "log/00000001", "log/00000002", "log/00000011", "windfall.json"]
    for key in reversed(keys):
        store.put(key, b"")
    assert store.list("") == keys
    assert store.list("log/") == keys[1:4]
    assert store.list("log/0000000") == keys[1:3]
    assert store.list("lo") == keys[1:4]
    assert store.list("none/") == []


@pytest.mark.parametrize(("offset", "size"), [(0, 1), (7, 4097), (1000, 3 * MB + 1), (MB, 2 * MB)])
def test_a_stretch_of_a_file_goes_and_comes_back(
    store: ObjectStore, source: Path, tmp_path: Path, offset: int, size: int
) -> None:
    """The digest names the stored bytes, which come back at any place of another file and leave the rest of it alone."""
    data = source.read_bytes()[offset : offset + size]
    target = tmp_path / "restored.bin"
    target.write_bytes(b"#" * (size + 100))

    assert store.put_range("shards/1/0", str(source), offset, size) == digest(data)
    assert store.size("shards/1/0") == size
    assert store.get("shards/1/0") == data
    assert store.get_range("shards/1/0", str(target), 33, size) == digest(data)
    assert target.read_bytes() == b"#" * 33 + data + b"#" * 67


def test_a_file_that_ends_early_is_not_stored(store: ObjectStore, source: Path) -> None:
    """A stretch past the file's end raises EOFError and leaves no object."""
    with pytest.raises(EOFError):
        store.put_range("shards/1/0", str(source), 10, source.stat().st_size)
    with pytest.raises(EOFError):
        store.put_range("shards/1/1", str(source), source.stat().st_size + 5, 10)
    assert store.list("shards/") == []


def test_an_object_of_another_length_is_written_nowhere(store: ObjectStore, tmp_path: Path) -> None:
    """Restoring with the wrong length gives the digest of what is there and touches no byte of the file."""
    target = tmp_path / "restored.bin"
    target.write_bytes(b"#" * 100)
    store.put("shards/1/0", b"five!")
    for wrong in (4, 6):
        assert store.get_range("shards/1/0", str(target), 0, wrong) == digest(b"five!")
    assert store.get_range("shards/1/none", str(target), 0, 5) is None
    assert target.read_bytes() == b"#" * 100


def test_it_proves_its_conditions(store: ObjectStore) -> None:
    """The proof on which the fence rests succeeds and leaves nothing behind."""
    assert run(prove_conditions("ab12"), store, SystemClock()) is None
    assert store.list("") == []
