"""A parameter server in tiers whose messages all arrive at once: machines, one coordinator, no faults but those of the test."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

from windfall.core.tier_coordinator import TierCoordinator
from windfall.core.tier_decisions import first_layout
from windfall.policies.layout.tiers import StageRatios, TierPlacement, place_tiers
from windfall.runtimes.parameter_partition import RowValues
from windfall.runtimes.tier_member import TierMember
from windfall.runtimes.tier_server import ServerSettings
from windfall.tier_layout import ServerLayout, StoredClock, TierMachine

ROWS = 3


class InStep:
    """Machines by name: `r...` are reliable, `t...` are not; every data partition adds one to every row in every clock.

    Attributes:
        layouts: all so far.
        loads: checkpoints that were read from the store.
        slow: data partitions that never compute.
        silent: data partitions whose program says no loss; that of the others is 1 / clock.
    """

    def __init__(
        self, names: Collection[str], *, parts: int = 2, data: int = 4, staleness: int | None = 0, clocks: int = 1000,
        save_every: int = 1000, ratios: StageRatios | None = None, loss: float | None = None,
    ) -> None:  # fmt: skip
        self.ratios = ratios or StageRatios()
        self.settings = ServerSettings(staleness, 1, clocks)
        self.machines = {name: _machine(name, order) for order, name in enumerate(names)}
        nowhere = TierPlacement(("",) * parts, ("",) * parts, ("",) * data)
        first = first_layout(place_tiers(list(self.machines.values()), nowhere, self.ratios))
        self.layouts: list[ServerLayout] = [first]
        self.members = {name: TierMember(one, first, self.settings) for name, one in self.machines.items()}
        self.coordinator = TierCoordinator(first, self.ratios, save_every, clocks, loss)
        self.store: dict[tuple[int, StoredClock], np.ndarray] = {
            (part, StoredClock()): np.zeros((ROWS, 1)) for part in range(parts)
        }
        self.loads: list[StoredClock] = []
        self.slow: set[int] = set()
        self.silent: set[int] = set()

    @property
    def layout(self) -> ServerLayout:
        """The newest."""
        return self.layouts[-1]

    def add(self, *names: str) -> None:
        """Machines join."""
        for name in names:
            self.machines[name] = _machine(name, len(self.machines))
            self.members[name] = TierMember(self.machines[name], self.layout, self.settings)

    def lose(self, *names: str) -> None:
        """Machines vanish."""
        for name in names:
            del self.machines[name], self.members[name]

    def turn(self, rounds: int = 1) -> None:
        """Let every machine compute, ask and report once, and the coordinator decide."""
        for _ in range(rounds):
            for member in self.members.values():
                self._use_store(member)
                self._compute(member)
                for target, question in member.questions():
                    if target in self.members:
                        member.take(question, self.members[target].server.answer(question, member.about.name))
            for member in self.members.values():
                self.coordinator.take(member.report())
            layout = self.coordinator.next(list(self.machines.values()))
            if layout is not None:
                self.layouts.append(layout)
                self.coordinator.written(layout)
            for member in self.members.values():
                member.hear(self.layout, self.coordinator.committed())

    def clocks(self) -> Mapping[int, int]:
        """Return the clock in which each data partition is that is being computed."""
        return {
            data: turn.push.clock for member in self.members.values() for data, turn in member.worker._turns.items()
        }

    def values(self) -> set[float]:
        """Return all values of all parts, as their backups have them."""
        return {
            float(value)
            for part, place in enumerate(self.layout.parts)
            for value in self.members[place.backup].server._backups[part].copy().ravel()
        }

    def _use_store(self, member: TierMember) -> None:
        for data in member.worker.to_load():
            member.worker.loaded(data)
        for part, stored in member.server.to_load().items():
            self.loads.append(stored)
            member.server.loaded(part, stored, self.store[part, stored])
        for part, (stored, values) in member.server.to_save().items():
            self.store[part, stored] = values
            member.server.saved(part, stored)

    def _compute(self, member: TierMember) -> None:
        rows = np.arange(ROWS)
        for push in member.worker.turns():
            seen = None if push.data in self.slow else member.worker.read(push, [rows] * len(self.layout.parts))
            if seen is not None:
                loss = None if push.data in self.silent else 1.0 / push.clock
                member.worker.computed(push, [RowValues(rows, np.ones((ROWS, 1))) for _ in seen], loss)


def _machine(name: str, order: int) -> TierMachine:
    return TierMachine(name, name.startswith("r"), float(order))
