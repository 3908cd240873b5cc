"""Job files that a real Slurm cannot serve: one sentence each, an exit code, and nothing left in the queue."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.slurm.cluster import SlurmCluster, no_slurm
from tests.slurm.configuration import ClusterSettings
from tests.slurm.conftest import StartSlurm
from windfall.errors import EXIT_INFEASIBLE

pytestmark = [pytest.mark.slow, pytest.mark.real, pytest.mark.timeout(300)]


@dataclass
class Cli:
    """Windfall's command line for one cluster, with state of its own."""

    lab: Path
    environ: Mapping[str, str]

    def __call__(
        self,
        verb: str,
        *options: str,
        config: str = "poll: 1s",
        resources: Mapping[str, Any] | None = None,
        **slurm: Any,
    ) -> tuple[int, str, str]:
        """Run a verb on a job with these settings; its exit code, what it printed, and its last word on standard error."""
        folder = self.lab / "cf" / "windfall"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.yaml").write_text(f"providers: {{slurm: {{{config}}}}}\n")
        job = {"name": "bad", "resources": dict(resources or {"infra": "slurm/low"}), "run": "true"}
        (self.lab / "job.yaml").write_text(yaml.safe_dump(job | ({"slurm": slurm} if slurm else {})))
        line = [sys.executable, "-m", "windfall.cli.main", verb, *options, str(self.lab / "job.yaml")]
        done = subprocess.run(line, env=dict(self.environ), cwd=self.lab, capture_output=True, text=True, check=False)
        said = done.stderr.strip().splitlines()
        return done.returncode, re.sub(r"\s+", " ", done.stdout), said[-1] if said else ""


def cli(cluster: SlurmCluster, lab: Path) -> Cli:
    """The command line where this cluster's commands are."""
    ours = {"XDG_STATE_HOME": str(lab / "st"), "XDG_CONFIG_HOME": str(lab / "cf"), "TZ": "UTC"}
    return Cli(lab, cluster.environment() | ours)


def queue(cluster: SlurmCluster) -> str:
    """What is in the queue and has not ended."""
    return cluster.run("squeue", "--noheader", "--format=%j %T")


ACCOUNTS = "one of lab, root" if os.geteuid() == 0 else "lab"
"""The tests' user has the first one; Slurm gives its root the other."""


@pytest.fixture(scope="module")
def small() -> Iterator[SlurmCluster]:
    """One node, jobs of ten minutes at most, no accounting."""
    if reason := no_slurm():
        pytest.skip(reason)
    with SlurmCluster(ClusterSettings(nodes=1, low={"MaxTime": "10"})) as found:
        yield found


@pytest.fixture(autouse=True)
def _counted(request: pytest.FixtureRequest, record_property: Callable[[str, object], None]) -> None:
    """Count the tests that use a cluster of this module."""
    for name in {"small", "kept"} & set(request.fixturenames):
        record_property("slurm", request.getfixturevalue(name).run("sinfo", "--version"))


REFUSED: tuple[tuple[dict[str, Any], dict[str, Any], str], ...] = (
    (
        {"infra": "slurm/nope"},
        {},
        "slurm offers nothing in nope: write `infra: slurm/high`, or another of high, low",
    ),
    (
        {"infra": "slurm/low"},
        {"gres": "gpu:h100:1"},
        (
            "Slurm refuses the job: no node of the partition low has the slurm.gres gpu:h100:1: its nodes have no GPUs, and "
            "`sinfo -o '%P %G'` lists the rest"
        ),
    ),
    (
        {"infra": "slurm/low"},
        {"constraint": "nope"},
        (
            "Slurm refuses the job: no node of the partition low has the slurm.constraint nope: `sinfo -o '%P %f'` lists what "
            "there is"
        ),
    ),
    (
        {"infra": "slurm/low"},
        {"cpus": 64},
        "Slurm refuses the job: no node of the partition low (1c0.5g) has slurm.cpus 64: ask for less",
    ),
    (
        {"infra": "slurm/low"},
        {"time": "3h"},
        "slurm.time is 3 h, and the partition low ends jobs after 10 min: ask for less, or name another partition",
    ),
)


@pytest.mark.parametrize(("resources", "block", "says"), REFUSED)
@pytest.mark.parametrize("verb", ["plan", "run"])
def test_what_can_never_run_is_refused_before_it_is_submitted(
    small: SlurmCluster, tmp_path: Path, verb: str, resources: dict[str, Any], block: dict[str, Any], says: str
) -> None:
    """The wrong value, and what to write instead; by `plan` and by `run`, with the exit code of what cannot be done."""
    options = ("-y", "-d") if verb == "run" else ()
    code, _, said = cli(small, tmp_path)(verb, *options, resources=resources, **block)

    assert (code, said) == (EXIT_INFEASIBLE, f"windfall: {says}")
    assert queue(small) == ""


