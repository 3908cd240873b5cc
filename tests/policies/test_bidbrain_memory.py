"""BidBrain remembers between two decisions what has not changed: what it decides is what a new one would."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pytest

from windfall.fleet import Slot
from windfall.jobs import Job, Resources, Use
from windfall.market import BillingBasis, BillingRule, Offer, OfferKey, Quota
from windfall.models import lifetime_pool
from windfall.models.price_evictions import EvictionTable
from windfall.policies.acquisition import bidbrain_policy, bidbrain_scores
from windfall.policies.acquisition.bidbrain import Application
from windfall.policies.acquisition.bidbrain_policy import BidBrain
from windfall.policies.acquisition.fleet_policy import FleetAllocation, FleetEstimates, FleetMachine
from windfall.policies.replacement import successor
from windfall.structs import replace
from windfall.terms import Instant, JobProgress, Reliability, Seconds, WallTime

JOB = Job("job", "j", "u", "memory:///r", ("true",), (Resources(),), use=Use.AUTO)
BEGIN = 1_000_000.0
SUBMITTED = Instant(BEGIN)
KINDS = ("small", "large", "keeper")
DELTAS = np.array([0.0, 0.01, 0.1])


@dataclass
class View:
    """What a policy sees, written down."""

    now: Instant
    offers: tuple[Offer, ...]
    held: tuple[FleetAllocation, ...]
    needs: tuple[Slot, ...]
    blocked: frozenset[OfferKey] = frozenset()
    awaited: frozenset[str] = frozenset()
    leaving: int = 0
    submitted: Instant = SUBMITTED
    quotas: tuple[Quota, ...] = ()
    job: Job = JOB
    progress: JobProgress | None = None
    memory: Mapping[str, float] = field(default_factory=dict)

    def machines(self) -> tuple[FleetMachine, ...]:
        return ()

    def allocations(self) -> tuple[FleetAllocation, ...]:
        return self.held

    def refused(self) -> frozenset[OfferKey]:
        return self.blocked

    def spent_usd(self) -> float:
        return 0.0


def offer(kind: str, price: float, basis: BillingBasis) -> Offer:
    reliable = Reliability.RELIABLE if kind == "keeper" else Reliability.TRANSIENT
    return Offer(
        "sim", kind, "a", price, 1.0, reliable, Seconds(0.0), WallTime(BEGIN), cpus=4.0 if kind == "small" else 16.0,
        bid=kind != "keeper", refund=kind != "keeper", billing=BillingRule(basis),
    )  # fmt: skip


def table(rng: random.Random, offers: tuple[Offer, ...]) -> EvictionTable:
    keys = [one.key for one in offers if one.bid]
    shape = (len(keys), len(DELTAS), 61)
    evicted = np.broadcast_to(np.linspace(0.0, rng.uniform(0.1, 0.9), 61), shape).copy()
    return EvictionTable({key: row for row, key in enumerate(keys)}, DELTAS, evicted, np.full(shape, 1500.0))


def views(rng: random.Random, count: int) -> list[tuple[View, FleetEstimates]]:
    """Some looks one after the other: at each, one thing or none has changed since the last."""
    basis = rng.choice([BillingBasis.STARTED_HOUR, BillingBasis.IN_EFFECT, BillingBasis.PURCHASE])
    offers = tuple(offer(kind, rng.uniform(0.1, 0.9), basis) for kind in KINDS)
    held, needs = fleet(rng, offers)
    odds: EvictionTable | None = table(rng, offers)
    rates: tuple[lifetime_pool.Rate, ...] = ()
    now, found = BEGIN + 4000.0, []
    for _ in range(count):
        found.append(
            (
                View(Instant(now), offers, held, needs),
                FleetEstimates(rates, (), successor.expect(None, None, None), odds),
            )
        )
        now += rng.choice([0.0, 120.0, 1300.0])
        match rng.randrange(8):
            case 0:
                offers = tuple(replace(one, price_usd_per_hour=rng.uniform(0.1, 1.2)) for one in offers)
            case 1:  # one is no longer offered, or is again
                offers = offers[1:] if len(offers) == len(KINDS) else (offer(KINDS[0], 0.3, basis), *offers)
            case 2 | 3:
                held, needs = fleet(rng, offers)
            case 4:  # one is lost
                held = held[1:]
            case 5:
                odds = rng.choice([None, table(rng, offers)])
            case 6:
                rates = tuple((*one.key[:3], rng.uniform(1e3, 1e5), 9.0) for one in offers)
    return found


def fleet(rng: random.Random, offers: tuple[Offer, ...]) -> tuple[tuple[FleetAllocation, ...], tuple[Slot, ...]]:
    held, needs = [], []
    for number in range(rng.randrange(6)):
        one, count = rng.choice(offers), rng.randint(1, 4)
        name = f"{one.machine_type}-{rng.random()}"
        slots = tuple(
            Slot(f"{name}-{place}", "worker", one.reliability, (one.key,), bid_usd_per_hour=0.8)
            for place in range(count)
        )
        started = rng.choice([None, Instant(BEGIN + rng.uniform(0.0, 3900.0))])
        price, bid = rng.uniform(0.1, 0.9), rng.choice([None, 0.8])
        held.append(FleetAllocation(str(number), one.key, bid, price, started, tuple(slot.id for slot in slots)))
        needs += slots
    return tuple(held), tuple(needs)


@pytest.mark.parametrize("whole_hour", [False, True])
@pytest.mark.parametrize("seed", range(12))
def test_what_it_remembers_changes_no_decision(seed: int, *, whole_hour: bool) -> None:
    """Offers that move or vanish, allocations that come and go, other odds: each look is decided as if it were the first."""
    app = Application(eviction_s=60.0, change_s=30.0, loss_per_core=0.002)
    settings = BidBrain(app, "worker", cores=16.0, cores_max=160.0, purchases_max=2, whole_hour=whole_hour)
    remembers, decided = bidbrain_policy.policy(settings), 0
    for view, estimates in views(random.Random(seed), 60):
        target = remembers(view, estimates)

        assert target == bidbrain_policy.policy(settings)(view, estimates)
        decided += target.decision is not None
    assert decided > 5


def test_the_odds_are_asked_for_only_when_a_decision_needs_them() -> None:
    """A full fleet with no hour about to end has nothing to weigh; asking may cost more than deciding."""
    asked = []

    class Forecast:
        def at(self, now: Instant) -> EvictionTable:
            asked.append(now)
            return table(random.Random(1), offers)

    offers = (offer("large", 0.3, BillingBasis.STARTED_HOUR),)
    slots = tuple(Slot(f"w-{place}", "worker", Reliability.TRANSIENT, (offers[0].key,)) for place in range(4))
    started = Instant(BEGIN)
    held = (FleetAllocation("1", offers[0].key, None, 0.3, started, tuple(slot.id for slot in slots)),)
    estimates = FleetEstimates((), (), successor.expect(None, None, None), Forecast())
    app = Application(eviction_s=60.0, change_s=30.0, loss_per_core=0.002)
    decide = bidbrain_policy.policy(BidBrain(app, "worker", cores=16.0, cores_max=64.0))

    decide(View(Instant(BEGIN + 1000.0), offers, held, slots), estimates)
    assert asked == []
    decide(View(Instant(BEGIN + 3500.0), offers, held, slots), estimates)
    assert asked == [BEGIN + 3500.0]


def test_a_limit_on_a_pool_compiles_nothing_again() -> None:
    """Rooms without an end and rooms of a few machines are the same to the compiled search."""
    bounded = replace(JOB, limits=replace(JOB.limits, pool_machines_max=2))
    offers = (offer("large", 0.3, BillingBasis.STARTED_HOUR),)
    estimates = FleetEstimates((), (), successor.expect(None, None, None), table(random.Random(1), offers))
    app = Application(eviction_s=60.0, change_s=30.0, loss_per_core=0.002)
    bought, compiled = [], []
    for job in (JOB, bounded):
        decide = bidbrain_policy.policy(BidBrain(app, "worker", cores=64.0, cores_max=64.0))
        bought.append(len(decide(View(Instant(BEGIN), offers, (), (), job=job), estimates).needs))
        compiled.append(len(bidbrain_scores._purchases.signatures))

    assert bought == [4, 2]
    assert compiled[0] == compiled[1]
