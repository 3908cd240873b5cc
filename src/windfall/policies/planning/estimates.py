"""Estimate a job on an offer: the inputs of `models.expected_runtime`, each with its source.

`ranking` orders offers by the estimate, `job_plan` shows it.  A number is *measured* (from earlier runs of the job, or
the installation's machines), *given* (by the job file or the offer) or *assumed* (a stated default); without a default
it is unknown.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable

import msgspec

from windfall.errors import Misuse
from windfall.fleet import Lifetime
from windfall.jobs import DRILL, Job, Measurement
from windfall.market import BillingBasis, Offer
from windfall.models import expected_runtime, injection, job_measurements, lifetime_pool, preemption_rates
from windfall.models.costs import DEFAULT_STALL_S, Costs
from windfall.models.expected_runtime import Expectation, Hazard, Restart, Saving
from windfall.policies.checkpointing import decision, rules
from windfall.policies.layout import runtime_list
from windfall.policies.policy_registry import EVERY
from windfall.policies.replacement import successor
from windfall.structs import Struct, replace
from windfall.terms import DEFAULT_SAVING, Instant, Phase, Reliability, Seconds, Unit, WallTime

ALLOCATE_S = preemption_rates.DEFAULT_RESTART_S
"""Default time from an order to the machine's start, without a value from the offer or earlier runs [s]: the thesis'
allocation time."""
PREPARE_S = 160.0
"""Default time from a machine's start to its first step, without earlier runs [s]: the thesis' preparation of GPT-117M."""
POLL_S = 5.0
"""Default interval at which the controller polls machines and run [s]."""
_STEP_S = 1e-3
"""Length of a step where work is not counted in steps [s]: short, so that intervals are hardly rounded."""


class PlanNumberKey(enum.StrEnum):
    """A number of a plan; the value is the label that users see."""

    WORK = "work"
    ITEM = "time of an item"
    AT_ONCE = "items at once on a machine"
    SPEED = "speed"
    ALLOCATION = "allocation"
    PREPARATION = "preparation"
    SAVE_STALL = "stall per save"
    STATE_SIZE = "state size"
    STATE_UPLOAD = "state upload"
    SAVE_COMMIT = "commit per save"
    MTTP = "mean time to preemption"
    SILENT_SHARE = "share of losses without notice"
    SAVE_INTERVAL = "time between saves"


class NumberBasis(enum.StrEnum):
    """What a number rests on."""

    MEASURED = "measured"
    GIVEN = "given"
    ASSUMED = "assumed"
    DERIVED = "derived"
    UNKNOWN = "unknown"

    def source(self, detail: str) -> str:
        """Return the source of a number as text: the basis, then the detail."""
        return f"{self} {detail}" if self in (NumberBasis.MEASURED, NumberBasis.GIVEN) else f"{self}: {detail}"


class PlanNumber(Struct, frozen=True):
    """A number of a plan and where it comes from.

    Attributes:
        value: None if unknown.
        detail: completes the basis, such as `in 3 earlier runs` after `measured`.
        source: basis and detail as text; set by itself.
    """

    name: PlanNumberKey
    value: float | None
    unit: str
    basis: NumberBasis
    detail: str
    source: str = ""

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "source", self.basis.source(self.detail))


class NoticeFit(Struct, frozen=True):
    """Whether an emergency save fits the notice.

    Attributes:
        fits: None if unknown.
        needs_s: the rest of the step, the stall, the upload and the commit [s]; None if unknown.
        notice_s: the length of the notice [s].
    """

    fits: bool | None
    needs_s: float | None
    notice_s: float


class OfferEstimate(Struct, frozen=True):
    """The estimate for a job on an offer.

    Attributes:
        work_s: training time of the whole work on these machines without losses [s]; None if unknown.
        work_per_s: speed, in the job's unit; None if unknown.
        numbers: every input, with its source.
        history: the preemption history that the machines will have halfway through the run.
    """

    offer: Offer
    machines: int
    hazard: Hazard
    saving: Saving
    restart: Restart
    fit: NoticeFit
    work_s: float | None
    work_per_s: float | None
    numbers: tuple[PlanNumber, ...]
    history: preemption_rates.PreemptionHistory

    def expect(self, work_s: float) -> Expectation:
        """Return the expected course of a run with `work_s` seconds of training on this offer."""
        return expected_runtime.expect(work_s, self.hazard, self.saving, self.restart)

    def billed_s(self, expectation: Expectation) -> float:
        """Return the billed machine-seconds, without the refunded hours of preempted machines [s].

        By started hours, a preempted machine is billed for the rest of its hour too, on average over exponential lifetimes,
        unless that hour is free; of the machines that work until the end, for half an hour more, or where none is lost, for
        exactly what is missing to whole hours.  A minimum counts for the whole run alone.
        """
        rule, lost, billed_s = self.offer.billing, expectation.preemptions, expectation.billed_s
        last_s = self._last_hours_s(expectation) if rule.basis is BillingBasis.STARTED_HOUR else 0.0
        if lost:
            free_s = expected_runtime.refunded_s(self.hazard.mttp_s, rule.hour_s)
            if self.offer.refund:
                billed_s -= lost * free_s
            elif rule.basis is BillingBasis.STARTED_HOUR:
                billed_s += lost * (rule.hour_s - free_s)
        billed_s += last_s
        return max(billed_s, self.machines * rule.minimum_s) if rule.minimum_s else billed_s

    def _last_hours_s(self, expectation: Expectation) -> float:
        """Return what the machines that work until the end are billed beyond it by started hours [machine-seconds]."""
        hour_s = self.offer.billing.hour_s
        if expectation.preemptions or not math.isfinite(expectation.billed_s):
            return self.machines * hour_s / 2.0
        each_s = expectation.billed_s / self.machines
        return self.machines * (math.ceil(each_s / hour_s) * hour_s - each_s)

    def cost_usd(self, expectation: Expectation) -> float:
        """Return what the provider charges, at the offer's current price [USD]."""
        return self.billed_s(expectation) / 3600.0 * self.offer.price_usd_per_hour

    @property
    def reliable(self) -> OfferEstimate:
        """The same machines on demand: no losses, at the on-demand price."""
        offer = replace(
            self.offer,
            price_usd_per_hour=self.offer.on_demand_usd_per_hour,
            reliability=Reliability.RELIABLE,
            refund=False,
        )
        hazard, saving = Hazard(math.inf, self.machines), replace(self.saving, interval_s=math.inf)
        return replace(self, offer=offer, hazard=hazard, saving=saving)


