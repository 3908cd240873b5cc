"""The node agent's reducer: how a bought machine handles its controller, its run and its own end."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from windfall.core import node_agent_reducer, node_agent_state
from windfall.core.node_agent_state import (
    IDLE_S,
    SIGTERM,
    Answered,
    EndMachine,
    ExecEnded,
    JobDataRead,
    JobDataUnavailable,
    JobLimits,
    Join,
    Joined,
    KillExec,
    MailboxFailed,
    MailboxRead,
    NodeAgentAction,
    NodeAgentFact,
    NodeAgentIdentity,
    NotAnswered,
    Noticed,
    NotifyExec,
    NotPrepared,
    Prepare,
    Prepared,
    ReadJobData,
    RunStatus,
    RunStatusRead,
    SendReport,
    StartExec,
    StopExec,
    SyncMailbox,
)
from windfall.events import EstimatesChanged, ScheduleAssigned
from windfall.fleet import DesiredState, Directive, MachineStatus, Peer
from windfall.structs import replace
from windfall.terms import Instant, Notice, NoticeLevel, Outcome, SaveCosts, SaveTable, Seconds, Step, Term

RUN, WAIT, DRAIN, LEAVE = (Directive(Term(3), desired_state) for desired_state in DesiredState)
BRIEF = JobLimits(dead_man_s=Seconds(100.0), save_timeout_s=Seconds(60.0))
HOLDS = RunStatus(Term(5), Step(40), Step(30), 1, training=True)


@dataclass
class Machine:
    """A node agent's reducer with answers from `direct` and `mailbox`; `None`: that channel fails.

    A preparation ends with `prepared`; `None`: it does not end.
    """

    direct: Directive | None = RUN
    reachable: bool = True
    mailbox: Directive | None = None
    heartbeat: tuple[Term, int] | None = None
    store: bool = True
    now: float = 1000.0
    job_limits: JobLimits = BRIEF
    has_address: bool = True
    sigterm_is_final: bool = False
    prepared: NodeAgentFact | None = field(default_factory=Prepared)
    did: list[NodeAgentAction] = field(default_factory=list)

    def __post_init__(self) -> None:
        identity = NodeAgentIdentity(
            "m-1", "life", self.has_address, "10.0.0.1:7000", sigterm_is_final=self.sigterm_is_final
        )
        self.state = node_agent_state.initial_state(identity, Instant(self.now))

    def turn(self, *facts: NodeAgentFact) -> list[NodeAgentAction]:
        """One turn with its answers; returns the actions other than reports."""
        seen: list[NodeAgentAction] = []
        answers: tuple[NodeAgentFact, ...] = facts
        while True:
            self.state, actions = node_agent_reducer.react(self.state, Instant(self.now), answers)
            seen += [
                action for action in actions if not isinstance(action, (SendReport, SyncMailbox, Join, ReadJobData))
            ]
            self.did += actions
            answers = tuple(fact for action in actions for fact in self._answer(action))
            if not answers:
                return seen

    def _answer(self, action: NodeAgentAction) -> tuple[NodeAgentFact, ...]:
        match action:
            case Join():
                return (Joined(), JobDataRead(self.job_limits)) if self.reachable else (NotAnswered(),)
            case ReadJobData():
                return (JobDataRead(self.job_limits) if self.store else JobDataUnavailable("no store"),)
            case Prepare():
                return () if self.prepared is None else (self.prepared,)
            case SendReport():
                return (Answered(self.direct) if self.reachable else NotAnswered(),)
            case SyncMailbox():
                return (MailboxRead(self.mailbox, self.heartbeat) if self.store else MailboxFailed(),)
        return ()

    def after(self, seconds: float, *facts: NodeAgentFact) -> list[NodeAgentAction]:
        """Let time pass, with a turn each half second; the facts come at its end."""
        seen, end = [], self.now + seconds
        while self.now + 0.5 < end:
            self.now += 0.5
            seen += self.turn()
        self.now = end
        return seen + self.turn(*facts)

    def training(self) -> Machine:
        """Bring it to where its script runs."""
        assert [type(action) for action in self.turn()] == [Prepare, StartExec]
        self.after(1.0, RunStatusRead(HOLDS))
        return self

    @property
    def report(self):
        return node_agent_state.report(self.state, Instant(self.now))


def announced(at: float, notice_id: str = "n") -> Noticed:
    return Noticed(Notice(NoticeLevel.ANNOUNCED, "aws", notice_id, Instant(at)))


def test_a_preparation_that_failed_is_tried_again_after_a_pause_that_doubles() -> None:
    """A quarter of a second, then half a one: a store that is away for a moment costs no machine."""
    machine = Machine(prepared=None)
    assert [type(action) for action in machine.turn()] == [Prepare]
    for pause_s in (0.25, 0.5):
        machine.turn(NotPrepared("the store does not answer", final=False))
        assert Prepare not in [type(action) for action in machine.after(pause_s - 0.05)]
        assert Prepare in [type(action) for action in machine.after(0.1)]


def test_a_machine_joins_prepares_and_runs_on_a_directive() -> None:
    """Nothing starts before a directive to run."""
    machine = Machine(direct=WAIT)
    assert machine.turn() == [Prepare()]
    assert machine.report.status is MachineStatus.WAITING
    machine.direct = RUN
    assert machine.after(2.0) == [StartExec()]
    machine.after(1.0, RunStatusRead(HOLDS))
    assert (machine.report.status, machine.report.step, machine.report.saved_step) == (MachineStatus.TRAINING, 40, 30)


def test_without_a_controller_the_store_says_what_to_do() -> None:
    """A machine whose controller cannot be reached takes job and directive from the store."""
    machine = Machine(reachable=False, mailbox=RUN)
    assert machine.after(5.0) == [Prepare(), StartExec()]
    lone = Machine(has_address=False, mailbox=RUN)
    assert lone.after(5.0) == [Prepare(), StartExec()]
    assert not any(isinstance(action, (SendReport, Join)) for action in lone.did)


def test_silence_before_the_limit_changes_nothing() -> None:
    """Neither controller nor store: the script continues until the dead-man limit, then it saves."""
    machine = Machine().training()
    machine.reachable = machine.store = False
    assert machine.after(99.0) == []
    assert machine.after(4.0) == [StopExec(now=False)]
    assert machine.report.status is MachineStatus.STOPPING
    assert machine.after(5.0, ExecEnded(75)) == [EndMachine(machine.state.shutdown.reason)]  # type: ignore[union-attr]


@pytest.mark.parametrize("has", ["no job", "no directive", "a directive to wait", "a script that has ended"])
def test_a_machine_that_has_nothing_to_run_does_not_wait_for_hours(has: str) -> None:
    """Without contact and with nothing to lose, it ends long before its job's dead-man limit."""
    job_limits = JobLimits(dead_man_s=Seconds(7200.0), save_timeout_s=Seconds(60.0))
    machine = Machine(job_limits=job_limits, direct={"a directive to wait": WAIT, "no directive": None}.get(has, RUN))
    if has == "no job":
        machine.reachable = machine.store = False
    machine.turn()
    if has == "a script that has ended":
        machine.after(1.0, RunStatusRead(HOLDS))
        machine.after(1.0, ExecEnded(0))
    machine.reachable = machine.store = False
    assert machine.after(IDLE_S - 20.0) == []
    assert [type(action) for action in machine.after(40.0)] == [EndMachine]


