"""What Slurm says of an order before it is made (`sbatch --test-only`), and its refusals in a user's words.

`sbatch --test-only` submits nothing.  Its estimate is the backfill scheduler's: from the time limits of the jobs that run and
wait now, so it is early where higher ones come later, and late where jobs end before their limits.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from windfall.errors import ProviderError
from windfall.market import BlockSettings, BootSpec, Order, OrderPreview, Refusal
from windfall.providers.slurm import slurm_site, slurm_states, slurm_submission
from windfall.providers.slurm.slurm_commands import CommandResult, Commands, answer_of, error_of, last_line
from windfall.providers.slurm.slurm_limits import NO_ASSOCIATIONS, Associations, read_associations
from windfall.providers.slurm.slurm_settings import SlurmSettings, time_limit_s
from windfall.providers.slurm.slurm_site import UNIT, Partition, Site, asked_units, asks_for_part
from windfall.providers.slurm.slurm_submission import Submission
from windfall.structs import Struct, replace
from windfall.terms import BlockValue, Seconds, WallTime
from windfall.units import count_text, duration_text

ESTIMATE = "Slurm's own estimate (`sbatch --test-only`), from the time limits of the jobs that run and wait now"
START_S_MAX = 30 * 86400.0
"""A start that is estimated later than this is none [s].  Slurm plans a job without a time limit for a year, so behind one it
says next year; while a job that can never start is queued, it says the year 7470.
"""
_NO_START = (
    "Slurm expects no start within 30 days: jobs without a time limit hold the nodes, or one that can never start is first in "
    "the queue; when it starts is not in the expected time"
)
_START = re.compile(r"to start at ([0-9]+)(?![0-9:-])")
_LIMIT = re.compile(r"\b(Assoc|QOS)[A-Za-z]+")
_PART = ("cpus", "memory", "gres")


class AskedOf(Struct, frozen=True):
    """What was asked of a site.

    Attributes:
        block: the job's settings.
        settings: the installation's.
        site: as it was last asked.
        partition: where.
        known: the user's accounts and QOS.
        limit: the name of the limit that Slurm says is reached; empty if it says none.
        machines: how many at once.
    """

    block: Mapping[str, BlockValue]
    settings: SlurmSettings
    site: Site
    partition: str
    known: Associations = NO_ASSOCIATIONS
    limit: str = ""
    machines: int = 1


def read_start(text: str, now: WallTime) -> WallTime | None:
    """Return the start that `sbatch --test-only` printed, in seconds since 1970; None if it said none, or a senseless one."""
    at = _start_in(text)
    return at if at is not None and at - now <= START_S_MAX else None


def _start_in(text: str) -> WallTime | None:
    found = _START.search(text)
    return None if found is None else WallTime(float(found[1]))


def too_long(block: Mapping[str, BlockValue], partition: Partition) -> str | None:
    """Return why a time limit is above the partition's: many sites queue such a job, which then never starts."""
    limit_s = time_limit_s(block)
    if limit_s is None or limit_s <= partition.limit_s:
        return None
    return (
        f"slurm.time is {duration_text(limit_s)}, and the partition {partition.name} ends jobs after "
        f"{duration_text(partition.limit_s)}: ask for less, or name another partition"
    )


def try_out(commands: Commands, job: Submission, partition: str) -> tuple[CommandResult, Refusal | None]:
    """Return what `sbatch --test-only` said of a job, and why it refused it; None if it did not.

    For seconds after its start a slurmctld does not know its nodes, and refuses what any of them could run: that says
    nothing about the job.  Nodes may report between its answer and the look at them, so a job is refused twice before that
    is believed.

    Raises:
        ProviderUnreachable: Slurm did not answer.
    """
    done, refusal = _trial(commands, job)
    if refusal is Refusal.INVALID and slurm_states.is_of_nodes(done.errors):
        if slurm_site.has_unknown_nodes(answer_of(commands, slurm_site.NODES), partition):
            return done, Refusal.NO_CAPACITY
        done, refusal = _trial(commands, job)
    return done, refusal


