"""One job's loop at the controller: gather facts, let `core.driver` decide, write the row, execute the commands.

`turn` is synchronous and touches the world only through ports, so that storms drive this same object in one thread.  A
crash at any call loses nothing: the journal holds the decisions, the providers' listings show their effects.

Beside the loop stand its parts: the builder of save schedules, which computes in the background; the journal clock, the
time of a job's driver; and the record of each machine's reports on any channel, which tells news from repetition and
names silent machines.  That record uses this process's monotonic clock, so that a jump of the wall clock makes no machine
silent.  After a pause of the controller itself, every machine counts as just heard.
"""

from __future__ import annotations

import contextlib
import heapq
import queue
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from windfall import codec
from windfall.control.provider_calls import CommandExecutor, Poller, PollingPace
from windfall.control.state_snapshots import ROWS as SNAPSHOT_ROWS
from windfall.control.state_snapshots import SnapshotWriter, restore
from windfall.core import driver, machine_ages, save_schedules
from windfall.core.fleet_state import FleetState
from windfall.errors import WindfallError
from windfall.events import Command, Fact, LogMessage, Row, SetTimer, TimerFired
from windfall.fleet import (
    AgeWeighed,
    ControllerStarted,
    Event,
    JobSubmitted,
    Lifetime,
    MachineReported,
    MachineSilent,
    MachinesObserved,
    NotifyUser,
    PlaceOrder,
    Report,
    ScheduleComputed,
)
from windfall.jobs import Forecast, Job, Measurement
from windfall.market import BootSpec, MachineLifecycle, Order
from windfall.policies.acquisition import fleet_policy_list
from windfall.policies.checkpointing.schedule_table import ScheduleRequest
from windfall.policies.replacement.age_requests import AgeRequest
from windfall.ports import Channel, Clock, FleetListener, Journal, Provider, Runtime, Snapshots
from windfall.terms import Instant, Seconds, Term

Scheduler = Callable[[ScheduleRequest], ScheduleComputed | None]
"""Returns a machine's new schedule; None if its present one is good enough.  May take seconds."""
AgeScale = Callable[[AgeRequest], AgeWeighed | None]
"""Returns what a machine's next item is expected to take there and on a new one; None without the packages for it."""
InBackground = Callable[[Callable[[], None]], None]
"""Runs a call later, without blocking its caller."""
_DOUBLINGS_MAX = 16


def in_thread(call: Callable[[], None]) -> None:
    """Run a call in its own thread."""
    threading.Thread(target=call, name="schedule", daemon=True).start()


