"""A run that went through a preemption, made once for all tests that only read it."""

from __future__ import annotations

import pytest

from tests.support.live import Run, new_run


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run of two machines: the first was taken with a notice, the second finished."""
    run = new_run(tmp_path_factory.mktemp("finished"))
    first = run.train(STEPS="5000", EVERY="20")
    try:
        first.until("step 25")
        assert run.say("inject", run.url, "--notice", "10s").returncode == 0
        assert first.code() == 75, first.text
    finally:
        first.process.kill()
    second = run.train(STEPS=str(run.state().checkpoints[-1].step + 20))
    assert second.code() == 0, second.text
    return run
