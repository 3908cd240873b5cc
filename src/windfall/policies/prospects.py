"""What an offer would do for a job: the inputs of `models.runtime`, each with where it comes from.

`buying` orders offers by it, `planning` shows it.  A number is *measured* (earlier runs of the job, the installation's
machines), *given* (by the job file or the offer) or *assumed* (a stated default); what has no default is unknown.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from windfall.errors import Misuse
from windfall.jobs import DRILL, Job, Measured
from windfall.market import Offer
from windfall.models import injection, losses, pool, runtime
from windfall.models.costs import DEFAULT_STALL_S, Costs
from windfall.models.runtime import Expectation, Hazard, Restart, Saving
from windfall.policies import replacement
from windfall.policies.saving import decide, rules
from windfall.terms import Instant, Phase, Reliability, Unit

ALLOCATE_S = losses.DEFAULT_RESTART_S
"""From an order to the machine's start, where neither the offer nor earlier runs say [s]: the thesis' allocation time."""
PREPARE_S = 160.0
"""From a machine's start to its first step, where no earlier run says [s]: the thesis' preparation of GPT-117M."""
LOOK_S = 5.0
"""Between two looks of the controller at machines and run, where the caller does not say [s]."""
_STEP_S = 1e-3
"""Stands for the length of a step where work is not counted in steps: intervals are then hardly rounded."""


@dataclass(frozen=True, slots=True)
class Number:
    """A number of a plan and where it comes from.

    Attributes:
        value: None if unknown.
        source: in words, beginning with `measured`, `given`, `assumed`, `derived` or `unknown`.
    """

    name: str
    value: float | None
    unit: str
    source: str


@dataclass(frozen=True, slots=True)
class Fit:
    """Whether an emergency save fits the notice.

    Attributes:
        fits: None if unknown.
        needs_s: the rest of the step, the standstill, the upload and the commit [s]; None if unknown.
        notice_s: how long there is [s].
    """

    fits: bool | None
    needs_s: float | None
    notice_s: float


@dataclass(frozen=True, slots=True)
class Prospect:
    """What is believed of a job on an offer.

    Attributes:
        work_s: training time of the whole work on these machines, losses aside [s]; None if unknown.
        work_per_s: speed, in the job's unit; None if unknown.
        numbers: every input, with its source.
        learnt: what the machines will believe of losses, half-way through the run.
    """

    offer: Offer
    machines: int
    hazard: Hazard
    saving: Saving
    restart: Restart
    fit: Fit
    work_s: float | None
    work_per_s: float | None
    numbers: tuple[Number, ...]
    learnt: losses.Losses

    def expect(self, work_s: float) -> Expectation:
        """Return what so much training takes on this offer [s]."""
        return runtime.expect(work_s, self.hazard, self.saving, self.restart)

    def billed_s(self, expectation: Expectation) -> float:
        """Return the machine-seconds that are paid: less the free hours of machines that are taken back [s]."""
        if not self.offer.refund or not expectation.preemptions:
            return expectation.billed_s
        return expectation.billed_s - expectation.preemptions * runtime.refunded_s(self.hazard.mttp_s)

    def cost_usd(self, expectation: Expectation) -> float:
        """Return what the provider charges, at the offer's present price."""
        return self.billed_s(expectation) / 3600.0 * self.offer.price_usd_per_hour

    @property
    def reliable(self) -> Prospect:
        """The same machines where they cannot be taken back: no losses, at the on-demand price."""
        offer = replace(
            self.offer,
            price_usd_per_hour=self.offer.on_demand_usd_per_hour,
            reliability=Reliability.RELIABLE,
            refund=False,
        )
        hazard, saving = Hazard(math.inf, self.machines), replace(self.saving, interval_s=math.inf)
        return replace(self, offer=offer, hazard=hazard, saving=saving)


@dataclass(frozen=True, slots=True)
class Knowledge:
    """What all the installation's runs showed, as far as the caller has it.

    Attributes:
        rates: per (provider, type, zone), as `fleet.BeliefsPooled`.
        measured: of earlier runs of this job.
        pooled: the rates with what they rest on; may be empty.
        look_s: between two looks of the controller at a provider's listing and at the run's log [s]: half of it passes
            in the mean until a silent loss is seen, and until a finished run's machines are given back.
    """

    rates: tuple[pool.Rate, ...] = ()
    measured: tuple[Measured, ...] = ()
    pooled: tuple[pool.Pooled, ...] = ()
    look_s: float = LOOK_S


