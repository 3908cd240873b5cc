"""Bugs that the parts of a parameter server must not have, planted one at a time to see that the storm catches them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from unittest.mock import patch

import numpy as np

from tests.storms import partitions
from windfall.runtimes.parameter_partition import (
    BackupPartition,
    ClockChanges,
    ParameterPartition,
    PartHandOver,
    PushAnswer,
    PushId,
    Rows,
    RowValues,
    Values,
)
from windfall.structs import replace

_PLACE, _SEAL, _HAND_OVER = ParameterPartition._place, ParameterPartition.seal, ParameterPartition.hand_over


def _any_term(self: ParameterPartition, push: PushId) -> PushAnswer | None:
    return _PLACE(self, replace(push, term=self.term))


def _any_holder(self: ParameterPartition, push: PushId) -> PushAnswer | None:
    return _PLACE(self, replace(push, holder=self._holders[push.data]))


def _any_clock(self: ParameterPartition, push: PushId) -> PushAnswer | None:
    found = _PLACE(self, push)
    return None if found is PushAnswer.REPEATED else found


def _drop_all(self: ParameterPartition, data: int, clock: int) -> None:
    del clock
    self._opened.pop(data, None)


def _keep_open(self: ParameterPartition, data: int, clock: int) -> None:
    if data in self._opened and self._sealed[data] < clock:
        self._seal(data)


def _seal_all(self: ParameterPartition, data: int, clock: int) -> None:
    del clock
    if data in self._opened:
        self._seal(data)


def _in_order_of_arrival(self: ParameterPartition) -> None:
    self.clock += 1
    pushes = self._waiting.pop(self.clock)
    rows = np.unique(np.concatenate([pushed.rows for pushed in pushes.values()]))
    self._before[self.clock] = RowValues(rows, self._values[rows])
    for pushed in pushes.values():
        self._values[pushed.rows] += pushed.values
    if self._fresh is not None:
        self._refresh(rows)


def _as_now(self: ParameterPartition, rows: Rows, clock: int) -> Values:
    del clock
    found: Values = self._values[rows]
    return found


def _one_clock_too_few(self: ParameterPartition, rows: Rows, clock: int) -> Values:
    found: Values = self._values[rows]
    for later in range(self.clock, clock + 1, -1):
        kept = self._before[later]
        _, ours, theirs = np.intersect1d(rows, kept.rows, assume_unique=True, return_indices=True)
        found[ours] = kept.values[theirs]
    return found


def _across_gaps(self: BackupPartition, changes: ClockChanges) -> bool:
    if changes.clock > self.newest:
        self._later[changes.clock] = changes.changed
    return changes.clock in self.clocks


def _keep_what_is_later(self: BackupPartition, clock: int, term: int) -> None:
    self.go_to(clock)
    self.term = term


def _always(self: ParameterPartition, clock: int, bound: int | None) -> bool:
    del self, clock, bound
    return True


def _without_open(self: ParameterPartition, since: int) -> PartHandOver:
    return replace(_HAND_OVER(self, since), opened={})


def _without_waiting(self: ParameterPartition, since: int) -> PartHandOver:
    return replace(_HAND_OVER(self, since), waiting={})


def _without_before(self: ParameterPartition, since: int) -> PartHandOver:
    return replace(_HAND_OVER(self, since), before={})


def _no_drift_repaired(self: ParameterPartition, rows: Rows) -> None:
    del self, rows


def _newest_of_each(clocks: Sequence[frozenset[int]]) -> int:
    return min(max(one) for one in clocks)


BUGS: Mapping[str, tuple[object, str, Callable[..., object]]] = {
    "a push of an older term counts": (ParameterPartition, "_place", _any_term),
    "a push of an older holder counts": (ParameterPartition, "_place", _any_holder),
    "a push that comes twice counts twice": (ParameterPartition, "_place", _any_clock),
    "what one part has sealed is dropped by the others": (ParameterPartition, "resolve", _drop_all),
    "an open push of a lost worker stays": (ParameterPartition, "resolve", _keep_open),
    "an open push of a lost worker is sealed": (ParameterPartition, "resolve", _seal_all),
    "pushes are added in the order in which they came": (ParameterPartition, "_complete", _in_order_of_arrival),
    "a roll-back leaves values as they are": (ParameterPartition, "_values_at", _as_now),
    "a roll-back is one clock short": (ParameterPartition, "_values_at", _one_clock_too_few),
    "a backup takes changes of any term, across gaps": (BackupPartition, "take", _across_gaps),
    "a backup keeps what was rolled back": (BackupPartition, "roll_back", _keep_what_is_later),
    "a worker never waits": (ParameterPartition, "may_read", _always),
    "a part moves without its open pushes": (ParameterPartition, "hand_over", _without_open),
    "a part moves without its incomplete clocks": (ParameterPartition, "hand_over", _without_waiting),
    "a part moves without what its roll-back needs": (ParameterPartition, "hand_over", _without_before),
    "what reads see drifts": (ParameterPartition, "_refresh", _no_drift_repaired),
    "backups go to clocks that not all have": (partitions, "newest_common", _newest_of_each),
}


@contextmanager
def planted(name: str) -> Iterator[None]:
    """Plant a bug."""
    owner, attribute, wrong = BUGS[name]
    with patch.object(owner, attribute, wrong):
        yield
