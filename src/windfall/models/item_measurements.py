"""What a bag showed of the machine types on which its items ran, for the plans of similar bags."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from windfall.bags import ItemEnd, ItemOutcome, ItemRecord
from windfall.events import Row
from windfall.jobs import Measurement
from windfall.models import job_measurements
from windfall.terms import Seconds, Unit


@dataclass(slots=True)
class _MachineItems:
    """The items that were done on one machine."""

    times_s: list[float] = field(default_factory=list)
    first: float = math.inf
    last: float = -math.inf

    def add(self, outcome: ItemOutcome) -> None:
        self.times_s.append(outcome.run_s)
        self.first = min(self.first, outcome.started_at)
        self.last = max(self.last, outcome.started_at + outcome.run_s)


def measure_items(job_rows: Iterable[Row], records: Iterable[ItemRecord]) -> tuple[Measurement, ...]:
    """Return one row for each kind of machine on which items were done.

    Args:
        job_rows: the job's journal, from the controller.
        records: of the bag's log.
    """
    start = job_measurements.starts_of(job_rows)
    done = _done(records)
    found = []
    for (provider, machine_type), kind in sorted(start.kinds.items()):
        mine = [
            (machine, items)
            for machine_id, items in done.items()
            if (machine := start.machines.get(machine_id)) is not None
            and (machine.provider, machine.machine_type) == (provider, machine_type)
        ]
        own = [items for _, items in mine]
        times_s = [time_s for items in own for time_s in items.times_s]
        busy_s = math.fsum(items.last - items.first for items in own)
        if times_s and busy_s > 0.0:
            boot_s = _mean(kind.boot_s)
            # Setup and code come after the boot; the clocks of machine and provider may differ by more than they take.
            first_s = [items.first - machine.started for machine, items in mine if machine.started is not None]
            found.append(
                Measurement(
                    provider=provider,
                    machine_type=machine_type,
                    unit=Unit.ITEM,
                    work_per_s=len(times_s) / busy_s,
                    prepare_s=Seconds(max(boot_s, _mean(first_s))),
                    allocate_s=Seconds(_mean(kind.allocate_s)),
                    runs=1,
                    boot_s=Seconds(boot_s) if kind.boot_s else None,
                    item_s=Seconds(_mean(times_s)),
                )
            )
    return tuple(found)


def _done(records: Iterable[ItemRecord]) -> dict[str, _MachineItems]:
    machine_of: dict[str, str] = {}
    found: dict[str, _MachineItems] = {}
    for record in records:
        machine_of |= dict(record.joined)
        for runner, outcome in record.outcomes:
            if outcome.end is ItemEnd.DONE and outcome.cpus is None:
                found.setdefault(machine_of.get(runner, ""), _MachineItems()).add(outcome)
    return found


def _mean(values: list[float]) -> float:
    return math.fsum(values) / len(values) if values else 0.0
