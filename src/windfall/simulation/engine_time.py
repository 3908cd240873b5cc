"""Where wall time goes, and how far a script is: the arithmetic of `scenario`, apart from who decides what."""

from __future__ import annotations

import math

_NEARLY = 1e-9
"""A step that lacks no more than this share of its length is complete: times are sums of many rounded terms."""
_ULPS = 4.0 * 2.0**-52


class Division:
    """The division of a trial's wall time [s].

    Attributes:
        redo_s, save_s: added by whoever trains.
        allocate_s, prepare_s: of the time in which nobody trains.
    """

    __slots__ = ("_lacking", "_mark_s", "_training", "_usable", "allocate_s", "prepare_s", "redo_s", "save_s")

    def __init__(self, machines: int, time_s: float) -> None:
        self.redo_s = 0.0
        self.save_s = 0.0
        self.allocate_s = 0.0
        self.prepare_s = 0.0
        self._usable = [0] * machines
        self._lacking = machines
        self._training = False
        self._mark_s = time_s

    def usable(self, slot: int, change: int, time_s: float) -> None:
        """Count a slot's machines that have started and are not on notice: one more, or one less."""
        self._flow(time_s)
        before = self._usable[slot]
        self._usable[slot] = before + change
        self._lacking += (before + change == 0) - (before == 0)

    def begin(self, time_s: float) -> None:
        """Training begins."""
        assert not self._training, "one training at a time"
        self._flow(time_s)
        self._training = True

    def stop(self, time_s: float) -> None:
        """Training stops."""
        assert self._training, "only what began can stop"
        self._training, self._mark_s = False, time_s

    def _flow(self, time_s: float) -> None:
        if self._training:
            return
        if self._lacking:
            self.allocate_s += time_s - self._mark_s
        else:
            self.prepare_s += time_s - self._mark_s
        self._mark_s = time_s


class Script:
    """The ranks of one training, in lockstep: steps of equal length, and standstills between two of them.

    Attributes:
        step_s: of a step [s].
        anchor: complete steps at `since_s`, when the next one began [s]; infinite while the ranks stand still.
        save_s: how long they have stood still in all [s].
    """

    __slots__ = ("_still_s", "anchor", "save_s", "since_s", "step_s")

    def __init__(self, step_s: float, step: int, time_s: float) -> None:
        self.step_s = step_s
        self.anchor = step
        self.since_s = time_s
        self.save_s = 0.0
        self._still_s = 0.0

    @property
    def still(self) -> bool:
        """Whether the ranks stand still."""
        return self.since_s == math.inf

    def ends_s(self, step: int) -> float:
        """Return when a step is complete, if nothing holds it up [s]."""
        return self.since_s + (step - self.anchor) * self.step_s

    def done(self, time_s: float) -> int:
        """Return how many steps are complete."""
        if self.since_s == math.inf:
            return self.anchor
        steps = (time_s - self.since_s) / self.step_s
        return self.anchor + int(steps + _NEARLY + time_s * _ULPS / self.step_s)

    def doing_since_s(self, step: int) -> float:
        """Return since when the ranks do what they do after `step` complete steps [s]."""
        return self._still_s if self.since_s == math.inf else self.since_s + (step - self.anchor) * self.step_s

    def stand(self, step: int, time_s: float) -> None:
        """Stand still after a step."""
        self.anchor, self.since_s, self._still_s = step, math.inf, time_s

    def go_on(self, time_s: float) -> None:
        """Begin the next step."""
        self.save_s += time_s - self._still_s
        self.since_s = time_s

    def close(self, time_s: float, kept: int) -> float:
        """Stop; return how long the training beyond `kept` steps took, a begun step included [s]."""
        lost_s = (self.anchor - kept) * self.step_s
        if self.since_s == math.inf:
            self.save_s += time_s - self._still_s
            return lost_s
        return lost_s + time_s - self.since_s
