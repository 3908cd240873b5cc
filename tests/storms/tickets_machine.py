"""A machine of the tickets storm: a clerk that hands out numbers, or a taker that does them, and what happens to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tests.storms import tickets_scene
from tests.support import ticket_counter, tickets
from tests.support.ticket_counter import Grant, TicketCounter
from windfall.fleet import DesiredState, Directive, MachineStatus, Report
from windfall.market import Machine, MachineEndCause
from windfall.terms import NoticeLevel, Reliability, Seconds, Step, Term

if TYPE_CHECKING:
    from tests.storms.tickets import Tickets

TURN_S = (2.5, 3.5)
LOST = 0.04
"""Chance that a message is lost, or its answer, or comes late, or twice [1]."""
LATE_S = 30.0
Change = Callable[[TicketCounter], tuple[TicketCounter, object]]


class TicketNode:
    """A machine that its provider runs.

    Attributes:
        asking: a request for a number is on its way.
        rest: whether a machine that leaves hands back what it could still finish.
    """

    def __init__(self, world: Tickets, machine: Machine) -> None:
        self.world = world
        self.machine_id = machine.machine_id
        self.reliable = machine.reliability is Reliability.RELIABLE
        self.alive = True
        self.frozen_until = 0.0
        self.role = ""
        self.directive: Directive | None = None
        self.adopted = Term(0)
        self.ready = False
        self.level: NoticeLevel | None = None
        self.ends_s = 0.0
        self.sequence = 0
        self.life = world.nonce()
        self.clerk_term = 0
        self.grant: Grant | None = None
        self.finish_s = 0.0
        self.request = 0
        self.asking = False
        self.leaving = False
        self.rest = world.rng.random() < 0.5
        self.done = 0
        self.cut_until = {"direct": 0.0, "clerk": 0.0}
        world.at(world.rng.uniform(1.0, 8.0), self._prepared)
        world.at(world.rng.uniform(0.2, 1.0), self._turn)
        if not world.calm and not world.fleet.quiet:
            world.at(world.rng.expovariate(1.0 / world.fleet.life_s), self._strike)

    @property
    def answers(self) -> bool:
        """Whether it lives and does something."""
        return self.alive and self.world.time >= self.frozen_until

    @property
    def working(self) -> bool:
        """Whether it has something that would be lost."""
        return self.grant is not None or self.asking or bool(self.clerk_term)

    def _prepared(self) -> None:
        self.ready = True

    def _turn(self) -> None:
        if not self.alive:
            return
        self.world.at(self.world.rng.uniform(*TURN_S), self._turn)
        if not self.answers:
            return
        self._send()
        if self.ready and self.alive and self.directive is not None:
            self._follow(self.directive.desired_state)

    # ----------------------------------------------------------------------------------------------------- what it does

    def _follow(self, wanted: DesiredState) -> None:
        if wanted is DesiredState.STOP:
            self.world.provider.end(self.machine_id, MachineEndCause.STOPPED)
            return
        self.leaving = self.leaving or wanted is DesiredState.DRAIN
        if self.role == tickets.CLERK:
            self._serve(starts=wanted is DesiredState.RUN)
        elif self.role == tickets.TAKER:
            self._take(
                starts=wanted is DesiredState.RUN and not self.leaving and self.level is not NoticeLevel.ANNOUNCED
            )

    def _serve(self, *, starts: bool) -> None:
        """Be the clerk, or leave that place."""
        world = self.world
        if self._cut("clerk"):
            return  # it cannot reach the counter, and goes on as if it were the clerk
        if self.leaving and self.clerk_term:
            world.change(ticket_counter.closed(world.counter, self.clerk_term))
            self.clerk_term = 0
        elif starts:
            world.change(ticket_counter.opened(world.counter, self.machine_id, world.time))
            self.clerk_term = world.counter.clerk_term if world.counter.clerk == self.machine_id else 0
        if ticket_counter.serves(world.counter, self.clerk_term):
            world.change(ticket_counter.expired(world.counter, world.time))

    def _take(self, *, starts: bool) -> None:
        """Take a number, do it, hand it in or back."""
        grant, now = self.grant, self.world.time
        if grant is None:
            if starts or self.asking:
                self.asking = True
                request = self.request + 1
                self._ask(lambda counter: ticket_counter.taken(counter, self.machine_id, request, now), self._granted)
        elif now >= self.finish_s:
            self._ask(lambda counter: ticket_counter.committed(counter, grant), self._closed(grant))
        elif self._must_go(now):
            self._ask(lambda counter: (ticket_counter.handed_back(counter, grant), None), self._closed(grant))
        else:
            self._ask(lambda counter: (ticket_counter.heard(counter, self.machine_id, now), None), lambda _: None)

    def _must_go(self, now: float) -> bool:
        announced = self.level is NoticeLevel.ANNOUNCED and self.finish_s > self.ends_s
        return announced or (self.leaving and (self.rest or self.finish_s > now + tickets_scene.SAVE_S / 2))

    def _granted(self, answer: object) -> None:
        if not self.asking or self.grant is not None:
            return
        if answer is None:
            self.asking = False
        elif isinstance(answer, Grant) and answer.request > self.request:
            self.asking, self.request, self.grant = False, answer.request, answer
            self.finish_s = self.world.time + self.world.rng.uniform(*self.world.fleet.work_s)

    def _closed(self, grant: Grant) -> Callable[[object], None]:
        def close(answer: object) -> None:
            if self.grant == grant:
                self.grant = None
                self.done += answer is True

        return close

    def _ask(self, change: Change, receive: Callable[[object], None]) -> None:
        """Ask the clerk to change the counter; the request or its answer may be lost, late or doubled."""
        world, rng = self.world, self.world.rng
        clerks = [one for one in world.nodes.values() if one.clerk_term and one.answers]
        if not clerks or self._cut("clerk"):
            return
        clerk = clerks[-1] if rng.random() < 0.8 else rng.choice(clerks)
        fault = rng.random() / LOST if not world.calm else 9.0
        if fault < 1.0:
            world.count("request lost")
            return
        if fault < 2.0:
            world.count("request late")
            world.at(rng.uniform(1.0, LATE_S), lambda: world.asked(clerk, change))
            return
        answered, answer = world.asked(clerk, change)
        if fault < 3.0:
            world.count("request doubled")
            world.at(rng.uniform(1.0, LATE_S), lambda: world.asked(clerk, change))
        if answered and fault > 4.0:
            world.at(rng.uniform(0.05, 0.5), lambda: receive(answer) if self.answers else None)

    # ----------------------------------------------------------------------------------------------------- its reports

    def _cut(self, channel: str) -> bool:
        if self.world.time < self.cut_until[channel]:
            self.world.count(f"{channel} cut")
            return True
        return False

    def _send(self) -> None:
        world, rng = self.world, self.world.rng
        self.sequence += 1
        status = MachineStatus.SETUP if not self.ready else MachineStatus.WAITING
        left_s = Seconds(max(self.ends_s - world.time, 0.0)) if self.level is NoticeLevel.ANNOUNCED else None
        report = Report(
            self.machine_id, self.sequence, self.life, MachineStatus.TRAINING if self.working else status,
            step=Step(self.done), level=self.level, preemption_in_s=left_s,
        )  # fmt: skip
        if self._cut("direct"):
            return
        fault = rng.random() / LOST if not world.calm else 9.0
        if fault < 1.0:
            world.count("report lost")
            return
        if fault < 3.0:
            world.count("report late" if fault < 2.0 else "report doubled")
            world.at(rng.uniform(1.0, LATE_S), lambda: self._deliver(report))
        if not 1.0 <= fault < 2.0:
            directive = self._deliver(report)
            if directive is not None and not 3.0 <= fault < 4.0:
                self._adopt(directive)

    def _adopt(self, directive: Directive) -> None:
        """Follow a directive, unless its controller was replaced."""
        if directive.controller_term < self.adopted:
            self.world.count("stale controller refused")
            return
        self.adopted, self.directive = directive.controller_term, directive

    def _deliver(self, report: Report) -> Directive | None:
        controller = self.world.reachable()
        if controller is None:
            return None
        self.role = self.role or self.world.role(controller, self.machine_id)
        directive: Directive | None = controller.direct.deliver(report)
        return directive

    # ------------------------------------------------------------------------------------------------ what happens to it

    def noticed(self, level: NoticeLevel, left_s: Seconds | None) -> None:
        """The machine's own notice source; a hint says less than what is known of an end."""
        if level is NoticeLevel.HINT and self.level is not None:
            return
        self.level = level
        self.ends_s = self.world.time + (left_s or 0.0)

    def dies(self) -> None:
        """The machine is gone."""
        self.alive = False

    def _strike(self) -> None:
        world = self.world
        if not self.alive or world.calm:
            return
        fate = world.rng.choice(tickets_scene.CLERK_FATES if self.reliable else tickets_scene.TAKER_FATES)
        world.count(f"fate {fate}")
        getattr(self, f"_{fate.replace(' ', '_')}")(world.rng.uniform(3.0, 60.0))
        world.at(world.rng.expovariate(1.0 / world.fleet.life_s), self._strike)

    def _end(self, cause: MachineEndCause) -> None:
        self.world.provider.end(self.machine_id, cause)

    def _vanish(self, lead_s: float) -> None:
        self._end(self.world.rng.choice([MachineEndCause.PREEMPTED, MachineEndCause.FAILED]))

    def _breaks(self, lead_s: float) -> None:
        self._end(MachineEndCause.FAILED)

    def _half(self, lead_s: float) -> None:
        """Of a gang, this one machine breaks, and its provider lets the other run."""
        self.world.provider.end_alone(self.machine_id)

    def _honest(self, lead_s: float) -> None:
        self.world.provider.take(self.machine_id, Seconds(lead_s))

    def _early(self, lead_s: float) -> None:
        self.world.provider.announce(self.machine_id, Seconds(lead_s))
        self.world.at(lead_s * self.world.rng.uniform(0.1, 0.9), lambda: self._end(MachineEndCause.PREEMPTED))

    def _never(self, lead_s: float) -> None:
        self.world.provider.announce(self.machine_id, Seconds(lead_s))

    def _withdrawn(self, lead_s: float) -> None:
        self.world.provider.announce(self.machine_id, Seconds(lead_s))
        self.world.at(lead_s * self.world.rng.uniform(0.1, 0.9), lambda: self.world.provider.withdraw(self.machine_id))

    def _flutter(self, lead_s: float) -> None:
        self.world.provider.announce(self.machine_id, Seconds(60.0 + lead_s))
        self.world.at(self.world.rng.uniform(1.0, 8.0), lambda: self.world.provider.withdraw(self.machine_id))

    def _hint(self, lead_s: float) -> None:
        self.world.provider.hint(self.machine_id)

    def _unacknowledged(self, lead_s: float) -> None:
        self.world.provider.mark(self.machine_id, Seconds(lead_s))

    def _zombie(self, lead_s: float) -> None:
        """It runs, is billed, and does nothing more."""
        self.frozen_until = 1e9

    def _stopped(self, lead_s: float) -> None:
        """It stands still for longer than a lease, and then goes on as if nothing had happened."""
        self.frozen_until = max(self.frozen_until, self.world.time + 2.0 * lead_s)

    def _direct_cut(self, lead_s: float) -> None:
        self.cut_until["direct"] = self.world.time + lead_s

    def _clerk_cut(self, lead_s: float) -> None:
        self.cut_until["clerk"] = self.world.time + 2.0 * lead_s

    def _both_cut(self, lead_s: float) -> None:
        self._direct_cut(lead_s)
        self._clerk_cut(lead_s)

    def _stops_itself(self, lead_s: float) -> None:
        self._end(MachineEndCause.STOPPED)

    def _none(self, lead_s: float) -> None:
        pass
