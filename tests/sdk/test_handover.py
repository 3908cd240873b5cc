"""Scripts in other languages hand over through a command, each call a process of its own."""

from __future__ import annotations

import pytest

from tests.support.fake_agent import FakeAgent, finish
from windfall.sdk.handover import hand_over
from windfall.sdk.session import Session
from windfall.wire import environment

COMMAND = "import os, sys; from windfall.sdk.handover import hand_over; print(hand_over(os.environ, sys.argv[1]))"


@pytest.mark.real
def test_each_call_is_a_handover_of_its_own(agent: FakeAgent) -> None:
    """Calls are counted on from the restored step, in one message file."""
    for name in ("a", "b"):
        assert finish(agent.start(COMMAND, name, **{environment.STEP: "40"})) == "True\n"
    assert [(backup["seq"], backup["step"]) for backup in agent.backups()] == [(1, 41), (2, 42)]


def test_a_script_with_a_page_hands_over_by_itself(session: Session, environ: dict[str, str], agent: FakeAgent) -> None:
    """The command says so instead of writing into somebody else's page; outside a session it says so too."""
    variables = environ | {"RANK": "1"}
    assert (
        finish(
            agent.start(
                f"import windfall as wf, subprocess, sys\nwf.step()\n"
                f"print(subprocess.run([sys.executable, '-c', {COMMAND!r}, 'x'], capture_output=True, "
                f"text=True).stdout, end='')",
                RANK="2",
            )
        )
        == "False\n"
    )
    assert hand_over(variables, "x")
    assert not hand_over({}, "x")
