"""The runner's loop on a machine: starts items, waits for them, reads their results, and writes reports beside that.

It decides nothing: `core.item_runner` does.  Calls to the store are made by one other thread, so that a slow store keeps no
slot empty.  Everything here ends with the process that started it (`cli.item_process`).
"""

from __future__ import annotations

import contextlib
import errno
import os
import queue
import selectors
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from windfall.agent import item_files
from windfall.agent.exec_request import ExecRequest
from windfall.agent.item_gang import ItemGang
from windfall.agent.item_inputs import ItemInputs
from windfall.agent.item_saves import ItemSaves, SavePorts
from windfall.agent.item_schedule import ItemSchedule
from windfall.agent.script_environment import command_folder, inherited_environment
from windfall.agent.status_files import StatusFile
from windfall.bags import (
    Bag,
    GrantedItem,
    ItemEnd,
    ItemGrant,
    ItemLease,
    ItemOutcome,
    RunnerReport,
    StoredItemFile,
    StoredOutput,
)
from windfall.core import item_commands
from windfall.core.item_commands import ItemTry
from windfall.core.item_runner import (
    EndAnnounced,
    ForgetItem,
    GrantRead,
    ItemEnded,
    ItemRunner,
    KillItem,
    LeaveAsked,
    ReportWritten,
    RunnerAction,
    RunnerFact,
    RunnerIdentity,
    StartItem,
    WriteReport,
)
from windfall.core.node_agent_state import RunStatus
from windfall.errors import EXIT_DONE, EXIT_RETRY, MachineUnfit, StoreError
from windfall.linux import process_memory, processes
from windfall.ports import Clock, ObjectStore
from windfall.structs import Struct, replace
from windfall.terms import Instant, Outcome, Seconds, Step, Term, WallTime
from windfall.wire import bag_layout, environment

GRANT_S = 0.1
"""The least time between two looks for a grant; as long as the last look took, times ten, where the store is slow [s]."""
IDLE_S = 5.0
"""A runner that has had no items for this time is shown as idle; between two items it is not [s]."""
DISK_FULL_BYTES = 1 << 20
"""A disk with less room is full: what a command wanted to say of it may have found no room either [B]."""
MEMORY_S = 1.0
"""Between two looks at how much memory items use [s]."""
MEMORY_SPARE = 1.1
"""An item is killed that uses more than this many times its share of the memory."""
_GIB = 1 << 30
_TERM = Term(1)


class ItemLoopPorts(Struct, frozen=True):
    """What a runner's loop depends on.

    Attributes:
        store: of the run.
        received: returns what signals and notices said since its last call.
        log: takes a message for the machine's output.
        status: what the node agent reads; None without one.
        reduce: the program of the reduce step.
        gang: the other machines on which items run; None if they run on this one alone.
    """

    clock: Clock
    store: ObjectStore
    received: Callable[[], Sequence[RunnerFact]]
    log: Callable[[str], None]
    status: StatusFile
    reduce: Sequence[str] = ()
    gang: ItemGang | None = None


class _Child(Struct):
    """A running item."""

    item: GrantedItem
    process: subprocess.Popen[bytes]
    fd: int
    folder: Path
    started: Instant
    started_at: WallTime
    killed: ItemEnd | None = None
    excess: str = ""
    """What it was killed for: it used too much memory."""


