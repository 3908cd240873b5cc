"""A plan refuses what a runtime needs and nobody sells, in one sentence, and with the exit code of what cannot be done."""

from __future__ import annotations

from typing import Any, cast

import pytest

from tests.policies.offers import JOB, ON_DEMAND, SPOT
from tests.support.simulated_store import ManualClock
from windfall.control.planner import NoRecords, Planner
from windfall.errors import EXIT_INFEASIBLE, Infeasible
from windfall.fleet import Slot
from windfall.jobs import Use
from windfall.market import Capabilities, Offer, Quota
from windfall.policies.layout import runtime_list
from windfall.policies.layout.checkpoint_rules import RULES
from windfall.ports import Provider
from windfall.structs import replace
from windfall.terms import Reliability, Seconds

SERVER = Slot("server-0", "server", Reliability.RELIABLE)
GANG = tuple(Slot(f"worker-{number}", "worker", gang="pod") for number in range(3))


class Shop:
    """A provider that answers what it sells, and would tell of an order."""

    name = "aws"

    def __init__(self, *offers: Offer, limit: int = 8) -> None:
        self._offers, self._limit = offers, limit

    def offers(self) -> tuple[Offer, ...]:
        return self._offers

    def quota(self, owner: str) -> tuple[Quota, ...]:
        return (Quota(SPOT.machine_type, None, self._limit, 0),)

    def capabilities(self) -> Capabilities:
        return Capabilities(False, False, False, True, "aws", Seconds(60.0))


def plan(shop: Shop, monkeypatch: pytest.MonkeyPatch, *slots: Slot) -> dict[str, Any]:
    """Plan a spot job of a runtime with these slots."""
    rules = replace(RULES, roles=("server", "worker"), slots=lambda _: slots)
    monkeypatch.setattr(runtime_list, "rules", lambda _: rules)
    planner = Planner(NoRecords(), {"aws": cast("Provider", shop)}, ManualClock(), lambda _: (), "me")
    return cast("dict[str, Any]", planner.plan(replace(JOB, use=Use.SPOT)))


def test_a_spot_job_cannot_have_a_reliable_role_where_all_is_spot(monkeypatch: pytest.MonkeyPatch) -> None:
    """The role and what it needs are named; with an on-demand offer the plan is made."""
    with pytest.raises(Infeasible, match=r"for server-0 \(role server\)") as error:
        plan(Shop(SPOT), monkeypatch, SERVER)
    assert error.value.exit_code == EXIT_INFEASIBLE
    assert plan(Shop(SPOT, ON_DEMAND), monkeypatch, SERVER)["job_id"] == JOB.job_id


def test_a_gang_cannot_be_larger_than_the_quota(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both numbers are named."""
    with pytest.raises(Infeasible, match=r"needs 3 machines at once .* the largest that fits the job is 2"):
        plan(Shop(SPOT, limit=2), monkeypatch, *GANG)
    assert plan(Shop(SPOT, limit=3), monkeypatch, *GANG)["job_id"] == JOB.job_id