class ScheduleBuilder:
    """Finds the machines that need a schedule, has it built, and returns it as a fact."""

    def __init__(self, ports: JobLoopPorts) -> None:
        self._ports = ports
        self._made: queue.SimpleQueue[ScheduleComputed | AgeWeighed] = queue.SimpleQueue()
        self._busy = threading.Event()
        self._first_at = self._again_at = Instant(float("-inf"))
        self._trouble = ""
        self._failures = 0

    def poll(self, state: FleetState, reports: Mapping[str, Report], now: Instant, journal_now: Instant) -> list[Fact]:
        """Return the schedules built since the last poll, and start building those that are due.

        A machine without a schedule since it took the run is polled as often as the run, others as often as the estimates.

        Args:
            state: the driver's.
            reports: the newest of each machine.
            now: monotonic time of this process.
            journal_now: the same moment on the journal clock.
        """
        found: list[Fact] = []
        while not self._made.empty():
            found.append(self._made.get())
        if found or self._busy.is_set() or now < self._first_at:
            return found
        pace = self._ports.pace
        requests = save_schedules.requests(state, reports, journal_now) if self._ports.schedule else ()
        ages = machine_ages.requests(state, reports, journal_now) if self._ports.weigh else ()
        # A failed build may have cost seconds of this process, so the next one starts later.
        self._first_at = Instant(now + min(pace.run_s * 2.0 ** min(self._failures, _DOUBLINGS_MAX), pace.estimates_s))
        if now < self._again_at:
            requests = tuple(request for request in requests if not request.answered)
        elif requests:
            self._again_at = Instant(now + pace.estimates_s)
        if requests or ages:
            self._busy.set()
            self._begin(lambda: self._make(requests, ages))
        return found

    def _begin(self, call: Callable[[], None]) -> None:
        try:
            self._ports.in_background(call)
        except RuntimeError as error:
            self._busy.clear()
            self._failed(f"cannot build a save schedule now: {error}")

    def _make(self, requests: tuple[ScheduleRequest, ...], ages: tuple[AgeRequest, ...]) -> None:
        make, weigh = self._ports.schedule, self._ports.weigh
        try:
            for request in requests:
                assert make is not None, "without it nothing is requested"
                if (made := make(request)) is not None:
                    self._made.put(made)
            for age in ages:
                assert weigh is not None, "without it nothing is requested"
                if (found := weigh(age)) is not None:
                    self._made.put(found)
            self._failures = 0
        except WindfallError as error:
            self._failed(f"cannot build a save schedule now: {error}")
        except Exception as error:
            # A bug here must not stop the job loop: machines save by the default rule.
            self._failed(f"unexpected error in building a save schedule: {type(error).__name__}: {error}")
        finally:
            self._busy.clear()

    def _failed(self, message: str) -> None:
        self._failures += 1
        if message != self._trouble:
            self._trouble = message
            self._ports.log(message)


class JournalClock:
    """Unix seconds at a job's first row, advancing with the monotonic clock; restarts never turn it back.

    A jump of the wall clock while the controller runs changes nothing.  After a restart only the wall clock shows how
    long the controller was away; if that is negative, no time has passed.
    """

    def __init__(self, clock: Clock, last: Row | None) -> None:
        self._clock = clock
        self._began = clock.now()
        wall_time = clock.wall_time()
        self._base = wall_time if last is None else last.at + max(0.0, wall_time - last.wall_time)

    def now(self) -> Instant:
        """Return the present instant of the journal."""
        return Instant(self._base + (self._clock.now() - self._began))


_SHIFT_S = 2.0
"""An announced end that moves by more than this is news [s]."""


@dataclass(slots=True)
class _Contact:
    """A machine's newest report, and when its silence was last reported."""

    received_at: Instant
    report: Report | None = None
    preemption_at: Instant | None = None
    silence_reported_at: Instant | None = None
    step_s: float | None = None


