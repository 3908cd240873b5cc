"""A plan asks the providers that can say what would become of its orders; nothing is bought."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pytest

from tests.policies.offers import JOB, LARGE, MEASURED, SPOT
from tests.support.simulated_store import ManualClock
from windfall.control.planner import NoRecords, Planner
from windfall.errors import Infeasible, ProviderUnreachable
from windfall.jobs import Job, Measurement, ProviderBlock, Resources
from windfall.market import BlockSettings, Capabilities, Offer, Order, OrderPreview, Quota, Refusal
from windfall.ports import Provider
from windfall.structs import replace
from windfall.terms import Seconds

BLOCK: BlockSettings = (("account", "lab"),)


class Queue:
    """A provider that previews orders, and remembers what it was asked."""

    name = "aws"

    def __init__(self, preview: OrderPreview | ProviderUnreachable, *offers: Offer) -> None:
        self._preview, self._offers, self.asked = preview, offers or (SPOT,), list[tuple[str, BlockSettings]]()

    def capabilities(self) -> Capabilities:
        return Capabilities(False, False, False, True, "aws", Seconds(60.0), previews=True)

    def offers(self, block: BlockSettings = ()) -> tuple[Offer, ...]:
        share = 0.5 if block else 1.0
        return tuple(replace(one, price_usd_per_hour=share * one.price_usd_per_hour) for one in self._offers)

    def quota(self, owner: str, block: BlockSettings = ()) -> tuple[Quota, ...]:
        return (Quota(SPOT.machine_type, None, 0, 0),) if block == (("qos", "full"),) else ()

    def preview(self, order: Order, block: BlockSettings) -> OrderPreview:
        self.asked.append((order.offer.machine_type, block))
        if isinstance(self._preview, ProviderUnreachable):
            raise self._preview
        return self._preview


class OneRun(NoRecords):
    """An earlier run of the job took 90 s to get ready, and 24 s for a step and its save."""

    def measured(self, key: str) -> Sequence[Measurement]:
        return (MEASURED,)


def plan(queue: Queue, job: Job = JOB, records: NoRecords | None = None) -> dict[str, Any]:
    """Plan a job on it."""
    planner = Planner(records or NoRecords(), {"aws": cast("Provider", queue)}, ManualClock(), tuple, "me")
    return cast("dict[str, Any]", planner.plan(job))


def with_block(block: BlockSettings) -> Job:
    """The job with settings for this provider."""
    return replace(JOB, blocks=(ProviderBlock("aws", block),))


def test_a_job_is_asked_about_with_its_own_settings() -> None:
    """Price, quota and preview are those of its block; another job sees what everybody sees."""
    queue = Queue(OrderPreview())

    assert plan(queue, with_block(BLOCK))["chosen"]["usd_per_hour"] == 0.5
    assert plan(queue)["chosen"]["usd_per_hour"] == 1.0
    assert queue.asked == [("small", BLOCK), ("small", ())]
    with pytest.raises(Infeasible, match="quota 0 for every offer that fits the job"):
        plan(queue, with_block((("qos", "full"),)))


def test_the_start_and_the_units_are_in_the_plan() -> None:
    """With the chosen offer's first; its start is the allocation time."""
    at = ManualClock().wall_time() + 1380.0
    found = plan(Queue(OrderPreview(starts_at=at, estimate="its own", units_per_hour=64.0, unit="units"), SPOT, LARGE))

    assert [row["starts_at"] for row in found["starts"]] == [at, at]
    assert found["starts"][0]["offer"]["machine_type"] == found["chosen"]["offer"]["machine_type"] == "small"
    assert found["units"] == {"per_machine_hour": 64.0, "name": "units"}
    assert found["chosen"]["offer"]["startup_s"] == 1380.0
    assert found["preemption"]["preemptions"] > 0.0


def test_what_would_be_refused_is_refused_by_the_plan() -> None:
    """In the provider's words; of two offers the other one is taken, and the reason stands beside it."""
    with pytest.raises(Infeasible, match="no account nope"):
        plan(Queue(OrderPreview(Refusal.INVALID, "no account nope")))


def test_a_time_limit_that_lets_nothing_be_saved_is_refused() -> None:
    """Where a run has shown what it takes; where none has, the plan warns."""
    short = OrderPreview(ends_after_s=Seconds(100.0))

    with pytest.raises(
        Infeasible, match=r"ends after 100 s, and it takes 90 s to get ready and 24 s for a step and its save"
    ):
        plan(Queue(short), records=OneRun())
    assert "it may never keep any work" in plan(Queue(short))["warnings"][-1]
    (*_, warning) = plan(Queue(OrderPreview(ends_after_s=Seconds(3600.0))), records=OneRun())["warnings"]
    assert "the work takes 11 machines one after the other" in warning


def test_a_provider_that_does_not_answer_a_preview_stops_no_plan() -> None:
    """It is asked once, and the plan says so."""
    queue = Queue(ProviderUnreachable("sbatch failed: Socket timed out"), SPOT, LARGE)
    found = plan(queue)

    assert found["provider_errors"] == [
        {"provider": "aws", "refusal": "unreachable", "message": "sbatch failed: Socket timed out"}
    ]
    assert (found["starts"], len(queue.asked)) == ([], 1)


def test_offers_that_do_not_fit_are_not_asked_about() -> None:
    """A call to a scheduler is only made for what the job could take."""
    queue = Queue(OrderPreview(), SPOT, LARGE)
    plan(queue, replace(JOB, resources=(Resources(machine_type="large"),)))

    assert [name for name, _ in queue.asked] == ["large"]
