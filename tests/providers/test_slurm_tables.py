"""What Slurm prints becomes machines, offers and refusals: pure, on outputs that a real one printed."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from tests.providers import slurm_recorded as recorded
from windfall.errors import ProviderUnreachable
from windfall.market import Machine, MachineEndCause, MachineLifecycle, Offer, Order, Refusal
from windfall.providers import job_blocks
from windfall.providers.slurm import (
    site_checks,
    slurm_listing,
    slurm_settings,
    slurm_site,
    slurm_states,
    slurm_tables,
)
from windfall.providers.slurm.machine_names import index_of, job_of
from windfall.providers.slurm.site_checks import Insurance, SiteFinding
from windfall.providers.slurm.slurm_limits import NO_ASSOCIATIONS, associations_of
from windfall.providers.slurm.slurm_records import RELEASED, TAKEN, KnownMachine
from windfall.providers.slurm.slurm_settings import SlurmSettings
from windfall.providers.slurm.slurm_tables import JobRow
from windfall.structs import replace
from windfall.terms import Reliability, Seconds, WallTime
from windfall.units import duration_s

NOW = WallTime(1795617100.0)
PENDING, RUNNING, GONE = MachineLifecycle.PENDING, MachineLifecycle.RUNNING, MachineLifecycle.GONE


def rows() -> dict[str, JobRow]:
    """The recorded queue by token; of an array its last task."""
    return {row.name: row for row in slurm_tables.read_queue(recorded.queue())}


def machine(row: JobRow, asked: str = "") -> Machine:
    """The first machine of a job."""
    (first, *_) = slurm_listing.seen_in(row, {}, NOW)
    known = {first.machine.machine_id: replace(first, asked=asked)}
    return slurm_listing.seen_in(row, known, NOW)[0].machine


def test_only_windfalls_jobs_are_read() -> None:
    """A user's other jobs are no machines, whatever they are called."""
    assert set(rows()) == {"bad-time", "tiny-1", "one-2", "pair-1", "gang-1"}


def test_a_job_is_a_machine_with_its_orders_tags() -> None:
    """Owner, job, token, type, place and price come from the queue alone, so a lost answer is found."""
    found = machine(rows()["pair-1"])

    assert (found.owner, found.job_id, found.token, found.machine_type) == ("own", "job", "pair-1", "1c0.5g")
    assert (found.zone, found.price_usd_per_hour, found.reliability) == ("low", 0.25, Reliability.TRANSIENT)
    assert (found.lifecycle, found.started, found.ended) == (RUNNING, 1795616056.0, None)


def test_the_tasks_of_an_array_are_machines_that_stand_alone() -> None:
    """Two machines of one order, with names of their own and no allocation."""
    pair = [row for row in slurm_tables.read_queue(recorded.queue()) if row.name == "pair-1"]

    assert [machine(row).machine_id for row in pair] == ["slurm-18_0", "slurm-18_1"]
    assert {machine(row).allocation for row in pair} == {""}


def test_the_nodes_of_a_gang_are_one_allocation() -> None:
    """Three machines that carry the same allocation; a name with a slash arrives whole."""
    gang = [one.machine for one in slurm_listing.seen_in(rows()["gang-1"], {}, NOW)]

    assert [one.machine_id for one in gang] == ["slurm-30.0", "slurm-30.1", "slurm-30.2"]
    assert {(one.allocation, one.job_id) for one in gang} == {("slurm-30", "job/7")}
    assert [(job_of(one.machine_id), index_of(one.machine_id)) for one in gang] == [("30", 0), ("30", 1), ("30", 2)]


def test_an_end_is_announced_by_a_preemption_and_by_a_time_limit() -> None:
    """Slurm plans a job without limit for a year: that is no end."""
    pair = [machine(row) for row in slurm_tables.read_queue(recorded.queue()) if row.name == "pair-1"]

    assert [one.preemption_at for one in pair] == [None, 1795616070.0]
    assert machine(rows()["gang-1"]).preemption_at == 1795616656.0
    assert machine(rows()["pair-1"], f"{TAKEN} 1795616060.5").preemption_at == 1795616060.5


