"""Running items that their metric stops: decisions, the table that is folded of them, and what the runner does."""

from __future__ import annotations

from typing import Any

import pytest

from tests.bags.test_recovered_items import AGAIN, DISCARD, PlayedBag
from tests.support.simulated_store import ManualClock, MemoryStore
from windfall.bags import (
    Bag,
    GrantedItem,
    ItemEnd,
    ItemGrant,
    ItemLease,
    ItemOutcome,
    ItemState,
    MetricCurve,
    RunnerReport,
    RunnerRoom,
    StopItem,
    StoppedLease,
)
from windfall.core import item_decisions, item_stops
from windfall.core.item_decisions import DispatcherView
from windfall.core.item_runner import (
    CurvesRead,
    GrantRead,
    ItemEnded,
    ItemRunner,
    KillItem,
    ReportWritten,
    RuleAnswered,
    RunnerFact,
    RunnerIdentity,
    WriteReport,
)
from windfall.core.item_table import CURVES_KEPT, ItemTable
from windfall.policies.planning import early_stopping
from windfall.runtimes.item_dispatcher import ItemDispatcher, read_records
from windfall.storage import store_operations
from windfall.terms import Instant, Seconds, WallTime
from windfall.wire import bag_layout

MEDIAN = StopItem("y", median="min", from_progress=0.3, done_min=3)
GOOD: MetricCurve = ((0.25, 2.0), (0.5, 1.0), (1.0, 0.5))
BAD: MetricCurve = ((100.0, 9.0), (300.0, 8.0))
ITEM_S = 600.0


class MetricBag(PlayedBag):
    """A bag whose running items report curves."""

    def __init__(self, rule: StopItem = MEDIAN, items: int = 40, **more: Any) -> None:
        super().__init__(Bag(items, ("x",), ("rows",), 1000, shuffled=False, stop_item=rule, **more))
        self.curves: dict[ItemLease, MetricCurve] = {}

    def done(self, runner: str, end: ItemEnd = ItemEnd.DONE, curve: MetricCurve = GOOD, stopped: str = "") -> int:
        """Let a runner's oldest item end; return which."""
        lease = self.table.leases(runner)[0]
        outcome = ItemOutcome(
            lease, end, 0, WallTime(0.0), Seconds(ITEM_S), values={"y": 0.5}, curve=curve, stopped=stopped
        )
        self.report(runner, outcomes=(outcome,))
        return lease.item

    def report(self, runner: str, **more: Any) -> None:
        """Let a runner report, and the dispatcher decide."""
        holds = self.table.leases(runner)
        sequence = self.reports[runner].sequence + 1
        self.reports[runner] = RunnerReport(
            runner, f"m-{runner}", sequence, 2, 2, self.table.number, holds, **{"ran_s": (), **more}
        )
        self.curves |= zip(holds, more.get("curves", ()), strict=False)
        self.turn()

    def turn(self, saved_s: Any = None) -> None:
        """Let the dispatcher decide until nothing changes."""
        while True:
            view = DispatcherView(
                Instant(0.0), WallTime(0.0), self.reports, {}, self.gone, ran_s=self.ran_s, saved_s=saved_s or {},
                fleet=self.fleet, curves=getattr(self, "curves", {}),
            )  # fmt: skip
            record = item_decisions.decide(self.table, view, "nonce")
            if record is None:
                return
            self.table.apply(record)
            self.log.append(record)

    def stopped(self) -> list[StoppedLease]:
        return [one for record in self.log for one in record.stopped]


def with_three_done(**more: Any) -> MetricBag:
    """Three items are done, and others run."""
    played = MetricBag(**more)
    played.join("a")
    played.join("b")
    for _ in range(3):
        played.done("a")
    return played


def test_an_item_worse_than_the_median_is_stopped_once_and_counts_as_done() -> None:
    """Not before 30 % of its run, not while it is no worse; the verdict ends with the lease, and so does the item."""
    played = with_three_done()
    first, second = played.table.leases("b")
    played.report("b", curves=(BAD[:1], ((300.0, 1.5),)))
    assert played.stopped() == []
    played.report("b", curves=(BAD, ((300.0, 1.5),)))
    reason = "y: its best, 8, is worse than the median of 3 done items, 1.5"
    assert played.stopped() == [StoppedLease(first, reason)]
    played.report("b", curves=(BAD, ((300.0, 1.5),)))
    assert len(played.stopped()) == 1, "a verdict is made once"
    assert played.table.verdicts == {first.item: reason}
    timed = played.table.timed
    assert played.done("b", ItemEnd.STOPPED, BAD, reason) == first.item

    assert played.table.state(first.item) is ItemState.DONE
    assert first.item not in played.table.verdicts
    assert played.table.timed == timed, "it does not say how long an item takes"
    assert BAD not in played.table.curves, "nor how those fare that run to their end"
    assert played.table.state(second.item) is ItemState.LEASED
    assert played.folded().keep() == played.table.keep()


