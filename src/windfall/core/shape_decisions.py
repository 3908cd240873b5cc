"""The next layout of an elastic training, by the newest one, what machines report, and which are lost.

A machine that sees a layout makes itself so; what the kinds of layouts mean is in `shape_layout`.

- **Stop** if a machine that trains is lost, or reports that it has stopped: the layout is given up.
- **Begin** once all have stopped and reported what they hold: at the newest step of which every layer can be had, from a
  survivor, the backup or the store.  No machine is more than one step ahead of another, each holds the step before too, and the
  backup is at most one step behind: so at most one step is redone as long as each layer has a replica or the backup.
- **Plan** if the machines that can train, their notices or the policy ask for another shape, or the backup for another machine:
  all change after the same step, and nothing is redone.  One change at a time: the next waits until all have made this one.
- **Wait** if there are too few machines for any shape.  What is trained goes to the store then: a layout that waits says who
  saves which layers, and is followed by another one as long as the newest step is not stored, and no machine is saving it.

What is left of a notice says whether a change is planned at all (`notice_rule`): if not, the pipelines of machines that leave
are dropped, or the layout is given up before they are gone.

Source: Parcae (NSDI 2024).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from windfall.models.migrations import even_cut
from windfall.models.shapes import IDLE, Shape
from windfall.policies.shapes.notice_rule import NoticeAnswer, NoticeTimes, notice_answer
from windfall.policies.shapes.stage_placement import Sources, StageGrid, moves_to, place_stages
from windfall.shape_layout import STORE, ShapeLayout, ShapeReport, StateMove
from windfall.structs import Struct, replace


class ShapeMoment(Struct, frozen=True):
    """What the choice of a shape depends on.

    Attributes:
        shape: the one that is trained; `IDLE`: none.
        ready: machines that can train and stay.
        layers: of the model.
        micro_batches: of a step; 0 if not known.
        whole: pipelines of the shape for whose every stage there is a machine that stays.
        cut: where the layers are cut in it; empty: nothing is trained.
    """

    shape: Shape
    ready: int
    layers: int
    micro_batches: int
    whole: int = 0
    cut: tuple[int, ...] = ()


class ShapeChoice(Struct, frozen=True):
    """A shape and the reason for it.

    Attributes:
        shape: the shape.
        because: a sentence.
        change_s: 90th percentile of what such a change took; None: nothing was measured [s].
        dropped: the shape of the whole pipelines alone, to which no state moves; `IDLE` if there is none.
        dropped_s: the same percentile of the change to it [s].
        cut: where the layers are cut; empty: as they are, or evenly in another number of stages.
        weights: bytes of the state of each layer; empty: not known, all count alike.
    """

    shape: Shape
    because: str
    change_s: float | None = None
    dropped: Shape = IDLE
    dropped_s: float | None = None
    cut: tuple[int, ...] = ()
    weights: tuple[int, ...] = ()


Chooser = Callable[[ShapeMoment], ShapeChoice]


class ShapeFacts(Struct, frozen=True):
    """What a coordinator knows beside the newest layout.

    Attributes:
        reports: the newest of each machine, to this coordinator; those of lost ones too.
        lost: machines that are lost for ever.
        stored: the newest step that is whole in the store; 0 for none.
        trained: the newest step of the layout's term that coordinators before this one knew of; 0 for none.
        left_s: until the announced ends of machines, of those that are known [s].
    """

    reports: Mapping[str, ShapeReport]
    lost: frozenset[str]
    stored: int
    trained: int = 0
    left_s: Mapping[str, float] = {}

    def there(self) -> tuple[ShapeReport, ...]:
        """Return the reports of machines that are not lost, the longest-running machine first."""
        found = [report for name, report in self.reports.items() if name not in self.lost]
        return tuple(sorted(found, key=lambda report: (report.started_s, report.machine)))


def first_layout(stored: int) -> ShapeLayout:
    """Return the layout with which training begins: all wait for machines.

    Args:
        stored: the newest step that is whole in the store.
    """
    return ShapeLayout(1, 1, 1, 0, stored, 0, 0, (), (), (), (), None, False, 0, stored, None, "training begins")


def opened_by_next_shape_coordinator(newest: ShapeLayout | None, stored: int, stopped: int) -> ShapeLayout:
    """Return the record that a coordinator which starts writes, by what its run's store says.

    After a stop all machines of before were told to go, and the newest step is in the store: none of them is waited for.

    Args:
        newest: layout in the log; None: training has not begun.
        stored: the newest step that is whole in the store.
        stopped: the newest coordinator that has stopped, as it was asked to; 0 if none has.
    """
    if newest is None:
        return first_layout(stored)
    found = taken_by_next_shape_coordinator(newest)
    ended = stopped >= newest.coordinator and not newest.stages
    return replace(found, left=(), moves=(), backup=None) if ended else found


def taken_by_next_shape_coordinator(layout: ShapeLayout) -> ShapeLayout:
    """Return the record that a coordinator which starts writes before anything else: reports to it are fresh."""
    return replace(layout, record=layout.record + 1, coordinator=layout.coordinator + 1)


def shape_of(layout: ShapeLayout) -> Shape:
    """Return the shape that is trained; `IDLE` if all stop or wait."""
    return IDLE if layout.stop else Shape(layout.pipelines, layout.stages)


def named_by(layout: ShapeLayout) -> frozenset[str]:
    """Return the machines that a layout needs until all have made it."""
    backup = () if layout.backup is None else (layout.backup,)
    return frozenset((*(place.machine for place in layout.places), *layout.left, *backup))


def next_shape_layout(layout: ShapeLayout, facts: ShapeFacts, choose: Chooser) -> ShapeLayout | None:
    """Return the next layout; None: this one stands, or a report or a machine is needed first."""
    if layout.over:
        return None
    steps = max([0, *(report.steps for report in facts.there())])
    if steps and facts.stored >= steps:
        return replace(_next(layout, facts, f"step {steps}, the last one, is stored"), over=True)
    if layout.stop or not layout.stages:
        return _begun(layout, facts, choose)
    trouble = _trouble(layout, facts)
    if trouble:
        return replace(_next(layout, facts, trouble), stop=True)
    return _planned(layout, facts, choose)


def newest_held(held: Sequence[tuple[int, int, int]], step: int) -> frozenset[int]:
    """Return the layers of a step that a machine has."""
    return frozenset(layer for first, end, of in held if of == step for layer in range(first, end))


def _next(layout: ShapeLayout, facts: ShapeFacts, because: str) -> ShapeLayout:
    """Return the next layout, which is as the newest one, and moves nothing."""
    return replace(
        layout,
        record=layout.record + 1,
        version=layout.version + 1,
        checkpoint=max(layout.checkpoint, facts.stored),
        step=None,
        moves=(),
        because=because,
    )


def _waiting(layout: ShapeLayout, facts: ShapeFacts, because: str) -> ShapeLayout:
    """Return the layout in which all wait."""
    found = replace(_next(layout, facts, because), stop=False, pipelines=0, stages=0, cut=(), places=(), left=())
    return replace(found, backup=_backup(layout, facts))


def _saved_by(layout: ShapeLayout, facts: ShapeFacts) -> tuple[StateMove, ...]:
    """Return who saves the last step before all wait: the backup, or else the machines of the first pipeline."""
    if layout.backup is not None and not _backup_lacks(layout, facts):
        return (StateMove(0, layout.cut[-1], layout.backup, STORE),)
    first = [place for place in layout.places if place.pipeline == 0]
    return tuple(StateMove(layout.cut[one.stage], layout.cut[one.stage + 1], one.machine, STORE) for one in first)


def _resting(layout: ShapeLayout, facts: ShapeFacts, because: str) -> ShapeLayout | None:
    """Return the layout in which all that have stopped wait; None: they do, and the newest step is stored, or being saved.

    All go to that step first, so that what is saved is of one step.
    """
    step, _ = newest_whole(facts.there(), facts.stored)
    if step > facts.stored and (layout.stop or not _is_being_saved(layout, facts, step)):
        lost = _taken_back(layout, facts, step)
        found = replace(_waiting(layout, facts, because), moves=_saves(facts, step), term=layout.term + 1, base=step)
        return replace(found, redone=layout.redone + lost)
    return _waiting(layout, facts, because) if layout.stages else None


def _saves(facts: ShapeFacts, step: int) -> tuple[StateMove, ...]:
    """Return who saves the layers of a step, which are all there: machines that stay, and reliable ones, before others."""
    there = sorted(facts.there(), key=lambda one: (one.leaving, not one.reliable))
    held = [(one.machine, newest_held(one.held, step)) for one in there]
    found: list[StateMove] = []
    for layer in range(_layers(there)):
        source = next(machine for machine, layers in held if layer in layers)
        if found and found[-1].source == source:
            found[-1] = StateMove(found[-1].first, layer + 1, source, STORE)
        else:
            found.append(StateMove(layer, layer + 1, source, STORE))
    return tuple(found)


def _is_being_saved(layout: ShapeLayout, facts: ShapeFacts, step: int) -> bool:
    """Return whether those that were asked to save have each layer of a step, are at that step, and are there."""
    there = {one.machine: one for one in facts.there()}
    saved: set[int] = set()
    for move in layout.moves:
        one = there.get(move.source)
        if move.target == STORE and one is not None and one.trained == step:
            saved |= newest_held(one.held, step) & set(range(move.first, move.end))
    return len(saved) >= _layers(facts.there())


def _taken_back(layout: ShapeLayout, facts: ShapeFacts, step: int) -> int:
    """Return how many steps of this term, as far as is known, are taken back if all go to a step."""
    known = [one.trained for one in facts.reports.values() if one.term == layout.term]
    return max([step, facts.trained, *known]) - step


# ------------------------------------------------------------------------------------------------------- a loss, and after it


def _trouble(layout: ShapeLayout, facts: ShapeFacts) -> str:
    """Return why a layout cannot be trained, or not be made; empty if it can."""
    needed = {place.machine for place in layout.places}
    if not _made(layout, facts):
        sources = {move.source for move in layout.moves if move.target not in (layout.backup, STORE)}
        needed |= {*layout.left, *sources}
    gone = sorted(needed & facts.lost)
    if gone:
        return f"lost: {', '.join(gone)}"
    # A report from before this term began says nothing of it.
    stopped = [
        one.machine for one in facts.there() if one.machine in needed and one.stopped and one.term == layout.term
    ]
    return f"stopped: {', '.join(stopped)}" if stopped and layout.stages else ""


def _made(layout: ShapeLayout, facts: ShapeFacts) -> bool:
    """Return whether all that train, or keep the backup, have made a layout, or stopped for it."""
    there = {report.machine: report for report in facts.there()}
    named = {place.machine for place in layout.places} | ({layout.backup} if layout.backup else set())
    if layout.stop or not layout.stages:
        named |= {*layout.left, *(report.machine for report in facts.there() if report.term)}
    return all(name in there and there[name].layout >= layout.version for name in named - facts.lost)


def _begun(layout: ShapeLayout, facts: ShapeFacts, choose: Chooser) -> ShapeLayout | None:
    """Return the layout with which a term begins, once all have stopped; None: not all have, or there are too few machines."""
    if not _made(layout, facts):
        # Those that train on until the planned end would wait for a machine that does not come.
        trouble = "" if layout.stop else _trouble(layout, facts)
        return replace(_next(layout, facts, trouble), stop=True) if trouble else None
    choice = _choice(layout, facts, choose)
    shape, because = choice.shape, choice.because
    if shape == IDLE:
        return _resting(layout, facts, because)
    there = facts.there()
    step, whole = newest_whole(there, facts.stored)
    lost = _taken_back(layout, facts, step)
    # A checkpoint may be of steps that were taken back, and trained again: it is never mixed with what machines hold.
    held = {report.machine: newest_held(report.held, step) if whole else frozenset[int]() for report in there}
    taken_back = f"; steps taken back: {lost}" if lost else ""
    sources = Sources(held, _reliable(facts), not whole, _leaving(facts))
    grid = _grid(_cut(layout, facts, choice), shape.pipelines, choice)
    found = _placed(layout, facts, grid, sources, f"{because}{taken_back}")
    return replace(found, left=(), term=layout.term + 1, base=step, step=step, redone=layout.redone + lost)


def newest_whole(reports: Sequence[ShapeReport], stored: int) -> tuple[int, bool]:
    """Return the newest step of which every layer can be had, and whether machines have them all; else it is the store's."""
    steps, layers = {step for report in reports for _, _, step in report.held if step >= stored}, _layers(reports)
    for step in sorted(steps, reverse=True):
        if len(frozenset[int]().union(*(newest_held(report.held, step) for report in reports))) >= layers:
            return step, True
    return stored, False


