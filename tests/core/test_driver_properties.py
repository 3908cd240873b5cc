"""Whatever happens, in whatever order: what the driver never does."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core.fleet_story import FIRM, LARGE, LARGE_B, Fleet
from tests.support.progress import observed
from windfall import fleet
from windfall.core import driver
from windfall.core.fleet_state import CANCELLED_KEPT, GONE_KEPT, UNKNOWN_MACHINES_KEPT
from windfall.core.lifecycle import MachineState, OrderState
from windfall.core.replay import replay
from windfall.events import Fact, TimerFired
from windfall.fleet import MachineStatus
from windfall.jobs import Injection, Objective, Use
from windfall.market import Charge, Machine, MachineEndCause, MachineLifecycle, Refusal
from windfall.structs import replace
from windfall.terms import NoticeLevel, Outcome, Reliability

LEVELS = (None, NoticeLevel.HINT, NoticeLevel.ANNOUNCED, NoticeLevel.WITHDRAWN, NoticeLevel.GONE)
REFUSALS = (None, Refusal.NO_CAPACITY, Refusal.QUOTA, Refusal.PRICE, Refusal.CREDENTIALS, Refusal.CANCELLED)


class Chaos:
    """Facts drawn at random, about machines and orders that exist and some that do not."""

    def __init__(self, seed: int, nodes: int, **job: object) -> None:
        self.chance = random.Random(seed)
        self.job = Fleet(LARGE, LARGE_B, FIRM, nodes=nodes, use=Use.AUTO, **job)
        self.tokens = [order.token for order in self.job.orders]
        self.lines: dict[str, Charge] = {}

    def name(self) -> str:
        """A machine, mostly one that lives."""
        lifetime_source = list(self.job.state.units)
        if lifetime_source and self.chance.random() < 0.8:
            return self.chance.choice(lifetime_source)
        return f"x{self.chance.randrange(12)}"

    def token(self) -> str:
        return self.chance.choice(self.tokens) if self.tokens and self.chance.random() < 0.9 else "j-99"

    def machine(self) -> Machine:
        name, now = self.name(), self.job.now
        unit = self.job.state.units.get(name)
        known = unit.machine if unit is not None else None
        life = self.chance.choice(
            [MachineLifecycle.PENDING, MachineLifecycle.RUNNING, MachineLifecycle.RUNNING, MachineLifecycle.GONE]
        )
        base = known or Machine(
            name,
            "home",
            "j",
            self.token(),
            "local",
            "large",
            "zone-a",
            Reliability.TRANSIENT,
            0.36,
            MachineLifecycle.PENDING,
        )
        started = None if life is MachineLifecycle.PENDING else base.started if base.started is not None else now
        gone = life is MachineLifecycle.GONE
        cause = self.chance.choice(list(MachineEndCause)) if gone else None
        return replace(base, lifecycle=life, started=started, ended=now if gone else None, cause=cause)

    def charge(self) -> Charge:
        charge_id = f"c{self.chance.randrange(40)}"
        machine_id = self.lines[charge_id].machine_id if charge_id in self.lines else self.name()
        now = self.job.now
        line = Charge(charge_id, machine_id, self.chance.uniform(-0.1, 0.5), now, now, self.chance.random() < 0.5)
        known = self.lines.get(charge_id)
        if known is None or not known.settled or line.settled:  # what is settled is not opened again
            self.lines[charge_id] = line
        return line

    def fact(self) -> Fact:
        chance = self.chance
        kind = chance.randrange(15)
        if kind < 4:
            return fleet.MachinesObserved(tuple(self.machine() for _ in range(chance.randrange(1, 4))))
        if kind < 7:
            level = chance.choice(LEVELS)
            left = chance.choice([5.0, 100.0, 4000.0]) if level is NoticeLevel.ANNOUNCED else None
            code = chance.choice([None, None, None, 0, 1, 75])
            return self.job.report(self.name(), chance.choice(list(MachineStatus)), left, level=level, exit_code=code)
        if kind == 7:
            ids = tuple({self.name() for _ in range(chance.randrange(3))})
            return fleet.OrderAnswered(self.token(), ids, chance.choice(REFUSALS), "said")
        if kind == 8:
            return fleet.OrderUnanswered(self.token(), "lost")
        if kind == 9:
            return fleet.ListingCompleted("local", (self.token(),))
        if kind == 10:
            return fleet.MachinesMissing((self.name(),))
        if kind == 11:
            return fleet.MachineSilent(self.name(), 60.0)
        if kind == 12:
            return fleet.ChargesObserved((self.charge(),))
        return TimerFired(driver.TIMER) if kind == 13 or chance.random() < 0.5 else self.rare()

    def rare(self) -> Fact:
        chance = self.chance
        return chance.choice(
            [
                fleet.ControllerStarted(2),
                fleet.JobStopRequested(chance.random() < 0.5, "ada"),
                fleet.JobResumeRequested("ada"),
                fleet.JobResumeRequested("ada"),
                fleet.OffersObserved((LARGE, LARGE_B, FIRM)),
                observed(chance.choice([Outcome.RUNNING, Outcome.WAITING]), 1, self.name(), 5, 0),
            ]
        )

    def step(self) -> None:
        before = self.job.state
        self.job.now += self.chance.choice([0.0, 0.1, 5.0, 400.0])
        self.job.happens(*(self.fact() for _ in range(self.chance.randrange(1, 5))))
        self.tokens += [order.token for order in self.job.orders if order.token not in self.tokens]
        check(before, self.job)
        self.money()

    def money(self) -> None:
        """The ledger's totals are sums over the lines, each id once in its last version; a settled line stays settled."""
        sums = driver.summary(self.job.state, self.job.now).money
        settled = math.fsum(line.amount_usd for line in self.lines.values() if line.settled)
        assert sums.settled_usd == pytest.approx(settled, abs=1e-9)