class ItemLoop:
    """The loop; `run` returns the exit code."""

    def __init__(self, request: ExecRequest, bag: Bag, identity: RunnerIdentity, ports: ItemLoopPorts) -> None:
        self._request, self._bag, self._ports = request, bag, ports
        self._clock = ports.clock
        self._runner = ItemRunner(identity, ports.clock.now())
        self._name = identity.runner
        self._children: dict[ItemLease, _Child] = {}
        self._done, self._busy_at = 0, ports.clock.now()
        self._memory_at = ports.clock.now()
        self._folder = Path(request.state) / "items"
        # Of a runner that was killed: its items ran in folders that nothing else would remove.
        shutil.rmtree(self._folder, ignore_errors=True)
        self._environment = inherited_environment()
        path = self._environment.get("PATH", os.defpath)
        self._environment["PATH"] = os.pathsep.join((command_folder(request.state), path))
        self._inputs = ItemInputs(Path(request.state) / "inputs" / identity.runner, request.cwd, bag, ports.store)
        self._environment |= self._inputs.variables()
        self._store = _StoreThread(ports, identity.runner, self._inputs)
        self._started: list[RunnerFact] = []
        self._restoring: dict[ItemLease, tuple[GrantedItem, ItemEnd | None]] = {}
        self._restored: queue.SimpleQueue[tuple[ItemLease, Sequence[str]]] = queue.SimpleQueue()
        self._schedule = ItemSchedule(request, bag.restart, ports.clock)
        self._saves = ItemSaves(
            bag.restart, self._schedule, SavePorts(ports.clock, ports.store, ports.log, self._is_restored)
        )
        self._select = selectors.DefaultSelector()
        self._select.register(self._store.wake_fd, selectors.EVENT_READ, None)

    def wake(self) -> None:
        """Let the loop look at once; safe in a signal handler."""
        self._store.wake()

    def run(self) -> int:
        """Run items until there is nothing more to do."""
        facts: list[RunnerFact] = []
        while True:
            for action in self._runner.react(self._clock.now(), tuple(facts)):
                self._execute(action)
            self._show()
            if self._runner.over:
                break
            facts = self._wait()
            self._limit_memory()
        self._store.close()
        self._saves.close()
        if self._ports.gang is not None:
            self._ports.gang.close(done=self._runner.closed)
        if self._runner.closed:
            self._ports.status.release(Outcome.DONE)
            return EXIT_DONE
        return EXIT_RETRY

    def _show(self) -> None:
        done, runner, now = Step(self._done), self._runner, self._clock.now()
        self._busy_at = now if runner.running else self._busy_at
        busy = now < self._busy_at + IDLE_S
        status = RunStatus(_TERM, done, done, 1, training=busy, step_s=runner.item_s, body={"done": done})
        self._ports.status.show(status)

    def _wait(self) -> list[RunnerFact]:
        """Wait until an item ends, the store has answered or a signal came; return what happened."""
        pause_s = 0.0 if self._started else min(self._runner.next_s(self._clock.now()), 1.0)
        facts: list[RunnerFact] = []
        for key, _ in self._select.select(pause_s):
            if key.data is None:
                os.read(key.fd, 4096)
            else:
                facts.append(ItemEnded(self._ended(key.data)))
        while not self._restored.empty():
            facts += self._begin(*self._restored.get())
        if self._ports.gang is not None and self._ports.gang.lost:
            # Before the ends of items that it has cut off: they are given back, and have not failed.
            facts.insert(0, LeaveAsked(now=True))
        received = self._ports.received()
        for fact in received:
            if isinstance(fact, EndAnnounced):
                self._saves.announce(ends=fact.at is not None)
        facts, self._started = [*self._started, *facts], []
        return [*facts, *self._store.results(), *received]

    def _execute(self, action: RunnerAction) -> None:
        match action:
            case StartItem(item):
                self._prepare(item)
            case KillItem(lease, end) if lease in self._restoring:
                self._restoring[lease] = (self._restoring[lease][0], end)
            case KillItem(lease, end):
                self._kill(self._children[lease], end)
            case ForgetItem(lease):
                self._saves.counted(lease)
            case WriteReport(report):
                self._store.write(report)

    # ------------------------------------------------------------------------------------------------------------ items

    def _prepare(self, item: GrantedItem) -> None:
        """Make an item's folder, and start it once what an earlier try has saved is there."""
        try:
            item_files.make(self._folder_of(item.lease), Path(self._request.cwd))
        except OSError as error:
            raise MachineUnfit(f"cannot make the folder of an item: {error.strerror}") from error
        if self._ports.gang is not None:
            self._ports.gang.begin(self._folder_of(item.lease))
        if item.lease.number == 1:
            self._started += self._start(item, ())
        else:
            self._restoring[item.lease] = (item, None)
            self._saves.restore(item.lease, self._folder_of(item.lease))

    def _folder_of(self, lease: ItemLease) -> Path:
        return self._folder / f"{lease.item}-{lease.number}"

    def _is_restored(self, lease: ItemLease, files: Sequence[str]) -> None:
        """Pass on that an item's folder is ready; called by the thread of the saves."""
        self._restored.put((lease, files))
        self.wake()

    def _begin(self, lease: ItemLease, files: Sequence[str]) -> list[RunnerFact]:
        """Start an item whose folder is ready, unless it was to be killed meanwhile."""
        item, killed = self._restoring.pop(lease)
        if killed is None:
            return self._start(item, files)
        shutil.rmtree(self._folder_of(lease), ignore_errors=True)
        return [ItemEnded(ItemOutcome(lease, killed, None, self._clock.wall_time(), Seconds(0.0)))]

    def _start(self, item: GrantedItem, restored: Sequence[str]) -> list[RunnerFact]:
        lease, bag, folder = item.lease, self._bag, self._folder_of(item.lease)
        this = ItemTry(restored[-1] if restored else "", self._schedule.plan().every_s, item.cpus)
        if lease.item == bag.reduce_item:
            argv, variables = list(self._ports.reduce), None
        else:
            argv = item_commands.filled(self._request.argv, bag, item.values, item=lease.item, this=this)
            own = item_commands.variables(bag, item.values, item=lease.item, attempt=lease.number, this=this)
            variables = self._environment | dict(own) | {environment.ITEM_FOLDER: str(folder)}
            if self._ports.gang is not None:
                variables = self._ports.gang.with_launch(variables)
        try:
            with open(folder / item_files.OUTPUT, "ab", opener=_private) as output:
                process = subprocess.Popen(
                    argv, cwd=folder, env=variables,
                    stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
                )  # fmt: skip
        except (OSError, ValueError) as error:
            return [self._not_started(item.lease, error)]
        child = _Child(item, process, os.pidfd_open(process.pid), folder, self._clock.now(), self._clock.wall_time())
        self._children[lease] = child
        self._select.register(child.fd, selectors.EVENT_READ, child)
        self._saves.started(lease, folder, process.pid, restored)
        return []

    def _not_started(self, lease: ItemLease, error: OSError | ValueError) -> RunnerFact:
        """Return that an item's command cannot be started; raise if that is the machine's fault."""
        if isinstance(error, OSError) and error.errno != errno.E2BIG:
            raise MachineUnfit(f"cannot start an item: {error.strerror}") from error
        shutil.rmtree(self._folder_of(lease), ignore_errors=True)
        reason = "its parameters are too long for a command" if isinstance(error, OSError) else str(error)
        problem = f"the command cannot be started: {reason}"
        return ItemEnded(ItemOutcome(lease, ItemEnd.FAILED, None, self._clock.wall_time(), Seconds(0.0), problem))

    def _limit_memory(self) -> None:
        """Kill the items that use more memory than one may, before the machine has none left."""
        share_gib = self._bag.memory_gib
        if share_gib is None or self._clock.now() < self._memory_at + MEMORY_S:
            return
        self._memory_at = self._clock.now()
        children = {
            one.process.pid: one for one in self._children.values() if one.item.lease.item != self._bag.reduce_item
        }
        used = process_memory.used_bytes(children, MEMORY_SPARE * share_gib * _GIB) if children else {}
        for pid, used_bytes in used.items():
            child = children[pid]
            child.excess = f"it used {used_bytes / _GIB:.3g} GiB, more than bag.memory_per_item {share_gib:.3g} GiB"
            self._kill(child, child.killed)

    def _kill(self, child: _Child, end: ItemEnd | None) -> None:
        child.killed = end
        below = processes.descendants(child.process.pid)
        for pid in (child.process.pid, *below):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)

    def _ended(self, child: _Child) -> ItemOutcome:
        self._select.unregister(child.fd)
        os.close(child.fd)
        lease = child.item.lease
        del self._children[lease]
        code = child.process.wait()
        # What it left in the background ends with it, also what has left its session.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.process.pid, signal.SIGKILL)
        others = frozenset(other.process.pid for other in self._children.values())
        processes.kill_orphans(environment.ITEM_FOLDER, str(child.folder), others)
        if self._ports.gang is not None:
            self._ports.gang.end(child.folder, failed=code != 0 and child.killed is None, killed=code != 0)
        run_s = Seconds(self._clock.now() - child.started)
        outcome = self._outcome(child, code if code >= 0 else 128 - code, run_s)
        if (cpus := child.item.cpus) is not None:
            outcome = replace(outcome, cpus=cpus)
        self._saves.ended(lease, outcome.end)
        if outcome.end is ItemEnd.DONE and lease.number == 1 and cpus is None:
            self._schedule.item_done(run_s)
        shutil.rmtree(child.folder, ignore_errors=True)
        self._done += outcome.end is ItemEnd.DONE
        return outcome

    def _outcome(self, child: _Child, code: int, run_s: Seconds) -> ItemOutcome:
        lease = child.item.lease
        printed = item_files.printed(child.folder)
        output = self._store.add_output(printed) if printed and child.killed not in _UNWANTED else None
        if child.killed is ItemEnd.TIMED_OUT:
            problem = f"it took longer than {self._bag.item_timeout_s:g} s"
            return ItemOutcome(lease, ItemEnd.TIMED_OUT, None, child.started_at, run_s, problem, {}, output)
        if child.killed is not None:
            return ItemOutcome(lease, child.killed, None, child.started_at, run_s)
        if child.excess and code != 0:
            return ItemOutcome(lease, ItemEnd.FAILED, None, child.started_at, run_s, child.excess, {}, output)
        if code != 0:
            full = shutil.disk_usage(child.folder).free < DISK_FULL_BYTES
            problem = _failure(code, printed) + ("; the machine's disk is full" if full else "")
            # What a call raised is in a file.
            files = self._files(child)[0] if self._bag.grows else ()
            return ItemOutcome(lease, ItemEnd.FAILED, code, child.started_at, run_s, problem, {}, output, files)
        rules = () if lease.item == self._bag.reduce_item else self._bag.results
        values, problem = item_files.read_results(rules, child.folder)
        if problem:
            return ItemOutcome(lease, ItemEnd.FAILED, code, child.started_at, run_s, problem, {}, output)
        files, problem = self._files(child)
        end = ItemEnd.FAILED if problem else ItemEnd.DONE
        return ItemOutcome(lease, end, code, child.started_at, run_s, problem, values, output, files)

    def _files(self, child: _Child) -> tuple[tuple[StoredItemFile, ...], str]:
        """Return the files that are kept of an item, and what is wrong with one of them; then none is kept."""
        lease = child.item.lease
        try:
            kept = [(path, (child.folder / path).read_bytes()) for path in self._kept(lease.item, child.folder)]
        except OSError as error:
            return (), f"a file that it left cannot be read: {error.filename}: {error.strerror}"
        return tuple(self._store.add_file(lease, place, *one) for place, one in enumerate(kept)), ""

    def _kept(self, item: int, folder: Path) -> Iterator[Path]:
        """Yield the files that are kept: of the reduce step all that it made itself."""
        if item != self._bag.reduce_item:
            return item_files.collected(self._bag.collect, folder)
        made = item_files.collected(("*",), folder)
        return (path for path in made if path.parts[0] not in (item_files.TABLE, item_files.COLLECTED))


