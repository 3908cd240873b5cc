"""Bugs that a take-over must not have, planted one at a time to see that the races catch them."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest.mock import patch

from tests.support.simulated_store import World
from windfall.ports import Delete, Put, Steps
from windfall.storage import checkpoint_store, manifest, run_log
from windfall.storage.run_state import acquired as state_acquired
from windfall.storage.run_state import committed as state_committed
from windfall.storage.store_operations import delete_all
from windfall.structs import replace
from windfall.terms import Checkpoint, CheckpointRef, Record, RecordKind, RunState, Term
from windfall.wire.run_layout import manifest_key

Patch = tuple[object, str, Callable[..., object]]


def _judge_by_wall_clock(world: World) -> Callable[..., Steps[object]]:
    def judge(head: Record, *_: object, **__: object) -> Steps[object]:
        me = world.current
        assert me is not None
        while True:
            last = yield from run_log.read_heartbeat(head.state.term)
            since = head.state.holder_since if last is None else last.wall_time
            newest = yield from run_log.read_head(head.number)
            assert newest is not None
            if newest.number != head.number:
                return run_log._HolderCheck(moved_to=newest)
            if me.wall_time() - since > head.state.lease_s:
                return run_log._HolderCheck()
            yield from run_log.pause(1.0)

    return judge


def _ref(checkpoint: Checkpoint, data: bytes, wall_time: float) -> CheckpointRef:
    return CheckpointRef(
        checkpoint.checkpoint_id, checkpoint.step, checkpoint.kind, checkpoint.term, 1, checkpoint.size_bytes,
        manifest_key(checkpoint.checkpoint_id), manifest.digest_of(data), wall_time,
    )  # fmt: skip


def _commit(*, manifest_first: bool) -> Callable[..., Steps[tuple[CheckpointRef, Record]]]:
    def commit(
        head: Record, checkpoint: Checkpoint, *, nonce: str, wall_time: float
    ) -> Steps[tuple[CheckpointRef, Record]]:
        data = manifest.to_bytes(checkpoint)
        ref = _ref(checkpoint, data, wall_time)

        def advance(state: RunState) -> RunState:
            return state_committed(state, ref)

        if manifest_first:
            yield Put(manifest_key(checkpoint.checkpoint_id), data)
        record = yield from run_log.append(head, advance, kind=RecordKind.COMMIT, nonce=nonce, wall_time=wall_time)
        if not manifest_first:
            yield Put(manifest_key(checkpoint.checkpoint_id), data)
        return ref, record

    return commit


def _delete_without_record(head: Record, refs: tuple[CheckpointRef, ...], **_: object) -> Steps[None]:
    for ref in refs:
        found = yield from checkpoint_store.read_manifest(ref)
        yield Delete(ref.manifest_key)
        yield from delete_all(checkpoint_store._keys(found))


def _drop_nothing(head: Record, *_: object, **__: object) -> Steps[Record]:
    yield from run_log.refresh(head)
    return head


def _retire_newest(head: Record, refs: tuple[CheckpointRef, ...], **_: object) -> Steps[None]:
    yield from _delete_without_record(head, head.state.checkpoints[-1:])


def _without_points(state: RunState) -> RunState:
    return replace(state, checkpoints=())


def _reborn(previous: Record | None, *arguments: object, **named: object) -> RunState:
    return _without_points(state_acquired(previous, *arguments, **named))


def _restarted_term(previous: Record | None, *arguments: object, **named: object) -> RunState:
    after = state_acquired(previous, *arguments, **named)
    return after if previous is None else replace(after, term=Term(previous.state.term))


def _create_replaces(world: World) -> Callable[[str, bytes], bool]:
    def create(key: str, data: bytes) -> bool:
        world.store.objects[key] = data
        return True

    return create


BUGS: dict[str, Callable[[World], tuple[Patch, ...]]] = {
    "stale holder trusted": lambda _: ((run_log, "_same_term", lambda mine, there: True),),
    "nonce not checked on read-back": lambda _: ((run_log, "_wrote", lambda there, nonce: True),),
    "take-over by age of the wall clock": lambda world: ((run_log, "_check_holder", _judge_by_wall_clock(world)),),
    "lease not waited": lambda _: ((run_log, "_heartbeat_unchanged", lambda still_s, lease_s: True),),
    "heartbeat's counter ignored": lambda _: ((run_log, "_alive", lambda seen, content: False),),
    "own absence taken for silence": lambda _: ((run_log, "min", lambda seen, most: seen),),
    "manifest after the record": lambda _: ((checkpoint_store, "commit", _commit(manifest_first=False)),),
    "repeated commit replaces the manifest": lambda _: ((checkpoint_store, "commit", _commit(manifest_first=True)),),
    "deleted before a record gave it up": lambda _: (
        (checkpoint_store, "delete", _retire_newest),
        (checkpoint_store, "drop", _drop_nothing),
    ),
    "sweep takes live points": lambda _: ((checkpoint_store, "_stale_shard", lambda key, term, live: True),),
    "taker forgets the points": lambda _: ((run_log, "acquired", _reborn),),
    "taker keeps the old term": lambda _: ((run_log, "acquired", _restarted_term),),
    "dead only by name": lambda _: ((run_log, "_same_machine", lambda one, other: True),),
    "store replaces what exists": lambda world: ((world.store, "create", _create_replaces(world)),),
}


@contextmanager
def bug(name: str, world: World) -> Iterator[None]:
    """Plant one bug."""
    # Only a builtin name is shadowed: any other that a module lacks is a mistake here.
    patches = [
        patch.object(target, attribute, wrong, create=hasattr(builtins, attribute))
        for target, attribute, wrong in BUGS[name](world)
    ]
    for one in patches:
        one.start()
    try:
        yield
    finally:
        for one in patches:
            one.stop()
