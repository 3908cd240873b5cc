"""The plan: what would be bought, what it will cost, what is not known, and what is refused before any money is spent."""

from __future__ import annotations

import contextlib
import json
import math

import pytest

from tests.policies.offers import HOUR, JOB, LARGE, MEASURED, ON_DEMAND, SPOT, rate
from windfall import codec
from windfall.errors import EXIT_INFEASIBLE, Infeasible
from windfall.fleet import Lifetime
from windfall.jobs import BuyingLimits, Checkpointing, Injection, Job, Measurement, Objective, Resources, Use, Work
from windfall.market import BillingBasis, BillingRule, Offer, Quota
from windfall.models.lifetime_pool import pool
from windfall.policies.checkpointing import rules
from windfall.policies.planning.job_plan import JobPlan, plan
from windfall.structs import replace
from windfall.terms import RunOptions, Seconds, Unit, Usd, WallTime

NOW = WallTime(1_000_000.0)


def planned(
    job: Job = JOB, *offers: Offer, measured: tuple[Measurement, ...] = (MEASURED,), hours: float = 6.0
) -> JobPlan:
    return plan(job, offers or (SPOT,), (rate(hours),), measured, NOW)


def refused(job: Job, *offers: Offer, measured: tuple[Measurement, ...] = (MEASURED,), hours: float = 6.0) -> str:
    with pytest.raises(Infeasible) as found:
        planned(job, *offers, measured=measured, hours=hours)
    assert found.value.exit_code == EXIT_INFEASIBLE
    return str(found.value)


# ----------------------------------------------------------------------------------------------------- what is expected


def test_a_job_seen_before_has_a_cost_and_a_finish_with_their_parts() -> None:
    """Ten hours of work: the parts of time and of money add up to what is promised."""
    found = planned().chosen.expected
    assert found is not None
    assert 10.1 * HOUR < found.wall_s < 10.7 * HOUR
    assert found.finish == NOW + found.wall_s
    assert found.cost_usd == pytest.approx(found.machine_hours * 1.0)
    assert math.fsum(part.duration_s for part in found.parts) == pytest.approx(found.wall_s)
    assert math.fsum(part.cost_usd for part in found.parts) == pytest.approx(found.cost_usd)
    assert [part.name for part in found.parts] == ["work", "redo", "save", "allocate", "prepare", "finish"]
    assert found.preemptions == pytest.approx(found.wall_s / (6.0 * HOUR), rel=0.05)


def test_the_on_demand_twin_does_the_same_work_without_losses() -> None:
    """Its cost is that of one start and the work at the on-demand price; savings are told against it."""
    found = planned()
    assert found.baseline is not None
    assert found.chosen.expected is not None
    assert found.savings_percent is not None
    assert found.baseline.wall_s == 60.0 + 90.0 + 36_000.0
    assert found.baseline.cost_usd == pytest.approx((90.0 + 36_000.0 + 2.5) / HOUR * 3.0)
    assert found.savings_percent == pytest.approx(100 * (1 - found.chosen.expected.cost_usd / found.baseline.cost_usd))
    assert 60.0 < found.savings_percent < 67.0


def test_a_controller_that_looks_rarely_sees_losses_and_ends_late() -> None:
    """Half a look passes until a silent loss is acted upon, and until the machines of a finished run are given back."""
    deaf = replace(SPOT, notice_s=Seconds(0.0))
    often, rarely = (
        plan(JOB, [deaf], (rate(2.0),), (MEASURED,), NOW, poll_s=poll_s).chosen.expected for poll_s in (0.0, 60.0)
    )
    assert often is not None
    assert rarely is not None
    assert rarely.wall_s - often.wall_s == pytest.approx(30.0 * often.preemptions, rel=0.02)
    assert rarely.cost_usd - often.cost_usd == pytest.approx(30.0 / HOUR, rel=0.02)


