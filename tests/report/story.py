"""A run told by hand: the rows that agents would have written, with round numbers."""

from __future__ import annotations

from windfall import events
from windfall.report.account import Account, Lease, account
from windfall.report.step_counts import StepRange
from windfall.terms import (
    Bytes,
    Cause,
    CheckpointRef,
    Instant,
    LastProgress,
    Notice,
    NoticeLevel,
    Outcome,
    Phase,
    RunOptions,
    SaveKind,
    Seconds,
    Shard,
    Step,
    Term,
    WallTime,
)


def began(term: int = 1) -> events.WorkerStarted:
    """The first fact of a term."""
    return events.WorkerStarted(
        run="run",
        term=Term(term),
        options=RunOptions(),
        provider="local",
        checkpoints=(),
        attempt=1,
        failures=0,
        lifetimes_s=Seconds(0.0),
        preemptions=0,
        announced=0,
    )


def restored(step: int, duration_s: float) -> events.CheckpointRestored:
    """A restore; step 0 is a fresh start."""
    checkpoint = f"{step}-1-a" if step else None
    return events.CheckpointRestored(checkpoint, Step(step), Bytes(1000 * step), Seconds(duration_s))


def started(attempt: int) -> events.ScriptStarted:
    """The script runs."""
    return events.ScriptStarted(attempt)


def first_step() -> events.PhaseMeasured:
    """The script's start has ended."""
    return events.PhaseMeasured(0, Phase.START, Seconds(1.0))


def steps(last: int, count: int, mean_s: float = 1.0) -> events.StepsMeasured:
    """A window of steps."""
    return events.StepsMeasured(Step(last), count, Seconds(mean_s), Seconds(mean_s))


def handed_over(step: int, stall_s: float, rank: int = 0) -> events.ShardHandedOver:
    """The script has saved."""
    return events.ShardHandedOver(rank, Step(step), 1, "ckpt", Bytes(1000), Seconds(stall_s))


def uploaded(step: int, duration_s: float) -> events.ShardUploaded:
    """An upload is over."""
    return events.ShardUploaded(f"{step}-1-a", 0, Shard(0, "ckpt", ()), Bytes(1000), Seconds(duration_s))


def checkpoint(step: int, at: float, *, term: int = 1, kind: SaveKind = SaveKind.INSURANCE) -> CheckpointRef:
    """A committed point of 1000 bytes."""
    return CheckpointRef(
        f"{step}-{term}-a", Step(step), kind, Term(term), 1, 1000, f"checkpoints/{step}", "xxh3-128:0", WallTime(at)
    )


def committed(ref: CheckpointRef) -> events.CheckpointCommitted:
    """A commit."""
    return events.CheckpointCommitted(ref, 2, Seconds(0.1))


def notice(level: NoticeLevel, deadline: float | None = None) -> events.NoticeReceived:
    """A notice."""
    return events.NoticeReceived(Notice(level, "aws", "n1", None if deadline is None else Instant(deadline)))


def exited(status: int) -> events.ScriptExited:
    """The script's end."""
    return events.ScriptExited(status)


def release(cause: Cause) -> events.ReleaseRun:
    """The command that ends a term."""
    return events.ReleaseRun(Outcome.WAITING, cause)


def rows(term: int, offset: float, *told: tuple[float, events.Fact | events.Command]) -> list[events.Row]:
    """Rows of one term at these wall times; the machine's monotonic clock is behind by `offset`."""
    made = []
    for sequence, (wall_time, said) in enumerate(told, 1):
        facts = (said,) if isinstance(said, events.Fact) else ()
        commands = (said,) if isinstance(said, events.Command) else ()
        made.append(
            events.Row(Term(term), sequence, Instant(wall_time - offset), WallTime(wall_time), facts, commands=commands)
        )
    return made


def exactly(number: float) -> StepRange:
    """A figure that is known."""
    return StepRange(number, number)


def left(attempt: int, first: int, step: int, at: float) -> LastProgress:
    """What a machine that vanished left on its disk: it did nothing after that."""
    return LastProgress(attempt, Step(first), Step(step), WallTime(at), Seconds(0.0), last=True)


def beat(attempt: int, first: int, step: int, at: float, max_gap_s: float) -> LastProgress:
    """The last heartbeat of a machine that vanished: the next would have come within so much."""
    return LastProgress(attempt, Step(first), Step(step), WallTime(at), Seconds(max_gap_s))


def preempted_twice() -> Account:
    """Three machines: one announced and saved, one vanished, one that finishes.

    Times are seconds after 1000.  The first machine computes steps 1 to 20 with an insurance point at 10 and an
    emergency point at 20; the second computes 21 to 35 with a point at 25 and vanishes; the third computes 26 to 50.
    """
    first = rows(
        1,
        900.0,
        (1000.0, began(1)),
        (1001.0, restored(0, 0.5)),
        (1001.0, started(1)),
        (1003.0, first_step()),
        (1013.0, steps(10, 10)),
        (1015.0, handed_over(10, 2.0)),
        (1018.0, uploaded(10, 3.0)),
        (1018.0, committed(checkpoint(10, 1018.0))),
        (1022.0, notice(NoticeLevel.ANNOUNCED, 122.0 + 30.0)),
        (1025.0, steps(20, 10)),
        (1027.0, handed_over(20, 2.0)),
        (1028.0, committed(checkpoint(20, 1028.0, kind=SaveKind.EMERGENCY))),
        (1029.0, exited(143)),
        (1030.0, release(Cause.PREEMPTED_SAVED)),
    )
    second = rows(
        2,
        -5000.0,
        (1040.0, began(2)),
        (1043.0, restored(20, 2.0)),
        (1043.0, started(2)),
        (1045.0, first_step()),
        (1050.0, steps(25, 5)),
        (1051.0, handed_over(25, 1.0)),
        (1052.0, committed(checkpoint(25, 1052.0, term=2))),
        (1061.0, steps(35, 10)),
    )
    third = rows(
        3,
        0.0,
        (1081.0, began(3)),
        (1082.0, restored(25, 1.0)),
        (1082.0, started(3)),
        (1084.0, first_step()),
        (1099.0, steps(40, 15)),
        (1109.0, steps(50, 10)),
        (1109.0, exited(0)),
        (1110.0, release(Cause.DONE)),
    )
    leases = [
        Lease(Term(1), "one", WallTime(1000.0), WallTime(1030.0), Cause.PREEMPTED_SAVED),
        Lease(Term(2), "two", WallTime(1040.0), reached=left(2, 20, 35, 1061.0)),
        Lease(Term(3), "three", WallTime(1081.0), WallTime(1110.0), Cause.DONE),
    ]
    return account({Term(1): first, Term(2): second, Term(3): third}, leases)
