"""What a simulated job's machines do once they are up: the simulated counterpart of a runtime.

The market starts, warns and ends machines; the driver says what they are to do.  Everything between is the runtime's, so that
another runtime is simulated by another implementation of `SimulatedRuntime`, without a change of market or fleet.

`CheckpointMachines` is the first: a machine prepares, waits, trains in a lease under the reducer of the real worker, and
reports each of these to the driver, as the live node agent does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from windfall.errors import EXIT_RETRY
from windfall.events import Fact
from windfall.fleet import DesiredState, Directive, MachineReported, MachineStatus, ProgressObserved, Report
from windfall.simulation.engine_worker import SimulatedWorker, TrialContext
from windfall.simulation.virtual_time import WALL_START
from windfall.terms import Instant, JobProgress, NoticeLevel, Outcome, Seconds, Unit, WorkDone

Directives = Callable[[], Mapping[str, Directive]]


class FleetCalls(Protocol):
    """What a runtime may ask of the fleet of its job."""

    def add(self, fact: Fact) -> None:
        """Queue a fact for the driver."""

    def settle(self) -> None:
        """Let the driver decide once all events of this instant have happened."""


class SimulatedRuntime(Protocol):
    """The machines of one job, after their boot.  Facts go to `FleetCalls.add`; the caller settles afterwards.

    Attributes:
        finish_s: when the work was done [s of virtual time]; None before.
    """

    finish_s: float | None

    @property
    def progress(self) -> int:
        """Grows whenever work becomes safe."""

    @property
    def machines(self) -> int:
        """How many work together."""

    def start(self, machine_id: str, slot: int, n: int) -> None:
        """Start on the n-th machine, from 0, of a slot."""

    def notice(self, machine_id: str, left_s: float) -> None:
        """Receive the notice of a machine's end."""

    def end(self, machine_id: str) -> None:
        """End with a machine; it may never have started."""

    def direct(self, directives: Directives) -> bool:
        """Follow the driver's directives; return whether that led to anything."""

    def observe(self) -> ProgressObserved | None:
        """Return the state of the run if it has changed since the last call."""


RuntimeMaker = Callable[[FleetCalls], SimulatedRuntime]


@dataclass(slots=True)
class _Member:
    """A machine of the job, from its own point of view.

    Attributes:
        n: its number within its slot, from 0.
        ready: it is prepared.
        noticed: it has its notice, and ends at `gone_s` [s].
        reports: how many it has sent.
    """

    machine_id: str
    slot: int
    n: int
    started_s: float
    ready: bool = False
    noticed: bool = False
    gone_s: float = 0.0
    status: MachineStatus = MachineStatus.SETUP
    reports: int = 0
    exit_code: int | None = None
    generation: int = 0


