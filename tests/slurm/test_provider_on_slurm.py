"""The provider on a real Slurm: answers that are lost, machines that are taken, daemons that die, limits that end."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.slurm.cluster import SlurmCluster, no_slurm
from windfall.errors import ProviderUnreachable
from windfall.linux.clock import SystemClock
from windfall.market import Answer, BootSecret, BootSpec, Machine, MachineEndCause, MachineLifecycle, Order, Refusal
from windfall.providers.slurm.machine_names import job_of
from windfall.providers.slurm.slurm_commands import CommandResult, SiteCommands
from windfall.providers.slurm.slurm_provider import SlurmProvider
from windfall.providers.slurm.slurm_settings import SlurmSettings
from windfall.terms import BlockValue, Seconds

SECRET = "hush-hush-7741"
AGAIN_S = 20.0
"""Within which a slurmctld starts a job again whose start it had not written down [s]."""
ASKS = """
import os, time, urllib.error, urllib.request as web
url = os.environ["WINDFALL_METADATA_URL"]
def ask(path, method, **headers):
    request = web.Request(url + path, method=method, headers={name.replace("_", "-"): value for name, value in headers.items()})
    return web.urlopen(request).read().decode()
token = ask("/latest/api/token", "PUT", X_aws_ec2_metadata_token_ttl_seconds="60")
while True:
    try:
        print(ask("/latest/meta-data/spot/instance-action", "GET", X_aws_ec2_metadata_token=token), flush=True)
        break
    except urllib.error.HTTPError:  # 404: no notice yet
        time.sleep(0.1)
time.sleep(1000)
"""
"""What a machine asks its notice service, and prints."""
HEARS = 'trap "date +TERM\\ at\\ %s" TERM; echo ready; while :; do sleep 0.1; done'
"""A machine that prints when it hears TERM, and does not end of it."""


@dataclass
class Rented:
    """A cluster, and a provider on it."""

    cluster: SlurmCluster
    provider: SlurmProvider
    folder: Path
    owner: str

    def buy(self, token: str, *argv: str, count: int = 1, gang: bool = False, **block: BlockValue) -> Answer:
        """Order machines of the partition that gives way."""
        offer = next(one for one in self.provider.offers() if one.zone == "low")
        boot = BootSpec(argv or ("sleep", "1000"), secrets=(BootSecret("KEY", SECRET),), block=tuple(block.items()))
        return self.provider.order(Order(token, self.owner, "job", offer, count, count, gang=gang), boot)

    def of(self, token: str) -> Machine:
        """The first machine of an order, as it is listed."""
        return next(one for one in self.provider.list(self.owner) if one.token == token)

    def await_life(self, token: str, life: MachineLifecycle, limit_s: float = 60.0) -> Machine:
        """Wait until it is pending, running or gone."""
        self.cluster.until(lambda: self.of(token).lifecycle is life, f"{token} is {life}", limit_s)
        return self.of(token)

    def undrained(self) -> bool:
        """Undo what Slurm does to a node on which it finds a job that it had forgotten; whether there is none left."""
        drained = [node for node, state in self.cluster.node_states().items() if "drain" in state]
        for node in drained:
            self.cluster.call("scontrol", "update", f"nodename={node}", "state=resume")
        return not drained

    def output(self, token: str) -> str:
        """What it printed."""
        path = self.folder / "machines" / token / "output.log"
        return path.read_text("utf-8") if path.exists() else ""

    def queue(self) -> str:
        """What is in the queue and has not ended."""
        return self.cluster.run("squeue", "--noheader", "--format=%i %j %T")


@pytest.fixture(scope="module")
def cluster() -> Iterator[SlurmCluster]:
    """A cluster of three nodes."""
    if reason := no_slurm():
        pytest.skip(reason)
    with SlurmCluster() as found:
        yield found


@pytest.fixture
def rented(cluster: SlurmCluster, tmp_path: Path, record_property: Callable[[str, object], None]) -> Iterator[Rented]:
    """A provider with records of its own; at the end nothing of it may be left."""
    record_property("slurm", cluster.run("sinfo", "--version"))
    settings = SlurmSettings(folder=tmp_path / "machines", poll_s=Seconds(0.2))
    provider = SlurmProvider(tmp_path, settings, SystemClock(), SiteCommands("", cluster.environment()))
    found = Rented(cluster, provider, tmp_path, tmp_path.name)
    yield found
    for machine in provider.list(found.owner):
        provider.release(machine.machine_id)
    try:
        cluster.until(lambda: found.queue() == "", "the queue is empty")
    except AssertionError as error:
        error.add_note(found.queue())
        raise
    cluster.until(cluster.all_idle, "all nodes are idle")


def test_a_machine_is_ordered_runs_and_is_released(rented: Rented) -> None:
    """The smallest story: one job, its process, its release; its secret is in nothing that Slurm shows."""
    (machine_id,) = rented.buy("smoke-1", "sh", "-c", "echo mine; sleep 1000").machine_ids
    rented.await_life("smoke-1", MachineLifecycle.RUNNING)
    rented.cluster.until(lambda: "mine" in rented.output("smoke-1"), "its process runs")
    shown = rented.cluster.run("scontrol", "show", "job", job_of(machine_id))
    script = rented.cluster.run("scontrol", "write", "batch_script", job_of(machine_id), "-")

    rented.provider.release(machine_id)
    gone = rented.await_life("smoke-1", MachineLifecycle.GONE)

    assert gone.cause is MachineEndCause.RELEASED
    assert SECRET not in shown + script
    assert rented.cluster.processes(job_of(machine_id)) == {}


@dataclass
class Stopping:
    """The site's commands, with a slurmctld that is stopped just before it is given a job."""

    cluster: SlurmCluster
    commands: SiteCommands
    where: str = "this host"
    present: bool = True

    def run(self, argv: Sequence[str], data: bytes = b"") -> CommandResult:
        if argv[0] == "sbatch" and "--test-only" not in argv:
            self.cluster.stop()
        return self.commands.run(argv, data)


