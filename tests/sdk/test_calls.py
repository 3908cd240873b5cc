"""What each call of the SDK sends to the agent, and what it answers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.fake_agent import FakeAgent
from windfall.sdk.session import Session
from windfall.wire import environment, script_page


def _steps(session: Session, count: int) -> list[int]:
    """Run steps; return the ones at which a save was asked for."""
    return [session.context().step for _ in range(count) if session.step()]


def test_steps_are_counted_on_the_page(session: Session, agent: FakeAgent) -> None:
    """One call of `step` is one complete step, and its end is on the page."""
    words = agent.words()
    session.step()
    session.step()
    assert words[script_page.STEP] == 2
    assert words[script_page.STEP_END_NS] > 0
    assert words[script_page.STEP_START_NS] == 0
    assert script_page.PHASES[words[script_page.PHASE]] == "between"


def test_a_request_is_answered_once_when_its_step_is_reached(session: Session, agent: FakeAgent) -> None:
    """`step` is True at the target and never again for the same request."""
    request = agent.request(3)
    assert _steps(session, 6) == [3]
    words = agent.words()
    assert (words[script_page.ACK], words[script_page.ACK_STEP]) == (request, 3)


def test_a_late_request_is_answered_at_the_next_step(session: Session, agent: FakeAgent) -> None:
    """A request whose step has passed already is answered at the end of the step under way."""
    _steps(session, 5)
    agent.request(2)
    assert _steps(session, 3) == [6]


def test_an_exact_request_that_was_missed_is_never_answered(session: Session, agent: FakeAgent) -> None:
    """Where ranks must agree, a rank past the target does not save at another step."""
    _steps(session, 5)
    agent.request(4, exact=True)
    assert _steps(session, 5) == []
    assert agent.words()[script_page.ACK] == 0
    agent.request(12, exact=True)
    assert _steps(session, 5) == [12]


def test_a_withdrawn_request_is_not_answered(session: Session, agent: FakeAgent) -> None:
    """NEVER as the target takes a request back."""
    agent.request(3)
    agent.words()[script_page.TARGET] = script_page.NEVER
    assert _steps(session, 5) == []


def test_backup_answers_the_request_it_satisfies(session: Session, agent: FakeAgent, tmp_path: Path) -> None:
    """A hand-over names the acknowledged request; a second one at the same step does not."""
    request = agent.request(2)
    assert _steps(session, 2) == [2]
    session.backup(tmp_path / "a.pt")
    session.backup(tmp_path / "b.pt")
    first, second = agent.backups()
    assert (first["seq"], first["request"], first["step"], first["path"]) == (1, request, 2, str(tmp_path / "a.pt"))
    assert (second["seq"], second["request"]) == (2, 0)
    assert agent.words()[script_page.MESSAGES] == 2


def test_a_handover_says_whether_it_was_asked_for(session: Session, agent: FakeAgent) -> None:
    """Asked by `step`, or the user's own: unasked, at an unread request, or kept although asked."""
    session.step()
    session.backup("unasked")
    agent.request(2)
    session.step()
    session.backup("asked")
    agent.request(3)
    session.step()
    session.backup("kept", keep=True)
    session.enter_step()
    agent.request(4)
    session.exit_step()
    session.backup("unread")
    assert [message["own"] for message in agent.backups()] == [True, False, True, True]


def test_backup_satisfies_a_request_that_nobody_asked_about(session: Session, agent: FakeAgent) -> None:
    """`i % n == 0 or check_save()` skips the question: the hand-over still counts as the answer."""
    session.enter_step()
    request = agent.request(1)
    session.exit_step()
    session.backup("model.pt")
    assert agent.backups()[0]["request"] == request
    assert not session.check_save()


def test_a_handover_after_the_next_step_is_the_users_own(session: Session, agent: FakeAgent) -> None:
    """Whoever goes on to the next step has no part at the earlier one."""
    agent.request(1)
    assert session.step()
    session.step()
    session.backup("late.pt")
    assert (agent.backups()[0]["request"], agent.backups()[0]["step"]) == (0, 2)


def test_backup_of_none_says_that_there_is_no_part(session: Session, agent: FakeAgent) -> None:
    """A rank without a part says so instead of keeping the commit waiting."""
    agent.request(1)
    session.step()
    session.backup(None)
    assert agent.backups()[0]["path"] is None


