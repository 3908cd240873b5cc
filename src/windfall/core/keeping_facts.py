"""The keeper of a machine that was bought for a job: facts in, actions out, without clock, input or output.

It prepares the machine, starts `windfall exec` again and again, reports on two channels, and obeys the newest directive of
the newest controller.  It never buys and never decides about the run: whatever it does, the run's log keeps it whole.

Contact with the controller is a direct answer, a directive that was not known, or a heartbeat in the store that has
changed.  Without contact nothing changes until the dead-man limit; then the run is saved and the machine ends itself.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from windfall.errors import EXIT_AGAIN, EXIT_DONE, EXIT_FAILED, EXIT_MISUSE
from windfall.fleet import Direction, Directive, Doing, Peer, Report
from windfall.jobs import DEAD_MAN_S, SAVE_TIMEOUT_S
from windfall.terms import Epoch, Instant, Notice, NoticeLevel, Outcome, Seconds, Step

PREFER_DIRECT_S = Seconds(5.0)
"""For so long after a direct answer the mailbox's directive, which may be older, is not obeyed [s]."""
ANSWER_S = Seconds(2.0)
"""How long an `exec` that does not hold the run may take to show that it does, or to end [s]."""
LATE_S = Seconds(30.0)
"""So long after an announced end that did not come the machine works again [s]."""
QUICK_S = Seconds(10.0)
"""An `exec` that ended earlier than this is started again with a pause that grows [s]."""
PAUSE_S_MIN, PAUSE_S_MAX = 0.25, 30.0
TRIES_MAX = 5
"""How often in a row `exec` may end in a way that no run ends, with nothing saved in between."""
STRIDE_S_MAX = Seconds(10.0)
"""The most that one turn adds to the silence: a machine that was stopped itself has heard nothing, and proves nothing."""
LAST_WORD_S = Seconds(5.0)
"""How long a machine that ends waits until its last report is out [s]."""


_NO_TIME = Instant(0.0)
_NOBODY = Epoch(0)
_DIRECT_S, _BOX_S, _BOX_ALONE_S, _LOOK_S = Seconds(1.0), Seconds(10.0), Seconds(2.0), Seconds(0.25)


@dataclass(frozen=True, slots=True)
class Pace:
    """How often a keeper speaks.

    With these values the mailbox of a machine costs about 0.002 USD an hour at 0.005 USD per 1000 writes and 0.0004 per
    1000 reads (Amazon S3, standard, 2024), five times as much while the direct channel fails.

    Attributes:
        direct_s: between two direct reports [s].
        box_s: between two visits to the mailbox: one write, two reads [s].
        box_alone_s: the same while the direct channel fails, or where there is none [s].
        look_s: the longest pause between two turns: how late an end of `exec` is seen [s].
    """

    direct_s: Seconds = _DIRECT_S
    box_s: Seconds = _BOX_S
    box_alone_s: Seconds = _BOX_ALONE_S
    look_s: Seconds = _LOOK_S


@dataclass(frozen=True, slots=True)
class Standing:
    """Where the run stands on this machine, as its agent wrote it; there is none before the machine holds the run.

    Attributes:
        step: complete steps of the fastest rank.
        saved_step: of the newest committed point.
        attempt: number of the script's newest start.
        training: whether the script runs.
        released: how the run was let go; None if it was not.
    """

    epoch: Epoch
    step: Step
    saved_step: Step
    attempt: int
    training: bool
    released: Outcome | None = None


@dataclass(frozen=True, slots=True)
class Who:
    """This keeper.

    Attributes:
        life: random; another one means that the keeper was started anew.
        direct: whether it knows an address of its controller.
        address: host:port at which its agent can be reached by the job's other machines.
    """

    machine_id: str
    life: str
    direct: bool
    address: str = ""
    pace: Pace = field(default_factory=Pace)


@dataclass(frozen=True, slots=True)
class Brief:
    """What the keeper's decisions need of a job."""

    nodes: int = 1
    dead_man_s: Seconds = DEAD_MAN_S
    save_timeout_s: Seconds = SAVE_TIMEOUT_S


