"""What the worker's reducer knows between two batches of facts, and the turn in which it reacts to one.

The state is immutable.  A `Turn` is local to one call of `worker.react`: handlers replace its state and append commands.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from windfall.core.lifecycle import PointState, Stage
from windfall.events import Command, Decision, RankStatus, Tell, WakeAt, WorkerBegan
from windfall.models.costs import Costs
from windfall.models.losses import Losses
from windfall.policies.saving.decide import Beliefs, Standing
from windfall.records import record, renewed_with, value
from windfall.terms import CheckpointRef, Instant, Notice, SaveKind, SaveTable, Seconds, Shard, Step

_HANDED_OVER: Final = PointState.HANDED_OVER
_ASKED: Final = PointState.ASKED
_NO_TIME = Instant(0.0)
_NO_STEPS = Step(0)
_NO_LENGTH = Seconds(0.0)
REQUESTS_KEPT = 16
"""How many earlier requests are remembered, to know what a late answer answers."""


@record
class Request:
    """A save asked of the script.

    Attributes:
        number: grows with each request of a term.
        sure: every rank was seen below `step` after the publication, so that every rank will see it in time.
        answered: ranks whose `check_save` answered True to it.
        passed: ranks seen beyond `step` without an answer, once.
        late_at: step of the fastest rank when ranks were first seen beyond `step`, of a request that may come late.
        served: ranks that handed over for it, or said yes and went on without a part; `handed` if any handed over.
        withdrawn: the script is no longer asked.
        hinted: made because this machine may be taken, whatever the policy says of intervals.
    """

    __slots__ = ("__dict__",)

    number: int
    step: Step
    kind: SaveKind
    exact: bool
    sure: bool
    answered: tuple[int, ...] = ()
    passed: tuple[int, ...] = ()
    late_at: Step | None = None
    served: tuple[int, ...] = ()
    handed: bool = False
    withdrawn: bool = False
    hinted: bool = False


@value
class Plan:
    """What the pending insurance save was last found right for: as long as none of it changes, nothing is planned anew.

    Attributes:
        request: its number.
        step: what the policy chose; a later step than the earliest possible.
        anchor_step, losses, costs, table: the choice rests on them.
        numbers: of the costs, those that count (`policies.saving.decide.rests_on`).
    """

    request: int
    step: int
    anchor_step: Step
    losses: Losses
    costs: Costs
    table: tuple[SaveTable | None, Step]
    numbers: tuple[float | None, ...]


@record
class Part:
    """What one rank handed over; `shard` once it is in the store, `source` as the script named it.

    `owner` uploads for all ranks of the same path.
    """

    __slots__ = ("__dict__",)

    rank: int
    path: str
    request: int
    size_bytes: int
    identity: str = ""
    shard: Shard | None = None
    tries: int = 0
    source: str = ""


@record
class Point:
    """A checkpoint that is not committed, or a result that is not stored yet.

    Attributes:
        number: of all that were begun in this term; the order of the hand-overs.
        result: the name of a result; empty for a checkpoint.
        unclear: another path at a step that had one: a checkpoint if the script goes on, a result if it ends.
        own: the user's own save, whatever it was asked for besides: it is committed as such, and stays.
        absent: ranks that went on without a part.
        whole: every rank has handed over or gone on.
        begun_at: when its upload began; None if not measurable (the agent died meanwhile).
        tries: failed commits.
    """

    __slots__ = ("__dict__",)

    checkpoint_id: str
    step: Step
    kind: SaveKind
    request: int
    state: PointState
    parts: tuple[Part, ...]
    absent: tuple[int, ...] = ()
    whole: bool = False
    begun_at: Instant | None = None
    tries: int = 0
    number: int = 0
    result: str = ""
    unclear: bool = False
    own: bool = False

    @property
    def active(self) -> bool:
        """Whether it holds the uplink."""
        return self.state is not _HANDED_OVER and self.state is not _ASKED

    @property
    def owners(self) -> tuple[Part, ...]:
        """One part for each path, the lowest rank's: ranks that name the same path share one shard."""
        if len(self.parts) == 1:
            return self.parts
        lowest: dict[str, Part] = {}
        for part in sorted(self.parts, key=lambda part: part.rank):
            lowest.setdefault(part.path, part)
        return tuple(lowest.values())

    @property
    def of_whom(self) -> tuple[str, int]:
        """A result's name and rank: the newest of each is kept."""
        return self.result, self.parts[0].rank

    @property
    def size_bytes(self) -> int:
        """Bytes to upload."""
        return sum([part.size_bytes for part in self.owners])


