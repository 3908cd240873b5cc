"""`fleet: mix`: what it has at the start, and what it changes later."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from tests.support import tickets
from windfall.fleet import Slot
from windfall.jobs import Job, Objective, RuntimeSpec, Use, Work
from windfall.market import Offer, OfferKey, Quota
from windfall.policies.acquisition import fleet_policy, fleet_policy_list, mixed_fleet
from windfall.policies.acquisition.fleet_policy import FleetEstimates, FleetMachine, FleetTarget
from windfall.policies.replacement.successor import ReplacementTime
from windfall.structs import replace
from windfall.terms import Instant, JobProgress, Outcome, Reliability, Seconds, Unit, Usd, WallTime, WorkDone

NOW = Instant(90_000.0)
ESTIMATES = FleetEstimates((), (), ReplacementTime(Seconds(60.0), Seconds(60.0)))


@pytest.fixture(autouse=True)
def _installed() -> Iterator[None]:
    """The toy runtime, whose jobs can use more or fewer machines."""
    with tickets.installed():
        yield


def offer(kind: str, cpus: float, usd: float, reliability: Reliability = Reliability.TRANSIENT) -> Offer:
    """Return an offer in zone a."""
    return Offer(
        "sim", kind, "a", usd, 3.0 * usd, reliability, Seconds(0.0), WallTime(NOW), cpus=cpus, startup_s=Seconds(30.0)
    )


SMALL, LARGE = offer("small", 1.0, 0.10), offer("large", 4.0, 0.30)
CLERK = offer("small", 1.0, 0.30, Reliability.RELIABLE)
OFFERS = (SMALL, LARGE, CLERK)


def wanted(**objective: float) -> Job:
    """Return a job of tickets with the policy, for at most three takers that can be preempted."""
    made = tickets.job("job", tickets.QueueSettings(core_s=60.0))
    return replace(made, fleet="mix", objective=Objective(**objective), use=Use.SPOT)  # type: ignore[arg-type]


@dataclass
class View:
    """`FleetView` of the machines that fill the slots of a target."""

    needs: tuple[Slot, ...]
    job: Job = field(default_factory=wanted)
    offers: tuple[Offer, ...] = OFFERS
    lost: frozenset[str] = frozenset()
    full: frozenset[OfferKey] = frozenset()
    quotas: tuple[Quota, ...] = ()
    awaited: frozenset[str] = frozenset()
    leaving: int = 0
    progress: JobProgress | None = None
    now: Instant = NOW
    submitted: Instant = NOW

    def machines(self) -> tuple[FleetMachine, ...]:
        filled = [slot for slot in self.needs if slot.wants and slot.id not in self.lost | self.awaited]
        return tuple(FleetMachine(slot.id, slot.id, slot.wants[0], 0.1, self.now, None, True) for slot in filled)

    def allocations(self) -> tuple[()]:
        return ()

    def refused(self) -> frozenset[OfferKey]:
        return self.full

    def spent_usd(self) -> float:
        return 0.0


def first() -> tuple[Slot, ...]:
    """Return what the runtime needs at the start."""
    return tickets.RULES.slots(wanted())


def ask(view: View) -> FleetTarget:
    """Return the policy's answer, which the driver can carry out."""
    found = mixed_fleet.mix_of(view, ESTIMATES)
    slots = {slot.id: slot for slot in view.needs}
    assert fleet_policy.flaw(found, slots, (), tickets.RULES.roles, tickets.RULES.reliable_roles) is None
    return found


def takers(target: FleetTarget) -> Counter[str]:
    """Return how many takers there are of each type."""
    return Counter(slot.wants[0][1] for slot in target.needs if slot.role == tickets.TAKER)


def test_it_begins_with_the_best_fleet_and_says_why() -> None:
    """Beside the clerk of the runtime; each slot names its offer."""
    target = ask(View(first()))
    assert takers(target) == {"large": 3}
    assert tickets.CLERK_SLOT in target.needs
    assert target.decision is not None
    assert target.decision.choice == "3 large in a"
    assert {one.name for one in target.decision.rationale} >= {"cost after", "cores after"}


def test_a_quota_limits_an_offer() -> None:
    """The rest is filled with the next best."""
    assert takers(ask(View(first(), quotas=(Quota("large", "a", 1, 0),)))) == {"large": 1, "small": 2}


def test_an_offer_that_is_refused_counts_as_sold_out() -> None:
    """What stands of it stays; its slots without a machine are dropped, and others take their place."""
    begun = ask(View(first())).needs
    large = [slot.id for slot in begun if slot.wants]
    target = ask(View(begun, lost=frozenset(large[1:]), full=frozenset({LARGE.key})))
    assert takers(target) == {"large": 1, "small": 2}
    assert large[0] in {slot.id for slot in target.needs}


