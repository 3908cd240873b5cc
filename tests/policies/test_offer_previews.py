"""What follows for a plan from what providers say of its orders, and from machines that end at a limit."""

from __future__ import annotations

import pytest

from tests.policies.offers import HOUR, JOB, LARGE, MEASURED, ON_DEMAND, SPOT, rate
from windfall.jobs import Resources, Use
from windfall.market import OrderPreview, Refusal
from windfall.policies.layout import runtime_list
from windfall.policies.planning import offer_previews
from windfall.policies.planning.estimates import Knowledge, OfferEstimate, offer_estimate
from windfall.policies.planning.offer_previews import PreviewedOffer
from windfall.policies.planning.preemption_costs import preemption_costs
from windfall.structs import replace
from windfall.terms import Seconds, WallTime

NOW = WallTime(1_000_000.0)
KNOWLEDGE = Knowledge((rate(3.0),), (MEASURED,))
NEEDS_S = MEASURED.prepare_s + 1.0 + 2.0 + 20.0 + 1.0
"""Preparation, a step, its stall, upload and commit."""


def estimate(*measured: object) -> OfferEstimate:
    """The job on the small spot machine."""
    return offer_estimate(JOB, SPOT, Knowledge((rate(3.0),), tuple(measured)))  # type: ignore[arg-type]


def test_only_offers_that_fit_are_tried_the_cheapest_first() -> None:
    """An on-demand machine is none for a spot job; each offer is asked about once."""
    job = replace(JOB, use=Use.SPOT, resources=(Resources(cpus_min=4.0),))
    orders = offer_previews.orders_to_preview(job, [LARGE, ON_DEMAND, SPOT, replace(SPOT, zone="b", cpus=2.0)], "me")

    assert [(order.offer.machine_type, order.count_max, order.gang) for order in orders] == [
        ("small", 1, False),
        ("large", 1, False),
    ]


def test_a_plan_asks_a_bounded_number_of_times() -> None:
    """However many offers there are."""
    many = [replace(SPOT, zone=f"zone-{number}") for number in range(50)]

    assert len(offer_previews.orders_to_preview(JOB, many, "me")) == offer_previews.PREVIEWS_MAX


@pytest.mark.parametrize("nodes", [1, 3])
def test_machines_that_a_job_needs_at_once_are_tried_at_once(monkeypatch: pytest.MonkeyPatch, nodes: int) -> None:
    """What can go on with fewer is tried one by one."""
    job = replace(JOB, nodes=nodes)
    (together,) = offer_previews.orders_to_preview(job, [SPOT], "me")
    monkeypatch.setattr(runtime_list, "scaling_of", lambda _: object())
    (alone,) = offer_previews.orders_to_preview(job, [SPOT], "me")

    assert (together.count_min, together.count_max, together.gang) == (nodes, nodes, False)
    assert (alone.count_min, alone.count_max, alone.gang) == (1, 1, False)


def test_a_start_that_a_provider_expects_is_the_allocation_time() -> None:
    """Twenty minutes in the queue are twenty minutes of allocation; what nobody said anything about stays as it was."""
    previewed = PreviewedOffer(SPOT, OrderPreview(starts_at=WallTime(NOW + 1200.0)))
    found = offer_previews.after_previews(JOB, [SPOT, LARGE], [previewed], KNOWLEDGE, NOW)

    assert [offer.startup_s for offer in found.offers] == [1200.0, LARGE.startup_s]
    assert found.refused == ()


def test_what_a_provider_would_refuse_is_no_offer() -> None:
    """With its reason; once nothing else fits, the reason is all that there is to say."""
    previewed = PreviewedOffer(SPOT, OrderPreview(Refusal.INVALID, "no account nope"))
    found = offer_previews.after_previews(JOB, [SPOT, LARGE], [previewed], KNOWLEDGE, NOW)
    alone = offer_previews.after_previews(JOB, [SPOT], [previewed], KNOWLEDGE, NOW)

    assert (found.offers, found.refused) == ((LARGE,), ((SPOT, "no account nope"),))
    assert offer_previews.all_refused(JOB, found) is None
    assert offer_previews.all_refused(JOB, alone) == "no account nope"