def test_a_queued_job_has_not_started() -> None:
    """The start that the backfill plans, a year from now, is no start."""
    found = machine(rows()["one-2"])

    assert (found.lifecycle, found.started, found.ended, found.preemption_at) == (PENDING, None, None, None)
    assert found.pending_reason == "Resources: no fitting node is free"
    assert machine(rows()["gang-1"]).pending_reason == ""


@pytest.mark.parametrize(
    ("reason", "text"),
    [
        ("None", ""),
        ("Priority", "Priority: other jobs come first"),
        ("Dependency", "Dependency: another job must end first"),
        ("QOSMaxJobsPerUserLimit", "QOSMaxJobsPerUserLimit: a limit of the QOS"),
        ("AssocGrpCpuLimit", "AssocGrpCpuLimit: a limit of the account"),
        (
            "ReqNodeNotAvail,_May_be_reserved",
            "ReqNodeNotAvail,_May_be_reserved: a node that it needs is down or reserved",
        ),
        ("NewInSlurm30", "NewInSlurm30"),
    ],
)
def test_why_a_job_waits_is_said_in_words(reason: str, text: str) -> None:
    """Slurm's own code comes first, so that a user can look it up; a code without words stands alone."""
    assert slurm_states.reason_text(reason) == text


def test_what_was_cancelled_in_the_queue_never_ran() -> None:
    """It is gone without a start, so it costs nothing; unless this side released it, it failed."""
    found = machine(rows()["bad-time"])

    assert (found.lifecycle, found.started, found.cause) == (GONE, None, MachineEndCause.FAILED)
    assert machine(rows()["bad-time"], RELEASED).cause is MachineEndCause.RELEASED


def test_a_machine_that_ends_itself_within_the_grace_was_preempted() -> None:
    """Its agent saves and stops, so Slurm calls it COMPLETED; that its preemption had begun decides."""
    taken = rows()["tiny-1"]

    assert machine(taken).cause is MachineEndCause.PREEMPTED
    assert machine(replace(taken, preempted_at=None)).cause is MachineEndCause.STOPPED


@pytest.mark.parametrize(
    ("state", "asked", "cause"),
    [
        ("PREEMPTED", "", MachineEndCause.PREEMPTED),
        ("TIMEOUT", "", MachineEndCause.EXPIRED),
        ("CANCELLED", "", MachineEndCause.CANCELLED),
        ("CANCELLED", RELEASED, MachineEndCause.RELEASED),
        ("CANCELLED", TAKEN, MachineEndCause.PREEMPTED),
        ("COMPLETED", f"{TAKEN} 1795616060.5", MachineEndCause.PREEMPTED),
        ("NODE_FAIL", "", MachineEndCause.FAILED),
        ("NODE_FAIL", RELEASED, MachineEndCause.FAILED),
        ("OUT_OF_MEMORY", "", MachineEndCause.FAILED),
        ("FAILED", "", MachineEndCause.FAILED),
    ],
)
def test_each_final_state_has_its_cause(state: str, asked: str, cause: MachineEndCause) -> None:
    """A job that a person cancelled was not taken by the site; a node that failed before a release arrived has failed."""
    row = replace(rows()["pair-1"], state=state, preempted_at=None)

    assert machine(row, asked).cause is cause


LIMIT_S = 600.0
"""Told 120 s before it."""


@pytest.mark.parametrize(
    ("state", "lived_s", "taken", "cause"),
    [
        ("TIMEOUT", 600.0, False, MachineEndCause.EXPIRED),
        ("COMPLETED", 500.0, False, MachineEndCause.EXPIRED),
        ("COMPLETED", 400.0, False, MachineEndCause.STOPPED),
        ("COMPLETED", 500.0, True, MachineEndCause.PREEMPTED),
        ("CANCELLED", 500.0, True, MachineEndCause.PREEMPTED),
        ("CANCELLED", 500.0, False, MachineEndCause.CANCELLED),
        ("NODE_FAIL", 600.0, False, MachineEndCause.FAILED),
    ],
)
def test_a_machine_that_leaves_before_its_time_limit_was_not_preempted(
    state: str, lived_s: float, taken: bool, cause: MachineEndCause
) -> None:
    """It saves and stops once it is told, so Slurm calls it COMPLETED; a preemption that has begun counts first."""
    began = WallTime(1795616056.0)
    ended = WallTime(began + lived_s)
    row = replace(rows()["pair-1"], state=state, started=began, ended=ended, limit_s=LIMIT_S)
    found = machine(replace(row, preempted_at=WallTime(ended - 30.0) if taken else None))

    assert (found.cause, found.limit_at) == (cause, began + LIMIT_S)