class CheckpointMachines:
    """Machines that hold one run together, and save checkpoints of it; see `SimulatedRuntime`."""

    def __init__(self, context: TrialContext, calls: FleetCalls) -> None:
        """Prepare.

        Args:
            context: shared by the run's leases.
            calls: the fleet.
        """
        self.finish_s: float | None = None
        self.context = context
        self._timeline = context.timeline
        self._calls = calls
        self._members: dict[str, _Member] = {}
        self._worker: SimulatedWorker | None = None
        self._nodes: tuple[str, ...] = ()
        self._observed: ProgressObserved | None = None

    @property
    def progress(self) -> int:
        """The newest committed step."""
        return self.context.run.saved_step

    @property
    def machines(self) -> int:
        """How many train together."""
        return self.context.scenario.machines

    def start(self, machine_id: str, slot: int, n: int) -> None:
        """Prepare a machine that is up."""
        member = self._members[machine_id] = _Member(machine_id, slot, n, self._timeline.time)
        self.context.breakdown.usable(slot, 1, self._timeline.time)
        self._timeline.at(self.context.draws.prepare_s(slot, n), partial(self._prepared, member))
        self._report(member)

    def notice(self, machine_id: str, left_s: float) -> None:
        """Receive a machine's notice."""
        member, time_s = self._members[machine_id], self._timeline.time
        if not member.noticed:
            self.context.breakdown.usable(member.slot, -1, time_s)
        member.noticed, member.gone_s = True, time_s + left_s
        if self.context.scenario.successor_at_notice:
            self._report(member)
        if self._worker is not None and machine_id in self._nodes:
            self._worker.notice(machine_id, left_s)

    def end(self, machine_id: str) -> None:
        """End a machine, and the lease if it was the leader."""
        member = self._members.pop(machine_id, None)
        if member is None:
            return
        if not member.noticed:
            self.context.breakdown.usable(member.slot, -1, self._timeline.time)
        self._leave_lease(member)

    def direct(self, directives: Directives) -> bool:
        """Start the run on the machines of the driver's directive, if all are ready."""
        if self._worker is not None or self.finish_s is not None:
            return False
        ready = {name: one for name, one in self._members.items() if one.ready and not one.noticed}
        if len(ready) < self.machines:
            return False
        found = directives()
        nodes: tuple[str, ...] = ()
        generation = 0
        for name in ready:
            directive = found.get(name)
            if directive is not None and directive.desired_state is DesiredState.RUN:
                generation = directive.generation
                nodes = tuple(peer.machine_id for peer in directive.peers) if self.machines > 1 else (name,)
                break
        if not nodes or not all(name in ready for name in nodes):
            return False
        self._take(nodes, generation)
        return True

    def observe(self) -> ProgressObserved | None:
        """Return news of the run's log; a stored checkpoint waits for the next other fact."""
        run = self.context.run
        if not run.term:
            return None
        safe = WorkDone(float(run.saved_step), Unit.STEP)
        holders = () if run.holder is None else (run.holder,)
        observed = ProgressObserved(run.term, JobProgress(safe, safe, 0, run.outcome, holders))
        if observed == self._observed:
            return None
        self._observed = observed
        return observed

    # ------------------------------------------------------------------------------------------------------- inside

    def _prepared(self, member: _Member) -> None:
        if member.machine_id in self._members:
            member.ready = True
            member.status = MachineStatus.WAITING
            self._report(member)
            self._calls.settle()

    def _leave_lease(self, member: _Member) -> None:
        """Tell the worker that a machine ended."""
        worker = self._worker
        if worker is None or member.machine_id not in self._nodes:
            return
        if member.noticed:
            worker.last_turn()
            if self._worker is None:
                return
        node = self._nodes.index(member.machine_id)
        worker.lose(node, member.machine_id)
        if node == 0:
            self.context.run.vanish(self._timeline.time)
            self._lease_ended(EXIT_RETRY)

    def _take(self, nodes: tuple[str, ...], generation: int) -> None:
        time_s = self._timeline.time
        leader = self._members[nodes[0]]
        self._nodes = nodes
        self.context.run.take(nodes[0], time_s)
        self._worker = SimulatedWorker(
            self.context,
            next((self._members[name].n for name in nodes if self._members[name].slot == 0), leader.n),
            time_s - leader.started_s,
            ended=self._lease_ended,
        )
        for name in nodes:
            member = self._members[name]
            member.status, member.exit_code, member.generation = MachineStatus.TRAINING, None, generation
            self._report(member)
        self._worker.start()

    def _lease_ended(self, exit_code: int) -> None:
        """End the lease."""
        self._worker = None
        if self.context.run.outcome is Outcome.DONE:
            self.finish_s = self._timeline.time
        for name in self._nodes:
            member = self._members.get(name)
            if member is not None:
                member.status, member.exit_code = MachineStatus.WAITING, exit_code
                self._report(member)
        self._nodes = ()
        self._calls.settle()

    def _report(self, member: _Member) -> None:
        """Report the status of a machine to the driver."""
        member.reports += 1
        announced = member.noticed and self.context.scenario.successor_at_notice
        left_s = Seconds(max(member.gone_s - self._timeline.time, 0.0)) if announced else None
        run = self.context.run
        training = member.status is MachineStatus.TRAINING
        report = Report(
            member.machine_id,
            member.reports,
            "node-agent",
            member.status,
            term=run.term if training else None,
            step=run.saved_step if training else None,
            saved_step=run.saved_step if training else None,
            exit_code=member.exit_code,
            level=NoticeLevel.ANNOUNCED if announced else None,
            preemption_in_s=left_s,
            generation=member.generation,
            address=f"{member.machine_id}:1" if self.machines > 1 else "",
        )
        now = Instant(WALL_START + self._timeline.time)
        preemption_at = None if left_s is None else Instant(now + left_s)
        self._calls.add(MachineReported(report, "direct", preemption_at))
