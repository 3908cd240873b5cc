"""What several machines' pages say, as the reducer hears it."""

from __future__ import annotations

from windfall.agent.merged_pages import MergedPages, split_path
from windfall.core.lifecycle import CheckpointState
from windfall.core.worker_state import TrackedCheckpoint, TrackedShard
from windfall.events import (
    Fact,
    MetricsReported,
    RankAdvanced,
    RanksObserved,
    RankStatus,
    SaveAnswered,
    ShardHandedOver,
    StepsMeasured,
)
from windfall.terms import Bytes, Instant, Phase, SaveKind, Seconds, Step


def look(rank: int, step: int) -> RanksObserved:
    return RanksObserved((RankStatus(rank, Step(step), Phase.STEP, Instant(0.0)),))


def hear(assembly: MergedPages, node: int, *facts: Fact, published: int = 0, at: float = 10.0) -> list[Fact]:
    return assembly.take(
        node, list(facts), now=Instant(10.0), at=Instant(at), published=published, latency_s=0.0, quiet=node != 0
    )


def both(assembly: MergedPages) -> None:
    hear(assembly, 0, look(0, 0))
    hear(assembly, 1, look(1, 0))


def handed(rank: int, step: int, request: int = 0) -> ShardHandedOver:
    return ShardHandedOver(rank, Step(step), request, "/out/checkpoint", Bytes(1), Seconds(0.1))


def test_no_look_leaves_before_every_machine_has_its_pages() -> None:
    """What one machine hands over meanwhile waits: half a point would otherwise look whole."""
    assembly = MergedPages(2)
    part = handed(0, 1)
    assert hear(assembly, 0, look(0, 1), part) == []
    *first, seen = hear(assembly, 1, look(1, 1))
    assert first == [part]
    assert isinstance(seen, RanksObserved)
    assert [status.rank for status in seen.ranks] == [0, 1]


def test_a_look_is_as_old_as_its_oldest_part() -> None:
    """The margin of a request grows with the age of what is known of other machines."""
    assembly = MergedPages(2)
    hear(assembly, 1, look(1, 5), at=7.5)
    (seen,) = hear(assembly, 0, look(0, 5))
    assert isinstance(seen, RanksObserved)
    assert seen.age_s == 2.5


def test_no_look_leaves_while_a_machine_has_not_looked_after_the_request() -> None:
    """An older look of one machine together with a new one of the other would agree on what nobody has seen."""
    assembly = MergedPages(2)
    both(assembly)
    assembly.publish_request(4)
    assert hear(assembly, 0, look(0, 3), published=4) == []
    assert hear(assembly, 1, look(1, 3), published=3) == []
    (seen,) = hear(assembly, 1, look(1, 3), published=4)
    assert isinstance(seen, RanksObserved)
    assert hear(assembly, 0, look(0, 4), published=4) != []


def test_a_request_that_was_taken_back_holds_nothing_up() -> None:
    """After a withdrawal looks leave as before."""
    assembly = MergedPages(2)
    both(assembly)
    assembly.publish_request(4)
    assembly.publish_request(0)
    assert hear(assembly, 0, look(0, 3)) != []


def test_an_answer_comes_before_the_look_that_could_find_its_rank_silent() -> None:
    """Each machine's own order is kept."""
    assembly = MergedPages(2)
    both(assembly)
    assembly.publish_request(4)
    hear(assembly, 0, look(0, 3), published=4)
    answer = SaveAnswered(1, 4, Step(5))
    first, seen = hear(assembly, 1, answer, look(1, 5), published=4)
    assert first == answer
    assert isinstance(seen, RanksObserved)


def test_the_same_path_on_two_machines_is_two_parts() -> None:
    """Ranks that name one folder share a part only on the same machine."""
    assembly = MergedPages(2)
    both(assembly)
    (one,) = hear(assembly, 0, handed(0, 5, request=1))
    (other,) = hear(assembly, 1, handed(1, 5, request=1))
    assert isinstance(one, ShardHandedOver)
    assert isinstance(other, ShardHandedOver)
    parts = tuple(TrackedShard(fact.rank, fact.path, 1, 1) for fact in (one, other))
    checkpoint = TrackedCheckpoint("p", Step(5), SaveKind.INSURANCE, 1, CheckpointState.HANDED_OVER, parts)
    assert len(checkpoint.distinct_shards) == 2
    assert [split_path(fact.path) for fact in (one, other)] == [(0, "/out/checkpoint"), (1, "/out/checkpoint")]


def test_a_rank_on_another_machine_that_went_past_a_periodic_save_has_no_part_in_it() -> None:
    """Only rank 0 saves by its own schedule: the point need not wait for the other machine for ever."""
    assembly = MergedPages(2)
    both(assembly)
    hear(assembly, 0, handed(0, 5))
    assert assembly.has_partial_saves
    assert hear(assembly, 1, look(1, 5)) == []
    assert hear(assembly, 1, look(1, 6)) == [RankAdvanced(1, Step(5))]
    assert not assembly.has_partial_saves


def test_steps_are_counted_once() -> None:
    """The machines take their steps together; metrics of all are kept."""
    assembly = MergedPages(2)
    both(assembly)
    window = StepsMeasured(Step(9), 9, Seconds(0.1), Seconds(0.2))
    metrics = MetricsReported(1, Step(9), (("loss", 0.5),))
    assert hear(assembly, 0, window) == [window]
    assert hear(assembly, 1, window, metrics) == [metrics]


def test_the_script_has_ended_when_it_has_on_every_machine() -> None:
    """The first failure is the status of the whole, not the signal that ended the others because of it."""
    assembly = MergedPages(3)
    assert assembly.exited(0, 0) is None
    assert assembly.exited(1, 3) is None
    assert assembly.exited(2, 137) == 3
    clean = MergedPages(2)
    assert clean.exited(1, 0) is None
    assert clean.exited(0, 0) == 0
