"""Fleets for a deadline: what is bought at which moment, what is refused, and what the rules make of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest

from windfall.fleet import Slot
from windfall.jobs import Job, Measurement, Objective, Resources, RuntimeSpec, Use, Work
from windfall.market import Offer, OfferKey, Quota
from windfall.policies import policy_registry
from windfall.policies.acquisition import deadline_fleet, fleet_policy, fleet_policy_list
from windfall.policies.acquisition.fleet_policy import FleetEstimates, FleetMachine, FleetTarget
from windfall.policies.layout import checkpoint_rules
from windfall.policies.replacement.successor import ReplacementTime
from windfall.structs import replace
from windfall.terms import Instant, JobProgress, Outcome, Reliability, Seconds, Unit, WallTime, WorkDone

NOW = Instant(1_000_000.0)
HOUR_S = 3600.0
SPEED = Measurement("sim", "m", Unit.STEP, 1.0, Seconds(120.0), Seconds(60.0), 3, boot_s=Seconds(60.0))
ESTIMATES = FleetEstimates((), (SPEED,), ReplacementTime(Seconds(60.0), Seconds(60.0)))
POLICIES = (policy_registry.OPTIMAL_DEADLINE, policy_registry.UNIFORM_PROGRESS, policy_registry.GREEDY_DEADLINE)
TRANSIENT, RELIABLE = Reliability.TRANSIENT, Reliability.RELIABLE


def offer(reliability: Reliability, usd: float) -> Offer:
    return Offer("sim", "m", "a", usd, 3.0, reliability, Seconds(0.0), WallTime(NOW), cpus=4.0, bid=True)


SPOT, ON_DEMAND = offer(TRANSIENT, 1.0), offer(RELIABLE, 3.0)


def wanted(hours: float = 12.0, **more: object) -> Job:
    """Return 8 h of steps of a second within a number of hours; changeovers take at most 600 s."""
    given: dict[str, object] = {
        "fleet": policy_registry.UNIFORM_PROGRESS,
        "fleet_settings": {"changeover_s": 600.0},
        "use": Use.AUTO,
        "work": Work(8 * HOUR_S / (1.0 + deadline_fleet.MARGIN), Unit.STEP),
        "objective": Objective(deadline_s=Seconds(hours * HOUR_S)),
    } | more
    return Job("job", "job", "ada", "memory://run", ("train",), (Resources(),), **given)  # type: ignore[arg-type]


@dataclass
class View:
    """`FleetView` of the machines that fill the slots of a target."""

    job: Job = field(default_factory=wanted)
    needs: tuple[Slot, ...] = ()
    offers: tuple[Offer, ...] = (SPOT, ON_DEMAND)
    gone: frozenset[str] = frozenset()
    unready: frozenset[str] = frozenset()
    full: frozenset[OfferKey] = frozenset()
    awaited: frozenset[str] = frozenset()
    leaving: int = 0
    done_h: float = 0.0
    elapsed_h: float = 0.0
    memory: Mapping[str, float] = field(default_factory=dict)
    step_s: float | None = None
    quotas: tuple[Quota, ...] = ()
    submitted: Instant = NOW

    @property
    def now(self) -> Instant:
        return Instant(self.submitted + self.elapsed_h * HOUR_S)

    @property
    def progress(self) -> JobProgress:
        steps = WorkDone(self.done_h * HOUR_S / (1.0 + deadline_fleet.MARGIN), Unit.STEP)
        return JobProgress(steps, steps, 0, Outcome.RUNNING)

    def machines(self) -> tuple[FleetMachine, ...]:
        filled = [slot for slot in self.needs if slot.id not in self.gone | self.awaited]
        offers = {TRANSIENT: SPOT, RELIABLE: ON_DEMAND}
        return tuple(
            FleetMachine(
                slot.id, slot.id, offers[slot.reliability or TRANSIENT].key, 1.0, self.submitted, None,
                slot.id not in self.unready, step_s=self.step_s,
            )
            for slot in filled
        )  # fmt: skip

    def allocations(self) -> tuple[()]:
        return ()

    def refused(self) -> frozenset[OfferKey]:
        return self.full

    def spent_usd(self) -> float:
        return 0.0


def ask(view: View, estimates: FleetEstimates = ESTIMATES) -> FleetTarget:
    """Return the policy's answer, which the driver can carry out; asked twice it is the same."""
    policy = fleet_policy_list.policy(view.job.fleet)
    found = policy(view, estimates)
    assert policy(view, estimates) == found
    slots = {slot.id: slot for slot in view.needs}
    assert fleet_policy.flaw(found, slots, (), checkpoint_rules.RULES.roles, ()) is None
    return found


def kinds(target: FleetTarget) -> list[Reliability | None]:
    return [slot.reliability for slot in target.needs]