@dataclass(frozen=True)
class Ending:
    """How this machine's work shall end.

    Attributes:
        stop: the user asked for it (otherwise an announced end).
        request: the newest request for the last save; None while none is made.
        saved: the last save is committed.
        refused: it was said that an emergency save does not fit.
        notice_s: how long before the end it was announced [s]; None for a stop.
    """

    stop: bool
    request: int | None = None
    saved: bool = False
    refused: bool = False
    notice_s: Seconds | None = None


@record
class WorkerState:
    """One term on one machine.

    Attributes:
        began: the first fact; None before it.
        began_at: when it came.
        attempt: number of the script's present start.
        script: whether the script's process is believed to run.
        exit_status: of the script's end that is being dealt with.
        ranks, observed_at: the newest look at the pages.
        link_s: the way to the farthest machine and back [s]; 0 for one machine.
        request: the pending one; `past` holds the newest earlier ones.
        requests: how many were made; the number of the newest.
        misses: agreements that failed in a row; each doubles the margin.
        held: (anchor, step) of the thesis' plan.
        plan: what the pending insurance save rests on; None if it has to be looked at again.
        floor_step: no insurance counts from before this step (a request or point that came to nothing).
        moved: (rank, step) of the newest step at which a rank went on without a part.
        points: points on their way, oldest first.
        made: how many points were begun.
        results: results on their way, oldest first.
        unstored_results: (name, rank) of those that were handed over and could not be stored.
        handed: (rank, step, path) of what each rank handed over last.
        live: committed points, oldest first; `damaged` those known not to be whole.
        committed_step: step of what a restart would restore.
        unstored_step: step of the newest save that was handed over and could not be stored.
        unstored_away: whether what was given up last met a store that stayed away.
        doomed: (when, point id) to be deleted.
        notices: announcements in force.
        leave_at: when to let the run go although nothing more was saved, shortly before the announced end.
        retry_at: when the next attempt may start, after the script failed.
        wakes: (why, when) asked for.
        told: what was already said once.
        table, table_step: the schedule of saves that was given for this machine, and the step at which it begins.
        last_words: the commands that ended it.
    """

    __slots__ = ("__dict__",)

    stage: Stage = Stage.NEW
    began: WorkerBegan | None = None
    began_at: Instant = _NO_TIME
    losses: Losses = field(default_factory=lambda: Losses("local"))
    costs: Costs = field(default_factory=Costs)
    attempt: int = 0
    failures: int = 0
    script: bool = False
    exit_status: int | None = None
    ranks: tuple[RankStatus, ...] = ()
    observed_at: Instant = _NO_TIME
    link_s: Seconds = _NO_LENGTH
    base_step: Step = _NO_STEPS
    request: Request | None = None
    past: tuple[Request, ...] = ()
    requests: int = 0
    misses: int = 0
    held: tuple[int, int] | None = None
    plan: Plan | None = None
    floor_step: Step = _NO_STEPS
    hinted: bool = False
    moved: tuple[tuple[int, Step], ...] = ()
    checkpoints: tuple[Point, ...] = ()
    made: int = 0
    results: tuple[Point, ...] = ()
    unstored_results: frozenset[tuple[str, int]] = frozenset()
    handed: tuple[tuple[int, Step, str], ...] = ()
    live: tuple[CheckpointRef, ...] = ()
    damaged: frozenset[str] = frozenset()
    committed_step: Step = _NO_STEPS
    unstored_step: Step = _NO_STEPS
    unstored_away: bool = False
    doomed: tuple[tuple[Instant, str], ...] = ()
    notices: tuple[Notice, ...] = ()
    ending: Ending | None = None
    leave_at: Instant | None = None
    retry_at: Instant | None = None
    wakes: tuple[tuple[str, Instant], ...] = ()
    told: frozenset[str] = frozenset()
    table: SaveTable | None = None
    table_step: Step = _NO_STEPS
    last_words: tuple[Command, ...] = ()

    @property
    def first(self) -> WorkerBegan:
        """The first fact."""
        assert self.began is not None, "nothing can happen before WorkerBegan"
        return self.began

    @property
    def active(self) -> Point | None:
        """What holds the uplink."""
        for point in (*self.checkpoints, *self.results) if self.results else self.checkpoints:
            if point.active:
                return point
        return None

    @property
    def queued(self) -> Point | None:
        """The whole point that waits for the uplink: the oldest, but for one that a notice is the reason of."""
        first = None
        for point in self.checkpoints:
            if point.whole and not point.active and (first is None or point.kind is SaveKind.EMERGENCY):
                first = point
        return first

    @property
    def held_paths(self) -> frozenset[str]:
        """Where lies what was handed over and is not stored yet."""
        return frozenset([part.path for point in (*self.checkpoints, *self.results) for part in point.parts])

    @property
    def step(self) -> Step:
        """Complete steps of the fastest rank, as last seen."""
        ranks = self.ranks
        if len(ranks) == 1:
            return ranks[0].step
        return max([status.step for status in ranks]) if ranks else self.base_step

    @property
    def deadline(self) -> Instant | None:
        """The earliest announced end in force."""
        if not self.notices:
            return None
        return min((notice.deadline for notice in self.notices if notice.deadline is not None), default=None)

    @property
    def anchor_step(self) -> Step:
        """Step of the newest save that is made or under way."""
        anchor = max(self.committed_step, self.floor_step, self.base_step)
        for point in self.checkpoints:
            anchor = max(anchor, point.step)
        return anchor

    @property
    def beliefs(self) -> Beliefs:
        """Losses and costs as believed now."""
        return Beliefs(self.losses, self.costs)

    def request_of(self, number: int) -> Request | None:
        """Return a request that is pending or remembered."""
        if self.request is not None and self.request.number == number:
            return self.request
        for request in self.past:
            if request.number == number:
                return request
        return None