class Knowledge(Struct, frozen=True):
    """What the installation's runs have shown, as far as the caller knows it.

    Attributes:
        rates: per (provider, type, zone), as `fleet.EstimatesPooled`.
        measured: measurements from earlier runs of this job.
        pooled: the rates with their evidence; may be empty.
        poll_s: how often the controller polls a provider's listing and the run's log [s]: on average half of it passes
            until a silent loss is seen, and until a finished run's machines are released.
    """

    rates: tuple[lifetime_pool.Rate, ...] = ()
    measured: tuple[Measurement, ...] = ()
    pooled: tuple[lifetime_pool.PooledEstimate, ...] = ()
    poll_s: float = POLL_S


class PlanInputs(Struct, frozen=True):
    """What a job's plan is calculated from, so that a client can calculate with it too.

    Attributes:
        now: on the controller's wall clock; lifetimes that have not ended count until then.
        poll_s: between two polls of the machines' listing [s].
        measured: the measurements of each earlier run of a similar job.
        lifetimes: of all machines of the installation.
    """

    now: WallTime
    poll_s: Seconds
    measured: tuple[Measurement, ...] = ()
    lifetimes: tuple[Lifetime, ...] = ()


def estimate_from(inputs: PlanInputs, job: Job, offer: Offer) -> OfferEstimate:
    """Estimate `job` on machines of `offer`."""
    pooled = lifetime_pool.pool(inputs.lifetimes, inputs.now)
    return offer_estimate(job, offer, Knowledge((), job_measurements.merge(inputs.measured), pooled, inputs.poll_s))


