"""Stories about the worker's reducer."""

from __future__ import annotations

import math

import pytest

from tests.core.story import Story, ref_to, trained
from windfall import events as ev
from windfall.core import checkpoints, handovers, shutdown, worker
from windfall.core.lifecycle import WorkerStage
from windfall.terms import (
    Bytes,
    Cause,
    Failure,
    Instant,
    Notice,
    NoticeLevel,
    Outcome,
    SaveCosts,
    SaveKind,
    Seconds,
)

# ------------------------------------------------------------------------------------------------------------ insurance


def test_a_fresh_run_saves_early_to_learn_what_saving_costs() -> None:
    """Before anything was measured: after 20 steps of 2 s, long before the 147 s that a guessed standstill gives."""
    story = Story().starts().measures(step_s=2.0)
    assert story.the(ev.PublishSave) == ev.PublishSave(1, 20, SaveKind.INSURANCE, False)
    assert story.decided[0].choice == "insurance save at step 20 to learn what saving costs"
    interval_s = math.sqrt(2 * 1.0 * (3 * 3600 + 136.5))
    assert next(item.value for item in story.decided[0].rationale if item.name == "interval") == pytest.approx(
        interval_s
    )


def test_a_script_that_does_not_save_when_first_asked_is_not_asked_early_again() -> None:
    """It agreed and handed nothing over: the next request comes after the interval."""
    story = Story().starts().measures(step_s=2.0).answers(20, 1, 0)
    story.happens(ev.RankAdvanced(0, 20))
    assert story.state.request is not None
    assert story.state.request.step == 20 + 73


@pytest.mark.trial("B4")
def test_the_status_of_a_script_that_never_calls_is_reported() -> None:
    """After a minute without a call, and no longer than that is true."""
    story = Story()
    story.happens(ev.CheckpointRestored(None, 0, 0, 1.0), ev.ScriptStarted(1))
    assert not worker.run_status(story.state).sdk_inactive
    story.happens(ev.TimerFired("sdk_inactive"), after=worker.SDK_INACTIVE_AFTER_S)
    assert worker.run_status(story.state).sdk_inactive

    assert not worker.run_status(story.ranks(0).state).sdk_inactive


@pytest.mark.trial("B4")
def test_a_script_whose_checkpoints_exist_is_not_called_silent() -> None:
    """One at step 0 counts: the script has called Windfall in this run."""
    first = ref_to("00000000-6-p1", 0)
    story = Story(checkpoints=(first,)).happens(
        ev.CheckpointRestored(first.checkpoint_id, 0, 9, 1.0), ev.ScriptStarted(1)
    )
    story.happens(ev.TimerFired("sdk_inactive"), after=worker.SDK_INACTIVE_AFTER_S)
    assert not worker.run_status(story.state).sdk_inactive


def test_the_interval_follows_the_mean_time_to_preemption() -> None:
    """A change of MTTP during the run moves the planned save."""
    known = SaveCosts(Seconds(1.0), Bytes(1000), Seconds(1.0), Seconds(0.1))
    story = Story(mttp_s=10_800.0, costs=known).happens(ev.EstimatesChanged(unannounced_share=1.0)).starts().measures()
    assert story.the(ev.PublishSave).step == math.floor(math.sqrt(2 * (10_800 + 136.5)))
    story.happens(ev.EstimatesChanged(mttp_s=2_700.0))
    assert story.the(ev.PublishSave).step == math.floor(math.sqrt(2 * (2_700 + 136.5)))
    assert story.the(ev.PublishSave).request == 2


def test_the_interval_follows_the_cost_of_a_save() -> None:
    """Once saves prove to be slow to become durable, none is asked for before the last one is safe."""
    story = Story(mttp_s=60.0).starts().measures(step_s=1.0)
    story.stores(11, request=1, took=400.0)
    assert story.state.request is not None
    assert story.state.request.step >= 11 + 400


def test_a_late_request_is_not_logged() -> None:
    """The rank was past the step when the request came; only two more steps without an answer are logged."""
    story = Story(policy="every:50steps").starts().ranks(80)
    assert story.none(ev.LogMessage)
    assert story.ranks(81).none(ev.LogMessage)
    assert "without asking" in story.ranks(82).the(ev.LogMessage).message


def test_the_users_own_save_resets_the_insurance() -> None:
    """Intervals count from the newest save, requested or not."""
    story = Story(policy="every:50steps").starts()
    assert story.the(ev.PublishSave).step == 50
    story.hands_over(30)
    assert story.the(ev.PublishSave).step == 80


