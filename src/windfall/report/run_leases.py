"""The leases and commits of a run, from the records of its log."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from windfall.report.account import Lease
from windfall.structs import replace
from windfall.terms import CheckpointRef, Record, RecordKind, Term


def leases(records: Iterable[Record]) -> list[Lease]:
    """Return every lease that the records name, oldest first.

    Args:
        records: in the order of the log; those that neither take nor release the run may be missing.
    """
    found: dict[Term, Lease] = {}
    for record in records:
        state = record.state
        if record.kind is RecordKind.ACQUIRE and state.holder is not None:
            if state.losses and (lost := found.get(state.losses[-1].term)) is not None and lost.released_at is None:
                found[lost.term] = replace(lost, reached=state.losses[-1].reached)
            found[state.term] = Lease(state.term, state.holder.host, state.holder_since)
        elif record.kind is RecordKind.RELEASE:
            taken = found[state.term]
            cause = state.losses[-1].cause
            found[state.term] = Lease(taken.term, taken.holder, taken.acquired_at, record.wall_time, cause)
    return list(found.values())


def commits(records: Sequence[Record]) -> list[CheckpointRef]:
    """Return every checkpoint that was live in one of the records, each once."""
    checkpoints = {
        checkpoint.checkpoint_id: checkpoint for record in records for checkpoint in record.state.checkpoints
    }
    return list(checkpoints.values())