def prospect(job: Job, offer: Offer, knowledge: Knowledge) -> Prospect:
    """Return what is believed of `job` on machines of `offer`."""
    measured = _measured(job, offer, knowledge.measured)
    work_per_s, work_s, speeds = _work(job, measured)
    rate = pool.look_up(_rates(knowledge), offer.provider, offer.machine_type, offer.zone)
    restart, restarts = _restart(offer, measured, rate, knowledge.look_s)
    costs, saves = _costs(measured)
    notice_s = _notice_s(job, offer)
    hazard, hazards = _hazard(job, offer, knowledge, work_s)
    fit = _fit(costs, notice_s)
    hazard = replace(hazard, covered=fit.fits is True, notice_s=notice_s)
    replacing = replacement.expect(offer.startup_s, restart.allocate_s, restart.boot_s or None)
    restart = replace(restart, order_late_s=max(notice_s - replacing.lead_s, 0.0))
    learnt = _learnt(job, offer, knowledge, hazard, work_s)
    interval_s, intervals = _interval_s(job, costs, learnt)
    saving = Saving(
        interval_s=interval_s,
        stall_s=costs.stall_s,
        durable_s=max(costs.to_durable_s - costs.stall_s, 0.0),
        step_s=costs.step_mean_s or 0.0,
    )
    numbers = (*speeds, *restarts, *saves, *hazards, intervals)
    return Prospect(offer, job.nodes, hazard, saving, restart, fit, work_s, work_per_s, numbers, learnt)


def speaking(job: Job, offer: Offer, measured: Iterable[Measured]) -> list[Measured]:
    """Return what speaks for a job on an offer: its runs on such machines, else its drills; of the job's unit, if any are."""
    rows = list(measured)
    found = [row for row in rows if (row.provider, row.machine_type) == (offer.provider, offer.machine_type)]
    # Real runs outweigh drills, wherever the drill was: its machine is seldom the one that is bought.
    found = found or [row for row in rows if row.provider == DRILL]
    return [row for row in found if job.work is None or row.unit is job.work.unit] or found


def _measured(job: Job, offer: Offer, measured: tuple[Measured, ...]) -> Measured | None:
    return max(speaking(job, offer, measured), key=lambda row: row.runs, default=None)


def _runs(measured: Measured) -> str:
    if measured.provider == DRILL:
        return f"measured in a drill on {measured.machine_type}"
    return f"measured in {measured.runs} earlier run{'' if measured.runs == 1 else 's'}"


def _work(job: Job, measured: Measured | None) -> tuple[float | None, float | None, tuple[Number, ...]]:
    amount, unit = (job.work.amount, job.work.unit.value) if job.work else (None, "work")
    work = Number(
        "work", amount, f"{unit}s", "given by the job file" if job.work else "unknown: the job file has no work"
    )
    if measured is None:
        speed = Number("speed", None, f"{unit}s/s", "unknown: no earlier run of this job on this type of machine")
        return None, None, (work, speed)
    speed = Number("speed", measured.work_per_s, f"{measured.unit.value}s/s", _runs(measured))
    if job.work is None or measured.unit is not job.work.unit:
        return (measured.work_per_s if job.work is None else None), None, (work, speed)
    return measured.work_per_s, job.work.amount / measured.work_per_s, (work, speed)


def _restart(
    offer: Offer, measured: Measured | None, rate: pool.Rate | None, look_s: float
) -> tuple[Restart, tuple[Number, ...]]:
    if measured is not None and measured.provider != DRILL:
        allocate = Number("allocation", measured.allocate_s, "s", _runs(measured))
        prepare = Number("preparation", measured.prepare_s, "s", _runs(measured))
    else:
        prepare = Number("preparation", PREPARE_S, "s", "assumed: nothing was measured")
        if measured is not None:
            source = f"{_runs(measured)}: restore and start of the script, without the machine's boot and setup"
            prepare = replace(prepare, value=measured.prepare_s, source=source)
        known = offer.startup_s
        source = "assumed: nothing was measured" if known is None else "given by the offer"
        allocate = Number("allocation", ALLOCATE_S if known is None else known, "s", source)
    assert allocate.value is not None, "an allocation time is always believed"
    assert prepare.value is not None, "a preparation time is always believed"
    boot_s = 0.0 if measured is None or measured.boot_s is None else min(measured.boot_s, prepare.value)
    measured_s = None if rate is None else rate[4]
    late_s = look_s / 2.0 if measured_s is None else max(measured_s - allocate.value - prepare.value, 0.0)
    restart = Restart(allocate.value, prepare.value, boot_s, late_s, release_s=look_s / 2.0)
    return restart, (allocate, prepare)


