"""The keeper's reducer: what a bought machine does about its controller, its run and its own end."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest

from windfall.core import keeping, keeping_facts
from windfall.core.keeping_facts import (
    IDLE_S,
    Answered,
    AskStore,
    BoxFailed,
    BoxRead,
    Brief,
    Briefed,
    EndMachine,
    ExecEnded,
    Join,
    Joined,
    KeeperAction,
    KeeperFact,
    KillExec,
    NotAnswered,
    NotBriefed,
    Noticed,
    NotPrepared,
    Prepare,
    Prepared,
    Say,
    Standing,
    StartExec,
    Stood,
    StopExec,
    TellExec,
    UseBox,
    Who,
)
from windfall.events import BeliefsChanged, SaveTableGiven
from windfall.fleet import Direction, Directive, Doing, Peer
from windfall.terms import Instant, Notice, NoticeLevel, Outcome, SaveCosts, SaveTable, Seconds, Step, Term

RUN, WAIT, LEAVE = (Directive(Term(3), direction) for direction in Direction)
BRIEF = Brief(dead_man_s=Seconds(100.0), save_timeout_s=Seconds(60.0))
HOLDS = Standing(Term(5), Step(40), Step(30), 1, training=True)


@dataclass
class Machine:
    """A keeper's reducer in a world that answers as `direct` and `box` say; `None`: that channel fails.

    A preparation has `prepared` as its outcome; `None`: it goes on.
    """

    direct: Directive | None = RUN
    reachable: bool = True
    box: Directive | None = None
    beat: tuple[Term, int] | None = None
    store: bool = True
    now: float = 1000.0
    brief: Brief = BRIEF
    has_address: bool = True
    prepared: KeeperFact | None = field(default_factory=Prepared)
    did: list[KeeperAction] = field(default_factory=list)

    def __post_init__(self) -> None:
        who = Who("m-1", "life", self.has_address, "10.0.0.1:7000")
        self.state = keeping_facts.begin(who, Instant(self.now))

    def turn(self, *facts: KeeperFact) -> list[KeeperAction]:
        """One turn with its answers; returns what was done beside talking."""
        seen: list[KeeperAction] = []
        answers: tuple[KeeperFact, ...] = facts
        while True:
            self.state, actions = keeping.react(self.state, Instant(self.now), answers)
            seen += [action for action in actions if not isinstance(action, (Say, UseBox, Join, AskStore))]
            self.did += actions
            answers = tuple(fact for action in actions for fact in self._answer(action))
            if not answers:
                return seen

    def _answer(self, action: KeeperAction) -> tuple[KeeperFact, ...]:
        match action:
            case Join():
                return (Joined(), Briefed(self.brief)) if self.reachable else (NotAnswered(),)
            case AskStore():
                return (Briefed(self.brief) if self.store else NotBriefed("no store"),)
            case Prepare():
                return () if self.prepared is None else (self.prepared,)
            case Say():
                return (Answered(self.direct) if self.reachable else NotAnswered(),)
            case UseBox():
                return (BoxRead(self.box, self.beat) if self.store else BoxFailed(),)
        return ()

    def after(self, seconds: float, *facts: KeeperFact) -> list[KeeperAction]:
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
        self.after(1.0, Stood(HOLDS))
        return self

    @property
    def report(self):
        return keeping_facts.report(self.state, Instant(self.now))


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


def test_a_machine_joins_prepares_and_runs_when_told() -> None:
    """Nothing is started before the controller wants it."""
    machine = Machine(direct=WAIT)
    assert machine.turn() == [Prepare()]
    assert machine.report.doing is Doing.WAITING
    machine.direct = RUN
    assert machine.after(2.0) == [StartExec()]
    machine.after(1.0, Stood(HOLDS))
    assert (machine.report.doing, machine.report.step, machine.report.saved_step) == (Doing.TRAINING, 40, 30)


def test_without_a_controller_the_store_says_what_to_do() -> None:
    """A machine whose controller cannot be reached takes job and directive from the store."""
    machine = Machine(reachable=False, box=RUN)
    assert machine.after(5.0) == [Prepare(), StartExec()]
    lone = Machine(has_address=False, box=RUN)
    assert lone.after(5.0) == [Prepare(), StartExec()]
    assert not any(isinstance(action, (Say, Join)) for action in lone.did)


def test_silence_before_the_limit_changes_nothing() -> None:
    """Neither controller nor store: the script goes on all the same until the dead-man limit, then it saves."""
    machine = Machine().training()
    machine.reachable = machine.store = False
    assert machine.after(99.0) == []
    assert machine.after(4.0) == [StopExec(now=False)]
    assert machine.report.doing is Doing.LEAVING
    assert machine.after(5.0, ExecEnded(75)) == [EndMachine(machine.state.leaving.why)]  # type: ignore[union-attr]


@pytest.mark.parametrize("has", ["no job", "no directive", "a directive to wait", "a script that has ended"])
def test_a_machine_that_has_nothing_to_run_does_not_wait_for_hours(has: str) -> None:
    """Nobody speaks to it and it does nothing that could be lost: it ends long before its job's dead-man limit."""
    brief = Brief(dead_man_s=Seconds(7200.0), save_timeout_s=Seconds(60.0))
    machine = Machine(brief=brief, direct={"a directive to wait": WAIT, "no directive": None}.get(has, RUN))
    if has == "no job":
        machine.reachable = machine.store = False
    machine.turn()
    if has == "a script that has ended":
        machine.after(1.0, Stood(HOLDS))
        machine.after(1.0, ExecEnded(0))
    machine.reachable = machine.store = False
    assert machine.after(IDLE_S - 20.0) == []
    assert [type(action) for action in machine.after(40.0)] == [EndMachine]