def released(layout: ShapeLayout, facts: ShapeFacts) -> frozenset[str]:
    """Return the machines of those to leave that may end: nothing is needed of them any more."""
    leaving = frozenset(one.machine for one in facts.there() if one.leaving)
    if not leaving or not _made(layout, facts):
        return frozenset()
    if layout.stop or not layout.stages:
        there = facts.there()
        step, _ = newest_whole(there, facts.stored)
        found, _ = newest_whole([one for one in there if one.machine not in leaving], facts.stored)
        return leaving if found == step else frozenset()
    return leaving - named_by(layout) | (leaving & frozenset(layout.left))


def is_at_rest(layout: ShapeLayout, facts: ShapeFacts) -> bool:
    """Return whether nothing is trained, and the newest step that machines have is in the store."""
    return not layout.stages and _made(layout, facts) and newest_whole(facts.there(), facts.stored)[0] == facts.stored


# ------------------------------------------------------------------------------------------------------------ planned changes


def _planned(layout: ShapeLayout, facts: ShapeFacts, choose: Chooser) -> ShapeLayout | None:
    """Return the next layout while all is well; None: this one stands, or not all have made it."""
    if not _made(layout, facts):
        return None
    choice = _choice(layout, facts, choose)
    shape, because = choice.shape, choice.because
    leaving = [one.machine for one in facts.there() if one.leaving and layout.layers(one.machine)]
    if leaving:
        left_s = min((facts.left_s[name] for name in leaving if name in facts.left_s), default=None)
        step_s = max(one.step_s for one in facts.there())
        answer = notice_answer(NoticeTimes(left_s, step_s, choice.change_s, choice.dropped, choice.dropped_s))
        if answer is not NoticeAnswer.MIGRATE:
            because = _short(leaving, left_s, choice, answer)
        if answer is NoticeAnswer.GIVE_UP:
            return replace(_next(layout, facts, because), stop=True)
        if answer is NoticeAnswer.DROP:
            kept = _grid(layout.cut, choice.dropped.pipelines, choice)
            return _placed(layout, facts, kept, _held_now(layout, facts), because)
    if shape == IDLE:
        left = tuple(place.machine for place in layout.places)
        return replace(_waiting(layout, facts, because), left=left, moves=_saved_by(layout, facts))
    cut = _cut(layout, facts, choice)
    if shape == shape_of(layout) and cut == layout.cut:
        backup = _backup(layout, facts)
        if not leaving and not _backup_lacks(layout, facts):
            return None
        because = f"{', '.join(leaving)} to leave" if leaving else f"the backup is on {backup or 'no machine'}"
    return _placed(layout, facts, _grid(cut, shape.pipelines, choice), _held_now(layout, facts), because)


