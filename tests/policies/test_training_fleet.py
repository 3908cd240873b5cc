"""`fleet: spotdnn`: what it buys at the start, and what it adds where machines are lost or the training falls behind."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from tests.support import tickets
from windfall.fleet import Slot
from windfall.jobs import Job, Objective, Use
from windfall.market import Offer, OfferKey, Quota
from windfall.policies.acquisition import fleet_policy, fleet_policy_list, training_fleet
from windfall.policies.acquisition.fleet_policy import FleetEstimates, FleetMachine, FleetTarget
from windfall.policies.replacement.successor import ReplacementTime
from windfall.structs import replace
from windfall.terms import Instant, JobProgress, Outcome, Reliability, Seconds, Unit, WallTime, WorkDone

NOW = Instant(90_000.0)
ESTIMATES = FleetEstimates((), (), ReplacementTime(Seconds(20.0), Seconds(10.0)))
GIVEN = tickets.QueueSettings(
    numbers=100_000, takers_max=8, loss_scale=100.0, loss_goal=0.5, work_s={"small": 2.0, "large": 1.0, "huge": 0.25}
)


@pytest.fixture(autouse=True)
def _installed() -> Iterator[None]:
    """The toy runtime, which knows how its training goes on each machine type."""
    with tickets.installed():
        yield


def offer(kind: str, usd: float, reliability: Reliability = Reliability.TRANSIENT, zone: str = "a") -> Offer:
    """Return an offer."""
    return Offer("sim", kind, zone, usd, 3.0 * usd, reliability, Seconds(0.0), WallTime(NOW), cpus=1.0)


SMALL, LARGE = offer("small", 0.10), offer("large", 0.30)
CLERK = offer("small", 0.30, Reliability.RELIABLE)
OFFERS = (SMALL, LARGE, CLERK)


def wanted(deadline_s: float = 140.0, loss: float = 0.5, **settings: object) -> Job:
    """Return a job whose training is to reach a loss by a deadline."""
    made = tickets.job("job", GIVEN)
    goal = Objective(deadline_s=Seconds(deadline_s), loss=loss)
    settings = {"takeover_s": 30.0, **settings}
    return replace(made, fleet="spotdnn", fleet_settings=settings, objective=goal, use=Use.SPOT)


@dataclass
class View:
    """`FleetView` of the machines that fill the slots of a target."""

    needs: tuple[Slot, ...] = ()
    job: Job = field(default_factory=wanted)
    offers: tuple[Offer, ...] = OFFERS
    lost: frozenset[str] = frozenset()
    ending: frozenset[str] = frozenset()
    leaving: int = 0
    full: frozenset[OfferKey] = frozenset()
    quotas: tuple[Quota, ...] = ()
    awaited: frozenset[str] = frozenset()
    progress: JobProgress | None = None
    now: Instant = NOW
    submitted: Instant = NOW
    memory: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.needs = self.needs or tickets.RULES.slots(self.job)

    def machines(self) -> tuple[FleetMachine, ...]:
        filled = [slot for slot in self.needs if slot.wants and slot.id not in self.lost | self.awaited]
        ends = {name: Instant(self.now + 60.0) for name in self.ending}
        return tuple(
            FleetMachine(slot.id, slot.id, slot.wants[0], 0.1, self.now, ends.get(slot.id), True) for slot in filled
        )

    def allocations(self) -> tuple[()]:
        return ()

    def refused(self) -> frozenset[OfferKey]:
        return self.full

    def spent_usd(self) -> float:
        return 0.0


def replace_view(view: View, **changes: object) -> View:
    """Return a view with changes."""
    return dataclasses.replace(view, **changes)  # type: ignore[arg-type]


def ask(view: View) -> FleetTarget:
    """Return the policy's answer, which the driver can carry out."""
    found = training_fleet.workers_of(view, ESTIMATES)
    slots = {slot.id: slot for slot in view.needs}
    assert fleet_policy.flaw(found, slots, (), tickets.RULES.roles, tickets.RULES.reliable_roles) is None
    return found


def takers(target: FleetTarget) -> Counter[str]:
    """Return how many takers there are of each type."""
    return Counter(slot.wants[0][1] for slot in target.needs if slot.role == tickets.TAKER and slot.wants)


def at(loss: float) -> JobProgress:
    """Return the progress of a training that has reached a loss."""
    done = WorkDone(0.0, Unit.ITEM)
    return JobProgress(done, done, 0, Outcome.RUNNING, (), loss)


