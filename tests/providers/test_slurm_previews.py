"""What Slurm says of an order before it is made: its start, its refusals in a user's words, what a part of a node counts, and
a user's limits as quotas.  Pure, on texts that a real one printed, or with scripted commands.
"""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from tests.providers import slurm_recorded as recorded
from tests.providers.test_slurm_orders import Scripted, offer, provider, slurm
from windfall.market import Order, OrderPreview, Quota, Refusal
from windfall.providers.slurm import slurm_limits, slurm_previews, slurm_site
from windfall.providers.slurm.slurm_limits import NO_ASSOCIATIONS, Associations
from windfall.providers.slurm.slurm_previews import AskedOf
from windfall.providers.slurm.slurm_provider import SlurmProvider
from windfall.providers.slurm.slurm_settings import SlurmSettings
from windfall.providers.slurm.slurm_site import Site
from windfall.structs import replace
from windfall.terms import BlockValue, WallTime

__all__ = ["provider", "slurm"]

NOW = WallTime(1795617100.0)
SETTINGS = SlurmSettings(folder=Path("/home/me/machines"))
KNOWN = slurm_limits.associations_of(recorded.ASSOCIATIONS, recorded.QOS)


def site(enforced: bool = False) -> Site:
    """The recorded site, with or without limits that hold jobs back."""
    text = recorded.CONFIG + "AccountingStorageEnforce = associations,limits,qos\n" * enforced
    rules = slurm_site.read_rules(text)
    partitions = slurm_site.read_partitions(recorded.PARTITIONS, rules)
    weighted = replace(partitions["low"], name="gpu")
    return Site(rules, {**partitions, "gpu": weighted}, slurm_site.read_kinds(recorded.NODES))


def asked(partition: str = "low", known: Associations = KNOWN, **block: BlockValue) -> AskedOf:
    """A request to the recorded site."""
    return AskedOf(block, SETTINGS, site(), partition, known)


# ------------------------------------------------------------------------------------------------------------ the start


def test_the_start_is_the_one_that_slurm_says() -> None:
    """In seconds since 1970, as they are asked for."""
    assert slurm_previews.read_start(recorded.STARTS, NOW) == recorded.STARTS_AT


@pytest.mark.parametrize(
    "text",
    [
        "sbatch: Job 3 to start at 173563200000 using 1 processors on nodes n0 in partition low",
        "sbatch: Job 3 to start at 2026-11-25T14:05:00 using 1 processors on nodes n0 in partition low",
        "",
    ],
)
def test_a_senseless_start_is_none(text: str) -> None:
    """The year 7470, a time of an unknown zone, or nothing at all: nothing is said rather than something wrong."""
    assert slurm_previews.read_start(text, NOW) is None


def preview_of(there: Scripted, found: SlurmProvider, partition: str = "low", **block: BlockValue) -> OrderPreview:
    """What the scripted site says of an order."""
    order = Order("preview", "own", "job", offer(found, partition), 1, 1)
    return found.preview(order, tuple(block.items()))


def test_a_preview_asks_slurm_and_submits_nothing(slurm: Scripted, provider: SlurmProvider) -> None:
    """Its answer has the start, what it rests on, what an hour counts, and when the machine ends at the latest."""
    slurm.started = recorded.STARTS

    said = preview_of(slurm, provider, cpus=1, time="5m")

    assert (said.refusal, said.starts_at, said.units_per_hour, said.unit) == (
        None,
        recorded.STARTS_AT,
        pytest.approx(1.125),
        "billing units",
    )
    assert "Slurm's own estimate" in said.estimate
    assert said.ends_after_s == 300.0
    assert preview_of(slurm, provider).ends_after_s == 600.0
    assert preview_of(slurm, provider, "high").ends_after_s is None
    assert len(slurm.calls("sbatch", "--test-only")) == 3
    assert len(slurm.calls("sbatch")) == 3


def test_a_preview_of_what_has_no_room_now_is_no_refusal(slurm: Scripted, provider: SlurmProvider) -> None:
    """It would be queued."""
    slurm.trial = "allocation failure: Required partition not available (inactive or drain)"

    assert preview_of(slurm, provider).refusal is None