def _cut(layout: ShapeLayout, facts: ShapeFacts, choice: ShapeChoice) -> tuple[int, ...]:
    """Return where the layers are cut: as the choice says, or as they are, or evenly."""
    layers = _layers(facts.there())
    if choice.cut:
        return choice.cut
    if layout.stages == choice.shape.stages and layout.cut[-1] == layers:
        return layout.cut
    return even_cut(layers, choice.shape.stages)


def _grid(cut: tuple[int, ...], pipelines: int, choice: ShapeChoice) -> StageGrid:
    """Return the places of a shape; what layers weigh counts if it is known of the layers that are cut."""
    return StageGrid(cut, pipelines, choice.weights if len(choice.weights) == cut[-1] else ())


def _held_now(layout: ShapeLayout, facts: ShapeFacts) -> Sources:
    """Return who has which layers while all train: the backup may be a step behind, so that it sends nothing."""
    held = {report.machine: frozenset(layout.layers(report.machine)) for report in facts.there()}
    return Sources(held, _reliable(facts), leaving=_leaving(facts))


def _short(leaving: Sequence[str], left_s: float | None, choice: ShapeChoice, answer: NoticeAnswer) -> str:
    """Return why the change that is wanted is not made inside a notice."""
    assert left_s is not None, "a notice without a time is never too short"
    assert choice.change_s is not None
    instead = f"{choice.dropped} drops their pipelines" if answer is NoticeAnswer.DROP else "the layout is given up"
    return (
        f"{', '.join(leaving)} to leave in {max(left_s, 0.0):.1f} s, and a change to {choice.shape} takes "
        f"{choice.change_s:.1f} s: {instead}"
    )


