"""One simulated job: the reducer of the real driver, with machines that a simulated provider sells.

A machine starts, prepares, waits, trains, and ends; it reports each of these to the driver and follows its directives, as
the live node agent does.  The driver decides which machines train, and from when on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, Final

from windfall.core import driver
from windfall.errors import EXIT_RETRY, Infeasible
from windfall.events import Command, Fact, SetTimer, TimerFired
from windfall.fleet import (
    CancelOrder,
    ChargesObserved,
    ControllerStarted,
    DesiredState,
    JobSubmitted,
    ListingCompleted,
    MachineReported,
    MachinesObserved,
    MachineStatus,
    OffersObserved,
    OrderAnswered,
    PlaceOrder,
    ProgressObserved,
    ReleaseMachine,
    Report,
    RequestListing,
    SettleJob,
)
from windfall.jobs import Job, Recovery, Resources, Use, Work
from windfall.market import Boot, Machine, MachineEndCause, Order
from windfall.simulation.engine_journal import JournalRows
from windfall.simulation.engine_worker import SimulatedWorker, TrialContext
from windfall.simulation.simulated_provider import SimulatedProvider
from windfall.simulation.virtual_time import WALL_START, Timeline
from windfall.terms import Instant, JobProgress, NoticeLevel, Outcome, RunOptions, Seconds, Term, Unit, WorkDone

OWNER: Final = "simulated"
_BOOT: Final = Boot(("windfall", "node-agent"))
_CONTROLLER: Final = Term(1)
_NO_GUARD = 10**9
MACHINES_WITHOUT_PROGRESS_MAX: Final = 20_000
"""How many machines of a slot may end in a row without a new committed checkpoint."""


@dataclass(slots=True)
class _Member:
    """A machine of the job, from its own point of view.

    Attributes:
        n: its number within its slot, from 0.
        ends_s: when it ends [s].
        ready: it is prepared.
        noticed: it has its notice, and ends at `gone_s` [s].
        reports: how many it has sent.
    """

    machine_id: str
    slot: int
    n: int
    ends_s: float
    alive: bool = False
    started_s: float = 0.0
    ready: bool = False
    noticed: bool = False
    gone_s: float = 0.0
    status: MachineStatus = MachineStatus.SETUP
    reports: int = 0
    exit_code: int | None = None
    generation: int = 0


class SimulatedFleet:
    """One job's machines, its driver, and its run.

    Attributes:
        started_s: the submission [s of virtual time].
        finish_s: the end of the last step [s of virtual time]; None before.
        billed_s: of ended machines [s].
        preemptions: how many machines were preempted.
        over: the job is done and every machine is released.
    """

    def __init__(
        self, job_id: str, context: TrialContext, provider: SimulatedProvider, rows: JournalRows | None
    ) -> None:
        """Prepare; `submit` starts.

        Args:
            job_id: unique on this timeline.
            context: shared by its leases.
            provider: sells machines to it.
            rows: the driver's journal; None: it is not kept.
        """
        self.started_s = 0.0
        self.finish_s: float | None = None
        self.billed_s = 0.0
        self.preemptions = 0
        self.over = False
        self.context = context
        self.rows = rows
        self.job_id = job_id
        self._timeline: Timeline = context.timeline
        self._provider = provider
        self._state = driver.initial_state()
        self._inbox: list[Fact] = []
        self._settling = False
        self._settle_due = False
        self._members: dict[str, _Member] = {}
        self._allocations: list[tuple[int, int, float, float]] = []
        self._simulated_worker: SimulatedWorker | None = None
        self._nodes: tuple[str, ...] = ()
        self._wake_at: float | None = None
        self._observed: ProgressObserved | None = None
        self._without_progress = 0
        self._saved_step = 0

    def submit(self, machine_type: str) -> None:
        """Submit the job, for one kind of machine."""
        self.started_s = self._timeline.time
        scenario = self.context.scenario
        job = Job(
            self.job_id,
            self.job_id,
            "simulated",
            f"simulated://{self.job_id}",
            ("train",),
            (Resources(machine_type=machine_type),),
            nodes=scenario.machines,
            use=Use.SPOT,
            work=Work(float(scenario.steps), Unit.STEP),
            options=RunOptions(policy=scenario.policy),
            # Engine and kernels have bounds of their own; the guard against jobs without progress is for live jobs.
            recovery=Recovery(unproductive_machines_max=_NO_GUARD),
        )
        self._inbox += [
            JobSubmitted(job, OWNER),
            ControllerStarted(_CONTROLLER),
            OffersObserved(self._provider.offers()),
            ListingCompleted(self._provider.name),
        ]
        self.settle()

    # ---------------------------------------------------------------------------------------------- machines

    def allocate_s(self, order: Order, which: int) -> float:
        """Return the time until a machine of an order starts [s]; the provider calls this for each order."""
        now_s, draws = self._timeline.time, self.context.draws
        slot, n, _, _ = self._allocations[which]
        self._check_progress(order.job_id)
        waits_s = draws.allocate_s(slot, n)
        starts_s, ends_s = draws.lifetime(slot, n, now_s + waits_s)
        if starts_s != now_s + waits_s:
            waits_s = max(starts_s - now_s, 0.0)
        self._allocations[which] = (slot, n, now_s + waits_s, ends_s)
        return waits_s

    def _check_progress(self, job_id: str) -> None:
        saved_step = self.context.run.saved_step
        self._without_progress = self._without_progress + 1 if saved_step == self._saved_step else 0
        self._saved_step = saved_step
        if self._without_progress >= MACHINES_WITHOUT_PROGRESS_MAX * self.context.scenario.machines:
            raise Infeasible(
                f"job {job_id} makes no progress: {self._without_progress} machines ended since step {saved_step} was "
                "stored; save more often, or use machines that live longer"
            )

    def started(self, machine: Machine) -> None:
        """Start a machine."""
        member, time_s = self._members[machine.machine_id], self._timeline.time
        member.alive, member.started_s = True, time_s
        self.context.breakdown.usable(member.slot, 1, time_s)
        if member.ends_s < float("inf"):
            # Machines whose window ends take their leader along: it no longer receives the others' ends.
            first = member.slot - self.context.scenario.machines
            announced = self.context.draws.announced(member.slot, member.n)
            happens_s, what = self._end_of(member, announced=announced)
            self._timeline.when(max(happens_s, time_s), partial(what, member), priority=first)
        self._timeline.at(self.context.draws.prepare_s(member.slot, member.n), partial(self._prepared, member))
        self._inbox.append(MachinesObserved((machine,)))
        self._report(member)
        self.settle()

    def _end_of(self, member: _Member, *, announced: bool) -> tuple[float, Callable[[_Member], None]]:
        """Return the time of the first event of a machine's end [s], and its action."""
        scenario = self.context.scenario
        if not announced:
            return member.ends_s, self._lifetime_ends
        if scenario.lifetime_ends_at_notice:
            notice_at_s, member.ends_s = member.ends_s, member.ends_s + scenario.notice_s
            return notice_at_s, self._announce
        return member.ends_s - scenario.notice_s, self._announce

    def _announce(self, member: _Member) -> None:
        """Send a machine its notice."""
        if not member.alive:
            return
        first, left_s = member.slot - self.context.scenario.machines, max(member.ends_s - self._timeline.time, 0.0)
        self._timeline.when(member.ends_s, partial(self._lifetime_ends, member), priority=first)
        self._provider.announce(member.machine_id, Seconds(left_s))

    def _lifetime_ends(self, member: _Member) -> None:
        """Preempt a machine."""
        if member.alive:
            self._provider.end(member.machine_id, MachineEndCause.PREEMPTED)

    def noticed(self, machine_id: str, left_s: float) -> None:
        """Receive a machine's notice."""
        member, time_s = self._members[machine_id], self._timeline.time
        self.context.breakdown.usable(member.slot, -1, time_s)
        member.noticed, member.gone_s = True, time_s + left_s
        if self.context.scenario.successor_at_notice:
            self._report(member)
        if self._simulated_worker is not None and machine_id in self._nodes:
            self._simulated_worker.notice(machine_id, left_s)
        self.settle()

    def _prepared(self, member: _Member) -> None:
        if member.alive:
            member.ready = True
            member.status = MachineStatus.WAITING
            self._report(member)
            self.settle()

    def ended(self, machine: Machine) -> None:
        """End a machine."""
        member, time_s = self._members.pop(machine.machine_id), self._timeline.time
        if member.alive:
            member.alive = False
            self.billed_s += time_s - member.started_s
            preempted = machine.cause is MachineEndCause.PREEMPTED
            # A machine on notice may be released before its announced end, once its successor can take over.
            self.preemptions += preempted or (member.noticed and self.finish_s is None)
            if not member.noticed:
                self.context.breakdown.usable(member.slot, -1, time_s)
            self._leave_lease(member)
        self._inbox.append(MachinesObserved((machine,)))
        self.settle()

    def _leave_lease(self, member: _Member) -> None:
        """Tell the worker that a machine ended."""
        worker = self._simulated_worker
        if worker is None or member.machine_id not in self._nodes:
            return
        if member.noticed:
            worker.last_turn()
            if self._simulated_worker is None:
                return
        node = self._nodes.index(member.machine_id)
        worker.lose(node, member.machine_id)
        if node == 0:
            self.context.run.vanish(self._timeline.time)
            self._lease_ended(EXIT_RETRY)

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
            address=f"{member.machine_id}:1" if self.context.scenario.machines > 1 else "",
        )
        preemption_at = None if left_s is None else Instant(self._now() + left_s)
        self._inbox.append(MachineReported(report, "direct", preemption_at))

    # -------------------------------------------------------------------------------------------------------- the run

    def _try_start(self) -> bool:
        """Start the run on the machines of the driver's directive, if all are ready; return whether it started."""
        if self._simulated_worker is not None or self.finish_s is not None:
            return False
        machines = self.context.scenario.machines
        ready = {name: one for name, one in self._members.items() if one.ready and not one.noticed}
        if len(ready) < machines:
            return False
        directives = driver.directives(self._state, _CONTROLLER)
        nodes: tuple[str, ...] = ()
        generation = 0
        for name in ready:
            directive = directives.get(name)
            if directive is not None and directive.desired_state is DesiredState.RUN:
                generation = directive.generation
                nodes = tuple(peer.machine_id for peer in directive.peers) if machines > 1 else (name,)
                break
        if not nodes or not all(name in ready for name in nodes):
            return False
        self._take(nodes, generation)
        return True

    def _take(self, nodes: tuple[str, ...], generation: int) -> None:
        time_s = self._timeline.time
        leader = self._members[nodes[0]]
        self._nodes = nodes
        self.context.run.take(nodes[0], time_s)
        self._simulated_worker = SimulatedWorker(
            self.context,
            next(self._members[name].n for name in nodes if self._members[name].slot == 0),
            time_s - leader.started_s,
            ended=self._lease_ended,
        )
        for name in nodes:
            member = self._members[name]
            member.status, member.exit_code, member.generation = MachineStatus.TRAINING, None, generation
            self._report(member)
        self._simulated_worker.start()

    def _lease_ended(self, exit_code: int) -> None:
        """End the lease."""
        self._simulated_worker = None
        run = self.context.run
        if run.outcome is Outcome.DONE:
            self.finish_s = self._timeline.time
        for name in self._nodes:
            member = self._members.get(name)
            if member is not None:
                member.status, member.exit_code = MachineStatus.WAITING, exit_code
                self._report(member)
        self._nodes = ()
        self.settle()

    def _observe_run(self) -> None:
        """Report news of the run's log to the driver; a stored checkpoint waits for the next other fact."""
        run = self.context.run
        if not run.term:
            return
        safe = WorkDone(float(run.saved_step), Unit.STEP)
        holders = () if run.holder is None else (run.holder,)
        observed = ProgressObserved(run.term, JobProgress(safe, safe, 0, run.outcome, holders))
        if observed != self._observed:
            self._observed = observed
            self._inbox.insert(0, observed)

    # ----------------------------------------------------------------------------------------------------- the driver

    def settle(self) -> None:
        """Let the driver decide once all events of this instant have happened."""
        if self._settling:
            return
        timeline = self._timeline
        if timeline.next_at() == timeline.time:
            if not self._settle_due:
                self._settle_due = True
                timeline.at(0.0, self._settle_now, priority=1)
            return
        self._settle_now()

    def _settle_now(self) -> None:
        self._settle_due = False
        self._settling = True
        while self._inbox or self._try_start():
            if self._inbox:
                self._observe_run()
                facts, self._inbox = tuple(self._inbox), []
                self._react(facts)
        self._settling = False

    def _now(self) -> Instant:
        return Instant(WALL_START + self._timeline.time)

    def _react(self, facts: tuple[Fact, ...]) -> None:
        now = self._now()
        self._state, decisions, commands = driver.react(self._state, now, facts)
        if self.rows is not None:
            self.rows.write(_CONTROLLER, now, self._timeline.time, (facts, decisions, commands))
        for command in commands:
            execute = _EXECUTE.get(type(command))
            if execute is not None:
                execute(self, command)

    def _order(self, command: PlaceOrder) -> None:
        order = command.order
        slots = [slot for slot in self._state.slots.values() if slot.awaits == order.token]
        self._allocations = [(slot.number, slot.machine_count, 0.0, 0.0) for slot in slots]
        answer = self._provider.order(order, _BOOT)
        for machine_id, (slot, n, _, ends_s) in zip(answer.machine_ids, self._allocations, strict=True):
            self._members[machine_id] = _Member(machine_id, slot, n, ends_s)
        self._inbox.append(OrderAnswered(order.token, answer.machine_ids, answer.refusal, answer.message))

    def _cancel(self, command: CancelOrder) -> None:
        self._provider.cancel(command.token)

    def _release(self, command: ReleaseMachine) -> None:
        self._provider.release(command.machine_id)

    def _list(self, command: RequestListing) -> None:
        self._inbox.append(ListingCompleted(command.provider))

    def _wake(self, command: SetTimer) -> None:
        self._wake_at = command.at
        at_s = max(command.at - WALL_START, self._timeline.time)
        self._timeline.when(at_s, partial(self._fire_timer, command))

    def _fire_timer(self, command: SetTimer) -> None:
        if not self.over and self._wake_at == command.at:
            self._wake_at = None
            self._inbox.append(TimerFired(command.name))
            self.settle()

    def _settled(self, command: SettleJob) -> None:
        del command
        self.over = True

    def bill(self) -> None:
        """Read the bill once everything is over."""
        provider = self._provider
        charges = [charge for charge in provider.charges(OWNER, "").charges if charge.job_id == self.job_id]
        self._inbox.append(ChargesObserved(tuple(charges), provider.name, ""))
        self._settle_now()


_EXECUTE: Mapping[type[Command], Callable[[SimulatedFleet, Any], None]] = MappingProxyType(
    {
        PlaceOrder: SimulatedFleet._order,
        CancelOrder: SimulatedFleet._cancel,
        ReleaseMachine: SimulatedFleet._release,
        RequestListing: SimulatedFleet._list,
        SetTimer: SimulatedFleet._wake,
        SettleJob: SimulatedFleet._settled,
    }
)
