"""Which implementation stands behind which port: the only module that knows them all."""

from __future__ import annotations

import dataclasses
import os
import queue
import secrets
import shlex
import socket
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from windfall.agent import beats, kernel, session
from windfall.agent import peers_handshake as handshake
from windfall.agent.loop import Agent, AgentPorts
from windfall.agent.peers import JOIN_S, Room
from windfall.agent.peers_handshake import Place
from windfall.agent.peers_member import Member, MemberPorts
from windfall.agent.session import ExecRequest
from windfall.agent.supervision import Supervision
from windfall.errors import EXIT_AGAIN, EXIT_DONE, Apart, Interrupted, Misuse, WindfallError
from windfall.events import Fact, StopAsked, WorkerBegan
from windfall.notices.aws import AWS_URL, AwsNotices
from windfall.notices.azure import AZURE_URL, AzureNotices
from windfall.notices.google import GOOGLE_URL, GoogleNotices
from windfall.notices.signals import SignalNotices
from windfall.ports import Clock, NoticeSource, ObjectStore, Steps, T
from windfall.storage import executor, log, remains, taking
from windfall.storage.clocks import StoppableClock, SystemClock
from windfall.storage.hold import Hold, Local, reopen
from windfall.storage.member import MemberHold
from windfall.storage.mounts import file_system_of, is_shared
from windfall.storage.objects import folder_of, open_store
from windfall.storage.patience import BUDGET_S, Patience
from windfall.terms import Cause, Holder, Instant, Outcome, Reached, Record, Seconds, Term, noticed
from windfall.units import duration_s
from windfall.wire.environment import PATIENCE, PEERS_TOKEN
from windfall.wire.metadata import MetadataServer, serve

VERSION = "0.1.0"
_LOCAL_POLL_S = Seconds(0.25)
_LOCAL_MARGIN_S = Seconds(0.05)
_FOLDER_POLL_S = 0.5
_STANDBY_POLL_S = 1.0
_LEAVE_S = Seconds(2.0)
"""How long the wait for a run may take to end after a signal [s]."""
_LAST_WORDS = {
    Cause.DONE: "the script had ended",
    Cause.PREEMPTED_SAVED: "the last machine was preempted after a save",
    Cause.PREEMPTED_UNSAVED: "the last machine was preempted, its last steps are redone",
    Cause.VANISHED: "the last machine vanished without a word",
    Cause.SCRIPT_FAILED: "the script had failed",
    Cause.STOPPED: "it was stopped",
    Cause.FENCED: "the last machine had lost it",
}
"""How the last machine ended, as the next one tells it."""


@dataclass(frozen=True, slots=True)
class Reader:
    """A run opened for reading, or for a message to whoever holds it."""

    store: ObjectStore
    clock: Clock

    def run(self, steps: Steps[T]) -> T:
        """Drive a storage step function."""
        return executor.run(steps, self.store, self.clock)


def open_reader(url: str) -> Reader:
    """Open a run's store; nothing is read yet, and later a store that does not answer is borne with patience."""
    clock = SystemClock()
    return Reader(open_store(url, patience=Patience(clock, budget_s=patience_s(), tell=_warn)), clock)


def patience_s() -> float:
    """Return how long a store that does not answer is asked again, where nobody said it on the command line [s].

    Raises:
        Misuse: the environment holds something that is no duration.
    """
    said = os.environ.get(PATIENCE)
    return float(BUDGET_S if said is None else duration_s(said, PATIENCE))


def _warn(sentence: str) -> None:
    sys.stderr.write(f"windfall: {sentence}\n")


def new_nonce() -> str:
    """Return a fresh random name."""
    return secrets.token_hex(8)


def run_agent(request: ExecRequest, channel: socket.socket) -> None:
    """Be the agent of one `windfall exec` until it ends; errors a user can mend end it with their sentence and code."""
    supervision = Supervision(channel, kept=request.kept)
    try:
        if request.node_rank > 0:
            _run_member(request, supervision)
        else:
            _run_agent(request, supervision)
    except WindfallError as error:
        supervision.say(str(error))
        supervision.exit(error.exit_code)