def test_no_save_is_asked_for_by_the_policy_never() -> None:
    """The user wants none."""
    assert Story(policy="never").starts().measures().none(ev.PublishSave)


def test_a_hint_brings_one_save_and_no_end() -> None:
    """A machine at risk saves once, at the next step, and continues."""
    story = Story(policy="never").starts().ranks(3)
    story.happens(ev.NoticeReceived(Notice(NoticeLevel.HINT, "aws", "h")))
    assert story.the(ev.PublishSave).step == 4
    story.stores(4, request=1)
    assert story.state.stage is WorkerStage.RUNNING
    assert story.none(ev.PublishSave, ev.KillScript, ev.ExitAgent)
    story.happens(ev.NoticeReceived(Notice(NoticeLevel.HINT, "aws", "h")))
    assert story.said == ()


# ------------------------------------------------------------------------------------------------------------ agreement


def test_several_ranks_are_asked_for_exactly_one_step_beyond_all_of_them() -> None:
    """The target lies at least two steps and 50 ms beyond the fastest rank."""
    story = Story(policy="every:1steps").starts(ranks=2)
    story.ranks(6, 8)
    asked = story.state.request
    assert asked is not None
    assert asked.exact
    story.measures(step_s=0.01).ranks(20, 22)
    assert story.the(ev.PublishSave).step >= 22 + 5


def test_a_request_that_a_rank_has_already_passed_is_withdrawn_and_made_later() -> None:
    """The observation after the publication sees a rank at the target: not all would save at the same step."""
    story = Story(policy="every:1steps").starts(ranks=2)
    first = story.the(ev.PublishSave)
    story.ranks(first.step - 1, first.step)
    assert story.the(ev.WithdrawSave).request == first.request
    second = story.the(ev.PublishSave)
    assert second.request > first.request
    assert second.step >= first.step + 4


def test_a_late_answer_to_a_withdrawn_request_is_kept() -> None:
    """Its shard may still come, so the checkpoint is not abandoned."""
    story = Story(policy="every:1steps").starts(ranks=2)
    first = story.the(ev.PublishSave)
    story.ranks(first.step - 1, first.step).answers(first.step, first.request, 1)
    assert (known := story.state.request_of(first.request)) is not None
    assert known.answered == (1,)
    assert (pending := story.state.request) is not None
    assert pending.answered == ()


def test_a_checkpoint_waits_for_every_rank() -> None:
    """Nothing is uploaded, let alone committed, before the last rank has handed over."""
    story = Story(policy="every:10steps").starts(ranks=2)
    story.ranks(5, 5).answers(10, 1, 0, 1).hands_over(10, 1, rank=0)
    assert story.none(ev.UploadShard)
    story.hands_over(10, 1, rank=1)
    assert [upload.rank for upload in story.said if isinstance(upload, ev.UploadShard)] == [0, 1]
    story.uploads()
    assert len(story.the(ev.CommitCheckpoint).shards) == 2


def test_ranks_that_name_the_same_folder_share_one_shard() -> None:
    """The lowest rank uploads for all."""
    story = Story(policy="every:10steps").starts(ranks=2).ranks(5, 5).answers(10, 1, 0, 1)
    story.hands_over(10, 1, rank=1, path="/dcp").hands_over(10, 1, rank=0, path="/dcp")
    assert story.the(ev.UploadShard).rank == 0
    assert len(story.uploads().the(ev.CommitCheckpoint).shards) == 1


def test_a_rank_that_agreed_and_moved_on_has_no_shard() -> None:
    """Only rank 0 saves a replicated model, in whichever order the ranks report."""
    story = Story(policy="every:10steps").starts(ranks=2).ranks(5, 5).answers(10, 1, 0, 1)
    story.happens(ev.RankAdvanced(1, 10)).hands_over(10, 1, rank=0)
    assert story.the(ev.UploadShard).rank == 0


def test_a_checkpoint_without_a_dead_ranks_shard_is_never_committed() -> None:
    """The script dies between two hand-overs."""
    story = Story(policy="every:10steps").starts(ranks=2).ranks(5, 5).answers(10, 1, 0, 1).hands_over(10, 1, rank=0)
    story.happens(ev.ScriptExited(137))
    assert story.the(ev.AbandonCheckpoint).checkpoint_id.startswith("00000010-7-")
    assert story.none(ev.UploadShard, ev.CommitCheckpoint)


