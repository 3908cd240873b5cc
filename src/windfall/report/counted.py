"""Which steps were computed before, and which may have been: what turns a step into new work or into redo.

What a machine did between its last sign of life and its end nobody wrote down.  What depends on it is a range: from what
is known to what was possible.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from windfall import events
from windfall.report.kinds import Kind
from windfall.terms import Cause, Step, Term, WallTime

_HURRY = 0.8
"""A step is taken to last at least so much of the mean step of the fastest window: windows are means."""

_LEAST_S = 1e-7
"""A window of shorter steps than a call takes measured nothing [s]."""


@dataclass(frozen=True, slots=True)
class Range:
    """From what is known to what is possible; `high` None where nothing bounds it."""

    low: float
    high: float | None

    @property
    def exact(self) -> bool:
        """Whether it is one number."""
        return self.low == self.high

    def text(self, form: str = "", *, scale: float = 1.0) -> str:
        """Write it with this format: `12`, `12 to 14`, `at least 12`; once where both ends read the same."""
        low, high = (None if end is None else format(end if scale == 1.0 else end * scale, form) for end in self.ends)
        if high is None:
            return f"at least {low}"
        return f"{low}" if low == high else f"{low} to {high}"

    @property
    def ends(self) -> tuple[float, float | None]:
        """Both of them."""
        return self.low, self.high


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast the run's steps are: mean over all windows, and the fastest window's mean [s]; 0 if none was measured."""

    mean_s: float = 0.0
    fastest_s: float = 0.0

    def most(self, length_s: float) -> int | None:
        """How many steps may have been completed in so much time at most; None if nothing is known of their speed."""
        if length_s <= 0.0:
            return 0
        return None if self.fastest_s <= 0.0 else math.ceil(length_s / (_HURRY * self.fastest_s))


def pace_of(rows: Iterable[events.Row]) -> Pace:
    """Return how fast the steps of these rows were."""
    windows = [
        fact for row in rows for fact in row.facts if isinstance(fact, events.StepsMeasured) and fact.mean_s > _LEAST_S
    ]
    count = sum(fact.count for fact in windows)
    if not count:
        return Pace()
    return Pace(sum(fact.count * fact.mean_s for fact in windows) / count, min(fact.mean_s for fact in windows))


@dataclass(frozen=True, slots=True)
class Lost:
    """The end of an attempt that did not finish its work.

    Attributes:
        last: the newest step it is known to have completed.
        high: the newest step it can have completed; None if nothing bounds it.
        restored: the step its successor began from, if any did.
    """

    term: Term
    attempt: int
    at: WallTime
    cause: Cause
    last: Step
    high: Step | None
    restored: Step | None = None


@dataclass(slots=True)
class Ledger:
    """Which steps were computed before, over all terms: what turns a step into compute or redo.

    Attributes:
        furthest: the highest step any attempt is known to have completed.
        last: the highest step the present attempt is known to have completed.
        owed: `(loss, upto)`, by rising `upto`: steps up to there are computed again because of that loss.
        doubted: the same for steps that the lost attempt may have completed, and of which nobody knows.
        losses: so far, oldest first.
        redone: steps computed again so far, by the loss that made it necessary.
        pending: the loss whose price the next restore tells.
        begun: whether the present attempt has restored, or completed a step.
    """

    furthest: int = 0
    last: int = 0
    owed: list[tuple[int | None, int]] = field(default_factory=list)
    doubted: list[tuple[int | None, float]] = field(default_factory=list)
    losses: list[Lost] = field(default_factory=list)
    redone: dict[int | None, int] = field(default_factory=dict)
    pending: int | None = None
    begun: bool = False

    def see(self, step: int) -> None:
        """Note that the present attempt has completed `step`."""
        self.begun = True
        self.last = max(self.last, step)
        self.furthest = max(self.furthest, step)

    def lose(self, term: Term, attempt: int, at: WallTime, cause: Cause, *, more: int | None) -> None:
        """Note that the present attempt was lost; what that costs is known when its successor restores.

        An attempt that was lost before it restored anything costs no steps of its own.

        Args:
            term: in which.
            attempt: which start of the script.
            at: when.
            cause: why.
            more: how many steps beyond the last known one it may have completed; None if nothing bounds them.
        """
        last = self.last if self.begun else 0
        high = None if self.begun and more is None else Step(last + (more or 0) * self.begun)
        self.losses.append(Lost(term, attempt, at, cause, Step(last), high))
        self.pending = len(self.losses) - 1 if self.begun else self.pending
        self.begun = False

    def restore(self, step: int) -> None:
        """Begin an attempt from `step`: what was computed beyond it will be computed again."""
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
        self.pending, self.begun = None, True

    def split(self, first: int, last: int) -> list[tuple[Kind, int | None, int]]:
        """Split the steps `first..last` into `(kind, loss, count)`, in order, and note them as computed.

        New work with a loss beside it was perhaps done before, by the attempt that was lost.
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

    def computed_again(self) -> Range:
        """How many steps were computed again.

        Each step that a lost attempt may have completed besides was computed again too, but for those that no attempt
        has reached since.
        """
        low = sum(self.redone.values())
        highs = [lost.high for lost in self.losses]
        if None in highs:
            return Range(low, None)
        more = sum((lost.high or 0) - lost.last for lost in self.losses)
        beyond = max([self.furthest, *(high or 0 for high in highs)]) - self.furthest
        return Range(low, low + more - beyond)