class LivenessTracker:
    """The newest report of each machine of a job, and when it was received.

    Args:
        silent_after_s: a machine that was not heard of for longer is silent [s].
        step_times: whether the driver decides by the time of a step.
    """

    def __init__(self, silent_after_s: Seconds, *, step_times: bool = False) -> None:
        self._silent_after_s, self._step_times = silent_after_s, step_times
        self._contacts: dict[str, _Contact] = {}
        self._looked_at: Instant | None = None

    def receive(
        self, reports: Iterable[Report], channel: str, now: Instant, journal_now: Instant
    ) -> list[MachineReported]:
        """Record reports; return a fact for each that changes what the driver decides by.

        Args:
            reports: in order of arrival.
            channel: the channel they came on.
            now: monotonic time of this process.
            journal_now: the same moment on the journal clock.
        """
        news = []
        for report in reports:
            contact = self._contacts.setdefault(report.machine_id, _Contact(now))
            if (
                contact.report is not None
                and report.incarnation == contact.report.incarnation
                and report.sequence <= contact.report.sequence
            ):
                continue  # the slower channel repeats what the faster one brought: not a sign of life
            preemption_at = None if report.preemption_in_s is None else Instant(journal_now + report.preemption_in_s)
            timed = self._step_times and _is_other_time(contact.step_s, report.step_s)
            if timed or contact.silence_reported_at is not None or _is_news(contact, report, preemption_at):
                news.append(MachineReported(report, channel, preemption_at))
                contact.preemption_at, contact.step_s = preemption_at, report.step_s
            contact.received_at, contact.silence_reported_at, contact.report = now, None, report
        return news

    def newest(self) -> dict[str, Report]:
        """Return the newest report of each machine."""
        return {name: contact.report for name, contact in self._contacts.items() if contact.report is not None}

    def silent(self, alive: Iterable[str], now: Instant) -> list[MachineSilent]:
        """Return the machines that have become silent, and at intervals those that still are.

        The repetition matters because the driver may meanwhile have counted something else as a sign of life.

        Args:
            alive: machines that are expected to report; all others are forgotten.
            now: monotonic time of this process.
        """
        paused_s = 0.0 if self._looked_at is None else max(0.0, now - self._looked_at - self._silent_after_s / 2)
        self._looked_at = now
        expected = set(alive)
        self._contacts = {
            machine_id: contact
            for machine_id, contact in self._contacts.items()
            if machine_id in expected or now - contact.received_at < self._silent_after_s
        }
        found = []
        for machine_id in sorted(expected):
            contact = self._contacts.setdefault(machine_id, _Contact(now))
            reported_at = contact.silence_reported_at
            if paused_s:
                contact.received_at = now
                contact.silence_reported_at = None if reported_at is None else now
            elif now - (contact.received_at if reported_at is None else reported_at) > self._silent_after_s:
                contact.silence_reported_at = now
                found.append(MachineSilent(machine_id, Seconds(now - contact.received_at)))
        return found


def _is_news(contact: _Contact, report: Report, preemption_at: Instant | None) -> bool:
    """Return whether a report changes what a driver decides by; steps and sequence numbers always grow."""
    old = contact.report
    if old is None or (preemption_at is None) != (contact.preemption_at is None):
        return True
    if (
        preemption_at is not None
        and contact.preemption_at is not None
        and abs(preemption_at - contact.preemption_at) > _SHIFT_S
    ):
        return True
    return _substance(old) != _substance(report)


def _is_other_time(before_s: float | None, step_s: float | None) -> bool:
    """Return whether the time of a step is known now, or has changed by more than it varies."""
    if before_s is None or step_s is None:
        return step_s is not None
    return abs(step_s - before_s) > _TIME_SHIFT * before_s


def _substance(report: Report) -> tuple[object, ...]:
    return (
        report.incarnation,
        report.status,
        report.term,
        report.exit_code,
        report.level,
        report.generation,
        report.address,
        report.message,
        report.sdk_inactive,
    )


_TIME_SHIFT = 0.1
"""A time of a step that differs by this share is another one [1]."""
_BILL_MARGIN_S = 86400.0
"""A bill's last lines are awaited for twice the providers' stated lag plus this, then left unsettled [s]."""
_FACTS_ROUNDS_MAX = 20
"""Most rounds within one turn in which facts from executed commands lead to new decisions."""


def _no_forecast() -> None:
    """Return that nothing was promised."""


