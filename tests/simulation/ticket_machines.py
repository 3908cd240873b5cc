"""The machines of a job of tickets in the event engine: the simulated counterpart of the toy runtime (`support.tickets`)."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from tests.support import ticket_counter, tickets
from tests.support.ticket_counter import Grant, TicketCounter
from windfall.fleet import DesiredState, MachineReported, MachineStatus, ProgressObserved, Report
from windfall.simulation.engine_fleet import SimulatedFleet
from windfall.simulation.engine_runtime import Directives, FleetCalls
from windfall.simulation.virtual_time import WALL_START, Timeline
from windfall.terms import Instant, NoticeLevel, Seconds, Step


@dataclass(slots=True)
class TicketMember:
    """A machine, from its own point of view.

    Attributes:
        ends_s: its announced end; None without a notice.
        grant: the number in its hands.
        request: how many numbers it asked for.
        clerk_term: under which it is the clerk; 0 if it is none.
        leaving: it is drained.
    """

    machine_id: str
    role: str
    status: MachineStatus = MachineStatus.SETUP
    reports: int = 0
    ends_s: float | None = None
    grant: Grant | None = None
    request: int = 0
    clerk_term: int = 0
    leaving: bool = False
    done: int = 0


class TicketMachines:
    """`SimulatedRuntime` of a job of tickets.

    Attributes:
        counter: of the numbers.
        made: the numbers in the order in which they were done, with the machine.
    """

    def __init__(
        self,
        timeline: Timeline,
        calls: FleetCalls,
        *,
        numbers: int,
        seed: int,
        prepare_s: tuple[float, float] = (5.0, 30.0),
        work_s: Callable[[int], float] | None = None,
        training: tickets.QueueSettings | None = None,
    ) -> None:
        self.finish_s: float | None = None
        self.counter = TicketCounter(numbers)
        self._training = training
        if training is not None:
            self.counter = TicketCounter(numbers, loss_scale=training.loss_scale, loss_goal=training.loss_goal)
        self.made: list[tuple[int, str]] = []
        self._timeline, self._calls = timeline, calls
        self._rng = random.Random(f"tickets {seed}")
        self._prepare_s, self._work_s = prepare_s, work_s or self._any_work_s
        self._members: dict[str, TicketMember] = {}
        self._observed: ProgressObserved | None = None

    @property
    def progress(self) -> int:
        """How many numbers are done."""
        return len(self.counter.done)

    @property
    def machines(self) -> int:
        """Each works by itself."""
        return 1

    def start(self, machine_id: str, slot: int, n: int) -> None:
        """Prepare a machine that is up; its role is that of its slot."""
        del slot, n
        assert isinstance(self._calls, SimulatedFleet)
        state = self._calls.state
        found = state.units[machine_id].slot
        role = "" if found is None else state.slots[found].need.role
        member = self._members[machine_id] = TicketMember(machine_id, role)
        self._report(member)
        self._timeline.at(self._rng.uniform(*self._prepare_s), partial(self._prepared, member))

    def notice(self, machine_id: str, left_s: float) -> None:
        """Receive the notice of a machine's end."""
        member = self._members.get(machine_id)
        if member is not None:
            member.ends_s = self._timeline.time + left_s
            self._report(member)

    def end(self, machine_id: str) -> None:
        """End with a machine: what it had goes back."""
        if self._members.pop(machine_id, None) is not None:
            self.counter = ticket_counter.declared_gone(self.counter, machine_id)

    def direct(self, directives: Directives) -> bool:
        """Follow the driver's directives; return whether a machine has something to say."""
        found, said = directives(), False
        for member in list(self._members.values()):
            directive = found.get(member.machine_id)
            if directive is None or member.status is MachineStatus.SETUP:
                continue
            wanted = directive.desired_state
            member.leaving = member.leaving or wanted is DesiredState.DRAIN
            if wanted is DesiredState.RUN and not member.leaving:
                self._work(member)
            elif member.leaving and member.clerk_term:
                self.counter = ticket_counter.closed(self.counter, member.clerk_term)
                member.clerk_term = 0
            said = self._tell(member) or said
        return said

    def observe(self) -> ProgressObserved | None:
        """Return the progress if it has changed since the last call."""
        found = ticket_counter.observed(self.counter)
        if found == self._observed:
            return None
        self._observed = found
        return found

    # ------------------------------------------------------------------------------------------------------- inside

    def _prepared(self, member: TicketMember) -> None:
        if member.machine_id in self._members:
            member.status = MachineStatus.WAITING
            self._report(member)
            self._calls.settle()

    def _work(self, member: TicketMember) -> None:
        """Be the clerk, or take a number."""
        now_s = self._timeline.time
        if member.role == tickets.CLERK:
            self.counter = ticket_counter.opened(self.counter, member.machine_id, now_s)
            member.clerk_term = self.counter.clerk_term if self.counter.clerk == member.machine_id else 0
        elif member.grant is None and member.ends_s is None and self.counter.clerk:
            request = member.request + 1
            self.counter, member.grant = ticket_counter.taken(self.counter, member.machine_id, request, now_s)
            if member.grant is not None:
                member.request = request
                self._timeline.at(self._takes_s(member), partial(self._done, member, member.grant))

    def _takes_s(self, member: TicketMember) -> float:
        """Return how long a number takes: by the machine's type in a training."""
        assert member.grant is not None
        if self._training is None:
            return self._work_s(member.grant.number)
        assert isinstance(self._calls, SimulatedFleet)
        slot = self._calls.state.units[member.machine_id].slot
        assert slot is not None
        return self._training.work_s[self._calls.state.slots[slot].need.wants[0][1]]

    def _any_work_s(self, number: int) -> float:
        return self._rng.uniform(10.0, 60.0)

    def _done(self, member: TicketMember, grant: Grant) -> None:
        """Hand a result in; without a clerk it waits for the next one."""
        if member.machine_id not in self._members:
            return
        if not self.counter.clerk:
            self._timeline.at(1.0, partial(self._done, member, grant))
            return
        member.grant = None
        self.counter, accepted = ticket_counter.committed(self.counter, grant)
        if accepted:
            member.done += 1
            self.made.append((grant.number, member.machine_id))
        if self.counter.finished and self.finish_s is None:
            self.finish_s = self._timeline.time
        self._report(member)
        self._calls.settle()

    def _tell(self, member: TicketMember) -> bool:
        """Report a machine whose status has changed."""
        working = member.grant is not None or bool(member.clerk_term)
        status = MachineStatus.TRAINING if working else MachineStatus.WAITING
        if status is member.status:
            return False
        member.status = status
        self._report(member)
        return True

    def _report(self, member: TicketMember) -> None:
        member.reports += 1
        left_s = None if member.ends_s is None else Seconds(max(member.ends_s - self._timeline.time, 0.0))
        report = Report(
            member.machine_id, member.reports, "life", member.status, step=Step(member.done), preemption_in_s=left_s,
            level=None if left_s is None else NoticeLevel.ANNOUNCED,
        )  # fmt: skip
        at = None if left_s is None else Instant(WALL_START + self._timeline.time + left_s)
        self._calls.add(MachineReported(report, "direct", at))
