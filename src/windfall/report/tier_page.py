"""What `windfall ps JOB` shows of a parameter server in tiers: as lines and a table for a terminal, and as data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from windfall import codec
from windfall.structs import Struct
from windfall.tier_layout import TierFailure, TierProduct
from windfall.tier_status import TierMachineStatus, TierPoint, TierStatus
from windfall.units import count_text, size_text

STAGES = {
    1: "reliable machines serve",
    2: "transient machines serve, reliable ones back up and compute",
    3: "transient machines serve, reliable ones only back up",
}
"""What machines do in each stage."""
COLUMNS = ("machine", "serves", "backs up", "data", "turns", "redone", "staleness", "pulled", "pushed")


class TierRecord(Struct, frozen=True):
    """What the run's store says of a parameter server.

    Attributes:
        status: the newest; None before training has begun.
        product: what training was for; None until it is there.
        history: training at its checkpoints, oldest first.
        failures: the newest failure of the program, and which one it is; None and 0 without one.
    """

    status: TierStatus | None
    product: TierProduct | None = None
    failure: TierFailure | None = None
    failures: int = 0
    history: tuple[TierPoint, ...] = ()


def lines(record: TierRecord) -> list[tuple[str, str]]:
    """Return labels and texts."""
    status, product = record.status, record.product
    found = [] if status is None else _of_status(record, status)
    if record.failure is not None:
        found.append(
            ("failure", f"{record.failure.message} ({record.failure.machine}; the newest of {record.failures})")
        )
    if product is not None:
        files = ", ".join(f"{name} ({size_text(size)})" for name, size in product.files.items())
        found.append(("product", files))
    return found


def _of_status(record: TierRecord, status: TierStatus) -> list[tuple[str, str]]:
    stage = "no reliable machine is there: all wait for one" if status.stage is None else STAGES[status.stage]
    moves = f"layout {status.layout}, {count_text(status.coordinator, 'coordinator', 'coordinators')} so far"
    rate = "" if status.over else f", {status.clocks_per_s:.3g} a second"
    found = [
        ("stage", f"{'-' if status.stage is None else status.stage}: {stage} ({moves})"),
        ("clock", f"{status.clock:,} of {status.clocks:,}{rate}"),
        ("redone", _redone(status)),
    ]
    if status.loss is not None:
        found.append(("turns", f"a mean loss of {status.loss:.6g} in the newest one of each data partition"))
    losses = [point for point in record.history if point.loss is not None]
    if losses:
        found.append(("loss", f"{losses[-1].loss:.6g} at clock {losses[-1].clock:,}"))
    if status.goal is not None:
        found.append(("goal", _goal(status)))
    return found


def _redone(status: TierStatus) -> str:
    backs = count_text(status.rollbacks, "roll-back", "roll-backs")
    restores = count_text(status.restores, "return to a checkpoint", "returns to a checkpoint")
    gone = f"{count_text(status.lost, 'machine', 'machines')} lost without notice, {status.left} left with notice"
    return f"{count_text(status.clocks_redone, 'clock', 'clocks')}, by {backs} and {restores}; {gone}"


def _goal(status: TierStatus) -> str:
    """Return what training is for, and which of its two ends it has come to."""
    goal = f"a training loss of {status.goal:.6g}"
    if status.reached is not None:
        at = f"{status.reached.loss:.6g} at clock {status.reached.clock:,}"
        return f"{goal} is reached: {at}, where training {'ended' if status.over else 'ends'}"
    if not status.over:
        return f"{goal}, or clock {status.clocks:,}"
    if status.clock < status.clocks:
        return f"{goal} is not reached: training was asked to stop"
    loss = "it is not known" if status.loss is None else f"it is {status.loss:.6g}"
    return f"{goal} is not reached: {loss} after the last clock, where training ended"


def rows(status: TierStatus | None) -> list[tuple[str, ...]]:
    """Return a row for each machine, of `COLUMNS`; the sizes are what came from and went to other machines."""
    return [] if status is None else [_row(machine) for machine in status.machines]


def _row(machine: TierMachineStatus) -> tuple[str, ...]:
    counted = machine.counters
    staleness = f"{counted.staleness_mean:.2f}, at most {counted.staleness_max}" if counted.reads else "-"
    return (
        machine.name + (" (leaving)" if machine.leaving else ""),
        _numbers(machine.serves),
        _numbers(machine.backs_up),
        _numbers(machine.data),
        f"{counted.turns:,}",
        f"{counted.redone:,}",
        staleness,
        size_text(counted.pulled_bytes),
        size_text(counted.pushed_bytes),
    )


def _numbers(found: Sequence[int]) -> str:
    """Return numbers as text; a stretch of three or more as its ends."""
    texts: list[str] = []
    left = sorted(found)
    while left:
        end = 0
        while end + 1 < len(left) and left[end + 1] == left[end] + 1:
            end += 1
        texts += [f"{left[0]}-{left[end]}"] if end > 1 else [str(one) for one in left[: end + 1]]
        left = left[end + 1 :]
    return ",".join(texts) or "-"


def as_json(record: TierRecord) -> dict[str, Any]:
    """Return a record as data; units are in the names."""
    found: dict[str, Any] = {"failures": record.failures, "history": codec.encode(record.history)}
    for name, value in (("status", record.status), ("product", record.product), ("failure", record.failure)):
        found[name] = None if value is None else codec.encode(value)
    return found
