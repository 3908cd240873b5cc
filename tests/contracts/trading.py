"""What the provider suite does in a market: buy, list, wait, release, read the bill."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.contracts.providers import CONTRACT_WORLDS, ZONE, Setup, World
from windfall.market import Charge, Machine, MachineLifecycle, Offer, Order
from windfall.terms import Reliability

CENT = 0.01
JOB = "job-1"


class Markets:
    """The open markets of one implementation; the same one for the same setup."""

    def __init__(self, kind: str, new_folder: Callable[[], Path], stack: ExitStack) -> None:
        self.kind, self._new_folder, self._stack = kind, new_folder, stack
        self.worlds: dict[Setup, World] = {}

    def __call__(self, **changes: object) -> World:
        """Open a market, or return it if it is open."""
        setup = Setup(**changes)
        if setup not in self.worlds:
            self.worlds[setup] = self._stack.enter_context(CONTRACT_WORLDS[self.kind](setup, self._new_folder()))
        return self.worlds[setup]


def offer_of(world: World, zone: str = ZONE, reliability: Reliability = Reliability.TRANSIENT) -> Offer:
    """What a market sells in a zone."""
    (found,) = (offer for offer in world.provider.offers() if (offer.zone, offer.reliability) == (zone, reliability))
    return found


def an_order(
    world: World, owner: str, number: int = 1, *, least: int = 1, most: int = 1, bid: float | None = None
) -> Order:
    """The n-th order of an owner."""
    return Order(f"{owner}-{number}", owner, JOB, offer_of(world), least, most, bid)


def listed(world: World, owner: str) -> dict[str, Machine]:
    """An owner's machines by their ids."""
    return {machine.machine_id: machine for machine in world.provider.list(owner)}


def lives(world: World, owner: str) -> list[MachineLifecycle]:
    """The lifecycle states of an owner's machines."""
    return sorted(machine.lifecycle for machine in world.provider.list(owner))


def buy(world: World, owner: str, count: int = 1) -> tuple[str, ...]:
    """Buy machines and wait until they run."""
    answer = world.provider.order(an_order(world, owner, least=count, most=count), world.boot())
    world.wait_until(lambda: lives(world, owner) == [MachineLifecycle.RUNNING] * count, "all machines run")
    for machine_id in answer.machine_ids:
        world.wait_until(lambda machine_id=machine_id: world.lives(machine_id), "its process runs")
    return answer.machine_ids


def await_end(world: World, owner: str) -> dict[str, Machine]:
    """Wait until none of an owner's machines is left; return what the listing says of them."""
    world.wait_until(lambda: set(lives(world, owner)) <= {MachineLifecycle.GONE}, "all machines are gone")
    return listed(world, owner)


def settled_lines(world: World, owner: str, count: int) -> dict[str, Charge]:
    """Wait until this number of lines is settled; return an owner's whole bill, each line in its newest version."""

    def bill() -> dict[str, Charge]:
        return {charge.charge_id: charge for charge in world.provider.charges(owner, "").charges}

    world.wait_until(lambda: sum(charge.settled for charge in bill().values()) == count, f"{count} settled lines")
    return bill()


def release_all(world: World, owner: str) -> None:
    """Release everything and wait."""
    for machine_id in listed(world, owner):
        world.provider.release(machine_id)
    await_end(world, owner)


def billed_usd(world: World, owner: str) -> float:
    """The sum of an owner's bill, each line once."""
    newest = {charge.charge_id: charge for charge in world.provider.charges(owner, "").charges}
    return sum(charge.amount_usd for charge in newest.values())


def assert_billed_to_the_cent(world: World, owner: str) -> None:
    """The bill is what the meter's records say, and what price and times of the listing say."""
    machines = listed(world, owner).values()
    by_listing = sum(
        (machine.ended - machine.started) * machine.price_usd_per_hour / 3600.0
        for machine in machines
        if machine.started is not None and machine.ended is not None
    )
    assert billed_usd(world, owner) == pytest.approx(world.metered_usd(owner), abs=CENT)
    assert billed_usd(world, owner) == pytest.approx(by_listing, abs=CENT)


def lived(machine: Machine) -> tuple[float | None, float | None]:
    """When a machine started and ended."""
    return machine.started, machine.ended
