"""Where a run's time went, and why: a view of its journal and its log.

Every moment between the first machine's taking the run and the last sign of life belongs to exactly one kind, so the
kinds add up to the total.  What is not known is named, not guessed.
"""

from __future__ import annotations

import dataclasses
import enum
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from windfall import events
from windfall.report.spells import Kind, Ledger, Lost, Spell, Walk
from windfall.terms import Bytes, Cause, CheckpointRef, NoticeLevel, SaveKind, Seconds, Step, Term, WallTime

LOSSES = frozenset({Cause.PREEMPTED_SAVED, Cause.PREEMPTED_UNSAVED, Cause.VANISHED, Cause.SCRIPT_FAILED, Cause.FENCED})


@dataclass(frozen=True, slots=True)
class Tenure:
    """One holding of the run, as the log knows it.

    Attributes:
        taken_at, released_at: by the holder's wall clock; `released_at` None when no record ended the term.
        cause: what the record that ended the term says.
        beat_at: the holder's last heartbeat, by its wall clock, where known: it lived until then at least.
    """

    term: Term
    holder: str
    taken_at: WallTime
    released_at: WallTime | None = None
    cause: Cause | None = None
    beat_at: WallTime | None = None


@dataclass(frozen=True, slots=True)
class Loss:
    """The end of an attempt that left work undone.

    Attributes:
        cause: why it ended.
        steps: complete steps that no committed point holds: they have to be computed again.
        exact: whether the attempt's last rows arrived; if not, it may have lost more steps than anybody knows.
        redo_s: time spent so far on computing them again [s].
        redone: how many of them have been computed again so far.
    """

    term: Term
    attempt: int
    at: WallTime
    cause: Cause
    steps: int
    redone: int
    redo_s: Seconds
    exact: bool = True


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
        machine_s: time that machines were held, overlaps counted for each [s].
        upload_s: time that uploads took behind the script [s]; part of no kind.
        steps: the furthest step known to be complete.
        steps_redone: how many steps were computed again.
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
    upload_s: Seconds
    steps: Step
    steps_redone: int
    unknown: tuple[str, ...]

    @property
    def total_s(self) -> Seconds:
        """The sum over all kinds [s]; what lies between `begin` and `end`."""
        return Seconds(sum(seconds for _, seconds in self.spent))

    @property
    def machine_hours(self) -> float:
        """Time that machines were held [h]."""
        return self.machine_s / 3600

    @property
    def goodput(self) -> float | None:
        """Share of the total that was spent on steps computed for the first time; None for a run without time."""
        return self.of(Kind.COMPUTE) / self.total_s if self.total_s else None

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
        ValueError: neither the log nor the journal knows any term, or a journal goes back in time.
    """
    holdings = _all_tenures(rows_by_term, tenures)
    if not holdings:
        raise ValueError("the run has no term yet: nothing has been done")
    ledger = Ledger()
    walked = [_walk(rows_by_term.get(tenure.term, ()), tenure, ledger, alive) for tenure in holdings]
    begins = [tenure.taken_at for tenure in holdings]
    spells, clocks = _tile([walk.spells for walk in walked], begins, holdings)
    facts = [(row, fact) for tenure in holdings for row in rows_by_term.get(tenure.term, ()) for fact in row.facts]
    points = {
        fact.checkpoint.checkpoint_id: fact.checkpoint
        for _, fact in facts
        if isinstance(fact, events.CheckpointCommitted)
    }
    points |= {point.checkpoint_id: point for point in commits}
    committed = tuple(sorted(points.values(), key=lambda point: (point.term, point.step, point.committed_at)))
    lasting = (spell for walk in walked for spell in walk.spells)
    return Account(
        begin=spells[0].begin if spells else begins[0],
        end=spells[-1].end if spells else begins[0],
        spent=tuple((kind, _sum(spells, kind)) for kind in Kind),
        spells=spells,
        tenures=tuple(holdings),
        losses=tuple(_loss(lost, number, spells, ledger, committed) for number, lost in enumerate(ledger.losses)),
        notices=tuple(_notices(facts)),
        commits=committed,
        machine_s=Seconds(sum(spell.duration_s for spell in lasting)),
        upload_s=Seconds(sum(fact.duration_s for _, fact in facts if isinstance(fact, events.ShardUploaded))),
        steps=Step(ledger.furthest),
        steps_redone=sum(ledger.redone.values()),
        unknown=(*itertools.chain.from_iterable(walk.gaps for walk in walked), *clocks),
    )


def as_json(made: Account) -> dict[str, Any]:
    """Turn an account into what `json.dumps` accepts; units are in the names, moments in seconds since 1970."""
    plain = _plain(made)
    assert isinstance(plain, dict)
    plain["spent"] = {f"{kind.value}_s": seconds for kind, seconds in made.spent}
    plain["saves"] = _plain(made.saves)
    plain |= {"total_s": made.total_s, "machine_hours": made.machine_hours, "goodput": made.goodput}
    return plain


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


def _walk(rows: Sequence[events.Row], tenure: Tenure, ledger: Ledger, alive: Term | None) -> Walk:
    walk = Walk(tenure.term, tenure.taken_at, ledger)
    last = walk.rows(rows)
    end = max(last, tenure.released_at or last, tenure.beat_at or last)
    walk.close(end)
    cause = _cause(rows, tenure, ledger)
    if not rows:
        walk.gaps.append(f"term {tenure.term}: no row of its journal arrived; what its machine did is not known")
    elif cause is Cause.VANISHED and tenure.term != alive:
        walk.gaps.append(
            f"term {tenure.term}: its machine gave no sign after row {rows[-1].sequence}; steps it may have completed "
            "since then are not counted"
        )
    if tenure.term != alive and cause in LOSSES:
        ledger.lose(tenure.term, walk.attempt, end, cause, exact=bool(_releases(rows)))
    return walk


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
    redo_s = sum(spell.duration_s for spell in spells if spell.loss == number)
    return Loss(
        term=lost.term,
        attempt=lost.attempt,
        at=lost.at,
        cause=lost.cause,
        steps=max(0, lost.last - kept),
        redone=ledger.redone.get(number, 0),
        redo_s=Seconds(redo_s),
        exact=lost.exact,
    )


def _notices(facts: Sequence[tuple[events.Row, events.Fact]]) -> list[Seen]:
    found = []
    for row, fact in facts:
        if isinstance(fact, events.NoticeReceived):
            notice = fact.notice
            deadline = None if notice.deadline is None else WallTime(row.wall + notice.deadline - row.at)
            found.append(Seen(row.wall, row.term, notice.level, notice.source, deadline))
    return found
