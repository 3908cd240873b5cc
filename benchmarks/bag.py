"""A bag of jobs: what an item costs against a bare process pool, and how soon a bag of 100,000 rows runs its first item.

Each is a whole `windfall run` on the local market, on a machine on demand, with a controller of its own.  Time per item is
that between the first start and the last end of an item.  `python -m benchmarks.bag [--items N]` prints one run with all
that it shows: memory of controller and runner, and how soon the API answers.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import multiprocessing
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path

from benchmarks.harness import Benchmark
from windfall.bags import Bag, ItemEnd, ItemLeases, ItemOutcome, ItemRecord
from windfall.cli import client
from windfall.core.item_table import ItemTable
from windfall.errors import WindfallError
from windfall.linux.clock import SystemClock
from windfall.runtimes.item_dispatcher import STATE_EVERY, ItemDispatcher, order_of
from windfall.storage import store_operations
from windfall.storage.object_stores import open_store
from windfall.terms import Seconds, WallTime
from windfall.wire import bag_layout

ITEM_CPU_S = 0.05
MACHINE, SLOTS = "medium", 2
"""A type of machine, and how many items it runs at once."""
ITEMS = 1_000
MANY, FEW = 100_000, 10
LATER_MAX_S, MORE_MAX_MB = 2.0, 300.0
RECORDS, RESTART_MAX_S = 10_000, 2.0
LOOK_S = 0.25
ANSWER_S = 0.05
"""How soon the API is to answer [s]."""
ITEM = [
    sys.executable, "-I", "-S", "-c", f"import time\nwhile time.process_time() < {ITEM_CPU_S}: pass",
]  # fmt: skip


def benchmarks() -> list[Callable[[], Benchmark]]:
    """The pairs of this module."""
    return [item_vs_pool, first_of_many_vs_limit, memory_of_many_vs_limit, restart_vs_limit, state_vs_whole_log]


def item_vs_pool() -> Benchmark:
    """The time of an item in a bag, a process each, against the same commands by a bare process pool with the same slots."""
    return Benchmark(
        "bag: an item vs a bare process pool",
        lambda: bag_run(ITEMS).item_s,
        lambda: pool_item_s(ITEMS),
        1.5, True, "s an item", rounds=3,
    )  # fmt: skip


def first_of_many_vs_limit() -> Benchmark:
    """How much later the first item runs among 100,000 than among ten, from the command to its start."""
    return Benchmark(
        "bag: first item of 100,000, later than of ten",
        lambda: bag_run(MANY, to_end=False).first_s - bag_run(FEW, to_end=False).first_s,
        lambda: LATER_MAX_S, 1.0, True, "s", rounds=3,
    )  # fmt: skip


def memory_of_many_vs_limit() -> Benchmark:
    """How much more memory command, controller and runner take for 100,000 items than for ten."""
    return Benchmark(
        "bag: memory of 100,000 items, more than of ten",
        lambda: bag_run(MANY, to_end=False).peak_mb - bag_run(FEW, to_end=False).peak_mb,
        lambda: MORE_MAX_MB, 1.0, True, "MB", rounds=3,
    )  # fmt: skip


def restart_vs_limit() -> Benchmark:
    """A dispatcher's first turn in a bag of 100,000 items with 10,000 records, with the newest state 255 records back."""
    return _restart("bag: a dispatcher starts again, vs 2 s", lambda _: RESTART_MAX_S, 1.0)


def state_vs_whole_log() -> Benchmark:
    """The same, against one without a state, which reads all records."""
    return _restart("bag: a start from a state vs from the log", lambda folder: _first_turn_s(folder / "log"), 0.5)


def _restart(name: str, yardstick: Callable[[Path], float], target: float) -> Benchmark:
    folder = tempfile.TemporaryDirectory()
    here = Path(folder.name)
    _write_log(here / "state", with_state=True)
    _write_log(here / "log", with_state=False)
    return Benchmark(
        name, lambda: _first_turn_s(here / "state"), lambda: yardstick(here), target, True, "s", rounds=3,
        close=folder.cleanup,
    )  # fmt: skip


def _logged_bag() -> Bag:
    return Bag(MANY, ("x",), (bag_layout.rows_key("d", 0),), MANY)


