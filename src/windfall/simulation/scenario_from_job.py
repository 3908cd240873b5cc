"""Build a scenario from a job, an offer and what is known of both; each number keeps its source.

The numbers are those of `policies.planning.estimates`, which a plan rests on too; values from the user override them.  A
length of time becomes a range.  A length measured in n runs is uniform with the mean of the runs and the standard deviation

    s sqrt(1 + 1 / n),    s^2 = ((RUN_SHARE x mean)^2 + sum (x_i - mean)^2) / n

which is how far the next run may be from the mean of the earlier ones.  The prior spread from run to run is `RUN_SHARE`,
with the weight of one run.  An assumed length lies within `ASSUMED_SHARE` of its value.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from windfall.errors import Misuse
from windfall.jobs import DRILL, Job, Measurement, Work
from windfall.market import Offer
from windfall.models import lifetime_pool, preemption_rates
from windfall.policies.checkpointing.decision import parse_policy
from windfall.policies.planning.estimates import (
    NumberBasis,
    OfferEstimate,
    PlanNumber,
    PlanNumberKey,
    relevant_measurements,
)
from windfall.simulation.lifetime_source import LifetimeSource, PriceSource
from windfall.simulation.scenario import DurationRange, LifetimeModel, MemorylessLifetimes, Scenario, WorkerEstimates
from windfall.structs import Struct, replace
from windfall.terms import Reliability, Seconds, Unit, WallTime

RUN_SHARE = 0.05
"""Prior standard deviation from run to run, as a share of the mean; it weighs as much as one run."""
ASSUMED_SHARE = 0.25
"""How far an assumed length of time may be from the assumption, to either side, as a share."""
STEP_S = 1.0
"""A step, where the work is not counted in steps [s]; at most a thousandth of the work."""
_WIDEST_SHARE = 0.9
_NEVER_S = 1e9
"""The workers' mean time to preemption where no machine is ever lost [s]: thirty years."""
_STEPS_UNIT = "steps"
_BY_USER = "given by you"

_Numbers = Mapping[PlanNumberKey, PlanNumber]


class Overrides(Struct, frozen=True):
    """Values from the user that replace measured ones; None where the user gave none.

    Attributes:
        steps: of the run.
        step_s, stall_s, upload_s, allocate_s, prepare_s: as in `Scenario`.
        mttp_s: mean lifetime of a machine [s].
        notice_s: before a preemption [s].
        announced_share: of losses that come with a notice.
        price_usd_per_hour: of one machine.
    """

    steps: int | None = None
    step_s: DurationRange | None = None
    stall_s: DurationRange | None = None
    upload_s: DurationRange | None = None
    allocate_s: DurationRange | None = None
    prepare_s: DurationRange | None = None
    mttp_s: float | None = None
    notice_s: float | None = None
    announced_share: float | None = None
    price_usd_per_hour: float | None = None


_NO_OVERRIDES = Overrides()


class Input(Struct, frozen=True):
    """A number that the simulation rests on.

    Attributes:
        low, high: equal for a number that is not a range; None if there is none.
        source: text for people: what the number rests on (`measured ...`, `given ...`, `assumed: ...`).
    """

    name: str
    low: float | None
    high: float | None
    unit: str
    source: str


class BuiltScenario(Struct, frozen=True):
    """A job as the simulation takes it.

    Attributes:
        inputs: the numbers that the scenario rests on.
        notes: sentences for the user.
    """

    scenario: Scenario
    inputs: tuple[Input, ...]
    notes: tuple[str, ...]


def with_work(job: Job, overrides: Overrides) -> Job:
    """Return the job with the user's number of steps, if there is one."""
    return job if overrides.steps is None else replace(job, work=Work(float(overrides.steps), Unit.STEP))


def made_offer(job: Job, overrides: Overrides) -> Offer | None:
    """Return an offer made from the user's values alone; None without a price.

    For machines that are not for sale here: everything else about them is assumed.
    """
    if overrides.price_usd_per_hour is None:
        return None
    want = job.resources[0]
    provider = want.provider or "local"
    notice_s = lifetime_pool.pattern_or_default(provider).notice_s if overrides.notice_s is None else overrides.notice_s
    price = overrides.price_usd_per_hour
    name = want.machine_type or want.accelerator or "machine"
    kind = Reliability.TRANSIENT
    return Offer(provider, name, want.zone or "", price, price, kind, Seconds(notice_s), WallTime(0.0))