@pytest.mark.parametrize(
    ("state", "announced_s", "cause"),
    [
        ("COMPLETED", LIMIT_S, MachineEndCause.EXPIRED),
        ("COMPLETED", 450.0, MachineEndCause.PREEMPTED),
        ("TIMEOUT", LIMIT_S, MachineEndCause.EXPIRED),
    ],
)
def test_the_accounts_tell_a_time_limit_from_a_preemption(
    state: str, announced_s: float, cause: MachineEndCause
) -> None:
    """What was announced while it ran is either its limit or earlier than that."""
    began = WallTime(1795616976.0)
    running = replace(
        machine(rows()["pair-1"]),
        machine_id="slurm-4",
        token="tok-4",
        started=began,
        limit_at=WallTime(began + LIMIT_S),
    )
    known = KnownMachine(replace(running, preemption_at=WallTime(began + announced_s)), 4, "", WallTime(began + 490.0))
    row = next(row for row in slurm_tables.read_accounts(recorded.ACCOUNTS) if row.job == "4" and row.ended is not None)

    found = slurm_listing.ended_unseen(known, [replace(row, state=state, ended=WallTime(began + 500.0))]).machine

    assert found.cause is cause


def test_a_state_that_nobody_has_heard_of_is_alive() -> None:
    """A newer Slurm's word must not make Windfall buy a second machine."""
    assert slurm_states.lifecycle_of("POWERING_UP_NODE") is RUNNING


def test_of_one_token_the_oldest_job_counts() -> None:
    """Another job of that name that lives is to be cancelled; one that has ended is past."""
    old, young = replace(rows()["one-2"], number=40), replace(rows()["one-2"], number=41)
    past = replace(young, number=42, state="CANCELLED")

    kept, doubles = slurm_listing.first_of_each_token([young, past, old])

    assert ([row.number for row in kept], [row.number for row in doubles]) == ([40], [41])


def test_what_can_never_start_is_hopeless() -> None:
    """A limit above the partition's, or a second start of a machine that is gone; a full cluster is not."""
    waiting = rows()["one-2"]

    assert not slurm_listing.is_hopeless(waiting)
    assert slurm_listing.is_hopeless(replace(waiting, reason="PartitionTimeLimit"))
    assert slurm_listing.is_hopeless(replace(waiting, restarts=1))


@pytest.mark.parametrize("cut", [5, 13])
def test_half_a_row_is_no_listing(cut: int) -> None:
    """A row of Windfall's that cannot be read makes the whole listing unknown."""
    lines = recorded.queue().splitlines()
    cells = lines[1].split("\x1f")

    with pytest.raises(ProviderUnreachable):
        slurm_tables.read_queue("\n".join([lines[0], "\x1f".join(cells[:2] + cells[cut:])]))


@pytest.mark.parametrize(
    ("reason", "refusal"),
    [
        ("Resources", Refusal.NO_CAPACITY),
        ("Priority", Refusal.NO_CAPACITY),
        ("Nodes_required_for_job_are_DOWN,_DRAINED_or_reserved", Refusal.NO_CAPACITY),
        ("QOSMaxJobsPerUserLimit", Refusal.QUOTA),
        ("AssocGrpCpuLimit", Refusal.QUOTA),
        ("PartitionConfig", Refusal.INVALID),
        ("BadConstraints", Refusal.INVALID),
        ("Dependency", None),
        ("None", None),
    ],
)
def test_each_reason_to_wait_is_a_kind_of_refusal(reason: str, refusal: Refusal | None) -> None:
    """No room, a limit, or never; a job that waits for its turn is none of them."""
    assert slurm_states.refusal_of_reason(reason) is refusal


