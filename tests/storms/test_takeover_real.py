"""Contenders as real processes, on a folder, a real S3-protocol server and Azurite, keep the law of the store."""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import os
import random
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from tests.contracts.servers import azure_server, no_azurite, s3_server
from tests.storms.contenders import GOAL, ClaimedRecord, contend
from tests.support.simulated_store import digest
from windfall.linux.clock import SystemClock
from windfall.ports import ObjectStore
from windfall.storage import restore, run_log, run_state, store_operations
from windfall.storage.object_stores import open_store
from windfall.terms import Outcome, Record, RecordKind

RACES = int(os.environ.get("WINDFALL_RACES", "50"))
CONTENDERS_MAX = 5
END_S = 60.0
"""A race is over within this time, or no contender wins in bounded time."""
LEASE_S = {"folder": 0.4, "s3": 0.8, "azure": 0.8}


@contextlib.contextmanager
def place(kind: str, folder: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """The URL below which a kind of store keeps its runs, and the environment that leads there."""
    if kind == "folder":
        yield str(folder / "runs"), {}
    elif kind == "s3":
        with s3_server(folder) as environment:
            yield "s3://lab/runs", environment
    else:
        if reason := no_azurite():
            pytest.skip(reason)
        with azure_server(folder) as environment:
            yield "az://lab/runs", environment


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("kind", ["folder", "s3", "azure"])
def test_real_races_keep_every_promise(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fifty races of two to five processes: no stale commit, one holder a term, and the run is done in bounded time."""
    with place(kind, tmp_path) as (url, environment):
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        fresh = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(CONTENDERS_MAX, mp_context=fresh) as pool:
            takes = sum(race(pool, f"{url}/run{seed}", seed, LEASE_S[kind]) for seed in range(RACES))
    print(f"{RACES} races on {kind}, {takes} takes")
    assert takes > RACES, "most races must see the run change hands, or they prove nothing"


def race(pool: ProcessPoolExecutor, url: str, seed: int, lease_s: float) -> int:
    """Run one race to its end and check the log; return how often the run was taken."""
    count = random.Random(seed).randint(2, CONTENDERS_MAX)
    lives = [pool.submit(contend, url, f"c{number}", str(seed), lease_s) for number in range(count)]
    claims = [one for life in lives for one in life.result(timeout=END_S)]
    store = open_store(url)
    records = read_log(store)
    check_log(records)
    check_claims(records, claims)
    check_points(store, records[-1])
    return sum(record.kind is RecordKind.ACQUIRE for record in records)


def read_log(store: ObjectStore) -> list[Record]:
    head = store_operations.run(run_log.read_head(), store, SystemClock())
    assert head is not None
    assert head.state.outcome is Outcome.DONE
    records = [
        store_operations.run(run_log.read_record(number), store, SystemClock()) for number in range(1, head.number + 1)
    ]
    assert len(store.list("log/")) == head.number
    return [record for record in records if record is not None]


def check_log(records: list[Record]) -> None:
    """Numbers have no gap, terms never fall, nothing committed is forgotten."""
    assert [record.number for record in records] == list(range(1, len(records) + 1))
    for before, after in itertools.pairwise(records):
        taken = after.kind is RecordKind.ACQUIRE
        assert after.state.term == (after.number if taken else before.state.term)
        assert set(before.state.checkpoints) <= set(after.state.checkpoints)
    assert [checkpoint.step for checkpoint in records[-1].state.checkpoints] == list(range(1, GOAL + 1))


def check_claims(records: list[Record], claims: list[ClaimedRecord]) -> None:
    """Every record was written by exactly one contender, which held its term and claims it; there are no other claims."""
    assert sorted(one.number for one in claims) == list(range(1, len(records) + 1))
    holders = {record.state.term: record.nonce for record in records if record.kind is RecordKind.ACQUIRE}
    for one in claims:
        record = records[one.number - 1]
        assert (record.nonce, record.kind) == (one.fresh, one.kind)
        assert holders[record.state.term] == one.nonce


def check_points(store: ObjectStore, newest: Record) -> None:
    """Every committed point is there, byte for byte."""
    for ref in newest.state.checkpoints:
        checkpoint = store_operations.run(restore.read_manifest(ref), store, SystemClock())
        for shard in checkpoint.shards:
            for chunk in (chunk for entry in shard.files for chunk in entry.chunks):
                assert digest(store.get(chunk.key) or b"") == chunk.digest
    assert run_state.newest_step(newest.state) == GOAL
