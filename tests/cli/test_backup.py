"""`windfall backup` and the shell's side of a run."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.live import FAST, WINDFALL, new_run, plain_environment
from windfall.cli.backup import hand_over
from windfall.errors import Misuse
from windfall.events import ShardHandedOver
from windfall.terms import Cause, SaveKind
from windfall.wire import environment, script_page

# A trainer in bash: its state is the number of steps done; it saves at step 5, at the end and when a notice arrives.
SHELL_TRAINER = r"""
done=0
if [ -n "$WINDFALL_CHECKPOINT" ]; then done=$(cat "$WINDFALL_CHECKPOINT"); echo "resumed at $done"; fi
while [ "$done" -lt "$STEPS" ]; do
  sleep 0.1; done=$((done + 1)); echo "step $done"
  if [ -e "$WINDFALL_NOTICE_FILE" ]; then echo "notice: $(cat "$WINDFALL_NOTICE_FILE")"; fi
  if [ "$done" -eq "$STEPS" ] || [ "$done" -eq 5 ] || [ -e "$WINDFALL_NOTICE_FILE" ]; then
    echo "$done" > "state-$done"
    eval $WINDFALL backup --step $done state-$done || exit 1
  fi
done
echo "finished at $done"
"""


@pytest.mark.real
def test_a_bash_script_saves_at_a_notice_and_resumes_on_the_next_machine(tmp_path: Path) -> None:
    """A shell script sees the notice as a file, hands its state over, and the next machine goes on from it."""
    run = new_run(tmp_path)
    script = tmp_path / "train.sh"
    script.write_text(SHELL_TRAINER)
    with run.machine("bash", str(script), WINDFALL=shlex.join(WINDFALL), STEPS="1000") as first:
        first.until("step 6")
        assert run.say("inject", run.url, "--notice", "10s").returncode == 0
        assert first.code() == 75, first.text

    assert '"level": "announced"' in first.text
    checkpoint = run.state().checkpoints[-1]
    assert checkpoint.kind is SaveKind.PERIODIC  # a save of its own stays, whatever it answered
    assert run.state().losses[-1].cause is Cause.PREEMPTED_SAVED
    with run.machine("bash", str(script), WINDFALL=shlex.join(WINDFALL), STEPS=str(checkpoint.step + 5)) as second:
        assert second.code() == 0, second.text
    assert f"resumed at {checkpoint.step}\n" in second.text
    assert f"\nstep {checkpoint.step}\n" not in second.text
    assert f"finished at {checkpoint.step + 5}" in second.text


def test_outside_a_run_a_hand_over_does_nothing(tmp_path: Path) -> None:
    """The same script runs without Windfall: the hand-over says so and succeeds."""
    (tmp_path / "state").write_text("7")

    command = [*WINDFALL, "backup", str(tmp_path / "state")]
    done = subprocess.run(command, env=plain_environment(), capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout) == (0, "")
    assert "not inside `windfall exec`" in done.stderr


@pytest.fixture
def session(tmp_path: Path) -> dict[str, str]:
    """An attempt's session folder, as the script's environment names it."""
    return {environment.SESSION: str(tmp_path), environment.STEP: "20"}


def test_without_a_number_each_hand_over_is_one_step_further(session: dict[str, str], tmp_path: Path) -> None:
    """Steps count on from the restored checkpoint's."""
    hand_over(session, str(tmp_path), "/a", None)
    hand_over(session, str(tmp_path), "/b", None)

    words = script_page.attach(str(tmp_path / script_page.page_name(0)))
    assert (words[script_page.STEP], words[script_page.MESSAGES]) == (22, 2)


def test_a_hand_over_answers_the_request_that_it_reaches(session: dict[str, str], tmp_path: Path) -> None:
    """A pending request is satisfied by the first hand-over at or after its step, once."""
    hand_over(session, str(tmp_path), "/a", 21)
    words = script_page.attach(str(tmp_path / script_page.page_name(0)))
    script_page.publish(words, request=5, target=30, exact=False, kind=3)

    answers = []
    for step in (29, 31, 32):
        hand_over(session, str(tmp_path), "/b", step)
        answers.append((words[script_page.ACK], words[script_page.ACK_STEP]))

    assert answers == [(0, 0), (5, 31), (5, 31)]


def test_a_rank_that_was_asked_for_another_step_does_not_answer(session: dict[str, str], tmp_path: Path) -> None:
    """Where several ranks agreed on a step, only that step satisfies the request."""
    hand_over(session, str(tmp_path), "/a", 21)
    words = script_page.attach(str(tmp_path / script_page.page_name(0)))
    script_page.publish(words, request=5, target=30, exact=True, kind=3)

    hand_over(session, str(tmp_path), "/b", 31)

    assert words[script_page.ACK] == 0


def test_the_step_never_goes_back(session: dict[str, str], tmp_path: Path) -> None:
    """A smaller step than the last one is refused, and nothing is handed over."""
    hand_over(session, str(tmp_path), "/a", 30)

    with pytest.raises(Misuse, match="steps cannot go back"):
        hand_over(session, str(tmp_path), "/b", 29)

    assert script_page.attach(str(tmp_path / script_page.page_name(0)))[script_page.MESSAGES] == 1


def test_a_script_that_uses_the_sdk_hands_over_through_it(session: dict[str, str], tmp_path: Path) -> None:
    """Two writers of one page would lose messages: the second is told where to hand over."""
    code = "import sys, windfall as wf; wf.step(); print('ready', flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", code], env=plain_environment() | session, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        try:
            with pytest.raises(Misuse, match=r"call wf\.backup"):
                hand_over(session, str(tmp_path), "/a", None)
        finally:
            process.stdin.close()


@pytest.mark.real
def test_hand_overs_at_one_moment_do_not_lose_each_other(tmp_path: Path) -> None:
    """Calls side by side wait for one another: as many points are handed over as calls were made."""
    run = new_run(tmp_path)
    calls = " & ".join(f"(echo {n} > s{n}; eval $WINDFALL backup s{n})" for n in range(4))
    with run.machine("bash", "-c", f"{calls} & wait", WINDFALL=shlex.join(WINDFALL), options=FAST) as machine:
        assert machine.code() == 0, machine.text

    handed = [fact for fact in run.facts(ShardHandedOver) if isinstance(fact, ShardHandedOver)]
    assert sorted(fact.step for fact in handed) == [1, 2, 3, 4]
