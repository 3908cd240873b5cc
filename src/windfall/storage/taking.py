"""Taking a run: prove the store, bring the code, create the record."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass

from windfall import codec
from windfall.errors import OLDER, LogDamaged, Misuse, NewerFormat, OlderFormat
from windfall.ports import ObjectStore, Steps
from windfall.storage import bundle, checked, executor, finished, log
from windfall.storage.finished import Finished
from windfall.storage.hold import Hold, Local
from windfall.storage.objects import prove_conditions
from windfall.storage.operations import create, get, keys_under
from windfall.storage.state import Claim
from windfall.terms import Bundle, Cause, Holder, Outcome, Reached, Record, RunState, Seconds, Term
from windfall.wire.layout import FORMAT_VERSION, LOG, MARKER

_FILES_NAMED_MAX = 5


@dataclass(frozen=True, slots=True)
class Wish:
    """How somebody wants to take a run.

    Attributes:
        command: empty to take the run's own.
        folder: whose code is listed, and packed if `bundle`.
        new_code: replace the bundle that the run has.
        wait: wait for a live holder to let go.
        generation: of the machines that this one leads; 0 for a machine that trains alone.
        poll_s_max: the longest pause between two looks at a live holder [s].
    """

    holder: Holder
    lease_s: Seconds
    command: tuple[str, ...]
    folder: str
    bundle: bool
    new_code: bool
    wait: bool
    generation: int = 0
    poll_s_max: float = log.POLL_S_MAX


@dataclass(frozen=True, slots=True)
class Taking:
    """What came of it: `hold` is None if the run is done already."""

    hold: Hold | None
    record: Record
    previous: Record | None


def take(
    store: ObjectStore,
    local: Local,
    wish: Wish,
    *,
    holder_is_dead: Callable[[Holder], bool],
    tell: Callable[[str], None],
    left: Callable[[Holder, Term], Reached | None] = lambda _holder, _term: None,
) -> Taking:
    """Take the run at a store.

    Raises:
        StoreUnfit: the store does not keep its conditions.
        RunHeld: a live machine holds the run, and the wish is not to wait.
        Misuse: there is no command, neither given nor in the run.
        NewerFormat, LogDamaged: the run cannot be read.
        Fenced: a newer generation of machines has taken it.
    """

    def run(steps: Steps[Record | None]) -> Record | None:
        return executor.run(steps, store, local.clock)

    if not wish.command and store.get(MARKER) is None:
        # Before anything is written: a mistyped URL must not leave the beginning of a run behind.
        raise Misuse(f"there is no run at {store.url} yet: give its command after `--`")
    run_id = executor.run(open_marker(local.new_nonce), store, local.clock)
    head = run(log.read_head())
    if head is None and not wish.command:
        raise Misuse(f"there is no run at {store.url} yet: give its command after `--`")
    if head is not None and not (wish.command or head.state.command):
        raise Misuse(f"the run at {store.url} has no command: give one after `--`")
    if head is not None and head.state.outcome is Outcome.DONE:
        return Taking(None, head, head)
    packed, code = executor.run(_bring_code(head, wish, tell), store, local.clock)
    claim = Claim(wish.holder, run_id, wish.lease_s, wish.command, packed, code, wish.generation)
    steps = log.take(
        claim, holder_is_dead=holder_is_dead, left=left, wall=local.clock.wall, wait=wish.wait, tell=tell,
        hint=0 if head is None else head.number, poll_s_max=wish.poll_s_max,
    )  # fmt: skip
    taken = executor.run(steps, store, local.clock)
    if not taken.mine:
        return Taking(None, taken.record, taken.previous)
    hold = Hold(store, taken.record, local, wish.holder.nonce)
    hold.keep()
    return Taking(hold, taken.record, taken.previous)


def finished_here(store: ObjectStore, local: Local) -> Finished | None:
    """Return what this machine knows of the run's end and the store may not know; None for nothing.

    Another run that was begun at the same URL is another one: of the old one nothing need be known any more.
    """
    ended = finished.recall(local.finished, store.url)
    if ended is None:
        return None
    marker = store.get(MARKER)
    if marker is None or parse_marker(marker) != ended.run_id:
        finished.forget(local.finished, store.url)
        return None
    return ended


def finish(
    store: ObjectStore,
    local: Local,
    wish: Wish,
    ended: Finished,
    *,
    holder_is_dead: Callable[[Holder], bool],
    tell: Callable[[str], None],
) -> bool:
    """Say to the store that a run is done whose script ended well on this machine; return whether it is done now.

    Raises:
        RunHeld: another machine has taken it, and is alive.
        StoreError, LogDamaged, NewerFormat: see `take`.
    """
    if not finished.let_go(store, local.clock, ended, local.new_nonce()):
        claim = Claim(wish.holder, ended.run_id, wish.lease_s, wish.command, None, "", wish.generation)
        steps = log.take(
            claim, holder_is_dead=holder_is_dead, wall=local.clock.wall, wait=wish.wait, tell=tell,
            hint=ended.term, poll_s_max=wish.poll_s_max,
        )  # fmt: skip
        taken = executor.run(steps, store, local.clock)
        if taken.mine:
            Hold(store, taken.record, local, wish.holder.nonce).release(Outcome.DONE, Cause.DONE)
    finished.forget(local.finished, store.url)
    return True


def place_code(store: ObjectStore, local: Local, state: RunState, folder: str, tell: Callable[[str], None]) -> str:
    """Return the folder to run in: `folder` itself unless the run has a bundle and this is not its code.

    A bundle is unpacked into `folder` if that is empty, else into a folder of the run's own inside it.

    Raises:
        StoreError: the bundle is missing or damaged.
    """
    if state.bundle is None:
        return folder
    known = executor.run(bundle.read_listing(state.code), store, local.clock) if state.code else None
    if known is not None and not bundle.changed(known, bundle.listing(folder)):
        return folder
    place = folder if not os.listdir(folder) else os.path.join(folder, f"windfall-{state.run_id}")
    bundle.unpack(executor.run(bundle.fetch(state.bundle), store, local.clock), place)
    tell(f"the run's code was unpacked into {place}")
    return place


def open_marker(new_nonce: Callable[[], str]) -> Steps[str]:
    """Return the run's id; on a store that nobody used yet, prove its conditions and create the marker."""
    data = yield from get(MARKER)
    if data is None:
        yield from _refuse_remains()
        yield from prove_conditions(new_nonce())
        mine = json.dumps({"v": FORMAT_VERSION, "run_id": new_nonce()}).encode()
        data = mine if (yield from create(MARKER, mine)) else (yield from get(MARKER))
    return parse_marker(data or b"")