def _run_agent(request: ExecRequest, supervision: Supervision) -> None:
    clock = StoppableClock()
    if os.path.exists(request.path("hold.json")):
        clock.go_on()  # an earlier agent of this session has the run: a signal is for its training
    patience = Patience(clock, budget_s=request.patience_s, tell=supervision.say, alone=request.kept)
    store = open_store(request.url, uplink_bytes_per_s=request.uplink_bytes_per_s, patience=patience)
    local = _local_of(request, clock)
    inbox: queue.SimpleQueue[Fact] = queue.SimpleQueue()
    signals = SignalNotices(grace_s=request.after_sigterm_s)
    _listen(supervision, clock, patience, inbox.put, signals.deliver_signal)
    room = _room_of(request, clock, supervision, inbox.put)
    try:
        hold, began = _hold_of(request, store, local, supervision)
        if (why := clock.go_on()) is not None and hold is not None:
            hold.release(Outcome.WAITING, Cause.STOPPED)
            raise why
    except WindfallError as error:
        if room is not None:
            room.end(error.exit_code)
        raise
    if hold is None:
        _leave(room, supervision, EXIT_DONE)
        return
    if room is None and request.peers:
        # The links died with an earlier agent of this session: the generation is over, and lets the run go.
        hold.release(Outcome.WAITING, Cause.STOPPED)
        raise Apart("the agent was started again and has lost the other machines: the generation is over")
    request = dataclasses.replace(
        request, cwd=taking.place_code(store, local, hold.state, request.cwd, supervision.say)
    )
    metadata = (
        serve((), "aws", now=clock.wall) if request.provider == "local" and request.metadata_url is None else None
    )
    sources = (signals, *cloud_sources(request.provider, metadata.url if metadata else request.metadata_url, clock))
    ports = AgentPorts(clock, hold, hold.journal, supervision, sources, inbox, room)
    agent = Agent(request, ports)
    doors = beats.Doors(
        inbox.put, lambda notice_s: _preempt(supervision, metadata, notice_s), supervision.say, agent.progress
    )
    beats.start(hold, clock, request.lease_s, doors, near=_is_near(request.url))
    agent.run(began)


def _listen(
    supervision: Supervision,
    clock: StoppableClock,
    patience: Patience,
    deliver: Callable[[Fact], None],
    terminated: Callable[[Instant], None],
) -> None:
    """Let signals end the wait for the run, as long as there is one; afterwards they are facts."""

    def leave(why: WindfallError) -> bool:
        if not clock.stop(why):
            return False
        # A request that is under way cannot be broken off, and nothing is lost by not waiting for it.
        threading.Thread(target=_leave_soon, args=(supervision, why), name="leaving", daemon=True).start()
        return True

    def heard(fact: Fact) -> None:
        asked = isinstance(fact, StopAsked)
        if isinstance(fact, StopAsked) and fact.now:
            patience.hurry()
        if not (asked and leave(Interrupted("stopped before it held the run: nothing was started"))):
            deliver(fact)

    def told(at: Instant) -> None:
        advice = "" if supervision.kept else ": start the same line again"
        taken = Interrupted(f"this machine is being taken, and did not hold the run yet{advice}")
        taken.exit_code = EXIT_AGAIN
        if not leave(taken):
            terminated(at)

    supervision.listen(heard, told)


def _leave_soon(supervision: Supervision, why: WindfallError) -> None:
    SystemClock().sleep(_LEAVE_S)
    supervision.say(str(why))
    supervision.exit(why.exit_code)


def _local_of(request: ExecRequest, clock: Clock) -> Local:
    bookkeeping, output = request.path("hold.json"), request.path("output.log")
    return Local(clock, new_nonce, request.session, bookkeeping, output, request.finished)