@dataclass(slots=True)
class JobLoopPorts:
    """The job loop's ports.

    Attributes:
        boot: makes what a machine starts with; the same for the same order.
        notify: notifies the user; must not block.
        rates: returns the loss rates of the installation's machines, as `fleet.EstimatesPooled` has them.
        measured: returns the measurements of earlier runs of this job; called once, when the job starts.
        forecast: returns what the job's plan promised; called once, when the job starts.
        record_lifetimes: adds machines' lifetimes to the pool behind `rates`; a machine's newer one replaces its older.
        log: writes a message to the job's log.
        schedule: makes a machine's save schedule; None if no job has one.
        weigh: weighs a machine's age for its next item; None if no machine is retired by its age.
        in_background: runs `schedule` and `weigh`, and the writing of snapshots, without blocking the job loop.
        snapshots: of this job's state; None to replay the whole journal at each start.
        snapshot_rows: rows between two of them.
    """

    controller: Term
    owner: str
    clock: Clock
    journal: Journal
    providers: Mapping[str, Provider]
    channels: Sequence[Channel]
    runtime: Runtime
    boot: Callable[[Order], BootSpec]
    notify: Callable[[Event, str], None]
    rates: Callable[[], tuple[tuple[str, str, str, Seconds, Seconds | None], ...]]
    record_lifetimes: Callable[[tuple[Lifetime, ...]], None]
    log: Callable[[str], None]
    pace: PollingPace = field(default_factory=PollingPace)
    measured: Callable[[], tuple[Measurement, ...]] = tuple
    forecast: Callable[[], Forecast | None] = _no_forecast
    schedule: Scheduler | None = None
    weigh: AgeScale | None = None
    in_background: InBackground = in_thread
    snapshots: Snapshots | None = None
    snapshot_rows: int = SNAPSHOT_ROWS


