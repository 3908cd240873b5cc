"""Binds implementations to the ports of a runner's loop: the part of `wiring` for machines of a bag."""

from __future__ import annotations

import os
import queue
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from windfall.agent.exec_request import ExecRequest
from windfall.agent.item_gang import GangMember, GangPorts, ItemGang
from windfall.agent.item_loop import ItemLoop, ItemLoopPorts
from windfall.agent.status_files import StatusFile
from windfall.bags import Bag, RunnerRoom
from windfall.core.item_runner import EndAnnounced, LeaveAsked, RunnerFact, RunnerIdentity
from windfall.errors import EXIT_RETRY, MachineUnfit, Misuse
from windfall.linux import machine_memory, processes
from windfall.linux.clock import SystemClock
from windfall.linux.random_names import new_nonce
from windfall.notices.relay import RelayedNotices
from windfall.policies.layout import bag_rules
from windfall.policies.layout.bag_rules import bag_of
from windfall.storage.object_stores import open_store
from windfall.terms import Instant, Notice, NoticeLevel
from windfall.wire.gang_messages import Allocation, allocation_in
from windfall.wire.python_programs import program

_SIGTERM, _SIGINT = 15, 2


def run_items(request: ExecRequest, signals_fd: int, reduce: Sequence[str]) -> int:
    """Run this machine's items until there is nothing more to do; return the exit code for the node agent.

    Args:
        request: of the node agent.
        signals_fd: where the number of each signal is read, a byte each.
        reduce: the program of the bag's reduce step.

    Raises:
        Misuse: the request is not for a machine of a bag, or no item fits on this machine.
    """
    try:
        bag = bag_of(request.settings)
    except ValueError as error:
        raise Misuse(f"the job's settings have no bag: {error}") from error
    # What an item leaves behind comes to this process, which ends it with the item.
    processes.become_subreaper()
    clock, received = SystemClock(), queue.SimpleQueue[RunnerFact]()
    wakes: list[Callable[[], None]] = []

    def post(fact: RunnerFact) -> None:
        received.put(fact)
        for wake in wakes:
            wake()

    threading.Thread(target=_hear, args=(request, signals_fd, clock, post), name="signals", daemon=True).start()
    if request.notices is not None:
        relay = RelayedNotices(request.notices, clock, ())

        def deliver(notice: Notice) -> None:
            if notice.level in (NoticeLevel.ANNOUNCED, NoticeLevel.WITHDRAWN):
                post(EndAnnounced(notice.deadline if notice.level is NoticeLevel.ANNOUNCED else None))

        threading.Thread(target=relay.watch, args=(deliver, lambda: False), name="notices", daemon=True).start()
    name = f"{request.machine or os.uname().nodename}-{new_nonce()[:8]}"
    cpus = request.cpus or float(len(os.sched_getaffinity(0)))
    room = room_of(bag, cpus, request.memory_gib or machine_memory.usable_gib())
    store, status = open_store(request.url), StatusFile(request.status, clock)
    gang = None
    if (allocation := _allocation(bag)) is not None:
        gang_ports = GangPorts(clock, store, status, lambda: _taken(received), new_nonce, _log)
        if allocation.rank > 0:
            return GangMember(allocation, Path(request.cwd), gang_ports).run()
        gang = ItemGang(allocation, bag, gang_ports, lambda: post(LeaveAsked(now=True)))
        if not gang.gather():
            return EXIT_RETRY
    rule = None if bag.stop_item is None else bag.stop_item.call
    stop_rule = () if rule is None else program("windfall.cli.stop_rule_process", rule)
    ports = ItemLoopPorts(clock, store, lambda: _taken(received), _log, status, reduce, gang, stop_rule)
    identity = RunnerIdentity(name, request.machine, room, bag.item_timeout_s, bag.reduce_item)
    loop = ItemLoop(request, bag, identity, ports)
    wakes.append(loop.wake)
    return loop.run()


def _allocation(bag: Bag) -> Allocation | None:
    """Return the allocation on which a bag's items run; None if each runs on one machine.

    Raises:
        MachineUnfit: this machine is not one of as many nodes.
    """
    if bag.nodes == 1:
        return None
    allocation = allocation_in(os.environ)
    found = 1 if allocation is None else len(allocation.hosts)
    if allocation is None or found != bag.nodes:
        raise MachineUnfit(f"an item runs on {bag.nodes} nodes of one allocation, and this machine's has {found}")
    return allocation


def room_of(bag: Bag, cpus: float, memory_gib: float) -> RunnerRoom:
    """Return how many items a machine runs at once.

    Args:
        bag: says what an item needs.
        cpus: of the machine.
        memory_gib: of the machine [GiB].

    Raises:
        Misuse: not one item fits.
    """
    room = bag_rules.room_of(bag, cpus, memory_gib)
    if room.slots < 1:
        raise Misuse(
            f"an item needs {bag_rules.needs_text(bag)}, and this machine has {cpus:g} CPUs and {memory_gib:.3g} GiB"
        )
    return room


def _hear(request: ExecRequest, signals_fd: int, clock: SystemClock, post: object) -> None:
    """Turn signals into facts: SIGTERM announces the machine's end, SIGINT asks to leave, a second one at once."""
    assert callable(post)
    interrupts = 0
    while data := os.read(signals_fd, 64):
        for number in data:
            if number == _SIGTERM:
                post(EndAnnounced(Instant(clock.now() + request.after_sigterm_s)))
            elif number == _SIGINT:
                interrupts += 1
                post(LeaveAsked(now=interrupts > 1))


def _taken(received: queue.SimpleQueue[RunnerFact]) -> tuple[RunnerFact, ...]:
    found: list[RunnerFact] = []
    while not received.empty():
        found.append(received.get())
    return tuple(found)


def _log(message: str) -> None:
    sys.stderr.write(f"windfall: {message}\n")
    sys.stderr.flush()
