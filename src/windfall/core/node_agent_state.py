"""The node agent of a machine that was bought for a job: its facts, its actions, its state.

It prepares the machine, starts and restarts `windfall exec`, reports on two channels, and follows the newest directive of
the newest controller.  It never buys and never decides about the run: whatever it does, the run's log keeps the run
consistent.

Contact with the controller is a direct answer, a new directive, or a changed heartbeat in the store.  Without contact
nothing changes until the dead-man limit; then the run is saved and the machine shuts down.  A machine with nothing to run
waits at most `IDLE_S`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from windfall.events import AssignmentChanged, EstimatesChanged, ScheduleAssigned
from windfall.fleet import Directive, MachineStatus, Peer, Report
from windfall.jobs import DEAD_MAN_S, SAVE_TIMEOUT_S
from windfall.structs import Struct, replace
from windfall.terms import Instant, Notice, NoticeLevel, Outcome, SaveCosts, Seconds, Step, Term

PREFER_DIRECT_S = Seconds(5.0)
"""How long after a direct answer the mailbox's directive, which may be older, is ignored [s]."""
ANSWER_S = Seconds(2.0)
"""How long an `exec` without the lease may take to acquire it or to exit [s]."""
LATE_S = Seconds(30.0)
"""How long after a missed announced end the machine starts work again [s]."""
QUICK_S = Seconds(10.0)
"""An `exec` that exits earlier than this is restarted after a growing pause [s]."""
PAUSE_S_MIN, PAUSE_S_MAX = 0.25, 30.0
ESTIMATE_CHANGE_MIN = 0.1
"""The agent is notified when an estimate of the controller changes by more than this share."""
TRIES_MAX = 5
"""How many times in a row `exec` may exit in an unexpected way, without a save in between."""
STRIDE_S_MAX = Seconds(10.0)
"""The most that one turn adds to the silence [s]: a machine that was itself paused received nothing, which proves nothing."""
IDLE_S = Seconds(600.0)
"""How long a machine with nothing to run waits for a controller that is out of contact, at most [s]."""
SIGTERM = "signal"
"""Source of the notice that a SIGTERM to the machine is."""
FINAL_REPORT_S = Seconds(5.0)
"""How long a machine that shuts down waits for its final report to be sent [s]."""


_NO_TIME = Instant(0.0)
_NO_TERM = Term(0)
_DIRECT_S, _MAILBOX_S, _MAILBOX_ALONE_S, _POLL_S = Seconds(1.0), Seconds(10.0), Seconds(2.0), Seconds(0.25)


class NodeAgentPace(Struct, frozen=True):
    """How often a node agent reports.

    With these values the mailbox of a machine costs about 0.002 USD per hour at 0.005 USD per 1000 writes and 0.0004 USD
    per 1000 reads (Amazon S3, standard, 2024), and five times as much while the direct channel fails.

    Attributes:
        direct_s: between two direct reports [s].
        mailbox_s: between two visits to the mailbox, each one write and two reads [s].
        mailbox_alone_s: the same while the direct channel fails or does not exist [s].
        poll_s: the longest pause between two turns, and so the delay until an exit of `exec` is seen [s].
    """

    direct_s: Seconds = _DIRECT_S
    mailbox_s: Seconds = _MAILBOX_S
    mailbox_alone_s: Seconds = _MAILBOX_ALONE_S
    poll_s: Seconds = _POLL_S


class RunStatus(Struct, frozen=True):
    """The status of the run on this machine, as its agent wrote it; none before the machine holds the lease.

    Attributes:
        step: complete steps of the fastest rank.
        saved_step: step of the newest committed checkpoint.
        attempt: number of the script's latest start.
        training: whether the script runs.
        released: how the run was released; None if it was not.
        step_s, costs: measured time of a step and costs of saves; None before the first measurement.
        sdk_inactive: the script has not called Windfall, and a warning was logged.
        body: what the program of another runtime reports.
    """

    term: Term
    step: Step
    saved_step: Step
    attempt: int
    training: bool
    released: Outcome | None = None
    step_s: Seconds | None = None
    costs: SaveCosts | None = None
    sdk_inactive: bool = False
    body: Mapping[str, Any] = msgspec.field(default_factory=dict)


class NodeAgentIdentity(Struct, frozen=True):
    """The identity of this node agent.

    Attributes:
        incarnation: random; a new value means that the node agent restarted.
        direct: whether it knows an address of its controller.
        address: host:port at which the job's other machines reach its agent.
        sigterm_is_final: its provider withdraws no SIGTERM, so the machine ends once it has nothing left to do.
    """

    machine_id: str
    incarnation: str
    direct: bool
    address: str = ""
    pace: NodeAgentPace = NodeAgentPace()
    sigterm_is_final: bool = False