def test_without_accounting_accounts_have_no_effect_and_that_is_said(small: SlurmCluster, tmp_path: Path) -> None:
    """Slurm takes any account there; the plan is made, and warns."""
    code, printed, _ = cli(small, tmp_path)("plan", account="physics")

    assert code == 0
    assert "slurm.account physics has no effect: this cluster has no accounting" in printed


def test_a_plan_says_when_slurm_would_start_it(small: SlurmCluster, tmp_path: Path) -> None:
    """At once on an empty cluster; behind a job of five minutes, when that must end."""
    ask = cli(small, tmp_path)
    free = ask("plan")[1]
    job = small.submit("sleep 1000", "--partition=high", "--time=5")
    small.until(lambda: small.state(job) == "RUNNING", "the node is taken")
    try:
        taken = ask("plan")[1]
        ends = datetime.fromisoformat(small.job_field(job, "EndTime"))
    finally:
        small.run("scancel", job)
    small.until(small.all_idle, "the node is free")

    assert "start at once: Slurm's own estimate (`sbatch --test-only`)" in free
    found = re.search(r"start at (\d\d):(\d\d), in (\d+) min: Slurm's own estimate", taken)
    assert found, taken
    said = int(found[1]) * 60 + int(found[2])
    utc = datetime.fromtimestamp(ends.timestamp(), tz=UTC)
    assert said - (utc.hour * 60 + utc.minute) in {0, 1}
    assert int(found[3]) in {4, 5, 6}
    assert "hours cost nothing; 1 billing unit an hour" in free
    assert "preemption" in free
    assert re.search(r"expected in each 24 h of work \(assumed: [^)]*mean time to preemption", free), free


def test_a_time_limit_that_may_be_too_short_is_a_warning(small: SlurmCluster, tmp_path: Path) -> None:
    """Nothing was measured yet, so nothing is refused."""
    code, printed, _ = cli(small, tmp_path)("plan", time="1m")

    assert code == 0
    assert (
        "each machine ends after 60 s, and getting ready is assumed to take 2 min 40 s: it may never keep any work"
        in printed
    )


def test_missing_commands_are_one_sentence(tmp_path: Path) -> None:
    """On a host that is no login node; a job that names no Slurm never hears of it."""
    bare = {name: value for name, value in os.environ.items() if name != "SLURM_CONF"}
    ours = {"XDG_STATE_HOME": str(tmp_path / "st"), "XDG_CONFIG_HOME": str(tmp_path / "cf"), "PATH": "/nonexistent"}

    code, _, said = Cli(tmp_path, bare | ours)("plan")

    assert (code, said) == (
        EXIT_INFEASIBLE,
        (
            "windfall: scontrol was not found on this host: put Slurm's commands on PATH, or name a login node "
            "(providers.slurm.login in the configuration file)"
        ),
    )


def test_a_refused_ssh_key_is_one_sentence(tmp_path: Path) -> None:
    """With the line to try by hand."""
    ssh = tmp_path / "ssh"
    ssh.write_text("#!/bin/sh\necho 'me@login: Permission denied (publickey).' >&2\nexit 255\n")
    ssh.chmod(0o755)
    ours = {"XDG_STATE_HOME": str(tmp_path / "st"), "XDG_CONFIG_HOME": str(tmp_path / "cf")}
    path = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}

    code, _, said = Cli(tmp_path, os.environ | ours | path)("plan", config="login: me@login, folder: /home/me/machines")

    assert (code, said) == (
        EXIT_INFEASIBLE,
        (
            "windfall: ssh me@login refused this user's key (me@login: Permission denied (publickey).): make `ssh me@login "
            "true` work without a password"
        ),
    )


def test_a_full_queue_is_a_quota(start_slurm: StartSlurm, tmp_path: Path) -> None:
    """MaxJobCount is reached: one sentence at once, and nothing of ours in the queue."""
    cluster = start_slurm(nodes=1, settings={"MaxJobCount": "2", "MinJobAge": "2"})
    cluster.submit("sleep 1000", "--job-name=other")
    code, _, said = cli(cluster, tmp_path)("run", "-y", "-d")

    assert (code, said) == (
        EXIT_INFEASIBLE,
        (
            "windfall: Slurm refuses the job: its queue is full (MaxJobCount, or a limit of this account): try again once "
            "jobs have ended"
        ),
    )
    assert [line.split()[0] for line in queue(cluster).splitlines()] == ["other"]


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    """A cluster with accounting, a QOS `short` of one node a user, and at most two jobs in the queue of the account."""
    del tmp_path_factory
    if reason := no_slurm(accounting=True):
        pytest.skip(reason)
    with SlurmCluster(ClusterSettings(nodes=2, accounting=True)) as found:
        manager = ("sacctmgr", "--immediate", "--quiet")
        found.run(*manager, "add", "qos", "short", "MaxTRESPerUser=node=1")
        found.run(*manager, "modify", "account", "lab", "set", "qos+=short", "maxsubmitjobs=2")
        yield found