@dataclass(slots=True)
class Turn:
    """One reaction in the making.

    Attributes:
        state: as it was given, until the first change: from then on a copy that is this turn's own and changes under
            its readers, so that a batch with many changes copies once.
    """

    state: WorkerState
    now: Instant
    commands: list[Command] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)
    _own: bool = False

    def change(self, **changes: object) -> None:
        """Replace fields of the state."""
        if self._own:
            self.state.__dict__.update(changes)
            return
        for name, wanted in changes.items():
            if getattr(self.state, name) is not wanted:
                self.state, self._own = renewed_with(self.state, changes), True
                return

    def order(self, *commands: Command) -> None:
        """Append commands."""
        self.commands.extend(commands)

    def tell(self, sentence: str, *, once: str | None = None) -> None:
        """Say a sentence; with `once` only the first time."""
        if once is not None:
            if once in self.state.told:
                return
            self.change(told=self.state.told | {once})
        self.order(Tell(sentence))

    def wake(self, why: str, after_s: float) -> None:
        """Ask to be woken."""
        at = Instant(self.now + max(after_s, 0.0))
        others = [wake for wake in self.state.wakes if wake[0] != why]
        self.change(wakes=(*others, (why, at)))
        self.commands.append(WakeAt(at, why))

    def set_point(self, point: Point) -> None:
        """Replace a point by its newer self."""
        if point.result:
            mine = [point if old.checkpoint_id == point.checkpoint_id else old for old in self.state.results]
            self.change(results=tuple(mine))
            return
        points = self.state.checkpoints
        if len(points) == 1 and points[0].checkpoint_id == point.checkpoint_id:
            self.change(checkpoints=(point,))
            return
        self.change(checkpoints=tuple([point if old.checkpoint_id == point.checkpoint_id else old for old in points]))

    def drop_point(self, point: Point) -> None:
        """Forget a point that is committed or abandoned."""
        name = "results" if point.result else "checkpoints"
        points: tuple[Point, ...] = getattr(self.state, name)
        self.change(**{name: tuple([known for known in points if known.checkpoint_id != point.checkpoint_id])})

    def remaining_s(self) -> Seconds | None:
        """Return the time until the earliest announced end [s]."""
        deadline = self.state.deadline
        return None if deadline is None else Seconds(deadline - self.now)


def standings(state: WorkerState, now: Instant) -> tuple[Standing, ...]:
    """Return where the ranks stand, for the policies."""
    return tuple([Standing(status.step, status.phase, max(now - status.phase_since, 0.0)) for status in state.ranks])