def after(view: View, target: FleetTarget, **changes: object) -> View:
    """Return a later view of what a target wanted."""
    given = {**view.__dict__, "needs": target.needs, "memory": target.memory or view.memory, **changes}
    return View(**given)  # type: ignore[arg-type]


@pytest.mark.parametrize("fleet", POLICIES)
def test_it_begins_on_spot_in_place_of_the_runtimes_slots(fleet: str) -> None:
    """With slack and spot machines at a third of the price; the bid is the price on demand; with the reason."""
    job = wanted(fleet=fleet)
    target = ask(View(job, checkpoint_rules.slots(job), gone=frozenset({"node-0"})))
    assert kinds(target) == [TRANSIENT]
    assert target.needs[0].bid_usd_per_hour == ON_DEMAND.price_usd_per_hour
    assert target.decision is not None
    assert (target.decision.policy, target.decision.choice) == (fleet, "spot machines")
    assert {"work left", "time left", "slack"} <= {one.name for one in target.decision.rationale}


@pytest.mark.parametrize("fleet", POLICIES)
def test_without_slack_it_is_on_demand_at_once(fleet: str) -> None:
    """8 h of work, 8.3 h, changeovers of 600 s: less slack than two of them."""
    assert kinds(ask(View(wanted(8.3, fleet=fleet)))) == [RELIABLE]


def test_a_lost_spot_machine_is_replaced_in_its_slot_while_spot_is_sold() -> None:
    """Nothing changes; the driver orders again."""
    begun = View()
    first = ask(begun)
    later = after(begun, first, gone=frozenset({first.needs[0].id}), elapsed_h=1.0)
    assert ask(later).needs is later.needs


@pytest.mark.parametrize(
    ("fleet", "expected"),
    [(policy_registry.UNIFORM_PROGRESS, [RELIABLE]), (policy_registry.GREEDY_DEADLINE, [])],
)
def test_without_spot_the_rules_differ(fleet: str, expected: list[Reliability]) -> None:
    """An hour gone and nothing done: Uniform Progress is behind and buys on demand, greedy waits with no machine at all."""
    view = View(wanted(fleet=fleet), full=frozenset({SPOT.key}), elapsed_h=1.0)
    assert kinds(ask(view)) == expected


def test_the_way_back_to_spot_overlaps_so_that_nothing_stands_still() -> None:
    """On demand and well ahead: spot is bought beside it; on-demand leaves when the new machine is ready, and not before."""
    begun = View(full=frozenset({SPOT.key}), elapsed_h=1.0)
    paid = ask(begun)
    ahead = after(begun, paid, full=frozenset(), done_h=4.0, elapsed_h=4.0)
    both = ask(ahead)
    assert kinds(both) == [RELIABLE, TRANSIENT]
    new = frozenset({both.needs[1].id})
    assert ask(after(ahead, both, awaited=new)).needs == both.needs
    assert ask(after(ahead, both, unready=new)).needs == both.needs
    assert kinds(ask(after(ahead, both))) == [TRANSIENT]
    refused = after(ahead, both, gone=new, full=frozenset({SPOT.key}))
    assert kinds(ask(refused)) == [RELIABLE], "the order was refused"


def test_several_machines_change_all_at_once() -> None:
    """A run of four: four on demand, then four of spot, never eight; a loss that cannot be bought again is one of all."""
    begun = View(wanted(nodes=4), full=frozenset({SPOT.key}), elapsed_h=1.0)
    paid = ask(begun)
    assert kinds(paid) == [RELIABLE] * 4
    spot = ask(after(begun, paid, full=frozenset(), done_h=4.0, elapsed_h=4.0))
    assert kinds(spot) == [TRANSIENT] * 4
    one_lost = after(begun, spot, gone=frozenset({spot.needs[2].id}), elapsed_h=9.0, done_h=4.0)
    assert kinds(ask(one_lost)) == [RELIABLE] * 4
    assert {slot.gang for slot in spot.needs} == {""}
    gang = ask(View(wanted(nodes=2, fleet_settings={"gang": True, "changeover_s": 600.0})))
    assert len({slot.gang for slot in gang.needs} - {""}) == 1


@pytest.mark.parametrize("fleet", POLICIES)
def test_spot_is_left_while_a_loss_would_still_not_be_late(fleet: str) -> None:
    """A spot machine that works, with slack for one changeover and one tick: on-demand is bought beside it."""
    begun = View(wanted(fleet=fleet))
    spot = ask(begun)
    calm = after(begun, spot, done_h=2.0, elapsed_h=5.0)
    assert ask(calm).needs is calm.needs
    short = after(begun, spot, done_h=2.0, elapsed_h=6.0 - 600.0 / HOUR_S)
    assert kinds(ask(short)) == [TRANSIENT, RELIABLE]


