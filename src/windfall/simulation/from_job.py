"""From a job, an offer and what is known of both to a scenario, each number with where it comes from.

The numbers are those of `policies.prospects`, which a plan rests on too; what the user says wins over them.  A length of
time becomes a range.  One that was measured in n runs is uniform with the mean of the runs and the standard deviation

    s sqrt(1 + 1 / n),    s^2 = ((RUN_SHARE x mean)^2 + sum (x_i - mean)^2) / n

which is how far the next run may be from the mean of the earlier ones; before anything is known of it, the spread from
run to run counts as `RUN_SHARE`, with the weight of one run.  One that is assumed lies within `ASSUMED_SHARE` of its value.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from windfall.errors import Misuse
from windfall.jobs import DRILL, Job, Measured, Work
from windfall.market import Offer
from windfall.models import losses, pool
from windfall.policies.prospects import Number, Prospect, speaking
from windfall.policies.saving.decide import parse_policy
from windfall.simulation.living import Living, Priced
from windfall.simulation.scenario import Believed, Lives, Memoryless, Range, Scenario
from windfall.terms import Reliability, Seconds, Unit, WallTime

RUN_SHARE = 0.05
"""Standard deviation from run to run, as a share, before it was observed; it weighs one run."""
ASSUMED_SHARE = 0.25
"""How far a length of time that nobody measured may be from what is assumed, to either side, as a share."""
STEP_S = 1.0
"""A step, where the work is not counted in steps [s]; at most a thousandth of the work."""
_WIDEST_SHARE = 0.9
_NEVER_S = 1e9
"""What machines believe where nothing is ever lost [s]: thirty years."""
_ASK_UNIT = "steps"


@dataclass(frozen=True, slots=True)
class Given:
    """What the user says instead of what was measured; None where nothing was said.

    Attributes:
        steps: of the run.
        step_s, stall_s, upload_s, allocate_s, prepare_s: as in `Scenario`.
        mttp_s: mean life of a machine [s].
        notice_s: before a machine is taken [s].
        announced_share: of losses that come with a notice.
        price_usd_per_hour: of one machine.
    """

    steps: int | None = None
    step_s: Range | None = None
    stall_s: Range | None = None
    upload_s: Range | None = None
    allocate_s: Range | None = None
    prepare_s: Range | None = None
    mttp_s: float | None = None
    notice_s: float | None = None
    announced_share: float | None = None
    price_usd_per_hour: float | None = None


@dataclass(frozen=True, slots=True)
class Input:
    """A number that the simulation rests on.

    Attributes:
        low, high: equal for a number that is no range; None if there is none.
        source: in words, beginning with `measured`, `given`, `assumed` or `derived`.
    """

    name: str
    low: float | None
    high: float | None
    unit: str
    source: str


@dataclass(frozen=True, slots=True)
class Posed:
    """A job as the simulation takes it.

    Attributes:
        inputs: what the scenario rests on, one by one.
        notes: what the user should know of it, each a sentence.
    """

    scenario: Scenario
    inputs: tuple[Input, ...]
    notes: tuple[str, ...]


def with_work(job: Job, given: Given) -> Job:
    """Return the job with the work that the user says."""
    return job if given.steps is None else replace(job, work=Work(float(given.steps), Unit.STEP))


def made_offer(job: Job, given: Given) -> Offer | None:
    """Return an offer of which only the user's words are known; None if they leave out the price.

    For machines that nothing sells here: then nothing else is known of them, and the rest is assumed.
    """
    if given.price_usd_per_hour is None:
        return None
    want = job.wants[0]
    provider = want.provider or "local"
    notice_s = pool.habit_of(provider).notice_s if given.notice_s is None else given.notice_s
    price = given.price_usd_per_hour
    name = want.machine_type or want.accelerator or "machine"
    kind = Reliability.TRANSIENT
    return Offer(provider, name, want.zone or "", price, price, kind, Seconds(notice_s), WallTime(0.0))


def pose(
    job: Job,
    found: Prospect,
    measured: Sequence[Measured],
    given: Given = Given(),
    *,
    living: Living | None = None,
    priced: Priced | None = None,
    policy: str | None = None,
) -> Posed:
    """Return the scenario of a job on an offer.

    The preparation that a run measured ends with a machine's first finished step, the scenario's (and a drill's) with the
    first step's begin: a step is taken off it.

    Args:
        job: with its work (`with_work`).
        found: what is believed of the job on the offer.
        measured: what each earlier run of the job showed, which gives the ranges.
        given: what the user says.
        living: how long machines live, if a model or a trace says it; None: memoryless, by what is believed.
        priced: what a machine costs, if a trace says it.
        policy: canonical name; None: the job's own.

    Raises:
        Misuse: the work or the length of a step is unknown.
    """
    said = {number.name: number for number in found.numbers}
    rows = speaking(job, found.offer, measured)
    runs = [row for row in rows if row.provider != DRILL]
    steps, step, counted = _work(job, found, given, said, rows)
    stall = _length("standstill of a save", given.stall_s, said, _values(rows, "stall_s"), found.saving.stall_s)
    upload = _upload(found, given, said, rows)
    allocate = _length("allocation", given.allocate_s, said, _values(runs, "allocate_s"), found.restart.allocate_s)
    prepare = _prepare(found, given, said, rows, step[0].mean_s)
    injected = job.injection is not None and living is None and given.mttp_s is None
    lived, mttp, believed_s = _living(job, found, given, living, said)
    notice_s, announced, losing = _notice(found, given, said)
    restart_s = found.learnt.restart_s
    if given.allocate_s is not None or given.prepare_s is not None:
        restart_s = allocate[0].mean_s + prepare[0].mean_s
    price = _price(found, given, priced)
    provider = found.offer.provider
    scenario = Scenario(
        steps=steps,
        step_s=step[0],
        stall_s=stall[0],
        upload_s=upload[0],
        allocate_s=allocate[0],
        prepare_s=prepare[0],
        lives=lived,
        notice_s=notice_s,
        announced_share=announced,
        policy=parse_policy(job.checkpointing.policy) if policy is None else policy,
        believed=Believed(min(believed_s, _NEVER_S), 1.0 - announced, restart_s, costs_known=False, notice_s=notice_s),
        life_to_notice=injected,
        machines=job.nodes,
        price_usd_per_hour=price.usd_per_hour,
        provider=provider if provider in losses.providers() else "local",
    )
    inputs = (
        counted,
        *(pair[1] for pair in (step, stall, upload, allocate, prepare)),
        mttp,
        *losing,
        Input("price of a machine", price.usd_per_hour, price.usd_per_hour, "USD/h", price.source),
    )
    notes = _notes(job, found, living)
    if upload[0].high_s <= 0.0 and given.upload_s is None:
        notes = (*notes, "how long a save takes to the store is unknown and counts as nothing: --upload says it")
    return Posed(scenario, inputs, notes)


# ------------------------------------------------------------------------------------------------------------- lengths


def _around(mean_s: float, seen: Sequence[float]) -> Range:
    """Return how long it may take the next time; see the module's equation."""
    if not seen:
        return Range.of(mean_s, ASSUMED_SHARE)
    squares = math.fsum((value - mean_s) ** 2 for value in seen)
    variance = ((RUN_SHARE * mean_s) ** 2 + squares) / len(seen) * (1.0 + 1.0 / len(seen))
    half_s = min(math.sqrt(3.0 * variance), _WIDEST_SHARE * mean_s)
    return Range(mean_s - half_s, mean_s + half_s)


def _length(
    name: str, given: Range | None, said: dict[str, Number], seen: Sequence[float], mean_s: float
) -> tuple[Range, Input]:
    """Return a length of time and what it rests on."""
    if given is not None:
        return given, Input(name, given.low_s, given.high_s, "s", "given by you")
    number = said.get(name)
    source = "assumed: nothing was measured" if number is None else number.source.replace("unknown", "assumed", 1)
    length = _around(mean_s, seen)
    return length, Input(name, length.low_s, length.high_s, "s", source)


def _values(rows: Sequence[Measured], name: str) -> list[float]:
    return [float(value) for row in rows if (value := getattr(row, name)) is not None]


def _upload(found: Prospect, given: Given, said: dict[str, Number], rows: Sequence[Measured]) -> tuple[Range, Input]:
    seen = [float(row.upload_s + (row.commit_s or 0.0)) for row in rows if row.upload_s is not None]
    length, told = _length("upload of the state", given.upload_s, said, seen, found.saving.durable_s)
    return length, replace(told, name="upload and commit of a save")


def _prepare(
    found: Prospect, given: Given, said: dict[str, Number], rows: Sequence[Measured], step_s: float
) -> tuple[Range, Input]:
    if given.prepare_s is not None or not rows or rows[0].provider == DRILL:
        return _length("preparation", given.prepare_s, said, _values(rows, "prepare_s"), found.restart.prepare_s)
    seen = [max(value - step_s, 0.0) for value in _values(rows, "prepare_s")]
    return _length("preparation", None, said, seen, max(found.restart.prepare_s - step_s, 0.0))


# ---------------------------------------------------------------------------------------------------------------- work


def _work(
    job: Job, found: Prospect, given: Given, said: dict[str, Number], rows: Sequence[Measured]
) -> tuple[int, tuple[Range, Input], Input]:
    """Return the steps, the length of one, and what their number rests on."""
    step_known = given.step_s is not None or found.work_per_s is not None
    if job.work is None or not step_known:
        raise Misuse(_missing(job, step_known=step_known))
    if job.work.unit is Unit.STEP:
        steps = max(math.ceil(job.work.amount), 1)
        counted = Input("work", steps, steps, _ASK_UNIT, "given by the job file")
        if given.steps is not None:
            counted = replace(counted, source="given by you")
        if given.step_s is None and found.work_s is None:
            raise Misuse(
                "earlier runs of this job counted their work otherwise than in steps: say how long a step takes (--step 4.6s)"
            )
        mean_s = 0.0 if found.work_s is None else found.work_s / job.work.amount
        seen = [1.0 / row.work_per_s for row in rows if row.unit is Unit.STEP]
        length, told = _length("speed", given.step_s, said, seen, mean_s)
        return steps, (length, replace(told, name="step")), counted
    return _amount(job.work, found, given, rows)


def _amount(
    work: Work, found: Prospect, given: Given, rows: Sequence[Measured]
) -> tuple[int, tuple[Range, Input], Input]:
    """As `_work`, where the work is counted in samples, tokens or items."""
    if found.work_s is None:
        raise Misuse(
            f"how many {work.unit}s a second the job does is unknown: give its steps instead (--steps 20000 --step 4.6s)"
        )
    mean_s = min(STEP_S, found.work_s / 1000.0) if given.step_s is None else given.step_s.mean_s
    steps = max(round(found.work_s / mean_s), 1)
    counted = Input("work", steps, steps, _ASK_UNIT, f"derived: {work.amount:g} {work.unit}s at the measured speed")
    if given.step_s is not None:
        told = Input("step", given.step_s.low_s, given.step_s.high_s, "s", "given by you")
        return steps, (given.step_s, told), counted
    seen = [mean_s * found.work_per_s / row.work_per_s for row in rows if found.work_per_s and row.unit is work.unit]
    length = _around(mean_s, seen)
    source = f"assumed: the work is counted in {work.unit}s; its speed was measured"
    return steps, (length, Input("step", length.low_s, length.high_s, "s", source)), counted


def _missing(job: Job, *, step_known: bool) -> str:
    """Say which numbers are missing and how to give them."""
    lacks, options = [], []
    if job.work is None:
        lacks.append("how much work there is (`work: {steps: 20000}` in the job file, or --steps 20000)")
        options.append("work")
    if not step_known:
        lacks.append("how long a step takes (--step 4.6s; a range is 4.5s..4.8s)")
    both = " and ".join(lacks)
    measured = (
        "" if step_known else "; `windfall drill job.yaml` measures steps and saves, and so does each run that ends"
    )
    return f"a simulation needs to know {both}{measured}"


# -------------------------------------------------------------------------------------------------------------- losses


def _living(
    job: Job, found: Prospect, given: Given, living: Living | None, said: dict[str, Number]
) -> tuple[Lives, Input, float]:
    """Return lives, what they rest on, and the mean time between losses that the machines believe [s]."""
    name = "mean time to preemption"
    if living is not None:
        mean_s = living.mttp_s if math.isfinite(living.mttp_s) else None
        return living.lives, Input("lives of machines", mean_s, mean_s, "s", living.source), living.mttp_s / job.nodes
    if given.mttp_s is not None:
        told = Input(name, given.mttp_s, given.mttp_s, "s", "given by you")
        return Memoryless((given.mttp_s,)), told, given.mttp_s / job.nodes
    number = said[name]
    means: tuple[float, ...] = (math.inf if number.value is None else number.value,)
    if job.injection is not None:
        means = tuple(float(mean) for mean in job.injection.mttp_s)
    told = Input(name, number.value, number.value, "s", number.source)
    return Memoryless(means), told, found.learnt.mttp_s(0.0)


def _notice(found: Prospect, given: Given, said: dict[str, Number]) -> tuple[float, float, tuple[Input, ...]]:
    """Return the notice [s], the share of losses that has one, and what they rest on."""
    offered = "given by the offer" if found.offer.provider else "assumed"
    notice_s = found.hazard.notice_s if given.notice_s is None else given.notice_s
    length = Input("notice", notice_s, notice_s, "s", "given by you" if given.notice_s is not None else offered)
    silent = said.get("share of losses without notice")
    share, source = 1.0 - found.hazard.silent_share, "derived: no loss is expected" if silent is None else silent.source
    if given.announced_share is not None:
        share, source = given.announced_share, "given by you"
    elif given.notice_s is not None and found.offer.notice_s <= 0.0 < given.notice_s:
        habit = pool.habit_of(found.offer.provider)
        share, source = habit.announced / (habit.unannounced + habit.announced), "assumed: the provider's habit"
    if notice_s <= 0.0:
        share, source = 0.0, "derived: there is no notice"
    return notice_s, share, (length, Input("share of losses with notice", share, share, "", source))


def _price(found: Prospect, given: Given, traced: Priced | None) -> Priced:
    if given.price_usd_per_hour is not None:
        return Priced(given.price_usd_per_hour, "given by you")
    return traced or Priced(found.offer.price_usd_per_hour, "given by the offer")


def _notes(job: Job, found: Prospect, living: Living | None) -> tuple[str, ...]:
    notes = list(() if living is None else living.notes)
    if found.offer.refund:
        notes.append("the free hour of machines that are taken back is not counted: the bill will be lower")
    if job.checkpointing.keep_every is not None:
        notes.append("the script's own saves (keep_every) are not simulated beside those of the policy")
    if found.offer.reliability is Reliability.RELIABLE and living is not None:
        notes.append("the offer is a machine that cannot be taken back; here it is lost as the model or trace says")
    return tuple(notes)
