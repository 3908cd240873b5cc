"""One simulated job: the real driver's reducer, over machines that a simulated provider sells.

A machine starts, is prepared, waits for its turn, trains, and is gone; it tells the driver each of these, and obeys its
directives, as the live keeper does.  Who trains, and from when on, is the driver's word.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, Final

from windfall.core import driver
from windfall.errors import EXIT_AGAIN, Infeasible
from windfall.events import Command, Fact, WakeAt, Woke
from windfall.fleet import (
    AskListing,
    CancelOrder,
    ChargesSeen,
    ControllerBegan,
    Direction,
    Doing,
    JobSubmitted,
    ListedAll,
    MachineHeard,
    MachinesSeen,
    OffersSeen,
    OrderAnswered,
    PlaceOrder,
    ReleaseMachine,
    Report,
    RunObserved,
    SettleJob,
)
from windfall.jobs import Checkpointing, Job, Recovery, Use, Want, Work
from windfall.market import Boot, Ended, Machine, Order
from windfall.simulation.clock import WALL_START, Timeline
from windfall.simulation.engine_holding import Ground, Holding
from windfall.simulation.engine_journal import Rows
from windfall.simulation.provider import SimulatedProvider
from windfall.terms import Instant, NoticeLevel, Outcome, Seconds, Term, Unit

OWNER: Final = "simulated"
_BOOT: Final = Boot(("windfall", "keeper"))
_CONTROLLER: Final = Term(1)
_NO_GUARD = 10**9
IN_VAIN_MAX: Final = 20_000
"""So many machines of a slot may come and go without a new committed point."""


@dataclass(slots=True)
class _Member:
    """A machine of the job, as it knows itself.

    Attributes:
        n: which one of its slot, from 0.
        ends_s: when it is gone [s].
        ready: it is prepared.
        noticed: it knows of its end, which is at `gone_s` [s].
    """

    machine_id: str
    slot: int
    n: int
    ends_s: float
    alive: bool = False
    began_s: float = 0.0
    ready: bool = False
    noticed: bool = False
    gone_s: float = 0.0
    doing: Doing = Doing.SETUP
    said: int = 0
    exit_code: int | None = None
    generation: int = 0


class Fleet:
    """One job's machines, its driver, and its run.

    Attributes:
        began_s: when it was submitted [s of virtual time].
        finish_s: when the last step was done [s of virtual time]; None before.
        billed_s: of the machines that have ended [s].
        preemptions: machines that were taken.
        over: the job is done and every machine is given back.
    """

    def __init__(self, job_id: str, ground: Ground, provider: SimulatedProvider, rows: Rows | None) -> None:
        """Prepare; `submit` starts.

        Args:
            job_id: unique on this timeline.
            ground: what its holdings share.
            provider: sells machines to it.
            rows: the driver's journal; None: it is not kept.
        """
        self.began_s = 0.0
        self.finish_s: float | None = None
        self.billed_s = 0.0
        self.preemptions = 0
        self.over = False
        self.ground = ground
        self.rows = rows
        self.job_id = job_id
        self._timeline: Timeline = ground.timeline
        self._provider = provider
        self._state = driver.begin()
        self._inbox: list[Fact] = []
        self._settling = False
        self._due = False
        self._members: dict[str, _Member] = {}
        self._allocations: list[tuple[int, int, float, float]] = []
        self._holding: Holding | None = None
        self._nodes: tuple[str, ...] = ()
        self._wake_at: float | None = None
        self._observed: RunObserved | None = None
        self._in_vain = 0
        self._saved_step = 0

    def submit(self, machine_type: str) -> None:
        """Hand the job in: one kind of machine would do."""
        self.began_s = self._timeline.time
        scenario = self.ground.scenario
        job = Job(
            self.job_id,
            self.job_id,
            "simulated",
            f"simulated://{self.job_id}",
            ("train",),
            (Want(machine_type=machine_type),),
            nodes=scenario.machines,
            use=Use.SPOT,
            work=Work(float(scenario.steps), Unit.STEP),
            checkpointing=Checkpointing(policy=scenario.policy),
            # A history ends by its own bounds, in both worlds: the guard against jobs without progress is a live one.
            recovery=Recovery(barren_max=_NO_GUARD),
        )
        self._inbox += [
            JobSubmitted(job, OWNER),
            ControllerBegan(_CONTROLLER),
            OffersSeen(self._provider.offers()),
            ListedAll(self._provider.name),
        ]
        self.settle()

    # ---------------------------------------------------------------------------------------------- what machines do

    def allocate_s(self, order: Order, which: int) -> float:
        """Return after how long a machine of an order starts [s]; the provider asks while it takes the order."""
        now_s, draws = self._timeline.time, self.ground.draws
        slot, n, _, _ = self._allocations[which]
        self._count_order(order.job_id)
        waits_s = draws.allocate_s(slot, n)
        starts_s, ends_s = draws.life(slot, n, now_s + waits_s)
        if starts_s != now_s + waits_s:
            waits_s = max(starts_s - now_s, 0.0)
        self._allocations[which] = (slot, n, now_s + waits_s, ends_s)
        return waits_s

    def _count_order(self, job_id: str) -> None:
        saved_step = self.ground.run.saved_step
        self._in_vain = self._in_vain + 1 if saved_step == self._saved_step else 0
        self._saved_step = saved_step
        if self._in_vain >= IN_VAIN_MAX * self.ground.scenario.machines:
            raise Infeasible(
                f"job {job_id} does not get on: it has had {self._in_vain} machines since step {saved_step} was stored, so "
                "short are their lives; save more often, or use machines that live longer"
            )

    def started(self, machine: Machine) -> None:
        """A machine runs."""
        member, time_s = self._members[machine.machine_id], self._timeline.time
        member.alive, member.began_s = True, time_s
        self.ground.division.usable(member.slot, 1, time_s)
        if member.ends_s < float("inf"):
            # Machines whose window ends take their leader along: it hears nothing of the others' end any more.
            first = member.slot - self.ground.scenario.machines
            announced = self.ground.draws.announced(member.slot, member.n)
            happens_s, what = self._end_of(member, announced=announced)
            self._timeline.when(max(happens_s, time_s), partial(what, member), priority=first)
        self._timeline.at(self.ground.draws.prepare_s(member.slot, member.n), partial(self._prepared, member))
        self._inbox.append(MachinesSeen((machine,)))
        self._say(member)
        self.settle()

    def _end_of(self, member: _Member, *, announced: bool) -> tuple[float, Callable[[_Member], None]]:
        """Return when a machine's end makes itself felt [s], and what happens then."""
        scenario = self.ground.scenario
        if not announced:
            return member.ends_s, self._life_ends
        if scenario.life_to_notice:
            hears_s, member.ends_s = member.ends_s, member.ends_s + scenario.notice_s
            return hears_s, self._hears
        return member.ends_s - scenario.notice_s, self._hears

    def _hears(self, member: _Member) -> None:
        """A machine hears of its end."""
        if not member.alive:
            return
        first, left_s = member.slot - self.ground.scenario.machines, max(member.ends_s - self._timeline.time, 0.0)
        self._timeline.when(member.ends_s, partial(self._life_ends, member), priority=first)
        self._provider.announce(member.machine_id, Seconds(left_s))

    def _life_ends(self, member: _Member) -> None:
        """Its provider takes a machine."""
        if member.alive:
            self._provider.end(member.machine_id, Ended.PREEMPTED)

    def noticed(self, machine_id: str, left_s: float) -> None:
        """A machine hears of its end."""
        member, time_s = self._members[machine_id], self._timeline.time
        self.ground.division.usable(member.slot, -1, time_s)
        member.noticed, member.gone_s = True, time_s + left_s
        if self.ground.scenario.successor_at_notice:
            self._say(member)
        if self._holding is not None and machine_id in self._nodes:
            self._holding.notice(machine_id, left_s)
        self.settle()

    def _prepared(self, member: _Member) -> None:
        if member.alive:
            member.ready = True
            member.doing = Doing.WAITING
            self._say(member)
            self.settle()

    def ended(self, machine: Machine) -> None:
        """A machine is gone."""
        member, time_s = self._members.pop(machine.machine_id), self._timeline.time
        if member.alive:
            member.alive = False
            self.billed_s += time_s - member.began_s
            taken = machine.cause is Ended.PREEMPTED
            # One whose end was announced is given back before that, once its successor can do without it.
            self.preemptions += taken or (member.noticed and self.finish_s is None)
            if not member.noticed:
                self.ground.division.usable(member.slot, -1, time_s)
            self._leave(member)
        self._inbox.append(MachinesSeen((machine,)))
        self.settle()

    def _leave(self, member: _Member) -> None:
        """Tell the holding that a machine is gone."""
        holding = self._holding
        if holding is None or member.machine_id not in self._nodes:
            return
        if member.noticed:
            holding.last_moment()
            if self._holding is None:
                return
        node = self._nodes.index(member.machine_id)
        holding.lose(node, member.machine_id)
        if node == 0:
            self.ground.run.vanish(self._timeline.time)
            self._let_go(EXIT_AGAIN)

    def _say(self, member: _Member) -> None:
        """Let a machine report."""
        member.said += 1
        told = member.noticed and self.ground.scenario.successor_at_notice
        left_s = Seconds(max(member.gone_s - self._timeline.time, 0.0)) if told else None
        run = self.ground.run
        training = member.doing is Doing.TRAINING
        report = Report(
            member.machine_id,
            member.said,
            "keeper",
            member.doing,
            term=run.term if training else None,
            step=run.saved_step if training else None,
            saved_step=run.saved_step if training else None,
            exit_code=member.exit_code,
            level=NoticeLevel.ANNOUNCED if told else None,
            taken_in_s=left_s,
            generation=member.generation,
            address=f"{member.machine_id}:1" if self.ground.scenario.machines > 1 else "",
        )
        taken_at = None if left_s is None else Instant(self._now() + left_s)
        self._inbox.append(MachineHeard(report, "direct", taken_at))

    # -------------------------------------------------------------------------------------------------------- the run

    def _begin(self) -> bool:
        """Let the machines take the run that the driver wants to, if all are ready; return whether they did."""
        if self._holding is not None or self.finish_s is not None:
            return False
        machines = self.ground.scenario.machines
        ready = {name: one for name, one in self._members.items() if one.ready and not one.noticed}
        if len(ready) < machines:
            return False
        told = driver.directives(self._state, _CONTROLLER)
        nodes: tuple[str, ...] = ()
        generation = 0
        for name in ready:
            directive = told.get(name)
            if directive is not None and directive.direction is Direction.RUN:
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
        self.ground.run.take(nodes[0], time_s)
        self._holding = Holding(
            self.ground,
            next(self._members[name].n for name in nodes if self._members[name].slot == 0),
            time_s - leader.began_s,
            ended=self._let_go,
        )
        for name in nodes:
            member = self._members[name]
            member.doing, member.exit_code, member.generation = Doing.TRAINING, None, generation
            self._say(member)
        self._holding.begin()

    def _let_go(self, exit_code: int) -> None:
        """The holding is over."""
        self._holding = None
        run = self.ground.run
        if run.outcome is Outcome.DONE:
            self.finish_s = self._timeline.time
        for name in self._nodes:
            member = self._members.get(name)
            if member is not None:
                member.doing, member.exit_code = Doing.WAITING, exit_code
                self._say(member)
        self._nodes = ()
        self.settle()

    def _look_at_run(self) -> None:
        """Tell the driver what is new in the run's log; that a point was stored can wait until there is more to tell."""
        run = self.ground.run
        if not run.term:
            return
        observed = RunObserved(run.outcome, run.term, run.holder, run.saved_step, 0)
        if observed != self._observed:
            self._observed = observed
            self._inbox.insert(0, observed)

    # ----------------------------------------------------------------------------------------------------- the driver

    def settle(self) -> None:
        """Let the driver decide once everything of this very moment has happened."""
        if self._settling:
            return
        timeline = self._timeline
        if timeline.next_at() == timeline.time:
            if not self._due:
                self._due = True
                timeline.at(0.0, self._settle_now, priority=1)
            return
        self._settle_now()

    def _settle_now(self) -> None:
        self._due = False
        self._settling = True
        while self._inbox or self._begin():
            if self._inbox:
                self._look_at_run()
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
            obey = _OBEY.get(type(command))
            if obey is not None:
                obey(self, command)

    def _order(self, command: PlaceOrder) -> None:
        order = command.order
        slots = [slot for slot in self._state.slots if slot.awaits == order.token]
        self._allocations = [(slot.index, slot.lives, 0.0, 0.0) for slot in slots]
        answer = self._provider.order(order, _BOOT)
        for machine_id, (slot, n, _, ends_s) in zip(answer.machine_ids, self._allocations, strict=True):
            self._members[machine_id] = _Member(machine_id, slot, n, ends_s)
        self._inbox.append(OrderAnswered(order.token, answer.machine_ids, answer.refusal, answer.sentence))

    def _cancel(self, command: CancelOrder) -> None:
        self._provider.cancel(command.token)

    def _give_back(self, command: ReleaseMachine) -> None:
        self._provider.release(command.machine_id)

    def _list(self, command: AskListing) -> None:
        self._inbox.append(ListedAll(command.provider))

    def _wake(self, command: WakeAt) -> None:
        self._wake_at = command.at
        at_s = max(command.at - WALL_START, self._timeline.time)
        self._timeline.when(at_s, partial(self._ring, command))

    def _ring(self, command: WakeAt) -> None:
        if not self.over and self._wake_at == command.at:
            self._wake_at = None
            self._inbox.append(Woke(command.why))
            self.settle()

    def _settled(self, command: SettleJob) -> None:
        del command
        self.over = True

    def bill(self) -> None:
        """Look at the bill once everything is over."""
        provider = self._provider
        charges = [charge for charge in provider.charges(OWNER, "").charges if charge.job_id == self.job_id]
        self._inbox.append(ChargesSeen(tuple(charges), provider.name, ""))
        self._settle_now()


_OBEY: Mapping[type[Command], Callable[[Fleet, Any], None]] = MappingProxyType(
    {
        PlaceOrder: Fleet._order,
        CancelOrder: Fleet._cancel,
        ReleaseMachine: Fleet._give_back,
        AskListing: Fleet._list,
        WakeAt: Fleet._wake,
        SettleJob: Fleet._settled,
    }
)