def test_a_changeover_is_carried_through() -> None:
    """An on-demand machine that is not ready yet is waited for, even if spot comes back meanwhile."""
    begun = View(full=frozenset({SPOT.key}), elapsed_h=1.0)
    paid = ask(begun)
    assert kinds(paid) == [RELIABLE]
    booting = after(begun, paid, full=frozenset(), done_h=4.0, elapsed_h=4.0, unready=frozenset({paid.needs[0].id}))
    assert ask(booting).needs is booting.needs
    assert kinds(ask(after(booting, paid, unready=frozenset()))) == [RELIABLE, TRANSIENT]


def test_spot_is_better_than_nothing_where_on_demand_is_sold_out() -> None:
    """Without slack, and with on-demand refused, the job goes on on spot."""
    view = View(wanted(8.3), full=frozenset({ON_DEMAND.key}))
    assert kinds(ask(view)) == [TRANSIENT]


def test_a_silent_provider_changes_nothing() -> None:
    """No offers are listed: what stands, stands."""
    begun = View()
    spot = ask(begun)
    quiet = after(begun, spot, offers=(), elapsed_h=5.0)
    assert ask(quiet).needs is quiet.needs


def test_spot_that_costs_more_than_on_demand_is_not_available() -> None:
    """At 3.5 USD/h against 3: as if none were sold."""
    dear = (replace(SPOT, price_usd_per_hour=3.5), ON_DEMAND)
    assert kinds(ask(View(offers=dear, elapsed_h=1.0))) == [RELIABLE]


def test_until_a_step_is_measured_the_job_is_on_demand() -> None:
    """Without an earlier run it begins on demand; once a step's time is reported it is remembered, and the rule decides."""
    unknown = FleetEstimates((), (), ESTIMATES.replacement)
    begun = View()
    paid = ask(begun, unknown)
    assert kinds(paid) == [RELIABLE]
    measured = after(begun, paid, step_s=1.0, done_h=1.5, elapsed_h=1.5)
    known = ask(measured, unknown)
    assert kinds(known) == [RELIABLE, TRANSIENT]
    silent = after(measured, known, step_s=None)
    assert kinds(ask(silent, unknown)) == [TRANSIENT], "what was measured is not forgotten"


def test_availability_has_an_age() -> None:
    """The optimal policy remembers since when spot is there: what it expects to pay changes with it."""
    view = View(wanted(fleet=policy_registry.OPTIMAL_DEADLINE), full=frozenset({SPOT.key}))
    first = ask(view)
    assert first.memory is not None
    assert (first.memory["spot"], first.memory["spot_since"]) == (0.0, view.now)
    later = ask(after(view, first, elapsed_h=1.0))
    assert later.memory is not None
    assert later.memory["spot_since"] == view.now
    back = ask(after(view, later, elapsed_h=2.0, full=frozenset()))
    assert back.memory is not None
    assert (back.memory["spot"], back.memory["spot_since"]) == (1.0, view.now + 2.0 * HOUR_S)


def test_uniform_progress_may_idle_if_asked_to() -> None:
    """Ahead, on demand, no spot: it stays, unless `may_idle` lets it leave for nothing."""
    begun = View(full=frozenset({SPOT.key}), elapsed_h=1.0)
    paid = ask(begun)
    ahead = after(begun, paid, done_h=5.0, elapsed_h=4.0)
    assert ask(ahead).needs is ahead.needs
    job = wanted(fleet_settings={"changeover_s": 600.0, "may_idle": True})
    assert kinds(ask(after(ahead, paid, job=job))) == []


@pytest.mark.parametrize("fleet", POLICIES)
def test_jobs_that_cannot_have_it_are_refused_with_what_to_write(fleet: str) -> None:
    """No deadline, no work, spot alone; settings that do not exist, or of which one is missing."""
    job = wanted(fleet=fleet)
    assert fleet_policy_list.job_problem(job) is None
    assert "write `objective: {deadline: 12h}`" in str(
        fleet_policy_list.job_problem(replace(job, objective=Objective()))
    )
    assert "write `work: {steps: 100000}`" in str(fleet_policy_list.job_problem(replace(job, work=None)))
    assert "write `spot_policy: auto`, not spot" in str(fleet_policy_list.job_problem(replace(job, use=Use.SPOT)))
    assert "has no setting 'margin'" in str(fleet_policy_list.settings_problem(fleet, {"margin": 2}))
    assert "needs both" in str(fleet_policy_list.settings_problem(fleet, {"available_s": 60.0}))
    assert "must be a number above zero" in str(fleet_policy_list.settings_problem(fleet, {"changeover_s": -1}))
    assert RuntimeSpec().name == "checkpoint"
