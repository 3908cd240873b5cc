"""How the provider speaks with Slurm: what it runs, how often, and what becomes of each answer; the commands are scripted."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.providers import slurm_recorded as recorded
from windfall.errors import ProviderUnreachable
from windfall.market import Answer, BootSecret, BootSpec, MachineEndCause, MachineLifecycle, Offer, Order, Refusal
from windfall.providers.slurm import slurm_limits
from windfall.providers.slurm.slurm_commands import CommandResult, SiteCommands
from windfall.providers.slurm.slurm_provider import SlurmProvider
from windfall.providers.slurm.slurm_settings import SlurmSettings
from windfall.simulation.virtual_time import WALL_START, Timeline
from windfall.terms import BlockValue, Instant, Seconds, WallTime

SECRET = "hush-hush-7741"
TAG = "windfall/own/job/1c0.5g/transient/0/0"


@dataclass
class Clock:
    """A clock that stands still until it is moved."""

    timeline: Timeline = field(default_factory=Timeline)

    def now(self) -> Instant:
        return Instant(self.timeline.time)

    def wall_time(self) -> WallTime:
        return WallTime(WALL_START + self.timeline.time)

    def sleep(self, duration_s: Seconds) -> None:
        self.timeline.pass_time(duration_s)


@dataclass
class Scripted:
    """A site that answers as it is told, and remembers what it was asked; `sh` is real, in the test's folder."""

    clock: Clock
    where: str = "this host"
    refusal: str = ""
    trial: str = ""
    queue: list[str] = field(default_factory=list)
    asked: list[tuple[str, ...]] = field(default_factory=list)
    lost: bool = False
    config: str = recorded.CONFIG
    accounts: str = ""
    present: bool = True
    started: str = ""
    nodes: str = recorded.NODES

    def run(self, argv: Sequence[str], data: bytes = b"") -> CommandResult:
        self.asked.append(tuple(argv))
        if argv[0] == "sacctmgr":
            return CommandResult(0, recorded.QOS, "")
        if argv == slurm_limits.ASSOCIATIONS:
            return CommandResult(0, recorded.ASSOCIATIONS, "")
        if argv[0] == "sh":
            return SiteCommands("", dict(os.environ)).run(argv, data)
        if argv[0] == "sbatch" and "--test-only" in argv:
            return CommandResult(int(bool(self.trial)), "", self.trial or self.started)
        if argv[0] == "sbatch":
            return self._submit(argv)
        named = [option.removeprefix("--name=") for option in argv if option.startswith("--name=")]
        shown = [row for row in self.queue if not named or row.split("\x1f")[2] in named]
        answers = {"squeue": "".join(shown), "sinfo": self.nodes, "scancel": "", "sacct": self.accounts}
        if argv[0] == "scontrol":
            return CommandResult(0, self.config if "config" in argv else recorded.PARTITIONS, "")
        return CommandResult(0, answers[argv[0]], "")

    def _submit(self, argv: Sequence[str]) -> CommandResult:
        if self.refusal:
            return CommandResult(1, "", self.refusal)
        options = dict(option.removeprefix("--").partition("=")[::2] for option in argv[1:])
        number = 1 + len(self.queue)
        cells = [
            str(number),
            "N/A",
            options["job-name"],
            "PENDING",
            "None",
            f"{self.clock.wall_time():.0f}",
            *["N/A"] * 4,
        ]
        self.queue.append("\x1f".join([*cells, "", options["partition"], "0", options["comment"], "\n"]))
        if self.lost:
            return CommandResult(1, "", recorded.UNANSWERED)
        return CommandResult(0, f"{number}\n", "")

    def calls(self, *words: str) -> list[tuple[str, ...]]:
        """The calls of a command with these words."""
        return [call for call in self.asked if call[0] == words[0] and all(word in call for word in words[1:])]

    def becomes(self, number: int, state: str, *, started: bool = True, ended: bool = False) -> None:
        """A job changes its state."""
        cells = self.queue[number - 1].split("\x1f")
        now = f"{self.clock.wall_time():.0f}"
        cells[3] = state
        if started:
            cells[6], cells[10] = (cells[6] if cells[6] != "N/A" else now), "n0"
        cells[7] = now if ended else "N/A"
        self.queue[number - 1] = "\x1f".join(cells)


Open = Callable[..., SlurmProvider]
DAY_S = 86_400.0


@pytest.fixture
def slurm() -> Scripted:
    """A site."""
    return Scripted(Clock())


