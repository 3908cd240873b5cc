"""What keeps the items of a bag from running on several nodes of one allocation."""

from __future__ import annotations

from collections.abc import Iterable

from windfall.jobs import DEFAULT_FLEET
from windfall.providers import provider_list
from windfall.spec.fields import FleetChoice
from windfall.spec.job_file import MachinesBlock


def allocation_problems(
    alternatives: Iterable[MachinesBlock], machines: int, fleet: FleetChoice | None, nodes: int
) -> Iterable[tuple[tuple[str, ...], str]]:
    """Yield each problem, with its path in the job file and a sentence.

    Args:
        alternatives: the kinds of machines that the file names.
        machines: how many the job has.
        fleet: as the file names it.
        nodes: how many an item needs.
    """
    able = [entry.name for entry in provider_list.PROVIDERS if entry.allocations]
    named = [one.infra.provider if one.infra is not None else None for one in alternatives]
    for name in (one for one in named if one not in able):
        without = "resources names none" if name is None else f"{name} has none"
        instead = (
            f"resources: {{infra: {able[0]}}}, or nodes_per_item: 1 for an item whose ranks are all on one machine"
        )
        needs = f"bag.nodes_per_item: {nodes} needs a provider that has allocations of several nodes"
        yield ("bag", "nodes_per_item"), f"{needs}, and {without}: write {instead}"
        break
    if machines % nodes:
        yield ("num_nodes",), f"num_nodes must be a multiple of bag.nodes_per_item, {nodes}, not {machines}"
    if fleet is not None and fleet.name != DEFAULT_FLEET:
        yield (
            ("fleet",),
            f"fleet.{fleet.name} orders machines one by one, and bag.nodes_per_item needs {nodes} at once; remove fleet",
        )