def test_machines_that_are_needed_at_once_are_asked_for_at_once(slurm: Scripted, provider: SlurmProvider) -> None:
    """Three nodes of a job that needs all three: one by one each would fit where the three never will."""
    order = Order("preview", "own", "job", offer(provider), 3, 3)
    provider.preview(order, ())
    slurm.trial = "sbatch: error: Batch job submission failed: Requested node configuration is not available"

    said = provider.preview(order, ())

    assert "--nodes=3" in slurm.calls("sbatch", "--test-only")[0]
    assert said.refusal is Refusal.INVALID
    assert said.message == (
        "Slurm refuses the job: the partition low has 2 nodes that are up, and the job needs 3 machines at once: ask for a "
        "smaller num_nodes, or name another partition"
    )


def test_parts_of_nodes_are_asked_for_one_by_one(slurm: Scripted, provider: SlurmProvider) -> None:
    """Several fit on one node, so the number of nodes says nothing about them."""
    provider.preview(Order("preview", "own", "job", offer(provider), 3, 3), (("cpus", 1),))

    assert not slurm.calls("sbatch", "--nodes=3")


def test_a_start_next_year_is_said_to_be_none(slurm: Scripted, provider: SlurmProvider) -> None:
    """A job without a time limit is planned for a year; nobody should read that as a plan."""
    soon, late = (slurm.clock.wall_time() + days * 86400.0 for days in (29.0, 31.0))
    text = "sbatch: Job 3 to start at {:.0f} using 1 processors on nodes n0 in partition low"
    slurm.started = text.format(late)
    none = preview_of(slurm, provider)
    slurm.started = text.format(soon)

    assert (none.starts_at, none.refusal) == (None, None)
    assert "Slurm expects no start within 30 days" in none.message
    assert (preview_of(slurm, provider).starts_at, preview_of(slurm, provider).message) == (round(soon), "")


def test_accounts_without_accounting_are_said_to_have_no_effect(slurm: Scripted, provider: SlurmProvider) -> None:
    """Slurm takes any name there, also one that does not exist."""
    said = preview_of(slurm, provider, account="physics", qos="low")

    assert said.refusal is None
    assert said.message == "slurm.account physics and slurm.qos low have no effect: this cluster has no accounting"


def test_a_time_limit_above_the_partitions_is_refused_without_asking(slurm: Scripted, provider: SlurmProvider) -> None:
    """Slurm itself would queue it for ever."""
    said = preview_of(slurm, provider, time="3h")

    assert said.refusal is Refusal.INVALID
    assert said.message.startswith("slurm.time is 3 h, and the partition low ends jobs after 10 min: ask for less")
    assert slurm.calls("sbatch") == []


# --------------------------------------------------------------------------------------------------------- the refusals


def _sentence(mark: str, request: AskedOf) -> str:
    (text,) = (text for text in recorded.REFUSED if mark in text)
    return slurm_previews.refused(text, request)


