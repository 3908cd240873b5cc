"""Which steps were computed before, and which may have been: what turns a step into new work or into redo.

What a machine did between its last sign of life and its end is not recorded.  Numbers that depend on it are ranges: from
what is known to what was possible.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from windfall import events
from windfall.report.interval_kinds import Kind
from windfall.structs import Struct, replace
from windfall.terms import Cause, Step, Term, WallTime

_FASTEST_SHARE = 0.8
"""Shortest possible step, as a share of the fastest window's mean step: windows are means."""

_LEAST_S = 1e-7
"""A window with shorter steps than a call of the SDK takes measured nothing [s]."""


class StepRange(Struct, frozen=True):
    """A range from what is known to what is possible; `high` is None if unbounded."""

    low: float
    high: float | None

    @property
    def exact(self) -> bool:
        """Whether it is one number."""
        return self.low == self.high

    def text(self, form: str = "", *, scale: float = 1.0) -> str:
        """Write it with this format: `12`, `12 to 14`, `at least 12`; one number if both ends read the same."""
        low, high = (None if end is None else format(end if scale == 1.0 else end * scale, form) for end in self.ends)
        if high is None:
            return f"at least {low}"
        return f"{low}" if low == high else f"{low} to {high}"

    @property
    def ends(self) -> tuple[float, float | None]:
        """Both ends."""
        return self.low, self.high


class StepPace(Struct, frozen=True):
    """The run's step time: mean over all windows, and the fastest window's mean [s]; 0 if none was measured."""

    mean_s: float = 0.0
    fastest_s: float = 0.0

    def most(self, length_s: float) -> int | None:
        """Return the largest number of steps that fit into this time; None if their speed is unknown."""
        if length_s <= 0.0:
            return 0
        return None if self.fastest_s <= 0.0 else math.ceil(length_s / (_FASTEST_SHARE * self.fastest_s))


def pace_of(rows: Iterable[events.Row]) -> StepPace:
    """Return the step time of these rows."""
    windows = [
        fact for row in rows for fact in row.facts if isinstance(fact, events.StepsMeasured) and fact.mean_s > _LEAST_S
    ]
    count = sum(fact.count for fact in windows)
    if not count:
        return StepPace()
    return StepPace(sum(fact.count * fact.mean_s for fact in windows) / count, min(fact.mean_s for fact in windows))


class Lost(Struct, frozen=True):
    """The end of an attempt that did not finish its work.

    Attributes:
        last: the newest step it is known to have completed.
        high: the newest step it can have completed; None if nothing bounds it.
        restored: the step its successor started from, if there is one.
    """

    term: Term
    attempt: int
    at: WallTime
    cause: Cause
    last: Step
    high: Step | None
    restored: Step | None = None


@dataclass(slots=True)
class StepLedger:
    """Which steps were computed before, over all terms: what turns a step into compute or redo.

    Attributes:
        furthest: the highest step any attempt is known to have completed.
        last: the highest step the present attempt is known to have completed.
        owed: `(loss, upto)`, by rising `upto`: steps up to there are computed again because of that loss.
        doubted: the same for steps that the lost attempt may have completed without a record of them.
        losses: so far, oldest first.
        redone: steps computed again so far, by the loss that made it necessary.
        pending: the loss whose cost becomes known at the next restore.
        started: whether the present attempt has restored, or completed a step.
    """

    furthest: int = 0
    last: int = 0
    owed: list[tuple[int | None, int]] = field(default_factory=list)
    doubted: list[tuple[int | None, float]] = field(default_factory=list)
    losses: list[Lost] = field(default_factory=list)
    redone: dict[int | None, int] = field(default_factory=dict)
    pending: int | None = None
    started: bool = False

    def see(self, step: int) -> None:
        """Record that the present attempt has completed `step`."""
        self.started = True
        self.last = max(self.last, step)
        self.furthest = max(self.furthest, step)

    def lose(self, term: Term, attempt: int, at: WallTime, cause: Cause, *, more: int | None) -> None:
        """Record that the present attempt was lost; its cost becomes known when the successor restores.

        An attempt that was lost before it restored anything costs no steps of its own.

        Args:
            term: the term it was lost in.
            attempt: number of the attempt.
            at: when it was lost.
            cause: why it was lost.
            more: how many steps beyond the last known one it may have completed; None if unbounded.
        """
        last = self.last if self.started else 0
        high = None if self.started and more is None else Step(last + (more or 0) * self.started)
        self.losses.append(Lost(term, attempt, at, cause, Step(last), high))
        self.pending = len(self.losses) - 1 if self.started else self.pending
        self.started = False

    def restore(self, step: int) -> None:
        """Start an attempt from `step`: what was computed beyond it will be computed again."""
        upto: float = self.last
        if self.pending is not None:
            high = self.losses[self.pending].high
            upto = math.inf if high is None else high
            self.losses[self.pending] = replace(self.losses[self.pending], restored=Step(step))
        older = [(loss, to) for loss, to in self.owed if to > max(self.last, step)]
        self.owed = [(self.pending, self.last), *older] if self.last > step else older
        doubted = [(loss, to) for loss, to in self.doubted if to > max(upto, step)]
        self.doubted = [(self.pending, upto), *doubted] if upto > max(self.last, step) else doubted
        self.last = step
        self.pending, self.started = None, True

    def split(self, first: int, last: int) -> list[tuple[Kind, int | None, int]]:
        """Split the steps `first..last` into `(kind, loss, count)`, in order, and record them as computed.

        New work with a loss may have been computed before, by the lost attempt.
        """
        parts: list[tuple[Kind, int | None, int]] = []
        for loss, upto in self.owed:
            if (count := min(upto, last) - first + 1) > 0:
                parts.append((Kind.REDO, loss, count))
                self.redone[loss] = self.redone.get(loss, 0) + count
                first += count
        for loss, to in self.doubted:
            if (count := int(min(to, last)) - first + 1) > 0:
                parts.append((Kind.COMPUTE, loss, count))
                first += count
        if last >= first:
            parts.append((Kind.COMPUTE, None, last - first + 1))
        self.see(last)
        return parts

    def computed_again(self) -> StepRange:
        """Return how many steps were computed again.

        The upper end also counts each step that a lost attempt may have completed, except those that no attempt has
        reached since.
        """
        low = sum(self.redone.values())
        highs = [lost.high for lost in self.losses]
        if None in highs:
            return StepRange(low, None)
        more = sum((lost.high or 0) - lost.last for lost in self.losses)
        beyond = max([self.furthest, *(high or 0 for high in highs)]) - self.furthest
        return StepRange(low, low + more - beyond)
