"""The provider on a real Slurm: answers that are lost, machines that are taken, daemons that die, limits that end."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.slurm.cluster import SlurmCluster, no_slurm
from windfall.errors import ProviderUnreachable
from windfall.linux.clock import SystemClock
from windfall.market import Answer, BootSecret, BootSpec, Machine, MachineEndCause, MachineLifecycle, Order, Refusal
from windfall.providers.slurm.machine_names import job_of
from windfall.providers.slurm.slurm_commands import SiteCommands
from windfall.providers.slurm.slurm_provider import SlurmProvider
from windfall.providers.slurm.slurm_settings import SlurmSettings
from windfall.terms import BlockValue, Seconds

SECRET = "hush-hush-7741"
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
    cluster.until(lambda: found.queue() == "", f"the queue is empty: {found.queue()}", 20.0)
    cluster.until(cluster.all_idle, "all nodes are idle", 20.0)


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


@pytest.mark.slow
def test_an_answer_that_slurm_never_gave_is_found(rented: Rented) -> None:
    """slurmctld is stopped in mid-order: the call ends in bounded time, the job runs all the same, and is bought once."""
    rented.provider.offers()
    rented.buy("warm-1")
    rented.cluster.stop()
    began = time.monotonic()
    with pytest.raises(ProviderUnreachable, match="Socket timed out"):
        rented.buy("lost-1")
    took_s = time.monotonic() - began
    rented.cluster.resume()

    machine_ids = rented.buy("lost-1").machine_ids

    rented.await_life("lost-1", MachineLifecycle.RUNNING)
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
def test_a_preempted_machine_hears_it_at_the_start_of_the_grace(rented: Rented) -> None:
    """A job of the higher partition takes its node: TERM arrives at once, the listing tells when it ends, hours are Slurm's."""
    (machine_id,) = rented.buy(
        "taken-1", "sh", "-c", 'trap "echo TERM heard" TERM; echo ready; while :; do sleep 0.1; done'
    ).machine_ids
    rented.cluster.until(lambda: "ready" in rented.output("taken-1"), "its process runs")
    rented.cluster.submit("sleep 3", "--partition=high", "--nodes=3", "--job-name=high")
    rented.cluster.until(lambda: "TERM heard" in rented.output("taken-1"), "it hears TERM")
    heard_at = time.time()
    rented.cluster.until(lambda: rented.of("taken-1").preemption_at is not None, "the listing has it", 5.0)
    announced = rented.of("taken-1")

    gone = rented.await_life("taken-1", MachineLifecycle.GONE)

    assert announced.lifecycle is MachineLifecycle.RUNNING
    assert announced.preemption_at is not None
    assert announced.preemption_at - heard_at > 3.0
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
    assert gone.cause is MachineEndCause.PREEMPTED


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
