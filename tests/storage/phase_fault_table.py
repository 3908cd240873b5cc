"""Every phase of a run against every fault of its store, at each operation of the phase, on a simulated store and clock.

python -m tests.storage.phase_fault_table
"""

from __future__ import annotations

import itertools
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.simulated_store import ManualClock, MemoryStore
from windfall.errors import StoreUnreachable
from windfall.events import CommitCheckpoint, UploadShard
from windfall.ports import Progress
from windfall.storage import acquire_run, run_log, spool_journal, store_operations
from windfall.storage.run_lease import LocalSession, StoreLease
from windfall.storage.store_operations import RetryingStore, RetryPolicy, create
from windfall.terms import PATIENCE_S, Cause, Holder, Outcome, SaveKind, Seconds, Step
from windfall.wire.run_layout import inbox_key

LEASE_S = 30.0
AWAY = "away for good"
FAULTS: dict[str, tuple[str, float]] = {
    "reset before": ("before", 0), "reset in": ("before", 0), "reset after": ("after", 0), "404 cut": ("before", 0),
    "500": ("before", 0), "503": ("before", 0), "500 after": ("after", 0), "refused 1 s": ("refused", 1),
    "refused 10 s": ("refused", 10), "refused 60 s": ("refused", 60), "slow": ("slow", 10), AWAY: ("refused", 1e9),
}  # fmt: skip
"""Name -> what happens, and for how long [s]."""


@dataclass
class Faulty(MemoryStore):
    """A store that fails at its `at`-th operation from now on."""

    clock: ManualClock = field(default_factory=ManualClock)
    fault: tuple[str, float] = ("", 0)
    at: int = 0
    count: int = 0
    until: float = 0.0

    def arm(self, fault: tuple[str, float], at: int) -> None:
        self.fault, self.at, self.count, self.until = fault, at, 0, 0.0

    def _do(self, action: Callable[[], object]) -> object:
        kind, seconds = self.fault
        self.count += 1
        hit = self.count == self.at
        if hit and kind == "refused":
            self.until = self.clock.at + seconds
        if (hit and kind == "before") or self.clock.at < self.until:
            raise StoreUnreachable("memory://run does not answer")
        if hit and kind == "slow":
            self.clock.at += seconds
        result = action()
        if hit and kind == "after":
            raise StoreUnreachable("the reply was lost")
        return result


def _wrapped(name: str) -> Callable[..., object]:
    inner = getattr(MemoryStore, name)
    return lambda self, *arguments: self._do(lambda: inner(self, *arguments))


for _name in ("create", "put", "get", "size", "delete", "list", "put_range", "get_range"):
    setattr(Faulty, _name, _wrapped(_name))