@pytest.fixture
def provider(slurm: Scripted, tmp_path: Path) -> SlurmProvider:
    """A provider on it."""
    return SlurmProvider(tmp_path, SlurmSettings(folder=tmp_path / "machines"), slurm.clock, slurm)


def offer(provider: SlurmProvider, partition: str = "low") -> Offer:
    """What a partition sells."""
    return next(one for one in provider.offers() if one.zone == partition)


def buy(provider: SlurmProvider, token: str = "own-1", count: int = 1, **block: BlockValue) -> Answer:
    """Order machines with a secret."""
    order = Order(token, "own", "job", offer(provider), count, count)
    boot = BootSpec(("sleep", "9"), secrets=(BootSecret("KEY", SECRET),), credential="KEY", block=tuple(block.items()))
    return provider.order(order, boot)


def test_an_order_is_one_job_named_by_its_token(slurm: Scripted, provider: SlurmProvider) -> None:
    """Not to be requeued, and kept from running beside another of its name."""
    answer = buy(provider)

    (submitted,) = (call for call in slurm.calls("sbatch") if "--test-only" not in call)
    assert answer.machine_ids == ("slurm-1",)
    assert {"--parsable", "--no-requeue", "--dependency=singleton", "--job-name=own-1", "--partition=low"} <= set(
        submitted
    )


def test_a_known_token_asks_slurm_nothing(slurm: Scripted, provider: SlurmProvider) -> None:
    """The same machines, without a single command."""
    first = buy(provider)
    slurm.asked.clear()

    assert buy(provider) == first
    assert slurm.calls("sbatch") == slurm.calls("squeue") == []


def test_an_answer_that_was_lost_is_found_by_name(slurm: Scripted, provider: SlurmProvider, tmp_path: Path) -> None:
    """The retry submits nothing, and what the machine starts from has stayed."""
    slurm.lost = True
    with pytest.raises(ProviderUnreachable, match="Socket timed out"):
        buy(provider)
    slurm.lost = False
    assert (tmp_path / "machines" / "own-1" / "boot-0.json").exists()

    assert buy(provider).machine_ids == ("slurm-1",)
    assert len(slurm.queue) == 1


def test_an_answer_that_was_lost_leaves_what_the_machines_start_from(
    slurm: Scripted, provider: SlurmProvider, tmp_path: Path
) -> None:
    """The job may be in the queue, and would find nothing to start from."""
    slurm.lost = True
    with pytest.raises(ProviderUnreachable):
        buy(provider)

    assert (tmp_path / "machines" / "own-1" / "boot-0.json").exists()


def test_an_order_that_may_have_come_and_gone_is_not_sent_again(slurm: Scripted, provider: SlurmProvider) -> None:
    """Once Slurm may have forgotten what became of it, a second job could be a second machine."""
    slurm.lost = True
    with pytest.raises(ProviderUnreachable):
        buy(provider)
    slurm.lost = False
    slurm.queue.clear()
    slurm.clock.sleep(Seconds(250.0))

    answer = buy(provider)

    assert (answer.machine_ids, answer.refusal, slurm.queue) == ((), Refusal.CANCELLED, [])


def test_where_jobs_are_forgotten_at_once_an_order_is_looked_for_until_it_must_have_arrived(
    slurm: Scripted, provider: SlurmProvider
) -> None:
    """Nothing replaces what may still be on its way: another order could be a second machine."""
    slurm.config = recorded.CONFIG.replace("MinJobAge               = 300 sec", "MinJobAge               = 5 sec")
    slurm.lost = True
    with pytest.raises(ProviderUnreachable):
        buy(provider)
    slurm.lost = False
    late = slurm.queue.pop()
    slurm.clock.sleep(Seconds(60.0))
    with pytest.raises(ProviderUnreachable, match="may still be under way"):
        buy(provider)
    slurm.queue.append(late)

    assert buy(provider).machine_ids == ("slurm-1",)


def test_many_machines_of_one_kind_are_one_array(slurm: Scripted, provider: SlurmProvider) -> None:
    """Three in one call."""
    buy(provider, count=3)

    assert len(slurm.calls("sbatch", "--array=0-2")) == 1


def test_a_secret_is_in_no_command_and_no_readable_file(
    slurm: Scripted, provider: SlurmProvider, tmp_path: Path
) -> None:
    """It travels in a file for its owner alone, whose name is no secret."""
    buy(provider)
    (boot,) = (tmp_path / "machines" / "own-1").glob("boot-*.json")

    assert SECRET not in repr(slurm.asked)
    assert json.loads(boot.read_text())["env"]["KEY"] == SECRET
    assert {path.stat().st_mode & 0o077 for path in (boot, boot.parent)} == {0}


