"""The counter of the toy runtime `tickets`: who has which number, and which are done.  A pure state machine.

A number is granted to one machine under a term, and is done once that machine's result is committed under it.  Whatever
takes a number from its machine ends the term, so that a result which comes late is refused.  A clerk hands the numbers
out; of two clerks only the newer one is obeyed.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from tests.support import ticket_training
from windfall.fleet import ProgressObserved
from windfall.structs import Struct, replace
from windfall.terms import JobProgress, Outcome, Term, Unit, WorkDone

LEASE_S = 60.0
"""A machine that was not heard for so long loses its number, and a clerk its place [s]."""


class Grant(Struct, frozen=True):
    """A number in a machine's hands; `request` is the machine's own count of what it asked for."""

    number: int
    machine_id: str
    term: int
    request: int


class TicketCounter(Struct, frozen=True):
    """The counter.

    Attributes:
        numbers: how many there are, from 0.
        fresh: the first one that was never granted.
        returned: those that came back, oldest first.
        grants: the numbers in somebody's hands.
        done: the numbers that are done, with the grant under which they were.
        term: the newest; of a clerk or of a grant.
        clerk, clerk_term: who hands out numbers; empty for nobody.
        gone: machines that were declared gone.
        heard: when each machine was last heard.
        ended: the newest request of each machine that needs no answer any more.
        loss_scale, loss_goal: of a training whose iterations the numbers are; 0 if they are none.
        gained: by how much the numbers that are done took 1 / (loss - floor) up.
    """

    numbers: int
    fresh: int = 0
    returned: tuple[int, ...] = ()
    grants: Mapping[int, Grant] = msgspec.field(default_factory=dict)
    done: Mapping[int, Grant] = msgspec.field(default_factory=dict)
    term: int = 0
    clerk: str = ""
    clerk_term: int = 0
    gone: frozenset[str] = frozenset()
    heard: Mapping[str, float] = msgspec.field(default_factory=dict)
    ended: Mapping[str, int] = msgspec.field(default_factory=dict)
    loss_scale: float = 0.0
    loss_goal: float = 0.0
    gained: float = 0.0

    @property
    def finished(self) -> bool:
        """Whether every number is done, or the loss is reached."""
        return len(self.done) == self.numbers or (self.loss is not None and self.loss <= self.loss_goal)

    @property
    def loss(self) -> float | None:
        """The loss of the training; None if there is none."""
        return ticket_training.loss(self.gained) if self.loss_scale else None

    @property
    def free(self) -> bool:
        """Whether a number can be granted."""
        return not self.finished and (bool(self.returned) or self.fresh < self.numbers)


def silent(counter: TicketCounter, machine_id: str, now: float) -> bool:
    """Return whether a machine was not heard for a lease."""
    return now - counter.heard.get(machine_id, now) > LEASE_S


def heard(counter: TicketCounter, machine_id: str, now: float) -> TicketCounter:
    """Record a sign of life."""
    return replace(counter, heard={**counter.heard, machine_id: now})


def opened(counter: TicketCounter, machine_id: str, now: float) -> TicketCounter:
    """Let a machine be the clerk, if there is none that is heard; it is if `clerk` says so."""
    if machine_id in counter.gone:
        return counter
    if counter.clerk and counter.clerk != machine_id and not silent(counter, counter.clerk, now):
        return counter
    if counter.clerk == machine_id:
        return heard(counter, machine_id, now)
    term = counter.term + 1
    return heard(replace(counter, clerk=machine_id, clerk_term=term, term=term), machine_id, now)


def closed(counter: TicketCounter, clerk_term: int) -> TicketCounter:
    """Let a clerk leave its place."""
    return replace(counter, clerk="") if serves(counter, clerk_term) else counter


def serves(counter: TicketCounter, clerk_term: int) -> bool:
    """Return whether a clerk of this term may change the counter: a newer one fences it."""
    return bool(counter.clerk) and clerk_term == counter.clerk_term


def taken(counter: TicketCounter, machine_id: str, request: int, now: float) -> tuple[TicketCounter, Grant | None]:
    """Grant a number to a machine; the same request gets the same number.

    Args:
        counter: not changed.
        machine_id: who asks.
        request: its count, from 1; an older one than the last that ended gets nothing.
        now: the time.
    """
    if machine_id in counter.gone or request <= counter.ended.get(machine_id, 0):
        return counter, None
    held = next((grant for grant in counter.grants.values() if grant.machine_id == machine_id), None)
    if held is not None or not counter.free:
        return counter, held
    fresh, returned = counter.fresh, counter.returned
    if returned:
        number, returned = returned[0], returned[1:]
    else:
        number, fresh = fresh, fresh + 1
    grant = Grant(number, machine_id, counter.term + 1, request)
    newer = replace(counter, fresh=fresh, returned=returned, term=grant.term, grants={**counter.grants, number: grant})
    return heard(newer, machine_id, now), grant


def committed(counter: TicketCounter, grant: Grant) -> tuple[TicketCounter, bool]:
    """Record a result; return whether the number is done by it.  A result under an old grant is refused."""
    if counter.grants.get(grant.number) != grant:
        return counter, counter.done.get(grant.number) == grant
    gain = ticket_training.gain(counter.loss_scale, len(counter.grants)) if counter.loss_scale else 0.0
    done = {**counter.done, grant.number: grant}
    return replace(_ended(counter, grant), done=done, gained=counter.gained + gain), True


def handed_back(counter: TicketCounter, grant: Grant) -> TicketCounter:
    """Take a number back that its machine will not do."""
    if counter.grants.get(grant.number) != grant:
        return counter
    return replace(_ended(counter, grant), returned=(*counter.returned, grant.number))


def declared_gone(counter: TicketCounter, machine_id: str) -> TicketCounter:
    """Take back what a lost machine had; it gets nothing more, and nothing more of it is accepted."""
    for grant in [grant for grant in counter.grants.values() if grant.machine_id == machine_id]:
        counter = handed_back(counter, grant)
    clerk = "" if counter.clerk == machine_id else counter.clerk
    return replace(counter, gone=counter.gone | {machine_id}, clerk=clerk)


def expired(counter: TicketCounter, now: float) -> TicketCounter:
    """Take back the numbers of machines that were not heard for a lease."""
    for grant in [grant for grant in counter.grants.values() if silent(counter, grant.machine_id, now)]:
        counter = handed_back(counter, grant)
    return counter


def observed(counter: TicketCounter) -> ProgressObserved | None:
    """Return what the driver sees of the counter; None before its first clerk."""
    if not counter.clerk_term:
        return None
    done = WorkDone(float(len(counter.done)), Unit.ITEM)
    outcome = Outcome.DONE if counter.finished else Outcome.RUNNING
    holders = (counter.clerk,) if counter.clerk else ()
    return ProgressObserved(Term(counter.clerk_term), JobProgress(done, done, 0, outcome, holders, counter.loss))


def _ended(counter: TicketCounter, grant: Grant) -> TicketCounter:
    grants = {number: held for number, held in counter.grants.items() if number != grant.number}
    return replace(counter, grants=grants, ended={**counter.ended, grant.machine_id: grant.request})