# ------------------------------------------------------------------------------------------------------------ facts


@dataclass(frozen=True, slots=True)
class Joined:
    """The controller took this machine's credential."""


@dataclass(frozen=True, slots=True)
class Briefed:
    """Everything that the job needs is here, secrets included."""

    brief: Brief


@dataclass(frozen=True, slots=True)
class NotBriefed:
    """Why the job's data are not here yet."""

    sentence: str


@dataclass(frozen=True, slots=True)
class Prepared:
    """Code and setup are in place."""


@dataclass(frozen=True, slots=True)
class NotPrepared:
    """Why not; `final`: trying again is useless."""

    sentence: str
    final: bool


@dataclass(frozen=True, slots=True)
class Stood:
    """What the agent's file says now."""

    standing: Standing | None


@dataclass(frozen=True, slots=True)
class ExecEnded:
    """`windfall exec` ended; `sentence` is its last word."""

    code: int
    sentence: str = ""


@dataclass(frozen=True, slots=True)
class Noticed:
    """A notice about this machine."""

    notice: Notice


@dataclass(frozen=True, slots=True)
class Answered:
    """The controller answered directly; it may have no directive yet."""

    directive: Directive | None


@dataclass(frozen=True, slots=True)
class NotAnswered:
    """The controller did not answer, or refused, with its reason."""

    sentence: str = ""


@dataclass(frozen=True, slots=True)
class BoxRead:
    """What the mailbox holds: this machine's directive, and (epoch, counter) of the controller's heartbeat."""

    directive: Directive | None
    beat: tuple[Epoch, int] | None


@dataclass(frozen=True, slots=True)
class BoxFailed:
    """The store did not answer, or refused."""


@dataclass(frozen=True, slots=True)
class StopWished:
    """Somebody at this machine wants it to save and end."""


KeeperFact = (
    Joined | Briefed | NotBriefed | Prepared | NotPrepared | Stood | ExecEnded | Noticed | Answered | NotAnswered
    | BoxRead | BoxFailed | StopWished
)  # fmt: skip

# ---------------------------------------------------------------------------------------------------------- actions


@dataclass(frozen=True, slots=True)
class Join:
    """Show the credential; answered by `Joined` and `Briefed`, or by `NotAnswered`."""


@dataclass(frozen=True, slots=True)
class AskStore:
    """Look for the job's data in the store; answered by `Briefed` or `NotBriefed`."""


@dataclass(frozen=True, slots=True)
class Prepare:
    """Bring the code and run the setup; answered by `Prepared` or `NotPrepared`."""


@dataclass(frozen=True, slots=True)
class Say:
    """Report directly; answered by `Answered` or `NotAnswered`."""

    report: Report


@dataclass(frozen=True, slots=True)
class UseBox:
    """Put a report into the mailbox and look what it holds; answered by `BoxRead` or `BoxFailed`."""

    report: Report


@dataclass(frozen=True, slots=True)
class StartExec:
    """Start `windfall exec`; answered by `ExecEnded` in the end."""

    generation: int = 0
    rank: int = 0
    peers: tuple[Peer, ...] = ()
    mttp_s: Seconds | None = None


@dataclass(frozen=True, slots=True)
class StopExec:
    """Ask it to end, after a save or `now`."""

    now: bool


@dataclass(frozen=True, slots=True)
class KillExec:
    """End it and everything below it."""


@dataclass(frozen=True, slots=True)
class EndMachine:
    """End the keeper, and with it the machine."""

    why: str


KeeperAction = Join | AskStore | Prepare | Say | UseBox | StartExec | StopExec | KillExec | EndMachine

# ------------------------------------------------------------------------------------------------------------ state


@dataclass(frozen=True, slots=True)
class Running:
    """An `exec` that runs; `asked_at` when it was asked to end (`now`: without a save)."""

    since: Instant
    generation: int = 0
    standing: Standing | None = None
    asked_at: Instant | None = None
    now: bool = False
    killed: bool = False


@dataclass(frozen=True, slots=True)
class Leaving:
    """Why this machine ends itself, and whether the run is to be saved before."""

    why: str
    save: bool
    since: Instant