def test_a_machine_that_has_something_to_run_waits_for_its_own_limit() -> None:
    """A script that trains, or that is to be started again, goes on unheard for as long as the job allows."""
    brief = Brief(dead_man_s=Seconds(7200.0), save_timeout_s=Seconds(60.0))
    machine = Machine(brief=brief).training()
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


@pytest.mark.parametrize("way", ["direct", "beat", "directive"])
def test_each_way_of_contact_keeps_the_machine(way: str) -> None:
    """A direct answer, a heartbeat that changes and a new directive each are a sign of life."""
    machine = Machine().training()
    machine.reachable = way == "direct"
    for count in range(30):
        if way == "beat":
            machine.beat = (Term(3), count)
        elif way == "directive":
            machine.box = replace(RUN, mttp_s=Seconds(float(count + 1)))
        assert all(isinstance(action, TellExec) for action in machine.after(20.0))
    assert machine.report.doing is Doing.TRAINING


def test_a_mailbox_that_stands_still_is_no_contact() -> None:
    """The words of a controller that is gone do not keep a machine for ever."""
    machine = Machine(box=RUN, beat=(Term(3), 7)).training()
    machine.reachable = False
    assert machine.after(130.0) == [StopExec(now=False)]


def test_an_older_controller_is_refused() -> None:
    """A controller that was paused and replaced is neither obeyed nor counted as contact."""
    machine = Machine().training()
    machine.direct = replace(LEAVE, controller=Term(2))
    machine.beat = (Term(2), 0)
    assert machine.after(50.0) == []
    machine.beat = (Term(2), 1)
    assert machine.after(53.0) == [StopExec(now=False)]
    assert "nothing was heard" in machine.report.sentence


def test_what_an_older_controller_left_in_the_mailbox_is_refused() -> None:
    """Neither its order to leave nor a generation that is over counts, whichever channel is left."""
    machine = Machine().training()
    machine.reachable, machine.box = False, replace(LEAVE, controller=Term(2))
    assert machine.after(50.0) == []
    members = (Peer("m-1", "10.0.0.1:7000"), Peer("m-2", "10.0.0.2:7000"))
    later = Machine(direct=replace(RUN, generation=2, peers=members))
    assert later.turn() == [Prepare(), StartExec(2, 0, members)]
    later.reachable, later.box = False, replace(RUN, generation=1, peers=members[::-1])
    assert later.after(20.0, ExecEnded(75)) == [StartExec(2, 0, members)]


def test_a_machine_that_was_stopped_itself_does_not_take_that_for_silence() -> None:
    """Whoever slept through the limit asks once more before it leaves."""
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
    machine.reachable, machine.box = False, LEAVE
    assert StopExec(now=True) in machine.after(10.0)


def test_the_mailbox_does_not_undo_what_was_said_directly() -> None:
    """A directive that lies in the store for a while is older than a direct answer."""
    machine = Machine(box=WAIT)
    assert machine.turn() == [Prepare(), StartExec()]
    assert machine.after(30.0) == []


def test_an_exec_that_lost_the_run_waits_for_it_again() -> None:
    """75 is no end of the run; a machine that is to run starts again, later each time it ends at once."""
    machine = Machine().training()
    assert machine.after(20.0, ExecEnded(75)) == [StartExec()]
    machine.after(0.1, ExecEnded(75))
    waits = []
    for _ in range(4):
        began = machine.now
        while machine.state.running is None:
            machine.after(0.05)
        waits.append(machine.now - began)
        machine.after(0.1, ExecEnded(75))
    assert waits == sorted(waits)
    assert waits[-1] > 1.0


