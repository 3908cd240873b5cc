"""Uploads that the store, or the checkpoint itself, refuses."""

from __future__ import annotations

from tests.core.story import Story, ref_to
from windfall import events as ev
from windfall.terms import Failure, SaveKind


def test_a_full_store_deletes_superseded_checkpoints_at_once() -> None:
    """Without free space there is no grace period; the next try uses the freed space."""
    stored = tuple(ref_to(f"{step:08d}-6-p1", step, SaveKind.PERIODIC) for step in (10, 20, 30, 40))
    story = (
        Story(policy="never", keep=2, checkpoints=stored)
        .starts(step=40, checkpoint=stored[-1].checkpoint_id)
        .hands_over(50)
    )
    failed = ev.ShardFailed(story.the(ev.UploadShard).checkpoint_id, 0, "no room left", Failure.FULL)
    story.happens(failed)
    assert story.the(ev.DeleteCheckpoints).checkpoints == stored[:2]
    wake = story.the(ev.SetTimer)
    story.happens(ev.TimerFired(wake.name), after=1.0)
    assert story.the(ev.UploadShard).checkpoint_id == failed.checkpoint_id
    story.happens(failed)
    assert not [command for command in story.said if isinstance(command, ev.DeleteCheckpoints)]


def test_a_refused_shard_is_given_up_at_once_with_the_scripts_paths() -> None:
    """A retry changes nothing, and the waiting save must not replace it before a message is logged."""
    story = Story(policy="never").starts()
    story.happens(ev.ShardHandedOver(0, 1, 0, "/held/ck", 100, 0.0, "", "/mine/ck"))
    checkpoint_id = story.the(ev.UploadShard).checkpoint_id
    story.happens(ev.ShardFailed(checkpoint_id, 0, "/held/ck/best is a link to /data", Failure.REFUSED))
    said = "/mine/ck/best is a link to /data"
    assert said in story.the(ev.LogMessage).message
    assert (story.the(ev.AbandonCheckpoint).checkpoint_id, story.the(ev.AbandonCheckpoint).reason) == (
        checkpoint_id,
        said,
    )