def _refuse_remains() -> Steps[None]:
    """Refuse a place where a run was deleted while a machine still wrote to it: its records would be taken for ours."""
    records = yield from keys_under(LOG)
    # Another machine may have made both the marker and the first record since the marker was looked for.
    if records and (yield from get(MARKER)) is None:
        raise LogDamaged(
            f"remains of a deleted run are in the way ({records[0]} without {MARKER}): "
            "delete all that is left under the run's URL, or name another URL"
        )


def parse_marker(data: bytes) -> str:
    """Return the run's id from the marker's content.

    Raises:
        NewerFormat, OlderFormat: another Windfall made the run.
        LogDamaged: it is not a marker.
    """
    try:
        said = codec.parse(data)
        version: int = codec.decode(said["v"], int)
        run_id: str = codec.decode(said["run_id"], str)
    except (ValueError, KeyError, TypeError) as error:
        raise LogDamaged(f"{MARKER} is damaged ({error}): this is not a run of Windfall") from error
    if version < FORMAT_VERSION:
        raise OlderFormat(f"the run has format {version}, {OLDER}: name another URL")
    if version > FORMAT_VERSION:
        raise NewerFormat(f"the run has format {version}, this Windfall reads up to {FORMAT_VERSION}: upgrade Windfall")
    if not checked.is_name(run_id):
        raise LogDamaged(f"{MARKER} is damaged (its run has no name): this is not a run of Windfall")
    return run_id


def _bring_code(head: Record | None, wish: Wish, tell: Callable[[str], None]) -> Steps[tuple[Bundle | None, str]]:
    """Store the code that travels, list the code that runs, and tell which files changed since the last attempt."""
    here = bundle.listing(wish.folder)
    known = yield from _known_listing(head)
    differences = bundle.changed(known, here) if known is not None else ()
    has_bundle = head is not None and head.state.bundle is not None
    if has_bundle and not wish.new_code:
        assert head is not None
        if wish.bundle and here and differences:
            tell(f"the run's bundle is used, not this folder's code ({_named(differences)}); --new-code replaces it")
        return None, head.state.code or ""
    if differences:
        tell(f"the code changed since the last attempt: {_named(differences)}")
    code = yield from bundle.store_listing(here)
    packed = (yield from bundle.store(bundle.pack_for_others(wish.folder).data)) if wish.bundle else None
    return packed, code


def _known_listing(head: Record | None) -> Steps[dict[str, str] | None]:
    if head is None or not head.state.code:
        return None
    return (yield from bundle.read_listing(head.state.code))


def _named(differences: tuple[str, ...]) -> str:
    more = len(differences) - _FILES_NAMED_MAX
    return ", ".join(differences[:_FILES_NAMED_MAX]) + (f" and {more} more" if more > 0 else "")
