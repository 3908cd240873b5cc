"""What a real Slurm does, as far as Windfall relies on it.

Seen on Slurm 22.05.8, and easily assumed otherwise:

- A job without a time limit announces an `EndTime` all the same: a year after its start. Only `PreemptTime` says that the end
  is near; once the job ends, Slurm overwrites it with the moment of the end.
- The grace ends late: `EndTime` is `PreemptTime` + GraceTime, the second TERM came 4 s after it, the KILL `KillWait` later.
  A time limit of 60 s ended its job after 78 s. Announced ends are early, never late.
- A step that ends at the first TERM, in the grace, decides how its job ends: FAILED or COMPLETED, not PREEMPTED, also in
  `sacct`. Who wants the cause has to read `PreemptTime` before the end.
- **`--no-requeue` does not exclude a second start.** A slurmctld that is killed (-9) within 26 s of a job's start, perhaps
  longer, has not written the start down: it comes back with the job PENDING, has slurmd kill the script 4 s later, and starts
  it again under the same number, `Restarts=0`, no SLURM_RESTART_COUNT; only `StartTime` moved. Once of eight times the second
  start failed ("Job credential revoked") and the job was FAILED. Where the first copy still ends, slurmd refuses the second,
  the job is CANCELLED and its node drained ("Duplicate jobid"). At most one of the two runs at a time. TERM loses nothing.
  `sacct` has only the second stretch: it overwrites the first.
- A slurmctld that is killed within some 50 ms of an order forgets the job, and gives its number to the next.
- After its start slurmctld calls nodes `unknown` until they have registered; orders are accepted, and wait.
- A job whose end could not be told to slurmctld stays RUNNING for up to a minute after slurmctld is back.
- After NODE_FAIL, `srun` on the lost node is told by slurmctld and ends, and with it the batch script; the step's processes
  live until slurmd is back, which kills them within seconds. Without it they live on.
- `--test-only` answers with a senseless year (7470, 10193) while a job that can never start (PartitionConfig) is in the queue.
- More tasks than a node has cores (`-N1 -n4`) and too many nodes are accepted and pend (PartitionConfig); too much memory,
  features, licenses, gres, node names are refused at once. Without accounting any account and QOS is accepted and runs.
- For some seconds after its start slurmctld knows none of its nodes (`unk` in `sinfo`) and refuses every order with "Requested
  node configuration is not available".
- An order refused with "Requested node configuration is not available" leaves an ended job (FAILED, BadConstraints) in
  `squeue --states=all`, under its name.
- `sbatch` refuses what it cannot parse (`--time=nope`) with exit code 255, what the controller refuses with 1.
- A stopped controller is noticed after 5 s (MessageTimeout), a dead one after 4 s (connect failure), by `squeue` and `sbatch`.
- `SLURM_TIME_FORMAT=%s` makes `squeue` and `sacct` print times as seconds since 1970, whatever the time zone.
"""

from __future__ import annotations

import re
import signal
import time

import pytest

from tests.slurm.cluster import SlurmCluster
from tests.slurm.conftest import StartSlurm

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.timeout(300)]

REFUSED = (
    ("--partition=nope", 1, "invalid partition specified"),
    ("--gres=gpu:1", 1, "Invalid generic resource"),
    ("--mem=2G", 1, "Requested node configuration is not available"),
    ("--constraint=nope", 1, "Invalid feature specification"),
    ("--nodelist=n9", 1, "Invalid node name"),
    ("--licenses=nope", 1, "Invalid license"),
    ("--time=nope", 255, "Invalid --time"),
)

# A step and a batch shell that note each signal with its time, and do not die of it.
NOTE = "trap 'echo {who} TERM $(date +%s.%N)' TERM; echo {who} up; while :; do sleep 0.1; done"
BATCH = NOTE.format(who="batch")


def step(cluster: SlurmCluster, *, ends_at_term: bool = False) -> str:
    """A batch script whose step notes its signals, or ends at the first with exit code 0."""
    script = cluster.folder / f"step-{ends_at_term}"
    script.write_text(NOTE.format(who="step").replace("%N)'", "%N); exit 0'" if ends_at_term else "%N)'"), "utf-8")
    return f"srun --unbuffered sh {script}"


def heard(cluster: SlurmCluster, job: str, who: str) -> list[float]:
    """When `who` heard TERM."""
    words = [line.split() for line in cluster.output_of(job).splitlines()]
    return [float(line[2]) for line in words if line[:2] == [who, "TERM"]]