def test_checkpoints_with_missing_shards_do_not_pile_up() -> None:
    """One rank of two hands over at each step, the other never: the oldest is abandoned with a reason."""
    story = Story(policy="never").starts(ranks=2)
    for step in range(1, handovers.OPEN_MAX + 1):
        story.hands_over(step)
        assert story.none(ev.AbandonCheckpoint)
    story.hands_over(handovers.OPEN_MAX + 1)
    assert story.the(ev.AbandonCheckpoint).checkpoint_id.startswith("00000001-")
    assert "never arrived" in story.the(ev.AbandonCheckpoint).reason


def test_a_rank_that_is_behind_may_still_save_at_a_later_step() -> None:
    """It moved on from step 5 without a save: that says nothing about step 10, which it has not reached."""
    story = Story(policy="never").starts(ranks=2).ranks(10, 5).hands_over(10, rank=0)
    story.happens(ev.RankAdvanced(1, 5))
    assert story.none(ev.AbandonCheckpoint)
    story.hands_over(10, rank=1)
    assert sum(isinstance(command, ev.UploadShard) for command in story.said) == 2


def test_a_rank_that_never_asks_is_named_once() -> None:
    """Every rank must call check_save, otherwise nothing can be agreed."""
    story = Story(policy="every:10steps").starts(ranks=2).ranks(5, 5)
    story.answers(10, 1, 0).hands_over(10, 1, rank=0).ranks(11, 11).ranks(12, 12)
    assert "rank 1" in story.the(ev.LogMessage).message
    assert isinstance(story.the(ev.AbandonCheckpoint), ev.AbandonCheckpoint)


# ---------------------------------------------------------------------------------------------------------- checkpoints


def test_checkpoint_ids_are_unique_and_contain_step_and_term() -> None:
    """`<step>-<term>-<request>.<n>`, or `p<n>` for the user's own."""
    story = Story(policy="every:10steps").starts()
    story.answers(10, 1).hands_over(10, 1)
    assert story.the(ev.UploadShard).checkpoint_id == "00000010-7-1.1"
    story.uploads().commits().hands_over(11, 0, path="/again")
    assert story.the(ev.UploadShard).checkpoint_id == "00000011-7-p2"


def test_only_the_newest_save_waits_for_the_uplink() -> None:
    """An upload in progress is finished; of the waiting saves the newest stays."""
    story = Story(policy="never").starts()
    story.hands_over(1).hands_over(2)
    assert story.none(ev.UploadShard, ev.AbandonCheckpoint)
    story.hands_over(3)
    assert story.the(ev.AbandonCheckpoint).checkpoint_id.startswith("00000002")
    story.uploads().commits()
    assert story.the(ev.UploadShard).path == "/s3/0"


def test_a_failed_upload_is_retried_and_then_given_up_with_a_message() -> None:
    """Three tries with growing pauses."""
    story = Story(policy="never").starts().hands_over(1)
    checkpoint_id = story.the(ev.UploadShard).checkpoint_id
    for pause in (1.0, 2.0):
        story.happens(ev.ShardFailed(checkpoint_id, 0, "no route"))
        wake = story.the(ev.SetTimer)
        assert wake.at == pytest.approx(story.now + pause)
        story.happens(ev.TimerFired(wake.name), after=pause)
        assert story.the(ev.UploadShard).checkpoint_id == checkpoint_id
    story.happens(ev.ShardFailed(checkpoint_id, 0, "no route"))
    assert "no route" in story.the(ev.LogMessage).message
    assert story.the(ev.AbandonCheckpoint).checkpoint_id == checkpoint_id


def test_files_changed_during_the_upload_are_not_committed() -> None:
    """The message says to save into a new file each time."""
    story = Story(policy="never").starts().hands_over(1)
    story.happens(ev.ShardFailed(story.the(ev.UploadShard).checkpoint_id, 0, "changed", Failure.OVERWRITTEN))
    assert "new file" in story.the(ev.LogMessage).message
    assert story.the(ev.AbandonCheckpoint)


