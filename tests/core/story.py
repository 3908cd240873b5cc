"""A small language for scenarios of one worker: facts, and the commands that answer them."""

from __future__ import annotations

from typing import TypeVar

from windfall import events as ev
from windfall import terms
from windfall.core import worker
from windfall.terms import CheckpointRef, Notice, NoticeLevel, Phase, RunOptions, SaveKind

C = TypeVar("C", bound=ev.Command)


class Story:
    """One worker; `happens` moves time and gives facts, `said` holds the answer to the last batch."""

    def __init__(self, **started: object) -> None:
        defaults: dict[str, object] = {
            "run": "r",
            "term": 7,
            "provider": "local",
            "checkpoints": (),
            "attempt": 1,
            "failures": 0,
            "lifetimes_s": 0.0,
            "preemptions": 0,
            "announced": 0,
        }
        self.state = worker.initial_state()
        self.now = 100.0
        self.rows: list[ev.Row] = []
        self.said: tuple[ev.Command, ...] = ()
        self.decided: tuple[ev.Decision, ...] = ()
        options = {name: started.pop(name) for name in RunOptions.__struct_fields__ if name in started}
        given = {**defaults, "options": RunOptions(**options), **started}
        self.happens(ev.WorkerStarted(**given))  # type: ignore[arg-type]

    def happens(self, *facts: ev.Fact, after: float = 0.0) -> Story:
        """Facts that come together, `after` seconds later."""
        self.now += after
        self.state, self.decided, self.said = worker.react(self.state, self.now, facts)
        number = len(self.rows) + 1
        self.rows.append(ev.Row(7, number, self.now, self.now, facts, self.decided, self.said))
        return self

    def starts(self, ranks: int = 1, step: int = 0, checkpoint: str | None = None, size: int = 0) -> Story:
        """The script runs with its ranks."""
        attempt = self.state.attempt
        self.happens(ev.CheckpointRestored(checkpoint, step, size, 1.0), ev.ScriptStarted(attempt))
        return self.ranks(*[step] * ranks)

    def ranks(self, *steps: int, phase: Phase = Phase.STEP, after: float = 0.0) -> Story:
        """An observation of the pages."""
        self.now += after
        statuses = tuple(ev.RankStatus(rank, step, phase, self.now) for rank, step in enumerate(steps))
        return self.happens(ev.RanksObserved(statuses))

    def measures(self, step_s: float = 1.0, step: int = 5, count: int = 5) -> Story:
        """A window of steps."""
        return self.happens(ev.StepsMeasured(step, count, step_s, step_s))

    def answers(self, step: int, request: int, *ranks: int) -> Story:
        """`check_save` is True on these ranks."""
        return self.happens(*(ev.SaveAnswered(rank, request, step) for rank in ranks or (0,)))

    def hands_over(
        self, step: int, request: int = 0, rank: int = 0, path: str | None = None, size: int = 1000, stall: float = 0.1
    ) -> Story:
        """`backup(path)`."""
        return self.happens(ev.ShardHandedOver(rank, step, request, path or f"/s{step}/{rank}", size, stall))

    def uploads(self, took: float = 1.0) -> Story:
        """All shards in upload arrive in the store."""
        checkpoint = self.state.active
        assert checkpoint is not None
        facts = [
            ev.ShardUploaded(
                checkpoint.checkpoint_id, shard.rank, terms.Shard(shard.rank, "x", ()), shard.size_bytes, took
            )
            for shard in checkpoint.distinct_shards
        ]
        return self.happens(*facts, after=took)

    def commits(self, took: float = 0.1) -> Story:
        """The record is written."""
        checkpoint = self.state.active
        assert checkpoint is not None
        ref = ref_to(checkpoint.checkpoint_id, checkpoint.step, checkpoint.kind)
        return self.happens(ev.CheckpointCommitted(ref, 9, took), after=took)

    def stores(self, step: int, request: int = 0, took: float = 1.0) -> Story:
        """A single rank's save, from hand-over to commit."""
        if request:
            self.answers(step, request)
        return self.hands_over(step, request).uploads(took).commits()

    def notice(self, lead: float, notice_id: str = "n") -> Story:
        """An end is announced."""
        return self.happens(ev.NoticeReceived(Notice(NoticeLevel.ANNOUNCED, "aws", notice_id, self.now + lead)))

    def withdrawn(self, notice_id: str = "n") -> Story:
        """It is withdrawn."""
        return self.happens(ev.NoticeReceived(Notice(NoticeLevel.WITHDRAWN, "aws", notice_id)))

    def the(self, kind: type[C]) -> C:
        """The one command of a kind in the last answer."""
        found = [command for command in self.said if isinstance(command, kind)]
        assert len(found) == 1, f"one {kind.__name__} was expected in {self.said}"
        return found[0]

    def none(self, *kinds: type[ev.Command]) -> bool:
        """Whether the last answer has no command of these kinds."""
        return not any(isinstance(command, kinds) for command in self.said)

    @property
    def kinds(self) -> list[type[ev.Command]]:
        """The last answer's kinds of commands."""
        return [type(command) for command in self.said]


def ref_to(checkpoint_id: str, step: int, kind: SaveKind = SaveKind.INSURANCE) -> CheckpointRef:
    """A committed checkpoint."""
    return CheckpointRef(checkpoint_id, step, kind, 7, 1, 1000, "m", "d", 0.0)


def trained() -> Story:
    """A worker that has measured everything: steps 1 s, stall 0.1 s, upload 1 s, commit 0.1 s."""
    return Story(policy="every:10steps").starts().measures().stores(10, request=1).ranks(12)