def test_the_stall_runs_from_the_answer_to_the_handover(session: Session, agent: FakeAgent) -> None:
    """The stall is the time since the request was answered; phases in between are told on their own."""
    agent.request(1)
    session.step()
    words = agent.words()
    with session.phase("evaluation"):
        pass
    words[script_page.ACK_NS] -= 5_000_000_000
    words[script_page.STEP_END_NS] -= 6_000_000_000
    session.backup("model.pt")
    assert 4.9e9 < agent.backups()[0]["stall_ns"] < 5.5e9


def test_a_save_is_a_phase_of_its_own(session: Session, agent: FakeAgent) -> None:
    """From the answer to the hand-over the page says `save`."""
    agent.request(1)
    session.step()
    words = agent.words()
    assert script_page.PHASES[words[script_page.PHASE]] == "save"
    session.backup("model.pt")
    assert script_page.PHASES[words[script_page.PHASE]] == "between"


def test_the_start_lasts_until_the_first_step(session: Session, agent: FakeAgent) -> None:
    """Phases inside the start return to it; the first finished step ends it."""
    words = agent.words()
    with session.phase("compile"):
        assert script_page.PHASES[words[script_page.PHASE]] == "compile"
    assert script_page.PHASES[words[script_page.PHASE]] == "start"
    session.step()
    assert script_page.PHASES[words[script_page.PHASE]] == "between"


def test_phases_nest_and_are_written_down(session: Session, agent: FakeAgent) -> None:
    """The inner phase gives way to the outer one, and both durations arrive."""
    words = agent.words()
    session.step()
    with session.phase("evaluation"), session.phase("data"):
        assert script_page.PHASES[words[script_page.PHASE]] == "data"
    assert script_page.PHASES[words[script_page.PHASE]] == "between"
    assert [message["name"] for message in agent.messages()] == ["data", "evaluation"]


def test_an_unknown_phase_is_refused_by_name(session: Session) -> None:
    """The sentence names the wrong word and the right ones."""
    with pytest.raises(ValueError, match="unknown phase 'eval': use one of evaluation, compile, data, save"):
        session.phase("eval")


def test_the_body_of_steps_is_a_step(session: Session, agent: FakeAgent) -> None:
    """`check_save` inside the body speaks of the state after this very step."""
    agent.request(2)
    saved = [(item, session.context().step) for item in session.steps([10, 20, 30]) if session.check_save()]
    assert saved == [(20, 2)]
    assert agent.words()[script_page.STEP] == 3


def test_a_body_that_was_left_is_not_a_step(session: Session, agent: FakeAgent) -> None:
    """A `break` before any call leaves the step incomplete; one after `check_save` has completed it."""
    for _ in session.steps([1, 2]):
        break
    assert agent.words()[script_page.STEP] == 0
    for _ in session.steps([1, 2]):
        session.check_save()
        break
    assert agent.words()[script_page.STEP] == 1


def test_step_inside_steps_counts_once(session: Session, agent: FakeAgent) -> None:
    """`step()` in the body of `steps` is the end of the same step, not another one."""
    for _ in session.steps(range(4)):
        session.step()
    assert agent.words()[script_page.STEP] == 4


def test_a_step_left_by_an_exception_is_not_complete(session: Session, agent: FakeAgent) -> None:
    """The count of complete steps never includes one that raised."""
    with pytest.raises(RuntimeError), session.step_context():
        raise RuntimeError
    assert agent.words()[script_page.STEP] == 0


def test_a_script_that_never_resumes_counts_from_zero(environ: dict[str, str]) -> None:
    """The restored step is taken up only by who asks for the checkpoint."""
    stubborn = Session(environ | {environment.STEP: "40"})
    assert _steps(stubborn, 1) == []
    assert stubborn.context().step == 1


def test_steps_go_on_from_the_restored_checkpoint(environ: dict[str, str], agent: FakeAgent, tmp_path: Path) -> None:
    """Once `last` has given a path, the count includes the restored steps."""
    restored = tmp_path / "model.pt"
    restored.write_text("x")
    session = Session(environ | agent.environment(restored=str(restored), step=40))
    assert session.last() == str(restored)
    session.step()
    session.last()
    assert session.context().step == 41


