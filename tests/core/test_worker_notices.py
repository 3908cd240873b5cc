"""Announced ends of a worker: what is saved, what is not, and when the run is released."""

from __future__ import annotations

import pytest

from tests.core.story import Story, trained
from windfall import events as ev
from windfall.core import worker
from windfall.core.lifecycle import WorkerStage
from windfall.terms import (
    Cause,
    Outcome,
    Phase,
    SaveKind,
)


def test_a_notice_that_suffices_ends_in_a_committed_emergency_save() -> None:
    """Save, commit, and only then: kill, release, acknowledge, exit with 75."""
    story = trained().notice(30.0)
    request = story.the(ev.PublishSave)
    assert (request.kind, request.step) == (SaveKind.EMERGENCY, 13)
    assert {item.name for item in story.decided[0].rationale} >= {"remaining", "rest of phase", "snapshot", "upload"}
    story.answers(13, request.request).hands_over(13, request.request).uploads()
    assert story.none(ev.AcknowledgeNotice, ev.KillScript)
    story.commits()
    assert story.kinds[-4:] == [ev.KillScript, ev.ReleaseRun, ev.AcknowledgeNotice, ev.ExitAgent]
    assert story.the(ev.ReleaseRun).cause is Cause.PREEMPTED_SAVED
    assert story.the(ev.ExitAgent).code == 75


def test_a_notice_that_is_too_short_is_refused_and_the_run_released_in_time() -> None:
    """No save is requested; the run is released shortly before the end, so the successor need not wait."""
    story = trained().notice(2.0)
    assert story.none(ev.PublishSave)
    assert "step 10 is stored" in story.the(ev.LogMessage).message
    assert story.decided[0].choice.startswith("no emergency save")
    wake = story.the(ev.SetTimer)
    assert wake.at < story.now + 2.0
    story.happens(ev.TimerFired(wake.name), after=wake.at - story.now)
    assert story.kinds == [ev.KillScript, ev.ReleaseRun, ev.ExitAgent]
    assert story.the(ev.ReleaseRun).cause is Cause.PREEMPTED_UNSAVED


def test_a_notice_before_the_script_has_called_waits_for_its_first_call() -> None:
    """A message says that nothing can be saved yet; a script that calls in time gets a save request."""
    story = Story().happens(ev.CheckpointRestored(None, 0, 0, 0.0), ev.ScriptStarted(1)).notice(30.0)
    assert "has not called Windfall yet" in story.the(ev.LogMessage).message
    assert story.none(ev.ExitAgent)
    assert story.ranks(1).the(ev.PublishSave).kind is SaveKind.EMERGENCY


def test_a_long_evaluation_counts_against_the_notice() -> None:
    """What cannot be interrupted must end first."""
    story = trained().happens(ev.PhaseMeasured(0, Phase.EVALUATION, 60.0)).ranks(12, phase=Phase.EVALUATION)
    assert story.notice(30.0).none(ev.PublishSave)


def test_with_unknown_costs_the_save_is_tried_anyway() -> None:
    """Nothing is lost by trying, and the decision says that it is a guess."""
    story = Story(policy="never").starts().notice(30.0)
    assert story.the(ev.PublishSave).kind is SaveKind.EMERGENCY
    assert "unknown" in story.decided[0].choice


def test_a_withdrawn_notice_withdraws_the_save_and_training_continues() -> None:
    """Before the commit everything can be undone."""
    story = trained().notice(30.0)
    request = story.the(ev.PublishSave).request
    story.withdrawn()
    assert story.the(ev.WithdrawSave).request == request
    assert story.state.stage is WorkerStage.RUNNING
    story.happens(ev.TimerFired("deadline"), after=60.0)
    assert story.none(ev.KillScript, ev.ExitAgent)


def test_of_two_announced_ends_the_remaining_one_is_shown_when_the_other_is_withdrawn() -> None:
    """The script then sees the remaining end, and training does not continue."""
    story = trained().notice(300.0, "first").notice(60.0, "other").notice(30.0, "second").withdrawn("second")
    assert story.the(ev.ShowNotice).notice.notice_id == "first"
    assert story.state.shutdown is not None


def test_a_save_in_progress_counts() -> None:
    """The script is saving for another reason: another request would only cost time."""
    story = trained().ranks(19)
    story.answers(20, story.state.requests).notice(30.0)
    assert story.none(ev.PublishSave)
    story.hands_over(20, story.state.requests).uploads().commits()
    assert story.the(ev.ReleaseRun).cause is Cause.PREEMPTED_SAVED