@pytest.mark.parametrize(("text", "kind"), recorded.REFUSED.items())
def test_each_refusal_of_sbatch_is_told_apart(text: str, kind: str) -> None:
    """Each as a real Slurm said it."""
    assert slurm_states.refusal_of_text(text) == kind


@pytest.mark.parametrize("text", [recorded.UNANSWERED, recorded.UNREACHABLE])
def test_a_call_without_an_answer_is_no_refusal(text: str) -> None:
    """The job may be in the queue."""
    assert slurm_states.refusal_of_text(text) is None


def test_the_accounts_tell_each_stretch() -> None:
    """Times in seconds, states without who cancelled; what the database knows by half is left out."""
    found = slurm_tables.read_accounts(recorded.ACCOUNTS)

    assert [(row.job, row.state) for row in found if row.job == "4"] == [("4", "PREEMPTED"), ("4", "RUNNING")]
    assert (found[0].state, found[0].started) == ("CANCELLED", None)
    assert "5" not in {row.job for row in found}


def test_a_machine_that_no_queue_shows_ended_as_the_accounts_say() -> None:
    """With its times; without accounts it was there when it was last seen, and no longer."""
    running = replace(machine(rows()["pair-1"]), machine_id="slurm-4", token="tok-4", preemption_at=None)
    known = KnownMachine(running, 4, "", WallTime(1795616980.0))
    accounts = [row for row in slurm_tables.read_accounts(recorded.ACCOUNTS) if row.ended is not None]

    by_accounts = slurm_listing.ended_unseen(known, accounts).machine
    alone = slurm_listing.ended_unseen(known, []).machine
    other = slurm_listing.ended_unseen(replace(known, machine=replace(running, token="tok-9")), accounts).machine

    assert (by_accounts.started, by_accounts.ended) == (1795616976.0, 1795616988.0)
    assert by_accounts.cause is MachineEndCause.PREEMPTED
    assert (alone.lifecycle, alone.ended, alone.cause) == (GONE, 1795616980.0, MachineEndCause.FAILED)
    assert other == replace(alone, token="tok-9"), "a number that was used again is another order's"


def site() -> slurm_site.Site:
    """The recorded site."""
    rules = slurm_site.read_rules(recorded.CONFIG)
    partitions = slurm_site.read_partitions(recorded.PARTITIONS, rules)
    gpu = replace(partitions["high"], name="gpu")
    return slurm_site.Site(rules, {**partitions, "gpu": gpu}, slurm_site.read_kinds(recorded.NODES))


KNOWN = associations_of(recorded.ASSOCIATIONS, recorded.QOS)
"""What the recorded accounts know of their user."""


def offers(usd: float = 0.0) -> dict[str, Offer]:
    """What it offers, by partition."""
    return {one.zone: one for one in slurm_site.offers_of(site(), frozenset(), usd, None, NOW)}


def test_each_kind_of_node_in_each_partition_is_an_offer() -> None:
    """A partition that gives way sells machines that can be preempted, with its grace; hours cost nothing by themselves."""
    found = offers()

    assert (found["low"].reliability, found["low"].notice_s) == (Reliability.TRANSIENT, 6.0)
    assert (found["high"].reliability, found["high"].notice_s) == (Reliability.RELIABLE, 0.0)
    assert (found["gpu"].machine_type, found["gpu"].accelerator, found["gpu"].accelerators) == (
        "64c512g-a100x8",
        "A100",
        8,
    )
    assert {one.price_usd_per_hour for one in found.values()} == {0.0}


def test_nodes_that_are_down_are_not_offered() -> None:
    """Of each kind only those count that can start a job; a kind without any is no offer."""
    lost = recorded.NODES.replace("mixed", "down*")
    kinds = slurm_site.read_kinds(lost)

    assert {(kind.partition, kind.usable) for kind in kinds} == {("low", 2), ("high", 2), ("gpu", 0)}
    assert "gpu" not in {
        one.zone for one in slurm_site.offers_of(replace(site(), kinds=kinds), frozenset(), 0.0, None, NOW)
    }