def offer_estimate(job: Job, offer: Offer, knowledge: Knowledge) -> OfferEstimate:
    """Estimate `job` on machines of `offer`."""
    measured = _measured(job, offer, knowledge.measured)
    work_per_s, work_s, speeds = _work(job, measured)
    rate = lifetime_pool.look_up(_rates(knowledge), offer.provider, offer.machine_type, offer.zone)
    restart, restarts = _restart(offer, measured, rate, knowledge.poll_s)
    costs, saves = _costs(measured)
    notice_s = _notice_s(job, offer)
    hazard, hazards = _hazard(job, offer, knowledge, work_s)
    fit = _notice_fit(costs, notice_s)
    hazard = replace(hazard, covered=fit.fits is True, notice_s=notice_s)
    replacing = successor.expect(offer.startup_s, restart.allocate_s, restart.boot_s or None)
    restart = replace(restart, order_late_s=max(notice_s - replacing.lead_s, 0.0))
    history = _expected_history(job, offer, knowledge, hazard, work_s)
    interval_s, intervals = _interval_s(job, costs, history)
    saving = Saving(
        interval_s=interval_s,
        stall_s=costs.stall_s,
        durable_s=max(costs.to_durable_s - costs.stall_s, 0.0),
        step_s=costs.step_mean_s or 0.0,
    )
    numbers = (*speeds, *restarts, *saves, *hazards, intervals)
    return OfferEstimate(offer, job.nodes, hazard, saving, restart, fit, work_s, work_per_s, numbers, history)


def relevant_measurements(job: Job, offer: Offer, measured: Iterable[Measurement]) -> list[Measurement]:
    """Return the measurements that apply to a job on an offer.

    These are its runs on such machines, else its drills; only those in the job's unit if there are any.
    """
    rows = list(measured)
    found = [row for row in rows if (row.provider, row.machine_type) == (offer.provider, offer.machine_type)]
    # Real runs outweigh drills wherever the drill ran: its machine is seldom the one that is bought.
    found = found or [row for row in rows if row.provider == DRILL]
    return [row for row in found if job.work is None or row.unit is job.work.unit] or found


def _measured(job: Job, offer: Offer, measured: tuple[Measurement, ...]) -> Measurement | None:
    return max(relevant_measurements(job, offer, measured), key=lambda row: row.runs, default=None)


def _runs(measured: Measurement) -> str:
    """Return the runs behind a measured number, as the detail of its source."""
    if measured.provider == DRILL:
        return f"in a drill on {measured.machine_type}"
    return f"in {measured.runs} earlier run{'' if measured.runs == 1 else 's'}"


def _work(job: Job, measured: Measurement | None) -> tuple[float | None, float | None, tuple[PlanNumber, ...]]:
    amount, unit = (job.work.amount, job.work.unit.value) if job.work else (None, "work")
    known = (NumberBasis.GIVEN, "by the job file") if job.work else (NumberBasis.UNKNOWN, "the job file has no work")
    if job.objective.loss is not None:
        at_most = runtime_list.rules(job.runtime.name).ends_at_loss
        known = NumberBasis.GIVEN if at_most else NumberBasis.DERIVED, runtime_list.work_to_loss_text(job)
    work = PlanNumber(PlanNumberKey.WORK, amount, f"{unit}s", *known)
    if measured is None:
        reason = "no earlier run of this job on this type of machine"
        speed = PlanNumber(PlanNumberKey.SPEED, None, f"{unit}s/s", NumberBasis.UNKNOWN, reason)
        return None, None, (work, speed)
    speed = PlanNumber(
        PlanNumberKey.SPEED, measured.work_per_s, f"{measured.unit.value}s/s", NumberBasis.MEASURED, _runs(measured)
    )
    if job.work is None or measured.unit is not job.work.unit:
        return (measured.work_per_s if job.work is None else None), None, (work, speed)
    return measured.work_per_s, job.work.amount / measured.work_per_s, (work, speed)