def test_a_commit_that_fails_is_tried_a_bounded_number_of_times() -> None:
    """Five tries."""
    story = Story(policy="never").starts().hands_over(1).uploads()
    checkpoint_id = story.the(ev.CommitCheckpoint).checkpoint_id
    for _ in range(checkpoints.COMMIT_TRIES - 1):
        story.happens(ev.CommitFailed(checkpoint_id, "busy"))
        wake = story.the(ev.SetTimer)
        story.happens(ev.TimerFired(wake.name), after=wake.at - story.now)
        assert story.the(ev.CommitCheckpoint).checkpoint_id == checkpoint_id
    story.happens(ev.CommitFailed(checkpoint_id, "busy"))
    assert story.the(ev.AbandonCheckpoint).checkpoint_id == checkpoint_id


def test_superseded_insurance_goes_after_the_grace_and_two_intact_checkpoints_stay() -> None:
    """Of three insurance saves the oldest is deleted after the grace period."""
    story = Story(policy="every:10steps").starts()
    for number, step in enumerate((10, 20, 30), start=1):
        story.stores(step, request=number)
    story.happens(ev.TimerFired("retention"), after=checkpoints.GRACE_S + 1)
    assert [checkpoint.step for checkpoint in story.the(ev.DeleteCheckpoints).checkpoints] == [10]
    assert [checkpoint.step for checkpoint in story.state.live] == [20, 30]


# ------------------------------------------------------------------------------------------------------ stops and exits


def test_a_stop_saves_first() -> None:
    """Save, commit, kill, release as stopped, exit 6."""
    story = trained().happens(ev.RunStopRequested(False, "user"))
    number = story.the(ev.PublishSave).request
    assert story.the(ev.PublishSave).kind is SaveKind.STOP
    story.stores(13, request=number)
    assert story.the(ev.ReleaseRun).cause is Cause.STOPPED
    assert story.the(ev.ExitAgent).code == 6


def test_a_stop_before_the_script_has_called_ends_at_once() -> None:
    """No script is there to save."""
    story = Story().happens(ev.CheckpointRestored(None, 0, 0, 0.0), ev.ScriptStarted(1))
    story.happens(ev.RunStopRequested(False, "user"))
    assert story.the(ev.ExitAgent).code == 6


def test_a_stop_now_stops_now() -> None:
    """No save is waited for."""
    story = trained().happens(ev.RunStopRequested(True, "user"))
    assert story.kinds == [ev.KillScript, ev.ReleaseRun, ev.ExitAgent]


def test_a_script_that_ends_well_is_done_once_its_last_save_is_committed() -> None:
    """Exit 0 waits for what is in flight."""
    story = Story(policy="never").starts().hands_over(9).happens(ev.ScriptExited(0))
    assert story.none(ev.ReleaseRun)
    story.uploads().commits()
    assert story.the(ev.ReleaseRun) == ev.ReleaseRun(Outcome.DONE, Cause.DONE, 0)
    assert story.the(ev.ExitAgent).code == 0


def test_a_script_whose_last_save_could_not_be_stored_is_not_called_done() -> None:
    """Exit code 1 and the missing step: the machine must not be discarded as if everything were stored."""
    story = Story(policy="never").starts().stores(1).hands_over(5)
    checkpoint_id = story.the(ev.UploadShard).checkpoint_id
    story.happens(ev.ShardFailed(checkpoint_id, 0, "changed", Failure.OVERWRITTEN))
    story.happens(ev.ScriptExited(0))
    end, release = story.the(ev.ExitAgent), story.the(ev.ReleaseRun)
    assert (end.code, release.outcome) == (1, Outcome.WAITING)
    assert "step 5 could not be stored" in end.message
    assert "step 1 is stored" in end.message


@pytest.mark.trial("A3")
def test_a_last_save_that_failed_because_of_the_store_asks_for_the_same_command_again() -> None:
    """Exit code 75, as for any unreachable store, and no retry: each try has already waited two minutes."""
    story = Story(policy="never").starts().stores(1).hands_over(5)
    checkpoint_id = story.the(ev.UploadShard).checkpoint_id
    story.happens(ev.ShardFailed(checkpoint_id, 0, "no answer", Failure.UNREACHABLE))
    story.happens(ev.ScriptExited(0))
    assert story.none(ev.ExitAgent)
    story.happens(ev.ShardFailed(checkpoint_id, 0, "no answer", Failure.UNREACHABLE))
    assert (story.the(ev.ExitAgent).code, story.the(ev.ReleaseRun).outcome) == (75, Outcome.WAITING)