def _costs(measured: Measured | None) -> tuple[Costs, tuple[Number, ...]]:
    """Return what saves cost, as the saving policies want to know it, and the same as numbers."""
    known, source = measured, "" if measured is None else _runs(measured)
    costs = Costs()
    stall = Number("standstill of a save", DEFAULT_STALL_S, "s", "assumed: no save was measured")
    size = Number("size of the state", None, "B", "unknown: no save was measured")
    upload = Number("upload of the state", None, "s", "unknown: no save was measured")
    commit = Number("commit of a save", None, "s", "unknown: no save was measured")
    if known is None:
        return costs, (stall, size, upload, commit)
    if known.unit is Unit.STEP:
        costs = costs.add_steps(1, 1.0 / known.work_per_s, 1.0 / known.work_per_s)
    if known.stall_s is not None:
        costs, stall = costs.add_stall(known.stall_s), replace(stall, value=known.stall_s, source=source)
    if known.size_bytes is not None:
        size = replace(size, value=float(known.size_bytes), source=source)
        costs = replace(costs, state_bytes=known.size_bytes)
    if known.upload_s is not None:
        upload = replace(upload, value=known.upload_s, source=source)
        costs = costs.add_upload(known.size_bytes or 0, known.upload_s)
    if known.commit_s is not None:
        costs, commit = costs.add_commit(known.commit_s), replace(commit, value=known.commit_s, source=source)
    return costs, (stall, size, upload, commit)


def _notice_s(job: Job, offer: Offer) -> float:
    if job.injection is not None:
        return job.injection.notice_s or 0.0
    return 0.0 if offer.reliability is Reliability.RELIABLE else offer.notice_s


def _hazard(job: Job, offer: Offer, knowledge: Knowledge, work_s: float | None) -> tuple[Hazard, tuple[Number, ...]]:
    if offer.reliability is Reliability.RELIABLE and job.injection is None:
        never = Number("mean time to preemption", None, "s", "given by the offer: it cannot be taken back")
        return Hazard(math.inf, job.nodes), (never,)
    if job.injection is not None:
        horizon_s = work_s or sum(job.injection.mttp_s) * 100.0
        mttp_s = injection.mean_mttp_s(job.injection, horizon_s)
        silent = 0.0 if job.injection.notice_s else 1.0
        source = "given by the injector"
        return Hazard(mttp_s, job.nodes, silent), (
            Number("mean time to preemption", mttp_s, "s", source),
            Number("share of losses without notice", silent, "", source),
        )
    return _learnt_hazard(job, offer, knowledge)


def _learnt_hazard(job: Job, offer: Offer, knowledge: Knowledge) -> tuple[Hazard, tuple[Number, ...]]:
    rate = pool.look_up(_rates(knowledge), offer.provider, offer.machine_type, offer.zone)
    habit = pool.habit_of(offer.provider)
    mttp = Number("mean time to preemption", losses.PRIOR_MTTP_S, "s", "assumed: no machine of this provider was seen")
    share = habit.unannounced / (habit.unannounced + habit.announced)
    silent = Number("share of losses without notice", share, "", "assumed: the provider's habit")
    if rate is not None:
        row = next((row for row in knowledge.pooled if row.rate[:3] == rate[:3]), None)
        scope = " in ".join(word for word in (rate[1], rate[2]) if word) or rate[0]
        seen = f"measured on this installation's machines ({scope})"
        if row is not None:
            seen, told = _seen(row, knowledge, scope)
            share, silent = row.silent_share, replace(silent, value=row.silent_share, source=told)
        mttp = replace(mttp, value=rate[3], source=seen)
    if offer.notice_s <= 0.0:
        share, silent = 1.0, replace(silent, value=1.0, source="given by the offer: it promises no notice")
    assert mttp.value is not None, "a mean time to preemption is always believed"
    # A life of this mean ends G after the notice: the first sign comes earlier, after M e^(-G / M) in the mean.
    first_sign_s = share * mttp.value + (1.0 - share) * mttp.value * math.exp(-offer.notice_s / mttp.value)
    return Hazard(first_sign_s, job.nodes, share), (mttp, silent)