def test_a_machine_that_has_something_to_run_waits_for_its_own_limit() -> None:
    """A script that trains, or is about to restart, continues without contact up to the job's limit."""
    job_limits = JobLimits(dead_man_s=Seconds(7200.0), save_timeout_s=Seconds(60.0))
    machine = Machine(job_limits=job_limits).training()
    machine.reachable = machine.store = False
    assert machine.after(2 * IDLE_S) == []
    assert machine.after(1.0, ExecEnded(75)) == [StartExec()]


def test_a_save_that_does_not_end_is_ended() -> None:
    """Past the dead-man limit the last save gets its time and no more."""
    machine = Machine().training()
    machine.reachable = machine.store = False
    machine.after(101.0)
    assert machine.after(59.0) == []
    assert machine.after(2.0) == [KillExec()]
    assert [type(action) for action in machine.after(0.5, ExecEnded(137))] == [EndMachine]


@pytest.mark.parametrize("way", ["direct", "heartbeat", "directive"])
def test_each_way_of_contact_keeps_the_machine(way: str) -> None:
    """A direct answer, a heartbeat that changes and a new directive each are a sign of life."""
    machine = Machine().training()
    machine.reachable = way == "direct"
    for count in range(30):
        if way == "heartbeat":
            machine.heartbeat = (Term(3), count)
        elif way == "directive":
            machine.mailbox = replace(RUN, mttp_s=Seconds(float(count + 1)))
        assert all(isinstance(action, NotifyExec) for action in machine.after(20.0))
    assert machine.report.status is MachineStatus.TRAINING