class JobLoop:
    """Runs one job; created from the journal at each start of the controller.

    Attributes:
        job: what was submitted.
    """

    def __init__(self, job: Job, ports: JobLoopPorts) -> None:
        self.job = job
        self.requests: queue.SimpleQueue[Fact] = queue.SimpleQueue()
        self._ports = ports
        restored = restore(ports.journal, ports.snapshots, ports.log)
        last, self._kept = restored.last, restored.kept
        self._snapshots = SnapshotWriter(
            ports.snapshots, ports.in_background, ports.log, replayed=restored.replayed, every=ports.snapshot_rows
        )
        self._timer_heap = [(at, name) for name, at in self._kept.timers.items()]
        heapq.heapify(self._timer_heap)
        self._sequence = 0 if last is None else last.sequence
        self._time = JournalClock(ports.clock, last)
        step_times = fleet_policy_list.reads_step_times(job.fleet)
        self._liveness = LivenessTracker(ports.pace.silent_after_s, step_times=step_times)
        self._executor = CommandExecutor(ports)
        self._poller = Poller(job, ports, cursors=dict(self._kept.cursors))
        self._schedule_builder = ScheduleBuilder(ports)
        if last is None:
            self._new_facts: list[Fact] = [
                JobSubmitted(job, ports.owner, ports.measured(), ports.forecast()),
                ControllerStarted(ports.controller),
            ]
        else:
            self._new_facts = [ControllerStarted(ports.controller)]
            self._executor.requeue(last.commands)

    @property
    def state(self) -> FleetState:
        """The driver's state."""
        return self._kept.state

    # ---------------------------------------------------------------------------------------------------------- a turn

    def turn(self) -> Seconds:
        """Process one batch of facts: decide, write the row, execute the commands.

        Returns:
            How long to wait until the next turn, if no request comes [s].

        Raises:
            ControllerReplaced: another controller took over the installation; this object must not be used again.
        """
        facts, self._new_facts = [*self._new_facts, *self._gather()], []
        for _ in range(_FACTS_ROUNDS_MAX):
            if not facts:
                break
            self._react(facts)
            facts, self._new_facts = [*self._new_facts, *self._executor.take_facts()], []
        self._new_facts = facts
        directives = driver.directives(self.state, self._ports.controller)
        for channel in self._ports.channels:
            channel.send(directives)
        return self._wait_s()

    def summary(self) -> driver.JobSummary:
        """Return the job's summary."""
        return driver.summary(self.state, self._time.now())

    def alive(self) -> tuple[str, ...]:
        """Return the machines that run, according to the providers' listings."""
        known = driver.known_machines(self.state).values()
        return tuple(machine.machine_id for machine in known if machine.lifecycle is MachineLifecycle.RUNNING)

    def _gather(self) -> list[Fact]:
        facts: list[Fact] = []
        while not self.requests.empty():
            facts.append(self.requests.get_nowait())
        now, journal_now = self._ports.clock.now(), self._time.now()
        for channel in self._ports.channels:
            facts += self._liveness.receive(channel.receive(), channel.name, now, journal_now)
        if isinstance(self._ports.runtime, FleetListener) and self.state.job is not None:
            self._ports.runtime.inform(driver.fleet_facts(self.state, journal_now))
        facts += self._poller.poll(self.state, now)
        # A machine that was never listed as running may have reported, so its silence counts too.
        known = driver.known_machines(self.state).values()
        alive = [machine.machine_id for machine in known if machine.lifecycle is not MachineLifecycle.GONE]
        facts += self._liveness.silent(alive, now)
        facts += self._executor.run(now)
        facts += self._schedule_builder.poll(self.state, self._liveness.newest(), now, journal_now)
        return facts + self._due(self._time.now())

    def _due(self, now: Instant) -> list[Fact]:
        facts: list[Fact] = []
        while self._timer_heap and self._timer_heap[0][0] <= now:
            at, name = heapq.heappop(self._timer_heap)
            if self._kept.timers.get(name) == at and TimerFired(name) not in facts:
                facts.append(TimerFired(name))
        return facts

    def _react(self, facts: list[Fact]) -> None:
        now = self._time.now()
        before = self.state
        began = self._ports.clock.now()
        state, decisions, commands = driver.react(before, now, tuple(facts))
        decided_s = Seconds(self._ports.clock.now() - began)
        row = Row(
            self._ports.controller,
            self._sequence + 1,
            now,
            self._ports.clock.wall_time(),
            tuple(facts),
            decisions,
            commands,
        )
        line = codec.row_to_line(row)
        self._ports.journal.append(line)
        self._kept, self._sequence = self._kept.after(state, row.facts, row.commands), row.sequence
        self._snapshots.row_written(row, line, self._kept, decided_s)
        if any(isinstance(fact, MachinesObserved) for fact in facts):
            self._ports.record_lifetimes(driver.lifetimes(before, state, tuple(facts)))
        for command in commands:
            if isinstance(command, SetTimer):
                heapq.heappush(self._timer_heap, (command.at, command.name))
            if isinstance(command, NotifyUser):
                self._ports.notify(command.event, command.message)
            elif isinstance(command, LogMessage):
                self._ports.log(command.message)
            else:
                self._executor.execute(command, self._ports.clock.now(), self._age_s(command, now))

    def _age_s(self, command: Command, now: Instant) -> Seconds:
        """Return how long ago an order was first sent; exactly 0 if this row is the first to send it."""
        entry = self.state.orders.get(command.order.token) if isinstance(command, PlaceOrder) else None
        return Seconds(0.0 if entry is None else now - entry.placed_at)

    def _wait_s(self) -> Seconds:
        if self._new_facts:
            return Seconds(0.0)
        now = self._ports.clock.now()
        soon = min(self._poller.next_at(now), self._executor.next_at(now)) - now
        if self._timer_heap:
            soon = min(soon, self._timer_heap[0][0] - self._time.now())
        return Seconds(min(max(soon, 0.0), self._ports.pace.turn_s))

    @property
    def ended(self) -> bool:
        """Whether nothing is left to do until a user makes a request.

        The job has ended, its bill is complete or long overdue, and every provider has received the cancellations.
        """
        end = self.state.ended
        if end is None or self._new_facts or self._executor.cancelling:
            return False
        return not driver.needs_bill(self.state) or self._time.now() >= end.since + self._bill_wait_s

    @property
    def _bill_wait_s(self) -> Seconds:
        lags = [0.0]
        for provider in self._ports.providers.values():
            with contextlib.suppress(WindfallError):
                lags.append(provider.capabilities().bill_lag_s)
        return Seconds(_BILL_MARGIN_S + 2.0 * max(lags))
