"""Acquires a run: tests the store, stores the code, creates the record; or starts one from another run's checkpoint."""

from __future__ import annotations

import json
import os
from collections.abc import Callable

from windfall import codec, stored_forms
from windfall.errors import WRITTEN_BEFORE_RELEASE, CheckpointDamaged, LogDamaged, Misuse, NewerFormat, OlderFormat
from windfall.ports import Clock, ObjectStore, Steps
from windfall.storage import bundle, manifest, run_log, store_checks, store_operations, success_record
from windfall.storage.object_stores import prove_conditions
from windfall.storage.restore import read_manifest
from windfall.storage.run_lease import LocalSession, StoreLease
from windfall.storage.run_state import Claim, to_bytes
from windfall.storage.store_operations import create, get, keys_under
from windfall.storage.success_record import FinishedRun
from windfall.structs import Struct, replace
from windfall.terms import (
    Bundle,
    Cause,
    CheckpointRef,
    Holder,
    LastProgress,
    Outcome,
    Record,
    RecordKind,
    RunState,
    Seconds,
    Term,
)
from windfall.wire.run_layout import FORMAT_VERSION, LOG, MARKER, manifest_key, record_key

_FILES_NAMED_MAX = 5


class AcquireRequest(Struct, frozen=True):
    """A request to acquire a run.

    Attributes:
        command: empty to use the run's command.
        folder: folder whose code is listed, and packed if `bundle`.
        new_code: replace the run's bundle.
        wait: wait until a live holder releases the run.
        generation: the generation that this machine leads; 0 for a machine that trains alone.
        poll_s_max: the longest pause between two reads of a live holder's heartbeat [s].
    """

    holder: Holder
    lease_s: Seconds
    command: tuple[str, ...]
    folder: str
    bundle: bool
    new_code: bool
    wait: bool
    generation: int = 0
    poll_s_max: float = run_log.POLL_S_MAX


class AcquireResult(Struct, frozen=True):
    """Result of acquiring a run; `lease` is None if the run is already done."""

    lease: StoreLease | None
    record: Record
    previous: Record | None


def acquire(
    store: ObjectStore,
    local: LocalSession,
    request: AcquireRequest,
    *,
    holder_is_dead: Callable[[Holder], bool],
    log: Callable[[str], None],
    find_progress: Callable[[Holder, Term], LastProgress | None] = lambda _holder, _term: None,
) -> AcquireResult:
    """Acquire the run at a store.

    Raises:
        StoreUnsupported: the store does not support conditional writes.
        RunHeld: a live machine holds the run, and the request is not to wait.
        Misuse: there is no command, neither in the request nor in the run.
        NewerFormat, LogDamaged: the run cannot be read.
        Fenced: a newer generation acquired it.
    """

    def run(steps: Steps[Record | None]) -> Record | None:
        return store_operations.run(steps, store, local.clock)

    if not request.command and store.get(MARKER) is None:
        # Before anything is written: a mistyped URL must not leave an incomplete run behind.
        raise Misuse(f"there is no run at {store.url} yet: give its command after `--`")
    run_id = store_operations.run(open_marker(local.new_nonce), store, local.clock)
    head = run(run_log.read_head())
    if head is None and not request.command:
        raise Misuse(f"there is no run at {store.url} yet: give its command after `--`")
    if head is not None and not (request.command or head.state.command):
        raise Misuse(f"the run at {store.url} has no command: give one after `--`")
    if head is not None and head.state.outcome is Outcome.DONE:
        return AcquireResult(None, head, head)
    packed, code = store_operations.run(_bring_code(head, request, log), store, local.clock)
    claim = Claim(request.holder, run_id, request.lease_s, request.command, packed, code, request.generation)
    steps = run_log.acquire(
        claim, holder_is_dead=holder_is_dead, find_progress=find_progress, wall_time=local.clock.wall_time,
        wait=request.wait, log=log, hint=0 if head is None else head.number, poll_s_max=request.poll_s_max,
    )  # fmt: skip
    taken = store_operations.run(steps, store, local.clock)
    if not taken.mine:
        return AcquireResult(None, taken.record, taken.previous)
    lease = StoreLease(store, taken.record, local, request.holder.nonce)
    lease.save()
    return AcquireResult(lease, taken.record, taken.previous)