class Bench:
    """A run on a faulty store, and a machine."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.clock = folder, ManualClock()
        self.raw = Faulty(clock=self.clock)
        self.told: list[str] = []
        self.store = RetryingStore(self.raw, RetryPolicy(self.clock, log=self.told.append))
        numbers = itertools.count()
        session = str(folder / "session")
        self.local = LocalSession(
            self.clock, lambda: f"n{next(numbers)}", session, f"{session}/lease.json", f"{session}/out", f"{session}/f"
        )

    def acquire(self, who: str = "a", *, wait: bool = False) -> acquire_run.AcquireResult:
        (self.folder / "code").mkdir(exist_ok=True)
        request = acquire_run.AcquireRequest(
            Holder(who, who, 1, 1, 1, who), Seconds(LEASE_S), ("train",), str(self.folder / "code"),
            bundle=True, new_code=False, wait=wait,
        )  # fmt: skip
        return acquire_run.acquire(self.store, self.local, request, holder_is_dead=lambda _: False, log=lambda _: None)

    def lease(self) -> StoreLease:
        lease = self.acquire().lease
        assert lease is not None
        return lease

    def commit(self, lease: StoreLease) -> None:
        path = self.folder / "1.pt"
        path.write_bytes(b"state")
        shard = lease.upload(UploadShard("00000001-1-1.1", 0, str(path), SaveKind.INSURANCE), lambda: False)
        assert shard is not None
        lease.commit(CommitCheckpoint("00000001-1-1.1", Step(1), SaveKind.INSURANCE, 1, (shard,)))

    def head(self) -> object:
        return store_operations.run(run_log.read_head(), self.store, self.clock)

    def message(self, do: str) -> None:
        self.head()
        store_operations.run(create(inbox_key("m"), f'{{"type": "{do}"}}'.encode()), self.store, self.clock)


Phase = Callable[[Bench], Callable[[], object]]


def _committed(bench: Bench) -> StoreLease:
    lease = bench.lease()
    bench.commit(lease)
    return lease


def _prepared(prepare: Callable[[Bench], StoreLease], act: Callable[[Bench, StoreLease], object]) -> Phase:
    def phase(bench: Bench) -> Callable[[], object]:
        lease = prepare(bench)
        return lambda: act(bench, lease)

    return phase


def _let_go(bench: Bench) -> StoreLease:
    lease = _committed(bench)
    lease.release(Outcome.WAITING, Cause.STOPPED)
    return lease


def _train(lease: StoreLease) -> None:
    lease.heartbeat(Progress(1, 0, 1, 10.0))
    lease.journal.append('{"row": 1}')
    lease.ship()
    lease.messages()


PHASES: dict[str, Phase] = {
    "first start": lambda bench: bench.acquire,
    "take-up": _prepared(_let_go, lambda bench, _: bench.acquire("b")),
    "waiting": _prepared(Bench.lease, lambda bench, _: bench.acquire("b", wait=True)),
    "training": _prepared(Bench.lease, lambda _, lease: _train(lease)),
    "commit": _prepared(Bench.lease, lambda bench, lease: bench.commit(lease)),
    "restore": _prepared(_committed, lambda bench, lease: lease.restore(str(bench.folder / "restored"))),
    "release": _prepared(_committed, lambda _, lease: lease.release(Outcome.DONE, Cause.DONE)),
    "stop": _prepared(Bench.lease, lambda bench, _: bench.message("stop")),
    "inject": _prepared(Bench.lease, lambda bench, _: bench.message("inject")),
    "verbs": _prepared(
        _committed,
        lambda bench, _: (bench.head(), store_operations.run(spool_journal.read_journal(), bench.store, bench.clock)),
    ),
}


def play(phase: str, fault: tuple[str, float], at: int) -> tuple[str, int]:
    """Play one cell; return what came of it (`same`, `75`, or what is wrong), and how many operations the phase has."""
    folder = Path(tempfile.mkdtemp(prefix="windfall-table-"))
    try:
        bench = Bench(folder)
        act = PHASES[phase](bench)
        bench.raw.arm(fault, at)
        started = bench.clock.at
        try:
            act()
        except StoreUnreachable as error:
            waited_s = bench.clock.at - started
            known = phase != "release" or any((folder / "session" / "f").glob("*.json"))
            given_up = error.exit_code == 75 and waited_s >= PATIENCE_S and bool(bench.told) and known
            return ("75" if given_up else f"gave up after {waited_s:.0f} s"), bench.raw.count
        operations = bench.raw.count
        bench.raw.arm(("", 0), 0)
        head = store_operations.run(run_log.read_head(), bench.store, bench.clock)
        return ("same" if head is not None else "no run"), operations
    finally:
        shutil.rmtree(folder)


def cell(phase: str, fault: str) -> str:
    """Try a fault at each operation of a phase; return what comes of it, once if it is always the same."""
    _, operations = play(phase, ("", 0), 0)
    found = {play(phase, FAULTS[fault], at)[0] for at in range(1, operations + 1)}
    return " / ".join(sorted(found))


def main() -> None:
    """Print the table."""
    print(f"{'':12s} " + " ".join(f"{fault:13s}" for fault in FAULTS))
    for phase in PHASES:
        print(f"{phase:12s} " + " ".join(f"{cell(phase, fault):13s}" for fault in FAULTS), flush=True)


if __name__ == "__main__":
    main()
