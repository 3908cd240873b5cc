"""Parts: what one rank handed over, read from the local disk and moved to the store in chunks.

A part may be one file or a folder of any shape.  It is planned (names, sizes, identities), copied, and looked at again:
if anything changed meanwhile, what was copied may be torn and is not used.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from windfall.errors import Misuse, Overwritten
from windfall.ports import PutRange, Steps
from windfall.storage.operations import ranges
from windfall.terms import Bytes, Chunk, FileEntry, Shard

CHUNK_BYTES = 64 * 1024 * 1024
"""Length of a chunk [B]: long enough for full throughput, short enough to be sent again."""
CHUNKS_AT_ONCE = 16
"""How many chunks go side by side: what is lost of an upload's progress at an error, at most."""
SINGLE = "."
"""The path of the one file of a part that is a file."""


@dataclass(frozen=True, slots=True)
class PlannedFile:
    """A file or an empty folder of a part as it was when planned.

    Attributes:
        path: relative POSIX path; `.` for a part that is one file; ends in `/` for an empty folder.
        source: where it lies.
        identity: what changes when somebody writes or replaces it: device, inode, length, mtime.
        changed_ns: its ctime, which also changes when a name of it comes or goes.
        links: how many names it has.
    """

    path: str
    source: str
    mode: int
    size_bytes: int
    identity: tuple[int, ...]
    changed_ns: int
    links: int


@dataclass(frozen=True, slots=True)
class Plan:
    """A part to be copied.  `fingerprint` changes when any of its files does."""

    name: str
    root: str
    files: tuple[PlannedFile, ...]
    fingerprint: str

    @property
    def size_bytes(self) -> Bytes:
        """The part's length [B]."""
        return Bytes(sum(file.size_bytes for file in self.files))

    @property
    def identity(self) -> str:
        """What changes when a file of the part is written or replaced, and not when other names of it come or go."""
        described = repr([(file.path, file.identity) for file in self.files])
        return hashlib.sha256(described.encode(errors="surrogateescape")).hexdigest()[:16]


def plan_part(path: str) -> Plan:
    """Look at a file or folder and plan its copy.

    Links are followed as long as they stay inside the folder; the copy then holds the bytes, not the link.

    Raises:
        Misuse: nothing is there, it holds something that is neither file nor folder, or a link leads outside.
    """
    root = os.path.realpath(path)
    name = os.path.basename(os.path.abspath(path))
    if not os.path.exists(root):
        raise Misuse(f"{path} was handed over as a checkpoint, but nothing is there")
    if not name:
        raise Misuse(f"{path} was handed over as a checkpoint: hand over a file or a folder below it")
    folder = os.path.isdir(root)
    files = tuple(_walk(root, "", (root,))) if folder else (_planned(SINGLE, root, os.stat(root)),)
    described = repr([(file.path, file.mode, file.identity, file.changed_ns) for file in files])
    return Plan(name, root, files, hashlib.sha256(described.encode(errors="surrogateescape")).hexdigest()[:16])


def _walk(root: str, inside: str, above: tuple[str, ...]) -> Iterator[PlannedFile]:
    """Yield what lies in the folder `root/inside`, sorted; `above` are the real folders passed on the way."""
    folder = os.path.join(root, inside)
    names = sorted(os.listdir(folder))
    if not names and inside:
        yield _planned(f"{inside}/", folder, os.stat(folder))
    for name in names:
        relative = f"{inside}/{name}" if inside else name
        source = os.path.join(root, relative)
        real = os.path.realpath(source)
        if os.path.islink(source):
            _check_link(source, real, root=root, above=above)
        if os.path.isdir(real):
            yield from _walk(root, relative, (*above, real))
        else:
            yield _planned(relative, source, os.stat(source))


def _check_link(source: str, real: str, *, root: str, above: tuple[str, ...]) -> None:
    if os.path.commonpath((root, real)) != root:
        raise Misuse(
            f"{source} is a link to {real}, outside the checkpoint: copy what it points to into the checkpoint's folder"
        )
    if not os.path.exists(real):
        raise Misuse(f"{source} is a link to nothing: remove it from the checkpoint's folder")
    if real in above:
        raise Misuse(f"{source} is a link to a folder that holds it: remove it from the checkpoint's folder")