def test_a_time_limit_above_the_partitions_is_refused(slurm: Scripted, provider: SlurmProvider) -> None:
    """Slurm would queue it for ever."""
    answer = buy(provider, time="3h")

    assert answer.refusal is Refusal.INVALID
    assert answer.message == (
        "slurm.time is 3 h, and the partition low ends jobs after 10 min: ask for less, or name another partition"
    )
    assert slurm.calls("sbatch") == []


def test_a_block_becomes_options(slurm: Scripted, provider: SlurmProvider) -> None:
    """Account, QOS, resources, features, time and a part of a node."""
    buy(provider, account="lab", qos="low", gres="gpu:a100:1", constraint="ib", time="90s", cpus=4, memory="2GiB")

    (call, *_) = slurm.calls("sbatch", "--parsable")
    wanted = ["account=lab", "qos=low", "gres=gpu:a100:1", "constraint=ib", "time=2", "cpus-per-task=4", "mem=2048M"]
    assert {f"--{option}" for option in wanted} <= set(call)
    assert "--exclusive" not in call


def test_the_queue_is_asked_once_in_the_interval(slurm: Scripted, provider: SlurmProvider) -> None:
    """However often machines and bills are asked for, and for however many owners: two `squeue` a minute."""
    buy(provider)
    provider.list("own")
    slurm.asked.clear()

    for _ in range(60):
        slurm.clock.sleep(Seconds(1.0))
        provider.list("own")
        provider.list("other")
        provider.charges("own", "")
        provider.offers()

    assert len(slurm.calls("squeue")) == 2
    assert len(slurm.asked) == 2


def test_a_machine_is_followed_to_its_end_and_billed_once(slurm: Scripted, provider: SlurmProvider) -> None:
    """Pending, running, gone; its line has the times of Slurm's record, and a cursor passes it once."""
    buy(provider)
    slurm.clock.sleep(Seconds(40.0))
    slurm.becomes(1, "RUNNING")
    assert provider.list("own")[0].lifecycle is MachineLifecycle.RUNNING
    slurm.clock.sleep(Seconds(100.0))
    slurm.becomes(1, "COMPLETED", ended=True)

    (gone,) = provider.list("own")
    bill = provider.charges("own", "")

    assert (gone.lifecycle, gone.cause) == (MachineLifecycle.GONE, MachineEndCause.STOPPED)
    assert [(line.machine_id, line.ended - line.started, line.settled) for line in bill.charges] == [
        ("slurm-1", 100.0, True)
    ]
    assert provider.charges("own", bill.cursor).charges == ()


def test_what_machines_printed_is_kept_for_a_week(slurm: Scripted, provider: SlurmProvider, tmp_path: Path) -> None:
    """A shared disk has quotas; a machine that lives, or that ended six days ago, keeps its folder."""
    old, young, alive = (tmp_path / "machines" / token for token in ("own-1", "own-2", "own-3"))
    for number, folder in enumerate((old, young, alive), 1):
        buy(provider, folder.name)
        slurm.becomes(number, "RUNNING")
    for number in (1, 2):
        slurm.clock.sleep(Seconds(40.0))
        provider.list("own")
        slurm.becomes(number, "COMPLETED", ended=True)
        slurm.clock.sleep(Seconds(40.0))
        provider.list("own")
        slurm.queue[number - 1] = ""  # Slurm forgets it
        slurm.clock.sleep(Seconds(2 * DAY_S))
    slurm.clock.sleep(Seconds(2.9 * DAY_S))
    provider.list("own")
    assert all(folder.exists() for folder in (old, young, alive))

    slurm.clock.sleep(Seconds(0.2 * DAY_S))
    provider.list("own")

    assert [folder.exists() for folder in (old, young, alive)] == [False, True, True]
    before = len(slurm.calls("sh"))
    slurm.clock.sleep(Seconds(DAY_S))
    provider.list("own")
    assert len(slurm.calls("sh")) == before, "what is gone is not removed again"


def test_a_release_is_left_for_the_machine_and_cancels_its_job(
    slurm: Scripted, provider: SlurmProvider, tmp_path: Path
) -> None:
    """A node that Slurm has given up still reads its folder."""
    buy(provider)
    provider.release("slurm-1")
    slurm.becomes(1, "CANCELLED", started=False, ended=True)

    assert slurm.calls("scancel", "1")
    assert json.loads((tmp_path / "machines" / "own-1" / "request-0.json").read_text()) == {"release": True}
    (gone,) = provider.list("own")
    assert (gone.cause, gone.started) == (MachineEndCause.RELEASED, None)