def test_after_an_end_the_newest_directive_is_asked_for_first() -> None:
    """A run that was stopped is not taken up again on the strength of an old directive."""
    machine = Machine().training()
    machine.direct = WAIT
    assert machine.turn(ExecEnded(75)) == []
    assert machine.after(60.0) == []


@pytest.mark.parametrize(
    ("code", "released", "doing"),
    [(0, Outcome.DONE, Doing.WAITING), (1, Outcome.FAILED, Doing.WAITING), (2, None, Doing.FAILED)],
)
def test_the_end_of_a_run_is_told_and_waited_on(code: int, released: Outcome | None, doing: Doing) -> None:
    """Done, failed, refused: nothing is started again, the controller decides."""
    machine = Machine().training()
    assert machine.turn(Stood(replace(HOLDS, released=released, training=False)), ExecEnded(code, "why")) == []
    assert machine.after(90.0) == []
    assert (machine.report.doing, machine.report.exit_code) == (doing, code)


def test_a_run_that_was_stopped_goes_on_when_the_controller_resumes_it() -> None:
    """An exec that ended well although the run is not done was stopped by somebody: it waits for a new order to run."""
    machine = Machine().training()
    machine.turn(Stood(replace(HOLDS, released=Outcome.WAITING, training=False)), ExecEnded(0))
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
    for _ in range(keeping_facts.TRIES_MAX):
        machine.after(15.0, ExecEnded(137, "killed"))
    assert machine.after(60.0) == []
    assert machine.report.doing is Doing.FAILED
    assert "137: killed (5 times in a row)" in machine.report.sentence


def test_an_outage_of_the_store_is_nobodys_failure() -> None:
    """While the store does not answer the keeper either, exec may fail as often as it likes."""
    machine = Machine().training()
    machine.store = False
    for _ in range(40):
        machine.after(31.0, ExecEnded(1, "the store does not answer"))
    assert machine.report.doing is not Doing.FAILED
    machine.store = True
    machine.after(40.0)
    assert machine.state.running is not None


def test_a_notice_is_told_at_once_with_the_time_that_is_left() -> None:
    """Both channels carry it in the same turn; a hint, a withdrawal and an announcement are told apart."""
    machine = Machine().training()
    machine.did.clear()
    machine.turn(announced(machine.now + 30.0))
    said = [action.report for action in machine.did if isinstance(action, (Say, UseBox))]
    assert [(report.level, report.taken_in_s) for report in said] == [(NoticeLevel.ANNOUNCED, 30.0)] * 2
    machine.turn(Noticed(Notice(NoticeLevel.WITHDRAWN, "aws", "n")))
    assert (machine.report.level, machine.report.taken_in_s) == (NoticeLevel.WITHDRAWN, None)
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


def test_a_withdrawn_notice_lets_it_work_again_at_once() -> None:
    """Nothing is waited for once nobody wants the machine any more."""
    machine = Machine().training()
    machine.turn(announced(machine.now + 120.0))
    machine.after(5.0, ExecEnded(75))
    assert machine.turn(Noticed(Notice(NoticeLevel.WITHDRAWN, "aws", "n"))) == [StartExec()]


def test_a_standby_that_will_be_taken_stands_back() -> None:
    """It would take the run only to lose it; one that shows within a moment that it has the run may save."""
    machine = Machine()
    machine.turn()
    assert machine.turn(announced(machine.now + 30.0)) == [StopExec(now=False)]
    assert machine.after(2.0) == [KillExec()]
    other = Machine()
    other.turn()
    other.turn(announced(other.now + 30.0))
    other.after(1.0, Stood(HOLDS))
    assert other.after(20.0) == []


def test_a_new_generation_ends_the_old_one_with_a_save() -> None:
    """The members of the next generation start when the old one's exec has ended; who is none of them does not."""
    members = (Peer("m-0", "10.0.0.2:7000"), Peer("m-1", "10.0.0.1:7000"))
    first = replace(RUN, generation=1, peers=members)
    machine = Machine(direct=first, brief=replace(BRIEF, nodes=2))
    assert machine.turn() == [Prepare(), StartExec(1, 1, members)]
    machine.after(1.0, Stood(HOLDS))
    assert (machine.report.generation, machine.report.address) == (1, "10.0.0.1:7000")
    machine.direct = second = replace(first, generation=2, peers=members[::-1])
    assert machine.after(1.5) == [StopExec(now=False)]
    stopped = Stood(replace(HOLDS, released=Outcome.WAITING, training=False))
    assert machine.after(3.0, stopped, ExecEnded(0)) == [StartExec(2, 0, members[::-1])]
    assert machine.report.exit_code == 75
    machine.direct = replace(second, generation=3, peers=members[:1])
    machine.after(1.5, ExecEnded(75))
    assert machine.after(60.0) == []