def _hold_of(
    request: ExecRequest, store: ObjectStore, local: Local, supervision: Supervision
) -> tuple[Hold | None, WorkerBegan | None]:
    """Go on with the hold of an earlier agent of this session, or take the run."""
    hold = reopen(store, local)
    if hold is not None:
        return hold, None if any(hold.journal.rows()) else _beginning(request, hold)
    wish = taking.Wish(
        holder=_this_machine(request),
        lease_s=Seconds(request.lease_s),
        command=request.argv,
        folder=request.cwd,
        bundle=request.bundle,
        new_code=request.new_code,
        wait=request.wait,
        generation=request.generation,
        poll_s_max=_standby_poll_s(request.url) if request.machine else log.POLL_S_MAX,
    )
    ended = taking.finished_here(store, local)
    if ended is not None and taking.finish(store, local, wish, ended, holder_is_dead=is_dead, tell=supervision.say):
        supervision.say("the script was done already: the run is let go as done, nothing was started")
        return None, None
    sessions, pages = os.path.dirname(request.session), os.path.dirname(request.pages)

    def left(holder: Holder, term: Term) -> Reached | None:
        return remains.reached(remains.remains_of(holder, sessions, pages), holder, term)

    taken = taking.take(store, local, wish, holder_is_dead=is_dead, left=left, tell=supervision.say)
    if taken.hold is None:
        supervision.say(f"the run at {request.url} is done already; nothing was started (a new run needs another URL)")
        return None, None
    supervision.say(_greeting(request, taken.record, taken.previous))
    bring = partial(remains.bring, store, local.clock, taken.record, sessions, request.url, gone=session.is_dead)
    threading.Thread(target=bring, name="remains", daemon=True).start()
    if (warning := _other_command(taken.record, taken.previous)) is not None:
        supervision.say(warning)
    return taken.hold, _beginning(request, taken.hold)


def _leave(room: Room | None, supervision: Supervision, code: int) -> None:
    if room is not None:
        room.end(code)
    supervision.exit(code)


def _place_of(request: ExecRequest) -> Place:
    token = os.environ.get(PEERS_TOKEN, "")
    if not token:
        raise Misuse(f"--peers needs the token of the generation in {PEERS_TOKEN}, the same on each of its machines")
    return Place(request.generation, request.node_rank, request.peers, token)


def _room_of(
    request: ExecRequest, clock: Clock, supervision: Supervision, deliver: Callable[[Fact], None]
) -> Room | None:
    """Wait for the other machines of the generation that this one leads; None if it trains alone, or has led them."""
    if not request.peers or os.path.exists(request.path("hold.json")):
        return None
    place = _place_of(request)
    room = Room(place, clock, deliver=deliver, tell=supervision.say, new_nonce=new_nonce, kill_here=supervision.kill)
    room.open()
    room.wait_for_members()
    supervision.say(f"generation {place.generation}: {len(place.addresses)} machines are together")
    return room


def _run_member(request: ExecRequest, supervision: Supervision) -> None:
    """Take part in a generation that another machine leads."""
    clock, place, marker = SystemClock(), _place_of(request), request.path("joined")
    if os.path.exists(marker):
        raise Apart("the agent was started again and has lost the leader: this machine leaves the generation")
    patience = Patience(clock, budget_s=request.patience_s, tell=supervision.say, alone=request.kept)
    store = open_store(request.url, uplink_bytes_per_s=request.uplink_bytes_per_s, patience=patience)
    local = _local_of(request, clock)
    inbox: queue.SimpleQueue[Fact] = queue.SimpleQueue()
    signals = SignalNotices(grace_s=request.after_sigterm_s)
    supervision.listen(inbox.put, signals.deliver_signal)
    connection = handshake.join(place, new_nonce(), JOIN_S, clock)
    with open(marker, "w"):
        pass
    alone = request.provider == "local" and request.metadata_url is None
    sources = (signals, *(() if alone else cloud_sources(request.provider, request.metadata_url, clock)))
    ports = MemberPorts(
        clock,
        MemberHold(store, clock, request.generation, node=request.node_rank, output=local.output),
        supervision,
        sources,
        lambda state: taking.place_code(store, local, state, request.cwd, supervision.say),
        inbox,
    )
    Member(request, ports, connection).run()


def _standby_poll_s(url: str) -> float:
    """Return how often a machine of a controlled job looks whether the run is free [s].

    Whoever bought a machine that waits pays for each second of it.  Three requests a second are about 0.004 USD an
    hour at 0.0004 USD per 1000 reads (Amazon S3, standard, 2024); a folder costs nothing.
    """
    return _FOLDER_POLL_S if url.startswith("file://") else _STANDBY_POLL_S