def build_scenario(
    job: Job,
    estimate: OfferEstimate,
    measured: Sequence[Measurement],
    overrides: Overrides = _NO_OVERRIDES,
    *,
    lifetime_source: LifetimeSource | None = None,
    price_source: PriceSource | None = None,
    policy: str | None = None,
) -> BuiltScenario:
    """Return the scenario of a job on an offer.

    The preparation measured in a run ends with a machine's first finished step, the scenario's (and a drill's) with the
    start of the first step: one step is subtracted.

    Args:
        job: with its work (`with_work`).
        estimate: of the job on the offer.
        measured: of each earlier run of the job; it gives the ranges.
        overrides: values from the user.
        lifetime_source: lifetimes from a model or a trace; None: memoryless, with the estimated mean.
        price_source: price from a trace.
        policy: canonical name; None: the job's own.

    Raises:
        Misuse: the work or the length of a step is unknown.
    """
    numbers = {number.name: number for number in estimate.numbers}
    rows = relevant_measurements(job, estimate.offer, measured)
    runs = [row for row in rows if row.provider != DRILL]
    steps, step, work = _work(job, estimate, overrides, numbers, rows)
    stall = _length(
        PlanNumberKey.SAVE_STALL, overrides.stall_s, numbers, _values(rows, "stall_s"), estimate.saving.stall_s
    )
    upload = _upload(estimate, overrides, numbers, rows)
    allocate = _length(
        PlanNumberKey.ALLOCATION,
        overrides.allocate_s,
        numbers,
        _values(runs, "allocate_s"),
        estimate.restart.allocate_s,
    )
    prepare = _prepare(estimate, overrides, numbers, rows, step[0].mean_s)
    injected = job.injection is not None and lifetime_source is None and overrides.mttp_s is None
    lifetimes, mttp, estimated_mttp_s = _lifetimes(job, estimate, overrides, lifetime_source, numbers)
    notice_s, announced, notice_inputs = _notice(estimate, overrides, numbers)
    by_user = overrides.allocate_s is not None or overrides.prepare_s is not None
    restart_s = allocate[0].mean_s + prepare[0].mean_s if by_user else estimate.history.restart_s
    price = _price(estimate, overrides, price_source)
    scenario = Scenario(
        steps=steps,
        step_s=step[0],
        stall_s=stall[0],
        upload_s=upload[0],
        allocate_s=allocate[0],
        prepare_s=prepare[0],
        lifetimes=lifetimes,
        notice_s=notice_s,
        announced_share=announced,
        policy=parse_policy(job.options.policy) if policy is None else policy,
        estimates=WorkerEstimates(
            min(estimated_mttp_s, _NEVER_S), 1.0 - announced, restart_s, costs_known=False, notice_s=notice_s
        ),
        lifetime_ends_at_notice=injected,
        machines=job.nodes,
        price_usd_per_hour=price.usd_per_hour,
        provider=_provider(estimate.offer),
    )
    inputs = (
        work,
        *(pair[1] for pair in (step, stall, upload, allocate, prepare)),
        mttp,
        *notice_inputs,
        Input("price of a machine", price.usd_per_hour, price.usd_per_hour, "USD/h", price.source),
    )
    unknown_upload = upload[0].high_s <= 0.0 and overrides.upload_s is None
    return BuiltScenario(scenario, inputs, _notes(job, estimate, lifetime_source, unknown_upload=unknown_upload))


# ------------------------------------------------------------------------------------------------------------- lengths


def _around(mean_s: float, seen: Sequence[float]) -> DurationRange:
    """Return the range of the next length; see the module's equation."""
    if not seen:
        return DurationRange.of(mean_s, ASSUMED_SHARE)
    squares = math.fsum((value - mean_s) ** 2 for value in seen)
    variance = ((RUN_SHARE * mean_s) ** 2 + squares) / len(seen) * (1.0 + 1.0 / len(seen))
    half_s = min(math.sqrt(3.0 * variance), _WIDEST_SHARE * mean_s)
    return DurationRange(mean_s - half_s, mean_s + half_s)


def _length(
    key: PlanNumberKey, override: DurationRange | None, numbers: _Numbers, seen: Sequence[float], mean_s: float
) -> tuple[DurationRange, Input]:
    """Return a length of time and what it rests on."""
    if override is not None:
        return override, Input(key, override.low_s, override.high_s, "s", _BY_USER)
    length = _around(mean_s, seen)
    return length, Input(key, length.low_s, length.high_s, "s", _source(numbers.get(key)))


