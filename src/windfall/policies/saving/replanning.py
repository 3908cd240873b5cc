"""Who wants a schedule of saves, and when it is made anew: the plain half of live planning, standard library only.

A schedule begins at the machine's last save, because from there on all work is unsaved; its step, its age and the work
left are those of that moment.  `schedules_live` makes it.  It is made anew

* when the run is taken up again, has fallen back, or the schedule has come to its end;
* when a cost, the pace of steps or the rest of life at the planned age has changed by a quarter (`why_again`), be it
  because the machine has lost time and is older than planned (`lost_s`);
* where there was none: once the fit of lives can be trusted.
"""

from __future__ import annotations

from dataclasses import dataclass

from windfall.events import SaveTableGiven
from windfall.fleet import Basis, ScheduleMade
from windfall.models.losses import Losses, providers
from windfall.policies.saving import rules
from windfall.policies.saving.schedule_table import why_again
from windfall.terms import SaveCosts, SaveTable, Seconds, Step, Term

POLICY = "optimal"
INTERVAL_S_MAX = 1e9
"""In place of "never" in a table, which has to be plain JSON [s]."""


@dataclass(frozen=True, slots=True)
class ScheduleWish:
    """A machine that trains by policy `optimal`, and what its schedule depends on.

    Attributes:
        machines: how many train together.
        term: in which it holds the run.
        from_step: of its last save, at which the schedule is to begin.
        age_s: of the machine at that step [s].
        work_s: left from there [s]; None if unknown.
        step_s: mean time of a step [s].
        costs: of saves.
        allocate_s, prepare_s: from a loss to the next machine's start, and from there to training [s].
        notice_s: that machines of its kind get before they are taken [s]; 0 for none.
        mttp_s: what it is told of losses [s]; None if nothing.
        injected: its losses are the injector's, memoryless with that mean.
        before: the schedule that it has; None before the first.
    """

    machine_id: str
    provider: str
    machine_type: str
    zone: str
    machines: int
    term: Term
    from_step: Step
    age_s: Seconds
    work_s: Seconds | None
    step_s: Seconds
    costs: SaveCosts
    allocate_s: Seconds
    prepare_s: Seconds
    notice_s: Seconds
    mttp_s: Seconds | None = None
    injected: bool = False
    before: ScheduleMade | None = None

    @property
    def answered(self) -> bool:
        """Whether there was an answer to it since the machine took the run: a schedule, or why there is none."""
        return self.before is not None and self.before.term == self.term

    @property
    def scheduled(self) -> bool:
        """Whether that answer is a schedule."""
        return self.before is not None and self.before.trusted and self.answered

    @property
    def stall_s(self) -> float:
        """How long the script stands still for a save [s]."""
        return self.costs.stall_s

    @property
    def durable_s(self) -> float:
        """From the begin of a save to its commit [s]."""
        return self.costs.stall_s + self.costs.upload_s + self.costs.commit_s

    @property
    def restart_s(self) -> float:
        """From a loss to training again [s]."""
        return self.allocate_s + self.prepare_s

    @property
    def covers(self) -> bool:
        """Whether an emergency save fits the notice."""
        return rules.emergency_fits(self.notice_s, self.step_s, self.stall_s, self.costs.upload_s, self.costs.commit_s)

    @property
    def losses(self) -> Losses:
        """What the machine itself believes, as far as it is told."""
        provider = self.provider if self.provider in providers() else "local"
        return Losses(provider, mttp_given_s=self.mttp_s, restart_given_s=self.restart_s, notice_given_s=self.notice_s)

    def interval_s(self, covered_share: float) -> float:
        """Return the interval of the default rule [s].

        Args:
            covered_share: the share of losses that an emergency save covers.
        """
        if covered_share >= 1.0:
            return INTERVAL_S_MAX
        mean_s = self.losses.mttp_s(self.age_s) / (1.0 - covered_share)
        interval_s = rules.adaptive_interval_s(self.stall_s, mean_s, self.restart_s, self.durable_s)
        return min(max(interval_s, self.step_s), INTERVAL_S_MAX)

    def basis(self, life_left_s: float) -> Basis:
        """Return what a schedule for this wish is made with."""
        return Basis(self.stall_s, self.durable_s, self.restart_s, life_left_s, self.step_s)


def by_default(wish: ScheduleWish, says: str, life_left_s: float = 0.0) -> ScheduleMade:
    """Return that there is no schedule, and why: the default rule decides from the beginning."""
    table = SaveTable((), 0.0, wish.interval_s(0.0), says)
    given = SaveTableGiven(table, wish.from_step, wish.term)
    basis, work_s = wish.basis(life_left_s), Seconds(wish.work_s or 0.0)
    return ScheduleMade(wish.machine_id, wish.term, given, basis, wish.age_s, work_s, trusted=False)


def lost_s(wish: ScheduleWish, before: ScheduleMade) -> float:
    """Return how much older the machine is than its schedule has it at this step [s]: what work and saves do not explain.

    Time that the script needed to be started again, on this machine and in this term, or that it trained in vain.
    """
    done_s = (wish.from_step - before.given.from_step) * wish.step_s
    saves = sum(point <= done_s for point in before.given.table.saves_at_s)
    return wish.age_s - (before.age_s + done_s + saves * wish.stall_s)


def why_anew(wish: ScheduleWish, before: ScheduleMade, now: Basis) -> str:
    """Return why a schedule that was trusted is to be made anew, in words; empty if it stands.

    Args:
        wish: how the machine stands.
        before: the schedule that it has.
        now: as `before.basis`, measured now, the rest of life at the age that was planned for and the time lost since.
    """
    table, begin = before.given.table, before.given.from_step
    if wish.term != before.term:
        return f"the run was taken up again at step {wish.from_step}"
    if wish.from_step < begin:
        return f"the run has fallen back to step {wish.from_step}, before step {begin}, where the schedule begins"
    done_s = (wish.from_step - begin) * wish.step_s
    last_s = table.saves_at_s[-1] if table.saves_at_s else table.known_s
    # Where it ends before the work does, the next one begins at its last save; else its end is that of the work.
    end_s = min(last_s, table.known_s) if table.known_s < before.work_s else table.known_s
    if done_s >= end_s - wish.step_s / 2.0:
        return f"it has come to its end after {done_s:.0f} s of work"
    return why_again(before.basis, now)
