"""Where a run's time went, and why: a view of its journal and its log.

Every moment between the first machine's taking the run and the last at which one can have lived belongs to exactly one
kind, so the kinds add up to the total.  What is not known is named, not guessed: a figure that depends on it is a range.
"""

from __future__ import annotations

import dataclasses
import enum
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from windfall import events
from windfall.report.counted import Ledger, Lost, Pace, Range, pace_of
from windfall.report.kinds import Kind, Spell
from windfall.report.spells import Walk
from windfall.report.unstored import Failed, GivenUp, failed, given_up
from windfall.terms import Bytes, Cause, CheckpointRef, NoticeLevel, Reached, SaveKind, Seconds, Step, Term, WallTime

SILENCE_S = 20.0
"""How long a machine of which no heartbeat is there can have lived beyond its last row [s]."""
STAMP_S = 1.0
"""How much later than its provider says a machine can have ended: stamps are whole seconds, or its last sign of life [s]."""
LOSSES = frozenset({Cause.PREEMPTED_SAVED, Cause.PREEMPTED_UNSAVED, Cause.VANISHED, Cause.SCRIPT_FAILED, Cause.FENCED})


@dataclass(frozen=True, slots=True)
class Tenure:
    """One holding of the run, as the log knows it.

    Attributes:
        taken_at, released_at: by the holder's wall clock; `released_at` None when no record ended the term.
        cause: what the record that ended the term says.
        reached: how far it had come as its last heartbeat, or what it left behind, says; None where neither is known.
        gone_at: when its provider says that the machine ended; None where nobody says.
    """

    term: Term
    holder: str
    taken_at: WallTime
    released_at: WallTime | None = None
    cause: Cause | None = None
    reached: Reached | None = None
    gone_at: WallTime | None = None


@dataclass(frozen=True, slots=True)
class Loss:
    """The end of an attempt that left work undone.

    Attributes:
        cause: why it ended.
        steps: complete steps that no committed checkpoint holds: they have to be computed again.
        redo_s: time spent so far on computing them again [s].
        redone: how many of them have been computed again so far.
    """

    term: Term
    attempt: int
    at: WallTime
    cause: Cause
    steps: Range
    redone: int
    redo_s: Seconds


@dataclass(frozen=True, slots=True)
class Seen:
    """A notice as it reached the machine.  `deadline` by its wall clock; None where nobody says."""

    at: WallTime
    term: Term
    level: NoticeLevel
    source: str
    deadline: WallTime | None


@dataclass(frozen=True, slots=True)
class Saves:
    """The committed points of one kind."""

    kind: SaveKind
    count: int
    size_bytes: Bytes


