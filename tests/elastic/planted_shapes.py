"""Bugs that an elastic training must not have, planted one at a time to see that the storm catches them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from unittest.mock import patch

from tests.elastic.shape_machine import ElasticMachine
from windfall.core import shape_decisions
from windfall.core.shape_coordinator import ShapeCoordinator
from windfall.core.shape_decisions import Chooser, ShapeFacts, newest_whole
from windfall.policies.shapes.stage_placement import Sources, StageGrid
from windfall.shape_layout import ShapeLayout, ShapeReport
from windfall.structs import replace

_BEGUN, _PLANNED, _TROUBLE, _MADE = (
    shape_decisions._begun,
    shape_decisions._planned,
    shape_decisions._trouble,
    shape_decisions._made,
)
_TAKE, _PLACED = ShapeCoordinator.take, shape_decisions._placed


def _at_once(layout: ShapeLayout, facts: ShapeFacts, choose: Chooser) -> ShapeLayout | None:
    """Begin before all have stopped."""
    with patch.object(shape_decisions, "_made", lambda layout, facts: True):
        return _BEGUN(layout, facts, choose)


def _newest_of_any(reports: Sequence[ShapeReport], stored: int) -> tuple[int, bool]:
    """The newest step that some machine holds, though not every layer of it can be had."""
    steps = [step for report in reports for _, _, step in report.held if step >= stored]
    return (max(steps), True) if steps else (stored, False)


def _first_values(reports: Sequence[ShapeReport], stored: int) -> tuple[int, bool]:
    """Where the store is, though machines are further."""
    del reports
    return stored, False


def _without_backup(reports: Sequence[ShapeReport], stored: int) -> tuple[int, bool]:
    """The newest step of machines that train; what reliable ones have does not count."""
    return newest_whole([one for one in reports if not one.reliable], stored)


def _no_new_term(layout: ShapeLayout, facts: ShapeFacts, choose: Chooser) -> ShapeLayout | None:
    found = _BEGUN(layout, facts, choose)
    return found if found is None or found.step is None or not layout.term else replace(found, term=layout.term)


def _nothing_redone(layout: ShapeLayout, facts: ShapeFacts, choose: Chooser) -> ShapeLayout | None:
    found = _BEGUN(layout, facts, choose)
    return None if found is None else replace(found, redone=layout.redone)


def _all_trained(layout: ShapeLayout, facts: ShapeFacts, choose: Chooser) -> ShapeLayout | None:
    """What is redone is counted with reports of older terms."""
    found = _BEGUN(layout, facts, choose)
    if found is None or found.step is None:
        return found
    newest = max([found.step, *(one.trained for one in facts.reports.values())])
    return replace(found, redone=layout.redone + newest - found.step)


def _before_it_is_made(layout: ShapeLayout, facts: ShapeFacts, choose: Chooser) -> ShapeLayout | None:
    """A planned change follows another one that not all have made."""
    there = {report.machine for report in facts.there()}
    if not {place.machine for place in layout.places} <= there:
        return None
    with patch.object(shape_decisions, "_made", lambda layout, facts: True):
        return _PLANNED(layout, facts, choose)


def _lost_only(layout: ShapeLayout, facts: ShapeFacts) -> str:
    """What a machine reports that stops by itself is not read."""
    reports = {name: replace(one, stopped=False) for name, one in facts.reports.items()}
    return _TROUBLE(layout, replace(facts, reports=reports))


def _places_only(layout: ShapeLayout, facts: ShapeFacts) -> str:
    """Machines that leave, or send, are not missed before the change is made."""
    with patch.object(shape_decisions, "_made", lambda layout, facts: True):
        return _TROUBLE(layout, facts)


def _of_any_term(layout: ShapeLayout, facts: ShapeFacts) -> str:
    """A report from before the term began is taken for one of now."""
    reports = {name: replace(one, term=layout.term) for name, one in facts.reports.items()}
    return _TROUBLE(layout, replace(facts, reports=reports))


def _never(layout: ShapeLayout, facts: ShapeFacts) -> str:
    del layout, facts
    return ""


def _leaving_stay(layout: ShapeLayout, facts: ShapeFacts, choose: Chooser) -> ShapeLayout | None:
    """Notices are not heard."""
    return _PLANNED(
        layout,
        replace(facts, reports={name: replace(one, leaving=False) for name, one in facts.reports.items()}),
        choose,
    )


def _released_at_once(layout: ShapeLayout, facts: ShapeFacts) -> frozenset[str]:
    del layout
    return frozenset(one.machine for one in facts.there() if one.leaving)


def _backup_sends(
    layout: ShapeLayout, facts: ShapeFacts, grid: StageGrid, sources: Sources, because: str
) -> ShapeLayout:
    """The backup, which may be a step behind, is where a planned change has its states from."""
    if layout.backup is not None and layout.stages and not layout.stop and layout.backup not in facts.lost:
        held = {layout.backup: frozenset(range(layout.cut[-1]))}
        sources = Sources({**{name: frozenset[int]() for name in sources.held}, **held}, stored=False)
    return _PLACED(layout, facts, grid, sources, because)


def _backup_lacks_nothing(layout: ShapeLayout, facts: ShapeFacts) -> bool:
    del layout, facts
    return False


def _no_moves(layout: ShapeLayout, facts: ShapeFacts, grid: StageGrid, sources: Sources, because: str) -> ShapeLayout:
    found = _PLACED(layout, facts, grid, sources, because)
    return replace(found, moves=found.moves[:-1])


def _any_report(self: ShapeCoordinator, report: ShapeReport, now_s: float) -> None:
    _TAKE(self, replace(report, coordinator=self.layout.coordinator), now_s)


def _in_any_order(self: ShapeCoordinator, report: ShapeReport, now_s: float) -> None:
    self._reports.pop(report.machine, None)
    _TAKE(self, report, now_s)


def _keeps_newer(self: ElasticMachine, layout: ShapeLayout) -> None:
    self.term, self.stopped = layout.term, False


def _never_silent(self: ShapeCoordinator, now_s: float) -> set[str]:
    del self, now_s
    return set()


def _waits_for_nobody(self: ElasticMachine, layout: ShapeLayout) -> bool:
    del self, layout
    return True


BUGS: Mapping[str, tuple[object, str, Callable[..., object]]] = {
    "a term begins before all have stopped": (shape_decisions, "_begun", _at_once),
    "all go to the newest step that one machine holds": (shape_decisions, "newest_whole", _newest_of_any),
    "all go to the checkpoint though machines are further": (shape_decisions, "newest_whole", _first_values),
    "the backup is forgotten": (shape_decisions, "newest_whole", _without_backup),
    "going back begins no term": (shape_decisions, "_begun", _no_new_term),
    "what is redone is not counted": (shape_decisions, "_begun", _nothing_redone),
    "what is redone is counted again in later terms": (shape_decisions, "_begun", _all_trained),
    "a change is planned before the last one is made": (shape_decisions, "_planned", _before_it_is_made),
    "a machine that stops by itself is not heard": (shape_decisions, "_trouble", _lost_only),
    "a machine that leaves is not missed before its successor trains": (shape_decisions, "_trouble", _places_only),
    "a report of the term before stops this one": (shape_decisions, "_trouble", _of_any_term),
    "a loss is not noticed": (shape_decisions, "_trouble", _never),
    "a notice is not heard": (shape_decisions, "_planned", _leaving_stay),
    "a machine may end before it was replaced": (shape_decisions, "released", _released_at_once),
    "the backup sends what it may not have yet": (shape_decisions, "_placed", _backup_sends),
    "a new backup gets no state": (shape_decisions, "_backup_lacks", _backup_lacks_nothing),
    "a move is left out": (shape_decisions, "_placed", _no_moves),
    "a coordinator believes reports to its predecessor": (ShapeCoordinator, "take", _any_report),
    "a coordinator believes a late report": (ShapeCoordinator, "take", _in_any_order),
    "silence is never taken for a loss": (ShapeCoordinator, "_silent", _never_silent),
    "a machine keeps what was taken back": (ElasticMachine, "_enter_term", _keeps_newer),
    "no machine waits for the backup": (ElasticMachine, "_backed_up", _waits_for_nobody),
}


@contextmanager
def planted(name: str) -> Iterator[None]:
    """Plant a bug."""
    owner, attribute, wrong = BUGS[name]
    with patch.object(owner, attribute, wrong):
        yield