_SIGNALS = {int(one): one.name for one in signal.Signals}
_UNWANTED = (ItemEnd.DISCARDED, ItemEnd.RETURNED)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _failure(code: int, printed: bytes) -> str:
    lines = printed.decode(errors="replace").strip().splitlines()
    last = f": {lines[-1][:200]}" if lines else ""
    how = f"was ended by {_SIGNALS[code - 128]}" if code - 128 in _SIGNALS else f"ended with exit code {code}"
    return f"the command {how}{last}"


class _StoreThread:
    """The calls to the store, in one thread: what items printed and their files before the report that names them."""

    def __init__(self, ports: ItemLoopPorts, runner: str, inputs: ItemInputs) -> None:
        self._ports, self._runner, self._inputs = ports, runner, inputs
        self._jobs: queue.SimpleQueue[RunnerReport | None] = queue.SimpleQueue()
        self._results: queue.SimpleQueue[RunnerFact] = queue.SimpleQueue()
        self.wake_fd, self._wake_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._segment = 1
        self._output = bytearray()
        self._unsent: dict[str, bytes] = {}
        self._seen = b""
        self._thread = threading.Thread(target=self._work, name="store", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Wake the loop."""
        with contextlib.suppress(BlockingIOError):
            os.write(self._wake_end, b".")

    def add_output(self, printed: bytes) -> StoredOutput:
        """Add what an item printed to the segment that goes with the next report."""
        key = bag_layout.item_output_key(self._runner, self._segment)
        stored = StoredOutput(key, len(self._output), len(printed))
        self._output += printed
        return stored

    def add_file(self, lease: ItemLease, place: int, path: Path, data: bytes) -> StoredItemFile:
        """Add a file that goes with the next report."""
        key = bag_layout.item_file_key(self._runner, lease.item, lease.number, place)
        self._unsent[key] = data
        return StoredItemFile(str(path), key, len(data))

    def write(self, report: RunnerReport) -> None:
        """Write a report, after what it names."""
        if self._output:
            self._unsent[bag_layout.item_output_key(self._runner, self._segment)] = bytes(self._output)
            self._segment += 1
            self._output = bytearray()
        self._jobs.put(report)

    def results(self) -> list[RunnerFact]:
        """Return what has happened since the last call."""
        found: list[RunnerFact] = []
        while not self._results.empty():
            found.append(self._results.get())
        return found

    def close(self) -> None:
        """End the thread once it has done what it was given."""
        self._jobs.put(None)
        self._thread.join()

    def _work(self) -> None:
        pause_s = GRANT_S
        while True:
            try:
                report = self._jobs.get(timeout=pause_s)
            except queue.Empty:
                pause_s = self._look()
                continue
            if report is None:
                return
            self._send(report)
            self._post(ReportWritten(report.sequence))

    def _send(self, report: RunnerReport) -> None:
        try:
            for key, data in tuple(self._unsent.items()):
                self._ports.store.put(key, data)
                del self._unsent[key]
            data = bag_layout.report_to_bytes(report)
            self._ports.store.put(bag_layout.runner_report_key(self._runner), data)
        except StoreError as error:
            self._ports.log(f"cannot report, trying again: {error}")

    def _look(self) -> float:
        """Look for a newer grant; return how long to wait until the next look [s]."""
        before = self._ports.clock.now()
        try:
            data = self._ports.store.get(bag_layout.grant_key(self._runner))
        except StoreError:
            return 1.0
        if data is not None and data != self._seen:
            try:
                grant: ItemGrant = bag_layout.grant_from_bytes(data)
                self._inputs.fetch(grant)
            except ValueError:
                return GRANT_S
            except StoreError as error:
                self._ports.log(f"cannot fetch what items need, trying again: {error}")
                return 1.0
            self._seen = data
            self._post(GrantRead(grant))
        return max(GRANT_S, 10.0 * (self._ports.clock.now() - before))

    def _post(self, fact: RunnerFact) -> None:
        self._results.put(fact)
        self.wake()