@dataclass(frozen=True, slots=True)
class Account:
    """Where the time of a run went.

    Attributes:
        spent: seconds by kind, every kind once.
        spells: the stretches behind `spent`, in order, without gap or overlap.
        machine_s: time that machines were held for certain, overlaps counted for each [s].
        maybe_s: how much more it can have been [s].
        upload_s: time that uploads took behind the script [s]; part of no kind.
        steps: the furthest step known to be complete.
        steps_redone: how many steps were computed again.
        given_up: saves that were begun and never committed, oldest first.
        failed: what went wrong with transfers and commits, by reason.
        unknown: one sentence for each thing that the rows at hand cannot tell.
    """

    begin: WallTime
    end: WallTime
    spent: tuple[tuple[Kind, Seconds], ...]
    spells: tuple[Spell, ...]
    tenures: tuple[Tenure, ...]
    losses: tuple[Loss, ...]
    notices: tuple[Seen, ...]
    commits: tuple[CheckpointRef, ...]
    machine_s: Seconds
    maybe_s: Seconds
    upload_s: Seconds
    steps: Step
    steps_redone: Range
    given_up: tuple[GivenUp, ...]
    failed: tuple[Failed, ...]
    unknown: tuple[str, ...]

    @property
    def total_s(self) -> Seconds:
        """The sum over all kinds [s]; what lies between `begin` and `end`."""
        return Seconds(sum(seconds for _, seconds in self.spent))

    @property
    def machine_hours(self) -> Range:
        """Time that machines were held [h]."""
        return Range(self.machine_s / 3600, (self.machine_s + self.maybe_s) / 3600)

    @property
    def compute_s(self) -> Range:
        """Time spent on steps computed for the first time [s]."""
        new_s = self.of(Kind.COMPUTE)
        return Range(new_s - self._doubted_s, new_s + self.of(Kind.UNKNOWN) + self.of(Kind.UNSEEN))

    @property
    def redo_s(self) -> Range:
        """Time spent on steps computed again [s]."""
        again_s = self.of(Kind.REDO)
        return Range(again_s, again_s + self._doubted_s + self.of(Kind.UNKNOWN) + self.of(Kind.UNSEEN))

    @property
    def _doubted_s(self) -> float:
        """Time of steps that a lost attempt may have completed before [s]."""
        return sum(spell.duration_s for spell in self.spells if spell.kind is Kind.COMPUTE and spell.loss is not None)

    @property
    def goodput(self) -> Range | None:
        """Share of the total that was spent on steps computed for the first time; None for a run without time."""
        new_s, total_s = self.compute_s, self.total_s
        assert new_s.high is not None, "time is always bounded"
        return Range(new_s.low / total_s, min(new_s.high / total_s, 1.0)) if total_s else None

    @property
    def saves(self) -> tuple[Saves, ...]:
        """The committed points by kind, kinds without any left out."""
        kinds = [(kind, [point for point in self.commits if point.kind is kind]) for kind in SaveKind]
        return tuple(
            Saves(kind, len(points), Bytes(sum(point.size_bytes for point in points)))
            for kind, points in kinds
            if points
        )

    def of(self, kind: Kind) -> Seconds:
        """Return what was spent on one kind [s]."""
        return dict(self.spent)[kind]


def account(
    rows_by_term: Mapping[Term, Sequence[events.Row]],
    tenures: Sequence[Tenure],
    *,
    commits: Sequence[CheckpointRef] = (),
    alive: Term | None = None,
) -> Account:
    """Make the account of a run.

    Args:
        rows_by_term: the journal's rows that arrived, in order of their sequence; terms may be missing.
        tenures: every holding of the run, from the log.  Terms that only the journal knows are added.
        commits: every commit that the log knows; those that only the journal knows are added.
        alive: the term whose holder is known to live, if any: its attempt is not lost.

    Raises:
        ValueError: neither the log nor the journal knows any term.
        LogDamaged: a journal goes back in time.
    """
    holdings = _all_tenures(rows_by_term, tenures)
    if not holdings:
        raise ValueError("the run has no term yet: nothing has been done")
    ledger, pace = Ledger(), pace_of(row for rows in rows_by_term.values() for row in rows)
    begins = [tenure.taken_at for tenure in holdings]
    stored = _stored(commits)
    walked = []
    for index, tenure in enumerate(holdings):
        before = max((step for term, step in stored.items() if term < tenure.term), default=0)
        known = _Known(tenure, min(begins[index + 1 :], default=None), stored.get(tenure.term, 0), Step(before))
        walked.append(_walk(rows_by_term.get(tenure.term, ()), known, ledger, pace, alive))
    spells, clocks = _tile([walk.spells for walk in walked], begins, holdings)
    facts = [(row, fact) for tenure in holdings for row in rows_by_term.get(tenure.term, ()) for fact in row.facts]
    points = {
        fact.checkpoint.checkpoint_id: fact.checkpoint
        for _, fact in facts
        if isinstance(fact, events.CheckpointCommitted)
    }
    points |= {point.checkpoint_id: point for point in commits}
    committed = tuple(sorted(points.values(), key=lambda point: (point.term, point.step, point.committed_at)))
    lasting = [spell for walk in walked for spell in walk.spells]
    return Account(
        begin=spells[0].begin if spells else begins[0],
        end=spells[-1].end if spells else begins[0],
        spent=tuple((kind, _sum(spells, kind)) for kind in Kind),
        spells=spells,
        tenures=tuple(holdings),
        losses=tuple(_loss(lost, number, spells, ledger, committed) for number, lost in enumerate(ledger.losses)),
        notices=tuple(_notices(facts)),
        commits=committed,
        machine_s=Seconds(sum(spell.duration_s for spell in lasting if spell.certain)),
        maybe_s=Seconds(sum(spell.duration_s for spell in lasting if not spell.certain)),
        upload_s=Seconds(sum(fact.duration_s for _, fact in facts if isinstance(fact, events.ShardUploaded))),
        steps=Step(ledger.furthest),
        steps_redone=ledger.computed_again(),
        given_up=tuple(save for term, rows in sorted(rows_by_term.items()) for save in given_up(term, rows)),
        failed=failed(fact for _, fact in facts),
        unknown=(*itertools.chain.from_iterable(walk.gaps for walk in walked), *clocks),
    )