def test_a_rank_restores_its_own_part(environ: dict[str, str], tmp_path: Path) -> None:
    """A rank's own shard goes before the lowest rank's, which serves those that had none."""
    for rank in (0, 1):
        (tmp_path / "checkpoint" / str(rank)).mkdir(parents=True)
        (tmp_path / "checkpoint" / str(rank) / f"part-{rank}").write_text("x")
    lowest = str(tmp_path / "checkpoint" / "0" / "part-0")
    variables = environ | {environment.CHECKPOINT_DIR: str(tmp_path / "checkpoint"), environment.CHECKPOINT: lowest}
    found = [Session(variables | {"RANK": str(rank)}).last() for rank in range(3)]
    assert found == [lowest, str(tmp_path / "checkpoint" / "1" / "part-1"), lowest]


def test_last_is_none_on_a_fresh_start_or_when_the_file_is_gone(environ: dict[str, str], tmp_path: Path) -> None:
    """There is never a path behind which nothing is."""
    assert Session(environ).last() is None
    assert Session(environ | {environment.CHECKPOINT: str(tmp_path / "gone")}).last() is None


def test_notice_has_a_level_and_the_time_left(session: Session, agent: FakeAgent) -> None:
    """None without a notice or after its withdrawal; a hint has no deadline."""
    words = agent.words()
    assert session.notice() is None
    words[script_page.NOTICE] = script_page.LEVELS.index("hint")
    assert session.notice() == ("hint", None)
    words[script_page.DEADLINE_NS] = words[script_page.PHASE_SINCE_NS] + 3_600_000_000_000
    words[script_page.NOTICE] = script_page.LEVELS.index("announced")
    notice = session.notice()
    assert notice is not None
    assert notice.seconds_left is not None
    assert 3500 < notice.seconds_left <= 3600
    words[script_page.NOTICE] = script_page.LEVELS.index("withdrawn")
    assert session.notice() is None


def test_reports_are_numbers_where_they_can_be(session: Session, agent: FakeAgent) -> None:
    """What has `__float__`, a tensor say, arrives as a number, the rest as text."""

    class Scalar:
        def __float__(self) -> float:
            return 0.25

    session.report(loss=Scalar(), lr=1e-3, note=Path("a"))
    (message,) = agent.messages()
    assert (message["type"], message["metrics"]) == ("report", {"loss": 0.25, "lr": 0.001, "note": "a"})


def test_the_launchers_rank_names_the_page(environ: dict[str, str], agent: FakeAgent) -> None:
    """torchrun's variables decide which page a process has and how many there will be."""
    session = Session(environ | {"RANK": "5", "LOCAL_WORLD_SIZE": "2"})
    words = agent.words(rank=5)
    assert (session.context().rank, words[script_page.RANK], words[script_page.LOCAL_WORLD]) == (5, 5, 2)


def test_the_users_own_handover_before_the_target_answers_nothing(session: Session, agent: FakeAgent) -> None:
    """A hand-over at step 2 is not what was asked for at step 4."""
    agent.request(4)
    assert _steps(session, 2) == []
    session.backup("early.pt")
    assert (agent.backups()[0]["request"], agent.words()[script_page.ACK]) == (0, 0)
    assert _steps(session, 4) == [4]


class Racing:
    """A page on which the agent changes the request at the moment when one of its words is read."""

    def __init__(self, words: memoryview, word: int) -> None:
        self.words = words
        self.word = word

    def __getitem__(self, word: int) -> int:
        value = self.words[word]
        if word == self.word:
            script_page.publish(self.words, request=2, target=script_page.NEVER, exact=False, kind=1)
        return value

    def __setitem__(self, word: int, value: int) -> None:
        self.words[word] = value


@pytest.mark.parametrize("word", [script_page.TARGET, script_page.REQUEST, script_page.EXACT])
def test_a_request_that_changes_while_it_is_read_is_not_answered(session: Session, agent: FakeAgent, word: int) -> None:
    """Half of the old request and half of the new one is no request."""
    agent.request(1)
    words = agent.words()
    session._words = Racing(words, word)
    assert not session.step()
    assert words[script_page.ACK] == 0
