"""The keeper of a machine that was bought for a job: its facts, its actions, its state.

It prepares the machine, starts `windfall exec` again and again, reports on two channels, and obeys the newest directive of
the newest controller.  It never buys and never decides about the run: whatever it does, the run's log keeps it whole.

Contact with the controller is a direct answer, a directive that was not known, or a heartbeat in the store that has
changed.  Without contact nothing changes until the dead-man limit; then the run is saved and the machine ends itself.  A
machine that has nothing to run waits no longer than `IDLE_S`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from windfall.events import BeliefsChanged, SaveTableGiven
from windfall.fleet import Directive, Doing, Peer, Report
from windfall.jobs import DEAD_MAN_S, SAVE_TIMEOUT_S
from windfall.terms import Instant, Notice, NoticeLevel, Outcome, SaveCosts, Seconds, Step, Term

PREFER_DIRECT_S = Seconds(5.0)
"""For so long after a direct answer the mailbox's directive, which may be older, is not obeyed [s]."""
ANSWER_S = Seconds(2.0)
"""How long an `exec` that does not hold the run may take to show that it does, or to end [s]."""
LATE_S = Seconds(30.0)
"""So long after an announced end that did not come the machine works again [s]."""
QUICK_S = Seconds(10.0)
"""An `exec` that ended earlier than this is started again with a pause that grows [s]."""
PAUSE_S_MIN, PAUSE_S_MAX = 0.25, 30.0
BELIEFS_SHARE = 0.1
"""An agent is told again when what the controller believes has moved by more than this share."""
TRIES_MAX = 5
"""How often in a row `exec` may end in a way that no run ends, with nothing saved in between."""
STRIDE_S_MAX = Seconds(10.0)
"""The most that one turn adds to the silence: a machine that was stopped itself has heard nothing, and proves nothing."""
IDLE_S = Seconds(600.0)
"""How long a machine that has nothing to run waits for a controller it does not hear, at most: waiting is all it does [s]."""
LAST_WORD_S = Seconds(5.0)
"""How long a machine that ends waits until its last report is out [s]."""


_NO_TIME = Instant(0.0)
_NOBODY = Term(0)
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
        step_s, costs: of a step, and of saves, as measured; None before that.
        mute: the script was told of, because it has not called Windfall.
    """

    term: Term
    step: Step
    saved_step: Step
    attempt: int
    training: bool
    released: Outcome | None = None
    step_s: Seconds | None = None
    costs: SaveCosts | None = None
    mute: bool = False


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
    """What the mailbox holds: this machine's directive, and (term, counter) of the controller's heartbeat."""

    directive: Directive | None
    beat: tuple[Term, int] | None


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
class TellExec:
    """Leave what the controller believes where the run's agent looks for it."""

    facts: tuple[BeliefsChanged | SaveTableGiven, ...]


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


KeeperAction = Join | AskStore | Prepare | Say | UseBox | StartExec | TellExec | StopExec | KillExec | EndMachine

# ------------------------------------------------------------------------------------------------------------ state


@dataclass(frozen=True, slots=True)
class Running:
    """An `exec` that runs.

    Attributes:
        asked_at: when it was asked to end (`now`: without a save).
        believed: the directive of which its agent was told last.
    """

    since: Instant
    generation: int = 0
    standing: Standing | None = None
    asked_at: Instant | None = None
    now: bool = False
    killed: bool = False
    believed: Directive | None = None


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
    controller: Term = _NOBODY
    boxed: Directive | None = None
    beat: tuple[Term, int] | None = None
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
        term=None if standing is None else standing.term,
        step=None if standing is None else standing.step,
        saved_step=None if standing is None else standing.saved_step,
        exit_code=state.exit_code,
        level=_level(state),
        taken_in_s=None if state.deadline is None else Seconds(state.deadline - now),
        generation=0 if state.running is None else state.running.generation,
        address=state.who.address if several else "",
        sentence=trouble,
        step_s=None if standing is None else standing.step_s,
        costs=None if standing is None else standing.costs,
        mute=standing is not None and standing.mute,
    )


def _level(state: KeeperState) -> NoticeLevel | None:
    if state.deadline is not None:
        return NoticeLevel.ANNOUNCED
    if state.withdrawn:
        return NoticeLevel.WITHDRAWN  # before a hint: a successor may have been ordered for what will not happen
    return NoticeLevel.HINT if state.notices else None