def test_an_unchanged_mailbox_is_not_contact() -> None:
    """The words of a controller that is gone do not keep a machine for ever."""
    machine = Machine(mailbox=RUN, heartbeat=(Term(3), 7)).training()
    machine.reachable = False
    assert machine.after(130.0) == [StopExec(now=False)]


def test_an_older_controller_is_refused() -> None:
    """A controller that was paused and replaced is neither obeyed nor counted as contact."""
    machine = Machine().training()
    machine.direct = replace(LEAVE, controller_term=Term(2))
    machine.heartbeat = (Term(2), 0)
    assert machine.after(50.0) == []
    machine.heartbeat = (Term(2), 1)
    assert machine.after(53.0) == [StopExec(now=False)]
    assert "no contact" in machine.report.message


def test_what_an_older_controller_left_in_the_mailbox_is_refused() -> None:
    """Neither its order to leave nor a generation that is over counts, whichever channel is left."""
    machine = Machine().training()
    machine.reachable, machine.mailbox = False, replace(LEAVE, controller_term=Term(2))
    assert machine.after(50.0) == []
    members = (Peer("m-1", "10.0.0.1:7000"), Peer("m-2", "10.0.0.2:7000"))
    later = Machine(direct=replace(RUN, generation=2, peers=members))
    assert later.turn() == [Prepare(), StartExec(2, 0, members)]
    later.reachable, later.mailbox = False, replace(RUN, generation=1, peers=members[::-1])
    assert later.after(20.0, ExecEnded(75)) == [StartExec(2, 0, members)]


def test_a_machine_that_was_stopped_itself_does_not_take_that_for_silence() -> None:
    """A machine that was paused beyond the limit asks once more before it leaves."""
    machine = Machine().training()
    machine.now += 10_000.0
    assert machine.turn() == []


def test_leave_ends_the_machine_without_a_save() -> None:
    """What it holds is saved or not needed, and every second costs."""
    machine = Machine().training()
    machine.direct = LEAVE
    assert machine.after(1.5) == [StopExec(now=True)]
    assert machine.after(2.5) == [KillExec()]
    assert [type(action) for action in machine.after(0.5, ExecEnded(137))] == [EndMachine]


def test_leave_in_the_mailbox_counts_too() -> None:
    """A machine that is cut off from the controller leaves all the same."""
    machine = Machine().training()
    machine.reachable, machine.mailbox = False, LEAVE
    assert StopExec(now=True) in machine.after(10.0)


def test_the_mailbox_does_not_undo_what_was_said_directly() -> None:
    """A directive that lies in the store for a while is older than a direct answer."""
    machine = Machine(mailbox=WAIT)
    assert machine.turn() == [Prepare(), StartExec()]
    assert machine.after(30.0) == []


def test_a_drained_machine_saves_and_starts_nothing_new() -> None:
    """The controller wants it gone by choice: exec gets the time for a save, exits, and stays out."""
    machine = Machine().training()
    machine.direct = DRAIN
    assert machine.after(2.0) == [StopExec(now=False)]
    assert machine.after(1.0, ExecEnded(75)) == []
    assert machine.after(60.0) == []
    assert machine.report.status is MachineStatus.WAITING


