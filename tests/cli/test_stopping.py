"""`windfall stop URL`: what it says is so, whoever holds the run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.live import new_run


@pytest.mark.real
def test_what_stop_says_of_a_run_is_so(tmp_path: Path) -> None:
    """Of one that trains, of one that nobody holds, of one that is done: none of them waits for a machine."""
    run = new_run(tmp_path)
    machine = run.train(STEPS="100000")
    machine.until("step 3")
    stopped = run.say("stop", run.url, "--now")
    machine.code()
    listed = run.say("ps", run.url).stdout
    again, taken = run.say("stop", run.url), run.say("inject", run.url, "--notice", "none")
    last = run.train(STEPS="3")
    assert last.code() == 0, last.text
    done = run.say("stop", run.url)

    assert "stopped" in listed.split()
    resume = f"resume with `windfall exec {run.url}`"
    assert stopped.stdout.startswith("stopped after ")
    assert stopped.stdout.endswith(f"; {resume}\n")
    assert again.stdout == f"nothing to stop: no machine holds the run; {resume}\n"
    assert (taken.returncode, taken.stderr) == (
        2,
        f"windfall: nothing to preempt at {run.url}: no machine holds the run; {resume}\n",
    )
    assert done.stdout == "nothing to stop: the run is done\n"