def _seen(row: pool.Pooled, knowledge: Knowledge, scope: str) -> tuple[str, str]:
    """Return in words what a mean time to preemption, and a share of losses without notice, rest on."""
    machines = f"{row.lives} machine{'' if row.lives == 1 else 's'}"
    if row.preemptions:
        seen = f"measured on {machines}, {row.preemptions} preempted ({scope})"
        return seen, seen
    prolonged = f"prolonged by {machines} that {'was' if row.lives == 1 else 'were'} not preempted ({scope})"
    if any(one.preemptions for one in knowledge.pooled if one.provider == row.provider):
        others = f"measured on other machines of {row.provider}"
        return f"{others}, {prolonged}", others
    return f"assumed, {prolonged}", f"assumed: the provider's habit (none of {machines} was preempted)"


def _fit(costs: Costs, notice_s: float) -> Fit:
    if not costs.measured:
        return Fit(False if notice_s <= 0.0 else None, None, notice_s)
    step_s, stall_s, commit_s = costs.step_mean_s or 0.0, costs.stall_s, costs.commits.mean or 0.0
    upload_s = costs.upload_s(costs.state_bytes or 0)
    fits = rules.emergency_fits(notice_s, step_s, stall_s, upload_s, commit_s)
    return Fit(fits, step_s + stall_s + upload_s + commit_s, notice_s)


def _learnt(job: Job, offer: Offer, knowledge: Knowledge, hazard: Hazard, work_s: float | None) -> losses.Losses:
    """Return what the machines will believe of losses, half-way through the run: what they are told, and have seen."""
    mttp_s, restart_s = pool.told(_rates(knowledge), offer.provider, offer.machine_type, offer.zone, job.nodes)
    half_s = (work_s or 0.0) / 2.0
    preemptions = round(half_s / hazard.mttl_s)
    return losses.Losses(
        offer.provider if offer.provider in losses.providers() else "local",
        lives_s=half_s,
        preemptions=preemptions,
        announced=(announced := round(preemptions * (1.0 - hazard.silent_share))),
        notices_s=(hazard.notice_s,) if announced else (),
        share_given=hazard.silent_share,
        notice_given_s=hazard.notice_s,
        mttp_given_s=mttp_s,
        restart_given_s=restart_s,
    )


def _rates(knowledge: Knowledge) -> tuple[pool.Rate, ...]:
    return knowledge.rates or tuple(row.rate for row in knowledge.pooled)


def _interval_s(job: Job, costs: Costs, learnt: losses.Losses) -> tuple[float, Number]:
    """Return the training time between two saves: the saving policy's own choice, or the user's if that is shorter."""
    policy = decide.parse_policy(job.checkpointing.policy)
    kept = _kept(job)
    name = "time between saves"
    blind = costs.step_mean_s is None and any(words.endswith("steps") for words in (policy, kept))
    vague = policy == "never" and not kept and job.checkpointing.keep_every is not None
    if blind or vague:
        interval_s = _insured_s("adaptive", costs, learnt)
        why = "the length of a step is unknown" if blind else "keep_every does not say how often"
        return interval_s, Number(name, interval_s, "s", f"assumed: as policy adaptive, because {why}")
    insured_s = _insured_s(policy, costs, learnt)
    kept_s = _insured_s(kept, costs, learnt) if kept else math.inf
    interval_s = min(insured_s, kept_s)
    if math.isinf(interval_s):
        return interval_s, Number(name, None, "s", f"derived: policy {policy} makes no saves but at a notice")
    source = "given by the job file (keep_every)" if kept_s < insured_s else f"derived: policy {policy}"
    return interval_s, Number(name, interval_s, "s", source)


def _insured_s(policy: str, costs: Costs, learnt: losses.Losses) -> float:
    """Ask the saving policy itself, as the machines will."""
    step_s = costs.step_mean_s or _STEP_S
    stepped = costs if costs.step_mean_s is not None else costs.add_steps(1, _STEP_S, _STEP_S)
    view = decide.SavingView(policy, 0.0, (decide.Standing(0, Phase.BETWEEN, 0.0),), 0, 0)
    choice = decide.decide(Instant(0.0), view, decide.Beliefs(learnt, stepped))
    if choice.interval_s is not None:
        return rules.thesis_insurance_step(0, choice.interval_s, step_s) * step_s
    return math.inf if choice.save_at is None else choice.save_at * step_s


def _kept(job: Job) -> str:
    """Return the user's own schedule as a policy; empty if there is none, or none that can be told in advance."""
    text = job.checkpointing.keep_every
    try:
        return "" if text is None else decide.parse_policy(text if text.startswith("every") else f"every {text}")
    except Misuse:
        return ""
