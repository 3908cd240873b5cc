"""SciSpot's evaluation as a simulation: a bag of 100 jobs on the cores of 32 n1-highcpu-32, under each contender's rules.

Stated, because the paper prints none of it: an ordered machine starts after a minute; the arm with 90 % has 1.15 times the
bag's undisturbed time as its deadline; on fewer machines a job takes what Bag B's times say; energies for early stopping are
u + exp(-3 progress) with u uniform, reported at each tenth.  Lifetimes are those of each type (`scispot_laws`).

Source:
    SciSpot, draft 2019, section 7 ("the contenders"); HPDC'20 text, evaluation: 100 jobs, 32 machines of n1-highcpu-32.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from windfall.lab import scispot_laws as laws
from windfall.lab import scispot_published as paper
from windfall.lab.bag_simulation import BagPolicy, BagRun, BagScene, MachineReuse, play, usd
from windfall.lab.published_rows import (
    FigureSeries,
    Options,
    PaperFigure,
    Progress,
    PublishedRow,
    cannot,
    compared,
    unprinted,
)
from windfall.lab.scispot_laws import FitOrigin
from windfall.lab.scispot_published import H
from windfall.models.exact.makespan import MakespanWorld, SurvivalTable
from windfall.models.lifetimes.observations import uniforms
from windfall.policies.planning.early_stopping import MedianRule, MetricReport
from windfall.policies.replacement import reuse
from windfall.policies.replacement.item_recovery import GangTime, RecoveryAction

Floats = NDArray[np.float64]
WAIT_S: Final = 60.0
"""From an order to a machine's start [s]; the authors' program counts a minute for a restart."""
TARGET: Final = 0.9
DEADLINE_TIMES: Final = 1.15
BAGS_MAX: Final = 50
"""At most this number of bags an arm: the mean cost is then known to 1 %."""
STOPPING_BAGS: Final = 15
"""At most this number with early stopping, whose rule compares every report with all items that are done."""
WITHIN_PCT: Final = 5.0
REPORTS: Final = 10

SCISPOT, SHARE, STOPPING = "SciSpot", "SciSpot, 90 % of the jobs", "SciSpot, early stopping"
NO_REUSE, RESTART, EXOSPHERE, ON_DEMAND = "no reuse", "restart always", "ExoSphere", "on demand"
BAR, BAR_SHARE, BAR_EXOSPHERE = (
    "SciSpot, type of its bar",
    "SciSpot, type of its bar, 90 %",
    "ExoSphere, type of its bar",
)
ARMS: Final = (SCISPOT, BAR, SHARE, BAR_SHARE, STOPPING, NO_REUSE, RESTART, EXOSPHERE, BAR_EXOSPHERE, ON_DEMAND)
"""On demand is last: lifetimes do not matter to it."""
_RULES: Final = {
    SCISPOT: "type by expected cost; machines kept by age; every job runs again on all its machines; no early stopping",
    SHARE: "as SciSpot, until 90 % are done; jobs that lost a machine by expected cost (smaller, replenish, discard)",
    STOPPING: "as SciSpot, with the median stopping rule on stated energies, before and after a loss",
    BAR: "as SciSpot, on the type that its bar is of",
    BAR_SHARE: "as SciSpot, 90 % of the jobs, on the type that SciSpot's bar is of",
    BAR_EXOSPHERE: "machines kept at any age, on the type that ExoSphere's bar is of",
    NO_REUSE: "as SciSpot, with fresh machines for every job",
    RESTART: "as SciSpot, machines kept at any age",
    EXOSPHERE: "type by price and mean time to failure (all cost the same per core); machines kept at any age",
    ON_DEMAND: "the type of SciSpot's bar, on demand: never lost",
}


@dataclasses.dataclass(frozen=True, slots=True)
class ArmMean:
    """Means over the bags of an arm.

    Attributes:
        usd: of a job [USD].
        usd_error: its standard error [USD].
        run_h: of a bag [h].
        lost_pct: paid for runs that were cut short, of what a bag without losses would take [%].
        losses: machines lost while they ran a job.
        share: jobs that count, of all: done or stopped early.
    """

    usd: float
    usd_error: float
    run_h: float
    lost_pct: float
    losses: float
    share: float


# --------------------------------------------------------------------------------------------------------------- scenes


def never_lost() -> SurvivalTable:
    """Return the lifetimes of machines on demand."""
    return SurvivalTable.of(H, np.ones(2))


def scene_of(
    app: str, cpus: int, lifetimes: SurvivalTable, cpu_usd_per_hour: float = paper.CPU_USD_PER_HOUR
) -> BagScene:
    """Return the bag of 100 jobs of 64 cores on 1,024 cores of a type; on half of the machines by Bag B where it says."""
    machines, runtime_s = paper.SELECTION_CORES // cpus, paper.RUNS_H[app][cpus][0] * H
    times = [GangTime(machines, runtime_s)]
    if cpus == 32 and app in paper.BAG_B_S:
        times.append(GangTime(1, runtime_s * paper.BAG_B_S[app][1] / paper.BAG_B_S[app][2]))
    gangs = paper.BAG_CORES // paper.SELECTION_CORES
    return BagScene(paper.BAG_JOBS, gangs, tuple(times), cpus * cpu_usd_per_hour, lifetimes, WAIT_S)


def kept_ages_s(scene: BagScene) -> tuple[tuple[float, float], ...]:
    """Return the ages at which a machine is kept for the next job [s]."""
    world = MakespanWorld(scene.lifetimes, 0.0, allocate_s=scene.wait_s)
    return reuse.reused_ages_s(world, scene.times[0].runtime_s, 24.0 * H)


def undisturbed_s(scene: BagScene) -> float:
    """Return the time of the bag without a loss [s]."""
    return math.ceil(scene.jobs / scene.gangs) * scene.times[0].runtime_s


def energies(jobs: int, seed: int) -> tuple[tuple[MetricReport, ...], ...]:
    """Return the stated energies of each job, at each tenth of its run."""
    steps = [(one + 1) / REPORTS for one in range(REPORTS)]
    return tuple(
        tuple(MetricReport(at, float(level) + math.exp(-3.0 * at)) for at in steps) for level in uniforms(seed, jobs)
    )


def policy_of(arm: str, scene: BagScene, kept: tuple[tuple[float, float], ...], seed: int) -> BagPolicy:
    """Return the rules of an arm."""
    if arm in {RESTART, EXOSPHERE, BAR_EXOSPHERE, ON_DEMAND}:
        return BagPolicy(MachineReuse.ALWAYS)
    if arm == NO_REUSE:
        return BagPolicy(MachineReuse.NEVER)
    scispot = BagPolicy(MachineReuse.BY_AGE, kept)
    if arm in {SHARE, BAR_SHARE}:
        return dataclasses.replace(
            scispot, recovers=True, target=TARGET, deadline_s=DEADLINE_TIMES * undisturbed_s(scene)
        )
    if arm == STOPPING:
        return dataclasses.replace(scispot, recovers=True, stops=MedianRule(), curves=energies(scene.jobs, seed))
    return scispot


def arm_scene(app: str, arm: str, source: FitOrigin) -> BagScene:
    """Return the bag on the machines that an arm chooses."""
    bars = {name: (scispot_usd, exosphere_usd) for name, scispot_usd, exosphere_usd, _ in paper.COSTS_USD}
    if arm == ON_DEMAND:
        return scene_of(app, _bar_cpus(app, bars[app][0]), never_lost(), paper.ON_DEMAND_CPU_USD_PER_HOUR)
    if arm in {BAR, BAR_SHARE, BAR_EXOSPHERE}:
        cpus = _bar_cpus(app, bars[app][arm == BAR_EXOSPHERE])
    else:
        cpus = laws.exosphere_cpus(app, source) if arm == EXOSPHERE else laws.chosen_cpus(app, source)
    return scene_of(app, cpus, laws.lifetimes_of_type(cpus, source))


def runs_of(scene: BagScene, arm: str, bags: int, seed: int) -> list[BagRun]:
    """Return the bags of an arm, each with its own machines."""
    kept = kept_ages_s(scene) if policy_of(arm, scene, (), 0).reuse is MachineReuse.BY_AGE else ()
    seeds = [seed * BAGS_MAX + number for number in range(bags)]
    return [play(scene, policy_of(arm, scene, kept, one), one) for one in seeds]


def mean_of(scene: BagScene, runs: Sequence[BagRun]) -> ArmMean:
    """Return the means over bags."""
    costs = np.array([usd(scene, one) / max(1, one.done) for one in runs])
    whole_s = scene.jobs * scene.times[0].runtime_s * scene.times[0].machines
    return ArmMean(
        float(costs.mean()),
        float(costs.std() / len(costs) ** 0.5),
        float(np.mean([one.run_s for one in runs])) / H,
        float(100.0 * np.mean([one.lost_s for one in runs]) / whole_s),
        float(np.mean([one.losses for one in runs])),
        float(np.mean([one.done for one in runs])) / scene.jobs,
    )


# ------------------------------------------------------------------------------------------------------------------ arms


def arms(options: Options, progress: Progress) -> tuple[PublishedRow, ...]:
    """Return cost of a job, time of the bag and what is paid for runs cut short, for every arm; `cannot` without trials."""
    if options.trials == 0:
        return tuple(row for app, *printed in paper.COSTS_USD for row in (*_unplayed(app, printed), *_queue_rows(app)))
    bags, rows = min(options.trials, BAGS_MAX), []
    for app, *printed in paper.COSTS_USD:
        bars = dict(zip((SCISPOT, EXOSPHERE, ON_DEMAND), printed, strict=True))
        bars |= {BAR: bars[SCISPOT], BAR_EXOSPHERE: bars[EXOSPHERE]}
        for source in FitOrigin:
            for arm in ARMS if source is FitOrigin.PUBLISHED else ARMS[:-1]:
                progress(f"{app}, {source}: {arm}")
                scene = arm_scene(app, arm, source)
                runs = runs_of(scene, arm, min(bags, STOPPING_BAGS) if arm == STOPPING else bags, options.seed)
                rows += _arm_rows(f"{app}, {arm}", f"{source}: {_RULES[arm]}", scene, runs, bars.get(arm))
                rows[-3] = rows[-3].placed(PaperFigure.SCISPOT_ARMS, _series(source), f"{app}|{arm}")
        rows += _queue_rows(app)
    return tuple(rows)


def _unplayed(app: str, printed: Sequence[float]) -> list[PublishedRow]:
    return [
        cannot("SciSpot, bag of 100 jobs", f"{app}, {arm}", "cost of a job", unit="USD", published=value,
               reason="simulated: needs --trials above 0")
        for arm, value in zip((SCISPOT, EXOSPHERE, ON_DEMAND), printed, strict=True)
    ]  # fmt: skip


def _arm_rows(
    item: str, rules: str, scene: BagScene, runs: Sequence[BagRun], printed: float | None
) -> list[PublishedRow]:
    """Return the rows of an arm: cost of a job that counts, time of the bag, what is paid for runs cut short."""
    mean = mean_of(scene, runs)
    name, method = "SciSpot, bag of 100 jobs", f"{len(runs)} bags, {rules}"
    quantity = f"cost of a job, n1-highcpu-{paper.SELECTION_CORES // scene.times[0].machines}"
    error = f"standard error {mean.usd_error:.2g} USD; machines are paid while a gang waits, and until a last job ends"
    if printed is None:
        counted = f"{100.0 * mean.share:.0f} % of the jobs count, and jobs that run at the end of the bag are paid too"
        cost = unprinted(name, item, quantity, unit="USD", ours=mean.usd, method=method,
                         reason=f"the paper prints no such bar; {counted}; {error}{_actions(runs)}")  # fmt: skip
    else:
        cost = compared(name, item, quantity, unit="USD", published=printed, ours=mean.usd, tolerance_pct=WITHIN_PCT,
                        method=f"{method}; matches within 5 %",
                        reason=f"the bar is equation 3 with an assumed mean, not a bag that ran; {error}")  # fmt: skip
    unseen = "the paper prints none"
    return [
        cost,
        unprinted(name, item, "time of the bag", unit="h", ours=mean.run_h, reason=unseen, method=method),
        unprinted(name, item, "paid for runs cut short", unit="%", ours=mean.lost_pct,
                  reason=f"{unseen}; {mean.losses:.1f} machines are lost in a bag", method=method),
    ]  # fmt: skip


def _actions(runs: Sequence[BagRun]) -> str:
    """Return how often each action was chosen in a bag, if there was a choice."""
    if not any(one.made for one in runs):
        return ""
    counts = {action: sum(one.choices[action] for one in runs) / len(runs) for action in RecoveryAction}
    return "; in a bag " + ", ".join(f"{action} {count:.1f} times" for action, count in counts.items())


def _bar_cpus(app: str, printed_usd: float) -> int:
    """Return the type whose cost by the bars of the running time is nearest to a bar of the cost figure."""
    usd_per_hour = paper.SELECTION_CORES * paper.CPU_USD_PER_HOUR
    return min(paper.RUNS_H[app], key=lambda cpus: abs(usd_per_hour * sum(paper.RUNS_H[app][cpus]) - printed_usd))


def _series(source: FitOrigin) -> FigureSeries:
    return FigureSeries.AS_PUBLISHED if source is FitOrigin.PUBLISHED else FigureSeries.CENSORED


def _queue_rows(app: str) -> list[PublishedRow]:
    """Return the bag where each job waits in the HPC queue as the trace's jobs under an hour do; it costs no machine."""
    name, share_pct = paper.HPC_WAIT_PCT[0]
    runtime_h = paper.RUNS_H[app][64 if app == "lulesh" else 32][0]
    ours_h = math.ceil(paper.BAG_JOBS * paper.SELECTION_CORES / paper.BAG_CORES) * runtime_h * (1.0 + share_pct / 100.0)
    return [
        unprinted("SciSpot, bag of 100 jobs", f"{app}, HPC queue", "time of the bag", unit="h", ours=ours_h,
                  reason=f"each round waits {share_pct:g} % of its time, as jobs {name} do; the paper prints no bag",
                  method="rounds of equal jobs, each with the printed wait; nothing is simulated")
    ]  # fmt: skip


