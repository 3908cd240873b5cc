"""The journal fed back, and read by people."""

from __future__ import annotations

from tests.core.story import Story
from windfall import codec
from windfall import events as ev
from windfall.core.replay import explain, replay
from windfall.structs import replace


def story() -> Story:
    """A run with an insurance save and an emergency save."""
    told = Story(policy="adaptive").starts().measures()
    told.stores(20, request=told.state.requests).ranks(22).notice(30.0)
    return told.stores(23, request=told.state.requests)


def test_a_journal_fed_back_gives_the_same_decisions_and_commands() -> None:
    """Also after its way through the codec."""
    rows = [codec.row_from_line(codec.row_to_line(row)) for row in story().rows]
    assert replay(rows) == []


def test_a_changed_decision_is_shown() -> None:
    """Where, what was recorded, what comes out today."""
    rows = story().rows
    at = next(index for index, row in enumerate(rows) if row.decisions)
    rows[at] = replace(rows[at], decisions=())
    (difference,) = replay(rows)
    assert (difference.sequence, difference.what, difference.recorded) == (at + 1, "decisions", "()")


def test_a_gap_ends_the_replay_of_its_term() -> None:
    """What was lost cannot be guessed."""
    rows = story().rows
    del rows[2]
    assert [difference.what for difference in replay(rows)] == ["gap"]


def test_facts_that_cannot_have_been_end_the_replay_of_their_term() -> None:
    """A commit of a checkpoint that is not uploaded: the journal was edited, and no command crashes."""
    rows = story().rows
    at = next(n for n, row in enumerate(rows) if any(isinstance(fact, ev.ShardUploaded) for fact in row.facts))
    committed = next(fact for row in rows for fact in row.facts if isinstance(fact, ev.CheckpointCommitted))
    rows[at] = replace(rows[at], facts=(committed,))
    (difference,) = replay(rows)
    assert (difference.sequence, difference.what) == (at + 1, "facts")
    assert "uploading cannot become committed" in difference.replayed


def test_explain_prints_choice_numbers_and_alternatives() -> None:
    """Each decision with what it compared, in units."""
    lines = explain(story().rows)
    assert lines[0] == "term 7"
    text = "\n".join(lines)
    assert "insurance save at step" in text
    assert "emergency save at step 23" in text
    assert "remaining = 30 s" in text
    assert "instead of: no emergency save" in text


def test_explain_can_be_asked_for_one_decision() -> None:
    """Counted from one."""
    lines = explain(story().rows, 1)
    assert lines[0].startswith("   1  ")
    assert "insurance save at step" in lines[0]
    assert not any(line.startswith("   2") for line in lines)


def test_the_same_facts_in_another_process_give_the_same_row() -> None:
    """Two reducers, one journal."""
    assert story().rows == story().rows
    assert isinstance(story().rows[0].facts[0], ev.WorkerStarted)