@dataclass(frozen=True, slots=True)
class Line:
    """One channel: when it is used next, and how it went; `again`: there was news while it was busy."""

    due: Instant
    busy: bool = False
    again: bool = False
    failures: int = 0

    def urged(self, now: Instant) -> Line:
        """Return the channel with news to carry: at once, or as soon as it is free."""
        return replace(self, again=True) if self.busy else replace(self, due=now)


@dataclass(frozen=True, slots=True)
class KeeperState:
    """One keeper.

    Attributes:
        silence_s: since the last contact, as far as this machine can know.
        ready: the machine is prepared; `preparing` while that goes on; not before `prepare_at`.
        failed: why this machine cannot do the job; None if it can.
        exit_code, last: of the last `exec`: how it ended, and where the run stood then.
        done: it need not be started again; `stopped`: not before a directive to wait is followed by one to run.
        heard: a channel was asked for the newest directive after the last `exec` ended.
        again_at: when it may be started again; `quick` counts short lives in a row.
        odd: ends in a row that are no end of a run; `odd_step` what was saved at the last.
        boxed: the newest directive from the mailbox; `beat` the newest heartbeat there.
        answered_at: the last direct answer.
        said: what the last report said that matters; `sequence` its number.
    """

    who: Who
    turned_at: Instant
    direct: Line
    box: Line
    silence_s: float = 0.0
    joined: bool = False
    brief: Brief | None = None
    asking_store: bool = False
    ready: bool = False
    preparing: bool = False
    prepare_at: Instant = _NO_TIME
    prepare_tries: int = 0
    failed: str | None = None
    running: Running | None = None
    exit_code: int | None = None
    last: Standing | None = None
    done: bool = False
    stopped: bool = False
    heard: bool = True
    again_at: Instant = _NO_TIME
    quick: int = 0
    odd: int = 0
    odd_step: int = 0
    directive: Directive | None = None
    controller: Epoch = _NOBODY
    boxed: Directive | None = None
    beat: tuple[Epoch, int] | None = None
    answered_at: Instant | None = None
    notices: tuple[Notice, ...] = ()
    withdrawn: bool = False
    leaving: Leaving | None = None
    over: bool = False
    trouble: str = ""
    sequence: int = 0
    said: tuple[object, ...] = ()

    @property
    def doing(self) -> Doing:
        """What this machine says it is doing."""
        if self.leaving is not None:
            return Doing.LEAVING
        if self.failed is not None:
            return Doing.FAILED
        if not self.ready:
            return Doing.SETUP
        standing = self.running.standing if self.running is not None else None
        return Doing.TRAINING if standing is not None and standing.training else Doing.WAITING

    @property
    def deadline(self) -> Instant | None:
        """The earliest announced end."""
        ends = [notice.deadline for notice in self.notices if notice.level is NoticeLevel.ANNOUNCED]
        return min((end for end in ends if end is not None), default=None)

    def announced(self, now: Instant) -> bool:
        """Say whether this machine will be taken soon."""
        return self.deadline is not None and now < self.deadline + LATE_S


def begin(who: Who, now: Instant) -> KeeperState:
    """Return the state before any fact."""
    return KeeperState(who, turned_at=now, direct=Line(now), box=Line(now))


def report(state: KeeperState, now: Instant) -> Report:
    """Return what is to be told now."""
    standing = state.running.standing if state.running is not None else state.last
    trouble = state.leaving.why if state.leaving is not None else state.failed or state.trouble
    several = state.ready and state.brief is not None and state.brief.nodes > 1
    return Report(
        machine_id=state.who.machine_id,
        sequence=state.sequence,
        life=state.who.life,
        doing=state.doing,
        epoch=None if standing is None else standing.epoch,
        step=None if standing is None else standing.step,
        saved_step=None if standing is None else standing.saved_step,
        exit_code=state.exit_code,
        level=_level(state),
        taken_in_s=None if state.deadline is None else Seconds(state.deadline - now),
        generation=0 if state.running is None else state.running.generation,
        address=state.who.address if several else "",
        sentence=trouble,
    )


