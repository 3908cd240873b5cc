"""A site that is reached through `ssh` alone: a real sshd in front of a real Slurm."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.slurm.conftest import StartSlurm
from tests.slurm.login_node import KNOWN, STRANGER, login_node
from windfall.cli.locations import local_user
from windfall.errors import ProviderDenied
from windfall.linux.clock import SystemClock
from windfall.market import BootSecret, BootSpec, MachineEndCause, MachineLifecycle, Order
from windfall.providers.slurm.machine_names import job_of
from windfall.providers.slurm.slurm_commands import SiteCommands
from windfall.providers.slurm.slurm_provider import SlurmProvider
from windfall.providers.slurm.slurm_settings import SlurmSettings
from windfall.terms import Seconds

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.timeout(120)]


def test_a_site_behind_ssh(start_slurm: StartSlurm, tmp_path: Path) -> None:
    """Order, list, bill and release through `ssh`, one machine to its end; a secret is in no command line of the login node."""
    cluster, folder = start_slurm(), tmp_path / "it's machines"
    with login_node(cluster, tmp_path / "login") as environ:
        settings = SlurmSettings(folder=folder, login=KNOWN, poll_s=Seconds(0.2), python=sys.executable)
        provider = SlurmProvider(tmp_path, settings, SystemClock(), SiteCommands(KNOWN, environ))
        offer = next(one for one in provider.offers() if one.zone == "low")
        boot = BootSpec(("sh", "-c", 'echo "mine, $KEY"; sleep 1000'), secrets=(BootSecret("KEY", "hush-7741"),))
        order = Order("ssh-1", "own", "job", offer, 1, 1)

        (machine_id,) = provider.order(order, boot).machine_ids
        output = folder / "ssh-1" / "output.log"
        cluster.until(lambda: output.exists() and "mine, hush-7741" in output.read_text(), "its process runs")
        (machine,) = provider.list("own")
        again = provider.order(order, boot)
        provider.release(machine_id)
        cluster.until(lambda: provider.list("own")[0].lifecycle is MachineLifecycle.GONE, "it is gone")
        (gone,) = provider.list("own")
        (line,) = provider.charges("own", "").charges

    assert again.machine_ids == (machine_id,)
    assert machine.lifecycle is MachineLifecycle.RUNNING
    assert gone.cause is MachineEndCause.RELEASED
    assert (line.started, line.ended) == (gone.started, gone.ended)
    assert cluster.processes(job_of(machine_id)) == {}
    assert cluster.run("squeue", "--noheader") == ""


def test_a_refused_key_is_one_sentence(start_slurm: StartSlurm, tmp_path: Path) -> None:
    """The provider says who refused whom and what to do; `windfall run` ends with it, and nothing is in the queue."""
    cluster = start_slurm(nodes=1)
    (tmp_path / "cf" / "windfall").mkdir(parents=True)
    site = {"login": STRANGER, "folder": str(tmp_path / "machines")}
    (tmp_path / "cf" / "windfall" / "config.yaml").write_text(yaml.safe_dump({"providers": {"slurm": site}}))
    (tmp_path / "work").mkdir()
    job = {"name": "stranger", "workdir": str(tmp_path / "work"), "resources": {"infra": "slurm/low"}, "run": "true"}
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))

    with login_node(cluster, tmp_path / "login") as environ:
        settings = SlurmSettings(folder=tmp_path / "machines", login=STRANGER)
        provider = SlurmProvider(tmp_path, settings, SystemClock(), SiteCommands(STRANGER, environ))
        with pytest.raises(ProviderDenied, match="ssh stranger refused this user's key"):
            provider.offers()
        own = {"XDG_STATE_HOME": str(tmp_path / "st"), "XDG_CONFIG_HOME": str(tmp_path / "cf")}
        line = [sys.executable, "-m", "windfall.cli.main", "run", "-y", str(tmp_path / "job.yaml")]
        done = subprocess.run(line, env={**environ, **own}, capture_output=True, text=True, check=False, timeout=60)

    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr == (
        f"windfall: ssh stranger refused this user's key ({local_user()}@127.0.0.1: Permission denied (publickey).): make "
        "`ssh stranger true` work without a password\n"
    )
    assert cluster.run("squeue", "--noheader", "--states=all") == ""
