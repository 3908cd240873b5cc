"""The next layout of a parameter server in tiers, by the newest one, what machines report, and which are lost.

A machine that sees a layout makes itself so (`runtimes.tier_server`, `runtimes.tier_worker`).  It may miss some: a layout that
rests on what a machine did under an earlier one is only written once that machine has reported it.

- **Roll back** if a server is lost: a new term, which starts at the newest clock that all backups have.  Parts of lost servers
  are opened elsewhere from their backups, the surviving ones roll themselves back, and all data partitions begin there.
- **Fence** the data partitions of a lost worker: servers refuse what it sends from now on, and report what it had sealed.  Once
  all have, another machine computes on from the next clock; no other data partition does a clock again.
- **Move** a part: the next server takes a copy from the backup, then the rest from the server, which sends requests on to it
  from that instant; nothing waits for more than this rest.  A machine gives and takes one part at a time; a part that its
  backup serves waits until data partitions that move have arrived.
- **Release** a data partition: the next holder loads its data, then the holder ends its clock.
- **Restore** from the store if a machine with backups is lost: a new term, which starts at the checkpoint's clock.

Source: Proteus (EuroSys 2017), sections 3.2 and 3.3.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from windfall.policies.layout.tiers import TierPlacement
from windfall.structs import replace
from windfall.tier_layout import DataPlace, PartPlace, ServerLayout, StoredClock, TierReport
from windfall.tier_status import LossReached


def first_layout(wanted: TierPlacement) -> ServerLayout:
    """Return the layout with which training begins: all backups hold the first values, of clock 0."""
    parts = tuple(PartPlace(server, backup) for server, backup in zip(wanted.servers, wanted.backups, strict=True))
    return ServerLayout(
        1, 1, 0, 0, 0, StoredClock(), parts, tuple(DataPlace(holder) for holder in wanted.holders), "training begins"
    )


def taken_by_next_coordinator(layout: ServerLayout) -> ServerLayout:
    """Return the layout that a coordinator which starts writes before anything else: reports to it are fresh."""
    return replace(
        layout, version=layout.version + 1, coordinator=layout.coordinator + 1, because="a coordinator has started"
    )


def newest_common(clocks: Sequence[frozenset[int]]) -> int:
    """Return the newest clock to which all can go: the latest common iteration.

    Source: Proteus (EuroSys 2017), section 3.3, footnote 6.
    """
    return max(frozenset.intersection(*clocks))


def common_clock(layout: ServerLayout, reports: Mapping[str, TierReport]) -> int:
    """Return the newest clock that all backups can go to in this term, by what they report; at least where it began."""
    clocks = []
    for part, place in enumerate(layout.parts):
        report = reports.get(place.backup)
        if report is None or report.term != layout.term or part not in report.backups:
            return layout.base
        clocks.append(report.backups[part])
    return newest_common(clocks)


def all_copied(layout: ServerLayout, reports: Mapping[str, TierReport], stored: StoredClock) -> bool:
    """Return whether all backups have kept a copy of their parts for a checkpoint, or of a later one."""
    return all(
        place.backup in reports and reports[place.backup].copied.get(part, StoredClock()) >= stored
        for part, place in enumerate(layout.parts)
    )


def stored_checkpoint(layout: ServerLayout, reports: Mapping[str, TierReport]) -> StoredClock:
    """Return the newest checkpoint of which every part is in the store; none from before all was restored counts."""
    saved = {
        reports[place.backup].saved.get(part) if place.backup in reports else None
        for part, place in enumerate(layout.parts)
    }
    newest = saved.pop()
    whole = newest is not None and not saved and newest.term >= layout.restored
    return max(newest, layout.checkpoint) if newest is not None and whole else layout.checkpoint


def next_layout(
    layout: ServerLayout, reports: Mapping[str, TierReport], lost: frozenset[str], wanted: TierPlacement
) -> ServerLayout | None:
    """Return the next layout; None: this one stands, or a report is needed first.

    Args:
        layout: the newest.
        reports: the newest of each machine, all of them to this coordinator.
        lost: machines that are lost for ever; their reports count for nothing.
        wanted: the policy's choice among those that are not lost.
    """
    if not {place.backup for place in layout.parts} <= reports.keys() | lost:
        return None
    if any(place.backup in lost for place in layout.parts):
        return _restored(layout, reports, lost, wanted)
    if any({place.active, place.next_active} & lost for place in layout.parts):
        return _rolled_back(layout, reports, lost, wanted)
    return _moved_on(layout, reports, lost, wanted)


def training_loss(layout: ServerLayout, reports: Mapping[str, TierReport]) -> float | None:
    """Return the mean loss of the newest turn of each data partition; None as long as some have said none in this term.

    Turns of lost machines count: what they pushed does.
    """
    newest: dict[int, tuple[int, float]] = {}
    for report in reports.values():
        if report.term == layout.term:
            for data, found in report.losses.items():
                newest[data] = max(found, newest.get(data, found))
    if len(newest) < len(layout.data):
        return None
    return sum(loss for _, loss in newest.values()) / len(newest)


def with_end(
    layout: ServerLayout, changed: ServerLayout | None, clock: int, loss: float | None, goal: float | None
) -> ServerLayout | None:
    """Return the next layout, which ends training if its loss is reached; None: the newest one stands.

    It ends with a clock that all backups have, which no loss of servers takes back; a return to a checkpoint does, and takes
    the end back too.

    Args:
        layout: the newest.
        changed: the next one without this; None: there is none.
        clock: the newest that all backups have.
        loss: of training there; None if it is not known.
        goal: at or below which training ends; None: it ends with its last clock alone.
    """
    if goal is None or loss is None or not loss <= goal or layout.reached is not None:
        return changed
    if changed is not None and changed.term > layout.term:
        return changed
    because = f"a training loss of {loss:.6g} is reached at clock {clock}"
    return replace(
        changed or layout,
        version=layout.version + 1,
        reached=LossReached(clock, loss),
        because=because if changed is None else f"{changed.because}; {because}",
    )


def _restored(
    layout: ServerLayout, reports: Mapping[str, TierReport], lost: frozenset[str], wanted: TierPlacement
) -> ServerLayout:
    clock = layout.checkpoint.clock
    parts = tuple(
        PartPlace(server, backup, None, place.move)
        for server, backup, place in zip(wanted.servers, wanted.backups, layout.parts, strict=True)
    )
    return replace(
        layout,
        version=layout.version + 1,
        term=layout.term + 1,
        restored=layout.term + 1,
        restores=layout.restores + 1,
        redone=layout.redone + max([0, *(done - clock for done in _done(layout, reports))]),
        # The clock that reached the loss is taken back, or is stored, and then nothing is decided any more.
        reached=None,
        base=clock,
        parts=parts,
        data=_begun(layout, clock, reports, lost, wanted),
        because=f"a machine with backups is lost: all is restored from the checkpoint at clock {clock}",
    )


def _rolled_back(
    layout: ServerLayout, reports: Mapping[str, TierReport], lost: frozenset[str], wanted: TierPlacement
) -> ServerLayout:
    clock = common_clock(layout, reports)
    parts = tuple(
        replace(place, active=server if place.active in lost else place.active, next_active=None)
        for server, place in zip(wanted.servers, layout.parts, strict=True)
    )
    return replace(
        layout,
        version=layout.version + 1,
        term=layout.term + 1,
        redone=layout.redone + max([0, *(done - clock for done in _done(layout, reports))]),
        base=clock,
        parts=parts,
        data=_begun(layout, clock, reports, lost, wanted),
        because=f"a server is lost: all go back to clock {clock}",
    )


def _begun(
    layout: ServerLayout,
    clock: int,
    reports: Mapping[str, TierReport],
    lost: frozenset[str],
    wanted: TierPlacement,
) -> tuple[DataPlace, ...]:
    """Return the data partitions as they begin after a clock: with the holders that they had, where those are there."""
    return tuple(
        DataPlace(
            place.holder if place.holder not in lost else holder,
            place.number + 1,
            clock + 1,
            done_before=max(place.done_before, done),
        )
        for place, holder, done in zip(layout.data, wanted.holders, _done(layout, reports), strict=True)
    )


def _done(layout: ServerLayout, reports: Mapping[str, TierReport]) -> list[int]:
    """Return the newest clock of each data partition that is sealed in this term, as far as reported, by lost machines too."""
    this_term = [report.done for report in reports.values() if report.term == layout.term]
    return [max((done.get(data, 0) for done in this_term), default=0) for data in range(len(layout.data))]


def _moved_on(
    layout: ServerLayout, reports: Mapping[str, TierReport], lost: frozenset[str], wanted: TierPlacement
) -> ServerLayout | None:
    """Return the next layout if no server and no backup is lost."""
    version = layout.version + 1
    data = tuple(
        _next_data(layout, number, wanted.holders[number], reports, lost) for number in range(len(layout.data))
    )
    parts = _next_parts(layout, data, wanted.servers, reports)
    checkpoint = stored_checkpoint(layout, reports)
    changes = _changes(layout, parts, data, checkpoint)
    if not changes:
        return None
    return replace(layout, version=version, parts=parts, data=data, checkpoint=checkpoint, because="; ".join(changes))


def _next_parts(
    layout: ServerLayout, data: Sequence[DataPlace], wanted: Sequence[str], reports: Mapping[str, TierReport]
) -> tuple[PartPlace, ...]:
    """Return where parts are next; a machine gives one away at a time, and takes one, so that a move has the link to itself.

    Of moves that share a link none ends before nearly all do, and workers wait for each of them.  A part that its backup
    serves is in no danger, and waits for data partitions to arrive: the clock in which these still compute where they were is
    the longest, and need not bear the moves of parts too.
    """
    arriving = any(place.next_holder for place in data)
    busy = {end for place in layout.parts if place.next_active for end in _ends(place.active, place.next_active)}
    found = []
    for part, place in enumerate(layout.parts):
        ends = _ends(place.active, wanted[part])
        if place.next_active is None and (ends & busy or (arriving and place.active == place.backup)):
            found.append(place)
            continue
        found.append(_next_part(place, part, wanted[part], reports, layout.version + 1))
        busy |= ends if found[-1].next_active else frozenset()
    return tuple(found)


def _ends(source: str, target: str) -> frozenset[tuple[str, str]]:
    return frozenset({("gives", source), ("takes", target)})


def _next_part(place: PartPlace, part: int, server: str, reports: Mapping[str, TierReport], version: int) -> PartPlace:
    if place.next_active is None:
        return place if server == place.active else replace(place, next_active=server, move=version)
    report = reports.get(place.next_active)
    if report is None or report.taken_over.get(part) != place.move:
        return place
    return replace(place, active=place.next_active, next_active=None)


def _next_data(
    layout: ServerLayout, number: int, wanted: str, reports: Mapping[str, TierReport], lost: frozenset[str]
) -> DataPlace:
    place = layout.data[number]
    if place.fenced:
        clock = _sealed(layout, number, reports)
        return place if clock is None else _held_next(place, wanted, clock)
    if place.holder in lost:
        return replace(place, number=place.number + 1, fenced=True, next_holder=None, releasing=False)
    if place.next_holder is None:
        return place if wanted == place.holder else replace(place, next_holder=wanted)
    if place.next_holder in lost:
        # A holder that is releasing has ended, or will: it begins again where it ended, as its own next holder.
        return replace(place, next_holder=place.holder) if place.releasing else replace(place, next_holder=None)
    return _released(place, number, reports)


def _released(place: DataPlace, number: int, reports: Mapping[str, TierReport]) -> DataPlace:
    assert place.next_holder is not None
    if not place.releasing:
        report = reports.get(place.next_holder)
        return replace(place, releasing=True) if report is not None and number in report.loaded else place
    report = reports.get(place.holder)
    of, clock = report.released.get(number, (-1, 0)) if report is not None else (-1, 0)
    return place if of != place.number else _held_next(place, place.next_holder, clock)


def _held_next(place: DataPlace, holder: str, clock: int) -> DataPlace:
    """Return a data partition with its next holder, which begins after a clock."""
    return DataPlace(holder, place.number + 1, clock + 1, done_before=place.done_before)


def _sealed(layout: ServerLayout, number: int, reports: Mapping[str, TierReport]) -> int | None:
    """Return the clock up to which some part has sealed a fenced data partition; None: not all parts have reported yet."""
    newest = layout.base
    for part, place in enumerate(layout.parts):
        found = [
            reports[machine].sealed.get((part, number), (-1, 0))
            for machine in (place.active, place.next_active)
            if machine is not None and machine in reports and reports[machine].term == layout.term
        ]
        clocks = [clock for of, clock in found if of == layout.data[number].number]
        if not clocks:
            return None
        newest = max(newest, *clocks)
    return newest


def _changes(
    layout: ServerLayout, parts: Sequence[PartPlace], data: Sequence[DataPlace], checkpoint: StoredClock
) -> list[str]:
    """Return what differs, a few words each."""
    found = []
    for part, (old, new) in enumerate(zip(layout.parts, parts, strict=True)):
        if new.active != old.active:
            found.append(f"part {part} is on {new.active}")
        elif new != old:
            found.append(f"part {part} moves to {new.next_active}")
    for number, (before, after) in enumerate(zip(layout.data, data, strict=True)):
        if after.fenced and not before.fenced:
            found.append(f"data partition {number} lost {before.holder}")
        elif after.number != before.number:
            found.append(f"{after.holder} has data partition {number} from clock {after.start}")
        elif after != before:
            found.append(f"data partition {number} goes to {after.next_holder}")
    if checkpoint != layout.checkpoint:
        found.append(f"the checkpoint at clock {checkpoint.clock} is stored")
    return found
