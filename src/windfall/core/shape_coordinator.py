"""What decides for an elastic training: it hears reports, takes silent machines for lost, and says what the next layout is.

It has nothing but the newest layout, which is in the run's log, and what it is told: one that starts again listens before it
takes any machine for lost.  Training does not wait for it, but for what a loss has taken.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from windfall.core.shape_decisions import Chooser, ShapeFacts, is_at_rest, named_by, next_shape_layout, released
from windfall.shape_layout import ShapeLayout, ShapeReport
from windfall.structs import Struct


class ShapePatience(Struct, frozen=True):
    """How long machines may be silent.

    Attributes:
        lost_after_s: a machine is lost then [s].
        reliable_lost_after_s: the same of a reliable one [s].
        broken_lost_after_s: the same of one that has not reported since another's connection, to it perhaps, broke [s].
        missed_lost_after_s: the same once all others that train have reported since then: they are as busy, and have [s].
        paused_after_s: a coordinator that had no turn for so long was halted itself: no silence counts then [s].
        listen_s: how long a coordinator that starts waits for machines that the layout names, which train without it: they must
            first be told where it is [s].  Once all but some that others miss have found it, these are lost as silent ones.
    """

    lost_after_s: float = 5.0
    reliable_lost_after_s: float = 15.0
    broken_lost_after_s: float = 0.3
    missed_lost_after_s: float = 0.15
    paused_after_s: float = 1.0
    listen_s: float = 60.0


class ShapeCoordinator:
    """What one coordinator knows.

    Args:
        layout: the newest, which this coordinator has written.
        choose: the policy for shapes.
        patience: with machines.
        now_s: a monotonic time [s].
        trained: the newest step of the layout's term that a coordinator before this one knew of: who trained it may be lost.

    Attributes:
        layout: the newest.
    """

    def __init__(
        self, layout: ShapeLayout, choose: Chooser, patience: ShapePatience, now_s: float, trained: int = 0
    ) -> None:
        self.layout = layout
        self._choose, self._patience, self._trained = choose, patience, trained
        # Others may hold states too, which no layout names any more while all wait.
        self._listens_until_s = now_s + (patience.lost_after_s if layout.coordinator > 1 else 0.0)
        self._reports: dict[str, ShapeReport] = {}
        self._reported_s: dict[str, float] = {}
        self._named_s: dict[str, float] = {}
        self._awaited_s = dict.fromkeys(named_by(layout), now_s + patience.listen_s)
        if layout.backup is not None:
            # It is often lost together with the coordinator before; to miss it wrongly costs no step.
            self._awaited_s[layout.backup] = now_s + min(patience.reliable_lost_after_s, patience.listen_s)
        self._missed: tuple[frozenset[str], float] = (frozenset(), now_s)
        # By what was reported first of a notice: a report that is late says that there is more time than there is.
        self._ends_s: dict[str, float] = {}
        self._lost: set[str] = set()
        self._decided_s = now_s
        self._dismissed: set[str] = set()

    @property
    def reports(self) -> Mapping[str, ShapeReport]:
        """The newest report of each machine, of those to this coordinator."""
        return self._reports

    @property
    def lost(self) -> frozenset[str]:
        """Machines that are lost for ever."""
        return frozenset(self._lost)

    @property
    def dismissed(self) -> frozenset[str]:
        """Machines that left, as they were to, and are not missed."""
        return frozenset(self._dismissed)

    @property
    def trained(self) -> int:
        """The newest step of the layout's term that is trained, as far as is known."""
        layout = self.layout
        known = [one.trained for one in self._reports.values() if one.term == layout.term]
        return max([layout.base, self._trained, *known])

    def there(self) -> tuple[ShapeReport, ...]:
        """Return the reports of machines that are not lost, the longest-running machine first."""
        return self._facts(0).there()

    def take(self, report: ShapeReport, now_s: float) -> None:
        """Take in a report; one to another coordinator, of a lost machine, or older than another changes nothing."""
        known = self._reports.get(report.machine)
        if report.machine in self._lost or report.coordinator != self.layout.coordinator:
            return
        if known is None or report.number > known.number:
            self._reports[report.machine] = report
            self._reported_s[report.machine] = now_s
            self._take_end(report, now_s)
            self._awaited_s.pop(report.machine, None)
            if report.term == self.layout.term:
                for name in report.broken:
                    self._named_s.setdefault(name, now_s)

    def _take_end(self, report: ShapeReport, now_s: float) -> None:
        if not report.leaving:
            self._ends_s.pop(report.machine, None)
        elif report.ends_in_s is not None:
            ends_s = now_s + report.ends_in_s
            self._ends_s[report.machine] = min(self._ends_s.get(report.machine, ends_s), ends_s)

    def next(self, now_s: float, stored: int) -> ShapeLayout | None:
        """Return the layout to be written next; None: this one stands, or a report is needed first.

        Args:
            now_s: the time of the clock that `take` had [s].
            stored: the newest step that is whole in the store.
        """
        if self.layout.over:
            return None
        self._count_pause(now_s)
        self._lost |= self._silent(now_s)
        resting = self.layout.stop or not self.layout.stages
        if self._awaited_s or (resting and now_s < self._listens_until_s):
            return None
        return next_shape_layout(self.layout, self._facts(stored), self._choose)

    def released(self, stored: int) -> frozenset[str]:
        """Return the machines of those to leave that may end; they are not missed from now on."""
        found = released(self.layout, self._facts(stored))
        self._dismissed |= found
        return found

    def is_at_rest(self, stored: int) -> bool:
        """Return whether nothing is trained, and the newest step is in the store."""
        return is_at_rest(self.layout, self._facts(stored))

    def written(self, layout: ShapeLayout) -> None:
        """Take in that a layout is in the log."""
        if layout.term != self.layout.term:
            self._trained = 0
            self._named_s.clear()
        self.layout = layout

    def _facts(self, stored: int) -> ShapeFacts:
        left_s = {name: ends_s - self._decided_s for name, ends_s in dict(self._ends_s).items()}
        return ShapeFacts(self._reports, self.lost, stored, self._trained, left_s)

    def _count_pause(self, now_s: float) -> None:
        """Take in how long this coordinator itself has done nothing."""
        pause_s, self._decided_s = now_s - self._decided_s, now_s
        if pause_s > self._patience.paused_after_s:
            self._listens_until_s += pause_s
            self._missed = (self._missed[0], min(self._missed[1] + pause_s, now_s))
            for since in (self._reported_s, self._awaited_s):
                for name in since:
                    since[name] = (
                        min(since[name] + pause_s, now_s) if since is self._reported_s else since[name] + pause_s
                    )

    def _silent(self, now_s: float) -> set[str]:
        patience = self._patience
        silent = {name for name, until_s in self._awaited_s.items() if until_s < now_s} | self._not_found(now_s)
        for name, reported_s in self._reported_s.items():
            limit_s = patience.reliable_lost_after_s if self._reports[name].reliable else patience.lost_after_s
            # Of several that are named, those that live report, however busy this computer is.
            named = self._named_s.get(name, -math.inf) >= reported_s
            # A machine whose announced end has come is not waited for.
            if named or self._ends_s.get(name, now_s) < now_s:
                limit_s = min(limit_s, patience.broken_lost_after_s)
            if named and self._others_have_reported(name):
                limit_s = min(limit_s, patience.missed_lost_after_s)
            if now_s - reported_s > limit_s:
                silent.add(name)
        for name in silent:
            self._awaited_s.pop(name, None)
        return silent

    def _others_have_reported(self, name: str) -> bool:
        """Whether all others that train have reported since a machine was first missed."""
        others = {place.machine for place in self.layout.places} - self._lost - {name}
        return bool(others) and all(self._reported_s.get(one, -math.inf) >= self._named_s[name] for one in others)

    def _not_found(self, now_s: float) -> frozenset[str]:
        """Return the machines that have not found this coordinator, though all others have for long, and that are missed.

        Who gave up a step closes its connections, so that a peer misses it though it lives: it is given time to say so.  The
        backup, which is often lost together with the coordinator before, is missed once others hold each layer.
        """
        missed = frozenset(
            name for name in self._awaited_s if name in self._named_s or (name == self.layout.backup and self._held())
        )
        if missed != self._awaited_s.keys():
            missed = frozenset()
        if missed != self._missed[0]:
            self._missed = (missed, now_s)
        return missed if now_s - self._missed[1] > self._patience.lost_after_s else frozenset()

    def _held(self) -> bool:
        """Whether machines that are there hold each layer, of whatever step."""
        there = self.there()
        held = {layer for one in there for first, end, _ in one.held for layer in range(first, end)}
        layers = max([0, *(one.layers for one in there)])
        return 0 < layers <= len(held)