@pytest.mark.slow
def test_an_answer_that_slurm_never_gave_is_found(rented: Rented) -> None:
    """slurmctld is stopped in mid-order: the call ends in bounded time, the machine runs all the same, and is bought once."""
    whole = SiteCommands("", rented.cluster.environment())
    says = ("sh", "-c", "echo mine; sleep 1000")
    rented.provider._commands = Stopping(rented.cluster, whole)
    began = time.monotonic()
    with pytest.raises(ProviderUnreachable, match=r"sbatch .* Socket timed out"):
        rented.buy("lost-1", *says)
    took_s = time.monotonic() - began
    rented.cluster.resume()
    rented.provider._commands = whole

    rented.cluster.until(lambda: "mine" in rented.output("lost-1"), "its process runs, though nobody has asked again")
    machine_ids = rented.buy("lost-1", *says).machine_ids

    assert took_s < 30.0
    assert [one.machine_id for one in rented.provider.list(rented.owner) if one.token == "lost-1"] == list(machine_ids)
    assert len(re.findall("lost-1 RUNNING", rented.queue())) == 1


@pytest.mark.slow
def test_a_submission_whose_answer_is_lost_runs_once(rented: Rented) -> None:
    """The line breaks after `sbatch` has reached Slurm: the retry finds the job by its name."""
    commands = SiteCommands("", rented.cluster.environment())

    class Broken:
        where, present = "this host", True

        def run(self, argv: tuple[str, ...], data: bytes = b"") -> object:
            result = commands.run(argv, data)
            if argv[0] == "sbatch" and "--test-only" not in argv:
                raise ProviderUnreachable("planted: the answer was lost")
            return result

    whole = rented.provider._commands
    rented.provider._commands = Broken()  # type: ignore[assignment]
    with pytest.raises(ProviderUnreachable):
        rented.buy("broken-1")
    rented.provider._commands = whole

    assert [one.token for one in rented.provider.list(rented.owner)] == ["broken-1"]
    (machine_id,) = rented.buy("broken-1").machine_ids
    assert rented.of("broken-1").machine_id == machine_id


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_preempted_machine_hears_it_at_the_start_of_the_grace(rented: Rented) -> None:
    """A job of the higher partition takes its node: TERM arrives early in the grace, the listing tells its end.

    The machine itself notes when it heard it, and the grace is long: neither this test's pace nor Slurm's decides.
    """
    rented.cluster.run("scontrol", "update", "partitionname=low", "gracetime=20")
    try:
        (machine_id,) = rented.buy("taken-1", "sh", "-c", HEARS).machine_ids
        rented.cluster.until(lambda: "ready" in rented.output("taken-1"), "its process runs")
        rented.cluster.submit("sleep 3", "--partition=high", "--nodes=3", "--job-name=high")
        rented.cluster.until(lambda: "TERM at" in rented.output("taken-1"), "it hears TERM")
        rented.cluster.until(lambda: rented.of("taken-1").preemption_at is not None, "the listing has it")
        announced = rented.of("taken-1")
        gone = rented.await_life("taken-1", MachineLifecycle.GONE, 120.0)
    finally:
        rented.cluster.run("scontrol", "update", "partitionname=low", f"gracetime={rented.cluster.wanted.grace_s}")

    heard = re.search(r"TERM at (\d+)", rented.output("taken-1"))
    assert heard is not None
    assert announced.lifecycle is MachineLifecycle.RUNNING
    assert announced.preemption_at is not None
    assert 10.0 < announced.preemption_at - int(heard[1]) <= 20.0
    assert gone.cause is MachineEndCause.PREEMPTED
    (line,) = rented.provider.charges(rented.owner, "").charges
    shown = rented.cluster.run("scontrol", "--oneliner", "show", "job", job_of(machine_id))
    hours, minutes, seconds = (int(part) for part in re.search(r"RunTime=(\d+):(\d+):(\d+)", shown).groups())  # type: ignore[union-attr]
    assert line.ended - line.started == pytest.approx(hours * 3600 + minutes * 60 + seconds, abs=1.0)


