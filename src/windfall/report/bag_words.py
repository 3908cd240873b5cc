"""A plan in a bag's words: its items, what one needs, and how many run at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from windfall.bags import Bag
from windfall.core import item_commands
from windfall.jobs import Job
from windfall.policies.layout import bag_rules
from windfall.policies.policy_registry import BAG
from windfall.report.code_texts import code_texts
from windfall.storage.bundle import PackedBundle


def bag_in(job: Job) -> Bag | None:
    """Return the bag of a job; None for other jobs."""
    return bag_rules.bag_of(job.runtime.settings) if job.runtime.name == BAG else None


def rows(job: Job, offer: Mapping[str, Any] | None) -> Iterator[tuple[str, str]]:
    """Yield the labelled lines of a plan about the items.

    Args:
        job: the job.
        offer: the chosen machine; None for machines of several kinds.
    """
    bag = bag_in(job)
    if bag is None:
        return
    yield "items", _count(job, bag)
    needs = [bag_rules.needs_text(bag)]
    place = "on one machine" if bag.nodes == 1 else f"on {bag.nodes} nodes of one allocation"
    needs += [] if bag.ranks is None else [f"{bag.ranks} MPI rank{'' if bag.ranks == 1 else 's'} {place}"]
    where = "machine" if bag.nodes == 1 else "allocation"
    limit = "" if bag.item_timeout_s is None else f", at most {bag.item_timeout_s:g} s"
    at_once = "" if (slots := _at_once(bag, offer)) is None else f"; {slots} at once on each {where}"
    most = "" if bag.at_once_max is None else f", {bag.at_once_max} on all machines"
    yield "one item", f"{', '.join(needs)}{limit}{at_once}{most}"


def unknown(job: Job) -> str:
    """Return why the cost of a bag is unknown; empty for other jobs."""
    return "" if bag_in(job) is None else "cost and finish time are unknown until items of this bag have run"


def _count(job: Job, bag: Bag) -> str:
    left = bag.items if job.work is None else round(job.work.amount)
    names = f" of {', '.join(bag.parameters)}" if bag.parameters else ""
    words = f"{bag.items}{names}"
    if left < bag.items:
        words += f", {bag.items - left} done before, {left} to run"
    if bag.finish < 1.0:
        by = f", weighed by {bag.weight}" if bag.weight is not None else ""
        words += f"; done once {100.0 * bag.finish:g} % are{by}"
    if bag.stop_when is not None:
        words += f", or before by {bag.stop_when.metric} (stop_when)"
    if bag.stop_item is not None:
        words += f"; each may be stopped early by {bag.stop_item.metric} (stop_item)"
    return words


def _at_once(bag: Bag, offer: Mapping[str, Any] | None) -> int | None:
    """Return how many items a machine runs at once; None if its size is unknown."""
    if offer is None or not offer["cpus"]:
        return None
    return bag_rules.items_at_once(bag, offer["cpus"], offer["memory_gib"])


def warnings(job: Job, run: str, code: PackedBundle | None) -> Iterator[str]:
    """Yield warnings about what the items run: parameters that neither the command nor the code uses.

    Args:
        job: the job.
        run: the job's command, as shell text.
        code: the code that is uploaded.
    """
    bag = bag_in(job)
    if bag is None:
        return
    unused = item_commands.unused(bag, run)
    own = (item_commands.PARAMETERS.encode(), item_commands.ITEM.encode())
    if unused and not (code is not None and any(name in text for text in code_texts(code) for name in own)):
        uses = ", ".join(f"{{{{{name}}}}}" for name in unused)
        yield (
            f"run never uses {uses}, and the code does not read {item_commands.PARAMETERS}: items that differ only there "
            "run the same command"
        )
