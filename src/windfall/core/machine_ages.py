"""The ages of machines that run the items of a bag: which of them are weighed, and the answers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType

from windfall.core.fleet_state import FleetState, FleetTurn, TrackedMachine
from windfall.fleet import AgeWeighed, Report
from windfall.models import lifetime_pool
from windfall.policies.acquisition import fleet_policy_list
from windfall.policies.replacement import successor
from windfall.policies.replacement.age_requests import AgeRequest, is_due
from windfall.structs import replace
from windfall.terms import Instant, Reliability, Seconds


def weighed(turn: FleetTurn, fact: AgeWeighed) -> None:
    """Record what an item is expected to take on a machine of that age, and on a new one."""
    if fact.machine_id in turn.units:
        kept = {name: old for name, old in turn.state.weighed.items() if name in turn.units}
        turn.change(weighed=MappingProxyType({**kept, fact.machine_id: fact}))


def requests(state: FleetState, reports: Mapping[str, Report], now: Instant) -> tuple[AgeRequest, ...]:
    """Return the machines whose age is to be weighed; none if the fleet policy does not ask.

    Args:
        state: the driver's.
        reports: the newest of each machine.
        now: on the journal clock.
    """
    if state.job is None or state.pending_end is not None or not fleet_policy_list.weighs_ages(state.the_job.fleet):
        return ()
    found = [_request(state, unit, reports.get(machine_id), now) for machine_id, unit in state.units.items()]
    return tuple(request for request in found if request is not None)


def _request(state: FleetState, unit: TrackedMachine, report: Report | None, now: Instant) -> AgeRequest | None:
    machine = unit.machine
    stays = unit.slot is not None and unit.ends_at is None and unit.drain_at is None and unit.silent_since is None
    if not stays or machine.reliability is Reliability.RELIABLE or report is None or unit.running_at is None:
        return None
    age_s = Seconds(max(now - unit.running_at, 0.0))
    if report.step_s is None or not is_due(age_s, report.step_s, state.weighed.get(unit.machine_id)):
        return None
    restart = successor.expect(
        None if unit.offer is None else unit.offer.startup_s, state.allocations.mean, state.boots.mean
    )
    kind = machine.provider, machine.machine_type, machine.zone
    mttp_s, _ = lifetime_pool.mttp_and_restart(state.rates, *kind, 1)
    times = report.step_s, restart.allocation_s, restart.boot_s
    request = AgeRequest(unit.machine_id, *kind, age_s, *times, mttp_s)
    given = state.the_job.injection
    if given is None:
        return request
    return replace(request, mttp_s=Seconds(math.fsum(given.mttp_s) / len(given.mttp_s)), injected=True)