def time_s(counts: dict[str, int], loss_now: float = 2.1) -> float:
    """Return how long workers take from a loss to 0.5: by hand, as iterations x time."""
    workers = sum(counts.values())
    iterations = GIVEN.loss_scale * workers**0.5 * (1.0 / (0.5 - 0.1) - 1.0 / (loss_now - 0.1))
    return iterations / sum(count / GIVEN.work_s[kind] for kind, count in counts.items())


def test_it_begins_with_the_cheapest_workers_in_time_and_says_why() -> None:
    """Four small ones take 200 s, so three large ones are bought: 115 s, with 10 s until they train and a margin."""
    target = ask(View(job=wanted(deadline_s=140.0, takeover_s=10.0)))

    assert takers(target) == {"large": 3}
    assert time_s({"large": 3}) + 10.0 <= 140.0 / 1.05 < time_s({"large": 2}) + 10.0
    assert tickets.CLERK_SLOT in target.needs
    assert target.decision is not None
    assert target.decision.choice == "3 large in a"
    assert {one.name for one in target.decision.rationale} >= {"loss to reach", "predicted time", "predicted cost"}
    assert target.wake_at == NOW + training_fleet.DECIDE_EVERY_S


def test_a_fleet_that_is_in_time_stays() -> None:
    """Whatever the loss is, as long as the prediction from there is in time."""
    begun = ask(View()).needs

    assert ask(View(begun)).needs is begun
    assert ask(View(begun, now=Instant(NOW + 60.0), progress=at(0.7))).needs is begun


def test_a_fleet_that_falls_behind_gets_more_workers() -> None:
    """Four large ones need 100 s from the start; at a loss of 1.5 after 60 s they would be 9 s late."""
    begun = ask(View()).needs
    assert takers(ask(View(begun))) == {"large": 4}
    assert 60.0 + time_s({"large": 4}, 1.5) > 140.0

    more = ask(View(begun, now=Instant(NOW + 60.0), progress=at(1.5)))

    assert takers(more)["large"] > 4
    assert set(begun) <= set(more.needs)


def test_the_workers_that_are_left_are_joined_at_once_by_those_that_are_missing() -> None:
    """Two of three are lost with 80 s left, so that two and a small one join the one that goes on."""
    view = View(job=wanted(deadline_s=140.0, takeover_s=10.0))
    begun = ask(view).needs
    lost = [slot.id for slot in begun if slot.wants][:2]

    for gone in ({"lost": frozenset(lost)}, {"ending": frozenset(lost)}):
        taken = ask(replace_view(view, needs=begun, now=Instant(NOW + 60.0), progress=at(0.9), **gone))
        # One large worker goes on for 10 s, at a number a second.
        loss_then = 0.1 + 1.0 / (1.0 / (0.9 - 0.1) + 10.0 / GIVEN.loss_scale)
        assert time_s({"large": 3, "small": 1}, loss_then) <= 80.0 / 1.05 - 10.0 < time_s({"large": 3}, loss_then)
        assert takers(taken) == {"large": 3, "small": 1}
        assert taken.decision is not None
        assert taken.decision.alternatives == ("1 large in a",)


def test_the_workers_that_are_left_train_while_the_others_join() -> None:
    """With a long take-over fewer are needed than if nothing were trained meanwhile."""
    view = View(job=wanted(deadline_s=200.0, takeover_s=60.0))
    begun = ask(view).needs
    lost = frozenset([slot.id for slot in begun if slot.wants][:1])

    taken = ask(replace_view(view, needs=begun, now=Instant(NOW + 60.0), progress=at(1.0), lost=lost))

    stopped_s = 140.0 / 1.05 - 60.0
    assert takers(taken) == {"large": 2}
    assert time_s({"large": 2}, 1.0) <= stopped_s + 60.0


def test_workers_that_do_not_train_yet_gain_nothing_meanwhile() -> None:
    """Two of the first fleet are on their way and the others were refused: as many are still missing."""
    begun = ask(View()).needs
    large = [slot.id for slot in begun if slot.wants]
    zone_b = offer("large", 0.31, zone="b")

    coming = frozenset(large[:2])
    target = ask(
        View(begun, offers=(zone_b, *OFFERS), awaited=coming, lost=frozenset(large[2:]), full=frozenset({LARGE.key}))
    )

    assert takers(target) == {"large": 4}


def test_workers_that_are_ordered_are_not_ordered_again() -> None:
    """The slots of the first answer are those of the next, with an order and without one."""
    begun = ask(View()).needs
    named = frozenset(slot.id for slot in begun if slot.wants)

    assert ask(View(begun, awaited=named)).needs is begun
    assert ask(View(begun, lost=named, now=Instant(NOW + 0.5))).needs is begun