def _restart(
    offer: Offer, measured: Measurement | None, rate: lifetime_pool.Rate | None, poll_s: float
) -> tuple[Restart, tuple[PlanNumber, ...]]:
    if measured is not None and measured.provider != DRILL:
        allocate = PlanNumber(PlanNumberKey.ALLOCATION, measured.allocate_s, "s", NumberBasis.MEASURED, _runs(measured))
        prepare = PlanNumber(PlanNumberKey.PREPARATION, measured.prepare_s, "s", NumberBasis.MEASURED, _runs(measured))
    else:
        prepare = PlanNumber(PlanNumberKey.PREPARATION, PREPARE_S, "s", NumberBasis.ASSUMED, "nothing was measured")
        if measured is not None:
            detail = f"{_runs(measured)}: restore and start of the script, without the machine's boot and setup"
            prepare = replace(prepare, value=measured.prepare_s, basis=NumberBasis.MEASURED, detail=detail)
        known = offer.startup_s
        allocate = PlanNumber(PlanNumberKey.ALLOCATION, ALLOCATE_S, "s", NumberBasis.ASSUMED, "nothing was measured")
        if known is not None:
            allocate = replace(allocate, value=known, basis=NumberBasis.GIVEN, detail="by the offer")
    assert allocate.value is not None, "there is always an allocation time"
    assert prepare.value is not None, "there is always a preparation time"
    boot_s = 0.0 if measured is None or measured.boot_s is None else min(measured.boot_s, prepare.value)
    measured_s = None if rate is None else rate[4]
    late_s = poll_s / 2.0 if measured_s is None else max(measured_s - allocate.value - prepare.value, 0.0)
    restart = Restart(allocate.value, prepare.value, boot_s, late_s, release_s=poll_s / 2.0)
    return restart, (allocate, prepare)


def _costs(measured: Measurement | None) -> tuple[Costs, tuple[PlanNumber, ...]]:
    """Return the cost of saves as the saving policies use it, and as plan numbers."""
    known, detail = measured, "" if measured is None else _runs(measured)
    costs = Costs()
    stall = PlanNumber(PlanNumberKey.SAVE_STALL, DEFAULT_STALL_S, "s", NumberBasis.ASSUMED, "no save was measured")
    size = PlanNumber(PlanNumberKey.STATE_SIZE, None, "B", NumberBasis.UNKNOWN, "no save was measured")
    upload = PlanNumber(PlanNumberKey.STATE_UPLOAD, None, "s", NumberBasis.UNKNOWN, "no save was measured")
    commit = PlanNumber(PlanNumberKey.SAVE_COMMIT, None, "s", NumberBasis.UNKNOWN, "no save was measured")
    if known is None:
        return costs, (stall, size, upload, commit)
    if known.unit is Unit.STEP:
        costs = costs.add_steps(1, 1.0 / known.work_per_s, 1.0 / known.work_per_s)
    if known.stall_s is not None:
        costs, stall = (
            costs.add_stall(known.stall_s),
            replace(stall, value=known.stall_s, basis=NumberBasis.MEASURED, detail=detail),
        )
    if known.size_bytes is not None:
        size = replace(size, value=float(known.size_bytes), basis=NumberBasis.MEASURED, detail=detail)
        costs = replace(costs, state_bytes=known.size_bytes)
    if known.upload_s is not None:
        upload = replace(upload, value=known.upload_s, basis=NumberBasis.MEASURED, detail=detail)
        costs = costs.add_upload(known.size_bytes or 0, known.upload_s)
    if known.commit_s is not None:
        costs, commit = (
            costs.add_commit(known.commit_s),
            replace(commit, value=known.commit_s, basis=NumberBasis.MEASURED, detail=detail),
        )
    return costs, (stall, size, upload, commit)


def _notice_s(job: Job, offer: Offer) -> float:
    if job.injection is not None:
        return job.injection.notice_s or 0.0
    return 0.0 if offer.reliability is Reliability.RELIABLE else offer.notice_s