class JobLimits(Struct, frozen=True):
    """The parts of a job that the node agent's decisions need; `addressed`: its machines reach one another."""

    addressed: bool = False
    dead_man_s: Seconds = DEAD_MAN_S
    save_timeout_s: Seconds = SAVE_TIMEOUT_S


# ------------------------------------------------------------------------------------------------------------ facts


class Joined(Struct, frozen=True):
    """The controller accepted this machine's credential."""


class JobDataRead(Struct, frozen=True):
    """The job's data are here, secrets included."""

    job_limits: JobLimits


class JobDataUnavailable(Struct, frozen=True):
    """The job's data are not here yet; why not."""

    message: str


class Prepared(Struct, frozen=True):
    """Code and setup are in place."""


class NotPrepared(Struct, frozen=True):
    """Code or setup failed; `final`: a retry is useless."""

    message: str
    final: bool


class RunStatusRead(Struct, frozen=True):
    """The current content of the agent's status file."""

    run_status: RunStatus | None


class ExecEnded(Struct, frozen=True):
    """`windfall exec` exited; `message` is its last line."""

    code: int
    message: str = ""


class Noticed(Struct, frozen=True):
    """A notice about this machine."""

    notice: Notice


class Answered(Struct, frozen=True):
    """The controller answered directly; it may have no directive yet."""

    directive: Directive | None


class NotAnswered(Struct, frozen=True):
    """The controller did not answer, or refused, with its reason."""

    message: str = ""


class MailboxRead(Struct, frozen=True):
    """What the mailbox holds: this machine's directive, and (term, counter) of the controller's heartbeat."""

    directive: Directive | None
    heartbeat: tuple[Term, int] | None


class MailboxFailed(Struct, frozen=True):
    """The store did not answer, or refused."""


class StopRequested(Struct, frozen=True):
    """A user on this machine asked it to save and shut down."""


NodeAgentFact = (
    Joined | JobDataRead | JobDataUnavailable | Prepared | NotPrepared | RunStatusRead | ExecEnded | Noticed | Answered
    | NotAnswered | MailboxRead | MailboxFailed | StopRequested
)  # fmt: skip

# ---------------------------------------------------------------------------------------------------------- actions


class Join(Struct, frozen=True):
    """Present the credential; answered by `Joined` and `JobDataRead`, or by `NotAnswered`."""


class ReadJobData(Struct, frozen=True):
    """Read the job's data from the store; answered by `JobDataRead` or `JobDataUnavailable`."""


class Prepare(Struct, frozen=True):
    """Fetch the code and run the setup; answered by `Prepared` or `NotPrepared`."""


class SendReport(Struct, frozen=True):
    """Report directly; answered by `Answered` or `NotAnswered`."""

    report: Report


class SyncMailbox(Struct, frozen=True):
    """Write a report to the mailbox and read it; answered by `MailboxRead` or `MailboxFailed`."""

    report: Report


class StartExec(Struct, frozen=True):
    """Start `windfall exec`; answered by `ExecEnded` when it exits."""

    generation: int = 0
    rank: int = 0
    peers: tuple[Peer, ...] = ()
    mttp_s: Seconds | None = None
    role: str = ""
    assignment: Mapping[str, Any] = msgspec.field(default_factory=dict)


class NotifyExec(Struct, frozen=True):
    """Pass the controller's estimates to the run's agent."""

    facts: tuple[EstimatesChanged | ScheduleAssigned | AssignmentChanged, ...]


class StopExec(Struct, frozen=True):
    """Ask `exec` to exit, after a save or `now`."""

    now: bool


class KillExec(Struct, frozen=True):
    """Kill `exec` and all its descendants."""


class EndMachine(Struct, frozen=True):
    """End the node agent, and with it the machine."""

    reason: str


NodeAgentAction = (
    Join | ReadJobData | Prepare | SendReport | SyncMailbox | StartExec | NotifyExec | StopExec | KillExec | EndMachine
)

# ------------------------------------------------------------------------------------------------------------ state


class RunningExec(Struct, frozen=True):
    """A running `exec`.

    Attributes:
        asked_at: when it was asked to exit (`now`: without a save).
        notified: the directive that its agent was last notified of.
    """

    since: Instant
    generation: int = 0
    run_status: RunStatus | None = None
    asked_at: Instant | None = None
    now: bool = False
    killed: bool = False
    notified: Directive | None = None


class MachineShutdown(Struct, frozen=True):
    """Why this machine shuts down, and whether the run is saved first."""

    reason: str
    save: bool
    since: Instant


class ChannelState(Struct, frozen=True):
    """One channel: when it is used next and its recent failures; `again`: there was news while it was busy."""

    due: Instant
    busy: bool = False
    again: bool = False
    failures: int = 0

    def with_news(self, now: Instant) -> ChannelState:
        """Return the channel due at once, or as soon as it is free, because there is news."""
        return replace(self, again=True) if self.busy else replace(self, due=now)