def test_two_machines_cost_twice_and_are_lost_twice_as_often() -> None:
    """Any loss stops both, and both are billed while one is replaced."""
    one, two = planned().chosen, planned(replace(JOB, nodes=2)).chosen
    assert one.expected is not None
    assert two.expected is not None
    assert two.usd_per_hour == 2.0
    assert two.expected.preemptions == pytest.approx(2 * one.expected.preemptions, rel=0.05)
    assert two.expected.cost_usd > 2 * one.expected.cost_usd


def test_every_number_says_where_it_comes_from() -> None:
    """Measured, given or assumed: a reader can tell what the promise rests on."""
    sources = {number.name: number.source for number in planned().numbers}
    assert sources["speed"] == "measured in 3 earlier runs"
    assert sources["state upload"] == "measured in 3 earlier runs"
    assert sources["work"] == "given by the job file"
    assert sources["mean time to preemption"] == "measured on this installation's machines (small in a)"
    assert sources["share of losses without notice"] == "assumed: the provider's usual pattern"
    assert sources["time between saves"] == "derived: policy adaptive"


def test_what_was_never_measured_is_unknown_and_not_invented() -> None:
    """A first run: the price is known; cost, finish, savings and what a notice can save are not."""
    found = planned(measured=())
    assert found.chosen.usd_per_hour == 1.0
    assert (found.chosen.expected, found.baseline, found.savings_percent) == (None, None, None)
    assert found.notice_suffices is None
    assert "unknown" in found.notice
    assert "speed: unknown: no earlier run of this job on this type of machine" in found.unknown
    assert "state size: unknown: no save was measured" in found.unknown


def test_a_job_without_work_has_no_expected_finish() -> None:
    """The speed is known, how much there is to do is not; work in another unit is no help either."""
    assert planned(replace(JOB, work=None)).chosen.expected is None
    assert "work: unknown: the job file has no work" in planned(replace(JOB, work=None)).unknown
    assert planned(replace(JOB, work=Work(1e6, Unit.TOKEN))).chosen.expected is None


def test_pooled_lives_say_on_how_many_machines_they_rest() -> None:
    """With the pool at hand the plan tells lives and preemptions, and takes the share without notice from them."""
    lifetimes = [
        Lifetime(str(number), "aws", "small", "a", WallTime(0.0), WallTime(HOUR), preempted=True, announced=False)
        for number in range(4)
    ]
    found = plan(JOB, [SPOT], (), (MEASURED,), NOW, pooled=pool(lifetimes, NOW))
    numbers = {number.name: number for number in found.numbers}
    assert numbers["mean time to preemption"].value == pytest.approx((3 + 4) / (1 + 4) * HOUR)
    assert numbers["mean time to preemption"].source == "measured on 4 machines, 4 preempted (small in a)"
    assert numbers["share of losses without notice"].value == pytest.approx((0.5 + 4) / (5 + 4))


def test_an_injected_job_is_planned_with_the_injectors_lives() -> None:
    """One loss every 30 minutes whatever the market does, each with the notice that the injector gives."""
    injection = Injection((Seconds(1800.0),), 7, Seconds(60.0))
    found = planned(replace(JOB, injection=injection), hours=1000.0)
    assert found.chosen.expected is not None
    assert found.chosen.expected.preemptions == pytest.approx(36_000 / 1800, rel=0.1)
    assert {number.name: number.value for number in found.numbers}["share of losses without notice"] == 0.0


def test_saves_are_planned_by_what_the_machines_will_believe() -> None:
    """Given a loss each hour they save as their own policy does: tau = sqrt(2 delta (M / u + R)), u of the notices given."""
    numbers = {number.name: number.value for number in planned(hours=1.0).numbers}
    # One in doubt, and five losses half-way through of which four came with a notice.
    silent = (1 + 5 - 4) / (1 + 5)
    tau_s = math.sqrt(2 * 2.0 * (HOUR / silent + 136.5))
    between_s = numbers["time between saves"]
    assert between_s is not None
    assert between_s == pytest.approx(tau_s, rel=0.01)
    slow = plan(JOB, [SPOT], ((*rate(1.0)[:4], Seconds(HOUR)),), (MEASURED,), NOW).numbers[-1].value
    assert slow == pytest.approx(math.sqrt(2 * 2.0 * (HOUR / silent + HOUR)), rel=0.01)
    four = planned(replace(JOB, nodes=4), hours=1.0).numbers[-1].value  # 21 losses half-way, two of them silent
    silent = (1 + 21 - 19) / (1 + 21)
    assert four == pytest.approx(math.sqrt(2 * 2.0 * (HOUR / 4 / silent + 136.5)), rel=0.01)