def test_a_machine_whose_node_is_given_up_is_asked_to_end(
    slurm: Scripted, provider: SlurmProvider, tmp_path: Path
) -> None:
    """Its processes may live, and nobody else tells them: neither Slurm nor a controller that has replaced it."""
    buy(provider)
    slurm.becomes(1, "RUNNING")
    provider.list("own")
    slurm.becomes(1, "NODE_FAIL", ended=True)
    slurm.clock.sleep(Seconds(40.0))

    (gone,) = provider.list("own")

    assert gone.cause is MachineEndCause.FAILED
    assert json.loads((tmp_path / "machines" / "own-1" / "request-0.json").read_text()) == {"release": True}


def test_of_an_array_only_what_is_hopeless_is_cancelled(slurm: Scripted, provider: SlurmProvider) -> None:
    """A task that an admin has requeued takes no other along: they run, and stay listed as running."""
    buy(provider, count=2)
    row = slurm.queue.pop()
    slurm.queue += [row.replace("\x1fN/A\x1f", f"\x1f{task}\x1f", 1) for task in range(2)]
    provider.list("own")
    slurm.clock.sleep(Seconds(40.0))
    slurm.becomes(2, "RUNNING")
    slurm.queue[0] = slurm.queue[0].replace("\x1flow\x1f0\x1f", "\x1flow\x1f1\x1f")

    listed = {one.machine_id: one.lifecycle for one in provider.list("own")}

    assert slurm.calls("scancel") == [("scancel", "1_0")]
    assert listed["slurm-1_1"] is MachineLifecycle.RUNNING
    assert listed["slurm-1_0"] is MachineLifecycle.GONE