def _write_log(folder: Path, *, with_state: bool) -> None:
    """Write the log of a bag most of whose items are done, ten with each record."""
    bag = _logged_bag()
    table = ItemTable(bag, order_of(bag))

    def write(key: str, data: bytes) -> None:
        path = folder / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

    waiting = table.waiting()
    write(bag.rows[0], bag_layout.rows_to_bytes([(float(item),) for item in range(MANY)]))
    for number in range(1, RECORDS + 1):
        done = tuple(
            ("r", ItemOutcome(lease, ItemEnd.DONE, 0, WallTime(0.0), Seconds(0.1), values={"energy": -1.25}))
            for lease in table.leases("r")
        )
        items = tuple(itertools.islice(waiting, MANY // RECORDS))
        joined = (("r", "m"),) if number == 1 else ()
        record = ItemRecord(number, "n", WallTime(0.0), joined=joined, outcomes=done, leased=(ItemLeases("r", items),))
        table.apply(record)
        waiting = table.waiting()
        write(bag_layout.item_record_key(number), bag_layout.record_to_bytes(record))
        if with_state and number == RECORDS - STATE_EVERY + 1:
            write(bag_layout.state_key(number), bag_layout.state_to_bytes(table.keep()))


def _first_turn_s(folder: Path) -> float:
    clock, store = SystemClock(), open_store(f"file://{folder}")
    begin = time.perf_counter()
    dispatcher = ItemDispatcher(clock, _logged_bag(), lambda: "bench", state_every=2 * RECORDS)
    store_operations.run(dispatcher.turn(), store, clock)
    assert dispatcher.table.number == RECORDS
    return time.perf_counter() - begin


def pool_item_s(items: int) -> float:
    """Run items by a bare process pool; return the time of one [s]."""
    return _pool_s(items)[0]


def _pool_s(items: int) -> tuple[float, float]:
    """Run items by a bare process pool; return time and CPU of one [s]."""
    with ProcessPoolExecutor(SLOTS) as pool:
        list(pool.map(_run, range(SLOTS)))
        begin = time.perf_counter()
        cpu_s = sum(pool.map(_run, range(items)))
        return (time.perf_counter() - begin) / items, cpu_s / items


def _run(_: int) -> float:
    """Run an item; return the CPU that it took, this process included [s]."""
    before = sum(os.times()[:4])
    subprocess.run(ITEM, check=True, stdin=subprocess.DEVNULL)
    return sum(os.times()[:4]) - before


@dataclass
class BagRun:
    """What a run showed.

    Attributes:
        first_s: from the command to the start of the first item [s].
        item_s: time per item [s].
        controller_mb, runner_mb: what they had in memory, in order [MB].
        peak_mb: the most that command, controller and runner had, together [MB].
        answers_s, idle_answers_s: how long the API took to show the job, while it ran and after its end [s].
        pings_s: how long the same server took for an empty answer just before each, while it ran [s].
        cpu_s: what each of Windfall's processes used, the runner with its items [s].
        busy: the share of the time in which slots had an item.
    """

    first_s: float = 0.0
    item_s: float = 0.0
    controller_mb: list[float] = field(default_factory=list)
    runner_mb: list[float] = field(default_factory=list)
    command_mb: float = 0.0
    answers_s: list[float] = field(default_factory=list)
    idle_answers_s: list[float] = field(default_factory=list)
    pings_s: list[float] = field(default_factory=list)
    cpu_s: dict[int, float] = field(default_factory=dict)
    busy: float = 0.0
    items: int = 1

    @property
    def peak_mb(self) -> float:
        return self.command_mb + max(self.controller_mb, default=0.0) + max(self.runner_mb, default=0.0)

    def lines(self) -> Iterator[str]:
        """Yield the run in words."""
        yield f"first item after {self.first_s:.2f} s; {self.item_s * 1e3:.1f} ms an item; slots busy {self.busy:.0%}"
        yield f"CPU of all processes, starts included: {sum(self.cpu_s.values()) / self.items * 1e3:.1f} ms an item"
        for who, memory in (("controller", self.controller_mb), ("runner", self.runner_mb)):
            quarter = max(len(memory) // 4, 1)
            first, last = statistics.median(memory[:quarter]), statistics.median(memory[-quarter:])
            yield f"{who}: {first:.1f} MB in the first quarter, {last:.1f} MB in the last one, at most {max(memory):.1f} MB"
        yield _late("API while it runs", self.answers_s)
        yield _late("an empty answer of the same server, just before each", self.pings_s)
        yield _late("API once it is over", self.idle_answers_s)
        over = sum(answer > ANSWER_S for answer in self.answers_s) / max(len(self.answers_s), 1)
        over_empty = sum(ping > ANSWER_S for ping in self.pings_s) / max(len(self.pings_s), 1)
        yield f"over {ANSWER_S * 1e3:.0f} ms: {over:.2%} of its answers, {over_empty:.2%} of the empty ones"


def _late(what: str, answers_s: Sequence[float]) -> str:
    late = sorted(answers_s)
    return (
        f"{what}: {len(late)} answers, median {statistics.median(late) * 1e3:.1f} ms, "
        f"95 % within {late[int(len(late) * 0.95)] * 1e3:.1f} ms, the last within {late[-1] * 1e3:.1f} ms"
    )


def bag_run(items: int, *, to_end: bool = True) -> BagRun:
    """Run a bag by `windfall run`, to its end or until its first item has started."""
    folder = Path(tempfile.mkdtemp(prefix="windfall-bench-"))
    try:
        (folder / "code").mkdir()
        (folder / "code" / "bench.txt").write_text("")
        (folder / "x.csv").write_text("x,y\n" + "".join(f"{one},{one * 0.5}\n" for one in range(items)))
        (folder / "bag.yaml").write_text(
            json.dumps({
                "name": "bench", "workdir": str(folder / "code"), "run": subprocess.list2cmdline(ITEM[:-1]) + f" '{ITEM[-1]}'",
                "resources": {"infra": "local", "instance_type": MACHINE, "use_spot": False},
                "bag": {"rows": str(folder / "x.csv")},
            })
        )  # fmt: skip
        return _observed(folder, items, to_end=to_end)
    finally:
        _end_all(folder)
        shutil.rmtree(folder, ignore_errors=True)


def _observed(folder: Path, items: int, *, to_end: bool) -> BagRun:
    found, state = BagRun(), folder / "state"
    line = [sys.executable, "-m", "windfall.cli.main", "run", "--yes", "--state", str(state), str(folder / "bag.yaml")]
    begin = time.time()
    processes = multiprocessing.get_context("spawn")
    here, there = processes.Pipe()
    # A process of its own, as a user's is: a thread of this one would wait for those below, which read /proc.
    watch = processes.Process(target=_watch_api, args=(state, there), daemon=True)
    watch.start()
    with open(folder / "log", "wb") as log, subprocess.Popen(line, stdout=log, stderr=log) as command:
        try:
            while command.poll() is None:
                time.sleep(LOOK_S)
                found.command_mb = max(found.command_mb, _memory_mb(command.pid))
                _look(state, found)
                if not to_end and any(record.outcomes for record in _records(state)):
                    break
        finally:
            here.send("over")
            found.answers_s, found.pings_s, found.idle_answers_s = here.recv()
            watch.join()
            if command.poll() is None:
                command.send_signal(signal.SIGINT)
        command.wait()
    if to_end:
        assert command.returncode == 0, (folder / "log").read_text()[-2000:]
    outcomes = [one for record in _records(state) for _, one in record.outcomes]
    assert not to_end or len(outcomes) == items
    first = min(one.started_at for one in outcomes)
    found.first_s = first - begin
    took_s = max(one.started_at + one.run_s for one in outcomes) - first
    found.items, found.item_s = len(outcomes), took_s / len(outcomes)
    found.busy = sum(one.run_s for one in outcomes) / (took_s * SLOTS)
    return found


def _records(state: Path) -> list[ItemRecord]:
    """Return the records of the bag's log."""
    paths = sorted((state / "runs").glob("*/items/log/[0-9]*"))
    return [bag_layout.record_from_bytes(path.read_bytes()) for path in paths]


def _watch_api(state: Path, pipe: Connection) -> None:
    """Ask until the other side sends something; then send what the answers took."""
    answers_s: list[float] = []
    pings_s: list[float] = []
    idle_answers_s: list[float] = []
    while not pipe.poll(LOOK_S):
        with contextlib.suppress(WindfallError):
            _ask(state, answers_s, pings_s)
    for _ in range(40 if answers_s else 0):
        _ask(state, idle_answers_s, [])
    pipe.send((answers_s, pings_s, idle_answers_s))


def _ask(state: Path, answers_s: list[float], pings_s: list[float]) -> None:
    with client.connect(state, start=False) as controller:
        # The first call makes the connection; what counts is how soon the controller answers.
        for job in controller.jobs():
            begin = time.perf_counter()
            controller._get("/v1/ping")
            pings_s.append(time.perf_counter() - begin)
            begin = time.perf_counter()
            controller.job(job.job_id)
            answers_s.append(time.perf_counter() - begin)


def _look(state: Path, found: BagRun) -> None:
    for pid, line in _processes(str(state)):
        is_runner = "item_process" in line and line.rsplit(" ", 1)[1].isdigit()
        found.cpu_s[pid] = max(found.cpu_s.get(pid, 0.0), _cpu_s(pid, waited=is_runner))
        if "controller_process" in line:
            found.controller_mb.append(_memory_mb(pid))
        elif is_runner:
            found.runner_mb.append(_memory_mb(pid))


def _processes(state: str) -> Iterator[tuple[int, str]]:
    """Yield processes of Windfall that a run with this state folder started."""
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError):
                line = Path("/proc", name, "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
                if "windfall." in line and (
                    state in line or state.encode() in Path("/proc", name, "environ").read_bytes()
                ):
                    yield int(name), line


def _memory_mb(pid: int) -> float:
    try:
        return int(Path("/proc", str(pid), "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
    except OSError:
        return 0.0


def _cpu_s(pid: int, *, waited: bool) -> float:
    """Return what a process used, with the children that it has waited for if asked [s]."""
    try:
        fields = Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()[11:15]
    except OSError:
        return 0.0
    return sum(map(int, fields[: 4 if waited else 2])) / os.sysconf("SC_CLK_TCK")


def _end_all(folder: Path) -> None:
    for pid, _ in _processes(str(folder)):
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bag", description=__doc__)
    parser.add_argument("--items", type=int, default=10_000)
    arguments = parser.parse_args()
    pool_s, cpu_s = _pool_s(arguments.items)
    found = bag_run(arguments.items)
    print(
        f"pool: {pool_s * 1e3:.1f} ms an item, {cpu_s * 1e3:.1f} ms of CPU; bag: {found.item_s / pool_s:.2f}x the time"
    )
    print(*found.lines(), sep="\n")


if __name__ == "__main__":
    main()