def test_a_failed_setup_starts_nothing_and_says_why() -> None:
    """The controller hears the reason; trying again would only cost."""
    machine = Machine(prepared=NotPrepared("the setup ended with 3: no such package", final=True))
    assert machine.after(60.0) == [Prepare()]
    assert (machine.report.doing, machine.report.exit_code) == (Doing.FAILED, None)
    assert "no such package" in machine.report.sentence


def test_a_stop_by_another_keeper_of_the_generation_is_no_wish_to_stop_the_run() -> None:
    """Several machines: whoever hears of the next generation first ends the present one, and all go on in the next."""
    machine = Machine().training()
    machine.state = replace(machine.state, running=replace(machine.state.running, generation=3))
    machine.turn(ExecEnded(0))
    assert machine.report.exit_code == 75
    assert not machine.state.stopped


GIVEN = SaveTableGiven(SaveTable((30.0, 80.0), 100.0, 20.0, "it rests on 501 losses"), Step(30))


def test_a_schedule_reaches_the_agent_once_on_whichever_channel() -> None:
    """It stands in every directive; the agent is told when it is new, and again when it is made anew."""
    for direct in (True, False):
        machine = Machine(reachable=direct, direct=RUN if direct else None, box=None if direct else RUN)
        machine.after(5.0, Stood(HOLDS))
        for given in (GIVEN, replace(GIVEN, from_step=Step(60))):
            told = replace(RUN, schedule=given)
            machine.direct, machine.box = (told, None) if direct else (None, told)
            assert machine.after(20.0) == [TellExec((given,))]
            assert machine.after(60.0) == []


def test_a_schedule_is_told_anew_to_the_next_exec() -> None:
    """Each start of `windfall exec` begins without one: its machine's is waiting for it."""
    machine = Machine(direct=replace(RUN, schedule=GIVEN))
    assert [type(action) for action in machine.turn()] == [Prepare, StartExec, TellExec]
    machine.after(20.0, Stood(HOLDS))
    again = machine.after(5.0, ExecEnded(75))
    assert again == [StartExec(), TellExec((GIVEN,))]


def test_beliefs_that_have_hardly_moved_are_not_told() -> None:
    """What the pool believes changes with every minute that machines live: only a tenth and more is news."""
    machine = Machine(direct=replace(RUN, mttp_s=Seconds(1000.0)))
    machine.training()
    machine.direct = replace(RUN, mttp_s=Seconds(1050.0))
    assert machine.after(10.0) == []
    machine.direct = replace(RUN, mttp_s=Seconds(1150.0), restart_s=Seconds(90.0))
    assert machine.after(10.0) == [TellExec((BeliefsChanged(Seconds(1150.0), Seconds(90.0)),))]
    machine.direct = replace(machine.direct, restart_s=Seconds(95.0))
    assert machine.after(10.0) == []


def test_a_report_says_what_steps_and_saves_cost() -> None:
    """A schedule is made from what this machine measures."""
    machine = Machine().training()
    costs = SaveCosts(Seconds(2.0), 1000, Seconds(5.0), Seconds(0.5))
    machine.after(2.0, Stood(replace(HOLDS, step_s=Seconds(0.25), costs=costs)))
    assert (machine.report.step_s, machine.report.costs) == (0.25, costs)


@pytest.mark.parametrize("has_address", [True, False])
def test_a_keeper_rests_until_a_channel_that_it_has_is_due(has_address: bool) -> None:
    """Who knows no address of a controller is not kept awake by a direct line that it never uses."""
    machine = Machine(has_address=has_address)
    machine.turn()
    now = Instant(machine.now)
    box = replace(machine.state.box, due=Instant(now + 0.2), busy=False)
    direct = replace(machine.state.direct, due=Instant(now + 0.1), busy=False)
    state = replace(machine.state, box=box, direct=direct)
    assert keeping.pause_s(state, now) == pytest.approx(0.1 if has_address else 0.2)
    assert keeping.pause_s(replace(state, box=replace(box, busy=True)), now) == pytest.approx(
        0.1 if has_address else state.who.pace.look_s
    )
