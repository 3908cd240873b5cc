"""Needs of a runtime that no offer can meet are found before anything is bought."""

from __future__ import annotations

import pytest

from tests.policies.offers import JOB, ON_DEMAND, SPOT
from windfall.fleet import Slot
from windfall.jobs import BuyingLimits, Use
from windfall.market import Quota
from windfall.policies.layout import runtime_list
from windfall.policies.layout.checkpoint_rules import RULES
from windfall.policies.planning.unmet_needs import unmet_need
from windfall.structs import replace
from windfall.terms import Reliability

SPOT_JOB = replace(JOB, use=Use.SPOT)


@pytest.fixture
def needs(monkeypatch: pytest.MonkeyPatch) -> list[Slot]:
    """The slots of a runtime whose role `server` needs a reliable machine."""
    slots: list[Slot] = []
    toy = replace(RULES, roles=("server", "worker"), slots=lambda _: tuple(slots), reliable_roles=("server",))
    monkeypatch.setattr(runtime_list, "rules", lambda _: toy)
    return slots


def test_a_reliable_role_needs_an_on_demand_offer(needs: list[Slot]) -> None:
    """A job of spot machines alone is refused where no other is for sale, and planned where one is."""
    needs += [Slot("server-0", "server", Reliability.RELIABLE), Slot("worker-0", "worker")]
    found = unmet_need(SPOT_JOB, (SPOT,), ())
    assert found is not None
    assert "needs a machine that cannot be preempted for server-0 (role server), and no provider offers one" in found
    assert unmet_need(SPOT_JOB, (SPOT, ON_DEMAND), ()) is None


def test_a_reliable_role_counts_even_if_its_slot_does_not_say_so(needs: list[Slot]) -> None:
    """The runtime's list of reliable roles is what counts."""
    needs.append(Slot("server-0", "server"))
    assert unmet_need(SPOT_JOB, (SPOT,), ()) is not None


def test_a_gang_needs_a_quota_of_its_size(needs: list[Slot]) -> None:
    """Three machines at once are refused under quotas of two, and planned under one of three or an unknown one."""
    needs += [Slot(f"worker-{number}", "worker", gang="pod") for number in range(3)]
    two = (Quota(SPOT.machine_type, SPOT.zone, 2, 0),)
    found = unmet_need(SPOT_JOB, (SPOT,), two)
    assert found is not None
    assert "needs 3 machines at once (gang pod)" in found
    assert "the largest that fits the job is 2" in found
    assert unmet_need(SPOT_JOB, (SPOT,), (replace(two[0], limit=3),)) is None
    assert unmet_need(SPOT_JOB, (SPOT,), ()) is None


def test_slots_that_any_machine_fills_are_the_plan_s_business(needs: list[Slot]) -> None:
    """Without offers it is the plan that says what is missing."""
    needs.append(Slot("worker-0", "worker"))
    assert unmet_need(SPOT_JOB, (), ()) is None


IN_B = replace(SPOT, zone="b")


def limited(nodes: int, most: int | None = None) -> str | None:
    """A plain job of some machines on spot in two zones, a quota of 2 in each and of 3 in both together."""
    quotas = (Quota("small", "a", 2, 0), Quota("small", "b", 2, 0), Quota("small", None, 3, 0))
    job = replace(SPOT_JOB, nodes=nodes, limits=BuyingLimits(pool_machines_max=most))
    return unmet_need(job, (SPOT, IN_B), quotas)


def test_more_machines_than_pools_and_quotas_allow_are_refused() -> None:
    """Three fit by the quotas; two, if one machine may stand in a pool.  The refusal says how many would be possible."""
    assert limited(3) is None
    assert limited(4) == (
        "the job needs 4 machines, and the quotas leave room for 3 on the offers that fit it: raise a quota, widen the job's "
        "resources, or ask for fewer machines"
    )
    assert limited(2, most=1) is None
    found = limited(3, most=1)
    assert found is not None
    assert "needs 3 machines, and pool_max 1 and the quotas leave room for 2 on the offers" in found


def test_a_quota_of_zero_everywhere_is_refused_with_the_places() -> None:
    """Nothing can ever be bought; a quota of zero in one place of two is no obstacle."""
    zero = (Quota("small", "a", 0, 0), Quota("small", "b", 0, 0))
    found = unmet_need(SPOT_JOB, (SPOT, IN_B), zero)
    assert found is not None
    assert found.startswith("quota 0 for every offer that fits the job (small in a, small in b): raise a quota")
    assert unmet_need(SPOT_JOB, (SPOT, IN_B), zero[:1]) is None
    assert unmet_need(SPOT_JOB, (SPOT, IN_B), (Quota("small", None, 0, 0),)) == found


def test_a_gang_larger_than_a_pool_is_refused(needs: list[Slot]) -> None:
    """Its machines are one allocation, which no pool may hold."""
    needs += [Slot(f"worker-{number}", "worker", gang="pod") for number in range(3)]
    found = unmet_need(replace(SPOT_JOB, limits=BuyingLimits(pool_machines_max=2)), (SPOT, IN_B), ())
    assert found is not None
    assert "needs 3 machines of one offer at once (gang pod), and pool_max allows 2" in found
