"""Which checkpoints are the user's own: they are committed as periodic and stay, even if a save was requested at their step."""

from __future__ import annotations

import pytest

from tests.core.story import Story
from windfall import events as ev
from windfall.terms import SaveKind


def own(story: Story, step: int) -> Story:
    return story.ranks(step).stores(step)


def asked(story: Story, step: int, *, says_own: bool = False) -> SaveKind:
    """A save at the step of a request: how it is committed."""
    request = story.state.requests
    assert request, "a save was asked for"
    story.ranks(step).answers(step, request)
    story.happens(ev.ShardHandedOver(0, step, request, f"/s{step}", 1000, 0.1, unrequested=says_own)).uploads()
    kind = story.the(ev.CommitCheckpoint).kind
    story.commits()
    return kind


def every_ten() -> Story:
    return Story(policy="every:10steps").starts().measures()


def test_a_save_that_was_asked_for_alone_may_go() -> None:
    """Nothing says that the script would have saved here."""
    assert asked(every_ten(), 10) is SaveKind.INSURANCE


def test_a_save_that_says_so_is_the_user_s_own() -> None:
    """It still answers what was asked for."""
    story = every_ten()
    assert asked(story, 10, says_own=True) is SaveKind.PERIODIC
    assert story.state.request is None or story.state.request.step > 10


@pytest.mark.parametrize(("step", "kind"), [(16, SaveKind.PERIODIC), (15, SaveKind.INSURANCE)])
def test_a_save_at_the_next_of_the_user_s_evenly_spaced_steps_is_the_user_s_own(step: int, kind: SaveKind) -> None:
    """Own saves at 4 and 10: one that was asked for at 16 is one of them, one at 15 is not."""
    story = own(own(every_ten(), 4), 10)
    assert asked(story.ranks(step - 1), step) is kind


def several(story: Story) -> Story:
    """The first path of a step is stored, two more wait to see what they are."""
    own(story, 5)
    return story.hands_over(5, path="/a/model").hands_over(5, path="/b/model")


def test_insurance_gives_way_to_a_save_of_the_users_own_that_waits() -> None:
    """While the uplink is busy: one of about the same time is enough, and theirs stays."""
    story = Story(policy="every:10steps").starts().measures().hands_over(5).hands_over(9)
    request = story.state.request
    assert request is not None
    story.ranks(request.step - 1).answers(request.step, request.number).hands_over(request.step, request.number)
    assert "user's own save" in story.the(ev.AbandonCheckpoint).reason
    assert [checkpoint.step for checkpoint in story.state.checkpoints] == [5, 9]


def test_a_second_path_at_a_step_is_logged_at_once() -> None:
    """Not only when its step has ended."""
    said = several(every_ten().starts()).rows[-2].commands[-1]
    assert isinstance(said, ev.LogMessage)
    assert "another path at step 5" in said.message


@pytest.mark.parametrize("end", ["stop", "notice"])
def test_what_waits_to_be_clear_is_stored_before_an_end(end: str) -> None:
    """A stop or a notice amid the step: it is stored as a result, under a name of its own, and then comes the release."""
    story = several(every_ten())
    if end == "stop":
        story.happens(ev.RunStopRequested(False, "test"))
    else:
        story.notice(600.0)
    assert [result.result for result in story.state.results] == ["a-model", "model"]
    assert story.none(ev.ReleaseRun)