def test_an_exec_that_lost_the_run_waits_for_it_again() -> None:
    """Exit code 75 does not end the run; exec restarts, with a growing pause if it exits at once."""
    machine = Machine().training()
    assert machine.after(20.0, ExecEnded(75)) == [StartExec()]
    machine.after(0.1, ExecEnded(75))
    waits = []
    for _ in range(4):
        started = machine.now
        while machine.state.running is None:
            machine.after(0.05)
        waits.append(machine.now - started)
        machine.after(0.1, ExecEnded(75))
    assert waits == sorted(waits)
    assert waits[-1] > 1.0


def test_after_an_end_the_newest_directive_is_asked_for_first() -> None:
    """An old directive does not resume a stopped run."""
    machine = Machine().training()
    machine.direct = WAIT
    assert machine.turn(ExecEnded(75)) == []
    assert machine.after(60.0) == []


@pytest.mark.parametrize(
    ("code", "released", "status"),
    [
        (0, Outcome.DONE, MachineStatus.WAITING),
        (1, Outcome.FAILED, MachineStatus.WAITING),
        (2, None, MachineStatus.FAILED),
    ],
)
def test_the_end_of_a_run_is_reported_and_the_machine_waits(
    code: int, released: Outcome | None, status: MachineStatus
) -> None:
    """Done, failed, refused: nothing is started again, the controller decides."""
    machine = Machine().training()
    assert (
        machine.turn(RunStatusRead(replace(HOLDS, released=released, training=False)), ExecEnded(code, "reason")) == []
    )
    assert machine.after(90.0) == []
    assert (machine.report.status, machine.report.exit_code) == (status, code)


def test_a_stopped_run_continues_when_the_controller_resumes_it() -> None:
    """An exec that exits cleanly before the run is done was stopped by a user: it waits for a new directive to run."""
    machine = Machine().training()
    machine.turn(RunStatusRead(replace(HOLDS, released=Outcome.WAITING, training=False)), ExecEnded(0))
    assert machine.after(60.0) == []
    assert (machine.report.exit_code, machine.report.term) == (0, HOLDS.term)
    machine.direct = WAIT
    machine.after(5.0)
    machine.direct = RUN
    assert machine.after(5.0) == [StartExec()]


def test_an_exec_that_always_dies_is_given_up() -> None:
    """A machine on which exec ends oddly again and again, saving nothing, says so instead of costing for ever."""
    machine = Machine()
    machine.turn()
    for _ in range(node_agent_state.TRIES_MAX):
        machine.after(15.0, ExecEnded(137, "killed"))
    assert machine.after(60.0) == []
    assert machine.report.status is MachineStatus.FAILED
    assert "137: killed (5 times in a row)" in machine.report.message


def test_an_outage_of_the_store_is_not_a_failure() -> None:
    """While the store does not answer the node agent either, failures of exec do not count."""
    machine = Machine().training()
    machine.store = False
    for _ in range(40):
        machine.after(31.0, ExecEnded(1, "the store does not answer"))
    assert machine.report.status is not MachineStatus.FAILED
    machine.store = True
    machine.after(40.0)
    assert machine.state.running is not None


def test_a_notice_is_reported_at_once_with_the_time_left() -> None:
    """Both channels carry it in the same turn; a hint, a withdrawal and an announcement are distinguished."""
    machine = Machine().training()
    machine.did.clear()
    machine.turn(announced(machine.now + 30.0))
    said = [action.report for action in machine.did if isinstance(action, (SendReport, SyncMailbox))]
    assert [(report.level, report.preemption_in_s) for report in said] == [(NoticeLevel.ANNOUNCED, 30.0)] * 2
    machine.turn(Noticed(Notice(NoticeLevel.WITHDRAWN, "aws", "n")))
    assert (machine.report.level, machine.report.preemption_in_s) == (NoticeLevel.WITHDRAWN, None)
    machine.turn(Noticed(Notice(NoticeLevel.HINT, "aws", "h")))
    assert machine.report.level is NoticeLevel.WITHDRAWN, "a hint must not hide that an ordered successor is not needed"
    hinted = Machine().training()
    hinted.turn(Noticed(Notice(NoticeLevel.HINT, "aws", "h")))
    assert hinted.report.level is NoticeLevel.HINT


