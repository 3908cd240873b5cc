"""Pains of others: runs that ended falsely, uploads that stopped unseen, histories in pieces."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from tests.contracts.servers import fake_bucket, google_environment
from tests.support.live import Run, eventually, fast, undisturbed
from windfall.terms import Cause, Outcome

pytestmark = pytest.mark.real
NO_INSURANCE = fast("--policy", "never")
PRINT = "print(*(f'{name}={os.environ.get(name)}' for name in %r), flush=True)"


def test_uploads_stop_and_nobody_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not here: when the bucket is full it is said while the script runs; when there is room again, saves go on."""
    with fake_bucket() as (endpoint, bucket):
        environment = google_environment(endpoint)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        run = Run(tmp_path, "gs://lab/run", [])
        gate = "while state['step'] == 60 and not os.path.exists('go on'): time.sleep(0.01)"
        machine = run.train(STEPS="80", EVERY="20", AT_STEP=gate, options=NO_INSURANCE, **environment)
        try:
            eventually(lambda: any("/checkpoints/" in key for key in bucket.objects), "a checkpoint")
            bucket.full = True
            machine.until("no space left")
            bucket.full = False
            (machine.folder / "go on").write_text("")
            assert machine.code() == 0, machine.text
        finally:
            machine.process.kill()
        assert run.state().checkpoints[-1].step == 80


def test_a_cancel_does_not_wait_for_the_upload(run: Run) -> None:
    """Not here: `stop` returns when what was saved is durable, and says for how long it waited and what is stored."""
    big = """
plain_save = save
def save():
    path = plain_save()
    open(path, "a").write(" " * 600_000)
    return path
"""
    machine = run.train(STEPS="5000", AT_START=big, options=(*NO_INSURANCE, "--uplink", "300KB/s"))
    machine.until("step 10")
    started = time.monotonic()
    stopped = run.say("stop", run.url)
    took_s = time.monotonic() - started

    assert stopped.returncode == 0, stopped.stderr
    (checkpoint,) = run.state().checkpoints
    assert took_s > 1.5, "0.6 MB over 300 KB/s"
    said = (
        rf"stopped after [\d.]+ s \(last checkpoint: step {checkpoint.step}\); resume with `windfall exec {run.url}`\n"
    )
    assert re.fullmatch(said, stopped.stdout), stopped.stdout
    assert machine.code() == 6, machine.text


def test_the_launcher_kills_after_thirty_seconds_although_more_was_given(run: Run) -> None:
    """Not here: the launcher below gets the whole grace, unless the user decided otherwise."""
    show = PRINT % (("TORCH_ELASTIC_SHUTDOWN_TIMEOUT",),)
    first = run.train(STEPS="1", AT_START=show, options=fast("--grace", "10m"))
    assert first.code() == 0
    assert "TORCH_ELASTIC_SHUTDOWN_TIMEOUT=600" in first.text


def test_what_the_user_decided_for_the_launcher_stays(run: Run) -> None:
    """A time limit that the user set for the launcher is not overwritten."""
    show = PRINT % (("TORCH_ELASTIC_SHUTDOWN_TIMEOUT",),)
    first = run.train(STEPS="1", AT_START=show, TORCH_ELASTIC_SHUTDOWN_TIMEOUT="45")
    assert first.code() == 0
    assert "TORCH_ELASTIC_SHUTDOWN_TIMEOUT=45" in first.text


def test_each_restart_becomes_a_new_run_of_the_tracker(run: Run) -> None:
    """Not here: over a failure, a preemption and a new machine the tracker is told one and the same run."""
    show = PRINT % (("WANDB_RUN_ID", "WANDB_RESUME", "WINDFALL_ATTEMPT"),)
    fail = "if os.environ['WINDFALL_ATTEMPT'] == '1' and state['step'] == 6: sys.exit(9)"
    first = run.train(STEPS="5000", EVERY="5", AT_START=show, AT_STEP=fail)
    first.until("WINDFALL_ATTEMPT=2")
    first.until("step 12")
    first.process.terminate()
    assert first.code() == 75, first.text
    second = run.train(STEPS=str(run.state().checkpoints[-1].step + 3), AT_START=show)

    assert second.code() == 0, second.text
    told = re.findall(r"WANDB_RUN_ID=(\w+) WANDB_RESUME=(\w+) WINDFALL_ATTEMPT=(\d)", first.text + second.text)
    assert told == [(run.state().run_id, "allow", str(attempt)) for attempt in (1, 2, 3)]


def test_retry_on_preemption_cannot_be_told_from_retry_on_my_bug(run: Run, tmp_path: Path) -> None:
    """Not here: machines may vanish more often than the script may fail, and the run still finishes."""
    for number in range(4):
        machine = run.train(STEPS="60", EVERY="5", options=(*NO_INSURANCE, "--max-failures", "2"))
        machine.until(f"step {10 * (number + 1)}")
        machine.vanish()
    last = run.train(STEPS="60", EVERY="5", options=(*NO_INSURANCE, "--max-failures", "2"))

    assert last.code() == 0, last.text
    state = run.state()
    assert (state.preemptions, state.failures, state.outcome) == (4, 0, Outcome.DONE)
    assert undisturbed(tmp_path, 60) in last.text


def test_a_bug_is_retried_for_ever_as_if_it_were_a_preemption(run: Run) -> None:
    """Not here: a script that fails by itself is started again a bounded number of times, then the run has failed."""
    machine = run.train(AT_START="print('started', flush=True); sys.exit(3)", options=fast("--max-failures", "2"))

    assert machine.code() == 1, machine.text
    assert machine.text.count("started\n") == 2
    assert (run.state().outcome, run.state().losses[-1].cause) == (Outcome.FAILED, Cause.SCRIPT_FAILED)
    assert "the script failed 2 times, last with exit code 3" in machine.text