@pytest.mark.parametrize(
    ("mark", "request_", "says"),
    [
        (
            "Invalid account",
            asked(account="nope"),
            "the account nope does not exist, or is not yours: set slurm.account to one of lab, root",
        ),
        (
            "Invalid account",
            asked(account="lab"),
            "the account lab may not use the partition low: name another partition",
        ),
        (
            "Invalid account",
            asked(),
            "it takes no job without an account of yours: set slurm.account to one of lab, root",
        ),
        (
            "Invalid account",
            asked(known=NO_ASSOCIATIONS, account="nope"),
            "set slurm.account; `sacctmgr show assoc user=$USER format=account` lists yours",
        ),
        (
            "Invalid qos",
            asked(qos="nope"),
            "the QOS nope does not exist, or is not yours: set slurm.qos to one of normal, short",
        ),
        (
            "generic resource",
            asked(gres="gpu:h100:1"),
            "the partition low has the slurm.gres gpu:h100:1: its nodes have no GPUs",
        ),
        ("generic resource", asked("gpu", gres="gpu:h100:1"), "gpu:h100:1: its nodes have gpu:a100:8, and"),
        (
            "feature",
            asked(constraint="ib"),
            "no node of the partition low has the slurm.constraint ib: `sinfo -o '%P %f'`",
        ),
        (
            "configuration is not available",
            asked(cpus=64, memory="1TB"),
            "no node of the partition low (1c0.5g) has slurm.cpus 64, slurm.memory 1TB: ask for less",
        ),
        ("partition name", asked("gone"), "it has no partition gone for you: name one of low, high, gpu"),
        (
            "accounting/QOS policy",
            asked(),
            "a limit of your account or QOS is reached (AssocMaxSubmitJobLimit; `sacctmgr show",
        ),
        (
            "Resource temporarily",
            asked(),
            "its queue is full (MaxJobCount, or a limit of this account): try again once jobs",
        ),
        ("group not permitted", asked(), "you may not use the partition low: name another one"),
    ],
)
def test_each_refusal_says_what_to_write_instead(mark: str, request_: AskedOf, says: str) -> None:
    """One sentence: the value, and the choices that there are."""
    sentence = _sentence(mark, request_)

    assert sentence.startswith("Slurm refuses the job: ")
    assert says in sentence
    assert "\n" not in sentence


def test_a_name_of_the_configuration_file_is_looked_for_there() -> None:
    """The message names the file, not the job."""
    settings = replace(SETTINGS, account="nope", origin="config.yaml:3")
    request = AskedOf({}, settings, site(), "low", KNOWN)

    assert "set providers.slurm.account in config.yaml:3 to one of lab, root" in _sentence("Invalid account", request)


def test_what_nobody_explained_stays_in_slurms_words() -> None:
    """A text of a later release."""
    assert slurm_previews.refused("sbatch: error: Invalid mood", asked()) == "Slurm refuses the job: Invalid mood"


# ----------------------------------------------------------------------------------------------------- a part of a node


@pytest.mark.parametrize(
    ("block", "units"),
    [
        ({}, 64.0 + 0.25 * 512.0 + 2.0 * 8.0),
        ({"cpus": 4, "memory": "32GiB", "gres": "gpu:a100:1"}, 4.0 + 0.25 * 32.0 + 2.0),
        ({"cpus": 4, "memory": "32GiB"}, 4.0 + 0.25 * 32.0),
        ({"gres": "gpu:2"}, 1.0 + 0.25 * 512.0 + 4.0),
        ({"account": "lab"}, 64.0 + 0.25 * 512.0 + 2.0 * 8.0),
    ],
)
def test_a_part_of_a_node_costs_what_is_asked_for(block: dict[str, BlockValue], units: float) -> None:
    """By slurm.conf(5): CPU=1.0,Mem=0.25G,GRES/gpu=2.0; without a word on memory a job has the node's."""
    found = {one.zone: one for one in slurm_site.offers_of(site(), frozenset(), 0.1, None, NOW, block=block)}

    assert found["gpu"].price_usd_per_hour == pytest.approx(0.1 * units)


def test_memory_that_nobody_asks_for_is_the_sites_default() -> None:
    """DefMemPerCPU counts for each CPU that is asked for; the partition's own counts before the site's if it is less."""
    rules = slurm_site.read_rules(recorded.CONFIG + "DefMemPerCPU            = 2048\n")
    weighted = site()
    (kind,) = (kind for kind in weighted.kinds if kind.partition == "gpu")

    amounts = slurm_site.asked_amounts(kind, weighted.partitions["gpu"], rules, {"cpus": 4})
    own = slurm_site.asked_amounts(
        kind, replace(weighted.partitions["gpu"], memory_per_cpu_mib=1024.0), rules, {"cpus": 4}
    )

    assert (amounts["mem"], own["mem"]) == (8192.0, 4096.0)


