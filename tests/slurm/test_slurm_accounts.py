"""What `sacct` keeps, with slurmdbd on MariaDB: every stretch of a job with its own state, in whole seconds, 3 s late."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.slurm import noted_steps
from tests.slurm.cluster import SlurmCluster
from tests.slurm.conftest import StartSlurm
from tests.slurm.samplers import machines
from tests.slurm.trainings import bill, training

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.timeout(300)]


def stretches(cluster: SlurmCluster, job: str) -> list[list[str]]:
    """State (its first word), start, end, seconds and node of each stretch of a job, as `sacct -D` has them."""
    columns = "State,Start,End,ElapsedRaw,NodeList"
    command = ("sacct", "-D", "--noheader", "--parsable2", "--allocations", f"--jobs={job}", f"--format={columns}")
    lines = cluster.run("env", "SLURM_TIME_FORMAT=%s", *command).splitlines()
    return [[line.split()[0].split("|")[0], *line.split("|")[1:]] for line in lines]


def until_states(cluster: SlurmCluster, job: str, states: Sequence[str], limit_s: float = 60.0) -> None:
    """Wait until the accounts have these states of a job's stretches."""
    cluster.until(lambda: [one[0] for one in stretches(cluster, job)] == list(states), f"job {job}: {states}", limit_s)


def test_accounts_keep_each_stretch_with_its_state(start_slurm: StartSlurm) -> None:
    """A job preempted and run again is two lines that do not overlap; one that lost its node is NODE_FAIL."""
    cluster = start_slurm(accounting=True, grace_s=0)
    again = cluster.submit("sleep 1000", "--requeue", "--nodelist=n0")
    once = cluster.submit("sleep 1000", "--no-requeue", "--nodelist=n1")
    until_states(cluster, again, ["RUNNING"])
    until_states(cluster, once, ["RUNNING"])
    cluster.submit("true", "--partition=high", "--nodes=3")
    until_states(cluster, again, ["PREEMPTED", "RUNNING"])
    until_states(cluster, once, ["PREEMPTED"])
    lost = cluster.submit("sleep 1000", "--no-requeue", "--nodelist=n2")
    until_states(cluster, lost, ["RUNNING"])
    cluster.kill("n2")
    until_states(cluster, lost, ["NODE_FAIL"], limit_s=90.0)
    cluster.run("scancel", again)
    until_states(cluster, again, ["PREEMPTED", "CANCELLED"])
    first, second = ([int(word) for word in one[1:4]] for one in stretches(cluster, again))
    assert first[1] < second[0], "the stretches do not overlap"
    for started, ended, seconds in (first, second):
        assert seconds == ended - started
    assert [one[4] for one in stretches(cluster, once)] == ["n1"]


def test_without_accounts_the_queue_still_answers(start_slurm: StartSlurm) -> None:
    """With slurmdbd dead jobs start and `squeue` lists them, `sacct` fails and says so, and knows them once it is back."""
    cluster = start_slurm(accounting=True, nodes=1)
    cluster.kill("slurmdbd")
    job = cluster.submit("sleep 1000")
    running = "squeue", "--noheader", "--states=running", "--format=%i"
    cluster.until(lambda: cluster.run(*running) == job, "the job runs")
    asked = cluster.call("sacct", "--noheader")
    assert asked.returncode == 1
    assert "Problem talking to the database" in asked.stderr
    cluster.restart("slurmdbd")
    cluster.until(lambda: cluster.call("sacct").returncode == 0, "slurmdbd answers")
    until_states(cluster, job, ["RUNNING"])


def test_accounts_refuse_at_once_and_quotas_make_wait(start_slurm: StartSlurm) -> None:
    """An unknown account or QOS is refused by `sbatch`; a job above its QOS's limit is accepted and says so as it waits."""
    cluster = start_slurm(accounting=True, nodes=2)
    manager = ("sacctmgr", "--immediate", "--quiet")
    cluster.run(*manager, "add", "qos", "short", "MaxTRESPerUser=node=1")
    cluster.run(*manager, "modify", "account", "lab", "set", "qos+=short")
    for option, words in (("--account=nope", "Invalid account"), ("--qos=nope", "Invalid qos")):
        done = cluster.call("sbatch", option, text="#!/bin/sh\ntrue\n")
        assert done.returncode == 1
        assert words in done.stderr
    first, second = (cluster.submit("sleep 1000", "--qos=short") for _ in range(2))
    cluster.until(
        lambda: cluster.job_field(second, "Reason") == "QOSMaxNodePerUserLimit", "the second is over the limit"
    )
    assert (cluster.state(first), cluster.state(second)) == ("RUNNING", "PENDING")


def test_the_hours_of_a_bill_are_those_of_the_accounts(start_slurm: StartSlurm, tmp_path: Path) -> None:
    """A training preempted, killed and cancelled: each machine's stretch in `windfall cost` is `sacct -D`'s to a second."""
    cluster, notes = start_slurm(accounting=True), tmp_path / "notes"
    (tmp_path / "work").mkdir()
    shutil.copy(noted_steps.__file__, tmp_path / "work")
    job = {
        "name": "hours",
        "workdir": str(tmp_path / "work"),
        "resources": {"infra": "slurm/low"},
        "envs": {"STEPS": "300", "STEP_S": "0.1", "NOTES": str(notes)},
        "checkpoint": {"insure": "10 steps"},
        "run": f"{shlex.quote(sys.executable)} noted_steps.py",
        "work": {"steps": 300},
    }

    def at_work(count: int) -> tuple[str, int]:
        """Job and outermost process of the only machine, once it is the one of this number and has worked for a while."""

        def works() -> bool:
            jobs = [line.split()[1] for line in notes.read_text().splitlines()] if notes.exists() else []
            return len(set(jobs)) == count and jobs.count(jobs[-1]) >= 50

        cluster.until(works, f"machine {count} works", 90.0)
        cluster.until(lambda: len(machines(cluster)) == 1, "it is alone")
        ((number, pid),) = machines(cluster)
        return number, pid

    with training(cluster, tmp_path, job) as run:
        at_work(1)
        cluster.submit("sleep 2", "--partition=high", "--nodes=3")
        os.kill(at_work(2)[1], signal.SIGKILL)
        cluster.run("scancel", at_work(3)[0])
        at_work(4)
        run.until_done()
        told = bill(run)

    states = {}
    for one in told:
        number = one["machine_id"].removeprefix("slurm-")
        cluster.until(lambda: all(row[2].isdigit() for row in stretches(cluster, number)), "it is written down", 20.0)  # noqa: B023 - called at once
        ((state, began, ended, seconds, _),) = stretches(cluster, number)
        states[number] = state
        assert abs(one["started"] - int(began)) <= 1.0
        assert abs(one["ended"] - int(ended)) <= 1.0
        assert abs(one["hours"] * 3600.0 - int(seconds)) <= 1.0
        print(
            f"job {number} {state}: {seconds} s by sacct, {one['hours'] * 3600.0:.1f} s by windfall cost: {one['outcome']}"
        )
    assert [one["outcome"] for one in told] == ["preempted", "failed", "preempted", "released"]
    assert len(states) == 4
    listed = cluster.run("sacct", "-D", "-X", "--noheader", "--parsable2", "--format=JobID,JobName").splitlines()
    ours = {line.split("|")[0] for line in listed if line.split("|")[1].startswith("hours-")}
    assert ours == set(states), "the bill has every job that Slurm ran for it"
