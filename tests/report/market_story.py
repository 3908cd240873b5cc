"""A small job told by its controller's journal, with numbers that can be checked by hand."""

from __future__ import annotations

from collections.abc import Iterable

from windfall.core import driver
from windfall.events import Command, Fact, Row
from windfall.fleet import (
    ControllerStarted,
    JobSubmitted,
    ListingCompleted,
    MachineReported,
    MachinesObserved,
    MachineStatus,
    OffersObserved,
    Report,
)
from windfall.jobs import Job, Resources, Work
from windfall.market import Machine, MachineEndCause, MachineLifecycle, Offer
from windfall.terms import Instant, NoticeLevel, Reliability, Seconds, Term, Unit, WallTime

BEGIN = 1_000_000.0
OFFER = Offer(
    "local",
    "small",
    "zone-a",
    3.6,
    7.2,
    Reliability.TRANSIENT,
    Seconds(30.0),
    WallTime(BEGIN),
    cpus=1.0,
    memory_gib=2.0,
)
"""A tenth of a cent a second; two on demand."""


def job(**changes: object) -> Job:
    made: dict[str, object] = {"work": Work(100.0, Unit.STEP), **changes}
    return Job("gpt-1", "gpt", "ada", "file:///runs/gpt-1", ("python", "train.py"), (Resources("local"),), **made)  # type: ignore[arg-type]


def machine(name: str, token: str, life: MachineLifecycle = MachineLifecycle.RUNNING, **changes: object) -> Machine:
    return Machine(
        name,
        "owner",
        "gpt-1",
        token,
        "local",
        "small",
        "zone-a",
        Reliability.TRANSIENT,
        3.6,
        life,
        **changes,  # type: ignore[arg-type]
    )


def gone(name: str, token: str, cause: MachineEndCause, started: float, ended: float) -> Machine:
    return machine(
        name,
        token,
        MachineLifecycle.GONE,
        cause=cause,
        started=WallTime(BEGIN + started),
        ended=WallTime(BEGIN + ended),
    )


def heard(
    name: str, status: MachineStatus, *, preemption_at: float | None = None, message: str = ""
) -> MachineReported:
    level = None if preemption_at is None else NoticeLevel.ANNOUNCED
    report = Report(name, 1, "life", status, level=level, message=message)
    return MachineReported(report, "direct", None if preemption_at is None else Instant(BEGIN + preemption_at))


def opening() -> tuple[Fact, ...]:
    """What a journal begins with: the job, the offers, a whole listing."""
    return (
        JobSubmitted(job(), "owner"),
        ControllerStarted(Term(1)),
        OffersObserved((OFFER,)),
        ListingCompleted("local"),
    )


def journal(*batches: tuple[float, Iterable[Fact]]) -> list[Row]:
    """The rows that the driver would write of batches of facts, each at its second since the submission."""
    state, rows = driver.initial_state(), []
    for number, (second, facts) in enumerate(batches, 1):
        at = Instant(BEGIN + second)
        state, decisions, commands = driver.react(state, at, tuple(facts))
        rows.append(Row(Term(1), number, at, WallTime(BEGIN + second), tuple(facts), decisions, commands))
    return rows


def row(second: float, *facts: Fact, commands: tuple[Command, ...] = ()) -> Row:
    """One row by itself, with the commands that a test wants in it."""
    return Row(Term(1), 1, Instant(BEGIN + second), WallTime(BEGIN + second), facts, (), commands)


def seen(*machines: Machine) -> MachinesObserved:
    return MachinesObserved(machines)