def _level(state: KeeperState) -> NoticeLevel | None:
    if state.deadline is not None:
        return NoticeLevel.ANNOUNCED
    if state.notices:
        return NoticeLevel.HINT
    return NoticeLevel.WITHDRAWN if state.withdrawn else None


# ------------------------------------------------------------------------------------------------------------ facts in


def absorb(state: KeeperState, now: Instant, fact: KeeperFact) -> KeeperState:
    """Return the state that knows a fact; what follows from it is decided by `core.keeping.react`."""
    match fact:
        case Joined() | Answered() | NotAnswered() | BoxRead() | BoxFailed():
            state = _hear(state, now, fact)
        case Noticed(notice):
            state = _notice(state, now, notice)
        case ExecEnded():
            state = _ended(state, now, fact)
        case Stood(standing):
            if state.running is not None and standing is not None:
                state = replace(state, running=replace(state.running, standing=standing))
        case StopWished():
            why = "somebody at this machine asked it to stop"
            state = replace(state, leaving=state.leaving or Leaving(why, save=True, since=now))
        case _:
            state = _prepare(state, now, fact)
    return state


def _prepare(state: KeeperState, now: Instant, fact: Briefed | NotBriefed | Prepared | NotPrepared) -> KeeperState:
    match fact:
        case Briefed(brief):
            return replace(state, brief=state.brief or brief, asking_store=False, trouble="")
        case NotBriefed(sentence):
            return replace(state, asking_store=False, trouble="" if state.brief is not None else sentence)
        case Prepared():
            return replace(state, ready=True, preparing=False, trouble="")
        case NotPrepared(sentence, final):
            tries = state.prepare_tries + 1
            at = Instant(now + _pause_s(tries))
            failed = sentence if final else state.failed
            return replace(state, preparing=False, prepare_tries=tries, prepare_at=at, failed=failed, trouble=sentence)


def _hear(state: KeeperState, now: Instant, fact: Joined | Answered | NotAnswered | BoxRead | BoxFailed) -> KeeperState:
    pace = state.who.pace
    match fact:
        case Joined():
            direct = Line(now)
            return replace(state, joined=True, silence_s=0.0, direct=direct)
        case Answered(directive):
            direct = _rested(state.direct, now, pace.direct_s)
            state = replace(state, direct=direct, heard=state.heard or not state.direct.again)
            if directive is not None and directive.controller < state.controller:
                return state
            state = replace(state, silence_s=0.0, answered_at=now)
            return state if directive is None else _obey(state, directive)
        case NotAnswered():
            failures = state.direct.failures + 1
            wait_s = min(pace.direct_s * 2.0 ** min(failures, 8), 5.0)
            direct = replace(_rested(state.direct, now, wait_s), failures=failures)
            box = replace(state.box, due=Instant(min(state.box.due, now + pace.box_alone_s)))
            trouble = state.trouble or (fact.sentence if state.brief is None else "")
            return replace(state, direct=direct, box=box, trouble=trouble)
        case BoxRead():
            return _read_box(state, now, fact)
        case BoxFailed():
            failures = state.box.failures + 1
            wait_s = min(pace.box_alone_s * 2.0 ** min(failures - 1, 8), 10.0)
            # Nobody can say anything newer now: the last directive stands.
            heard = state.heard or (_alone(state) and not state.box.again)
            return replace(state, heard=heard, box=replace(_rested(state.box, now, wait_s), failures=failures))


def _read_box(state: KeeperState, now: Instant, fact: BoxRead) -> KeeperState:
    alone = _alone(state)
    wait_s = state.who.pace.box_alone_s if alone else state.who.pace.box_s
    heard = state.heard or (alone and not state.box.again)
    state = replace(state, box=_rested(state.box, now, wait_s), heard=heard)
    if fact.beat is not None and fact.beat[0] >= state.controller and fact.beat != state.beat:
        # The first one may be of any age; it takes a second one to know that somebody writes them.
        silence_s = state.silence_s if state.beat is None else 0.0
        state = replace(state, beat=fact.beat, controller=fact.beat[0], silence_s=silence_s)
    told = fact.directive
    if told is None or told.controller < state.controller:
        return state
    if told != state.boxed:
        state = replace(state, boxed=told, silence_s=0.0)
    lately = state.answered_at is not None and now < state.answered_at + PREFER_DIRECT_S
    return state if lately and told.direction is not Direction.LEAVE else _obey(state, told)


