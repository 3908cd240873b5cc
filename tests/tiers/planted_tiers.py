"""Bugs that a parameter server in tiers must not have, planted one at a time to see that the storm catches them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from unittest.mock import patch

from windfall.core import tier_coordinator, tier_decisions
from windfall.core.tier_coordinator import TierCoordinator
from windfall.policies.layout.tiers import TierPlacement
from windfall.runtimes.tier_messages import Answer, Question, ReadRows, Refused, RowsRead, TakeOverPart
from windfall.runtimes.tier_server import TierServer
from windfall.runtimes.tier_worker import TierWorker, _ClockTurn
from windfall.structs import replace
from windfall.tier_layout import CommittedClock, DataPlace, PartPlace, ServerLayout, StoredClock, TierReport

_ANSWER, _COMMIT, _TAKE, _TAKE_REPORT = TierServer.answer, TierServer.commit, TierWorker.take, TierCoordinator.take
_ROLLED_BACK, _RELEASE, _NEXT_PART, _SERVER_TAKE = (
    tier_decisions._rolled_back,
    TierWorker._release,
    tier_decisions._next_part,
    TierServer.take,
)


def _serves_on(self: TierServer, question: Question, sender: str) -> Answer:
    if isinstance(question, TakeOverPart):
        return _ANSWER(self, question, sender)
    with patch.object(self, "_handed_over", {}):
        return _ANSWER(self, question, sender)


def _reads_of_any_term(self: TierServer, question: Question, sender: str) -> Answer:
    part = self._parts.get(question.part)
    if isinstance(question, ReadRows) and part is not None:
        question = ReadRows(question.part, question.reading, part.term, question.clock, question.rows)
    return _ANSWER(self, question, sender)


def _commits_of_any_term(self: TierServer, committed: CommittedClock) -> None:
    _COMMIT(self, replace(committed, term=self.layout.term))


def _any_copy(self: TierServer, question: Question, answer: Answer) -> None:
    if not isinstance(answer, Refused):
        _SERVER_TAKE(self, question, answer)


def _all_go_back(self: TierServer, before: int) -> None:
    """As it is, but a part that was handed over, or missed a term, goes back too."""
    del before
    layout = self.layout
    for number, part in list(self._parts.items()):
        if layout.parts[number].active == self.machine and layout.restored < layout.term:
            part.roll_back(min(part.clock, layout.base), layout.term)
        else:
            self._drop(number)
    for number, backup in list(self._backups.items()):
        if layout.restored == layout.term or layout.parts[number].backup != self.machine:
            del self._backups[number]
        else:
            backup.roll_back(layout.base, layout.term)
    for kept in (self._copies, self._moves, self._handed_over, self._backed_up):
        kept.clear()


def _any_read(self: TierWorker, question: ReadRows, answer: RowsRead) -> None:
    for turn in self._turns.values():
        if question.part in turn.wanted:
            turn.found.setdefault(question.part, answer.values)


def _one_clock_too_far(self: TierWorker, turn: _ClockTurn) -> None:
    _RELEASE(self, turn)
    number, clock = self._released[turn.push.data]
    self._released[turn.push.data] = (number, clock + 1)


def _fewest_seals(layout: ServerLayout, number: int, reports: Mapping[str, TierReport]) -> int | None:
    clocks = _seals(layout, number, reports)
    return min(clocks) if len(clocks) == len(layout.parts) else None


def _first_seals(layout: ServerLayout, number: int, reports: Mapping[str, TierReport]) -> int | None:
    return max(_seals(layout, number, reports), default=None)


def _seals(layout: ServerLayout, number: int, reports: Mapping[str, TierReport]) -> list[int]:
    found = [
        reports[place.active].sealed.get((part, number), (-1, 0))
        for part, place in enumerate(layout.parts)
        if place.active in reports
    ]
    return [clock for of, clock in found if of == layout.data[number].number]


def _where_the_term_began(
    layout: ServerLayout, reports: Mapping[str, TierReport], lost: frozenset[str], wanted: TierPlacement
) -> ServerLayout:
    return replace(_ROLLED_BACK(layout, reports, lost, wanted), base=layout.base)


def _without_a_new_term(
    layout: ServerLayout, reports: Mapping[str, TierReport], lost: frozenset[str], wanted: TierPlacement
) -> ServerLayout:
    return replace(_ROLLED_BACK(layout, reports, lost, wanted), term=layout.term, base=layout.base)


def _any_report(self: TierCoordinator, report: TierReport) -> None:
    _TAKE_REPORT(self, replace(report, coordinator=self.layout.coordinator))


def _in_any_order(self: TierCoordinator, report: TierReport) -> None:
    self._reports.pop(report.machine, None)
    _TAKE_REPORT(self, report)


def _any_move(place: PartPlace, part: int, server: str, reports: Mapping[str, TierReport], version: int) -> PartPlace:
    if place.next_active is not None and part in reports[place.next_active].taken_over:
        return replace(place, active=place.next_active, next_active=None)
    return _NEXT_PART(place, part, server, reports, version)


def _before_it_took_over(
    place: PartPlace, part: int, server: str, reports: Mapping[str, TierReport], version: int
) -> PartPlace:
    if place.next_active is not None:
        return replace(place, active=place.next_active, next_active=None)
    return _NEXT_PART(place, part, server, reports, version)


def _released_at_once(place: DataPlace, number: int, reports: Mapping[str, TierReport]) -> DataPlace:
    del number, reports
    return DataPlace(place.next_holder or place.holder, place.number + 1, place.start)


def _part_of_a_checkpoint(layout: ServerLayout, reports: Mapping[str, TierReport]) -> StoredClock:
    saved = [one for report in reports.values() for one in report.saved.values() if one.term >= layout.restored]
    return max([layout.checkpoint, *saved])


def _at_once(layout: ServerLayout, reports: Mapping[str, TierReport], stored: StoredClock) -> bool:
    del layout, reports, stored
    return True


def _nothing(self: TierServer, number: int) -> None:
    del self, number


def _redirected_by_any(self: TierWorker, question: Question, answer: Answer) -> None:
    if isinstance(answer, Refused) and answer.serves:
        self._serves[question.part] = (answer.version, answer.serves)
    elif not isinstance(answer, Refused):
        _TAKE(self, question, answer)


BUGS: Mapping[str, tuple[object, str, Callable[..., object]]] = {
    "a part that was handed over serves on": (TierServer, "answer", _serves_on),
    "reads are answered in any term": (TierServer, "answer", _reads_of_any_term),
    "a clock of any term is committed": (TierServer, "commit", _commits_of_any_term),
    "a copy that is too old is never replaced": (TierServer, "take", _any_copy),
    "a part that was handed over goes back with the others": (TierServer, "_begin_term", _all_go_back),
    "a new server does not refuse former holders": (TierServer, "_refuse_former_holders", _nothing),
    "an answer to an earlier read is taken for the newest": (TierWorker, "_found", _any_read),
    "a released data partition skips a clock": (TierWorker, "_release", _one_clock_too_far),
    "a worker goes where an older layout sends it": (TierWorker, "take", _redirected_by_any),
    "what some part has sealed of a lost worker is computed again": (tier_decisions, "_sealed", _fewest_seals),
    "a lost worker's successor does not wait for all parts": (tier_decisions, "_sealed", _first_seals),
    "all go back to where the term began": (tier_decisions, "_rolled_back", _where_the_term_began),
    "a roll-back begins no term": (tier_decisions, "_rolled_back", _without_a_new_term),
    "a coordinator believes reports to its predecessor": (TierCoordinator, "take", _any_report),
    "a coordinator believes a late report": (TierCoordinator, "take", _in_any_order),
    "a part is where an earlier move brought it": (tier_decisions, "_next_part", _any_move),
    "a part is on a server that has not taken it over": (tier_decisions, "_next_part", _before_it_took_over),
    "a data partition is released before its clock ends": (tier_decisions, "_released", _released_at_once),
    "clocks are committed before all have a copy of the one to be saved": (tier_coordinator, "all_copied", _at_once),
    "a checkpoint counts before it is whole": (tier_decisions, "stored_checkpoint", _part_of_a_checkpoint),
}


@contextmanager
def planted(name: str) -> Iterator[None]:
    """Plant a bug."""
    owner, attribute, wrong = BUGS[name]
    with patch.object(owner, attribute, wrong):
        yield