# -------------------------------------------------------------------------------------------------------------------- choices


def _layers(reports: Sequence[ShapeReport]) -> int:
    return max([0, *(report.layers for report in reports)])


def _ready(reports: Sequence[ShapeReport]) -> list[ShapeReport]:
    """Return the machines that can train: the model is built there, and they may be preempted, but are not yet to leave."""
    return [one for one in reports if one.layers and one.address and not one.reliable and not one.leaving]


def _choice(layout: ShapeLayout, facts: ShapeFacts, choose: Chooser) -> ShapeChoice:
    there = facts.there()
    ready = _ready(there)
    moment = ShapeMoment(
        Shape(layout.pipelines, layout.stages),
        len(ready),
        _layers(there),
        max([0, *(one.micro_batches for one in there)]),
        _whole(layout, {one.machine for one in ready}),
        layout.cut,
    )
    if not ready:
        return ShapeChoice(IDLE, "no machine can train")
    choice = choose(moment)
    assert choice.shape.machines <= len(ready), f"{choice.shape} is chosen for {len(ready)} machines"
    return choice


def _whole(layout: ShapeLayout, ready: Collection[str]) -> int:
    """Return for how many pipelines there is a machine of each stage."""
    counts = [0] * layout.stages
    for place in layout.places:
        counts[place.stage] += place.machine in ready
    return min(counts, default=0)


