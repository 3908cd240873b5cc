"""A local market to play with: machines that run a shell, and what they left on their disk or in a file outside."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.contracts.providers import TYPE, LocalWorld, Setup
from windfall.market import BootSpec, Machine, MachineLifecycle, Order

OWNER = "me"


class Bench(LocalWorld):
    """A `LocalWorld` with the verbs of these tests."""

    def sell(self, **more: object) -> None:
        """Change the market's file."""
        self.write(self._setup, **more)

    def order(self, token: str, *argv: str, kind: str = TYPE, count: int = 1, **env: str) -> tuple[str, ...]:
        """Order machines that run something; return their names."""
        offer = next(offer for offer in self.provider.offers() if offer.machine_type == kind)
        order = Order(token, OWNER, "job", offer, count, count)
        return self.provider.order(order, BootSpec(argv, tuple(env.items()))).machine_ids

    def machine(self, machine_id: str) -> Machine:
        """What the listing says of a machine."""
        (found,) = (machine for machine in self.provider.list(OWNER) if machine.machine_id == machine_id)
        return found

    def await_life(self, machine_id: str, life: MachineLifecycle) -> Machine:
        """Wait until a machine is listed so."""
        self.wait_until(lambda: self.machine(machine_id).lifecycle is life, f"{machine_id} is {life}")
        return self.machine(machine_id)

    def await_file(self, path: Path) -> str:
        """Wait for a file with something in it."""
        self.wait_until(lambda: path.exists() and bool(path.read_text()), f"{path.name} is written")
        return path.read_text()

    def billed_usd(self) -> float:
        """The sum of the bill once every machine's line is settled."""
        started = sum(machine.started is not None for machine in self.provider.list(OWNER))

        def settled() -> list[float]:
            return [line.amount_usd for line in self.provider.charges(OWNER, "").charges if line.settled]

        self.wait_until(lambda: len(settled()) == started, "the bill is closed")
        return sum(settled())


@contextmanager
def bench(folder: Path, **setup: object) -> Iterator[Bench]:
    """A market of one's own."""
    made = Bench(Setup(**setup), folder)
    try:
        yield made
    finally:
        made.close()