def test_an_offer_that_is_refused_gives_way_to_another() -> None:
    """What stands of it stays; its slots without a machine are dropped."""
    begun = ask(View()).needs
    large = [slot.id for slot in begun if slot.wants]

    target = ask(View(begun, lost=frozenset(large[2:]), full=frozenset({LARGE.key})))

    assert takers(target)["large"] == 2
    assert takers(target)["small"] >= 2
    assert {large[0], large[1]} <= {slot.id for slot in target.needs}


def test_quotas_zones_and_the_job_s_limit_bound_the_workers() -> None:
    """The cheaper zone first, as far as its quota goes; never more than the runtime or the job allows."""
    zone_b = offer("large", 0.31, zone="b")
    target = ask(View(offers=(zone_b, *OFFERS), quotas=(Quota("large", "a", 1, 0),)))
    assert Counter(slot.wants[0][2] for slot in target.needs if slot.wants) == {"a": 1, "b": 3}

    hurried = wanted(deadline_s=60.0)
    assert sum(takers(ask(View(job=hurried))).values()) == 8
    assert sum(takers(ask(View(job=wanted(deadline_s=60.0, machines_max=5)))).values()) == 5


def test_machine_types_that_the_runtime_does_not_know_are_not_bought() -> None:
    """However cheap they are."""
    assert "rival" not in takers(ask(View(offers=(offer("rival", 0.001), *OFFERS))))


def test_where_nothing_is_in_time_the_fastest_workers_are_bought() -> None:
    """All eight that it may have, of the faster type; what comes too late to join is not bought."""
    assert takers(ask(View(job=wanted(deadline_s=70.0)))) == {"large": 8}

    begun = ask(View()).needs
    assert ask(View(begun, now=Instant(NOW + 110.0), progress=at(1.5))).needs is begun
    assert ask(View(begun, now=Instant(NOW + 500.0), progress=at(1.5))).needs is begun


def test_after_the_deadline_a_training_without_workers_goes_on_at_the_least_cost() -> None:
    """One large worker costs least for what is left."""
    begun = ask(View()).needs
    gone = frozenset(slot.id for slot in begun if slot.wants)

    target = ask(View(begun, lost=gone, now=Instant(NOW + 500.0), progress=at(1.5)))

    assert takers(target) == {"large": 1}


def test_nothing_is_bought_for_a_loss_that_is_reached() -> None:
    """The end of the job is the runtime's to say."""
    begun = ask(View()).needs
    gone = frozenset(slot.id for slot in begun if slot.wants)

    assert ask(View(begun, lost=gone, progress=at(0.5))).needs is begun


def test_a_provider_that_is_silent_changes_nothing() -> None:
    """Neither for workers nor for the machine that keeps the state."""
    begun = ask(View()).needs
    lost = frozenset([begun[-1].id])

    assert ask(View(begun, offers=(), lost=lost)).needs is begun
    assert ask(View(begun, offers=(LARGE, SMALL), lost=lost)).needs is begun


def test_the_exact_search_costs_no_more_than_the_window() -> None:
    """For a market of three types that the window sees only runs of."""
    market = (offer("huge", 1.9), *OFFERS)
    quotas = (Quota("large", "a", 2, 0), Quota("huge", "a", 1, 0))
    cost = {}
    for exact in (False, True):
        target = ask(View(job=wanted(deadline_s=80.0, exact=exact), offers=market, quotas=quotas))
        assert target.decision is not None
        cost[exact] = next(one.value for one in target.decision.rationale if one.name == "predicted cost")
    assert cost[True] <= cost[False]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"objective": Objective(loss=0.5)}, "needs a training loss and a deadline to meet"),
        ({"objective": Objective(deadline_s=Seconds(60.0))}, "needs a training loss and a deadline to meet"),
        ({"runtime": replace(wanted().runtime, name="checkpoint", settings={})}, "checkpoint does not"),
        ({"fleet_settings": {"takeover_s": 0}}, "takeover_s must be a number above zero"),
        ({"fleet_settings": {"exact": 1}}, "exact must be true or false"),
        ({"fleet_settings": {"bid": 1.0}}, "has no setting 'bid'"),
    ],
)
def test_a_job_that_cannot_have_it_is_refused_in_a_sentence(changes: dict[str, object], message: str) -> None:
    """With what to write instead."""
    found = fleet_policy_list.job_problem(replace(wanted(), **changes))  # type: ignore[arg-type]
    assert found is not None
    assert message in found
    assert fleet_policy_list.job_problem(wanted()) is None