def as_json(made: Account) -> dict[str, Any]:
    """Turn an account into what `json.dumps` accepts; units are in the names, moments in seconds since 1970."""
    plain = _plain(made)
    assert isinstance(plain, dict)
    plain["spent"] = {f"{kind.value}_s": seconds for kind, seconds in made.spent}
    plain["machine_s"] = {"low": made.machine_s, "high": made.machine_s + plain.pop("maybe_s")}
    ranges = {name: _plain(getattr(made, name)) for name in ("compute_s", "redo_s", "machine_hours", "goodput")}
    return plain | ranges | {"saves": _plain(made.saves), "total_s": made.total_s}


def _plain(value: object) -> object:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, enum.Enum):
        return value.value
    return [_plain(item) for item in value] if isinstance(value, tuple) else value


def _sum(spells: Sequence[Spell], kind: Kind) -> Seconds:
    return Seconds(sum(spell.duration_s for spell in spells if spell.kind is kind))


def _all_tenures(rows_by_term: Mapping[Term, Sequence[events.Row]], tenures: Sequence[Tenure]) -> list[Tenure]:
    """Every term once, in order, beginning no later than its first row."""
    known = {tenure.term: tenure for tenure in tenures}
    for term, rows in rows_by_term.items():
        if rows:
            tenure = known.get(term, Tenure(term, "?", rows[0].wall))
            known[term] = dataclasses.replace(tenure, taken_at=min(tenure.taken_at, rows[0].wall))
    return [known[term] for term in sorted(known)]


def _stored(commits: Sequence[CheckpointRef]) -> dict[Term, int]:
    """The newest step that each term is known to have committed."""
    found: dict[Term, int] = {}
    for point in commits:
        found[point.term] = max(found.get(point.term, 0), point.step)
    return found


@dataclass(frozen=True, slots=True)
class _Known:
    """What is known of a term beside its rows.

    Attributes:
        next_at: when the next one began.
        stored: the newest step that it committed.
        before: the newest step that was committed before it.
    """

    tenure: Tenure
    next_at: WallTime | None
    stored: int
    before: Step

    def until(self, sign: WallTime) -> WallTime:
        """Until when its machine can have held the run, given its last sign of life."""
        reached = self.tenure.reached
        silence_s = SILENCE_S if reached is None else sign - reached.wall + reached.within_s
        gone_at = self.tenure.gone_at
        others = (self.next_at, None if gone_at is None else WallTime(gone_at + STAMP_S))
        return max(sign, min([WallTime(sign + silence_s), *(at for at in others if at is not None)]))


def _walk(rows: Sequence[events.Row], known: _Known, ledger: Ledger, pace: Pace, alive: Term | None) -> Walk:
    tenure = known.tenure
    walk = Walk(tenure.term, tenure.taken_at, ledger, pace=pace)
    last = walk.rows(rows)
    if known.stored > ledger.last and ledger.begun:
        ledger.see(known.stored)
    reached = tenure.reached
    more: int | None = 0
    sign = max(last, tenure.released_at or last, last if reached is None else reached.wall)
    if tenure.released_at is not None or _releases(rows):
        walk.close(last, sign, sign)
    else:
        if reached is not None:
            walk.take(reached, last)
        if tenure.term == alive:
            walk.close(sign, sign, sign)
        else:
            more = _close_open_end(walk, known, last, sign)
    if not rows:
        walk.gaps.append(f"term {tenure.term}: no row of its journal arrived; what its machine did is not known")
    cause = _cause(rows, tenure, ledger)
    if tenure.term != alive and cause in LOSSES:
        ledger.lose(tenure.term, walk.attempt, sign, cause, more=more)
    return walk