def _obey(state: KeeperState, told: Directive) -> KeeperState:
    """Take a directive as the newest, unless it is of an older controller, or older by its generation."""
    known = state.directive
    if told.controller < state.controller:
        return state
    if known is not None and told.controller == known.controller and 0 < told.generation < known.generation:
        return state
    again = known is not None and known.direction is not Direction.RUN and told.direction is Direction.RUN
    stopped = state.stopped and not again
    return replace(state, directive=told, controller=told.controller, stopped=stopped)


def _alone(state: KeeperState) -> bool:
    return not (state.who.direct and state.joined and state.direct.failures == 0)


def _rested(line: Line, now: Instant, wait_s: float) -> Line:
    return Line(now if line.again else Instant(now + wait_s))


def _notice(state: KeeperState, now: Instant, notice: Notice) -> KeeperState:
    others = tuple(old for old in state.notices if (old.source, old.notice_id) != (notice.source, notice.notice_id))
    if notice.level is NoticeLevel.WITHDRAWN:
        return replace(state, notices=others, withdrawn=len(others) < len(state.notices) or state.withdrawn)
    if notice.level is NoticeLevel.GONE:
        notice = replace(notice, level=NoticeLevel.ANNOUNCED, deadline=now)
    return replace(state, notices=(*others, notice))


def _ended(state: KeeperState, now: Instant, fact: ExecEnded) -> KeeperState:
    """Tell the ends of a run from those of a machine: only the former are final."""
    run = state.running
    assert run is not None, "only an exec that runs can end"
    released = None if run.standing is None else run.standing.released
    code = fact.code
    if code == EXIT_DONE and released is Outcome.WAITING and run.asked_at is not None:
        code = EXIT_AGAIN  # this keeper stopped it, and nobody who wants the run to stop
    state = replace(state, running=None, exit_code=code, last=run.standing, heard=False)
    state = replace(state, direct=state.direct.urged(now), box=state.box.urged(now))
    if code == EXIT_MISUSE:
        return replace(state, done=True, failed=fact.sentence or "windfall exec refused to start")
    failed = code == EXIT_FAILED and released is Outcome.FAILED
    if code == EXIT_DONE or failed:
        stopped = code == EXIT_DONE and released is Outcome.WAITING
        return replace(state, done=not stopped, stopped=stopped, trouble=fact.sentence if failed else "")
    trained = run.standing is not None and run.standing.attempt > 0
    quick = 0 if trained and now - run.since > QUICK_S else state.quick + 1
    pause_s = _pause_s(quick) if quick > 1 else 0.0
    state = replace(state, quick=quick, again_at=Instant(now + pause_s), trouble="")
    if code == EXIT_AGAIN or run.asked_at is not None:
        return replace(state, odd=0)
    return _odd(state, run, fact)


def _odd(state: KeeperState, run: Running, fact: ExecEnded) -> KeeperState:
    """Count an end that is no run's; a store that does not answer this keeper either is to blame for none."""
    saved = state.odd_step if run.standing is None else max(run.standing.saved_step, state.odd_step)
    odd = 1 if saved > state.odd_step else state.odd + 1
    what = f"windfall exec ended with {fact.code}" + (f": {fact.sentence}" if fact.sentence else "")
    state = replace(state, odd_step=saved, trouble=what)
    if state.box.failures:
        return state
    failed = f"{what} ({odd} times in a row)" if odd >= TRIES_MAX else None
    return replace(state, odd=odd, failed=failed, done=failed is not None)


def _pause_s(tries: int) -> float:
    return min(PAUSE_S_MIN * 2.0 ** min(max(tries - 1, 0), 16), PAUSE_S_MAX)
