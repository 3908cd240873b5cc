"""Binds implementations to ports: the only module that knows them all."""

from __future__ import annotations

import os
import queue
import shlex
import socket
import threading
from collections.abc import Callable
from functools import partial

from windfall.agent import background, peer_link, session_folder
from windfall.agent.agent_loop import Agent, AgentPorts
from windfall.agent.coordinator import JOIN_S, Coordinator
from windfall.agent.exec_request import ExecRequest
from windfall.agent.member import MemberLoop, MemberPorts
from windfall.agent.peer_link import PeerIdentity
from windfall.agent.supervisor_client import SupervisorClient
from windfall.errors import EXIT_DONE, EXIT_RETRY, GenerationIncomplete, Interrupted, Misuse, WindfallError
from windfall.events import Fact, NoticeReceived, RunStopRequested, WorkerStarted
from windfall.linux import processes
from windfall.linux.clock import StoppableClock, SystemClock
from windfall.linux.random_names import new_nonce
from windfall.notices import notice_sources
from windfall.notices.relay import RelayedNotices
from windfall.notices.signals import SignalNotices
from windfall.ports import Clock, NoticeSource, ObjectStore
from windfall.storage import acquire_run, local_leftovers, run_log
from windfall.storage.member_lease import MemberLease
from windfall.storage.object_stores import file_system_of, folder_of, is_shared, open_store
from windfall.storage.run_lease import LocalSession, StoreLease, reopen
from windfall.storage.store_operations import RetryPolicy
from windfall.structs import replace
from windfall.terms import (
    Cause,
    Holder,
    Instant,
    LastProgress,
    Notice,
    NoticeLevel,
    Outcome,
    Record,
    Seconds,
    Term,
    noticed,
)
from windfall.wire.environment import PEERS_TOKEN

_FOLDER_POLL_S = 0.5
_STANDBY_POLL_S = 1.0
_LEAVE_S = Seconds(2.0)
"""How long a request in progress may delay the end of the wait for a run after a signal [s]."""
_HOW_IT_ENDED = {
    Cause.DONE: "the script had finished",
    Cause.PREEMPTED_SAVED: "the last machine was preempted after a save",
    Cause.PREEMPTED_UNSAVED: "the last machine was preempted without a save, so its last steps are repeated",
    Cause.VANISHED: "the last machine vanished without notice",
    Cause.SCRIPT_FAILED: "the script failed",
    Cause.STOPPED: "it was stopped",
    Cause.FENCED: "the last machine had lost its lease",
}
"""How the last machine's lease ended, as the next machine reports it."""


def run_agent(request: ExecRequest, channel: socket.socket) -> None:
    """Run the agent of one `windfall exec` to its end; a `WindfallError` ends it with its message and exit code."""
    supervision = SupervisorClient(channel, managed=request.managed)
    try:
        if request.node_rank > 0:
            _run_member(request, supervision)
        else:
            _run_agent(request, supervision)
    except WindfallError as error:
        supervision.log(str(error))
        supervision.exit(error.exit_code)