@pytest.mark.slow
def test_slurm_may_stop_and_start_again(rented: Rented) -> None:
    """A machine survives its cluster's controller, and a listing meanwhile is an error, not an empty one.

    By TERM: killed before it has saved its state, Slurm itself starts the job a second time, and drains the node.
    """
    rented.buy("survives-1")
    rented.await_life("survives-1", MachineLifecycle.RUNNING)
    rented.cluster.kill("slurmctld", signal.SIGTERM)
    time.sleep(0.3)
    with pytest.raises(ProviderUnreachable):
        rented.provider.list(rented.owner)

    rented.cluster.restart("slurmctld")

    assert rented.await_life("survives-1", MachineLifecycle.RUNNING).machine_id


def starts_again(cluster: SlurmCluster, first: Machine) -> bool:
    """Whether Slurm starts a machine's job again, or has forgotten it: it had not written its start down when it was killed."""
    assert first.started is not None
    shown = (
        "env",
        "SLURM_TIME_FORMAT=%s",
        "squeue",
        "--noheader",
        "--states=all",
        f"--jobs={job_of(first.machine_id)}",
    )
    end = time.monotonic() + AGAIN_S
    while time.monotonic() < end:
        done = cluster.call(*shown, "--format=%S")
        if done.returncode != 0 or int(done.stdout.replace("N/A", "0")) > first.started:
            return True
        time.sleep(0.2)
    return False


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_machine_that_slurm_starts_twice_starts_once(rented: Rented) -> None:
    """slurmctld is killed before it has written a start down: what Slurm then starts is no machine, the first's end is the end.

    Slurm either starts the job again, or finds its first copy, cancels it, and drains the node, or has forgotten the job. What
    its accounts forget is billed: the first stretch.
    """
    cluster = rented.cluster
    for number in range(9):
        token = f"twice-{number}"
        (machine_id,) = rented.buy(token, "sh", "-c", "echo mine; sleep 1000").machine_ids
        cluster.until(lambda token=token: "mine" in rented.output(token), "its process runs")  # type: ignore[misc]
        first = rented.await_life(token, MachineLifecycle.RUNNING)
        cluster.restart("slurmctld", signal.SIGKILL)
        # Nobody lists meanwhile: as with a poll of half a minute, the second start comes first.
        if starts_again(cluster, first):
            break
        rented.provider.release(machine_id)
    else:
        raise AssertionError("slurmctld writes every start down at once")

    gone = rented.await_life(token, MachineLifecycle.GONE)

    assert (gone.cause, gone.started) == (MachineEndCause.FAILED, first.started)
    lines = [line for line in rented.provider.charges(rented.owner, "").charges if line.machine_id == machine_id]
    assert [(line.started, line.ended) for line in lines] == [(gone.started, gone.ended)]
    cluster.until(lambda: cluster.processes(job_of(machine_id)) == {}, "nothing lives")
    assert rented.output(token).count("mine") == 1
    cluster.until(rented.undrained, "no node is drained")


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_number_given_again_is_no_other_machine(rented: Rented) -> None:
    """slurmctld is killed before it has written an order down: the next order gets a machine and a name of its own."""
    whole = SiteCommands("", rented.cluster.environment())
    rented.buy("warm-1")
    for number in range(9):
        rented.provider._commands = Killing(rented.cluster, whole)
        (forgotten,) = rented.buy(f"forgotten-{number}").machine_ids
        rented.provider._commands = whole
        rented.cluster.restart("slurmctld")
        if rented.cluster.call("squeue", "--noheader", "--states=all", f"--jobs={job_of(forgotten)}").stdout == "":
            break
        rented.provider.release(forgotten)
    else:
        raise AssertionError("slurmctld writes every order down at once")
    # Before, it refuses every order.
    states = rented.cluster.node_states
    rented.cluster.until(lambda: not any(state.startswith("unk") for state in states().values()), "nodes have reported")
    # What was forgotten before counts too: numbers come again from the lowest of them.
    token = next(token for token in (f"next-{number}" for number in range(20)) if not bought(rented, token))

    rented.cluster.until(lambda: bought(rented, token), "it is bought")

    lives = {one.token: one.machine_id for one in rented.provider.list(rented.owner) if one.ended is None}
    assert lives[token] != forgotten
    for other in lives.keys() - {token}:
        rented.provider.release(lives[other])
    rented.await_life(token, MachineLifecycle.RUNNING, 120.0)
    rented.cluster.until(rented.undrained, "no node is drained")