def test_a_price_follows_the_sites_weights() -> None:
    """By slurm.conf(5): CPU=1.0,Mem=0.25G,GRES/gpu=2.0 on 1 CPU and half a GiB is 1.125 units; without weights CPUs count."""
    found = offers(usd=0.1)

    assert found["low"].price_usd_per_hour == pytest.approx(0.1125)
    assert found["high"].price_usd_per_hour == pytest.approx(0.1)


def test_without_preemption_no_machine_is_transient() -> None:
    """The partition's own word counts only where the site preempts."""
    rules = slurm_site.read_rules(recorded.CONFIG.replace("preempt/partition_prio", "preempt/none"))

    assert not any(one.preemptible for one in slurm_site.read_partitions(recorded.PARTITIONS, rules).values())


INSURED = Insurance(663.0, 0.049, 0.03, True, "assumed a preemption every 3 h, and assumed 20 s for a save")


def told(config: str = recorded.CONFIG, poll_s: float = 30.0) -> dict[str, SiteFinding]:
    """What `windfall doctor slurm` says of the recorded site."""
    settings = SlurmSettings(folder=Path("/home/me/machines"), poll_s=Seconds(poll_s), partitions=frozenset())
    found = site_checks.findings(site(), config, settings, 300.0, known=KNOWN, insurance=lambda _: INSURED)
    return {one.name: one for one in found}


def test_a_sites_settings_are_said_in_words() -> None:
    """What a grace is worth, when a limit ends jobs, whether anybody keeps accounts, and what the polling costs."""
    found = told()

    assert found["partition low"].says == (
        "2 usable nodes, jobs end after 10 min, PreemptMode=REQUEUE, GraceTime=6: TERM comes 6.0 s before the end; saving "
        "every 11 min costs 3.0 % of the time, and with all that is lost 4.9 % (assumed a preemption every 3 h, and assumed "
        "20 s for a save)"
    )
    assert found["partition high"].says == "2 usable nodes, no time limit, not preempted"
    assert found["accounting"].says.startswith("there is none")
    assert found["polling"].says.startswith(
        "one controller asks for its user's queue 2 times a minute, and for the site 0.6 "
    )
    assert all(one.good for one in found.values())
    assert not told(poll_s=1.0)["polling"].good


def test_a_save_that_no_grace_has_room_for_is_a_warning() -> None:
    """A save of 20 s in a grace of 6 s."""
    settings = SlurmSettings(folder=Path("/home/me/machines"))
    short = replace(INSURED, fits=False)
    found = {
        one.name: one
        for one in site_checks.findings(
            site(), recorded.CONFIG, settings, 300.0, known=NO_ASSOCIATIONS, insurance=lambda _: short
        )
    }

    assert (found["partition low"].good, found["partition low"].advice) == (
        False,
        "such a save does not fit into that time",
    )


def test_partitions_that_stop_jobs_are_told_apart() -> None:
    """SUSPEND takes no machine away: it only falls silent."""
    rules = slurm_site.read_rules(recorded.CONFIG)
    text = recorded.PARTITIONS.replace("PreemptMode=REQUEUE", "PreemptMode=SUSPEND,GANG")
    stopping = replace(site(), partitions=slurm_site.read_partitions(text, rules))
    settings = SlurmSettings(folder=Path("/home/me/machines"))
    found = {
        one.name: one
        for one in site_checks.findings(
            stopping, recorded.CONFIG, settings, 300.0, known=NO_ASSOCIATIONS, insurance=lambda _: INSURED
        )
    }

    assert not found["partition low"].good
    assert "is stopped, keeps its memory and continues later" in found["partition low"].says


@pytest.mark.parametrize("set_", [True, False])
def test_what_a_batch_shell_hears_is_said(set_: bool) -> None:
    """It depends on one setting of the site; KillWait is told beside it."""
    config = recorded.CONFIG + "SlurmctldParameters     = preempt_send_user_signal\n" * set_
    says = told_of(config)["signals"].says

    assert says.startswith("from TERM to KILL a job has KillWait=5; ")
    assert ("also reaches batch shells" in says) == set_