def _trial(commands: Commands, job: Submission) -> tuple[CommandResult, Refusal | None]:
    done = commands.run(job.trial, job.script.encode())
    refusal = None if done.code == 0 else slurm_states.refusal_of_text(done.errors)
    if done.code != 0 and refusal is None:
        raise error_of("sbatch", commands.where, done)
    return done, refusal


def preview(
    commands: Commands, site: Site, settings: SlurmSettings, order: Order, *, block: BlockSettings, now: WallTime
) -> OrderPreview:
    """Return what would become of an order; see `ports.Provider.preview`.

    Raises:
        ProviderUnreachable: Slurm did not answer.
        ProviderDenied: it refuses this user.
    """
    words = dict(block)
    kind = site.kind(order.offer.zone, order.offer.machine_type)
    if kind is None:
        message = f"this cluster has no {order.offer.machine_type} in a partition {order.offer.zone}"
        return OrderPreview(Refusal.INVALID, message)
    partition = site.partitions[order.offer.zone]
    if (long := too_long(words, partition)) is not None:
        return OrderPreview(Refusal.INVALID, long)
    # Machines that the job needs at once start when there are nodes for all of them, as those of one job would.
    together = replace(order, gang=order.gang or (order.count_max > 1 and not asks_for_part(words)))
    job = slurm_submission.submission(together, kind, BootSpec(("true",), block=block), settings)
    done, refusal = try_out(commands, job, partition.name)
    # What has no room now is still accepted into the queue.
    if refusal is not None and refusal is not Refusal.NO_CAPACITY:
        known = associations(commands, site)
        asked = AskedOf(words, settings, site, partition.name, known, machines=order.count_max if together.gang else 1)
        return OrderPreview(refusal, refused(done.errors, asked))
    printed = done.errors + done.output
    starts_at = read_start(printed, now)
    senseless = _NO_START if starts_at is None and _start_in(printed) is not None else ""
    limit_s = min(time_limit_s(words) or math.inf, partition.limit_s)
    return OrderPreview(
        message="; ".join(filter(None, (_ignored(words, settings, site), senseless))),
        starts_at=starts_at,
        estimate=ESTIMATE,
        units_per_hour=asked_units(kind, partition, site.rules, words),
        unit=UNIT,
        ends_after_s=None if math.isinf(limit_s) else Seconds(limit_s),
    )


def associations(commands: Commands, site: Site) -> Associations:
    """Return the user's accounts and QOS; none where there is no accounting, or it does not answer."""
    if not site.rules.accounts:
        return NO_ASSOCIATIONS
    try:
        return read_associations(commands)
    except ProviderError:
        return NO_ASSOCIATIONS


def _ignored(block: Mapping[str, BlockValue], settings: SlurmSettings, site: Site) -> str:
    """Return that an account or QOS has no effect, where nothing checks it."""
    usual = (("account", settings.account), ("qos", settings.qos))
    names = [f"slurm.{key} {block[key]}" for key, _ in usual if key in block]
    names += [f"providers.slurm.{key} {value}" for key, value in usual if value and key not in block]
    if site.rules.accounts or not names:
        return ""
    return f"{' and '.join(names)} {'has' if len(names) == 1 else 'have'} no effect: this cluster has no accounting"


def refused(text: str, asked: AskedOf) -> str:
    """Return a refusal of `sbatch` as one sentence: what is wrong, and what to write instead.

    Args:
        text: what it printed.
        asked: what was asked for.
    """
    limit = _LIMIT.search(text)
    asked = replace(asked, limit="" if limit is None else limit[0])
    words = next((words(asked) for mark, words in _EXPLAINED if mark in text), None)
    return f"Slurm refuses the job: {words or last_line(text)}"


def _account(asked: AskedOf) -> str:
    name, key = _named("account", asked)
    accounts = asked.known.accounts
    if name in accounts:
        return (
            f"the account {name} may not use the partition {asked.partition}: name another partition, or another {key}"
        )
    choice = _one_of(key, accounts, "`sacctmgr show assoc user=$USER format=account` lists yours")
    if not name:
        return f"it takes no job without an account of yours: {choice}"
    return f"the account {name} does not exist, or is not yours: {choice}"


