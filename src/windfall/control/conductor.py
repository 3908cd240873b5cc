"""One job's loop at the controller: gather facts, let `core.driver` decide, write the row, carry out the commands.

`turn` is synchronous and touches the world through ports alone, so that storms drive this very object in one thread.  A
crash at any call loses nothing: the journal says what was decided, the providers' listings what came of it.
"""

from __future__ import annotations

import contextlib
import heapq
import queue
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from windfall import codec
from windfall.control.clock import JournalClock
from windfall.control.errands import Errands
from windfall.control.hearing import Hearing
from windfall.control.looking import Looking, Pace
from windfall.control.scheduling import Aside, Scheduler, Scheduling, in_thread
from windfall.core import driver
from windfall.errors import WindfallError
from windfall.events import Command, Fact, Row, Tell, WakeAt, Woke
from windfall.fleet import (
    ChargesSeen,
    ControllerBegan,
    Event,
    JobSubmitted,
    Lifetime,
    MachinesSeen,
    NotifyUser,
)
from windfall.jobs import Job, Measured
from windfall.market import Boot, Life, Order
from windfall.ports import Channel, Clock, Journal, Provider, RunWatch
from windfall.terms import Instant, Seconds, Term

_BILL_ROOM_S = 86400.0
"""So much longer than twice what providers say a bill's last lines are waited for; then they are left unsettled [s]."""
_FACTS_ROUNDS_MAX = 20
"""How often the facts that commands brought are decided upon at once, before the next turn."""


@dataclass(slots=True)
class ConductorPorts:
    """Everything a conductor touches.

    Attributes:
        boot: makes what a machine starts with; the same for the same order.
        notify: tells the user; must not block.
        rates: what all runs of the installation have shown, as `fleet.BeliefsPooled` has it.
        measured: what earlier runs of this job have shown; asked once, when the job begins.
        record_lives: takes the lives of machines into that pool; the same one again replaces it.
        say: takes sentences for the job's own log.
        schedule: makes a machine's schedule of saves; None where no job has one.
        aside: carries `schedule` out without holding up the conductor.
    """

    controller: Term
    owner: str
    clock: Clock
    journal: Journal
    providers: Mapping[str, Provider]
    channels: Sequence[Channel]
    run: RunWatch
    boot: Callable[[Order], Boot]
    notify: Callable[[Event, str], None]
    rates: Callable[[], tuple[tuple[str, str, str, Seconds, Seconds | None], ...]]
    record_lives: Callable[[tuple[Lifetime, ...]], None]
    say: Callable[[str], None]
    pace: Pace = field(default_factory=Pace)
    measured: Callable[[], tuple[Measured, ...]] = tuple
    schedule: Scheduler | None = None
    aside: Aside = in_thread


class Unreadable(WindfallError):
    """A job's journal cannot be read: trying again is of no use, and the job is set aside."""