@pytest.mark.parametrize(
    ("block", "says"),
    [
        (
            {"account": "nope"},
            f"the account nope does not exist, or is not yours: set slurm.account to {ACCOUNTS}",
        ),
        ({"qos": "nope"}, "the QOS nope does not exist, or is not yours: set slurm.qos to one of normal, short"),
    ],
)
def test_an_account_or_qos_that_is_not_yours_is_refused(
    kept: SlurmCluster, tmp_path: Path, block: dict[str, str], says: str
) -> None:
    """With those that are."""
    code, _, said = cli(kept, tmp_path)("run", "-y", "-d", **block)

    assert (code, said) == (EXIT_INFEASIBLE, f"windfall: Slurm refuses the job: {says}")
    assert queue(kept) == ""


def test_limits_of_the_user_are_quotas_of_a_plan(kept: SlurmCluster, tmp_path: Path) -> None:
    """Three machines in a QOS of one node: refused before anything is submitted, and the doctor names the limit."""
    ask = cli(kept, tmp_path)
    (tmp_path / "three.yaml").write_text(
        yaml.safe_dump(
            {
                "name": "three",
                "num_nodes": 3,
                "resources": {"infra": "slurm/low"},
                "run": "true",
                "slurm": {"qos": "short"},
            }
        )
    )
    done = subprocess.run(
        [sys.executable, "-m", "windfall.cli.main", "plan", str(tmp_path / "three.yaml")],
        env=dict(ask.environ), capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert done.returncode == EXIT_INFEASIBLE
    assert "the job needs 3 machines, and the quotas leave room for 1 on the offers that fit it" in done.stderr
    assert queue(kept) == ""


def test_a_limit_on_submitted_jobs_is_a_refusal(kept: SlurmCluster, tmp_path: Path) -> None:
    """Two jobs of the user are in the queue, which is all that may be: nothing is added."""
    jobs = [kept.submit("sleep 1000", f"--job-name=other-{number}") for number in range(2)]
    try:
        code, _, said = cli(kept, tmp_path)("run", "-y", "-d")
        names = sorted(line.split()[0] for line in queue(kept).splitlines())
    finally:
        kept.run("scancel", *jobs)
    kept.until(lambda: queue(kept) == "", "the queue is empty")

    assert (code, names) == (EXIT_INFEASIBLE, ["other-0", "other-1"])
    assert said.startswith(
        "windfall: Slurm refuses the job: a limit of your account or QOS is reached (AssocMaxSubmitJobLimit;"
    )


def test_the_doctor_says_a_users_limits_and_what_saving_costs(kept: SlurmCluster, tmp_path: Path) -> None:
    """From the site's own settings and the product's own saving policy."""
    ask = cli(kept, tmp_path)
    line = [sys.executable, "-m", "windfall.cli.main", "doctor", "slurm", "--json"]
    (tmp_path / "cf" / "windfall").mkdir(parents=True)
    (tmp_path / "cf" / "windfall" / "config.yaml").write_text("providers: {slurm: {poll: 1s}}\n")
    done = subprocess.run(line, env=dict(ask.environ), cwd=tmp_path, capture_output=True, text=True, check=False)
    text = done.stdout

    assert "2 jobs in the queue (MaxSubmitJobs)" in text, done.stderr
    assert "preempt_send_user_signal is not set" in text
    assert re.search(
        r"GraceTime=6: TERM comes 6.0 s before the end; saving every \d+ min costs \d+\.\d % of the time", text
    )


def test_a_part_of_a_node_is_priced_as_slurm_bills_it(start_slurm: StartSlurm, tmp_path: Path) -> None:
    """`billing` of `scontrol show job` is what the plan says, for a whole node and for a part of it."""
    weights = {"TRESBillingWeights": "CPU=1.0,Mem=100.0G"}
    cluster = start_slurm(nodes=1, settings={"SelectTypeParameters": "CR_Core_Memory"}, low=weights)
    ask = cli(cluster, tmp_path)
    asked: tuple[tuple[dict[str, Any], tuple[str, ...]], ...] = (
        ({}, ("--exclusive",)),
        ({"memory": "128MiB", "cpus": 1}, ("--mem=128M", "--cpus-per-task=1")),
        ({"cpus": 1}, ("--cpus-per-task=1",)),
    )
    for block, options in asked:
        job = cluster.submit("sleep 1000", "--nodes=1", *options)
        cluster.until(lambda job=job: cluster.state(job) == "RUNNING", "it runs")  # type: ignore[misc]
        billed = re.search(r"billing=(\d+)", cluster.run("scontrol", "--oneliner", "show", "job", job))
        cluster.run("scancel", job)
        cluster.until(cluster.all_idle, "it is gone")

        printed = ask("plan", config="poll: 1s, usd_per_unit_hour: 1.0", **block)[1]
        priced = re.search(r"price ([\d.]+) USD/h", printed)

        assert billed, block
        assert priced, printed
        # Slurm shows whole units.
        assert (block, int(float(priced[1]))) == (block, int(billed[1]))