def _planned(relative: str, source: str, status: os.stat_result) -> PlannedFile:
    if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
        raise Misuse(f"{source} is neither a file nor a folder: a checkpoint can hold nothing else")
    size = status.st_size if stat.S_ISREG(status.st_mode) else 0
    identity = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
    mode = stat.S_IMODE(status.st_mode) & 0o777
    return PlannedFile(relative, source, mode, size, identity, status.st_ctime_ns, status.st_nlink)


def check_untouched(plan: Plan, first: str) -> None:
    """Refuse a part that is no longer what its upload began with: a try again would store another state, or half of one.

    Args:
        plan: the part as it is now.
        first: its `identity` at the first try.

    Raises:
        Overwritten: it was changed between the two.
    """
    if plan.identity != first:
        raise _overwritten(plan)


def upload_part(
    plan: Plan,
    prefix: str,
    rank: int,
    *,
    already: Mapping[str, str] | None = None,
    on_chunk: Callable[[Chunk], None] | None = None,
) -> Steps[Shard]:
    """Copy a part to the store; return what a manifest says of it.

    The chunks' keys contain the plan's fingerprint: chunks of an earlier try count only if the part is still the same.

    Args:
        plan: the part.
        prefix: the folder for this rank's bytes (`layout.shard_prefix`).
        rank: whose part it is.
        already: key -> digest of the chunks that are in the store from an earlier try of the same term.
        on_chunk: told of each chunk once it is durable.

    Raises:
        Overwritten: the part was changed, or removed, while it was copied.
    """
    done = dict(already or {})
    waiting = [op for op in _chunk_ops(plan, prefix) if op.key not in done]
    for first in range(0, len(waiting), CHUNKS_AT_ONCE):
        batch = tuple(waiting[first : first + CHUNKS_AT_ONCE])
        try:
            digests = yield from ranges(batch)
        except (EOFError, FileNotFoundError) as error:
            raise _overwritten(plan) from error
        for op, digest in zip(batch, digests, strict=True):
            assert digest is not None, "a stored stretch has a digest"
            done[op.key] = digest
            if on_chunk is not None:
                on_chunk(Chunk(op.key, op.size_bytes, digest))
    _check_unchanged(plan)
    entries = tuple(
        FileEntry(
            file.path,
            file.mode,
            tuple(Chunk(op.key, op.size_bytes, done[op.key]) for op in _file_ops(plan, index, prefix)),
        )
        for index, file in enumerate(plan.files)
    )
    return Shard(rank, plan.name, entries)


def _chunk_ops(plan: Plan, prefix: str) -> Iterator[PutRange]:
    for index in range(len(plan.files)):
        yield from _file_ops(plan, index, prefix)


def _file_ops(plan: Plan, index: int, prefix: str) -> Iterator[PutRange]:
    file = plan.files[index]
    for number, offset in enumerate(range(0, file.size_bytes, CHUNK_BYTES)):
        key = f"{prefix}{plan.fingerprint}/{index:06d}.{number:06d}"
        yield PutRange(key, file.source, offset, min(CHUNK_BYTES, file.size_bytes - offset))


def _check_unchanged(plan: Plan) -> None:
    try:
        now = plan_part(plan.root)
    except (OSError, Misuse) as error:
        raise _overwritten(plan) from error
    if len(now.files) != len(plan.files) or not all(map(_same, plan.files, now.files)):
        raise _overwritten(plan)


def _same(before: PlannedFile, now: PlannedFile) -> bool:
    if (before.path, before.identity) != (now.path, now.identity):
        return False
    # A script that prunes its own checkpoints removes its name of a file that we still hold by another: that moves the
    # ctime and not one byte.
    return before.changed_ns == now.changed_ns or before.links != now.links


def _overwritten(plan: Plan) -> Overwritten:
    return Overwritten(
        f"{plan.root} was changed while it was being copied: this point is given up; "
        "write each checkpoint under a name of its own"
    )