def _close_open_end(walk: Walk, known: _Known, last: WallTime, sign: WallTime) -> int | None:
    """Close a term that ended without a word; return how many more steps it may have completed than are known."""
    tenure, until = known.tenure, known.until(sign)
    walk.close(sign if walk.attempt else last, sign, until)
    if tenure.reached is not None and tenure.reached.last:
        return 0
    if not walk.ledger.begun:
        walk.ledger.restore(known.before)  # nobody knows that it did not train
    if until > sign:
        walk.gaps.append(
            f"term {tenure.term}: its machine gave no more sign of life; it may have trained on for {until - sign:.1f} s"
        )
    return walk.more(until - sign)


def _releases(rows: Sequence[events.Row]) -> list[events.ReleaseRun]:
    return [command for row in rows for command in row.commands if isinstance(command, events.ReleaseRun)]


def _cause(rows: Sequence[events.Row], tenure: Tenure, ledger: Ledger) -> Cause:
    """Why a term ended: as the log says, else as its last command says, else as its notices tell."""
    if tenure.cause is not None:
        return tenure.cause
    released = _releases(rows)
    facts = [fact for row in rows for fact in row.facts]
    if any(isinstance(fact, events.FenceLost) for fact in facts):
        return Cause.FENCED
    if released:
        return released[-1].cause
    levels = [fact.notice.level for fact in facts if isinstance(fact, events.NoticeReceived)]
    told = [level for level in levels if level is not NoticeLevel.HINT]
    if not told or told[-1] is NoticeLevel.WITHDRAWN:
        return Cause.VANISHED
    safe = max(
        (fact.checkpoint.step for fact in facts if isinstance(fact, events.CheckpointCommitted)), default=Step(-1)
    )
    return Cause.PREEMPTED_SAVED if safe >= ledger.last else Cause.PREEMPTED_UNSAVED


def _tile(
    spells_of: Sequence[Sequence[Spell]], begins: Sequence[WallTime], tenures: Sequence[Tenure]
) -> tuple[tuple[Spell, ...], list[str]]:
    """Join the terms into one line of time: cut where a successor began, fill what lies between.

    Returns:
        The spells, and one sentence for each pair of terms that overlap.
    """
    joined: list[Spell] = []
    notes: list[str] = []
    for index, (spells, tenure) in enumerate(zip(spells_of, tenures, strict=True)):
        limit = min(begins[index + 1 :], default=None)
        end = spells[-1].end if spells else begins[index]
        if limit is None:
            joined += spells
            continue
        if end > limit:
            notes.append(
                f"term {tenure.term} and its successor overlap by {end - limit:.1f} s: the older machine lived on, or "
                "their clocks differ; the older one's time is cut there"
            )
        joined += [dataclasses.replace(spell, end=min(spell.end, limit)) for spell in spells if spell.begin < limit]
        if limit > end:
            kind = Kind.WAITING if spells else Kind.UNKNOWN
            attempt = spells[-1].attempt if spells else 0
            joined.append(Spell(kind, end, limit, tenure.term, attempt))
    return tuple(joined), notes


def _loss(lost: Lost, number: int, spells: Sequence[Spell], ledger: Ledger, commits: Sequence[CheckpointRef]) -> Loss:
    newest = max((point.step for point in commits if point.term <= lost.term), default=Step(0))
    kept = newest if lost.restored is None else lost.restored
    redo_s = sum(spell.duration_s for spell in spells if spell.kind is Kind.REDO and spell.loss == number)
    return Loss(
        term=lost.term,
        attempt=lost.attempt,
        at=lost.at,
        cause=lost.cause,
        steps=Range(max(0, lost.last - kept), None if lost.high is None else max(0, lost.high - kept)),
        redone=ledger.redone.get(number, 0),
        redo_s=Seconds(redo_s),
    )


def _notices(facts: Sequence[tuple[events.Row, events.Fact]]) -> list[Seen]:
    found = []
    for row, fact in facts:
        if isinstance(fact, events.NoticeReceived):
            notice = fact.notice
            deadline = None if notice.deadline is None else WallTime(row.wall + notice.deadline - row.at)
            found.append(Seen(row.wall, row.term, notice.level, notice.source, deadline))
    return found
