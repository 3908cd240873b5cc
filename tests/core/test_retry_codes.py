"""Exit codes that ask for another start."""

from __future__ import annotations

from tests.core.story import Story
from windfall import events as ev


def _fails(story: Story, status: int) -> bool:
    """Let the script end, and return whether it is started again."""
    story.happens(ev.ScriptExited(status), after=10.0)
    story.happens(ev.TimerFired("retry"), after=120.0)
    if not any(isinstance(command, ev.StartScript) for command in story.said):
        return False
    story.starts()
    return True


def test_a_code_that_asks_for_another_start_is_never_a_failure() -> None:
    """The run continues however often it happens, and other failures are still counted from zero."""
    story = Story(retry_codes=(33,), failures_max=2).starts()
    assert all(_fails(story, 33) for _ in range(10))
    assert story.state.failures == 0
    assert _fails(story, 1)
    assert not _fails(story, 1)
