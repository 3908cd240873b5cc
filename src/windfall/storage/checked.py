"""What a store says is input: names, sizes and numbers that come from one are checked here before anything is done by them.

The codec has seen to the types.  This is about the values: a name that becomes a path or a key must be a name and lead
nowhere else, a number must be one that a run of ours can have.  Whoever may write to a run's store can have its code run,
but not in another folder than asked for, not in another run, and nobody's `windfall` ends in an error nobody foresaw.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from windfall.storage.parts import SINGLE
from windfall.terms import (
    Bundle,
    Checkpoint,
    CheckpointRef,
    FileEntry,
    Holder,
    Loss,
    Reached,
    Record,
    RunState,
    SaveCosts,
)
from windfall.wire.layout import SHARDS, bundle_key, manifest_key

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,199}")
_COUNT_MAX = 1 << 53
_WALL_S_MAX = 2e11
"""The year 8307: what Python can write as a date [s since 1970]."""
_LENGTH_S_MAX = 1e11
_LEASE_S_MAX = 1e7
_TEXT_CHARACTERS_MAX = 1000
_COMMAND_CHARACTERS_MAX = 1 << 20


def is_name(text: str) -> bool:
    """Say whether a text is a name as ours are: it may be part of a path or a key, and shown in a terminal."""
    return _NAME.fullmatch(text) is not None and ".." not in text


def is_below(path: str) -> bool:
    """Say whether a path leads below the folder where it begins, and nowhere else."""
    return "\0" not in path and all(part not in ("", ".", "..") for part in path.split("/"))


def wrong_with_record(record: Record, number: int) -> str | None:
    """Say what is wrong with a record of a run's log, found as this number; None if nothing is."""
    state = record.state
    if record.number != number:
        return f"it says that it is record {record.number}"
    fits = {
        "its term or its time cannot be": 1 <= state.term <= number and is_wall(record.wall) and _is_text(record.nonce),
        "its run has no name": is_name(state.run_id),
        "its lease cannot be": 0.0 < state.lease_s <= _LEASE_S_MAX and is_wall(state.holder_since),
        "its holder has no name": state.holder is None or _is_holder(state.holder),
        "its code has no name": not state.code or is_name(state.code),
        "its bundle of code is not where bundles are": state.bundle is None or _is_bundle(state.bundle),
        "one of its checkpoints is not where checkpoints are": all(_is_ref(ref) for ref in state.checkpoints),
        "one of its counts cannot be": _has_counts(state),
        "one of its losses cannot be": all(_is_loss(loss) for loss in state.losses),
        "its command cannot be run": _is_command(state.command),
        "what a save costs cannot be": state.costs is None or _is_costs(state.costs),
    }
    return next((wrong for wrong, right in fits.items() if not right), None)


def wrong_with_checkpoint(point: Checkpoint) -> str | None:
    """Say what is wrong with a manifest; None if its names lead only below the folder that it is restored to."""
    if not is_name(point.checkpoint_id) or not is_wall(point.created_at):
        return "its name or its time cannot be"
    if not all(_is_count(count) for count in (point.step, point.term, point.generation)):
        return "its step, its term or its generation cannot be"
    return next(_wrong_with_names(point), None)


def _wrong_with_names(point: Checkpoint) -> Iterator[str]:
    seen: set[str] = set()
    for shard in point.shards:
        if not is_below(shard.name) or "/" in shard.name or not _is_count(shard.rank):
            yield f"it names a part {shard.name!r}, which is no name of a file"
        for entry in shard.files:
            yield from _wrong_with_entry(entry)
            place = f"{shard.rank}/{shard.name}" + ("" if entry.path == SINGLE else f"/{entry.path.removesuffix('/')}")
            if place in seen:
                yield f"it names the file {place!r} twice"
            seen.add(place)
    for place in seen:
        if any(place[:end] in seen for end, letter in enumerate(place) if letter == "/"):
            yield f"it has {place!r} inside something that is a file"
    if point.size_bytes > _COUNT_MAX:
        yield "it is larger than any disk"


def _wrong_with_entry(entry: FileEntry) -> Iterator[str]:
    if entry.path != SINGLE and not is_below(entry.path.removesuffix("/")):
        yield f"it names a file {entry.path!r}, which is not inside its part"
    if not 0 <= entry.mode <= 0o7777:
        yield f"it gives the file {entry.path!r} rights that no file has"
    for chunk in entry.chunks:
        if not (chunk.key.startswith(SHARDS) and is_below(chunk.key)) or not 1 <= chunk.size_bytes <= _COUNT_MAX:
            yield f"it names bytes {chunk.key!r}, which no upload wrote"


def is_wall(wall: float) -> bool:
    """Say whether a time [s since 1970] is one at which a run of ours can have been."""
    return -_WALL_S_MAX / 100 <= wall <= _WALL_S_MAX


def is_reached(reached: Reached) -> bool:
    """Say whether a run of ours can have come so far."""
    counts = all(_is_count(count) for count in (reached.attempt, reached.first, reached.step))
    return counts and is_wall(reached.wall) and _is_length(reached.within_s)


def _is_count(number: int) -> bool:
    return 0 <= number <= _COUNT_MAX


def _is_text(text: str) -> bool:
    return text.isprintable() and len(text) <= _TEXT_CHARACTERS_MAX


def _is_length(length_s: float) -> bool:
    return 0.0 <= length_s <= _LENGTH_S_MAX


def _has_counts(state: RunState) -> bool:
    counts = (state.attempts, state.failures, state.preemptions, state.announced, state.generation)
    return all(_is_count(count) for count in counts) and _is_length(state.lives_s)


def _is_loss(loss: Loss) -> bool:
    reached = loss.reached is None or is_reached(loss.reached)
    return reached and is_wall(loss.wall) and _is_count(loss.step) and _is_count(loss.term)


def _is_command(words: tuple[str, ...]) -> bool:
    return not any("\0" in word for word in words) and sum(map(len, words)) <= _COMMAND_CHARACTERS_MAX


def _is_costs(costs: SaveCosts) -> bool:
    lengths = (costs.stall_s, costs.upload_s, costs.commit_s)
    return all(_is_length(length_s) for length_s in lengths) and _is_count(costs.size_bytes)


def _is_holder(holder: Holder) -> bool:
    numbers = (holder.pid, holder.pid_namespace, holder.pid_started)
    named = all(_is_text(word) for word in (holder.host, holder.boot_id, holder.nonce))
    return named and all(_is_count(number) for number in numbers)


def _is_bundle(bundle: Bundle) -> bool:
    return is_name(bundle.digest) and bundle.key == bundle_key(bundle.digest) and _is_count(bundle.size_bytes)


def _is_ref(ref: CheckpointRef) -> bool:
    here = is_name(ref.checkpoint_id) and ref.manifest_key == manifest_key(ref.checkpoint_id)
    counts = (ref.step, ref.term, ref.generation, ref.size_bytes)
    return here and all(_is_count(count) for count in counts) and is_wall(ref.committed_at)