# -------------------------------------------------------------------------------------------------------- a preemption

TEXT_SCENE, LOG_SCENE = "100 jobs on 32 machines, two a job", "32 jobs on 16 machines, four a job"
"""As the HPDC'20 text has the bag of the figure; as the journal text (32 jobs) and the run logs have it (four at a time on four
machines each, `FigureB/confinement/32_4_4`)."""


def preemption_scene(name: str, source: FitOrigin) -> BagScene:
    """Return a bag of nanoconfinement jobs on n1-highcpu-32."""
    jobs, gangs, machines = (paper.BAG_JOBS, 16, 2) if name == TEXT_SCENE else (paper.BAG_JOBS_BC, 4, 4)
    times = (GangTime(machines, 60.0 * paper.JOB_MIN["nanoconfinement"]),)
    return BagScene(jobs, gangs, times, 32 * paper.CPU_USD_PER_HOUR, laws.lifetimes_of_type(32, source), WAIT_S)


def preemptions(options: Options, progress: Progress) -> tuple[PublishedRow, ...]:
    """Return how much longer a bag takes for each preemption, of the printed points and of simulated bags."""
    losses, seconds = (np.asarray(values, dtype=np.float64) for values in zip(*paper.BAG_S, strict=True))
    rows = [
        _slope("the printed points", losses, seconds, "least squares through the seven printed bags", "their own slope")
    ]
    for name, source in itertools.product((TEXT_SCENE, LOG_SCENE), FitOrigin) if options.trials else ():
        progress(f"bags by preemptions: {name}, {source}")
        scene = preemption_scene(name, source)
        runs = runs_of(scene, RESTART, 2 * min(options.trials, BAGS_MAX), options.seed)
        counts = np.array([one.losses for one in runs], dtype=np.float64)
        times_s = np.array([one.run_s for one in runs])
        reason = (
            f"{counts.mean():.1f} losses in a bag of {undisturbed_s(scene):,.0f} s; a loss sets one of {scene.gangs} gangs "
            "back by a part of a job, and the bag ends with the last gang"
        )
        method = f"least squares through {len(runs)} simulated bags, {source}"
        rows.append(_slope(f"{name}, {source}", counts, times_s, method, reason))
        if name == LOG_SCENE:
            rows += [_at_count(source, counts, times_s, *one) for one in paper.BAG_S]
    return tuple(rows)


