"""The runner's reducer: which of its items a machine starts, gives back or kills, and what it reports.

It keeps as many items as it will run until the dispatcher's next answer can be here, so that no slot waits: with an
answer after a seconds and items of t seconds, slots x (1 + HORIZON a / t).  An item that the newest grant no longer has is
killed: its lease is another runner's, or the bag is over.

When the machine's end is announced, the runner starts items for as long as one has time for twice the mean of those that ran
here, gives back at once what it will not start, and kills what still runs shortly before the end.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Iterator, Mapping

from windfall.bags import (
    GrantedItem,
    ItemEnd,
    ItemGrant,
    ItemLease,
    ItemOutcome,
    MetricCurve,
    RunnerReport,
    RunnerRoom,
    StoppedLease,
)
from windfall.structs import Struct
from windfall.terms import Instant, Seconds

HORIZON = 2.0
"""Items in hand last for this many of the dispatcher's answers."""
ANSWER_S = Seconds(2.0)
"""How long an answer takes before the first one was timed [s]."""
RUN_S = Seconds(5.0)
"""How long an item takes before the first one was timed [s]; a short guess would take items from other machines."""
WANTS_MAX = 16_000
"""The most items in the hands of one runner: 64 slots with items of 50 ms need 13,000 where an answer takes 5 s."""
REPORT_S = Seconds(0.25)
"""The least time between two reports [s]; where an answer takes long, `REPORT_SHARE` of that: a report lists all items in
hand, and no more than one is read before the next answer."""
REPORT_SHARE = 1 / 8
CURVE_SHARE = 1 / 20
"""What an item reports of its metric is reported again after this share of its run, at most after `ALIVE_S`."""
ALIVE_S = Seconds(10.0)
"""A report is written again after this time, to show that the runner lives [s]."""
SPARE = 2.0
"""An item is started before an announced end if this many times the mean of items here is left."""
LAST_S = Seconds(2.0)
"""Items are killed so long before an announced end, so that what is done is still reported [s]."""
_SMOOTHING = 0.2
_ROUNDING = 1.0 + 1e-9


class RunnerIdentity(Struct, frozen=True):
    """Who a runner is, how many items it runs at once, and for how long; the reduce step has no limit."""

    runner: str
    machine_id: str
    room: RunnerRoom
    item_timeout_s: Seconds | None = None
    reduce_item: int | None = None


class GrantRead(Struct, frozen=True):
    """What the dispatcher has written for this runner."""

    grant: ItemGrant


class CurvesRead(Struct, frozen=True):
    """What running items have reported of their metric by now, those with anything new."""

    curves: Mapping[ItemLease, MetricCurve]


class RuleAnswered(Struct, frozen=True):
    """The user's function stops an item; or, without one, it cannot be asked, for a reason."""

    lease: ItemLease | None
    reason: str


class ItemEnded(Struct, frozen=True):
    """An item's command has ended, and its results are read and stored."""

    outcome: ItemOutcome


class ReportWritten(Struct, frozen=True):
    """A report is in the store."""

    sequence: int


class EndAnnounced(Struct, frozen=True):
    """The machine ends at this instant; None: it does not, after all."""

    at: Instant | None


class LeaveAsked(Struct, frozen=True):
    """The runner is to leave, after its items have ended or `now`."""

    now: bool


RunnerFact = GrantRead | CurvesRead | RuleAnswered | ItemEnded | ReportWritten | EndAnnounced | LeaveAsked


class StartItem(Struct, frozen=True):
    """Start an item's command."""

    item: GrantedItem


class KillItem(Struct, frozen=True):
    """Kill an item and everything below it; its outcome follows, if it still counts.

    Attributes:
        reason: why it is stopped; empty for other ends.
    """

    lease: ItemLease
    end: ItemEnd
    reason: str = ""


class WriteReport(Struct, frozen=True):
    """Write a report."""

    report: RunnerReport


