"""A machine of the fleet: the node agent's reducer, its channels, its `exec`, and what happens to it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tests.storms.fleet_exec import LeanExec, WholeExec
from tests.storms.fleet_scene import FATES
from tests.support.checks import demand
from windfall import codec
from windfall.core import node_agent_reducer
from windfall.core import node_agent_state as words
from windfall.fleet import VERSION, Directive
from windfall.market import Machine, MachineEndCause
from windfall.simulation.virtual_time import VirtualClock
from windfall.terms import Instant, Notice, NoticeLevel, Seconds, Step, Term
from windfall.wire.run_layout import CONTROLLER, directive_key, report_key

if TYPE_CHECKING:
    from tests.storms.fleet import Fleet

PACE = words.NodeAgentPace(
    direct_s=Seconds(2.0), mailbox_s=Seconds(10.0), mailbox_alone_s=Seconds(3.0), poll_s=Seconds(2.0)
)
FOR_EVER_S = 1e9
CALL_S = (0.01, 0.3)
LOST = 0.03
"""Chance that a message on a channel is lost, or its answer [1]."""


class Node:
    """A machine that its provider runs."""

    fates = FATES

    def __init__(self, world: Fleet, machine: Machine) -> None:
        rng = world.rng
        self.world = world
        self.machine_id = machine.machine_id
        self.alive = True
        self.frozen = False
        self.clock = VirtualClock(world, rng.uniform(0, 1e6), rng.uniform(-0.01, 0.01), rng.choice((0.0, 3600.0)))
        self.facts: list[words.NodeAgentFact] = []
        self.exec: LeanExec | WholeExec | None = None
        self.cut_until = {"direct": 0.0, "mailbox": 0.0}
        self.turn_at = FOR_EVER_S
        self.adopted = Term(0)
        self.attempts = 0
        direct = rng.random() < 0.8
        who = words.NodeAgentIdentity(self.machine_id, world.nonce(), direct, f"{self.machine_id}:1", PACE)
        self.state: words.NodeAgentState | None = None
        world.at(rng.uniform(0.5, 3.0), lambda: self._begin(who))
        if not world.calm:
            world.at(rng.expovariate(1.0 / world.fleet.life_s), self._strike)

    @property
    def answers(self) -> bool:
        return self.alive and not self.frozen

    def _begin(self, who: words.NodeAgentIdentity) -> None:
        self.state = words.initial_state(who, self.clock.now())
        self._turn()

    # --------------------------------------------------------------------------------------------------- the node agent

    def fact(self, fact: words.NodeAgentFact) -> None:
        self.facts.append(fact)
        self._soon(0.0)

    def _soon(self, delay_s: float) -> None:
        at = self.world.time + delay_s
        if at < self.turn_at:
            self.turn_at = at
            self.world.at(delay_s, lambda: self._turn() if self.turn_at <= self.world.time else None)

    def _turn(self) -> None:
        if not self.answers or self.state is None:
            return
        self.turn_at = FOR_EVER_S
        facts, self.facts = self.facts, []
        if self.exec is not None:
            facts.append(words.RunStatusRead(self._standing()))
        before = self.state.directive
        self.state, actions = node_agent_reducer.react(self.state, self.clock.now(), tuple(facts))
        self._adopted(before, self.state.directive)
        for action in actions:
            getattr(self, f"_do_{type(action).__name__}")(action)
        self._soon(max(node_agent_reducer.pause_s(self.state, self.clock.now()), 0.05))

    def _adopted(self, before: Directive | None, now: Directive | None) -> None:
        if now is not None and now is not before:
            follows = f"no stale controller is followed: {now.controller_term} < {self.adopted}"
            demand(now.controller_term >= self.adopted, follows)
            self.adopted = now.controller_term

    def _standing(self) -> words.RunStatus | None:
        one = self.exec
        if one is None or one.term is None:
            return None
        term, step, saved = Term(one.term), Step(one.step), Step(one.saved_step)
        training = one.alive and one.released is None
        return words.RunStatus(term, step, saved, self.attempts, training, one.released, one.step_s, one.costs)

    def _later(self, *facts: words.NodeAgentFact, delay_s: float | None = None) -> None:
        wait_s = self.world.rng.uniform(*CALL_S) if delay_s is None else delay_s

        def arrive() -> None:
            if self.answers:
                self.facts += facts
                self._soon(0.0)

        self.world.at(wait_s, arrive)

    def _do_Join(self, action: words.Join) -> None:  # noqa: N802
        if self._reachable("direct"):
            self._later(words.Joined(), words.JobDataRead(self._brief()))
        else:
            self._later(words.NotAnswered())

    def _brief(self) -> words.JobLimits:
        job = self.world.fleet.job
        return words.JobLimits(job.nodes > 1, job.dead_man_s, Seconds(30.0))

    def _do_ReadJobData(self, action: words.ReadJobData) -> None:  # noqa: N802
        if self.world.time < self.world.store_out_until:
            self._later(words.JobDataUnavailable("the store does not answer"))
        else:
            self._later(words.JobDataRead(self._brief()))

    def _do_Prepare(self, action: words.Prepare) -> None:  # noqa: N802
        rng = self.world.rng
        if not self.world.calm and rng.random() < 0.03:
            self.world.count("setup failed")
            self._later(words.NotPrepared("pip did not answer", final=False), delay_s=2.0)
        else:
            self._later(words.Prepared(), delay_s=rng.uniform(0.5, 5.0))

    def _do_StartExec(self, action: words.StartExec) -> None:  # noqa: N802
        demand(self.exec is None, "one exec a machine at a time")
        self.attempts += 1
        world = self.world
        if world.fleet.whole:
            self.exec = WholeExec(world, self)
        else:
            members = tuple(peer.machine_id for peer in action.peers) or (self.machine_id,)
            self.exec = LeanExec(world, self, action.generation, action.rank, members)
        world.machines.append(self.exec)  # type: ignore[arg-type]
        for notice in self.state.notices if self.state is not None else ():
            left_s = None if notice.deadline is None else notice.deadline - self.clock.now()
            self.exec.notice(notice.level, left_s)
        self.exec.begin()

    def _do_NotifyExec(self, action: words.NotifyExec) -> None:  # noqa: N802
        """A lean script saves by its own rhythm: no estimate changes it."""
        if isinstance(self.exec, WholeExec):
            self.world.schedules.leave(self.exec, action.facts)

    def _do_StopExec(self, action: words.StopExec) -> None:  # noqa: N802
        if self.exec is not None:
            self.exec.ask_stop(now=action.now)

    def _do_KillExec(self, action: words.KillExec) -> None:  # noqa: N802
        if self.exec is not None:
            self.exec.kill()

    def _do_EndMachine(self, action: words.EndMachine) -> None:  # noqa: N802
        self.world.count("dead man" if "no contact" in action.reason else "left")
        self.world.provider.end(self.machine_id, MachineEndCause.STOPPED)

    def exec_ended(self, code: int) -> None:
        last = words.RunStatusRead(self._standing())
        self.exec = None
        if self.alive:
            self.facts.append(last)
            self.fact(words.ExecEnded(code))

    # --------------------------------------------------------------------------------------------------- its channels

    def _reachable(self, channel: str) -> bool:
        world = self.world
        if world.time < self.cut_until[channel]:
            world.count(f"{channel} cut")
            return False
        if channel == "direct" and world.reachable() is None:
            world.count("no controller to talk to")
            return False
        if channel == "mailbox" and world.time < world.store_out_until:
            return False
        if not world.calm and world.rng.random() < LOST:
            world.count(f"{channel} message lost")
            return False
        return True

    def _do_SendReport(self, action: words.SendReport) -> None:  # noqa: N802
        if not self._reachable("direct"):
            self._later(words.NotAnswered(), delay_s=1.0)
            return
        controller = self.world.reachable()
        assert controller is not None
        directive = self.world.answer(controller, action.report)
        if not self.world.calm and self.world.rng.random() < LOST:
            self._later(words.NotAnswered(), delay_s=1.0)
        else:
            self._later(words.Answered(directive))

    def _do_SyncMailbox(self, action: words.SyncMailbox) -> None:  # noqa: N802
        if not self._reachable("mailbox"):
            self._later(words.MailboxFailed(), delay_s=1.0)
            return
        store, name = self.world.store, self.machine_id
        late_s = self.world.rng.choice([0.0, 0.0, 0.0, 8.0]) if not self.world.calm else 0.0
        said = codec.encode_document(VERSION, "report", action.report)
        self.world.at(late_s, lambda: store.put(report_key(name), said))
        told, beat = store.get(directive_key(name)), store.get(CONTROLLER)
        directive = None if told is None else codec.decode(json.loads(told)["directive"], Directive)
        counter = None if beat is None else json.loads(beat)
        self._later(words.MailboxRead(directive, None if counter is None else (counter["term"], counter["counter"])))

    # ------------------------------------------------------------------------------------------------ what happens to it

    def noticed(self, level: NoticeLevel, left_s: Seconds | None) -> None:
        deadline = None if left_s is None else Instant(self.clock.now() + left_s)
        name = "risk" if level is NoticeLevel.HINT else "end"
        self.fact(words.Noticed(Notice(level, "local", name, deadline)))
        if self.exec is not None and not self.frozen:
            self.exec.notice(level, left_s)

    def dies(self) -> None:
        """The machine is gone."""
        self.alive = False
        if self.exec is not None:
            one, self.exec = self.exec, None
            one.dies()

    def _freeze(self) -> None:
        """It runs, is billed, and does nothing more."""
        self.frozen = True
        if self.exec is not None:
            self.exec.world.stopped_until = FOR_EVER_S

    def _strike(self) -> None:
        world = self.world
        if not self.alive or world.calm:
            return
        fate = world.rng.choice(self.fates)
        world.count(f"fate {fate}")
        getattr(self, f"_{fate.replace(' ', '_')}")(world.rng.uniform(3.0, 60.0))
        world.at(world.rng.expovariate(1.0 / world.fleet.life_s), self._strike)

    def _take_in(self, delay_s: float) -> None:
        self.world.at(delay_s, lambda: self.world.provider.end(self.machine_id, MachineEndCause.PREEMPTED))

    def _vanish(self, lead_s: float) -> None:
        self.world.provider.end(
            self.machine_id, self.world.rng.choice([MachineEndCause.PREEMPTED, MachineEndCause.FAILED])
        )

    def _honest(self, lead_s: float) -> None:
        self.world.provider.take(self.machine_id, Seconds(lead_s))

    def _early(self, lead_s: float) -> None:
        self.world.provider.announce(self.machine_id, Seconds(lead_s))
        self._take_in(lead_s * self.world.rng.uniform(0.1, 0.9))

    def _never(self, lead_s: float) -> None:
        self.world.provider.announce(self.machine_id, Seconds(lead_s))

    def _withdrawn(self, lead_s: float) -> None:
        self.world.provider.announce(self.machine_id, Seconds(lead_s))
        self.world.at(lead_s * self.world.rng.uniform(0.1, 0.9), lambda: self.world.provider.withdraw(self.machine_id))

    def _flutter(self, lead_s: float) -> None:
        """Announced, and withdrawn while the order for its successor may still be on its way."""
        self.world.provider.announce(self.machine_id, Seconds(60.0 + lead_s))
        self.world.at(self.world.rng.uniform(1.0, 8.0), lambda: self.world.provider.withdraw(self.machine_id))

    def _hint(self, lead_s: float) -> None:
        self.world.provider.hint(self.machine_id)

    def _zombie(self, lead_s: float) -> None:
        self._freeze()

    def _unacknowledged(self, lead_s: float) -> None:
        """Only the listing says that it will be taken, and it is not."""
        self.world.provider.mark(self.machine_id, Seconds(lead_s))

    def _direct_cut(self, lead_s: float) -> None:
        self.cut_until["direct"] = self.world.time + 2 * lead_s

    def _mailbox_cut(self, lead_s: float) -> None:
        self.cut_until["mailbox"] = self.world.time + 2 * lead_s

    def _both_cut(self, lead_s: float) -> None:
        self._direct_cut(lead_s)
        self._mailbox_cut(lead_s)

    def _stops_itself(self, lead_s: float) -> None:
        self.world.provider.end(self.machine_id, MachineEndCause.STOPPED)

    def _none(self, lead_s: float) -> None:
        pass