def told_of(config: str) -> dict[str, SiteFinding]:
    """What is said of a site with this configuration."""
    settings, found = (
        SlurmSettings(folder=Path("/home/me/machines")),
        replace(site(), rules=slurm_site.read_rules(config)),
    )
    rows = site_checks.findings(found, config, settings, 300.0, known=KNOWN, insurance=lambda _: None)
    return {one.name: one for one in rows}


def test_a_users_own_limits_are_said_where_they_hold() -> None:
    """Accounts, QOS and the numbers; without accounting nothing, and without enforcement that nothing holds jobs back."""
    kept = recorded.CONFIG.replace("accounting_storage/none", "accounting_storage/slurmdbd")
    held = kept + "AccountingStorageEnforce = associations,limits,qos\n"

    assert told_of(held)["account"].says == "yours: lab, root; QOS: normal, short"
    assert told_of(held)["your limits"].says == "in low, high, gpu: 3 jobs in the queue (MaxSubmitJobs)"
    assert told_of(kept)["your limits"].says == "AccountingStorageEnforce has no limits: nothing holds your jobs back"
    assert "your limits" not in told()


def test_a_grace_of_nothing_is_a_warning() -> None:
    """It says what remains, KillWait, and what to do."""
    rules = slurm_site.read_rules(recorded.CONFIG)
    partitions = slurm_site.read_partitions(recorded.PARTITIONS.replace("GraceTime=6", "GraceTime=0"), rules)
    settings = SlurmSettings(folder=Path("/home/me/machines"), partitions=frozenset({"low", "nope"}))
    found = {
        one.name: one
        for one in site_checks.findings(
            replace(site(), partitions=partitions),
            recorded.CONFIG,
            settings,
            300.0,
            known=NO_ASSOCIATIONS,
            insurance=lambda _: INSURED,
        )
    }

    assert not found["partition low"].good
    assert (
        "GraceTime=0: no emergency save possible but in KillWait, the 5.0 s from TERM to KILL; saving every 11 min costs "
        "3.0 % of the time" in found["partition low"].says
    )
    assert found["partition nope"].says == "does not exist"
    assert "partition high" not in found


@pytest.mark.parametrize(
    ("text", "length_s"),
    [
        ("30 sec", 30.0),
        ("10:00", 600.0),
        ("00:10:00", 600.0),
        ("1-12:00:00", 129600.0),
        ("6", 6.0),
        ("UNLIMITED", math.inf),
    ],
)
def test_lengths_of_time_are_read(text: str, length_s: float) -> None:
    """As `scontrol` prints them."""
    assert slurm_tables.read_duration_s(text) == length_s


def test_an_orders_tag_comes_back() -> None:
    """Whatever stands in names: the comment of a job is one word without spaces."""
    offer = Offer("slurm", "1c 0.5g", "low", 0.125, 0.125, Reliability.TRANSIENT, Seconds(6.0), NOW)
    tag = slurm_tables.order_tag(Order("t-1", "an owner", "a/b|c", offer, 2, 2, gang=True))
    line = "\x1f".join(["7", "N/A", "t-1", "PENDING", "None", *["N/A"] * 5, "", "low", "0", tag, ""])

    (row,) = slurm_tables.read_queue(line)

    assert " " not in tag
    assert row.tag == slurm_tables.OrderTag("an owner", "a/b|c", "1c 0.5g", Reliability.TRANSIENT, 0.125, 2)


@pytest.mark.parametrize(
    ("text", "fits"),
    [("4h", True), ("1h30m", True), ("90s", True), ("0h", False), ("4 h", False), ("4", False)],
)
def test_durations_are_those_of_the_rest_of_a_job_file(text: str, fits: bool) -> None:
    """What the block takes is read later, and what it refuses is not."""
    key = next(one for one in slurm_settings.BLOCK if one.name == "time")

    assert (job_blocks.problem_with(key, text) is None) == fits
    if fits:
        assert slurm_settings.time_limit_s({"time": text}) == duration_s(text, "time")