def test_a_refusal_of_what_does_not_fit_says_nothing_about_the_job() -> None:
    """The plan's own message about resources is the better one."""
    job = replace(JOB, resources=(Resources(machine_type="huge"),))
    previewed = PreviewedOffer(SPOT, OrderPreview(Refusal.INVALID, "no account nope"))

    assert (
        offer_previews.all_refused(job, offer_previews.after_previews(job, [SPOT], [previewed], KNOWLEDGE, NOW)) is None
    )


# ------------------------------------------------------------------------------------------------------------- limits


def test_a_machine_that_ends_before_it_has_saved_is_refused() -> None:
    """114 s to get ready and to save a step: a limit of 114 s keeps nothing for ever, one of 115 s does."""
    found = estimate(MEASURED)

    assert offer_previews.ready_and_saved_s(found) == NEEDS_S == 114.0
    assert "no work would ever be kept; ask for a longer time limit" in (
        offer_previews.never_progresses(found, 114.0) or ""
    )
    assert offer_previews.never_progresses(found, 115.0) is None


def test_what_is_only_assumed_refuses_nothing() -> None:
    """Without an earlier run a limit below the assumed preparation is a warning."""
    found = estimate()

    assert offer_previews.never_progresses(found, 60.0) is None
    (note,) = offer_previews.limit_notes(found, 60.0)
    assert "getting ready is assumed to take 2 min 40 s: it may never keep any work" in note
    assert offer_previews.limit_notes(found, 600.0) == ()
    assert offer_previews.limit_notes(found, None) == ()


def test_a_limit_below_the_work_takes_several_machines() -> None:
    """10 h of work at an hour a machine, of which 114 s are for getting ready and the save: 11 machines."""
    found = estimate(MEASURED)

    (note,) = offer_previews.limit_notes(found, HOUR)
    assert "the work takes 11 machines one after the other" in note
    assert offer_previews.limit_notes(found, 11.0 * HOUR) == ()


def test_a_limit_refuses_an_offer_in_the_trial() -> None:
    """`slurm.time: 1m` on a job that takes two minutes to its first save."""
    previewed = PreviewedOffer(SPOT, OrderPreview(ends_after_s=Seconds(60.0)))
    found = offer_previews.after_previews(JOB, [SPOT], [previewed], KNOWLEDGE, NOW)

    assert found.offers == ()
    assert "small in aws/a (spot) ends after 60 s" in (offer_previews.all_refused(JOB, found) or "")


# ----------------------------------------------------------------------------------------------- what preemptions cost


def test_preemptions_cost_the_difference_to_a_machine_that_has_none() -> None:
    """The parts add up to what the run takes longer, and the hours to what is billed more."""
    found = estimate(MEASURED)
    costs = preemption_costs(found)
    assert costs is not None
    assert found.work_s is not None

    lossy, calm = found.expect(found.work_s), found.reliable.expect(found.work_s)
    assert costs.redo_s + costs.save_s + costs.restart_s == pytest.approx(
        lossy.wall_s - calm.wall_s - (lossy.finish_s - calm.finish_s)
    )
    assert costs.machine_hours == pytest.approx((lossy.billed_s - calm.billed_s) / 3600.0)
    assert (costs.work_known, costs.preemptions > 1.0) == (True, True)
    assert costs.assumed == ("share of losses without notice",)


def test_what_is_assumed_is_named() -> None:
    """Without any run it is counted over a day of work, from an assumed mean time to preemption."""
    costs = preemption_costs(offer_estimate(JOB, SPOT, Knowledge()))
    assert costs is not None

    assert (costs.work_s, costs.work_known, costs.notice_s) == (86_400.0, False, 120.0)
    assert "mean time to preemption" in costs.assumed
    assert preemption_costs(offer_estimate(JOB, ON_DEMAND, Knowledge())) is None
