"""Release machines by their age: a machine that will hold up the rest of the work is replaced before it is lost.

The rule is SciSpot's reuse policy (`reuse`), between jobs there and inside one here: a machine stays if the expected time of
the work ahead on it is no longer than on a machine that is ordered now.  Both times belong to its save schedule, which
the laws of the installation's lifetimes decide; so a machine without a trusted schedule stays.  For a bag, the work ahead
is the next item (`item_ages`).
"""

from __future__ import annotations

from collections.abc import Sequence

from windfall.events import ComparedValue, Decision
from windfall.policies.acquisition.fleet_policy import (
    FleetEstimates,
    FleetMachine,
    FleetTarget,
    FleetView,
    MachineDrain,
)
from windfall.policies.policy_registry import BY_AGE
from windfall.terms import Instant

_VERSION = 1
GAIN_MIN = 0.005
"""The least share of the expected time that a release must save.  A saved run loses little with its machine, so gains are
small; below this one, the law of the lifetimes cannot tell."""
REASON = "at its age it is expected to take longer than a new machine"


def by_age(view: FleetView, estimates: FleetEstimates) -> FleetTarget:
    """Return the fleet that the runtime needs, and release the machine whose replacement saves most, one at a time.

    Example:
        6 h of work where a third of the machines is lost within hours and the others end after a day: at an age of 20 h
        22,474 s against 22,266 s on a new machine, which is 0.9 %, so it is released; at 8 h it stays.
    """
    del estimates
    found = retire_one(view.machines(), view.now, BY_AGE)
    return FleetTarget(view.needs) if found is None else FleetTarget(view.needs, (found[0],), decision=found[1])


def retire_one(machines: Sequence[FleetMachine], now: Instant, policy: str) -> tuple[MachineDrain, Decision] | None:
    """Return the machine whose replacement saves most, and why; None if all stay, or while one leaves.

    Args:
        machines: with the expected times of the work ahead.
        now: the journal clock.
        policy: that asks.
    """
    if any(one.ends_at is not None for one in machines):
        return None
    slow = [one for one in machines if one.ready and one.fresh_s > 0.0 and _gain(one) > GAIN_MIN]
    if not slow:
        return None
    worst = max(slow, key=lambda one: (_gain(one), one.machine_id))
    # It works on until its successor is ready; without one, until its work would be done.
    drain = MachineDrain(worst.machine_id, Instant(now + worst.reuse_s), REASON)
    rationale = (
        ComparedValue("expected time on this machine", worst.reuse_s, "s"),
        ComparedValue("expected time on a new machine", worst.fresh_s, "s"),
        ComparedValue("age", now - worst.started if worst.started is not None else 0.0, "s"),
    )
    return drain, Decision(policy, _VERSION, f"replace {worst.machine_id}", rationale, ("keep it",))


def _gain(machine: FleetMachine) -> float:
    """Return the share of the expected time that a new machine would save; negative if it would take longer."""
    return 1.0 - machine.fresh_s / machine.reuse_s if machine.reuse_s > 0.0 else 0.0