def test_the_largest_weight_counts_where_the_site_says_so() -> None:
    """PriorityFlags=MAX_TRES."""
    rules = slurm_site.read_rules(recorded.CONFIG.replace("(null)", "MAX_TRES"))
    (kind,) = (kind for kind in site().kinds if kind.partition == "gpu")

    assert slurm_site.asked_units(kind, site().partitions["gpu"], rules, {"cpus": 4, "memory": "32GiB"}) == 8.0


# ------------------------------------------------------------------------------------------------------------ the quotas


def quotas(known: Associations, *, enforced: bool = True, **block: BlockValue) -> dict[str, int]:
    """The quota in each partition."""
    rows = slurm_limits.quotas_of(site(enforced), known, SETTINGS, block, lambda _: 1)
    return {row.zone or "": row.limit for row in rows}


def test_limits_of_the_user_become_quotas() -> None:
    """The association's MaxSubmitJobs; with another QOS its MaxTRESPerUser; where nothing is enforced, none."""
    assert quotas(KNOWN) == {"low": 3, "high": 3, "gpu": 3}
    assert quotas(KNOWN, qos="short") == {"low": 1, "high": 1, "gpu": 1}
    assert quotas(KNOWN, enforced=False) == {}
    assert quotas(NO_ASSOCIATIONS) == {}


@pytest.mark.parametrize(
    ("row", "most"),
    [
        ("normal|||cpu=100", {"low": 3, "high": 3, "gpu": 1}),
        ("normal|||gres/gpu=8,mem=1T", {"low": 3, "high": 3, "gpu": 1}),
        ("normal|2||", {"low": 2, "high": 2, "gpu": 2}),
        ("normal||9|", {"low": 9, "high": 9, "gpu": 9}),
    ],
)
def test_resources_of_a_limit_are_counted_in_machines(row: str, most: dict[str, int]) -> None:
    """100 CPUs are one machine of 64; the QOS's own number of jobs counts before that of the association."""
    assert quotas(slurm_limits.associations_of(recorded.ASSOCIATIONS, row)) == most


def test_a_part_of_a_node_fits_more_often() -> None:
    """8 GPUs are one whole node, or eight of a GPU each."""
    known = slurm_limits.associations_of("lab|lab||normal|||", "normal|||gres/gpu=8")

    assert quotas(known)["gpu"] == 1
    assert quotas(known, cpus=4, gres="gpu:a100:1")["gpu"] == 8


def test_of_several_accounts_the_named_one_counts_or_the_default() -> None:
    """And of one that holds in a single partition only, there."""
    rows = "lab|lab||normal|||3\nlab|physics||normal|||5\nlab|physics|low|normal|||4\n"
    known = slurm_limits.associations_of(rows, recorded.QOS)

    assert quotas(known) == {"low": 3, "high": 3, "gpu": 3}
    assert quotas(known, account="physics") == {"low": 4, "high": 5, "gpu": 5}
    assert quotas(known, account="nobody") == {}


def test_the_partitions_own_qos_counts_first() -> None:
    """A limit that it has not comes from the next."""
    partition = replace(site().partitions["low"], qos="short")
    found = slurm_limits.limits_for(KNOWN, partition, SETTINGS, {})

    assert found.most == {"jobs": 2.0, "node": 1.0, "submit": 3.0}


def test_the_provider_asks_for_limits_only_where_there_are_some(slurm: Scripted, provider: SlurmProvider) -> None:
    """Without accounting nobody is asked, and nothing is claimed."""
    assert provider.quota("own") == ()
    assert slurm.calls("sacctmgr") == slurm.calls("sh") == []


def test_machines_in_use_are_counted(slurm: Scripted, provider: SlurmProvider) -> None:
    """Those of this installation."""
    slurm.config = recorded.CONFIG.replace("accounting_storage/none", "accounting_storage/slurmdbd")
    slurm.config += "AccountingStorageEnforce = associations,limits,qos\n"

    assert Quota("1c0.5g", "low", 3, 0) in provider.quota("own")
    assert provider.quota("own", (("qos", "short"),))[0].limit == 1
    assert len(slurm.calls("sacctmgr")) == 1, "once in a while for everybody"
    assert math.isinf(provider.site().partitions["high"].limit_s)