def _source(number: PlanNumber | None) -> str:
    """Return the source of a number; the simulation assumes a value for what the plan leaves unknown."""
    if number is None:
        return NumberBasis.ASSUMED.source("nothing was measured")
    return NumberBasis.ASSUMED.source(number.detail) if number.basis is NumberBasis.UNKNOWN else number.source


def _values(rows: Sequence[Measurement], name: str) -> list[float]:
    return [float(value) for row in rows if (value := getattr(row, name)) is not None]


def _upload(
    estimate: OfferEstimate, overrides: Overrides, numbers: _Numbers, rows: Sequence[Measurement]
) -> tuple[DurationRange, Input]:
    seen = [float(row.upload_s + (row.commit_s or 0.0)) for row in rows if row.upload_s is not None]
    length, shown = _length(PlanNumberKey.STATE_UPLOAD, overrides.upload_s, numbers, seen, estimate.saving.durable_s)
    return length, replace(shown, name="upload and commit per save")


def _prepare(
    estimate: OfferEstimate, overrides: Overrides, numbers: _Numbers, rows: Sequence[Measurement], step_s: float
) -> tuple[DurationRange, Input]:
    key, mean_s = PlanNumberKey.PREPARATION, estimate.restart.prepare_s
    if overrides.prepare_s is not None or not rows or rows[0].provider == DRILL:
        return _length(key, overrides.prepare_s, numbers, _values(rows, "prepare_s"), mean_s)
    seen = [max(value - step_s, 0.0) for value in _values(rows, "prepare_s")]
    return _length(key, None, numbers, seen, max(mean_s - step_s, 0.0))


# ---------------------------------------------------------------------------------------------------------------- work


def _work(
    job: Job, estimate: OfferEstimate, overrides: Overrides, numbers: _Numbers, rows: Sequence[Measurement]
) -> tuple[int, tuple[DurationRange, Input], Input]:
    """Return the number of steps, the length of one with its source, and the source of the number."""
    step_known = overrides.step_s is not None or estimate.work_per_s is not None
    if job.work is None or not step_known:
        raise Misuse(_missing(job, step_known=step_known))
    if job.work.unit is not Unit.STEP:
        return _amount(job.work, estimate, overrides, rows)
    steps = max(math.ceil(job.work.amount), 1)
    source = "given by the job file" if overrides.steps is None else _BY_USER
    work = Input("work", steps, steps, _STEPS_UNIT, source)
    if overrides.step_s is None and estimate.work_s is None:
        raise Misuse(
            "earlier runs of this job did not count their work in steps: give the length of a step, such as --step 4.6s"
        )
    mean_s = 0.0 if estimate.work_s is None else estimate.work_s / job.work.amount
    seen = [1.0 / row.work_per_s for row in rows if row.unit is Unit.STEP]
    length, shown = _length(PlanNumberKey.SPEED, overrides.step_s, numbers, seen, mean_s)
    return steps, (length, replace(shown, name="step")), work


def _amount(
    work: Work, estimate: OfferEstimate, overrides: Overrides, rows: Sequence[Measurement]
) -> tuple[int, tuple[DurationRange, Input], Input]:
    """As `_work`, where the work is counted in samples, tokens or items."""
    if estimate.work_s is None:
        raise Misuse(
            f"the job's speed in {work.unit}s per second is unknown: give its steps instead (--steps 20000 --step 4.6s)"
        )
    step_s = overrides.step_s
    mean_s = min(STEP_S, estimate.work_s / 1000.0) if step_s is None else step_s.mean_s
    steps = max(round(estimate.work_s / mean_s), 1)
    counted = Input("work", steps, steps, _STEPS_UNIT, f"derived: {work.amount:g} {work.unit}s at the measured speed")
    if step_s is not None:
        return steps, (step_s, Input("step", step_s.low_s, step_s.high_s, "s", _BY_USER)), counted
    speed = estimate.work_per_s
    seen = [mean_s * speed / row.work_per_s for row in rows if speed and row.unit is work.unit]
    length = _around(mean_s, seen)
    source = f"assumed: the work is counted in {work.unit}s; its speed was measured"
    return steps, (length, Input("step", length.low_s, length.high_s, "s", source)), counted


