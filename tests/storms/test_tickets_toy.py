"""Tickets on a provider that is nothing like the simulated market: the same driver, runtime and checks."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from unittest.mock import patch

import pytest

from tests.storms.fleet_scene import JOB
from tests.storms.tickets import Tickets
from tests.support import tickets
from tests.support.toy_provider import ToyProvider, ToyRules
from windfall.fleet import DrainMachine
from windfall.market import Answer, BootSpec, Order
from windfall.policies.acquisition import fleet_policy_list
from windfall.terms import WallTime

ROUGH = ToyRules(machine_type="m4", life_s=150.0, rises=0.4, fails=0.1, never=0.1, promise_s=40.0)
"""Machines live for minutes, rise again, fail before they start, or never start; prices float; tokens are forgotten."""


@dataclass
class ToyStall(ToyProvider):
    """The toy, with a witness at its counter, and what the checks of the storm ask of a market."""

    witness: Callable[[Order, Answer], None] | None = None
    limits: SimpleNamespace = field(default_factory=lambda: SimpleNamespace(denied=False, capacity={}))

    def order(self, order: Order, boot: BootSpec) -> Answer:
        answer = super().order(order, boot)
        if self.witness is not None:
            self.witness(order, answer)
        return answer

    @property
    def meter(self) -> SimpleNamespace:
        def total_usd(owner: str, at: WallTime) -> float:
            del at
            return self.metered_usd(owner)

        return SimpleNamespace(running=[one for one in self._stretches.values() if one.alive], total_usd=total_usd)


class TicketsOnToy(Tickets):
    """The storm's world without its faults: whatever goes wrong is the toy's own."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.fleet = dataclasses.replace(self.fleet, quiet=True)
        toy = ToyStall(self, ROUGH, seed, "sim", self)
        toy.witness = self._sold
        self.provider = toy  # type: ignore[assignment]

    def _sold(self, order: Order, answer: Answer) -> None:
        # A machine that rises again was not bought: the driver cannot have known of it.
        bought = [one for one in self.provider.alive(JOB) if "." not in one.machine_id]
        before = [one for one in bought if one.machine_id not in answer.machine_ids]
        for machine in self.provider.alive(JOB):
            self.machines.setdefault(machine.machine_id, machine)
        self.checks.bought(order, tuple(before), answer)


@pytest.mark.parametrize("seed", range(8))
def test_tickets_end_on_the_toy_with_every_number_once_and_the_meters_money(seed: int) -> None:
    """Machines fail, never start, are taken, rise again; takers rise and fall; done, to the cent, by the storm's checks."""
    with tickets.installed():
        world = TicketsOnToy(seed)
        with patch.object(fleet_policy_list, "policy", lambda _: world.policy):
            world.storm()

    assert sorted(world.counter.done) == list(range(world.fleet.given.numbers))
    assert world.tally["ended done"] == 1
    assert sum(DrainMachine.__name__ in row for row in world.rows) > 0