def _run_agent(request: ExecRequest, supervision: SupervisorClient) -> None:
    clock = StoppableClock()
    if os.path.exists(request.path("lease.json")):
        clock.disarm()  # an earlier agent of this session acquired the run, so a signal is for its training
    retry = RetryPolicy(clock, budget_s=request.patience_s, log=supervision.log, managed=request.managed)
    store = open_store(request.url, uplink_bytes_per_s=request.uplink_bytes_per_s, retry=retry)
    local = _local_of(request, clock)
    inbox: queue.SimpleQueue[Fact] = queue.SimpleQueue()
    signals = SignalNotices(grace_s=request.after_sigterm_s)
    _listen(supervision, clock, retry, inbox.put, signals.deliver_signal)
    coordinator = _coordinator_of(request, clock, supervision, inbox.put)
    try:
        lease, started = _acquire_lease(request, store, local, supervision)
        if (reason := clock.disarm()) is not None and lease is not None:
            lease.release(Outcome.WAITING, Cause.STOPPED)
            raise reason
    except WindfallError as error:
        if coordinator is not None:
            coordinator.end(error.exit_code)
        raise
    if lease is None:
        _leave(coordinator, supervision, EXIT_DONE)
        return
    if coordinator is None and request.peers:
        # The links died with an earlier agent of this session: the generation is over, so the run is released.
        lease.release(Outcome.WAITING, Cause.STOPPED)
        raise GenerationIncomplete("the agent restarted and lost the other machines, so this generation ends")
    request = replace(request, cwd=acquire_run.place_code(store, local, lease.state, request.cwd, supervision.log))
    sources = (signals, *_notice_sources(request, clock))
    ports = AgentPorts(clock, lease, lease.journal, supervision, sources, inbox, coordinator)
    agent = Agent(request, ports)
    doors = background.HeartbeatCallbacks(
        inbox.put, partial(_preempt, request, supervision, clock, inbox.put), supervision.log, agent.progress
    )
    background.start(lease, clock, request.options.lease_s, doors, near=_is_local_disk(request.url))
    agent.run(started)


def _listen(
    supervision: SupervisorClient,
    clock: StoppableClock,
    retry: RetryPolicy,
    deliver: Callable[[Fact], None],
    terminated: Callable[[Instant], None],
) -> None:
    """Let signals end the wait for the run; once the run is acquired they are facts."""

    def leave(reason: WindfallError) -> bool:
        if not clock.stop(reason):
            return False
        # A request in progress cannot be interrupted, and not waiting for it loses nothing.
        threading.Thread(target=_leave_soon, args=(supervision, reason), name="leaving", daemon=True).start()
        return True

    def on_fact(fact: Fact) -> None:
        is_stop = isinstance(fact, RunStopRequested)
        if isinstance(fact, RunStopRequested) and fact.now:
            retry.shorten()
        if not (is_stop and leave(Interrupted("stopped while waiting for the run: nothing was started"))):
            deliver(fact)

    def on_sigterm(at: Instant) -> None:
        advice = "" if supervision.managed else "; run the same command on another machine"
        preempted = Interrupted(f"this machine is being preempted before the script started{advice}")
        preempted.exit_code = EXIT_RETRY
        if not leave(preempted):
            terminated(at)

    supervision.listen(on_fact, on_sigterm)


def _leave_soon(supervision: SupervisorClient, reason: WindfallError) -> None:
    SystemClock().sleep(_LEAVE_S)
    supervision.log(str(reason))
    supervision.exit(reason.exit_code)


def _local_of(request: ExecRequest, clock: Clock) -> LocalSession:
    state_file, output = request.path("lease.json"), request.path("output.log")
    return LocalSession(clock, new_nonce, request.session, state_file, output, request.finished)


def _acquire_lease(
    request: ExecRequest, store: ObjectStore, local: LocalSession, supervision: SupervisorClient
) -> tuple[StoreLease | None, WorkerStarted | None]:
    """Continue the lease of an earlier agent of this session, or acquire the run."""
    lease = reopen(store, local)
    if lease is not None:
        return lease, None if any(lease.journal.rows()) else _worker_began(request, lease)
    acquire = acquire_run.AcquireRequest(
        holder=_this_machine(request),
        lease_s=request.options.lease_s,
        command=request.argv,
        folder=request.cwd,
        bundle=request.bundle,
        new_code=request.new_code,
        wait=request.wait,
        generation=request.generation,
        poll_s_max=_standby_poll_s(request.url) if request.machine else run_log.POLL_S_MAX,
    )
    ended = acquire_run.recall_finished(store, local)
    if ended is not None and acquire_run.finish_run(
        store, local, acquire, ended, holder_is_dead=is_dead, log=supervision.log
    ):
        supervision.log("the script had already finished: the run is marked as done, nothing was started")
        return None, None
    sessions, pages = os.path.dirname(request.session), os.path.dirname(request.pages)

    def find_progress(holder: Holder, term: Term) -> LastProgress | None:
        return local_leftovers.last_progress(local_leftovers.leftovers_of(holder, sessions, pages), holder, term)

    acquired = acquire_run.acquire(
        store, local, acquire, holder_is_dead=is_dead, find_progress=find_progress, log=supervision.log
    )
    if acquired.lease is None:
        supervision.log(f"the run at {request.url} is already done: nothing was started; to train again, use a new URL")
        return None, None
    supervision.log(_greeting(request, acquired.record, acquired.previous))
    bring = partial(
        local_leftovers.ship_leftovers,
        store,
        local.clock,
        acquired.record,
        sessions,
        request.url,
        gone=session_folder.is_dead,
    )
    threading.Thread(target=bring, name="remains", daemon=True).start()
    if (warning := _other_command(acquired.record, acquired.previous)) is not None:
        supervision.log(warning)
    return acquired.lease, _worker_began(request, acquired.lease)