class Conductor:
    """Drives one job; made anew at each start of the controller.

    Attributes:
        state: the driver's.
        job: what was submitted.
    """

    def __init__(self, job: Job, ports: ConductorPorts) -> None:
        self.job = job
        self.wishes: queue.SimpleQueue[Fact] = queue.SimpleQueue()
        self._ports = ports
        self._timers: list[tuple[Instant, int, str]] = []
        self._wanted: dict[str, Instant] = {}
        self._timer_count = 0
        self.state = driver.begin()
        last = self._replay()
        self._sequence = 0 if last is None else last.sequence
        self._time = JournalClock(ports.clock, last)
        self._hearing = Hearing(ports.pace.silent_after_s)
        self._errands = Errands(ports)
        self._looking = Looking(job, ports, cursors=self._cursors)
        self._scheduling = Scheduling(ports)
        if last is None:
            self._brought: list[Fact] = [
                JobSubmitted(job, ports.owner, ports.measured()),
                ControllerBegan(ports.controller),
            ]
        else:
            self._brought = [ControllerBegan(ports.controller)]
            self._errands.again(last.commands)

    # ------------------------------------------------------------------------------------------------------ a restart

    def _replay(self) -> Row | None:
        """Bring the driver to where the journal ends; timers that were set and have not rung are set again."""
        last = None
        self._cursors: dict[str, str] = {}
        for number, line in enumerate(self._ports.journal.rows(), 1):
            try:
                last = codec.row_from_line(line)
                self._remember(last.facts)
                self.state, _, _ = driver.react(self.state, last.at, last.facts)
            except (WindfallError, ValueError) as error:
                raise Unreadable(f"row {number} of its journal cannot be read ({error})") from error
            except Exception as error:
                # Each start would meet it again: a row that fits no state is as unreadable as one that is no row.
                raise Unreadable(f"row {number} of its journal fits to nothing ({type(error).__name__})") from error
            for command in last.commands:
                self._note(command)
        return last

    def _remember(self, facts: Sequence[Fact]) -> None:
        for fact in facts:
            if isinstance(fact, Woke):
                self._wanted.pop(fact.why, None)
            elif isinstance(fact, ChargesSeen) and fact.provider:
                self._cursors[fact.provider] = fact.cursor

    def _note(self, command: Command) -> None:
        """Take in a wish to be woken, which this loop itself obeys."""
        if isinstance(command, WakeAt):
            self._timer_count += 1
            self._wanted[command.why] = command.at
            heapq.heappush(self._timers, (command.at, self._timer_count, command.why))

    # ---------------------------------------------------------------------------------------------------------- a turn

    def turn(self) -> Seconds:
        """Do what is due.

        Returns:
            After how long the next turn should come, if nothing is wished meanwhile [s].

        Raises:
            ControllerReplaced: another controller took the installation; this object must not be used any more.
        """
        facts, self._brought = [*self._brought, *self._gather()], []
        for _ in range(_FACTS_ROUNDS_MAX):
            if not facts:
                break
            self._react(facts)
            facts, self._brought = [*self._brought, *self._errands.brought()], []
        self._brought = facts
        directives = driver.directives(self.state, self._ports.controller)
        for channel in self._ports.channels:
            channel.tell(directives)
        return self._patience_s()

    def summary(self) -> driver.JobSummary:
        """Return how the job stands."""
        return driver.summary(self.state, self._time.now())

    def alive(self) -> tuple[str, ...]:
        """Return the machines that run, as far as the providers' listings tell."""
        known = driver.known_machines(self.state).values()
        return tuple(machine.machine_id for machine in known if machine.life is Life.RUNNING)

    def _gather(self) -> list[Fact]:
        facts: list[Fact] = []
        while not self.wishes.empty():
            facts.append(self.wishes.get_nowait())
        now, journal_now = self._ports.clock.now(), self._time.now()
        for channel in self._ports.channels:
            facts += self._hearing.hear(channel.hear(), channel.name, now, journal_now)
        facts += self._looking.look(self.state, now)
        # One that was never listed as running may have spoken: its silence counts too.
        known = driver.known_machines(self.state).values()
        alive = [machine.machine_id for machine in known if machine.life is not Life.GONE]
        facts += self._hearing.silent(alive, now)
        facts += self._errands.run(now)
        facts += self._scheduling.look(self.state, self._hearing.newest(), now, journal_now)
        return facts + self._due(self._time.now())

    def _due(self, now: Instant) -> list[Fact]:
        facts: list[Fact] = []
        while self._timers and self._timers[0][0] <= now:
            at, _, why = heapq.heappop(self._timers)
            if self._wanted.get(why) == at:
                del self._wanted[why]
                facts.append(Woke(why))
        return facts

    def _react(self, facts: list[Fact]) -> None:
        now = self._time.now()
        before = self.state
        state, decisions, commands = driver.react(before, now, tuple(facts))
        row = Row(
            self._ports.controller, self._sequence + 1, now, self._ports.clock.wall(), tuple(facts), decisions, commands
        )
        self._ports.journal.append(codec.row_to_line(row))
        self.state, self._sequence = state, row.sequence
        self._remember(facts)
        if any(isinstance(fact, MachinesSeen) for fact in facts):
            self._ports.record_lives(driver.lifetimes(before, state, tuple(facts)))
        for command in commands:
            self._note(command)
            if isinstance(command, NotifyUser):
                self._ports.notify(command.event, command.sentence)
            elif isinstance(command, Tell):
                self._ports.say(command.sentence)
            else:
                self._errands.obey(command, self._ports.clock.now())

    def _patience_s(self) -> Seconds:
        if self._brought:
            return Seconds(0.0)
        now = self._ports.clock.now()
        soon = min(self._looking.next_at(now), self._errands.next_at(now)) - now
        if self._timers:
            soon = min(soon, self._timers[0][0] - self._time.now())
        return Seconds(min(max(soon, 0.0), self._ports.pace.turn_s))

    @property
    def ended(self) -> bool:
        """Whether nothing is left to be done until a user wishes something.

        The job has ended, its bill is complete or long overdue, and every provider knows that nothing more is wanted.
        """
        end = self.state.ended
        if end is None or self._brought or self._errands.cancelling:
            return False
        return not driver.wants_bill(self.state) or self._time.now() >= end.since + self._bill_patience_s

    @property
    def _bill_patience_s(self) -> Seconds:
        lags = [0.0]
        for provider in self._ports.providers.values():
            with contextlib.suppress(WindfallError):
                lags.append(provider.capabilities().bill_lag_s)
        return Seconds(_BILL_ROOM_S + 2.0 * max(lags))
