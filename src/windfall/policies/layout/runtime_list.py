"""The runtimes that jobs can name, and their rules for the driver.

A runtime is how a job's state survives: what the job needs, which machines may work together, what a machine is told.
Its rules are pure and serve the live system and every simulated one; what it does on a machine stands behind
`ports.Runtime`.  A new runtime is one entry of `RUNTIMES`, or an entry point of the group `windfall.runtimes` in another
package, whose value is a `RuntimeRules`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

from windfall.errors import Misuse
from windfall.fleet import Slot
from windfall.jobs import DEFAULT_RUNTIME, Job
from windfall.policies.layout.membership import Membership
from windfall.structs import Struct

GROUP = "windfall.runtimes"


class Placement(Struct, frozen=True):
    """The machine that fills a slot now, and where others reach its program (empty if nowhere)."""

    role: str
    machine_id: str
    address: str


class RuntimeRules(Struct, frozen=True):
    """The rules of a runtime.

    Attributes:
        name: as a job file names it.
        help: one sentence for users.
        roles: what its machines can be for.
        slots: what a job needs at its start.
        membership: which of its machines train together.
        live: module and function that open the controller's side, `ports.Runtime`: it gets the job, the run's store, a
            clock, and a function that returns random names.
        program: module that runs on each machine, as `python -m PROGRAM REQUEST`; it takes the request of `windfall exec`.
        assign: the body of a machine's assignment, from its slot and the machines by slot; None if there is none.
        reliable_roles: roles that need a machine that cannot be preempted.
    """

    name: str
    help: str
    roles: tuple[str, ...]
    slots: Callable[[Job], tuple[Slot, ...]]
    membership: Callable[[Job], Membership]
    live: str
    program: str
    assign: Callable[[Job, Slot, Mapping[str, Placement]], Mapping[str, Any]] | None = None
    reliable_roles: tuple[str, ...] = ()


RUNTIMES: tuple[tuple[str, str], ...] = ((DEFAULT_RUNTIME, "policies.layout.checkpoint_rules:RULES"),)
"""Name, and module and attribute of the rules."""


@functools.cache
def rules(name: str) -> RuntimeRules:
    """Return the rules of a runtime.

    Raises:
        Misuse: no such runtime is installed.
    """
    for known, place in RUNTIMES:
        if known == name:
            module, _, attribute = place.partition(":")
            found: RuntimeRules = getattr(import_module(f"windfall.{module}"), attribute)
            return found
    for entry in entry_points(group=GROUP):
        if entry.name == name:
            loaded: RuntimeRules = entry.load()
            return loaded
    raise Misuse(f"the runtime {name} is not installed; this installation has {', '.join(names())}")


def names() -> tuple[str, ...]:
    """Return the names of all runtimes that are installed."""
    return (*(name for name, _ in RUNTIMES), *sorted(entry.name for entry in entry_points(group=GROUP)))
