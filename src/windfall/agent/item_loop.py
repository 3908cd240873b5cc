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
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from windfall.agent import item_files, item_saves
from windfall.agent.exec_request import ExecRequest
from windfall.agent.item_gang import ItemGang
from windfall.agent.item_inputs import ItemInputs
from windfall.agent.item_metrics import ItemMetrics
from windfall.agent.item_rule_call import RuleCall, RuleProgram
from windfall.agent.item_saves import ItemSaves, SavePorts
from windfall.agent.item_schedule import ItemSchedule
from windfall.agent.item_store_thread import ItemStoreThread, StorePorts
from windfall.agent.script_environment import command_folder, inherited_environment
from windfall.agent.status_files import StatusFile
from windfall.bags import (
    Bag,
    GrantedItem,
    ItemEnd,
    ItemLease,
    ItemOutcome,
    StoredItemFile,
    Value,
)
from windfall.core import item_commands
from windfall.core.item_commands import ItemTry
from windfall.core.item_runner import (
    EndAnnounced,
    ForgetItem,
    ItemEnded,
    ItemRunner,
    KillItem,
    LeaveAsked,
    RunnerAction,
    RunnerFact,
    RunnerIdentity,
    StartItem,
    WriteReport,
)
from windfall.core.node_agent_state import RunStatus
from windfall.errors import EXIT_DONE, EXIT_RETRY, MachineUnfit
from windfall.linux import process_memory, processes
from windfall.ports import Clock, ObjectStore
from windfall.structs import Struct, replace
from windfall.terms import Instant, Outcome, Seconds, Step, Term, WallTime
from windfall.wire import environment