def test_a_plan_without_losses_goes_by_the_habit_as_far_as_it_may() -> None:
    """Half an hour of work, a loss each hour: what is said of aws makes saves rarer, as far as it can do no harm."""
    mttp_s = HOUR
    insured_s = math.sqrt(2 * 2.0 * (mttp_s + 136.5))
    between_s = planned(replace(JOB, work=Work(HOUR / 2, Unit.STEP)), hours=1.0).numbers[-1].value
    assert between_s is not None
    assert between_s > 1.4 * insured_s
    assert between_s == pytest.approx(rules.longest_interval_s(insured_s, 2.0, mttp_s), rel=0.01)


def test_the_users_own_schedule_counts_where_it_is_shorter() -> None:
    """Every ten seconds, as 10 steps or as time; a longer one changes nothing, and `never` leaves it alone."""
    for text, policy in (("10 steps", "adaptive"), ("10s", "adaptive"), ("every 10 steps", "never")):
        job = replace(JOB, options=RunOptions(policy), checkpointing=Checkpointing(keep_every=text))
        number = planned(job).numbers[-1]
        assert (number.value, number.source) == (10.0, "given by the job file (keep_every)")
    rare = replace(JOB, checkpointing=Checkpointing(keep_every="10h"))
    assert planned(rare).numbers[-1] == planned().numbers[-1]


def test_a_schedule_in_steps_of_unknown_length_is_said_to_be_assumed() -> None:
    """Work was measured in samples: how long 100 steps take nobody knows."""
    job = replace(JOB, work=Work(36_000.0, Unit.SAMPLE), options=RunOptions("every:100steps"))
    number = planned(job, measured=(replace(MEASURED, unit=Unit.SAMPLE),)).numbers[-1]
    assert number.source == "assumed: as policy adaptive, because the length of a step is unknown"
    assert number.value is not None


def test_a_plan_is_plain_json() -> None:
    """What the API returns: no infinity and no class gets in, known or unknown job."""
    for found in (planned(JOB, SPOT, ON_DEMAND), planned(measured=()), planned(replace(JOB, use=Use.AUTO), ON_DEMAND)):
        text = json.dumps(codec.encode(found), allow_nan=False)
        assert json.loads(text)["job_id"] == "resnet-1"


# ---------------------------------------------------------------------------------------------- what a notice can save


def test_the_plan_says_whether_a_last_save_fits_the_notice() -> None:
    """1 GB in 20 s, step, standstill and commit: 24 s of 120 s."""
    found = planned()
    assert found.notice_suffices is True
    assert found.notice == (
        "1 GB upload in 20.0 s; with the step, the stall and the commit an emergency save takes 24.0 s and fits the "
        "120 s of notice: announced losses redo no work"
    )
    assert not found.warnings


def test_a_save_that_fits_no_notice_is_a_warning() -> None:
    """A quarter of an hour of upload against two minutes: insured at intervals, and said so with what would fit."""
    huge = replace(MEASURED, size_bytes=45_000_000_000, upload_s=Seconds(900.0))
    found = planned(measured=(huge,))
    assert found.notice_suffices is False
    assert "in which 5.8 GB would fit" in found.notice
    assert len(found.warnings) == 1
    assert "does not fit the notice of 2 min" in found.warnings[0]
    assert "saved at intervals instead" in found.warnings[0]


def test_no_notice_at_all_is_a_warning_too() -> None:
    """Every loss goes back to the last save at an interval."""
    found = planned(JOB, replace(SPOT, notice_s=Seconds(0.0)))
    assert found.notice_suffices is False
    assert found.warnings[0].startswith("losses come without notice: each sets the run back by")