def _qos(asked: AskedOf) -> str:
    name, key = _named("qos", asked)
    choice = _one_of(key, asked.known.qos, "`sacctmgr show assoc user=$USER format=qos` lists yours")
    if not name:
        return f"it takes no job with your default QOS in the partition {asked.partition}: {choice}"
    return f"the QOS {name} does not exist, or is not yours: {choice}"


def _named(key: str, asked: AskedOf) -> tuple[str, str]:
    """Return an account or QOS, and the key that names it."""
    if key in asked.block:
        return str(asked.block[key]), f"slurm.{key}"
    value = asked.settings.account if key == "account" else asked.settings.qos
    return value, f"providers.slurm.{key} in {asked.settings.origin}" if value else f"slurm.{key}"


def _one_of(key: str, names: tuple[str, ...], otherwise: str) -> str:
    return f"set {key} to {'one of ' * (len(names) > 1)}{', '.join(names)}" if names else f"set {key}; {otherwise}"


def _gres(asked: AskedOf) -> str:
    kinds = [kind for kind in asked.site.kinds if kind.partition == asked.partition and kind.accelerators]
    have = dict.fromkeys(f"gpu:{(kind.accelerator or 'gpu').lower()}:{kind.accelerators}" for kind in kinds)
    names = ", ".join(name.replace("gpu:gpu:", "gpu:") for name in have)
    choice = f"its nodes have {names}" if names else "its nodes have no GPUs"
    return (
        f"no node of the partition {asked.partition} has the slurm.gres {asked.block.get('gres', '?')}: {choice}, and "
        "`sinfo -o '%P %G'` lists the rest"
    )


def _feature(asked: AskedOf) -> str:
    return (
        f"no node of the partition {asked.partition} has the slurm.constraint {asked.block.get('constraint', '?')}: "
        "`sinfo -o '%P %f'` lists what there is"
    )


def _too_big(asked: AskedOf) -> str:
    there = sum(kind.usable for kind in asked.site.kinds if kind.partition == asked.partition)
    if asked.machines > there:
        nodes = count_text(there, "node that is up", "nodes that are up")
        return (
            f"the partition {asked.partition} has {nodes}, and the job needs {asked.machines} machines at once: ask for a "
            "smaller num_nodes, or name another partition"
        )
    wanted = ", ".join(f"slurm.{key} {asked.block[key]}" for key in (*_PART, "constraint") if key in asked.block)
    types = dict.fromkeys(kind.machine_type for kind in asked.site.kinds if kind.partition == asked.partition)
    return f"no node of the partition {asked.partition} ({', '.join(types)}) has {wanted or 'what it asks for'}: ask for less"


def _partition(asked: AskedOf) -> str:
    return f"it has no partition {asked.partition} for you: name one of {', '.join(asked.site.partitions)}"


def _limit(asked: AskedOf) -> str:
    return (
        f"a limit of your account or QOS is reached ({asked.limit or 'submitted jobs, size or time'}; `sacctmgr show assoc` "
        "and `sacctmgr show qos` list them): wait until jobs of yours have ended, ask for less, or name another slurm.qos"
    )


def _full(asked: AskedOf) -> str:
    del asked
    return "its queue is full (MaxJobCount, or a limit of this account): try again once jobs have ended"


def _time(asked: AskedOf) -> str:
    limit = asked.block.get("time", "(the default)")
    return f"slurm.time {limit} is above a limit of the partition {asked.partition} or its QOS: ask for less"


def _group(asked: AskedOf) -> str:
    return f"you may not use the partition {asked.partition}: name another one"


_EXPLAINED = (
    ("Invalid account", _account),
    ("nvalid qos", _qos),
    ("generic resource", _gres),
    ("feature specification", _feature),
    ("configuration is not available", _too_big),
    ("More processors requested", _too_big),
    ("artition name", _partition),
    ("violates accounting/QOS policy", _limit),
    ("temporarily unable to accept job", _full),
    ("Resource temporarily unavailable", _full),
    ("time limit is invalid", _time),
    ("group not permitted", _group),
    ("not permitted to use", _group),
)
"""Marks of Slurm's texts (`slurm_errno.c`), and what to say instead."""