def test_a_machine_that_will_be_taken_does_not_take_the_run_again() -> None:
    """After its last save it waits for its end; if that does not come it works again."""
    machine = Machine().training()
    machine.turn(announced(machine.now + 20.0))
    assert machine.after(5.0, ExecEnded(75)) == []
    assert machine.after(44.0) == []
    assert machine.after(3.0) == [StartExec()]


def sigterm(at: float) -> Noticed:
    return Noticed(Notice(NoticeLevel.ANNOUNCED, SIGTERM, SIGTERM, Instant(at)))


def test_where_sigterm_is_final_a_machine_that_has_saved_ends() -> None:
    """Not before its exec has exited and its controller has heard that; elsewhere it waits, as after any other notice."""
    machine = Machine(sigterm_is_final=True).training()
    assert machine.turn(sigterm(machine.now + 20.0)) == []
    assert machine.after(3.0) == []
    machine.did.clear()
    (end,) = machine.after(0.5, ExecEnded(75))
    assert end == EndMachine("preempted, with nothing left to do")
    reports = [action.report for action in machine.did if isinstance(action, (SendReport, SyncMailbox))]
    assert 75 in [report.exit_code for report in reports]

    cut_off = Machine(sigterm_is_final=True).training()
    cut_off.turn(sigterm(cut_off.now + 20.0))
    cut_off.reachable = cut_off.store = False
    assert cut_off.after(3.0, ExecEnded(75)) == [end], "nobody is there to hear it"
    other = Machine(sigterm_is_final=True).training()
    other.turn(announced(other.now + 20.0))
    elsewhere = Machine().training()
    elsewhere.turn(sigterm(elsewhere.now + 20.0))
    assert other.after(10.0, ExecEnded(75)) + elsewhere.after(10.0, ExecEnded(75)) == []


def test_after_a_withdrawn_notice_it_works_again_at_once() -> None:
    """It does not wait once the end of the machine is withdrawn."""
    machine = Machine().training()
    machine.turn(announced(machine.now + 120.0))
    machine.after(5.0, ExecEnded(75))
    assert machine.turn(Noticed(Notice(NoticeLevel.WITHDRAWN, "aws", "n"))) == [StartExec()]


def test_a_standby_with_an_announced_end_does_not_start() -> None:
    """It would take the run only to lose it; one that shows within a moment that it has the run may save."""
    machine = Machine()
    machine.turn()
    assert machine.turn(announced(machine.now + 30.0)) == [StopExec(now=False)]
    assert machine.after(2.0) == [KillExec()]
    other = Machine()
    other.turn()
    other.turn(announced(other.now + 30.0))
    other.after(1.0, RunStatusRead(HOLDS))
    assert other.after(20.0) == []


def test_a_new_generation_ends_the_old_one_with_a_save() -> None:
    """The members of the next generation start when the old exec has exited; other machines do not."""
    members = (Peer("m-0", "10.0.0.2:7000"), Peer("m-1", "10.0.0.1:7000"))
    first = replace(RUN, generation=1, peers=members)
    machine = Machine(direct=first, job_limits=replace(BRIEF, addressed=True))
    assert machine.turn() == [Prepare(), StartExec(1, 1, members)]
    machine.after(1.0, RunStatusRead(HOLDS))
    assert (machine.report.generation, machine.report.address) == (1, "10.0.0.1:7000")
    machine.direct = second = replace(first, generation=2, peers=members[::-1])
    assert machine.after(1.5) == [StopExec(now=False)]
    stopped = RunStatusRead(replace(HOLDS, released=Outcome.WAITING, training=False))
    assert machine.after(3.0, stopped, ExecEnded(0)) == [StartExec(2, 0, members[::-1])]
    assert machine.report.exit_code == 75
    machine.direct = replace(second, generation=3, peers=members[:1])
    machine.after(1.5, ExecEnded(75))
    assert machine.after(60.0) == []


