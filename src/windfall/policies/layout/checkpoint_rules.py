"""The rules of the runtime `checkpoint`: any script that saves its state; `nodes` equal machines hold one run together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from windfall.fleet import Slot
from windfall.jobs import DEFAULT_RUNTIME, Job
from windfall.policies import policy_registry
from windfall.policies.layout.membership import ALONE, COMPLETE, Membership
from windfall.policies.layout.runtime_list import RuntimeRules
from windfall.policies.policy_registry import PolicyKind

ROLE = "node"


def slots(job: Job) -> tuple[Slot, ...]:
    """Return one slot for each node."""
    return tuple(Slot(f"{ROLE}-{number}", ROLE) for number in range(job.nodes))


def membership(job: Job) -> Membership:
    """Return the rule: all nodes together; a single one needs no generation, the run's lease fences it."""
    return COMPLETE if job.nodes > 1 else ALONE


def settings_problem(settings: Mapping[str, Any]) -> str | None:
    """Return what is wrong with settings: there are none."""
    return f"has no settings; write `runtime: {DEFAULT_RUNTIME}`" if settings else None


RULES = RuntimeRules(
    DEFAULT_RUNTIME,
    policy_registry.find(PolicyKind.RUNTIME, DEFAULT_RUNTIME).help,
    (ROLE,),
    slots,
    membership,
    live="windfall.runtimes.checkpoint:open_runtime",
    program="windfall.agent.exec_start",
    check=settings_problem,
)