def test_an_item_that_ends_by_itself_before_it_is_stopped_is_plainly_done() -> None:
    """The verdict is void; one that fails runs again, under a lease without a verdict."""
    played = with_three_done()
    played.report("b", curves=(BAD, BAD))
    assert len(played.table.verdicts) == 2
    first, second = (lease.item for lease in played.table.leases("b"))
    played.done("b")
    played.done("b", ItemEnd.FAILED)

    assert played.table.state(first) is ItemState.DONE
    assert played.table.verdicts == {}
    assert played.table.lease(second).number == 2 or second in played.table.waiting()
    assert played.table.failures == 0


def test_of_several_values_that_came_at_once_each_is_held_against_a_bound() -> None:
    """One that was beyond it and came back counts; a median looks at the newest."""
    played = MetricBag(StopItem("y", above=10.0))
    played.join("a")
    first, second = played.table.leases("a")
    # No item has been timed: progress is unknown, and a bound that holds from the start needs none.
    played.report("a", curves=(((1.0, 3.0), (2.0, 11.0), (3.0, 4.0)), ((1.0, 9.0),)))

    assert played.stopped() == [StoppedLease(first, "y: its value, 11, is above the bound, 10")]
    assert not played.table.verdicts.get(second.item)


def test_before_an_item_was_timed_nothing_is_known_to_be_late_in_its_run() -> None:
    """With steps it is."""
    for steps, expected in ((None, 0), ("step", 1)):
        played = MetricBag(StopItem("y", above=10.0, from_progress=0.5, steps=steps))
        played.join("a")
        played.report("a", curves=(((0.6, 12.0),), ()))
        assert len(played.stopped()) == expected


def test_what_the_users_function_says_is_a_verdict_like_any_other() -> None:
    """It comes in the runner's report; what hinders the function is in the log once."""
    played = MetricBag(StopItem("y", call="rules.py:worse"))
    played.join("a")
    (first, _) = played.table.leases("a")
    played.report("a", stops=(StoppedLease(first, "no hope"),), rule_problem="it raised ValueError")
    played.report("a", stops=(StoppedLease(first, "no hope"),), rule_problem="it raised ValueError")

    assert played.stopped() == [StoppedLease(first, "no hope")]
    assert [one.rule_problem for one in played.log if one.rule_problem] == ["it raised ValueError"]
    assert played.folded().rule_problem == played.table.rule_problem == "it raised ValueError"


def lost_with(played: MetricBag, curve: MetricCurve, saved_s: float = 0.0) -> int:
    """Let machine b vanish while its first item has this curve; return which item that is."""
    first = played.table.leases("b")[0]
    played.curves[first] = curve
    played.lose("b", {first.item: 300.0}, {first.item: saved_s} if saved_s else None)
    return first.item


def test_a_preempted_item_that_would_be_stopped_is_not_run_again() -> None:
    """Where the bag can do without it; else it runs again, and both are explained."""
    spared, needed, fine = (with_three_done(finish=finish) for finish in (0.9, 1.0, 0.9))
    dropped, again, better = lost_with(spared, BAD), lost_with(needed, BAD), lost_with(fine, ((300.0, 1.0),))

    (one,) = [one for one in spared.recoveries() if one.item == dropped]
    assert (one.action, spared.table.state(dropped)) == (DISCARD, ItemState.DISCARDED)
    assert one.reason == ("it is not run again: y: its best, 8, is worse than the median of 3 done items, 1.5")
    (other,) = [one for one in needed.recoveries() if one.item == again]
    assert (other.action, next(needed.table.waiting())) == (AGAIN, again)
    assert "the completion target of 100 % leaves 0 to spare" in other.reason
    assert "though its metric would stop it: y: its best, 8, is worse" in needed.explained()
    assert {one.action for one in fine.recoveries() if one.item == better} == {AGAIN}