def _beginning(request: ExecRequest, hold: Hold) -> WorkerBegan:
    state = hold.state
    return WorkerBegan(
        run=request.url,
        term=state.term,
        policy=request.policy,
        provider=request.provider,
        checkpoints=state.checkpoints,
        attempt=state.attempts,
        failures=state.failures,
        failures_max=request.failures_max,
        retry_codes=request.retry_codes,
        lives_s=state.lives_s,
        preemptions=state.preemptions,
        announced=state.announced,
        notices_s=noticed(state.losses),
        grace_s=None if request.grace_s is None else Seconds(request.grace_s),
        mttp_s=None if request.mttp_s is None else Seconds(request.mttp_s),
        keep=request.keep,
        generation=max(request.generation, 1),
        costs=state.costs,
        kept=request.kept,
    )


def _greeting(request: ExecRequest, record: Record, previous: Record | None) -> str:
    state = record.state
    if previous is None:
        alone = _is_near(request.url) and not request.kept
        return f"new run {state.run_id}" + (
            " (on a disk of this machine: only this machine can take it up)" if alone else ""
        )
    step = max((point.step for point in state.checkpoints), default=0)
    if previous.state.attempts == 0:
        return f"new run {state.run_id}: it begins with the checkpoint of another run, at step {step}"
    saved = f"its newest checkpoint is at step {step}" if state.checkpoints else "it has no checkpoint yet"
    last = _LAST_WORDS[state.losses[-1].cause if state.losses else Cause.VANISHED]
    return f"run {state.run_id} taken up: {last}; {saved}"


def _other_command(record: Record, previous: Record | None) -> str | None:
    """Return a warning if the run had another command until now: its URL may have been meant for another run."""
    if previous is None or not previous.state.command or previous.state.command == record.state.command:
        return None
    return f"the command is another one than before, which was: {shlex.join(previous.state.command)}"


def cloud_sources(provider: str, url: str | None, clock: Clock) -> tuple[NoticeSource, ...]:
    """Return what watches a provider's notices; `url` None: at the documented address."""
    if provider == "local":
        # A service on this very machine has its clock: neither a second of allowance nor one between two looks is needed.
        return (AwsNotices(clock, url or AWS_URL, poll_s=_LOCAL_POLL_S, margin_s=_LOCAL_MARGIN_S),)
    makers: dict[str, Callable[[], NoticeSource]] = {
        "aws": lambda: AwsNotices(clock, url or AWS_URL),
        "google": lambda: GoogleNotices(clock, url or GOOGLE_URL),
        "azure": lambda: AzureNotices(clock, url or AZURE_URL),
    }
    maker = makers.get(provider)
    return () if maker is None else (maker(),)


def _preempt(supervision: Supervision, metadata: MetadataServer | None, notice_s: float | None) -> None:
    """Take this machine away, as somebody asked for by `windfall inject`: notice first, then everything is killed."""
    if metadata is None and notice_s is not None:
        supervision.say("a preemption with notice can only be injected on a machine of provider local")
        return
    if metadata is not None and notice_s is not None:
        metadata.announce(notice_s)
    supervision.vanish(notice_s or 0.0)


def _this_machine(request: ExecRequest) -> Holder:
    boot_id, pid_namespace = _here()
    return Holder(
        host=request.machine or socket.gethostname(),
        boot_id=boot_id,
        pid_namespace=pid_namespace,
        pid=request.supervisor_pid,
        pid_started=kernel.started_at(request.supervisor_pid) or 0,
        # The session's, not the agent's: an agent that died behind its taking record is followed by its heir.
        nonce=request.nonce,
    )


def _here() -> tuple[str, int]:
    """Return what tells this machine, as processes count here, from every other: its boot, and the PID namespace."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip(), os.stat("/proc/self/ns/pid").st_ino


def _is_near(url: str) -> bool:
    """Say whether a store is a disk of this machine alone."""
    folder = folder_of(url)
    return folder is not None and not is_shared(file_system_of(folder))


def is_dead(holder: Holder) -> bool:
    """Say whether a holder of this boot and PID namespace is gone (its process, told by number and start time)."""
    return kernel.started_at(holder.pid) != holder.pid_started


def has_died_here(holder: Holder) -> bool:
    """Say whether a holder was a process of this very machine, and is gone: then nobody need be listened for."""
    try:
        return (holder.boot_id, holder.pid_namespace) == _here() and is_dead(holder)
    except OSError:
        return False  # no Linux: nobody holds a run here