def _hazard(
    job: Job, offer: Offer, knowledge: Knowledge, work_s: float | None
) -> tuple[Hazard, tuple[PlanNumber, ...]]:
    if offer.reliability is Reliability.RELIABLE and job.injection is None:
        never = PlanNumber(PlanNumberKey.MTTP, None, "s", NumberBasis.GIVEN, "by the offer: it cannot be preempted")
        return Hazard(math.inf, job.nodes), (never,)
    if job.injection is not None:
        horizon_s = work_s or sum(job.injection.mttp_s) * 100.0
        mttp_s = injection.mean_mttp_s(job.injection, horizon_s)
        silent = 0.0 if job.injection.notice_s else 1.0
        by_injector = (NumberBasis.GIVEN, "by the injector")
        return Hazard(mttp_s, job.nodes, silent), (
            PlanNumber(PlanNumberKey.MTTP, mttp_s, "s", *by_injector),
            PlanNumber(PlanNumberKey.SILENT_SHARE, silent, "", *by_injector),
        )
    return _estimated_hazard(job, offer, knowledge)


def _estimated_hazard(job: Job, offer: Offer, knowledge: Knowledge) -> tuple[Hazard, tuple[PlanNumber, ...]]:
    rate = lifetime_pool.look_up(_rates(knowledge), offer.provider, offer.machine_type, offer.zone)
    pattern = lifetime_pool.pattern_or_default(offer.provider)
    reason = "no machine of this provider was observed"
    mttp = PlanNumber(PlanNumberKey.MTTP, preemption_rates.PRIOR_MTTP_S, "s", NumberBasis.ASSUMED, reason)
    share = pattern.unannounced / (pattern.unannounced + pattern.announced)
    silent = PlanNumber(PlanNumberKey.SILENT_SHARE, share, "", NumberBasis.ASSUMED, "the provider's usual pattern")
    if rate is not None:
        row = next((row for row in knowledge.pooled if row.rate[:3] == rate[:3]), None)
        scope = " in ".join(word for word in (rate[1], rate[2]) if word) or rate[0]
        seen = NumberBasis.MEASURED, f"on this installation's machines ({scope})"
        if row is not None:
            seen, announced = _sources(row, knowledge, scope)
            share = row.silent_share
            silent = replace(silent, value=share, basis=announced[0], detail=announced[1])
        mttp = replace(mttp, value=rate[3], basis=seen[0], detail=seen[1])
    if offer.notice_s <= 0.0:
        share, silent = (
            1.0,
            replace(silent, value=1.0, basis=NumberBasis.GIVEN, detail="by the offer: it promises no notice"),
        )
    assert mttp.value is not None, "there is always a mean time to preemption"
    # A lifetime of this mean ends G after the notice; the first sign comes earlier, after M e^(-G / M) on average.
    first_sign_s = share * mttp.value + (1.0 - share) * mttp.value * math.exp(-offer.notice_s / mttp.value)
    return Hazard(first_sign_s, job.nodes, share), (mttp, silent)


_Source = tuple[NumberBasis, str]
"""Basis and detail of a number."""


def _sources(row: lifetime_pool.PooledEstimate, knowledge: Knowledge, scope: str) -> tuple[_Source, _Source]:
    """Return the sources of a mean time to preemption and of a share of losses without notice."""
    machines = f"{row.lifetimes} machine{'' if row.lifetimes == 1 else 's'}"
    if row.preemptions:
        seen = NumberBasis.MEASURED, f"on {machines}, {row.preemptions} preempted ({scope})"
        return seen, seen
    prolonged = f"raised by {machines} that {'was' if row.lifetimes == 1 else 'were'} not preempted ({scope})"
    if any(one.preemptions for one in knowledge.pooled if one.provider == row.provider):
        others = f"on other machines of {row.provider}"
        return (NumberBasis.MEASURED, f"{others}, {prolonged}"), (NumberBasis.MEASURED, others)
    pattern = f"the provider's usual pattern (none of {machines} was preempted)"
    return (NumberBasis.ASSUMED, prolonged), (NumberBasis.ASSUMED, pattern)


def _notice_fit(costs: Costs, notice_s: float) -> NoticeFit:
    if not costs.measured:
        return NoticeFit(False if notice_s <= 0.0 else None, None, notice_s)
    step_s, stall_s, commit_s = costs.step_mean_s or 0.0, costs.stall_s, costs.commits.mean or 0.0
    upload_s = costs.upload_s(costs.state_bytes or 0)
    fits = rules.emergency_fits(notice_s, step_s, stall_s, upload_s, commit_s)
    return NoticeFit(fits, step_s + stall_s + upload_s + commit_s, notice_s)


