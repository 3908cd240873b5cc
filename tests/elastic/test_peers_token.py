"""The secret by which machines of an elastic training know each other."""

from __future__ import annotations

from windfall.control.planner import boot_data
from windfall.jobs import Job, Resources, RuntimeSpec
from windfall.wire.boot_data import missing_secrets
from windfall.wire.environment import PEERS_TOKEN


def test_a_machine_whose_controller_is_away_waits_for_the_secret() -> None:
    """Its boot data is in the store, and its secret is not: without it the program would fail, and with it the job."""
    job = Job("j", "job", "ada", "file:///r", ("train",), resources=(Resources(),), runtime=RuntimeSpec("elastic", {}))
    boot = boot_data(job)

    assert missing_secrets(boot, ()) == (PEERS_TOKEN,)
    assert missing_secrets(boot, ((PEERS_TOKEN, "x"),)) == ()
