"""A store whose owner means ill: nothing is written outside, nothing is planted, nothing ends in a traceback."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import random
import shutil
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.doors.support import inputs, mutated, mutated_bytes, swallows, to_text
from tests.support.live import eventually, fast, new_run
from tests.support.simulated_store import ManualClock
from windfall import wiring
from windfall.cli.main import main
from windfall.errors import StoreError, WindfallError
from windfall.storage import acquire_run, bundle, manifest, run_log, store_operations
from windfall.storage.object_stores import open_store
from windfall.storage.run_lease import LocalSession
from windfall.structs import replace
from windfall.terms import Holder, Seconds

Change = Callable[[dict[str, object]], None]
VERBS = ("checkpoints", "cost", "events", "explain", "get", "ps", "logs", "replay", "exec")


def nobody_foresaw(text: str) -> bool:
    """Whether a text shows an error that nobody foresaw."""
    return "Traceback" in text or "crashed" in text


def _holder(nonce: str) -> Holder:
    return Holder("here", "boot", 1, 1, 1, nonce)


def take_here(url: str, place: Path, nonce: str = "mine") -> str:
    """Take a run as `exec` does, bring its code and its newest checkpoint, hear its inbox, let it go; the code's place."""
    store, clock = open_store(url), ManualClock()
    place.mkdir(exist_ok=True)
    session = place.parent / f"session-{place.name}"
    session.mkdir(exist_ok=True)
    local = LocalSession(
        clock, wiring.new_nonce, str(session), str(session / "lease.json"), str(session / "output.log")
    )
    request = acquire_run.AcquireRequest(
        _holder(nonce), Seconds(30.0), (), str(place), bundle=False, new_code=False, wait=False
    )
    taken = acquire_run.acquire(store, local, request, holder_is_dead=lambda _: True, log=lambda _: None)
    if taken.lease is None:
        return str(place)
    where = acquire_run.place_code(store, local, taken.lease.state, str(place), lambda _: None)
    taken.lease.restore(str(session / "checkpoints"))
    taken.lease.messages()
    taken.lease.journal.close()
    return where


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run with code, two terms, checkpoints, a journal and output, which waits for a machine."""
    folder = tmp_path_factory.mktemp("honest")
    run = new_run(folder)
    options = fast("--policy", "never", "--max-failures", "1")
    first = run.train(options=(*options, "--bundle"), STEPS="200", EVERY="5")
    first.until("step 12\n")
    first.vanish()
    second = run.train(options=options, STEPS="200", EVERY="5")
    second.until("step 25\n")
    second.process.terminate()
    assert second.code() == 75, second.text
    return folder / "run"


@pytest.fixture
def store(honest: Path, tmp_path: Path) -> Path:
    """A copy of that run to do ill with."""
    copy = tmp_path / "store"
    shutil.copytree(honest, copy)
    return copy


def rewrite(path: Path, change: Change) -> None:
    """Change a stored object as its owner can."""
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))


def _named(name: str) -> Change:
    def change(record: dict[str, object]) -> None:
        state = record["record"]["state"]  # type: ignore[index]
        state["run_id"] = name

    return change


@pytest.mark.trial("G11")
def test_the_name_of_a_run_does_not_choose_where_its_code_goes(store: Path, tmp_path: Path) -> None:
    """With `../..` in the run's id nothing is unpacked beside the folder that `exec` was started in."""
    place = tmp_path / "sandbox" / "deep" / "here"
    place.mkdir(parents=True)
    (place / "mine.txt").write_text("the folder is not empty")
    for record in (store / "log").iterdir():
        rewrite(record, _named("/../../../escaped"))
    before = sorted(
        str(path) for path in tmp_path.rglob("*") if "session" not in str(path) and "store" not in str(path)
    )
    said = ""
    try:
        take_here(f"file://{store}", place)
    except WindfallError as error:
        said = str(error)

    after = sorted(str(path) for path in tmp_path.rglob("*") if "session" not in str(path) and "store" not in str(path))
    assert after == before
    assert "not a valid record" in said