def test_an_exit_with_0_after_sigterm_is_not_the_end_of_the_run() -> None:
    """Many scripts exit with 0 on SIGTERM: the run waits for its next machine."""
    story = Story(policy="never").starts().stores(1)
    story.happens(ev.NoticeReceived(Notice(NoticeLevel.ANNOUNCED, "signal", "signal", Instant(story.now + 30.0))))
    story.happens(ev.ScriptExited(0))
    assert story.the(ev.ReleaseRun).outcome is Outcome.WAITING
    assert story.the(ev.ExitAgent).code == 75


def test_a_failing_script_is_restarted_a_bounded_number_of_times() -> None:
    """Two restarts after growing pauses, then the run has failed."""
    story = Story()
    for attempt, pause in ((2, shutdown.RETRY_FIRST_S), (3, 2 * shutdown.RETRY_FIRST_S)):
        story.starts().happens(ev.ScriptExited(1))
        assert story.the(ev.SetTimer).at == pytest.approx(story.now + pause)
        story.happens(ev.TimerFired("retry"), after=pause)
        assert story.the(ev.StartScript).attempt == attempt
    story.starts().happens(ev.ScriptExited(3))
    assert story.the(ev.ReleaseRun) == ev.ReleaseRun(Outcome.FAILED, Cause.SCRIPT_FAILED, 3)
    assert story.the(ev.ExitAgent).code == 1
    assert worker.counts(story.state) == {"attempts": 3, "failures": 3}


def test_a_fenced_machine_stops_at_once_and_stores_nothing_more() -> None:
    """Kill, exit 75; later facts change nothing."""
    story = trained().hands_over(12)
    story.happens(ev.FenceLost(12, "other"))
    assert story.kinds == [ev.KillScript, ev.ExitAgent]
    story.hands_over(14)
    assert story.said == ()


def test_a_script_that_never_calls_windfall_is_logged_once() -> None:
    """After a minute without a page."""
    story = Story().happens(ev.CheckpointRestored(None, 0, 0, 0.0), ev.ScriptStarted(1))
    story.happens(ev.TimerFired("sdk_inactive"), after=worker.SDK_INACTIVE_AFTER_S)
    assert "nothing is saved" in story.the(ev.LogMessage).message


# --------------------------------------------------------------------------------------------------------------- resume


def test_a_restarted_agent_continues_what_was_in_progress() -> None:
    """Uploads, the pending request, notices and timers are issued again; all are idempotent."""
    story = trained().hands_over(12).happens(ev.AgentResumed())
    assert story.the(ev.UploadShard).path == "/s12/0"
    assert story.none(ev.StartScript)
    assert story.the(ev.PublishSave).request == story.state.requests
    assert {name for name, _ in story.state.timers} == {c.name for c in story.said if isinstance(c, ev.SetTimer)}
    story.uploads().happens(ev.AgentResumed())
    assert story.the(ev.CommitCheckpoint)


def test_an_agent_that_died_during_its_final_commands_issues_them_again() -> None:
    """The release may not have been executed."""
    story = trained().happens(ev.RunStopRequested(True, "user"))
    words = story.said
    assert story.happens(ev.AgentResumed()).said == words


def test_a_damaged_checkpoint_does_not_count_as_intact() -> None:
    """The restore fell back by one: the damaged checkpoint must not displace the intact ones."""
    refs = tuple(ref_to(f"0000000{step}-1-1.{step}", step) for step in (1, 2, 3))
    story = Story(policy="every:10steps", checkpoints=refs)
    story.starts(step=2, checkpoint=refs[1].checkpoint_id).stores(12, request=1)
    story.happens(ev.TimerFired("retention"), after=checkpoints.GRACE_S + 1)
    assert {checkpoint.step for checkpoint in story.state.live} == {2, 12}


def test_no_checkpoint_is_deleted_while_a_restore_may_find_newer_ones_damaged() -> None:
    """A restore longer than the grace period deletes nothing; damaged checkpoints do not displace intact ones."""
    refs = tuple(ref_to(f"0000000{step}-1-1.{step}", step) for step in (1, 2, 3))
    story = Story(policy="every:10steps", checkpoints=refs)
    assert story.happens(ev.TimerFired("retention"), after=checkpoints.GRACE_S + 1).none(ev.DeleteCheckpoints)
    story.starts(step=2, checkpoint=refs[1].checkpoint_id)
    assert story.happens(ev.TimerFired("retention"), after=checkpoints.GRACE_S + 1).none(ev.DeleteCheckpoints)
    assert story.state.live == refs
