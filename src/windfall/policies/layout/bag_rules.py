"""The rules of the runtime `bag`: items of a parameter space, run by equal machines, each by itself."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from windfall import codec
from windfall.bags import Bag, RunnerRoom
from windfall.fleet import Slot
from windfall.jobs import Job
from windfall.policies import policy_registry
from windfall.policies.layout.membership import ALONE, Membership
from windfall.policies.layout.runtime_list import RuntimeRules, Scaling
from windfall.policies.policy_registry import BAG, PolicyKind
from windfall.units import cpus_text

ROLE = "runner"
KEY = "bag"
"""Key of the settings, whose value is the encoded `Bag`."""
_ROUNDING = 1.0 + 1e-9
_RESTART = "an item that saves files continues from them if bag.restart names them, for example restart: ['*.restart']"
_WITHOUT_EFFECT = MappingProxyType(
    {
        "from": "what earlier runs of the same bag have done is taken over by itself; leave it out",
        "insure": _RESTART,
        "keep_every": _RESTART,
        "keep": "the newest files of an item are kept while it needs them; leave it out",
    }
)
"""Keys of a job file's block `checkpoint`, and what works instead."""


def bag_of(settings: Mapping[str, Any]) -> Bag:
    """Return the bag in the settings of a job's runtime.

    Raises:
        ValueError: there is none.
    """
    bag: Bag = codec.decode(settings.get(KEY), Bag)
    return bag


def settings_of(bag: Bag) -> dict[str, Any]:
    """Return the settings of the runtime for a bag."""
    return {KEY: codec.encode(bag)}


def items_at_once(bag: Bag, cpus: float, memory_gib: float) -> int:
    """Return how many items a machine runs at once; 0 if not one fits.

    Args:
        bag: says what an item needs.
        cpus: of the machine; 0 if its provider does not say, which counts as room for one item.
        memory_gib: of the machine [GiB]; 0 if its provider does not say, which counts as enough.
    """
    # 0.1 x 30 CPUs are 3.0000000000000004.
    slots = 1 if cpus <= 0.0 else math.floor(cpus / bag.cores * _ROUNDING)
    return min(slots, items_in_memory(bag, memory_gib, slots))


def items_in_memory(bag: Bag, memory_gib: float, most: int) -> int:
    """Return for how many items a machine has memory [GiB], `most` at most; 0 GiB, which no provider says, is enough."""
    if bag.memory_gib is None or memory_gib <= 0.0:
        return most
    return min(most, math.floor(memory_gib / bag.memory_gib * _ROUNDING))


def room_of(bag: Bag, cpus: float, memory_gib: float) -> RunnerRoom:
    """Return how many items a machine with these processors and memory [GiB] runs at once, and what is spare."""
    slots = items_at_once(bag, cpus, memory_gib)
    if not bag.smaller:
        return RunnerRoom(slots, bag.cores)
    most = items_in_memory(bag, memory_gib, math.floor(max(cpus, bag.cores) / min(bag.smaller) * _ROUNDING))
    spare_cpus = max(cpus - slots * bag.cores, 0.0)
    return RunnerRoom(slots, bag.cores, spare_cpus if most > slots and spare_cpus >= min(bag.smaller) else 0.0, most)


def items_left(job: Job, done: float) -> float:
    """Return how many items must still be done: of those that no earlier run of the bag had done.

    Args:
        job: with a bag.
        done: items that this job has done.
    """
    bag = bag_of(job.runtime.settings)
    carried = 0.0 if job.work is None else bag.items - job.work.amount
    return max(bag.must_finish - carried - done, 0.0)


def needs_text(bag: Bag) -> str:
    """Return what an item needs, for users."""
    cpus = cpus_text(bag.cores)
    needs = cpus if bag.memory_gib is None else f"{cpus} and {bag.memory_gib:.3g} GiB"
    return needs if bag.nodes == 1 else f"{needs} on each of {bag.nodes} nodes"


def slots(job: Job) -> tuple[Slot, ...]:
    """Return one slot for each machine; the machines of one item are a gang."""
    each = bag_of(job.runtime.settings).nodes
    gangs = [f"{ROLE}s-{number // each}" if each > 1 else "" for number in range(job.nodes)]
    return tuple(Slot(f"{ROLE}-{number}", ROLE, gang=gang) for number, gang in enumerate(gangs))


def membership(job: Job) -> Membership:
    """Return the rule: each machine works by itself."""
    del job
    return ALONE


def scaling(job: Job) -> Scaling | None:
    """Return how many machines a bag can use: up to one for each item; without limit if it grows.

    None if an item needs several: then it has those that it starts with.
    """
    bag = bag_of(job.runtime.settings)
    if bag.nodes > 1:
        return None
    return Scaling(1, None if bag.grows else bag.items, ROLE)


def settings_problem(settings: Mapping[str, Any]) -> str | None:
    """Return what is wrong with settings: a job file has a block for them."""
    try:
        bag_of(settings)
    except ValueError:
        return "comes with the block bag: leave the key runtime out, and write bag: {parameters: {T: [0.8, 1.2]}}"
    return None


RULES = RuntimeRules(
    BAG,
    policy_registry.find(PolicyKind.RUNTIME, BAG).help,
    (ROLE,),
    slots,
    membership,
    live="windfall.runtimes.bag:open_runtime",
    program="windfall.cli.item_process",
    check=settings_problem,
    scaling=scaling,
    without_effect=_WITHOUT_EFFECT,
)