@pytest.mark.trial("G11")
def test_a_checkpoint_of_a_hostile_run_plants_no_record(store: Path, tmp_path: Path) -> None:
    """`checkpoint.from` a run whose checkpoint names the new run's log as its bytes: nothing but shards is ever copied."""
    source, clock = open_store(f"file://{store}"), ManualClock()
    head = store_operations.run(run_log.read_head(), source, clock)
    assert head is not None
    ref = head.state.checkpoints[-1]
    done = json.loads((store / "log" / f"{head.number:08d}").read_text())
    done["record"]["state"] |= {"outcome": "done", "checkpoints": []}
    done["record"] |= {"number": 2, "kind": "release"}
    planted = json.dumps(done).encode()
    (store / "log" / "planted").write_bytes(planted)
    path = store / ref.manifest_key
    told = json.loads(path.read_text())
    key = "checkpoint"
    chunk = told[key]["shards"][0]["files"][0]["chunks"][0]
    chunk |= {"key": "log/00000002", "digest": manifest.digest_of(planted), "size_bytes": len(planted)}
    path.write_text(json.dumps(told))
    (store / "log" / "00000002").write_bytes(planted)
    only = replace(ref, manifest_digest=manifest.digest_of(path.read_bytes()))
    target = open_store(f"file://{tmp_path / 'new'}")
    with contextlib.suppress(WindfallError):
        acquire_run._copy(only, source, target, clock)

    assert target.get("log/00000002") is None, "whoever starts the new run finds it done already"


@pytest.mark.trial("G11")
@pytest.mark.real
def test_a_message_that_nobody_understands_stops_no_agent(tmp_path: Path) -> None:
    """`{"type": "stop"}` without its `now`, and worse, in the inbox of a run: each is removed, and the run goes its way."""
    run = new_run(tmp_path)
    strange = [
        b'{"type":"stop"}',
        b"[" * 5000,
        b'{"type":"inject","notice_s":"x"}',
        b'{"type":"estimates","mttp_s":{}}',
        b"\xff",
    ]
    machine = run.train(options=fast("--lease", "1s"), STEPS="100000", STEP_S="0.01")
    machine.until("step 5\n")
    inbox = tmp_path / "run" / "inbox"
    inbox.mkdir()
    for number, data in enumerate(strange):
        (inbox / f"{number}.json").write_bytes(data)
    eventually(
        lambda: not any(inbox.glob("*.json")) or machine.process.poll() is not None or "crashed" in machine.text,
        "the inbox is empty",
    )
    crashed = nobody_foresaw(machine.text)
    machine.vanish()

    assert not crashed, machine.text
    assert not any(inbox.glob("*.json"))