def _backup(layout: ShapeLayout, facts: ShapeFacts) -> str | None:
    """Return the machine that keeps the state of every stage: the one that does, while it is there."""
    reliable = [one.machine for one in facts.there() if one.reliable and not one.leaving and one.address]
    return layout.backup if layout.backup in reliable else next(iter(reliable), None)


def _backup_lacks(layout: ShapeLayout, facts: ShapeFacts) -> bool:
    """Return whether the backup lacks the state, since it is another machine, or since it has stopped by itself."""
    backup = _backup(layout, facts)
    return backup != layout.backup or (backup is not None and facts.reports[backup].stopped)


def _reliable(facts: ShapeFacts) -> frozenset[str]:
    return frozenset(one.machine for one in facts.there() if one.reliable)


def _leaving(facts: ShapeFacts) -> frozenset[str]:
    return frozenset(one.machine for one in facts.there() if one.leaving)


def _placed(layout: ShapeLayout, facts: ShapeFacts, grid: StageGrid, sources: Sources, because: str) -> ShapeLayout:
    """Return a layout of stages and pipelines, with its places and moves."""
    there, cut = facts.there(), grid.cut
    places = place_stages(grid, [one.machine for one in _ready(there)], sources.held, layout.places)
    targets = {place.machine: range(cut[place.stage], cut[place.stage + 1]) for place in places}
    backup = _backup(layout, facts)
    if backup is not None and (layout.stop or not layout.stages or _backup_lacks(layout, facts)):
        targets[backup] = range(cut[-1])
    return replace(
        _next(layout, facts, because),
        pipelines=grid.pipelines,
        stages=len(cut) - 1,
        cut=cut,
        places=places,
        left=tuple(sorted({place.machine for place in layout.places} - targets.keys())),
        moves=moves_to(targets, sources, grid.weights),
        stop=False,
        backup=backup,
    )
