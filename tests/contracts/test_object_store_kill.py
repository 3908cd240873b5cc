"""A process killed before, after and in the middle of every operation of the file writer and the store."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.contracts.servers import fake_bucket, s3_environment
from windfall.storage.object_stores import open_store
from windfall.wire import environment

pytestmark = pytest.mark.real

# What a run does to its store, and may do again after a death at any point: each line can be repeated.
STORY = """
import sys
from windfall.storage.object_stores import open_store
url, source, target = sys.argv[1:]
store = open_store(url)
store.create("log/00000001", b"record" * 50)
store.put("heartbeats/1", b"beat")
store.put("shards/1-ab/9/0/0", b"of an older point")
stored = store.put_range("shards/1-ab/10/0/0", source, 5, 1500000)
assert store.size("shards/1-ab/10/0/0") == 1500000
store.create("checkpoints/10/manifest.json", stored.encode())
assert store.get("checkpoints/10/manifest.json") == stored.encode()
assert store.get_range("shards/1-ab/10/0/0", target, 0, 1500000) == stored
store.delete("shards/1-ab/9/0/0")
store.list("")
"""
KEYS = ["checkpoints/10/manifest.json", "heartbeats/1", "log/00000001", "shards/1-ab/10/0/0"]


def tell(url: str, folder: Path, **extra: str) -> int:
    """Tell the story in a process of its own; return its exit status."""
    (folder / "target").write_bytes(bytes(1500000))
    command = [sys.executable, "-c", STORY, url, str(folder / "source"), str(folder / "target")]
    return subprocess.run(command, env={**os.environ, **extra}, check=False, capture_output=True).returncode


def prepare(folder: Path) -> bytes:
    folder.mkdir(exist_ok=True)
    content = bytes(range(256)) * 6000
    (folder / "source").write_bytes(content)
    return content[5 : 5 + 1500000]


def passes(url: str, folder: Path) -> Counter[str]:
    """The points that the story passes on an empty store, and how often."""
    assert tell(url, folder, **{environment.FAILPOINT_TRACE: str(folder / "trace")}) == 0
    return Counter((folder / "trace").read_text().splitlines())


def die_and_resume(place: tuple[str, int], folder: Path) -> None:
    """Die at one pass of one point; what is there is whole; the story told again ends as if nothing had been."""
    name, number = place
    content, url = prepare(folder), str(folder / "run")
    assert tell(url, folder, **{environment.FAILPOINT: f"{name}:{number}"}) == -signal.SIGKILL, place
    store = open_store(url)
    assert store.get("shards/1-ab/10/0/0") in (None, content), place
    assert store.get("log/00000001") in (None, b"record" * 50), place
    if store.get("checkpoints/10/manifest.json") is not None:
        assert store.get("shards/1-ab/10/0/0") == content, place
    assert tell(url, folder) == 0, place
    assert store.list("") == KEYS, place
    assert (folder / "target").read_bytes() == content, place


def visit(places: list[tuple[str, int]], folder: Path) -> None:
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(lambda n: die_and_resume(places[n], folder / str(n)), range(len(places))))
    sys.stdout.write(f"{len(places)} deaths at {len({name for name, _ in places})} points\n")


def test_a_death_in_midst_of_a_part_leaves_nothing_of_it(tmp_path: Path) -> None:
    """Killed in the middle of a stretch, before a name is given and after a record: resumed right after each."""
    prepare(tmp_path / "traced")
    passed = passes(str(tmp_path / "traced" / "run"), tmp_path / "traced")
    chosen = (
        "store.put_range:middle",
        "store.get_range:middle",
        "file.link:before",
        "file.rename:after",
        "store.create:after",
    )
    assert set(chosen) <= set(passed)
    assert all(f"store.{call}:{side}" in passed for call in CALLS for side in ("before", "after"))
    visit([(name, passed[name]) for name in chosen], tmp_path)


CALLS = ("create", "put", "get", "size", "delete", "list", "put_range", "get_range")


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_death_at_every_pass_of_every_point_is_survived(tmp_path: Path) -> None:
    """Every pass of every point that the story visits, none left out."""
    prepare(tmp_path / "traced")
    passed = passes(str(tmp_path / "traced" / "run"), tmp_path / "traced")
    visit([(name, number + 1) for name in sorted(passed) for number in range(passed[name])], tmp_path)


def test_the_same_points_guard_a_bucket(tmp_path: Path) -> None:
    """Killed in the middle of an upload to a bucket, no part of it is there, and the story told again ends well."""
    content = prepare(tmp_path)
    with fake_bucket() as (endpoint, bucket):
        extra = s3_environment(endpoint)
        middle = {environment.FAILPOINT: "store.put_range:middle"}
        assert tell("s3://lab/run", tmp_path, **extra, **middle) == -signal.SIGKILL
        assert "run/shards/1-ab/10/0/0" not in bucket.objects
        assert tell("s3://lab/run", tmp_path, **extra) == 0
        assert bucket.objects["run/shards/1-ab/10/0/0"] == content


def test_a_point_costs_nothing_where_none_is_armed() -> None:
    """An unarmed pass takes well below a microsecond."""
    from windfall.storage.failpoints import active, hit

    assert not active()
    begin = time.perf_counter()
    for _ in range(10_000):
        hit("store.create:before")
    assert (time.perf_counter() - begin) / 10_000 < 5e-6