def _packed(members: Iterator[tuple[tarfile.TarInfo, bytes]]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz", format=tarfile.PAX_FORMAT) as archive:
        for member, content in members:
            archive.addfile(member, io.BytesIO(content))
    return out.getvalue()


def _many() -> Iterator[tuple[tarfile.TarInfo, bytes]]:
    for number in range(60):
        yield tarfile.TarInfo(f"f{number}"), b""


def _large() -> Iterator[tuple[tarfile.TarInfo, bytes]]:
    for number in range(4):
        member = tarfile.TarInfo(f"f{number}")
        member.size = 600_000
        yield member, bytes(600_000)


def _sparse() -> Iterator[tuple[tarfile.TarInfo, bytes]]:
    member = tarfile.TarInfo("holes")
    member.size = 0
    member.pax_headers = {"GNU.sparse.size": "2000000", "GNU.sparse.numblocks": "0", "GNU.sparse.map": "0,0"}
    yield member, b""


def _deep() -> Iterator[tuple[tarfile.TarInfo, bytes]]:
    yield tarfile.TarInfo("a/" * 3000 + "b"), b""


@pytest.mark.trial("G11")
@pytest.mark.parametrize("members", [_many, _large, _sparse, _deep])
def test_a_bundle_that_no_windfall_packed_is_not_unpacked(
    members: Callable[[], Iterator[tuple[tarfile.TarInfo, bytes]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More files or bytes than `pack` allows, holes that cost nothing to send, folders without end: refused in a sentence."""
    monkeypatch.setattr(bundle, "FILES_MAX", 50)
    monkeypatch.setattr(bundle, "SIZE_BYTES_MAX", 1_000_000)
    refused, other = "", ""
    try:
        bundle.unpack(_packed(members()), str(tmp_path / "code"))
    except StoreError as error:
        refused = str(error)
    except Exception as error:
        other = repr(error)[:200]

    assert "cannot be unpacked" in refused, other
    written = sum(path.stat().st_size for path in (tmp_path / "code").rglob("*") if path.is_file())
    assert written <= 1_000_000


# ------------------------------------------------------------------------------------------------------------ by seed


def _objects(store: Path) -> list[Path]:
    return [path for path in store.rglob("*") if path.is_file() and ".tmp" not in path.parts]


def like(honest: Path, seed: int, number: int) -> tuple[Path, object]:
    """One of the run's objects, and what a mutation of it begins with: a message, a line of the journal, or bytes."""
    chance = random.Random(f"object {seed} {number}")
    kinds: dict[str, list[Path]] = {}
    for path in _objects(honest):
        kinds.setdefault(path.relative_to(honest).parts[0], []).append(path)
    path = chance.choice(sorted(kinds[chance.choice(sorted(kinds))]))
    data = path.read_bytes()
    if path.suffix == ".jsonl":
        return path, json.loads(chance.choice(data.splitlines()))
    try:
        return path, json.loads(data)
    except ValueError:
        return path, data


def _replace(target: Path, data: bytes, chance: random.Random) -> None:
    if target.suffix == ".jsonl":
        lines = target.read_bytes().splitlines()
        lines[chance.randrange(len(lines))] = data.replace(b"\n", b" ")
        data = b"\n".join(lines) + b"\n"
    target.write_bytes(data)


def _sealed_again(store: Path) -> None:
    """Put the digests of the manifests as they are now into the log: a store's owner can."""
    for path in (store / "log").iterdir():
        try:
            record = json.loads(path.read_text())
            for ref in record["record"]["state"]["checkpoints"]:
                there = store / ref["manifest_key"]
                if there.is_file():
                    ref["manifest_digest"] = manifest.digest_of(there.read_bytes())
            path.write_text(json.dumps(record))
        except (ValueError, KeyError, TypeError, OSError, RecursionError):
            continue


@pytest.mark.trial("G11")
def test_no_object_of_a_store_ends_a_verb_in_a_traceback(
    honest: Path, tmp_path: Path, count: int, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    """Each object of a run, mutated by seed, under every verb that reads a run: a sentence or an answer, nothing outside."""
    store, engine = tmp_path / "store", tmp_path / "engine"
    engine.mkdir()
    shutil.copytree(honest, store)
    kept = {path: path.read_bytes() for path in _objects(store)}
    for given in inputs([0], count):
        seed, number = given.seed, given.number
        chance = random.Random(f"verb {seed} {number}")
        path, valid = like(honest, seed, number)
        data = mutation(valid, seed, number)
        _replace(store / path.relative_to(honest), data, chance)
        if chance.random() < 0.5:
            _sealed_again(store)
        verb = chance.choice(VERBS)
        try:
            _read(verb, store, engine, number)
        except BaseException as error:
            raise AssertionError(f"{verb}: input {number} of seed {seed} at {path.name}: {data[:300]!r}") from error
        said = capsysbinary.readouterr()
        assert not nobody_foresaw(said.err.decode(errors="replace")), (number, verb, data[:300])
        assert {one.name for one in tmp_path.iterdir()} <= {"store", "engine"}, (number, verb, data[:300])
        for one in _objects(store):
            if one not in kept:
                one.unlink()
        for one, content in kept.items():
            if not one.exists() or one.read_bytes() != content:
                one.parent.mkdir(parents=True, exist_ok=True)
                one.write_bytes(content)


def mutation(valid: object, seed: int, number: int) -> bytes:
    """The n-th mutation of a message."""
    chance = random.Random(f"{seed} {number}")
    if isinstance(valid, bytes):
        return mutated_bytes(valid, chance)
    return to_text(mutated(valid, chance)) if chance.random() < 0.75 else mutated_bytes(to_text(valid), chance)


def _read(verb: str, store: Path, engine: Path, number: int) -> None:
    url = f"file://{store}"
    if verb == "exec":
        place = engine / f"{number}"
        with contextlib.suppress(WindfallError):
            take_here(url, place)
    elif verb == "get":
        main(["get", url, str(engine / f"got-{number}"), "--json"])
    else:
        main([verb, url, *(["--json"] if verb in {"checkpoints", "cost", "events"} else [])])


@pytest.mark.trial("G11")
def test_no_archive_unpacks_to_anything_but_files_below_its_folder(tmp_path: Path, count: int) -> None:
    """Archives mutated by seed, links that lead outside among them: unpacked below their folder, or refused in a sentence."""
    link = tarfile.TarInfo("link")
    link.type, link.linkname = tarfile.SYMTYPE, "a.py"
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name in ("a.py", "deep/er/b.py", "n" * 200):
            member = tarfile.TarInfo(name)
            member.size = 5
            archive.addfile(member, io.BytesIO(b"12345"))
        archive.addfile(link)
    sandbox = tmp_path / "sandbox"

    def unpack(data: bytes) -> None:
        shutil.rmtree(sandbox, ignore_errors=True)
        bundle.unpack(gzip.compress(data, 0), str(sandbox / "code"))

    hostile = [
        out.getvalue(),
        out.getvalue().replace(b"deep/er/b.py", b"../../out.py"),
        out.getvalue().replace(b"a.py\0", b"../x\0"),
    ]
    swallows(unpack, hostile, count, refusals=StoreError)

    assert {one.name for one in tmp_path.iterdir()} <= {"sandbox"}
    assert not sandbox.exists() or {one.name for one in sandbox.iterdir()} <= {"code"}
