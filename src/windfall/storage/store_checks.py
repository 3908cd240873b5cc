"""Checks names, sizes and numbers read from a store, which is untrusted, before they are used.

The codec checks types; this module checks values: a name used in a path or key must be a plain name that leads nowhere
else, and a number must be possible for a run.  Anyone who can write to a run's store can have its code executed, but not
in another folder or another run, and cannot make `windfall` fail with an unexpected error.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from windfall.storage.shard_transfer import SINGLE
from windfall.terms import (
    Bundle,
    Checkpoint,
    CheckpointRef,
    FileEntry,
    Holder,
    LastProgress,
    Loss,
    Record,
    RunState,
    SaveCosts,
)
from windfall.wire.run_layout import SHARDS, bundle_key, manifest_key

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,199}")
_COUNT_MAX = 1 << 53
_WALL_S_MAX = 2e11
"""The year 8307, which Python can still format as a date [s since 1970]."""
_LENGTH_S_MAX = 1e11
_LEASE_S_MAX = 1e7
_TEXT_CHARACTERS_MAX = 1000
_COMMAND_CHARACTERS_MAX = 1 << 20


def is_name(text: str) -> bool:
    """Return whether a text is a valid name, safe in a path or key and on a terminal."""
    return _NAME.fullmatch(text) is not None and ".." not in text


def is_below(path: str) -> bool:
    """Return whether a relative path stays inside its folder."""
    return "\0" not in path and all(part not in ("", ".", "..") for part in path.split("/"))


def wrong_with_record(record: Record, number: int) -> str | None:
    """Return what is wrong with a log record read at this number; None if it is valid."""
    state = record.state
    if record.number != number:
        return f"its number is {record.number}"
    fits = {
        "its term or time is invalid": 1 <= state.term <= number
        and is_wall_time(record.wall_time)
        and _is_text(record.nonce),
        "its run id is invalid": is_name(state.run_id),
        "its lease is invalid": 0.0 < state.lease_s <= _LEASE_S_MAX and is_wall_time(state.holder_since),
        "its holder is invalid": state.holder is None or _is_holder(state.holder),
        "its code digest is invalid": not state.code or is_name(state.code),
        "its bundle is not in the bundles folder": state.bundle is None or _is_bundle(state.bundle),
        "one of its checkpoints is not in the checkpoints folder": all(_is_ref(ref) for ref in state.checkpoints),
        "one of its counts is invalid": _has_counts(state),
        "one of its losses is invalid": all(_is_loss(loss) for loss in state.losses),
        "its command is invalid": _is_command(state.command),
        "its save costs are invalid": state.costs is None or _is_costs(state.costs),
    }
    return next((wrong for wrong, right in fits.items() if not right), None)


def wrong_with_checkpoint(checkpoint: Checkpoint) -> str | None:
    """Return what is wrong with a manifest; None if it is valid and its paths stay inside the target folder."""
    if not is_name(checkpoint.checkpoint_id) or not is_wall_time(checkpoint.created_at):
        return "its id or time is invalid"
    if not all(_is_count(count) for count in (checkpoint.step, checkpoint.term, checkpoint.generation)):
        return "its step, term or generation is invalid"
    return next(_wrong_with_names(checkpoint), None)


def _wrong_with_names(checkpoint: Checkpoint) -> Iterator[str]:
    seen: set[str] = set()
    for shard in checkpoint.shards:
        if not is_below(shard.name) or "/" in shard.name or not _is_count(shard.rank):
            yield f"it names a shard {shard.name!r}, which is not a valid file name"
        for entry in shard.files:
            yield from _wrong_with_entry(entry)
            place = f"{shard.rank}/{shard.name}" + ("" if entry.path == SINGLE else f"/{entry.path.removesuffix('/')}")
            if place in seen:
                yield f"it names the file {place!r} twice"
            seen.add(place)
    for place in seen:
        if any(place[:end] in seen for end, letter in enumerate(place) if letter == "/"):
            yield f"it has {place!r} inside a file"
    if checkpoint.size_bytes > _COUNT_MAX:
        yield "it is larger than any disk"


def _wrong_with_entry(entry: FileEntry) -> Iterator[str]:
    if entry.path != SINGLE and not is_below(entry.path.removesuffix("/")):
        yield f"it names a file {entry.path!r}, which is outside its shard"
    if not 0 <= entry.mode <= 0o7777:
        yield f"it gives the file {entry.path!r} invalid permissions"
    for chunk in entry.chunks:
        if not (chunk.key.startswith(SHARDS) and is_below(chunk.key)) or not 1 <= chunk.size_bytes <= _COUNT_MAX:
            yield f"it names the object {chunk.key!r}, which no upload can have written"


def is_wall_time(wall_time: float) -> bool:
    """Return whether a time [s since 1970] is possible for a run."""
    return -_WALL_S_MAX / 100 <= wall_time <= _WALL_S_MAX


def is_reached(reached: LastProgress) -> bool:
    """Return whether a progress is possible for a run."""
    counts = all(_is_count(count) for count in (reached.attempt, reached.first_step, reached.step))
    return counts and is_wall_time(reached.wall_time) and _is_length(reached.max_gap_s)


def _is_count(number: int) -> bool:
    return 0 <= number <= _COUNT_MAX


def _is_text(text: str) -> bool:
    return text.isprintable() and len(text) <= _TEXT_CHARACTERS_MAX


def _is_length(length_s: float) -> bool:
    return 0.0 <= length_s <= _LENGTH_S_MAX


def _has_counts(state: RunState) -> bool:
    counts = (state.attempts, state.failures, state.preemptions, state.announced, state.generation)
    return all(_is_count(count) for count in counts) and _is_length(state.lifetimes_s)


def _is_loss(loss: Loss) -> bool:
    reached = loss.reached is None or is_reached(loss.reached)
    return reached and is_wall_time(loss.wall_time) and _is_count(loss.step) and _is_count(loss.term)


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
    return here and all(_is_count(count) for count in counts) and is_wall_time(ref.committed_at)