@pytest.mark.parametrize(
    ("notice_s", "ahead_s", "gives_way"), [(4.0, 0.0, True), (4.5, 0.8, False), (30.0, 0.0, False)]
)
def test_an_older_upload_gives_way_to_the_emergency_save_unless_both_are_in_time(
    notice_s: float, ahead_s: float, gives_way: bool
) -> None:
    """What is newer holds more; where there is time for both nothing that was uploaded is thrown away."""
    story = trained().notice(notice_s)
    number = story.the(ev.PublishSave).request
    story.answers(13, number).happens(after=2.0).hands_over(12)
    older = story.the(ev.UploadShard).checkpoint_id
    story.happens(after=ahead_s).hands_over(13, number)
    if gives_way:
        assert story.the(ev.AbandonCheckpoint).checkpoint_id == older
        assert "emergency save at step 13 needs the uplink" in story.the(ev.AbandonCheckpoint).reason
    else:
        assert story.none(ev.AbandonCheckpoint, ev.UploadShard)
        story.uploads().commits()
    assert story.the(ev.UploadShard).kind is SaveKind.EMERGENCY


@pytest.mark.trial("A5")
def test_an_upload_that_takes_longer_than_expected_leaves_time_for_the_release() -> None:
    """It continues while it may be in time; in any case the run is released before the announced end."""
    story = trained().notice(4.0)
    end, number = story.now + 4.0, story.the(ev.PublishSave).request
    story.answers(13, number).hands_over(13, number)
    story.happens(ev.TimerFired("deadline"), after=3.3)
    assert story.none(ev.ExitAgent)
    wake = story.the(ev.SetTimer)
    assert wake.at < end
    story.happens(ev.TimerFired(wake.name), after=wake.at - story.now + 0.001)
    assert story.the(ev.ReleaseRun).cause is Cause.PREEMPTED_UNSAVED
    assert story.the(ev.ExitAgent).code == 75


def test_a_save_that_is_all_but_stored_is_not_given_up_for_the_reserve() -> None:
    """It needs a moment more, and the release still has one behind it."""
    story = trained().notice(4.0)
    end, number = story.now + 4.0, story.the(ev.PublishSave).request
    story.answers(13, number)
    story.happens(after=end - 0.39 - 1.0 - story.now).hands_over(13, number)
    story.happens(ev.TimerFired("deadline"), after=0.95)
    story.happens(ev.TimerFired("deadline"), after=0.05)
    assert end - story.now < 0.4
    assert story.none(ev.KillScript, ev.ExitAgent)
    story.uploads(0.0).commits(0.05)
    assert story.the(ev.ReleaseRun).cause is Cause.PREEMPTED_SAVED
    assert story.now < end


@pytest.mark.trial("A5")
def test_a_first_save_that_is_not_in_time_leaves_time_for_the_release() -> None:
    """Nothing is known about its upload: the run is released before the announced end, as preempted."""
    story = Story(policy="never").starts().ranks(5).notice(30.0)
    end, number = story.now + 30.0, story.the(ev.PublishSave).request
    story.answers(6, number).hands_over(6, number)
    story.happens(ev.TimerFired("deadline"), after=29.0)
    assert story.now < end
    assert story.the(ev.ReleaseRun).cause is Cause.PREEMPTED_UNSAVED
    assert story.the(ev.ExitAgent).code == 75


def test_a_script_that_is_done_before_its_machine_goes_was_not_preempted() -> None:
    """Its release does not mention the notice: it announced no loss."""
    story = trained().notice(30.0).happens(ev.ScriptExited(0))
    assert story.the(ev.ReleaseRun).outcome is Outcome.DONE
    assert story.the(ev.ReleaseRun).notice_s is None


def test_a_script_that_dies_of_the_notices_signal_is_a_preemption() -> None:
    """SIGTERM reaches the script too: what it handed over is committed first, and no failure is counted."""
    story = trained().notice(30.0)
    number = story.the(ev.PublishSave).request
    story.answers(13, number).hands_over(13, number).happens(ev.ScriptExited(143))
    assert story.none(ev.ExitAgent, ev.StartScript)
    story.uploads().commits()
    assert story.the(ev.ReleaseRun).cause is Cause.PREEMPTED_SAVED
    assert worker.counts(story.state) == {"attempts": 1, "failures": 0}


def test_a_script_that_died_of_sigterm_just_before_the_notice_came_did_not_fail() -> None:
    """The signal reaches script and agent at once; either may be recorded first."""
    story = trained().happens(ev.ScriptExited(143))
    assert worker.counts(story.state)["failures"] == 1
    story.notice(30.0)
    assert worker.counts(story.state)["failures"] == 0
    assert story.the(ev.ExitAgent).code == 75
    assert story.none(ev.StartScript)


def test_a_notice_while_nothing_runs_releases_the_run_at_once() -> None:
    """During a restore there is nothing to save."""
    story = Story().notice(30.0)
    assert story.the(ev.ReleaseRun).outcome is Outcome.WAITING
    assert story.the(ev.ExitAgent).code == 75