# --------------------------------------------------------------------------------------------------- what is refused


NEVER = replace(JOB, options=RunOptions("never"))
TWO_DAYS = replace(NEVER, work=Work(48 * HOUR, Unit.STEP))
UNSAVED = replace(MEASURED, prepare_s=Seconds(0.0), allocate_s=Seconds(0.0), stall_s=None, upload_s=None, commit_s=None)


def test_48_hours_of_spot_without_checkpoints_are_refused_because_they_bill_3200_hours() -> None:
    """Machines that last 8 h: (8 h) (e^(48/8) - 1) = 3219 h instead of 48 h, and as many dollars."""
    deaf = replace(SPOT, notice_s=Seconds(0.0))
    with pytest.raises(Infeasible) as found:
        plan(TWO_DAYS, [deaf], (rate(8.0),), (UNSAVED,), NOW, poll_s=0.0)
    words = str(found.value)
    assert "48 h of work without checkpoints (insure: never, no keep_every)" in words
    assert "is expected to take 3,219 h and 3,219.43 USD" in words
    assert "(8 h + 0 s) x (e^(48 h / 8 h) - 1)" in words
    assert "instead of 48 h" in words


def test_the_same_job_with_saves_on_demand_or_short_enough_is_planned() -> None:
    """Only the combination is refused: insured, with own saves, on-demand, or one hour long it goes."""
    deaf = replace(SPOT, notice_s=Seconds(0.0))
    insured = replace(TWO_DAYS, options=RunOptions())
    kept = replace(TWO_DAYS, options=RunOptions("never"), checkpointing=Checkpointing(keep_every="1000 steps"))
    vague = replace(TWO_DAYS, options=RunOptions("never"), checkpointing=Checkpointing(keep_every="each term"))
    short = replace(TWO_DAYS, work=Work(HOUR, Unit.STEP))
    for job in (insured, kept, vague, short):
        assert planned(job, deaf, measured=(UNSAVED,), hours=8.0).chosen.offer is deaf
    auto = planned(replace(TWO_DAYS, use=Use.AUTO), deaf, ON_DEMAND, measured=(UNSAVED,), hours=8.0)
    assert auto.chosen.offer is ON_DEMAND
    assert any("without checkpoints" in row.reason for row in auto.refused)
    assert auto.savings_percent is None


@pytest.mark.parametrize(("hours", "goes"), [(10.0, True), (10.1, False)])
def test_without_checkpoints_twice_the_undisturbed_time_is_too_much(hours: float, goes: bool) -> None:
    """At a mean life of 8 h, (8 h) (e^(T/8 h) - 1) = 2 T at T = 10.05 h."""
    job = replace(NEVER, work=Work(hours * HOUR, Unit.STEP))
    deaf = replace(SPOT, notice_s=Seconds(0.0))
    with contextlib.nullcontext() if goes else pytest.raises(Infeasible, match="without checkpoints"):
        assert planned(job, deaf, measured=(UNSAVED,), hours=8.0).chosen.offer is deaf


def test_an_unmeasured_job_without_checkpoints_is_warned_of() -> None:
    """Its length is not known, so that nothing can be refused; what three lives long would take is told."""
    found = planned(NEVER, measured=(), hours=8.0)
    assert any("without checkpoints each loss restarts the run from step 0" in words for words in found.warnings)


def test_losses_that_leave_no_time_to_work_are_a_warning_where_the_work_is_unknown() -> None:
    """What is refused of a job of known length."""
    said = "takes 2 min 40 s to get ready: the run would make almost no progress"
    often, rarely = (planned(replace(JOB, work=None), measured=(), hours=hours).warnings for hours in (1 / 120, 6.0))
    assert any(said in message for message in often), often
    assert not any("almost no progress" in message for message in rarely)


def test_max_duration_below_the_expected_time_is_a_warning() -> None:
    """It will be stopped, saved, before it is done."""
    found = planned(replace(JOB, max_duration_s=Seconds(5 * HOUR)))
    assert found.warnings[0].startswith("max_duration 5 h stops this job before it finishes")