@dataclass
class Killing:
    """The site's commands, with a slurmctld that is killed once it has given a job and listed it."""

    cluster: SlurmCluster
    commands: SiteCommands
    where: str = "this host"
    present: bool = True
    given: bool = False

    def run(self, argv: Sequence[str], data: bytes = b"") -> CommandResult:
        result = self.commands.run(argv, data)
        if self.given and argv[0] == "squeue":
            self.cluster.kill("slurmctld")
        self.given |= argv[0] == "sbatch" and "--test-only" not in argv
        return result


def bought(rented: Rented, token: str) -> bool:
    """Whether an order has machines now."""
    try:
        return bool(rented.buy(token).machine_ids)
    except ProviderUnreachable as error:
        if "a number of its own" not in str(error):
            raise
        return False


@pytest.mark.slow
def test_an_admin_cannot_make_a_machine_rise_again(rented: Rented) -> None:
    """Slurm refuses to requeue a job that was submitted so."""
    (machine_id,) = rented.buy("once-1").machine_ids
    rented.await_life("once-1", MachineLifecycle.RUNNING)

    done = rented.cluster.call("scontrol", "requeue", job_of(machine_id))

    assert done.returncode != 0
    assert rented.of("once-1").lifecycle is MachineLifecycle.RUNNING


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_time_limit_is_announced_and_ends_the_machine(rented: Rented) -> None:
    """Two minutes ahead, or at once where the limit is nearer; the listing has it from the start."""
    rented.buy("limit-1", sys.executable, "-c", ASKS, time="1m")
    machine = rented.await_life("limit-1", MachineLifecycle.RUNNING)
    rented.cluster.until(lambda: "terminate" in rented.output("limit-1"), "the machine is told")

    gone = rented.await_life("limit-1", MachineLifecycle.GONE, 150.0)

    assert machine.preemption_at is not None
    assert machine.started is not None
    assert machine.preemption_at - machine.started == 60.0
    assert machine.limit_at == machine.preemption_at
    assert gone.cause is MachineEndCause.EXPIRED


@pytest.mark.slow
@pytest.mark.parametrize(
    ("block", "says"),
    [
        ({"gres": "gpu:h100:1"}, "has the slurm.gres gpu:h100:1: its nodes have no GPUs"),
        ({"constraint": "nope"}, "has the slurm.constraint nope"),
        ({"cpus": 64}, "no node of the partition low (1c0.5g) has slurm.cpus 64: ask for less"),
    ],
)
def test_bad_requests_are_one_sentence_and_leave_nothing(
    rented: Rented, block: dict[str, BlockValue], says: str
) -> None:
    """What is wrong and what to write instead, and an empty queue."""
    answer = rented.buy("bad-1", **block)

    assert (answer.machine_ids, answer.refusal) == ((), Refusal.INVALID)
    assert says in answer.message
    assert rented.queue() == ""


@pytest.mark.slow
def test_a_gang_is_one_job_whose_machines_end_together(rented: Rented) -> None:
    """Three nodes, three machines, one allocation; one that breaks takes the others with it."""
    names = rented.buy("gang-1", count=3, gang=True).machine_ids
    rented.await_life("gang-1", MachineLifecycle.RUNNING)
    job = job_of(names[0])
    rented.cluster.until(
        lambda: sum("sleep 1000" in line for line in rented.cluster.processes(job).values()) == 3, "all run"
    )
    starts = [pid for pid, line in rented.cluster.processes(job).items() if "node_start" in line and "srun" not in line]

    os.kill(starts[0], signal.SIGKILL)

    rented.await_life("gang-1", MachineLifecycle.GONE)
    gone = rented.provider.list(rented.owner)
    assert names == (f"slurm-{job}.0", f"slurm-{job}.1", f"slurm-{job}.2")
    assert {(one.allocation, one.cause) for one in gone} == {(f"slurm-{job}", MachineEndCause.FAILED)}
