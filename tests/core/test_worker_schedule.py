"""The worker and its save schedule: accepted, kept over restarts of the agent, replaced, dropped with its term."""

from __future__ import annotations

import json

from tests.core.story import Story
from windfall import codec
from windfall import events as ev
from windfall.core.replay import explain, replay
from windfall.fleet import Directive, Report
from windfall.terms import SaveTable

TABLE = SaveTable((40.0, 110.0, 200.0), 300.0, 60.0, "it rests on 501 losses, bathtub law")
GIVEN = ev.ScheduleAssigned(TABLE, 20)


def trained(policy: str = "optimal") -> Story:
    """A run with steps of one second that has made its first save, at step 20, and starts the next step."""
    story = Story(policy=policy).starts().measures()
    return story.stores(20, request=story.state.requests).ranks(21)


def test_a_schedule_moves_the_save_that_is_asked_for() -> None:
    """The default rule's request is replaced by the table's: 40 s of work after step 20."""
    story = trained()
    before = story.state.request.step
    story.happens(GIVEN)

    assert story.the(ev.PublishSave).step == 60 != before
    (decision,) = story.decided
    assert "insurance save at step 60, by the schedule: it rests on 501 losses" in decision.choice


def test_the_saves_follow_the_table() -> None:
    """After step 60 the next is at 130, then at 220, however long the uploads took."""
    story = trained().happens(GIVEN)
    steps = [story.state.request.step]
    for step in (60, 130):
        story.ranks(step - 1).stores(step, request=story.state.requests, took=3.0)
        steps.append(story.state.request.step)
    assert steps == [60, 130, 220]


def test_a_newer_schedule_replaces_the_older() -> None:
    """Also one that only says why there is none: then the default rule decides again."""
    story = trained().happens(GIVEN)
    story.happens(ev.ScheduleAssigned(SaveTable((90.0,), 300.0, 60.0, "it rests on 600 losses"), 20))
    assert story.the(ev.PublishSave).step == 110
    none = SaveTable((), 0.0, 60.0, "the fit of lives is not used, because it is far off: the default rule decides")
    story.happens(ev.ScheduleAssigned(none, 20))
    assert story.state.request.step == trained("adaptive").state.request.step
    assert "because it is far off" in story.decided[0].choice


def test_other_policies_do_not_look_at_a_schedule() -> None:
    """A table that comes to a machine that saves otherwise changes nothing."""
    for policy in ("adaptive", "every:30steps"):
        story = trained(policy)
        before = story.state.request
        story.happens(GIVEN)
        assert (story.state.request, story.said) == (before, ())


def test_a_script_that_fell_back_behind_the_schedule_saves_by_the_default_rule() -> None:
    """Its newest checkpoint is damaged and it starts at an earlier step, where the table does not apply."""
    story = trained().happens(GIVEN)
    story.happens(ev.ScriptExited(1))
    story.happens(ev.TimerFired("retry"), after=60.0)
    story.starts()
    assert "rolled back past the start of its schedule" in story.decided[0].choice


def test_an_agent_that_restarts_knows_its_schedule() -> None:
    """The replayed journal gives the same state, the same decisions; and the next machine has none."""
    story = trained().happens(GIVEN)
    story.ranks(59).stores(60, request=story.state.requests)
    rows = [codec.row_from_line(codec.row_to_line(row)) for row in story.rows]

    assert rows == story.rows
    assert replay(rows) == []
    assert story.state.table == TABLE
    story.happens(ev.AgentResumed(), after=5.0)
    assert story.state.table == TABLE
    assert Story(policy="optimal", term=8).starts().state.table is None


def test_a_schedule_of_an_earlier_term_is_not_followed() -> None:
    """The machine acquired the run again, older than planned: a schedule sent for its last term changes nothing."""
    story = trained()
    term, before = story.state.first.term, story.state.request
    story.happens(ev.ScheduleAssigned(TABLE, 20, term - 1))
    assert (story.state.table, story.state.request, story.said) == (None, before, ())

    story.happens(ev.ScheduleAssigned(TABLE, 20, term))
    assert story.the(ev.PublishSave).step == 60


def test_explain_shows_by_what_the_machine_saves() -> None:
    """First the default rule and why, then the schedule and what it rests on."""
    text = "\n".join(explain(trained().happens(GIVEN).rows))
    assert "by the default rule: no schedule was made for this machine yet" in text
    assert "by the schedule: it rests on 501 losses, bathtub law" in text
    assert "next save at work done = 40 s" in text


def test_data_without_schedules_are_still_read() -> None:
    """Reports and directives without the newer fields are complete; rows of an older run give the same decisions."""
    report = {"type": "Report", "machine_id": "m", "sequence": 1, "incarnation": "a", "status": "training", "step": 5}
    directive = {"type": "Directive", "controller_term": 3, "desired_state": "run", "mttp_s": 5.0}
    assert (codec.decode(report, Report).costs, codec.decode(directive, Directive).schedule) == (None, None)
    rows = trained("adaptive").rows
    older = [codec.row_from_line(json.dumps(json.loads(codec.row_to_line(row)))) for row in rows]
    assert replay(older) == []