def test_max_price_below_every_offer_is_refused_with_the_cheapest() -> None:
    """What the cheapest that would do costs now is named."""
    words = refused(replace(JOB, max_price_usd_per_hour=0.5), SPOT, LARGE)
    assert words == (
        "max_price 0.5 USD/h is below every matching offer: the cheapest is small in aws/a (spot) at 1 USD/h"
    )


def test_a_want_that_nothing_has_is_refused_with_the_nearest() -> None:
    """Of two offers the one that lacks less."""
    want = Resources(provider="aws", machine_type="large", memory_gib_min=64)
    words = refused(replace(JOB, resources=(want,)), SPOT, LARGE)
    assert words == (
        "no offer matches the job's resources: the nearest is large in aws/a (spot), "
        "but it has 32 GiB of memory, and the job needs 64 GiB"
    )


def test_only_on_demand_for_a_spot_job_is_refused_with_the_way_out() -> None:
    """`use: auto` would allow it."""
    assert refused(JOB, ON_DEMAND).endswith("the job uses spot machines only; set `use: auto` to allow both")


def test_a_job_that_excludes_all_that_fits_it_is_refused_with_the_cheapest() -> None:
    """And not with a limit of prices, which has nothing to do with it."""
    words = refused(replace(JOB, limits=BuyingLimits(zones_excluded=("a",))), SPOT, LARGE)
    assert words == (
        "every matching offer is excluded: the cheapest is small in aws/a (spot) at 1 USD/h; remove its zone or its machine "
        "type from resources.exclude"
    )
    found = planned(replace(JOB, limits=BuyingLimits(machine_types_excluded=("small",))), SPOT, LARGE)
    assert found.chosen.offer is LARGE
    assert [row.reason for row in found.refused] == ["the job excludes the machine type small"]


def test_started_hours_are_paid_to_their_end() -> None:
    """On demand the hours are counted up; spot machines lose half an hour each at about every end, unless it is free."""
    hourly = BillingRule(BillingBasis.STARTED_HOUR)
    plain, started, free = (
        planned(JOB, replace(SPOT, **more)).chosen.expected  # type: ignore[arg-type]
        for more in ({}, {"billing": hourly}, {"billing": hourly, "refund": True})
    )
    assert plain is not None
    assert started is not None
    assert free is not None
    ends = plain.preemptions + 1.0
    assert started.machine_hours - plain.machine_hours == pytest.approx(0.5 * ends, rel=0.05)
    assert free.machine_hours - plain.machine_hours == pytest.approx(0.5 - 0.5 * plain.preemptions, abs=0.1)

    steady_job = replace(JOB, use=Use.ON_DEMAND)
    steady = planned(steady_job, replace(ON_DEMAND, billing=hourly)).chosen.expected
    exact = planned(steady_job, ON_DEMAND).chosen.expected
    assert steady is not None
    assert exact is not None
    assert steady.machine_hours == math.ceil(exact.machine_hours)


def test_a_short_run_is_billed_for_the_minimum() -> None:
    """Ten hours of work with a minimum of a day: a day."""
    offer = replace(ON_DEMAND, billing=BillingRule(minimum_s=24 * HOUR))
    found = planned(replace(JOB, use=Use.ON_DEMAND), offer).chosen.expected
    assert found is not None
    assert found.machine_hours == pytest.approx(24.0)


def test_nothing_for_sale_is_refused() -> None:
    """An empty market has no plan."""
    with pytest.raises(Infeasible, match="no provider has an offer now"):
        plan(JOB, [], (), (), NOW)


def test_machines_that_never_get_ready_before_they_are_lost_are_refused() -> None:
    """A preparation of half an hour, a loss every ten minutes."""
    slow = replace(MEASURED, prepare_s=Seconds(1800.0))
    assert "takes 30 min to get ready" in refused(JOB, SPOT, measured=(slow,), hours=1 / 6)


# ------------------------------------------------------------------------------------------ what the offers rest on