class NodeAgentState(Struct, frozen=True):
    """The state of one node agent.

    Attributes:
        silence_s: time since the last contact, as far as this machine can know [s].
        ready: the machine is prepared; `preparing` while this is in progress; not tried before `prepare_at`.
        failed: why this machine cannot do the job; None if it can.
        exit_code, last: of the last `exec`: its exit code and the run's last status.
        done: `exec` is not restarted; `stopped`: only restarted after a directive to wait and then one to run.
        directive_checked: the newest directive was read on some channel since the last `exec` exited.
        restart_at: when `exec` may be restarted; `quick_exits` counts short executions in a row.
        bad_exits: unexpected exits in a row; `bad_exits_step` is the saved step at the last one.
        mailbox_directive: the newest directive from the mailbox; `heartbeat` the newest heartbeat there.
        answered_at: when the last direct answer came.
        over: the machine is shutting down and takes no more turns.
        last_reported: the content of the last report that matters; `sequence` is its number.
    """

    identity: NodeAgentIdentity
    last_turn_at: Instant
    direct: ChannelState
    mailbox: ChannelState
    silence_s: float = 0.0
    joined: bool = False
    job_limits: JobLimits | None = None
    reading_job_data: bool = False
    ready: bool = False
    preparing: bool = False
    prepare_at: Instant = _NO_TIME
    prepare_failures: int = 0
    failed: str | None = None
    running: RunningExec | None = None
    exit_code: int | None = None
    last: RunStatus | None = None
    done: bool = False
    stopped: bool = False
    directive_checked: bool = True
    restart_at: Instant = _NO_TIME
    quick_exits: int = 0
    bad_exits: int = 0
    bad_exits_step: int = 0
    directive: Directive | None = None
    controller: Term = _NO_TERM
    mailbox_directive: Directive | None = None
    heartbeat: tuple[Term, int] | None = None
    answered_at: Instant | None = None
    notices: tuple[Notice, ...] = ()
    withdrawn: bool = False
    shutdown: MachineShutdown | None = None
    over: bool = False
    problem: str = ""
    sequence: int = 0
    last_reported: tuple[object, ...] = ()

    @property
    def status(self) -> MachineStatus:
        """The status that this machine reports."""
        if self.shutdown is not None:
            return MachineStatus.STOPPING
        if self.failed is not None:
            return MachineStatus.FAILED
        if not self.ready:
            return MachineStatus.SETUP
        run_status = self.running.run_status if self.running is not None else None
        return MachineStatus.TRAINING if run_status is not None and run_status.training else MachineStatus.WAITING

    @property
    def deadline(self) -> Instant | None:
        """The earliest announced end."""
        ends = [notice.deadline for notice in self.notices if notice.level is NoticeLevel.ANNOUNCED]
        return min((end for end in ends if end is not None), default=None)

    @property
    def spent(self) -> bool:
        """Whether the machine is certainly ending, and its controller has heard, or cannot, that it runs nothing any more."""
        final = self.identity.sigterm_is_final and any(notice.source == SIGTERM for notice in self.notices)
        return final and self.running is None and self.directive_checked

    def announced(self, now: Instant) -> bool:
        """Return whether this machine is about to be preempted."""
        return self.deadline is not None and now < self.deadline + LATE_S


def initial_state(identity: NodeAgentIdentity, now: Instant) -> NodeAgentState:
    """Return the state before any fact."""
    return NodeAgentState(identity, last_turn_at=now, direct=ChannelState(now), mailbox=ChannelState(now))


def report(state: NodeAgentState, now: Instant) -> Report:
    """Return the report to send now."""
    run_status = state.running.run_status if state.running is not None else state.last
    problem = state.shutdown.reason if state.shutdown is not None else state.failed or state.problem
    addressed = state.ready and state.job_limits is not None and state.job_limits.addressed
    return Report(
        machine_id=state.identity.machine_id,
        sequence=state.sequence,
        incarnation=state.identity.incarnation,
        status=state.status,
        term=None if run_status is None else run_status.term,
        step=None if run_status is None else run_status.step,
        saved_step=None if run_status is None else run_status.saved_step,
        exit_code=state.exit_code,
        level=_level(state),
        preemption_in_s=None if state.deadline is None else Seconds(state.deadline - now),
        generation=0 if state.running is None else state.running.generation,
        address=state.identity.address if addressed else "",
        message=problem,
        step_s=None if run_status is None else run_status.step_s,
        costs=None if run_status is None else run_status.costs,
        sdk_inactive=run_status is not None and run_status.sdk_inactive,
        body={} if run_status is None else run_status.body,
    )


def _level(state: NodeAgentState) -> NoticeLevel | None:
    if state.deadline is not None:
        return NoticeLevel.ANNOUNCED
    if state.withdrawn:
        return NoticeLevel.WITHDRAWN  # before a hint: a successor may have been ordered for the withdrawn end
    return NoticeLevel.HINT if state.notices else None