def test_a_listing_that_broke_off_is_made_again(
    slurm: Scripted, provider: SlurmProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once the queue was read and not recorded, the next listing reads it again, and is no older than stated."""
    buy(provider)
    slurm.queue.append(slurm.queue[0].replace("1\x1f", "2\x1f", 1))
    slurm.becomes(1, "RUNNING")
    whole = slurm.run

    def broken(argv: Sequence[str], data: bytes = b"") -> CommandResult:
        return CommandResult(1, "", recorded.UNREACHABLE) if argv[0] == "scancel" else whole(argv, data)

    monkeypatch.setattr(slurm, "run", broken)
    with pytest.raises(ProviderUnreachable):
        provider.list("own")
    monkeypatch.setattr(slurm, "run", whole)

    assert provider.list("own")[0].lifecycle is MachineLifecycle.RUNNING


def test_a_second_job_of_one_name_is_cancelled(slurm: Scripted, provider: SlurmProvider) -> None:
    """The older counts."""
    buy(provider)
    slurm.queue.append(slurm.queue[0].replace("1\x1f", "2\x1f", 1))

    assert [one.machine_id for one in provider.list("own")] == ["slurm-1"]
    assert slurm.calls("scancel", "2")
    assert not slurm.calls("scancel", "1")


def test_a_machine_that_the_queue_forgets_is_gone(slurm: Scripted, provider: SlurmProvider) -> None:
    """Never silence: without accounts it failed, and is not billed beyond the last time it was seen."""
    buy(provider)
    slurm.becomes(1, "RUNNING")
    provider.list("own")
    seen_at = slurm.clock.wall_time()
    slurm.queue.clear()
    slurm.clock.sleep(Seconds(400.0))

    (gone,) = provider.list("own")

    assert (gone.lifecycle, gone.cause, gone.ended) == (MachineLifecycle.GONE, MachineEndCause.FAILED, seen_at)


def test_accounts_that_lag_are_waited_for(slurm: Scripted, provider: SlurmProvider) -> None:
    """A site that forgets ended jobs at once still tells how they ended, some seconds later; after a minute it is given up."""
    slurm.config = recorded.CONFIG.replace("accounting_storage/none", "accounting_storage/slurmdbd")
    buy(provider)
    slurm.becomes(1, "RUNNING")
    began = provider.list("own")[0].started
    assert began is not None
    slurm.queue.clear()
    slurm.accounts = f"1|own-1|RUNNING|{began:.0f}|Unknown|1\n"
    slurm.clock.sleep(Seconds(40.0))
    assert provider.list("own")[0].lifecycle is MachineLifecycle.RUNNING
    slurm.accounts = f"1|own-1|PREEMPTED|{began:.0f}|{began + 17:.0f}|1\n"
    slurm.clock.sleep(Seconds(31.0))

    (gone,) = provider.list("own")

    assert (gone.cause, gone.ended) == (MachineEndCause.PREEMPTED, began + 17)


def test_accounts_that_never_tell_are_given_up(slurm: Scripted, provider: SlurmProvider) -> None:
    """A machine that no listing has is gone after a minute, whatever the accounts say."""
    slurm.config = recorded.CONFIG.replace("accounting_storage/none", "accounting_storage/slurmdbd")
    buy(provider)
    slurm.becomes(1, "RUNNING")
    provider.list("own")
    slurm.queue.clear()
    slurm.clock.sleep(Seconds(70.0))

    assert provider.list("own")[0].lifecycle is MachineLifecycle.GONE


@pytest.mark.parametrize("state", ["PENDING", "RUNNING", "FAILED"])
def test_a_job_that_slurm_starts_again_is_no_machine(
    slurm: Scripted, provider: SlurmProvider, tmp_path: Path, state: str
) -> None:
    """Whatever the listing caught of it: the machine failed, is billed for its first stretch, and its job is cancelled.

    While the job waits for its second start, all that is known of the first stretch is when it was last seen.
    """
    buy(provider)
    slurm.becomes(1, "RUNNING")
    began = slurm.clock.wall_time()
    provider.list("own")
    slurm.clock.sleep(Seconds(40.0))
    again = slurm.clock.wall_time()
    slurm.queue[0] = slurm.queue[0].replace(f"{began:.0f}\x1fN/A\x1fN/A", "N/A\x1fN/A\x1fN/A")
    slurm.becomes(1, state, started=state != "PENDING", ended=state == "FAILED")

    (gone,) = provider.list("own")
    slurm.clock.sleep(Seconds(40.0))
    slurm.becomes(1, "RUNNING")
    slurm.asked.clear()
    provider.list("own")

    assert (gone.lifecycle, gone.cause, gone.started) == (MachineLifecycle.GONE, MachineEndCause.FAILED, began)
    assert gone.ended == pytest.approx(began if state == "PENDING" else again, abs=1.0)
    assert provider.list("own") == (gone,)
    assert len(provider.charges("own", "").charges) == 1
    assert slurm.calls("scancel", "1"), "it is cancelled for as long as it lives"
    assert json.loads((tmp_path / "machines" / "own-1" / "request-0.json").read_text()) == {"release": True}


def test_a_number_that_slurm_gives_again_is_not_used(slurm: Scripted, provider: SlurmProvider) -> None:
    """A controller that was killed forgets a job and its number: the next order gets a number, and a machine, of its own."""
    buy(provider)
    provider.list("own")
    slurm.queue.clear()
    slurm.clock.sleep(Seconds(40.0))
    with pytest.raises(ProviderUnreachable, match="own-2 of a number of its own"):
        buy(provider, "own-2")
    assert slurm.calls("scancel", "1")

    answer = buy(provider, "own-2")

    assert answer.machine_ids == ("slurm-2",)
    assert {one.machine_id: (one.token, one.lifecycle) for one in provider.list("own")} == {
        "slurm-1": ("own-1", MachineLifecycle.GONE),
        "slurm-2": ("own-2", MachineLifecycle.PENDING),
    }


def test_a_machine_of_a_lost_node_is_told_to_end(slurm: Scripted, provider: SlurmProvider, tmp_path: Path) -> None:
    """Its processes may live on; they read it in their folder."""
    buy(provider)
    slurm.becomes(1, "RUNNING")
    provider.list("own")
    slurm.clock.sleep(Seconds(40.0))
    slurm.becomes(1, "NODE_FAIL", ended=True)
    provider.list("own")

    assert json.loads((tmp_path / "machines" / "own-1" / "request-0.json").read_text()) == {"release": True}


def test_a_new_provider_finds_what_the_queue_shows(slurm: Scripted, provider: SlurmProvider, tmp_path: Path) -> None:
    """Records that are lost cost nothing: tags are in the queue, and the token buys nothing more."""
    buy(provider)
    other = SlurmProvider(tmp_path / "new", SlurmSettings(folder=tmp_path / "machines"), slurm.clock, slurm)

    assert [one.machine_id for one in other.list("own")] == ["slurm-1"]
    assert buy(other).machine_ids == ("slurm-1",)
    assert len(slurm.queue) == 1


def test_a_cancelled_token_buys_nothing(slurm: Scripted, provider: SlurmProvider) -> None:
    """Used or not; what waits in the queue is taken out, what runs stays."""
    provider.cancel("own-1")

    assert buy(provider).refusal is Refusal.CANCELLED
    assert slurm.calls("scancel", "--state=PENDING", "--name=own-1")
    assert slurm.queue == []


# ---------------------------------------------------------------------------------------------------- the commands themselves