def test_a_failed_setup_starts_nothing_and_says_why() -> None:
    """The controller hears the reason; trying again would only cost."""
    machine = Machine(prepared=NotPrepared("the setup ended with 3: no such package", final=True))
    assert machine.after(60.0) == [Prepare()]
    assert (machine.report.status, machine.report.exit_code) == (MachineStatus.FAILED, None)
    assert "no such package" in machine.report.message


def test_a_stop_by_another_node_agent_of_the_generation_does_not_stop_the_run() -> None:
    """With several machines, the first to learn of the next generation ends the current one; all continue in the next."""
    machine = Machine().training()
    machine.state = replace(machine.state, running=replace(machine.state.running, generation=3))
    machine.turn(ExecEnded(0))
    assert machine.report.exit_code == 75
    assert not machine.state.stopped


GIVEN = ScheduleAssigned(SaveTable((30.0, 80.0), 100.0, 20.0, "it rests on 501 losses"), Step(30))


def test_a_schedule_reaches_the_agent_once_on_whichever_channel() -> None:
    """It is in every directive; the agent is notified of the first schedule and of each new one."""
    for direct in (True, False):
        machine = Machine(reachable=direct, direct=RUN if direct else None, mailbox=None if direct else RUN)
        machine.after(5.0, RunStatusRead(HOLDS))
        for given in (GIVEN, replace(GIVEN, from_step=Step(60))):
            directive = replace(RUN, schedule=given)
            machine.direct, machine.mailbox = (directive, None) if direct else (None, directive)
            assert machine.after(20.0) == [NotifyExec((given,))]
            assert machine.after(60.0) == []


def test_the_next_exec_is_notified_of_the_schedule_again() -> None:
    """Each start of `windfall exec` is without a schedule; the machine's schedule is sent to it."""
    machine = Machine(direct=replace(RUN, schedule=GIVEN))
    assert [type(action) for action in machine.turn()] == [Prepare, StartExec, NotifyExec]
    machine.after(20.0, RunStatusRead(HOLDS))
    again = machine.after(5.0, ExecEnded(75))
    assert again == [StartExec(), NotifyExec((GIVEN,))]


def test_small_changes_of_estimates_are_not_passed_on() -> None:
    """The pool's estimates change every minute; only a change of a tenth or more is passed on."""
    machine = Machine(direct=replace(RUN, mttp_s=Seconds(1000.0)))
    machine.training()
    machine.direct = replace(RUN, mttp_s=Seconds(1050.0))
    assert machine.after(10.0) == []
    machine.direct = replace(RUN, mttp_s=Seconds(1150.0), restart_s=Seconds(90.0))
    assert machine.after(10.0) == [NotifyExec((EstimatesChanged(Seconds(1150.0), Seconds(90.0)),))]
    machine.direct = replace(machine.direct, restart_s=Seconds(95.0))
    assert machine.after(10.0) == []


def test_a_report_says_what_steps_and_saves_cost() -> None:
    """A schedule is made from what this machine measures."""
    machine = Machine().training()
    costs = SaveCosts(Seconds(2.0), 1000, Seconds(5.0), Seconds(0.5))
    machine.after(2.0, RunStatusRead(replace(HOLDS, step_s=Seconds(0.25), costs=costs)))
    assert (machine.report.step_s, machine.report.costs) == (0.25, costs)


@pytest.mark.parametrize("has_address", [True, False])
def test_a_node_agent_sleeps_until_one_of_its_channels_is_due(has_address: bool) -> None:
    """Without a controller address, the unused direct channel does not shorten the sleep."""
    machine = Machine(has_address=has_address)
    machine.turn()
    now = Instant(machine.now)
    mailbox = replace(machine.state.mailbox, due=Instant(now + 0.2), busy=False)
    direct = replace(machine.state.direct, due=Instant(now + 0.1), busy=False)
    state = replace(machine.state, mailbox=mailbox, direct=direct)
    assert node_agent_reducer.pause_s(state, now) == pytest.approx(0.1 if has_address else 0.2)
    assert node_agent_reducer.pause_s(replace(state, mailbox=replace(mailbox, busy=True)), now) == pytest.approx(
        0.1 if has_address else state.identity.pace.poll_s
    )