def test_an_old_price_is_called_so_with_its_age() -> None:
    """More than an hour; the chosen offer's own, or else how many others."""
    hours = [replace(SPOT, zone=zone, quoted_at=WallTime(NOW - age)) for zone, age in (("a", 3600.0), ("b", 3 * HOUR))]
    fresh, old = hours
    assert planned(JOB, fresh).warnings == ()
    (words,) = planned(JOB, old).warnings
    assert words == (
        "the price of small in b was quoted 3 h ago and may have changed: the bill follows the price at the purchase, not "
        "this one"
    )
    assert planned(JOB, fresh, replace(old, price_usd_per_hour=2.0)).warnings == (
        "the price of 1 other offer was quoted 3 h ago at the longest and may have changed",
    )
    assert planned(JOB, fresh, replace(old, reliability=ON_DEMAND.reliability)).warnings == (), "it is not for this job"


def test_an_offer_without_quota_is_refused_and_the_next_one_chosen() -> None:
    """A limit of zero that nobody raises: nothing can be bought there."""
    quotas = (Quota("small", "a", 0, 0),)
    other = replace(SPOT, zone="b", price_usd_per_hour=2.0)
    found = plan(JOB, [SPOT, other], (), (MEASURED,), NOW, quotas=quotas)
    assert found.chosen.offer is other
    assert [(row.offer, row.reason) for row in found.refused] == [(SPOT, "quota 0 for small in a")]
    with pytest.raises(Infeasible, match="quota 0 for small in a, and no other offer fits the job"):
        plan(JOB, [SPOT], (), (MEASURED,), NOW, quotas=quotas)


def test_machines_that_do_not_fit_in_one_pool_are_named_with_what_they_cost() -> None:
    """Two in the cheaper zone and one in the other, as they would be ordered."""
    job = replace(JOB, nodes=3, limits=BuyingLimits(pool_machines_max=2))
    found = planned(job, SPOT, replace(SPOT, zone="b", price_usd_per_hour=1.5))
    (words,) = found.warnings
    assert words == (
        "the machines stand in 2 pools: 2 small in a at 1 USD/h, 1 small in b at 1.5 USD/h; time and cost are those of 3 small "
        "in a, and together they cost 0.5 USD/h more"
    )
    assert planned(replace(job, nodes=2), SPOT, replace(SPOT, zone="b", price_usd_per_hour=1.5)).warnings == ()


def test_an_excluded_name_that_nobody_offers_may_be_misspelt() -> None:
    """The zone that was meant would be bought in."""
    job = replace(JOB, limits=BuyingLimits(("aa", "b"), ("smal",)))
    assert planned(job, SPOT, replace(SPOT, zone="b")).warnings == (
        "resources.exclude names the zone aa, which no provider offers now: check the spelling",
        "resources.exclude names the machine type smal, which no provider offers now: check the spelling",
    )


def test_a_machine_of_ones_own_costs_nothing_and_divides_nothing() -> None:
    """Owned capacity at 0 USD/h: cost, reserve and savings are numbers, and the budget is met."""
    owned = replace(SPOT, price_usd_per_hour=0.0, on_demand_usd_per_hour=0.0)
    found = planned(replace(JOB, objective=Objective(budget_usd=Usd(0.01))), owned, SPOT)
    assert found.chosen.offer is owned
    assert found.chosen.expected is not None
    assert found.chosen.expected.cost_usd == 0.0
    assert found.savings_percent is None
    json.dumps(codec.encode(found), allow_nan=False)


def test_a_zone_that_a_provider_has_not_is_answered_with_those_that_it_has() -> None:
    """Also if other things are wrong too: a partition's name is most often misspelt."""
    there = replace(SPOT, zone="b")
    wrong = replace(JOB, resources=(Resources(provider="aws", zone="nope", cpus_min=999.0),))
    either = replace(wrong, resources=(*wrong.resources, Resources(provider="aws", zone="b", cpus_min=999.0)))

    assert refused(wrong, SPOT, there) == "aws offers nothing in nope: write `infra: aws/a`, or another of a, b"
    assert refused(either, SPOT, there).startswith("no offer matches the job's resources")