IDLE_S = 5.0
"""A runner that has had no items for this time is shown as idle; between two items it is not [s]."""
DISK_FULL_BYTES = 1 << 20
"""A disk with less room is full: what a command wanted to say of it may have found no room either [B]."""
MEMORY_S = 1.0
"""Between two looks at how much memory items use [s]."""
MEMORY_SPARE = 1.1
"""An item is killed that uses more than this many times its share of the memory."""
STOP_S = Seconds(2.0)
"""How long an item that is stopped has to end by itself, if it handles SIGTERM [s]."""
STOP_LOOK_S = 0.1
"""While one has, it is looked for this often [s]."""
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
        stop_rule: the program that asks the user's function which items to stop; none without one.
    """

    clock: Clock
    store: ObjectStore
    received: Callable[[], Sequence[RunnerFact]]
    log: Callable[[str], None]
    status: StatusFile
    reduce: Sequence[str] = ()
    gang: ItemGang | None = None
    stop_rule: Sequence[str] = ()


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
    stopped: str = ""
    """Why it is stopped."""
    kill_at: float | None = None
    """Until when it may end by itself, as it was asked to."""


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
        self._store = ItemStoreThread(StorePorts(ports.clock, ports.store, ports.log), identity.runner, self._inputs)
        self._started: list[RunnerFact] = []
        self._restoring: dict[ItemLease, tuple[GrantedItem, ItemEnd | None]] = {}
        self._restored: queue.SimpleQueue[tuple[ItemLease, Sequence[str]]] = queue.SimpleQueue()
        self._schedule = ItemSchedule(request, bag.restart, ports.clock)
        self._saves = ItemSaves(
            bag.restart, self._schedule, SavePorts(ports.clock, ports.store, ports.log, self._is_restored)
        )
        self._metrics = ItemMetrics(bag, ports.clock, self._rule_call())
        self._select = selectors.DefaultSelector()
        self._select.register(self._store.wake_fd, selectors.EVENT_READ, None)

    def _rule_call(self) -> RuleCall | None:
        rule = self._bag.stop_item
        if rule is None or rule.call is None:
            return None
        ports, folder = self._ports, self._request.cwd
        found = RuleProgram(
            self._clock, rule.call, ports.stop_rule, folder, self._environment, self._store.wake, ports.log
        )  # fmt: skip
        return RuleCall(found)

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
            self._limit_stopped()
        self._metrics.close()
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
        has_grace = any(one.kill_at is not None for one in self._children.values())
        pause_s = (
            0.0 if self._started else min(self._runner.next_s(self._clock.now()), STOP_LOOK_S if has_grace else 1.0)
        )
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
        return [*self._metrics.facts(), *facts, *self._store.results(), *received]

    def _execute(self, action: RunnerAction) -> None:
        match action:
            case StartItem(item):
                self._prepare(item)
            case KillItem(lease, end) if lease in self._restoring:
                self._restoring[lease] = (self._restoring[lease][0], end)
            case KillItem(lease, ItemEnd.STOPPED, reason):
                self._stop(self._children[lease], reason)
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
                # By its whole path, so that an error is of the command, not of a folder of PATH that is closed to this user.
                command = shutil.which(argv[0], path=None if variables is None else variables.get("PATH"))
                process = subprocess.Popen(
                    argv, executable=command, cwd=folder, env=variables,
                    stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
                )  # fmt: skip
        except (OSError, ValueError) as error:
            return [self._not_started(item.lease, error)]
        child = _Child(item, process, os.pidfd_open(process.pid), folder, self._clock.now(), self._clock.wall_time())
        self._children[lease] = child
        self._select.register(child.fd, selectors.EVENT_READ, child)
        self._metrics.started(item, folder, self._saves.started(lease, folder, process.pid, restored))
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

    def _stop(self, child: _Child, reason: str) -> None:
        """End an item for its metric: what handles SIGTERM may write its results, the rest is killed."""
        if child.process.poll() is not None:
            return  # it has just ended by itself
        child.stopped = reason
        if item_saves.send_signal(child.process.pid, signal.SIGTERM):
            child.killed, child.kill_at = ItemEnd.STOPPED, self._clock.now() + STOP_S
        else:
            self._kill(child, ItemEnd.STOPPED)

    def _limit_stopped(self) -> None:
        """Kill what was asked to end and has not."""
        for child in self._children.values():
            if child.kill_at is not None and self._clock.now() >= child.kill_at:
                self._kill(child, ItemEnd.STOPPED)

    def _ended(self, child: _Child) -> ItemOutcome:
        self._select.unregister(child.fd)
        os.close(child.fd)
        lease = child.item.lease
        del self._children[lease]
        code = child.process.wait()
        if child.killed is ItemEnd.STOPPED and child.kill_at is None and code != -signal.SIGKILL:
            child.killed = None  # it had ended by itself before it was killed
        # What it left in the background ends with it, also what has left its session.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.process.pid, signal.SIGKILL)
        others = frozenset(other.process.pid for other in self._children.values())
        processes.kill_orphans(environment.ITEM_FOLDER, str(child.folder), others)
        if self._ports.gang is not None:
            self._ports.gang.end(child.folder, failed=code != 0 and child.killed is None, killed=code != 0)
        run_s = Seconds(self._clock.now() - child.started)
        curve = self._metrics.ended(lease, run_s)
        if child.killed is ItemEnd.STOPPED:
            outcome = self._stopped(child, run_s)
        else:
            outcome = self._outcome(child, code if code >= 0 else 128 - code, run_s)
        if outcome.end is ItemEnd.DONE:
            outcome = replace(outcome, curve=curve)
        if (cpus := child.item.cpus) is not None:
            outcome = replace(outcome, cpus=cpus)
        self._saves.ended(lease, outcome.end)
        if outcome.end is ItemEnd.DONE and lease.number == 1 and cpus is None:
            self._schedule.item_done(run_s)
        shutil.rmtree(child.folder, ignore_errors=True)
        self._done += outcome.end.is_done
        return outcome

    def _stopped(self, child: _Child, run_s: Seconds) -> ItemOutcome:
        """Return the outcome of an item that was stopped: what it has by now are its results, and none need be there."""
        printed, values = item_files.printed(child.folder), dict[str, Value]()
        for rule in self._bag.results:
            values |= item_files.read_results((rule,), child.folder)[0]
        output, files = self._store.add_output(printed) if printed else None, self._files(child)[0]
        lease, end = child.item.lease, ItemEnd.STOPPED
        return ItemOutcome(
            lease, end, None, child.started_at, run_s, "", values, output, files, stopped=child.stopped
        )  # fmt: skip

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