def check(before: driver.FleetState, job: Fleet) -> None:
    """What holds after every batch."""
    state = job.state
    places: dict[str, str] = {}
    for slot in state.slots.values():
        for name in (slot.incumbent, slot.successor):
            if name is not None:
                assert name not in places, "a machine is in one slot"
                places[name] = slot.id
                assert state.units[name].slot == slot.id
        newly = slot.awaits is not None and slot.awaits != before.slots[slot.id].awaits
        if newly and slot.incumbent is not None:
            unit = state.units[slot.incumbent]
            assert unit.state is MachineState.PREEMPTING, "no purchase for a slot whose machine answers unannounced"
    assert all(unit.slot == places.get(name) for name, unit in state.units.items())
    for token, entry in state.orders.items():
        assert entry.waiting == sum(slot.awaits == token for slot in state.slots.values()), (
            "who waits for an order is counted"
        )
    placed = [order.token for order in job.orders]
    unknown = {token for token, entry in before.orders.items() if entry.state is OrderState.UNKNOWN}
    fresh = {token for token in placed if token not in before.orders}
    assert set(placed) <= fresh | unknown | set(before.orders), (
        "an old token is sent again only if its outcome is unknown"
    )
    small = len(state.slots) * 8 + GONE_KEPT
    assert len(state.gone) <= small
    assert len(state.unknown_machines) <= UNKNOWN_MACHINES_KEPT
    assert sum(
        entry.state is OrderState.CANCELLED and not entry.outcome_unknown for entry in state.orders.values()
    ) <= (CANCELLED_KEPT + len(placed) + 8)


@settings(max_examples=40)
@given(seed=st.integers(0, 2**32), nodes=st.integers(1, 4), steps=st.integers(5, 60))
def test_whatever_happens_the_rules_hold(seed: int, nodes: int, steps: int) -> None:
    """Random facts in random order: slots, orders, money and size stay right, and the journal replays alike."""
    chaos = Chaos(seed, nodes)
    for _ in range(steps):
        chaos.step()
    assert replay(chaos.job.rows) == []


@settings(max_examples=15)
@given(seed=st.integers(0, 2**32))
def test_limits_and_rehearsals_change_no_rule(seed: int) -> None:
    """The same with a budget, a duration and the injector."""
    chaos = Chaos(
        seed, 2, injection=Injection((50.0, 500.0), seed), objective=Objective(budget_usd=20.0), max_duration_s=20_000.0
    )
    for _ in range(40):
        chaos.step()


@pytest.mark.slow
def test_ten_thousand_random_batches() -> None:
    """The same for longer."""
    for seed in range(200):
        chaos = Chaos(seed, 1 + seed % 5)
        for _ in range(50):
            chaos.step()
        assert replay(chaos.job.rows) == []