def _slope(item: str, losses: Floats, times_s: Floats, method: str, reason: str) -> PublishedRow:
    slope, start_s = np.polyfit(losses, times_s, 1)
    return compared("SciSpot, bag by preemptions", item, "longer for each preemption", unit="%", published=paper.PER_LOSS_PCT,
                    ours=float(100.0 * slope / start_s), tolerance_pct=15.0, method=f"{method}; published: about 3 %; matches "
                    "within 15 %", reason=reason)  # fmt: skip


def _at_count(source: FitOrigin, counts: Floats, times_s: Floats, losses: int, printed_s: float) -> PublishedRow:
    """Return the mean time of the simulated bags with as many losses as a printed one."""
    item, chosen = f"{LOG_SCENE}, {losses} preemptions", times_s[counts == losses]
    where = PaperFigure.SCISPOT_PREEMPTIONS, _series(source), losses
    if not len(chosen):
        return cannot("SciSpot, bag by preemptions", item, "bag time", unit="s", published=float(printed_s),
                      reason=f"no simulated bag has this number of losses, {source}").placed(*where)  # fmt: skip
    spread_s = f", standard deviation {chosen.std():.0f} s" if len(chosen) > 1 else ""
    return compared("SciSpot, bag by preemptions", item, "bag time", unit="s", published=float(printed_s),
                    ours=float(chosen.mean()), tolerance_pct=WITHIN_PCT,
                    method=f"mean of the simulated bags with this number of losses, {source}; matches within 5 %",
                    reason=f"one printed run, {len(chosen)} simulated ones{spread_s}; 14 min a job, starts of a minute").placed(
        *where)  # fmt: skip