def until_up(cluster: SlurmCluster, job: str, who: str) -> None:
    """Wait until the job's script has its trap in place."""
    cluster.until(lambda: f"{who} up" in cluster.output_of(job), f"the {who} of job {job} is up")


def until_state(cluster: SlurmCluster, job: str, state: str, limit_s: float = 60.0) -> None:
    """Wait until Slurm says that a job is in this state."""
    cluster.until(lambda: cluster.state(job) == state, f"job {job} is {state}", limit_s)


def until_reason(cluster: SlurmCluster, job: str, reason: str) -> None:
    """Wait until Slurm says why a job waits."""
    cluster.until(lambda: cluster.job_field(job, "Reason") == reason, f"job {job} waits for {reason}")


def year_of_start(cluster: SlurmCluster) -> int:
    """The year in which a job of all nodes would start, as `--test-only` says."""
    asked = cluster.call("sbatch", "--test-only", f"--nodes={len(cluster.nodes)}", text="#!/bin/sh\ntrue\n")
    found = re.search(r"to start at (\d+)-", asked.stderr)
    assert found, asked
    return int(found[1])


def announced(cluster: SlurmCluster, job: str) -> tuple[float | None, float | None]:
    """PreemptTime and EndTime of `squeue`, in seconds since 1970; None where it has none."""
    columns = "PreemptTime:24,EndTime:24"
    said = cluster.run("env", "SLURM_TIME_FORMAT=%s", "squeue", "--noheader", f"--jobs={job}", f"--Format={columns}")
    preempted, ends = (float(word) if word.isdigit() else None for word in said.split())
    return preempted, ends


def test_two_clusters_do_not_meet(start_slurm: StartSlurm) -> None:
    """A job of one is unknown to another that runs at once, and the end of one leaves the other's jobs alone."""
    one, other = start_slurm(), start_slurm(nodes=1)
    job = one.submit("sleep 1000")
    until_state(one, job, "RUNNING")
    assert other.run("squeue", "--noheader") == ""
    assert sorted(other.node_states()) == ["n0"]
    other.end()
    assert one.state(job) == "RUNNING"
    assert one.processes(job)


def test_a_failed_test_leaves_nothing_and_shows_the_logs(start_slurm: StartSlurm) -> None:
    """An error inside ends daemons and jobs, a stopped daemon among them, and carries the daemons' last words."""
    cluster = start_slurm(nodes=1)
    until_state(cluster, cluster.submit("sleep 1000"), "RUNNING")
    cluster.stop()
    error = ZeroDivisionError()
    cluster.__exit__(ZeroDivisionError, error, None)
    assert "--- slurmctld.log" in error.__notes__[0]
    assert cluster.processes() == {}


def test_daemons_that_were_ended_properly_know_their_jobs(start_slurm: StartSlurm) -> None:
    """A controller and a slurmd that end at TERM and start again still know a running job, which notices nothing."""
    cluster = start_slurm(nodes=1)
    job = cluster.submit("echo $$ >> starts; until [ -e go ]; do sleep 0.1; done; echo went")
    cluster.until((cluster.folder / "starts").exists, "the job's script runs")
    cluster.restart("slurmctld")
    cluster.restart("n0")
    cluster.until(lambda: cluster.node_states() == {"n0": "allocated"}, "the node is back")
    (cluster.folder / "go").touch()
    until_state(cluster, job, "COMPLETED")
    assert "went" in cluster.output_of(job)
    assert len((cluster.folder / "starts").read_text().split()) == 1


def test_a_killed_controller_starts_a_job_twice(start_slurm: StartSlurm) -> None:
    """A start that was not yet written down is undone and repeated, despite `--no-requeue`, and is not counted a restart."""
    cluster = start_slurm(nodes=1)
    starts = cluster.folder / "starts"
    job = cluster.submit('echo "$$ ${SLURM_RESTART_COUNT:-none}" >> starts; sleep 1000', "--no-requeue")
    cluster.until(starts.exists, "the job's script runs")
    cluster.restart("slurmctld", signal.SIGKILL)
    cluster.until(lambda: len(starts.read_text().splitlines()) == 2, "the job's script runs again")
    first, second = (line.split() for line in starts.read_text().splitlines())
    assert int(first[0]) not in cluster.processes(job)
    assert second[1] == "none"
    assert cluster.job_field(job, "Restarts") == "0"