def _expected_history(
    job: Job, offer: Offer, knowledge: Knowledge, hazard: Hazard, work_s: float | None
) -> preemption_rates.PreemptionHistory:
    """Return the preemption history that the machines will have halfway through the run: given and observed."""
    rates = _rates(knowledge)
    mttp_s, restart_s = lifetime_pool.mttp_and_restart(rates, offer.provider, offer.machine_type, offer.zone, job.nodes)
    half_s = (work_s or 0.0) / 2.0
    preemptions = round(half_s / hazard.mttl_s)
    return preemption_rates.PreemptionHistory(
        offer.provider if offer.provider in preemption_rates.providers() else "local",
        lifetimes_s=half_s,
        preemptions=preemptions,
        announced=(announced := round(preemptions * (1.0 - hazard.silent_share))),
        notices_s=(hazard.notice_s,) if announced else (),
        share_given=hazard.silent_share,
        notice_given_s=hazard.notice_s,
        mttp_given_s=mttp_s,
        restart_given_s=restart_s,
    )


def _rates(knowledge: Knowledge) -> tuple[lifetime_pool.Rate, ...]:
    return knowledge.rates or tuple(row.rate for row in knowledge.pooled)


def _interval_s(job: Job, costs: Costs, history: preemption_rates.PreemptionHistory) -> tuple[float, PlanNumber]:
    """Return the training time between two saves: the saving policy's, or the user's own if that is shorter."""
    policy = decision.parse_policy(job.options.policy)
    kept = _kept(job)
    name = PlanNumberKey.SAVE_INTERVAL
    step_unknown = costs.step_mean_s is None and any(words.endswith("steps") for words in (policy, kept))
    unspecified = not decision.saving_policy(policy).insures and not kept and job.checkpointing.keep_every is not None
    if step_unknown or unspecified:
        interval_s = _insured_s(DEFAULT_SAVING, costs, history)
        reason = "the length of a step is unknown" if step_unknown else "keep_every gives no interval"
        return interval_s, PlanNumber(
            name, interval_s, "s", NumberBasis.ASSUMED, f"as policy {DEFAULT_SAVING}, because {reason}"
        )
    insured_s = _insured_s(policy, costs, history)
    kept_s = _insured_s(kept, costs, history) if kept else math.inf
    interval_s = min(insured_s, kept_s)
    if math.isinf(interval_s):
        return interval_s, PlanNumber(name, None, "s", NumberBasis.DERIVED, f"policy {policy} saves only at a notice")
    if kept_s < insured_s:
        return interval_s, PlanNumber(name, interval_s, "s", NumberBasis.GIVEN, "by the job file (keep_every)")
    return interval_s, PlanNumber(name, interval_s, "s", NumberBasis.DERIVED, f"policy {policy}")


def _insured_s(policy: str, costs: Costs, history: preemption_rates.PreemptionHistory) -> float:
    """Return the interval that the saving policy itself chooses [s], as on the machines."""
    step_s = costs.step_mean_s or _STEP_S
    stepped = costs if costs.step_mean_s is not None else costs.add_steps(1, _STEP_S, _STEP_S)
    view = decision.SavingView(policy, 0.0, (decision.RankProgress(0, Phase.BETWEEN, 0.0),), 0, 0)
    choice = decision.decide(Instant(0.0), view, decision.Estimates(history, stepped))
    if choice.interval_s is not None:
        return rules.thesis_insurance_step(0, choice.interval_s, step_s) * step_s
    return math.inf if choice.save_at is None else choice.save_at * step_s


def _kept(job: Job) -> str:
    """Return the user's own schedule as a policy; empty if there is none, or none that is known in advance."""
    text = job.checkpointing.keep_every
    try:
        return "" if text is None else decision.parse_policy(text if text.startswith(EVERY) else f"{EVERY} {text}")
    except Misuse:
        return ""