class ForgetItem(Struct, frozen=True):
    """An item is done, and that is in the bag's log: what it would be restarted from may go."""

    lease: ItemLease


RunnerAction = StartItem | KillItem | WriteReport | ForgetItem


class _Running:
    __slots__ = ("curve", "item", "killed", "since", "stop")

    def __init__(self, item: GrantedItem, since: Instant) -> None:
        self.item, self.since = item, since
        self.killed: ItemEnd | None = None
        self.curve: MetricCurve = ()
        self.stop = ""


class ItemRunner:
    """The state of a runner.

    Attributes:
        closed: the bag is over.
        leaving: it starts nothing more.
    """

    def __init__(self, identity: RunnerIdentity, now: Instant) -> None:
        self.identity = identity
        self.closed = self.leaving = False
        self._waiting: deque[GrantedItem] = deque()
        self._running: dict[ItemLease, _Running] = {}
        self._outcomes: dict[ItemLease, tuple[ItemOutcome, int]] = {}
        self._grant = 0
        self._sequence = 0
        self._writing = False
        self._news = True
        self._written_at = Instant(-math.inf)
        self._asked_at: tuple[int, Instant] | None = None
        self._answer_s, self._run_s, self._timed = float(ANSWER_S), float(RUN_S), 0
        self._ends_at: Instant | None = None
        self._reduce_refused = False
        self._curves_at = math.inf
        self._rule_problem = ""
        self._now = now

    # ---------------------------------------------------------------------------------------------------------- reading

    @property
    def over(self) -> bool:
        """Whether it has nothing to run and nothing to report, and gets nothing more."""
        return (self.closed or self.leaving) and not self._running and not self._outcomes and not self._news

    @property
    def running(self) -> int:
        """How many items run."""
        return len(self._running)

    @property
    def item_s(self) -> Seconds | None:
        """Mean time of an item here, newer ones counting more [s]; None before the first."""
        return Seconds(self._run_s) if self._timed else None

    @property
    def wants(self) -> int:
        """How many items it would have in its hands."""
        if self.closed or self.leaving or self._now >= self._last_start:
            return 0
        slots = self.identity.room.slots
        ahead_s = min(HORIZON * self._answer_s, self._last_start - self._now)
        return min(slots + math.ceil(slots * ahead_s / max(self._run_s, 1e-3)), WANTS_MAX)

    def next_s(self, now: Instant) -> float:
        """Return when something is due at the latest, if no fact comes before [s]."""
        dues = [self._report_at]
        if self.identity.item_timeout_s is not None:
            dues += [one.since + self.identity.item_timeout_s for one in self._limited()]
        if self._ends_at is not None and self._running:
            dues.append(self._ends_at - LAST_S)
        if self._waiting:
            dues.append(self._last_start)
        return max(min(dues) - now, 0.0)

    @property
    def _last_start(self) -> float:
        """Until when items are started: always, if no end is announced, and never, if it is unknown how long they take."""
        if self._ends_at is None:
            return math.inf
        if not self._timed or self._reduce_refused:
            return -math.inf
        return self._ends_at - LAST_S - SPARE * self._run_s

    @property
    def _report_at(self) -> float:
        """When a report is due."""
        least_s = min(max(REPORT_S, REPORT_SHARE * self._answer_s), ALIVE_S)
        return min(
            self._written_at + (least_s if self._news else ALIVE_S), max(self._curves_at, self._written_at + least_s)
        )

    # ---------------------------------------------------------------------------------------------------------- turning

    def react(self, now: Instant, facts: tuple[RunnerFact, ...]) -> tuple[RunnerAction, ...]:
        """Take facts in, and return what is to be done."""
        self._now = now
        actions: list[RunnerAction] = []
        for fact in facts:
            match fact:
                case GrantRead(grant):
                    actions += self._granted(grant)
                case CurvesRead(curves):
                    self._take_curves(curves)
                case RuleAnswered(lease, reason):
                    self._take_answer(lease, reason)
                case ItemEnded(outcome):
                    self._ended(outcome)
                case ReportWritten():
                    self._writing = False
                case EndAnnounced(at):
                    self._ends_at = at
                    self._reduce_refused = self._reduce_refused and at is not None
                case LeaveAsked(at_once):
                    self._leave()
                    if at_once:
                        actions += self._kill_all(ItemEnd.RETURNED)
        self._give_back()
        actions += self._overdue()
        # An item may be killed by one fact and have ended by the next one.
        actions = [one for one in actions if not isinstance(one, KillItem) or one.lease in self._running]
        actions += self._starts()
        actions += self._report()
        return tuple(actions)

    def _granted(self, grant: ItemGrant) -> list[RunnerAction]:
        if grant.number < self._grant:
            return []
        new = grant.number > self._grant
        self._grant, self.closed = grant.number, grant.closed
        if self._asked_at is not None and grant.answers >= self._asked_at[0]:
            self._answer_s += _SMOOTHING * (self._now - self._asked_at[1] - self._answer_s)
            self._asked_at = None
        counted: list[RunnerAction] = []
        for lease, (outcome, reported) in tuple(self._outcomes.items()):
            if 0 < reported <= grant.answers:
                del self._outcomes[lease]
                if outcome.end.is_done:
                    counted.append(ForgetItem(lease))
        leases = {one.lease for one in grant.items}
        if grant.leave:
            self._leave()
            # Reports of a runner that was given up are not read: what it no longer has was counted, or counts no more.
            self._outcomes = {lease: kept for lease, kept in self._outcomes.items() if lease in leases}
        if not new:
            return counted
        known = {one.lease for one in self._waiting} | self._running.keys() | self._outcomes.keys()
        self._waiting = deque(one for one in self._waiting if one.lease in leases)
        if self.leaving:
            self._news = self._news or not leases <= known
        else:
            self._waiting += [one for one in grant.items if one.lease not in known]
            self._news = True
        given_up = [one for lease, one in self._running.items() if lease not in leases]
        stops = [self._stop(one) for one in grant.stops if one.lease in self._running]
        return [*counted, *self._kill(given_up, ItemEnd.DISCARDED), *itertools.chain(*stops)]

    def _stop(self, stopped: StoppedLease) -> list[RunnerAction]:
        one = self._running[stopped.lease]
        if one.killed is not None:
            return []
        one.killed = ItemEnd.STOPPED
        return [KillItem(stopped.lease, ItemEnd.STOPPED, stopped.reason)]

    def _take_curves(self, curves: Mapping[ItemLease, MetricCurve]) -> None:
        """Take in what items have reported, and let it be reported soon: sooner of those that run for a shorter time."""
        for lease, curve in curves.items():
            if (one := self._running.get(lease)) is not None:
                one.curve = curve
                soon_s = min(max(CURVE_SHARE * (self._now - one.since), REPORT_S), ALIVE_S)
                self._curves_at = min(self._curves_at, self._now + soon_s)

    def _take_answer(self, lease: ItemLease | None, reason: str) -> None:
        if lease is None:
            self._news, self._rule_problem = self._news or not self._rule_problem, self._rule_problem or reason
        elif (one := self._running.get(lease)) is not None:
            one.stop, self._news = reason, True

    def _ended(self, outcome: ItemOutcome) -> None:
        one = self._running.pop(outcome.lease, None)
        if one is None:
            return
        self._news = True
        if one.killed in (ItemEnd.DISCARDED, ItemEnd.RETURNED):
            return
        self._outcomes[outcome.lease] = (outcome, 0)
        if outcome.cpus is not None:
            return
        self._timed += 1
        self._run_s += (outcome.run_s - self._run_s) * max(1.0 / self._timed, _SMOOTHING)

    def _leave(self) -> None:
        if not self.leaving:
            self.leaving = self._news = True

    def _give_back(self) -> None:
        """Give back what will not be started, that which came last first; the reduce step, whose time is unknown, always."""
        if not self.leaving and self._ends_at is None:
            return
        if any(one.lease.item == self.identity.reduce_item for one in self._waiting):
            self._reduce_refused = True
        room = max(self.wants - len(self._running), 0)
        while len(self._waiting) > room:
            self._waiting.pop()
            self._news = True

    def _overdue(self) -> list[RunnerAction]:
        limit_s = self.identity.item_timeout_s
        actions: list[RunnerAction] = []
        if limit_s is not None:
            late = [one for one in self._limited() if self._now >= one.since + limit_s]
            actions += self._kill(late, ItemEnd.TIMED_OUT)
        if self._ends_at is not None and self._now >= self._ends_at - LAST_S:
            actions += self._kill_all(ItemEnd.RETURNED)
        return actions

    def _limited(self) -> list[_Running]:
        """What runs and may not run for longer than the limit."""
        reduce_item = self.identity.reduce_item
        return [one for one in self._running.values() if not one.killed and one.item.lease.item != reduce_item]

    def _kill_all(self, end: ItemEnd) -> list[RunnerAction]:
        return self._kill(list(self._running.values()), end)

    def _kill(self, ones: list[_Running], end: ItemEnd) -> list[RunnerAction]:
        actions: list[RunnerAction] = []
        for one in ones:
            if one.killed is None:
                one.killed = end
                actions.append(KillItem(one.item.lease, end))
        return actions

    def _starts(self) -> list[RunnerAction]:
        actions: list[RunnerAction] = []
        while (item := self._next_to_start()) is not None:
            self._waiting.remove(item)
            self._running[item.lease] = _Running(item, self._now)
            actions.append(StartItem(item))
        return actions

    def _next_to_start(self) -> GrantedItem | None:
        """Return the first item that waits, if it fits; else the first on fewer processors for which some are spare.

        Spare ones are too few for what it goes ahead of, so that this is never kept waiting by it.
        """
        room = self.identity.room
        if not self._waiting or len(self._running) >= (room.slots if room.items_max is None else room.items_max):
            return None
        used = math.fsum(one.item.cpus or room.cores for one in self._running.values())
        first, whole = self._waiting[0], room.slots * room.cores + room.spare_cpus
        if used + (first.cpus or room.cores) <= whole * _ROUNDING:
            return first
        spare = room.spare_cpus - math.fsum(one.item.cpus or 0.0 for one in self._running.values())
        return next((one for one in self._waiting if one.cpus is not None and one.cpus <= spare * _ROUNDING), None)

    def _in_hand(self) -> Iterator[GrantedItem]:
        yield from (one.item for one in self._running.values())
        yield from self._waiting

    def _report(self) -> list[RunnerAction]:
        if self._writing or self._now < self._report_at:
            return []
        self._sequence += 1
        self._writing, self._news, self._written_at, self._curves_at = True, False, self._now, math.inf
        if self._asked_at is None:
            self._asked_at = (self._sequence, self._now)
        self._outcomes = {
            lease: (outcome, reported or self._sequence) for lease, (outcome, reported) in self._outcomes.items()
        }
        who, curves = self.identity, tuple(one.curve for one in self._running.values())
        report = RunnerReport(
            who.runner,
            who.machine_id,
            self._sequence,
            who.room.slots,
            self.wants,
            self._grant,
            (*self._running, *(one.lease for one in self._waiting)),
            tuple(outcome for outcome, _ in self._outcomes.values()),
            leaves=self.leaving and not self._running,
            ran_s=tuple(Seconds(self._now - one.since) for one in self._running.values()),
            spare_cpus=max(who.room.spare_cpus - sum(one.cpus or 0.0 for one in self._in_hand()), 0.0),
            curves=curves if any(curves) else (),
            stops=tuple(StoppedLease(lease, one.stop) for lease, one in self._running.items() if one.stop),
            rule_problem=self._rule_problem,
        )
        return [WriteReport(report)]