def recall_finished(store: ObjectStore, local: LocalSession) -> FinishedRun | None:
    """Return this machine's record of the run's success, which the store may not know; None if there is none.

    A record of another run at the same URL is deleted.
    """
    ended = success_record.load(local.finished, store.url)
    if ended is None:
        return None
    marker = store.get(MARKER)
    if marker is None or parse_marker(marker) != ended.run_id:
        success_record.delete(local.finished, store.url)
        return None
    return ended


def finish_run(
    store: ObjectStore,
    local: LocalSession,
    request: AcquireRequest,
    ended: FinishedRun,
    *,
    holder_is_dead: Callable[[Holder], bool],
    log: Callable[[str], None],
) -> bool:
    """Mark a run as done whose script succeeded on this machine; return whether it is done now.

    Raises:
        RunHeld: another machine has acquired it, and is alive.
        StoreError, LogDamaged, NewerFormat: see `acquire`.
    """
    if not success_record.release_finished(store, local.clock, ended, local.new_nonce()):
        claim = Claim(request.holder, ended.run_id, request.lease_s, request.command, None, "", request.generation)
        steps = run_log.acquire(
            claim, holder_is_dead=holder_is_dead, wall_time=local.clock.wall_time, wait=request.wait, log=log,
            hint=ended.term, poll_s_max=request.poll_s_max,
        )  # fmt: skip
        taken = store_operations.run(steps, store, local.clock)
        if taken.mine:
            StoreLease(store, taken.record, local, request.holder.nonce).release(Outcome.DONE, Cause.DONE)
    success_record.delete(local.finished, store.url)
    return True


def place_code(
    store: ObjectStore, local: LocalSession, state: RunState, folder: str, log: Callable[[str], None]
) -> str:
    """Return the working folder of the script: `folder`, unless the run has a bundle with different code.

    A bundle is unpacked into `folder` if that is empty, otherwise into a subfolder for the run.

    Raises:
        StoreError: the bundle is missing or damaged.
    """
    if state.bundle is None:
        return folder
    known = store_operations.run(bundle.read_listing(state.code), store, local.clock) if state.code else None
    if known is not None and not bundle.changed(known, bundle.listing(folder)):
        return folder
    place = folder if not os.listdir(folder) else os.path.join(folder, f"windfall-{state.run_id}")
    bundle.unpack(store_operations.run(bundle.fetch(state.bundle), store, local.clock), place)
    log(f"the run's code was unpacked into {place}")
    return place


def open_marker(new_nonce: Callable[[], str]) -> Steps[str]:
    """Return the run's id; for a new run, test the store's conditional writes and create the marker."""
    data = yield from get(MARKER)
    if data is None:
        yield from _refuse_leftovers()
        yield from prove_conditions(new_nonce())
        mine = json.dumps({"version": FORMAT_VERSION, "run_id": new_nonce()}).encode()
        data = mine if (yield from create(MARKER, mine)) else (yield from get(MARKER))
    return parse_marker(data or b"")


def _refuse_leftovers() -> Steps[None]:
    """Reject a location with records of a deleted run, which would be mistaken for this run's."""
    records = yield from keys_under(LOG)
    # Another machine may have created both the marker and the first record since the marker was read.
    if records and (yield from get(MARKER)) is None:
        raise LogDamaged(
            f"records of a deleted run are left ({records[0]} without {MARKER}): "
            "delete everything under the run's URL, or use another URL"
        )


def parse_marker(data: bytes) -> str:
    """Return the run's id from the marker's content.

    Raises:
        NewerFormat, OlderFormat: the run was created by another version of Windfall.
        LogDamaged: it is not a marker.
    """
    try:
        document = codec.parse(data)
        version: int = codec.decode(document["version"] if "version" in document else document["v"], int)
        if version < stored_forms.MARKER.oldest:
            raise OlderFormat(f"the run has format {version}, {WRITTEN_BEFORE_RELEASE}: use another URL")
        if version > FORMAT_VERSION:
            raise NewerFormat(
                f"the run has format {version}, this Windfall reads up to {FORMAT_VERSION}: upgrade Windfall"
            )
        run_id: str = codec.decode(stored_forms.MARKER.upgraded(document, version)["run_id"], str)
    except (ValueError, KeyError, TypeError) as error:
        raise LogDamaged(f"{MARKER} is damaged ({error}): this is not a Windfall run") from error
    if not store_checks.is_name(run_id):
        raise LogDamaged(f"{MARKER} is damaged (invalid run id): this is not a Windfall run")
    return run_id