def _missing(job: Job, *, step_known: bool) -> str:
    """Return the message that names the missing numbers and how to give them."""
    missing = []
    if job.work is None:
        missing.append("the amount of work (`work: {steps: 20000}` in the job file, or --steps 20000)")
    if not step_known:
        missing.append("the length of a step (--step 4.6s, or a range: --step 4.5s..4.8s)")
    measure = (
        "" if step_known else "; `windfall drill job.yaml` measures steps and saves, and so does each finished run"
    )
    return f"the simulation needs {' and '.join(missing)}{measure}"


# ------------------------------------------------------------------------------------------------------------ lifetimes


def _lifetimes(
    job: Job,
    estimate: OfferEstimate,
    overrides: Overrides,
    lifetime_source: LifetimeSource | None,
    numbers: _Numbers,
) -> tuple[LifetimeModel, Input, float]:
    """Return the lifetimes, what they rest on, and the mean time between losses that the workers assume [s]."""
    key = PlanNumberKey.MTTP
    if lifetime_source is not None:
        mean_s = lifetime_source.mttp_s if math.isfinite(lifetime_source.mttp_s) else None
        return (
            lifetime_source.lifetimes,
            Input("lifetimes of machines", mean_s, mean_s, "s", lifetime_source.source),
            lifetime_source.mttp_s / job.nodes,
        )
    if (mttp_s := overrides.mttp_s) is not None:
        return MemorylessLifetimes((mttp_s,)), Input(key, mttp_s, mttp_s, "s", _BY_USER), mttp_s / job.nodes
    number = numbers[key]
    means: tuple[float, ...] = (math.inf if number.value is None else number.value,)
    if job.injection is not None:
        means = tuple(float(mean) for mean in job.injection.mttp_s)
    shown = Input(key, number.value, number.value, "s", number.source)
    return MemorylessLifetimes(means), shown, estimate.history.mttp_s(0.0)


def _notice(estimate: OfferEstimate, overrides: Overrides, numbers: _Numbers) -> tuple[float, float, tuple[Input, ...]]:
    """Return the notice [s], the share of losses that come with it, and what they rest on."""
    notice_s = estimate.hazard.notice_s if overrides.notice_s is None else overrides.notice_s
    offered = "given by the offer" if estimate.offer.provider else "assumed"
    length = Input("notice", notice_s, notice_s, "s", offered if overrides.notice_s is None else _BY_USER)
    silent = numbers.get(PlanNumberKey.SILENT_SHARE)
    share = 1.0 - estimate.hazard.silent_share
    source = "derived: no loss is expected" if silent is None else silent.source
    if overrides.announced_share is not None:
        share, source = overrides.announced_share, _BY_USER
    elif overrides.notice_s is not None and estimate.offer.notice_s <= 0.0 < overrides.notice_s:
        pattern = lifetime_pool.pattern_or_default(estimate.offer.provider)
        share = pattern.announced / (pattern.unannounced + pattern.announced)
        source = "assumed: the provider's usual pattern"
    if notice_s <= 0.0:
        share, source = 0.0, "derived: there is no notice"
    return notice_s, share, (length, Input("share of losses with notice", share, share, "", source))


def _price(estimate: OfferEstimate, overrides: Overrides, price_source: PriceSource | None) -> PriceSource:
    if overrides.price_usd_per_hour is not None:
        return PriceSource(overrides.price_usd_per_hour, _BY_USER)
    return price_source or PriceSource(estimate.offer.price_usd_per_hour, "given by the offer")


def _provider(offer: Offer) -> str:
    return offer.provider if offer.provider in preemption_rates.providers() else "local"


def _notes(
    job: Job, estimate: OfferEstimate, lifetime_source: LifetimeSource | None, *, unknown_upload: bool
) -> tuple[str, ...]:
    notes = list(() if lifetime_source is None else lifetime_source.notes)
    if estimate.offer.refund:
        notes.append("the free hour of preempted machines is not counted: the bill will be lower")
    if job.checkpointing.keep_every is not None:
        notes.append("the script's own saves (keep_every) are not simulated beside those of the policy")
    if estimate.offer.reliability is Reliability.RELIABLE and lifetime_source is not None:
        notes.append("the offer is an on-demand machine; this simulation loses it as the model or trace says")
    if unknown_upload:
        notes.append("the upload time of a save is unknown and counts as 0: give it with --upload")
    return tuple(notes)
