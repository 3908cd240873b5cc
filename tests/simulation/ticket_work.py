"""The machines of a job of tickets in the fleet loop: the counter of the toy runtime, without programs and reports."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass

from tests.support import ticket_counter, tickets
from tests.support.ticket_counter import Grant, TicketCounter
from windfall.fleet import Slot
from windfall.terms import JobProgress


@dataclass(slots=True)
class _Worker:
    """A machine: when it is prepared [s], the number in its hands, its place as the clerk; it leaves; it
    worked when it last reported."""

    role: str
    ready_s: float
    grant: Grant | None = None
    requests: int = 0
    clerk_term: int = 0
    leaving: bool = False
    worked: bool = False


class TicketWork:
    """`fleet_work.FleetWork` of a job of tickets.

    Attributes:
        counter: of the numbers.
        made: the numbers in the order in which they were done, with the machine.
    """

    def __init__(self, numbers: int, work_s: Callable[[int], float], prepare_s: float) -> None:
        self.counter = TicketCounter(numbers)
        self.made: list[tuple[int, int]] = []
        self._work_s, self._prepare_s, self._now_s = work_s, prepare_s, 0.0
        self._workers: dict[int, _Worker] = {}
        self._due: list[tuple[float, int, int]] = []

    @property
    def progress(self) -> JobProgress | None:
        """How many numbers are done."""
        observed = ticket_counter.observed(self.counter)
        return None if observed is None else observed.progress

    def next_s(self) -> float:
        """Return when a machine is prepared or has done a number."""
        return self._due[0][0] if self._due else math.inf

    def play(self, now_s: float) -> bool:
        """Hand in what is done; a machine that is prepared or hands in a number reports."""
        self._now_s = now_s
        news = False
        while self._due and self._due[0][0] <= now_s:
            _, machine, request = heapq.heappop(self._due)
            worker = self._workers.get(machine)
            if worker is None:
                continue
            if not request:
                news = True
            elif worker.grant is not None and worker.requests == request:
                news = self._hand_in(machine, worker, worker.grant) or news
        return news

    def take_work(self, now_s: float) -> bool:
        """Be the clerk, or take a number; a machine that begins or ceases to work reports."""
        news = False
        for machine, worker in self._workers.items():
            if worker.ready_s <= now_s and not worker.leaving:
                self._work_on(machine, worker)
        for machine, worker in self._workers.items():
            news = news or self.works(machine) != worker.worked
            worker.worked = self.works(machine)
        return news

    def start(self, machine: int, slot: Slot, cpus: float, now_s: float) -> None:
        """Prepare a machine."""
        self._workers[machine] = _Worker(slot.role, now_s + self._prepare_s)
        heapq.heappush(self._due, (now_s + self._prepare_s, machine, 0))

    def drain(self, machine: int) -> None:
        """Take no more numbers; a clerk leaves its place."""
        worker = self._workers[machine]
        worker.leaving = True
        if worker.clerk_term:
            self.counter = ticket_counter.closed(self.counter, worker.clerk_term)
            worker.clerk_term = 0

    def end(self, machine: int, now_s: float, *, taken: bool) -> None:
        """Take back what a machine had."""
        self._workers.pop(machine, None)
        self.counter = ticket_counter.declared_gone(self.counter, str(machine))

    def ready(self, machine: int) -> bool:
        """Whether it is prepared."""
        return self._workers[machine].ready_s <= self._now_s

    def works(self, machine: int) -> bool:
        """Whether it has a number or is the clerk."""
        worker = self._workers.get(machine)
        return worker is not None and (worker.grant is not None or bool(worker.clerk_term))

    def _hand_in(self, machine: int, worker: _Worker, grant: Grant) -> bool:
        if not self.counter.clerk:  # it waits for the next one
            heapq.heappush(self._due, (self._now_s + 1.0, machine, worker.requests))
            return False
        worker.grant = None
        self.counter, accepted = ticket_counter.committed(self.counter, grant)
        if accepted:
            self.made.append((grant.number, machine))
        return True

    def _work_on(self, machine: int, worker: _Worker) -> None:
        """Be the clerk, or take a number."""
        name = str(machine)
        if worker.role == tickets.CLERK:
            self.counter = ticket_counter.opened(self.counter, name, self._now_s)
            worker.clerk_term = self.counter.clerk_term if self.counter.clerk == name else 0
        elif worker.grant is None and self.counter.clerk:
            request = worker.requests + 1
            self.counter, worker.grant = ticket_counter.taken(self.counter, name, request, self._now_s)
            if worker.grant is not None:
                worker.requests = request
                heapq.heappush(self._due, (self._now_s + self._work_s(worker.grant.number), machine, request))