def test_the_start_of_the_grace_is_heard_by_a_step_alone_and_announced(start_slurm: StartSlurm) -> None:
    """A step hears TERM when the grace begins, the listing says when it ends; a batch shell hears only the end."""
    cluster = start_slurm()
    stepped = cluster.submit(step(cluster), "--no-requeue")
    plain = cluster.submit(BATCH, "--no-requeue")
    until_up(cluster, stepped, "step")
    until_up(cluster, plain, "batch")
    assert announced(cluster, stepped)[0] is None
    cluster.submit("true", "--partition=high", "--nodes=3")
    cluster.until(lambda: announced(cluster, stepped)[0] is not None, "the listing announces the preemption")
    begins, ends = announced(cluster, stepped)
    assert begins is not None
    assert ends == begins + cluster.wanted.grace_s
    cluster.until(lambda: heard(cluster, stepped, "step"), "the step hears TERM")
    assert begins <= heard(cluster, stepped, "step")[0] < begins + 2
    assert heard(cluster, plain, "batch") == []
    until_state(cluster, stepped, "PREEMPTED")
    until_state(cluster, plain, "PREEMPTED")
    cluster.until(lambda: not cluster.processes(stepped), "the step is killed")
    assert ends <= heard(cluster, plain, "batch")[0] < ends + 15
    assert ends <= heard(cluster, stepped, "step")[1] < ends + 15


def test_a_site_can_warn_the_batch_shell(start_slurm: StartSlurm) -> None:
    """With `preempt_send_user_signal`, `--signal=B:` reaches the batch shell when the grace begins."""
    cluster = start_slurm(nodes=1, settings={"SlurmctldParameters": "preempt_send_user_signal"})
    job = cluster.submit(BATCH, "--no-requeue", "--signal=B:TERM@20")
    until_up(cluster, job, "batch")
    cluster.submit("true", "--partition=high")
    cluster.until(lambda: announced(cluster, job)[0] is not None, "the listing announces the preemption")
    _, ends = announced(cluster, job)
    cluster.until(lambda: heard(cluster, job, "batch"), "the batch shell hears TERM")
    assert ends is not None
    assert heard(cluster, job, "batch")[0] < ends


def test_who_leaves_in_the_grace_is_not_called_preempted(start_slurm: StartSlurm) -> None:
    """A step that ends at TERM ends its job as COMPLETED: only the listing before the end told the cause.

    While TERM is sent, Slurm calls the job SIGNALING for some milliseconds.
    """
    cluster = start_slurm(nodes=1)
    job = cluster.submit(step(cluster, ends_at_term=True), "--no-requeue")
    until_up(cluster, job, "step")
    cluster.submit("true", "--partition=high")
    cluster.until(lambda: cluster.state(job) not in ("RUNNING", "SIGNALING", "COMPLETING"), "the job ends")
    assert cluster.state(job) == "COMPLETED"


def test_a_requeued_job_rises_again_under_its_number(start_slurm: StartSlurm) -> None:
    """Preempted with `--requeue`, a job waits for `cred_expire` and starts again: same number, one restart."""
    cluster = start_slurm(nodes=1, grace_s=0)
    job = cluster.submit("echo start ${SLURM_RESTART_COUNT:-0}; sleep 1000", "--requeue", "--open-mode=append")
    cluster.until(lambda: "start 0" in cluster.output_of(job), "the job runs")
    cluster.submit("true", "--partition=high")
    until_reason(cluster, job, "BeginTime")
    assert cluster.state(job) == "PENDING"
    cluster.until(lambda: "start 1" in cluster.output_of(job), "the job runs again")
    assert cluster.job_field(job, "Restarts") == "1"


def test_a_lost_answer_is_no_refusal(start_slurm: StartSlurm) -> None:
    """`sbatch` to a stopped controller fails, and the job runs all the same once it continues, found by its name."""
    cluster = start_slurm(nodes=1)
    cluster.stop()
    sent = cluster.call("sbatch", "--job-name=token", "--output=lost.out", text="#!/bin/sh\necho ran\n")
    assert sent.returncode == 1
    assert "timed out" in sent.stderr
    listed = cluster.call("squeue", "--noheader")
    assert (listed.returncode, listed.stdout) == (1, "")
    cluster.resume()
    lost = cluster.folder / "lost.out"
    cluster.until(lambda: lost.exists() and lost.read_text() == "ran\n", "the job runs")
    assert len(cluster.run("squeue", "--noheader", "--states=all", "--name=token").splitlines()) == 1