def _bring_code(
    head: Record | None, request: AcquireRequest, log: Callable[[str], None]
) -> Steps[tuple[Bundle | None, str]]:
    """Store the bundle and the list of code files, and log which files changed since the last attempt."""
    here = bundle.listing(request.folder)
    known = yield from _known_listing(head)
    differences = bundle.changed(known, here) if known is not None else ()
    has_bundle = head is not None and head.state.bundle is not None
    if has_bundle and not request.new_code:
        assert head is not None
        if request.bundle and here and differences:
            log(f"the run's bundle is used, not this folder's code ({_named(differences)}); --new-code replaces it")
        return None, head.state.code or ""
    if differences:
        log(f"the code changed since the last attempt: {_named(differences)}")
    code = yield from bundle.store_listing(here)
    packed = (yield from bundle.store(bundle.pack_for_others(request.folder).data)) if request.bundle else None
    return packed, code


def _known_listing(head: Record | None) -> Steps[dict[str, str] | None]:
    if head is None or not head.state.code:
        return None
    return (yield from bundle.read_listing(head.state.code))


def _named(differences: tuple[str, ...]) -> str:
    more = len(differences) - _FILES_NAMED_MAX
    return ", ".join(differences[:_FILES_NAMED_MAX]) + (f" and {more} more" if more > 0 else "")


_LEASE_S = Seconds(30.0)
"""Lease of a state without a holder; never waited for [s]."""


def clone_checkpoint(
    source: ObjectStore, target: ObjectStore, clock: Clock, new_nonce: Callable[[], str]
) -> CheckpointRef:
    """Copy the newest intact checkpoint of a run to a new run, as its first.

    Args:
        source: the earlier run.
        target: the new run.
        clock: of this machine.
        new_nonce: returns a new random name at each call.

    Returns:
        The checkpoint, as recorded in the new run's log.

    Raises:
        Misuse: the earlier run does not exist or has no intact checkpoint, or the new run already exists.
    """
    head = store_operations.run(run_log.read_head(), source, clock)
    if head is None:
        raise Misuse(f"checkpoint.from: there is no run at {source.url}")
    for ref in reversed(head.state.checkpoints):
        try:
            copied = _copy(ref, source, target, clock)
        except CheckpointDamaged:
            continue
        return _start_run(copied, target, clock, new_nonce)
    raise Misuse(f"checkpoint.from: the run at {source.url} has no intact checkpoint")


def _copy(ref: CheckpointRef, source: ObjectStore, target: ObjectStore, clock: Clock) -> CheckpointRef:
    """Copy a checkpoint's bytes and its manifest, and verify both.

    Raises:
        CheckpointDamaged: bytes are missing or differ from the manifest.
    """
    checkpoint = store_operations.run(read_manifest(ref), source, clock)
    for shard in checkpoint.shards:
        for entry in shard.files:
            for chunk in entry.chunks:
                data = source.get(chunk.key)
                if data is None or len(data) != chunk.size_bytes or manifest.digest_of(data) != chunk.digest:
                    raise CheckpointDamaged(f"{chunk.key} of the checkpoint at step {checkpoint.step} is damaged")
                target.put(chunk.key, data)
    first = replace(checkpoint, term=Term(1))
    data = manifest.to_bytes(first)
    target.put(manifest_key(checkpoint.checkpoint_id), data)
    return replace(ref, term=Term(1), manifest_digest=manifest.digest_of(data))


def _start_run(ref: CheckpointRef, target: ObjectStore, clock: Clock, new_nonce: Callable[[], str]) -> CheckpointRef:
    run_id = store_operations.run(open_marker(new_nonce), target, clock)
    wall_time = clock.wall_time()
    state = RunState(run_id, Term(1), Outcome.WAITING, None, wall_time, _LEASE_S, checkpoints=(ref,))
    # Only this log does not start with an acquire record: no machine has held the run yet.
    record = Record(1, new_nonce(), RecordKind.COMMIT, wall_time, state)
    if not store_operations.run(create(record_key(1), to_bytes(record)), target, clock):
        raise Misuse(f"checkpoint.from: the run at {target.url} already exists")
    return ref
