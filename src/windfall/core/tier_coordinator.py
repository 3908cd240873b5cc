"""The coordinator of a parameter server in tiers: it hears what machines report, and says which layout and clock count.

It has nothing but the newest layout, which is in the run's log, and what it is told: one that starts again writes the next
layout, and waits for reports that are addressed to it.  Training does not wait for it, but for what a loss has taken.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from windfall.core.tier_decisions import all_copied, common_clock, next_layout, training_loss, with_end
from windfall.policies.layout.tiers import StageRatios, TierPlacement, place_tiers
from windfall.structs import replace
from windfall.tier_layout import CommittedClock, ServerLayout, StoredClock, TierMachine, TierReport


class TierCoordinator:
    """What one coordinator knows.

    Args:
        layout: the newest, which this coordinator has written.
        ratios: above which the later stages begin.
        save_every: clocks from one checkpoint in the store to the next.
        clocks: training ends with this one, which is stored too.
        loss: training ends before that once its loss is no larger; None: it does not.

    Attributes:
        layout: the newest.
    """

    def __init__(
        self, layout: ServerLayout, ratios: StageRatios, save_every: int, clocks: int, loss: float | None = None
    ) -> None:
        self.layout, self.ratios, self.save_every, self.clocks, self.goal = layout, ratios, save_every, clocks, loss
        self._reports: dict[str, TierReport] = {}
        self._committed = layout.base
        self._saving: int | None = None
        self._stops_at: int | None = None

    @property
    def reports(self) -> Mapping[str, TierReport]:
        """The newest report of each machine, of those addressed to this coordinator."""
        return self._reports

    def take(self, report: TierReport) -> None:
        """Take in a report; one that is addressed to another coordinator, or older than another, changes nothing."""
        known = self._reports.get(report.machine)
        if report.coordinator == self.layout.coordinator and (known is None or report.number > known.number):
            self._reports[report.machine] = report
            self._commit()

    def stop(self) -> None:
        """End training with a clock that all backups have, which is stored."""
        if self._stops_at is None:
            self._stops_at = self._committed
        self._commit()

    @property
    def _last(self) -> int:
        last = self.layout.last_clock(self.clocks)
        return last if self._stops_at is None else min(last, self._stops_at)

    def committed(self) -> CommittedClock:
        """Return the clock that all backups have."""
        saves = self._saving == self._committed
        return CommittedClock(self.layout.term, self._committed, saves, self.layout.checkpoint.clock >= self._last)

    def machines_named(self) -> frozenset[str]:
        """Return the machines that the layout names."""
        named = {one for place in self.layout.parts for one in (place.active, place.backup, place.next_active)}
        named |= {one for place in self.layout.data for one in (place.holder, place.next_holder)}
        return frozenset(one for one in named if one is not None)

    def next(
        self, machines: Sequence[TierMachine], counted: Sequence[TierMachine] | None = None
    ) -> ServerLayout | None:
        """Return the layout to be written next; None: this one stands, or a report or a machine is needed first.

        Args:
            machines: all that are there; those of the layout that are not among them are lost.
            counted: those of them that the placement counts with, one that is reliable among them; None: all.
        """
        if not any(machine.reliable for machine in machines):
            return None
        layout = self.layout
        lost = self.machines_named() - {machine.name for machine in machines}
        known = [self._with_data(machine) for machine in counted or machines]
        changed = next_layout(layout, self._reports, lost, place_tiers(known, _placement(layout), self.ratios))
        loss = None if self.goal is None else training_loss(layout, self._reports)
        return with_end(layout, changed, self._committed, loss, self.goal)

    def written(self, layout: ServerLayout) -> None:
        """Take in that a layout is in the log."""
        if layout.term > self.layout.term:
            self._committed, self._saving = layout.base, None
        self.layout = layout
        self._commit()

    def _with_data(self, machine: TierMachine) -> TierMachine:
        report = self._reports.get(machine.name)
        return machine if report is None else replace(machine, loaded=report.loaded)

    def _commit(self) -> None:
        """Go to the newest clock that all backups have; but stay at one that is to be saved until all have a copy.

        None waits for the store, which may be slow or away, since servers keep all that changes after a committed clock.
        """
        layout = self.layout
        if self._saving is not None:
            stored = StoredClock(layout.term, self._saving)
            if layout.checkpoint >= stored:
                self._saving = None
            elif not all_copied(layout, self._reports, stored):
                return
        self._committed = max(self._committed, common_clock(layout, self._reports))
        if self._saving is not None:
            return
        unsaved = self._committed - layout.checkpoint.clock
        if unsaved >= self.save_every or (unsaved and self._committed >= self._last):
            self._saving = self._committed


def _placement(layout: ServerLayout) -> TierPlacement:
    """Return where all is, or is on its way to."""
    return TierPlacement(
        tuple(place.next_active or place.active for place in layout.parts),
        tuple(place.backup for place in layout.parts),
        tuple(place.next_holder or place.holder for place in layout.data),
    )