def test_a_verdict_whose_runner_is_lost_is_a_reason_not_to_run_the_item_again() -> None:
    """Also for a dispatcher that has just started, and has no report with what the item had run."""
    played = with_three_done(finish=0.9)
    played.report("b", curves=(BAD, ()))
    first = played.table.leases("b")[0].item
    assert item_stops.hopeless(played.table, ItemLease(first, 1), ((300.0, 0.1),), Seconds(0.0)), "it stands"
    state = bag_layout.state_from_bytes(bag_layout.state_to_bytes(played.table.keep()))
    played.table = ItemTable(played.table.bag, range(40))
    played.table.restore(state)
    played.curves = {}
    played.gone.add("m-b")
    played.turn()

    assert played.table.state(first) is ItemState.DISCARDED
    assert "worse than the median" in next(one.reason for one in played.recoveries() if one.item == first)


def test_what_a_saved_item_has_reported_it_does_not_report_again() -> None:
    """By its newest value it is as good as others; that it was worse before counts only for a run from the start."""
    curve: MetricCurve = ((200.0, 8.0), (400.0, 0.1))
    fresh, saved = with_three_done(finish=0.9), with_three_done(finish=0.9)
    assert lost_with(fresh, curve) == lost_with(saved, curve, 350.0)

    assert fresh.recoveries()[0].action is DISCARD
    assert saved.recoveries()[0].action is AGAIN


def test_a_state_has_the_newest_curves_and_all_verdicts() -> None:
    """A dispatcher that starts from it decides as one that has read the whole log."""
    played = MetricBag(items=200)
    played.join("a")
    played.join("b")
    for place in range(CURVES_KEPT + 10):
        played.done("a", curve=((0.1, float(place)),))
    played.report("b", curves=(((300.0, 1e6),), ()))
    assert [curve[0][1] for curve in played.table.curves] == [float(place) for place in range(10, CURVES_KEPT + 10)]
    assert len(played.table.verdicts) == 1
    restored = ItemTable(played.table.bag, range(200))
    restored.restore(bag_layout.state_from_bytes(bag_layout.state_to_bytes(played.table.keep())))

    assert restored.keep() == played.table.keep() == played.folded().keep()
    assert (restored.verdicts, restored.curves) == (played.table.verdicts, played.table.curves)


def test_a_report_that_was_judged_is_not_judged_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A turn without news costs nothing, however many items run."""
    played = with_three_done()
    played.report("b", curves=(((300.0, 1.0),), ()))
    calls: list[int] = []
    monkeypatch.setattr(early_stopping, "judge", lambda *_: calls.append(1))
    view = DispatcherView(
        Instant(0.0),
        WallTime(0.0),
        played.reports,
        {},
        judged={name: one.sequence for name, one in played.reports.items()},
    )

    assert item_decisions.decide(played.table, view, "nonce") is None
    assert calls == []


class PlayedDispatcher:
    """A dispatcher, and two runners with two items each that report by hand."""

    def __init__(self, rule: StopItem) -> None:
        self.store, self.clock = MemoryStore(), ManualClock()
        self.bag = Bag(4, ("x",), ("rows",), 4, 0.5, shuffled=False, stop_item=rule)
        self.store.put("rows", bag_layout.rows_to_bytes([(1,), (2,), (3,), (4,)]))
        self.sequences = {"r": 0, "s": 0}
        self.new()
        for runner in self.sequences:
            self.report(runner)
            self.turn()

    def new(self) -> None:
        """Start the dispatcher again: it knows what is in the store."""
        self.dispatcher = ItemDispatcher(self.clock, self.bag, lambda: "n")

    def report(self, runner: str, **more: Any) -> None:
        self.sequences[runner] += 1
        table = self.dispatcher.table
        report = RunnerReport(
            runner, f"m-{runner}", self.sequences[runner], 2, 2, table.number, table.leases(runner), **more
        )
        self.store.put(bag_layout.runner_report_key(runner), bag_layout.report_to_bytes(report))

    def turn(self, *gone: str) -> None:
        store_operations.run(self.dispatcher.turn(gone=gone), self.store, self.clock)

    def grant(self, runner: str) -> ItemGrant:
        return bag_layout.grant_from_bytes(self.store.get(bag_layout.grant_key(runner)) or b"")


def test_a_verdict_is_in_the_grant_also_of_a_dispatcher_that_starts_again() -> None:
    """As long as the lease is the runner's."""
    played = PlayedDispatcher(StopItem("y", above=10.0))
    (lease, other) = played.dispatcher.table.leases("s")
    played.report("s", curves=(((1.0, 12.0),), ()))
    played.turn()
    stops = (StoppedLease(lease, "y: its value, 12, is above the bound, 10"),)
    assert played.grant("s").stops == stops
    assert played.grant("r").stops == ()
    played.new()
    played.turn()
    assert played.grant("s").stops == stops
    outcome = ItemOutcome(lease, ItemEnd.STOPPED, None, WallTime(0.0), Seconds(2.0), stopped=stops[0].reason)
    played.report("s", outcomes=(outcome,))
    played.turn()

    assert played.grant("s").stops == ()
    assert other in {one.lease for one in played.grant("s").items}