def _leave(coordinator: Coordinator | None, supervision: SupervisorClient, code: int) -> None:
    if coordinator is not None:
        coordinator.end(code)
    supervision.exit(code)


def _place_of(request: ExecRequest) -> PeerIdentity:
    token = os.environ.get(PEERS_TOKEN, "")
    if not token:
        raise Misuse(f"--peers needs a shared secret: set {PEERS_TOKEN} to the same value on every machine")
    return PeerIdentity(request.generation, request.node_rank, request.peers, token)


def _coordinator_of(
    request: ExecRequest, clock: Clock, supervision: SupervisorClient, deliver: Callable[[Fact], None]
) -> Coordinator | None:
    """Wait for the other machines of the generation that this one leads.

    Returns:
        None if this machine trains alone, or if an earlier agent of this session was the coordinator.
    """
    if not request.peers or os.path.exists(request.path("lease.json")):
        return None
    place = _place_of(request)
    coordinator = Coordinator(
        place, clock, deliver=deliver, log=supervision.log, new_nonce=new_nonce, kill_local=supervision.kill
    )
    coordinator.open()
    coordinator.wait_for_members()
    supervision.log(f"generation {place.generation}: all {len(place.addresses)} machines have joined")
    return coordinator


def _run_member(request: ExecRequest, supervision: SupervisorClient) -> None:
    """Join a generation that another machine leads."""
    clock, place, marker = SystemClock(), _place_of(request), request.path("joined")
    if os.path.exists(marker):
        raise GenerationIncomplete("the agent restarted and lost the leader, so this machine leaves the generation")
    retry = RetryPolicy(clock, budget_s=request.patience_s, log=supervision.log, managed=request.managed)
    store = open_store(request.url, uplink_bytes_per_s=request.uplink_bytes_per_s, retry=retry)
    local = _local_of(request, clock)
    inbox: queue.SimpleQueue[Fact] = queue.SimpleQueue()
    signals = SignalNotices(grace_s=request.after_sigterm_s)
    supervision.listen(inbox.put, signals.deliver_signal)
    connection = peer_link.join(place, new_nonce(), JOIN_S, clock)
    with open(marker, "w"):
        pass
    sources = (signals, *_notice_sources(request, clock))
    ports = MemberPorts(
        clock,
        MemberLease(store, clock, request.generation, node=request.node_rank, output=local.output),
        supervision,
        sources,
        lambda state: acquire_run.place_code(store, local, state, request.cwd, supervision.log),
        inbox,
    )
    MemberLoop(request, ports, connection).run()


def _standby_poll_s(url: str) -> float:
    """Return how often a machine of a controlled job polls whether the run is free [s].

    A waiting machine costs money every second.  Three requests a second cost about 0.004 USD an hour at 0.0004 USD per
    1000 reads (Amazon S3, standard, 2024); a folder costs nothing.
    """
    return _FOLDER_POLL_S if url.startswith("file://") else _STANDBY_POLL_S