def test_a_lost_slurmd_is_a_false_death(start_slurm: StartSlurm) -> None:
    """Its job is NODE_FAIL and its node down, while the job's processes live on; a slurmd that is back ends them."""
    cluster = start_slurm(nodes=2)
    marks = cluster.folder / "marks"
    script = cluster.folder / "mark"
    script.write_text(f"trap '' TERM HUP INT PIPE; while :; do date >> {marks}; sleep 0.1; done", "utf-8")
    job = cluster.submit(f"srun sh {script}", "--no-requeue", "--nodelist=n1")
    cluster.until(marks.exists, "the job runs")
    cluster.kill("n1")
    until_state(cluster, job, "NODE_FAIL", limit_s=90.0)
    assert cluster.node_states() == {"n0": "idle", "n1": "down*"}
    size = marks.stat().st_size
    cluster.until(lambda: marks.stat().st_size > size, "the job's process still works")
    assert cluster.run("squeue", "--noheader", f"--jobs={job}", "--states=running") == ""
    cluster.start("n1")
    cluster.until(lambda: not cluster.processes(job), "slurmd ends what it finds")
    cluster.until(cluster.all_idle, "the node is back")


def test_singleton_holds_the_second_of_a_name(start_slurm: StartSlurm) -> None:
    """Of two jobs of one name the second pends with `Dependency`, with nodes free, and starts when the first ends."""
    cluster = start_slurm()
    first, second = (cluster.submit("sleep 1000", "--job-name=token", "--dependency=singleton") for _ in range(2))
    until_state(cluster, first, "RUNNING")
    until_reason(cluster, second, "Dependency")
    assert cluster.state(second) == "PENDING"
    cluster.run("scancel", first)
    until_state(cluster, second, "RUNNING")
    cluster.run("scancel", "--name=token")
    cluster.until(lambda: cluster.run("squeue", "--noheader") == "", "scancel by name ends all of a token")


def test_what_cannot_be_is_refused_at_once(start_slurm: StartSlurm) -> None:
    """`sbatch` fails with a sentence, and nothing is in the queue but, of one that passed the first checks, its failure."""
    cluster = start_slurm(nodes=1)
    for option, code, words in REFUSED:
        done = cluster.call("sbatch", option, text="#!/bin/sh\ntrue\n")
        assert (option, done.returncode) == (option, code)
        assert words in done.stderr
    assert cluster.run("squeue", "--noheader") == ""
    kept = cluster.run("squeue", "--noheader", "--states=all", "--Format=State,Reason").split()
    assert kept == ["FAILED", "BadConstraints"]


def test_other_refusals_are_reasons_to_wait(start_slurm: StartSlurm) -> None:
    """Too many nodes, or more tasks than a node has cores, are accepted and pend; `--test-only` then knows no date."""
    cluster = start_slurm()
    never = [cluster.submit("true", *options) for options in (("--nodes=4",), ("--nodes=1", "--ntasks=4"))]
    for job in never:
        until_reason(cluster, job, "PartitionConfig")
        assert cluster.state(job) == "PENDING"
    assert year_of_start(cluster) > 2100
    cluster.run("scancel", *never)
    assert year_of_start(cluster) <= time.localtime().tm_year + 1
    assert cluster.run("squeue", "--noheader") == ""


def test_a_full_cluster_says_resources(start_slurm: StartSlurm) -> None:
    """With every node taken the next job pends with `Resources`, the one behind it with `Priority`."""
    cluster = start_slurm(nodes=1)
    until_state(cluster, cluster.submit("sleep 1000"), "RUNNING")
    second, third = cluster.submit("true"), cluster.submit("true")
    until_reason(cluster, second, "Resources")
    until_reason(cluster, third, "Priority")


def test_a_time_limit_is_an_announced_end(start_slurm: StartSlurm) -> None:
    """The listing has the end from the start on; the job lives at least until then, and ends as TIMEOUT."""
    cluster = start_slurm(nodes=1)
    limited = cluster.submit(BATCH, "--time=1")
    until_up(cluster, limited, "batch")
    preempted, ends = announced(cluster, limited)
    started = float(cluster.run("env", "SLURM_TIME_FORMAT=%s", "squeue", "--noheader", "--Format=StartTime"))
    assert preempted is None
    assert ends == started + 60
    until_state(cluster, limited, "TIMEOUT", limit_s=150.0)
    assert ends <= heard(cluster, limited, "batch")[0] < ends + 45


def test_gpus_are_counted(start_slurm: StartSlurm) -> None:
    """`--gres=gpu:N` is granted up to what a node has, and refused above it."""
    cluster = start_slurm(nodes=1, gpus_per_node=2)
    job = cluster.submit("echo $SLURM_GPUS_ON_NODE", "--gres=gpu:2")
    until_state(cluster, job, "COMPLETED")
    assert cluster.output_of(job) == "2\n"
    assert cluster.call("sbatch", "--gres=gpu:3", text="#!/bin/sh\ntrue\n").returncode == 1