def test_a_lost_machine_is_replaced_in_its_slot() -> None:
    """As long as its offer is sold: nothing changes."""
    begun = ask(View(first())).needs
    lost = frozenset([begun[-1].id])
    target = ask(View(begun, lost=lost))
    assert target.needs is begun
    assert target.decision is None


def test_a_better_fleet_is_bought_before_the_old_one_leaves() -> None:
    """First three more; they leave only when the new ones work."""
    begun = ask(View(first())).needs
    cheaper = (replace(SMALL, machine_type="new", cpus=4.0), *OFFERS)
    both = ask(View(begun, offers=cheaper))
    assert takers(both) == {"large": 3, "new": 3}
    new = frozenset(slot.id for slot in both.needs if slot.wants and slot.wants[0][1] == "new")
    assert takers(ask(View(both.needs, offers=cheaper, awaited=new))) == {"large": 3, "new": 3}
    assert takers(ask(View(both.needs, offers=cheaper, lost=new))) == {"large": 3, "new": 3}
    assert takers(ask(View(both.needs, offers=cheaper))) == {"new": 3}


def test_a_price_that_moves_a_little_changes_nothing() -> None:
    """Nor does a better offer when almost all work is done."""
    begun = ask(View(first())).needs
    dearer = tuple(replace(one, price_usd_per_hour=one.price_usd_per_hour * 1.03) for one in (LARGE,))
    rival = replace(LARGE, machine_type="rival")
    assert ask(View(begun, offers=(rival, SMALL, CLERK, *dearer))).needs is begun
    much = replace(wanted(), work=Work(6000.0, Unit.STEP))
    cheap = replace(LARGE, machine_type="rival", price_usd_per_hour=0.2)
    almost = JobProgress(WorkDone(5999.0, Unit.STEP), WorkDone(5999.0, Unit.STEP), 0, Outcome.RUNNING)
    assert takers(ask(View(begun, much, (cheap, *OFFERS)))) == {"large": 3, "rival": 3}
    assert ask(View(begun, much, (cheap, *OFFERS), progress=almost)).needs is begun


def test_offers_that_are_not_listed_change_nothing() -> None:
    """A provider that is silent for a while neither ends the job nor makes it buy elsewhere."""
    begun = ask(View(first())).needs
    assert ask(View(begun, offers=())).needs is begun
    assert ask(View(begun, offers=(SMALL, CLERK))).needs is begun
    assert ask(View(begun, offers=(SMALL, LARGE))).needs is begun, "the clerk's offer is gone"
    assert ask(View(first(), offers=())).needs == first()


def test_of_an_offer_above_the_price_limit_no_more_is_bought() -> None:
    """Its machines stay while they are the best ones; they leave, once others work, when they are not."""
    job = replace(wanted(), max_price_usd_per_hour=Usd(0.35))
    begun = ask(View(first(), job)).needs
    dearer = (SMALL, replace(LARGE, price_usd_per_hour=0.5), CLERK)
    assert ask(View(begun, job, dearer)).needs is begun
    fewer = tuple(slot for slot in begun if slot != begun[-1])
    assert takers(ask(View(fewer, job, dearer)))["large"] == 2
    risen = (SMALL, replace(LARGE, price_usd_per_hour=0.9), CLERK)
    both = ask(View(begun, job, risen))
    assert takers(both) == {"large": 3, "small": 3}
    assert takers(ask(View(both.needs, job, risen))) == {"small": 3}


def test_as_the_deadline_comes_nearer_the_fleet_grows() -> None:
    """A few machines are enough at first; with little time left, all that the job can use."""
    cheap_alone = (
        offer("lone", 1.0, 0.01),
        replace(LARGE, price_usd_per_hour=2.0),
        replace(CLERK, price_usd_per_hour=1e-3),
    )
    made = replace(wanted(deadline_s=Seconds(7200.0)), work=Work(60.0, Unit.STEP))
    quotas = (Quota("lone", "a", 1, 0),)
    calm = ask(View(first(), made, cheap_alone, quotas=quotas))
    assert takers(calm) == {"lone": 1}
    late = ask(View(calm.needs, made, cheap_alone, quotas=quotas, now=Instant(NOW + 6000.0)))
    assert takers(late)["large"] >= 1


def test_the_settings_and_the_jobs_that_can_have_it() -> None:
    """It has a limit, a margin and a time; a job with a fixed number of machines cannot have it."""
    assert mixed_fleet.check({"machines_max": 3, "margin": 0.1, "decide_every_s": 60.0}) is None
    assert "has no setting 'budget'; it has machines_max, margin" in str(mixed_fleet.check({"budget": 3}))
    assert fleet_policy_list.job_problem(wanted()) is None
    rigid = replace(wanted(), runtime=RuntimeSpec())
    assert "checkpoint needs a fixed number" in str(fleet_policy_list.job_problem(rigid))