def _worker_began(request: ExecRequest, lease: StoreLease) -> WorkerStarted:
    state = lease.state
    return WorkerStarted(
        run=request.url,
        term=state.term,
        options=request.options,
        provider=request.provider,
        checkpoints=state.checkpoints,
        attempt=state.attempts,
        failures=state.failures,
        lifetimes_s=state.lifetimes_s,
        preemptions=state.preemptions,
        announced=state.announced,
        notices_s=noticed(state.losses),
        generation=max(request.generation, 1),
        costs=state.costs,
        managed=request.managed,
    )


def _greeting(request: ExecRequest, record: Record, previous: Record | None) -> str:
    state = record.state
    if previous is None:
        alone = _is_local_disk(request.url) and not request.managed
        return f"new run {state.run_id}" + (
            " (stored on a local disk: only this machine can resume it)" if alone else ""
        )
    step = max((checkpoint.step for checkpoint in state.checkpoints), default=0)
    if previous.state.attempts == 0:
        return f"new run {state.run_id}, starting from another run's checkpoint at step {step}"
    start = f"from the checkpoint at step {step}" if state.checkpoints else "from step 0 (no checkpoint yet)"
    last = _HOW_IT_ENDED[state.losses[-1].cause if state.losses else Cause.VANISHED]
    return f"resuming run {state.run_id} {start}: {last}"


def _other_command(record: Record, previous: Record | None) -> str | None:
    """Return a warning if the run's last command was different: the URL may belong to another run."""
    if previous is None or not previous.state.command or previous.state.command == record.state.command:
        return None
    return f"the command differs from the last one of this run: {shlex.join(previous.state.command)}"


def _notice_sources(request: ExecRequest, clock: Clock) -> tuple[NoticeSource, ...]:
    """Return what watches this machine's notices: the node agent if there is one, otherwise the provider's service."""
    sources = notice_sources.open_sources(request.provider, request.metadata_url, clock)
    return sources if request.notices is None else (RelayedNotices(request.notices, clock, sources),)


def _preempt(
    request: ExecRequest,
    supervision: SupervisorClient,
    clock: Clock,
    deliver: Callable[[Fact], None],
    notice_s: float | None,
) -> None:
    """Preempt this machine, as `windfall inject` asked: first the notice, then everything is killed."""
    if notice_s is not None:
        if request.provider != "local" or request.metadata_url is not None:
            supervision.log("cannot inject a preemption with notice: only provider local can give one")
            return
        deadline = Instant(clock.now() + notice_s)
        deliver(NoticeReceived(Notice(NoticeLevel.ANNOUNCED, "inject", new_nonce(), deadline)))
    supervision.vanish(notice_s or 0.0)


def _this_machine(request: ExecRequest) -> Holder:
    boot_id, pid_namespace = _boot_and_namespace()
    return Holder(
        host=request.machine or socket.gethostname(),
        boot_id=boot_id,
        pid_namespace=pid_namespace,
        pid=request.supervisor_pid,
        pid_started=processes.started_at(request.supervisor_pid) or 0,
        # The session's, not the agent's: the successor of an agent that died right after its record keeps the lease.
        nonce=request.nonce,
    )


def _boot_and_namespace() -> tuple[str, int]:
    """Return the machine's boot id and PID namespace, within which a process number means one process."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip(), os.stat("/proc/self/ns/pid").st_ino


def _is_local_disk(url: str) -> bool:
    """Return whether a store is on a disk that only this machine reaches."""
    folder = folder_of(url)
    return folder is not None and not is_shared(file_system_of(folder))


def is_dead(holder: Holder) -> bool:
    """Return whether a holder of this boot and PID namespace is gone, by its process's number and start time."""
    return processes.started_at(holder.pid) != holder.pid_started


def has_died_here(holder: Holder) -> bool:
    """Return whether a holder was a process of this machine and is gone: then its heartbeat need not be awaited."""
    try:
        return (holder.boot_id, holder.pid_namespace) == _boot_and_namespace() and is_dead(holder)
    except OSError:
        return False  # not Linux: no process here can hold a run