@pytest.mark.parametrize("again", [False, True], ids=["the same dispatcher", "one that starts again"])
def test_what_a_lost_runner_had_reported_decides_on_its_items(again: bool) -> None:
    """When it reported, no item had been timed; once one was, its value is known to be too high so late in its run."""
    played = PlayedDispatcher(StopItem("y", above=10.0, from_progress=0.5))
    first, second = played.dispatcher.table.leases("s")
    curves, ran_s = (((500.0, 12.0),), ((500.0, 3.0),)), (Seconds(510.0), Seconds(510.0))
    played.report("s", curves=curves, ran_s=ran_s)
    played.turn()
    done = ItemOutcome(played.dispatcher.table.leases("r")[0], ItemEnd.DONE, 0, WallTime(0.0), Seconds(600.0))
    played.report("r", outcomes=(done,))
    played.turn()
    assert played.dispatcher.table.verdicts == {}
    if again:
        played.new()
    played.turn("m-s")
    records = store_operations.run(read_records(0), played.store, played.clock)
    made = {one.item: one for record in records for one in record.recovered}

    assert made[first.item].action is DISCARD
    assert made[first.item].reason == "it is not run again: y: its value, 12, is above the bound, 10"
    assert made[second.item].reason.startswith("the least expected cost")


# ----------------------------------------------------------------------------------------------------------- the runner


class PlayedRunner:
    """A runner whose only item runs since 0 s, and whose reports are written at once."""

    def __init__(self) -> None:
        self.runner, self.lease = ItemRunner(RunnerIdentity("r", "m", RunnerRoom(1)), Instant(0.0)), ItemLease(4, 1)
        self.item = GrantedItem(self.lease, ("x",))
        self.reports: list[RunnerReport] = []
        self.kills: list[KillItem] = []
        self.turn(0.0, GrantRead(ItemGrant("r", 1, 0, (self.item,))))

    def turn(self, at: float, *facts: RunnerFact) -> bool:
        """Let it react; return whether it reports."""
        actions = self.runner.react(Instant(at), facts)
        self.kills += [one for one in actions if isinstance(one, KillItem)]
        written = [one.report for one in actions if isinstance(one, WriteReport)]
        self.reports += written
        if written:
            self.runner.react(Instant(at), (ReportWritten(written[0].sequence),))
        return bool(written)


def test_a_runner_stops_what_its_grant_says_once() -> None:
    """A lease that it does not have is nothing to it; the outcome is reported as any other."""
    played = PlayedRunner()
    stops = (StoppedLease(played.lease, "no hope"), StoppedLease(ItemLease(9, 1), "not here"))
    for number in (2, 3):
        played.turn(float(number), GrantRead(ItemGrant("r", number, 0, (played.item,), stops=stops)))
    outcome = ItemOutcome(played.lease, ItemEnd.STOPPED, None, WallTime(0.0), Seconds(2.0), stopped="no hope")
    played.turn(4.0, ItemEnded(outcome))

    assert played.kills == [KillItem(played.lease, ItemEnd.STOPPED, "no hope")]
    assert played.reports[-1].outcomes == (outcome,)


def test_curves_are_reported_sooner_of_items_that_have_run_for_a_shorter_time() -> None:
    """After a twentieth of the run; and not again while nothing is new."""
    played = PlayedRunner()
    played.turn(15.0)
    played.turn(20.0, CurvesRead({played.lease: ((20.0, 1.0),)}))
    due = [at for at in (20.5, 20.9, 21.1, 22.0, 23.0) if played.turn(at)]

    assert due == [21.1]
    assert played.reports[-1].curves == (((20.0, 1.0),),)
    assert played.reports[0].curves == ()


def test_what_the_function_says_is_reported_at_once_and_what_hinders_it_too() -> None:
    """The first problem is kept: it is the one that the bag shows."""
    played = PlayedRunner()
    played.turn(5.0, RuleAnswered(played.lease, "no hope"), RuleAnswered(None, "first"), RuleAnswered(None, "second"))

    assert played.reports[-1].stops == (StoppedLease(played.lease, "no hope"),)
    assert played.reports[-1].rule_problem == "first"
