"""Simulate jobs event by event in virtual time, with the reducers of the live system.

`core.worker` decides when to save, `core.driver` what to buy; this package holds only the world around them (`world`, and
`scenario` for one job in a market of its own) and a clock.  A history is a function of (scenario, seed, trial, policy) and of
nothing else, to the last byte of its journals: jobs of scenarios affect each other only where a market's capacity is limited.

The engine leaves out the travel of facts, and what changes no decision: the second poll after a request to a single
rank; all polls of the bill but the last; the fact that a checkpoint was stored, which the driver receives with the next
other fact.  A worker that would release the run a moment before an announced end is asked at that end, and an upload that
is under way when the script finishes arrives at once, so that the job ends with its last step.

A policy as the event engine gives it to a worker: a name, or a name and a schedule.
"""

from __future__ import annotations

import contextlib
import gc
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from windfall.events import Row
from windfall.fleet import EstimatesPooled
from windfall.jobs import Job, Measurement, Recovery, Resources, Use, Work
from windfall.policies.checkpointing import decision
from windfall.policies.checkpointing.decision import parse_policy
from windfall.policies.policy_registry import NEVER, OPTIMAL
from windfall.simulation.engine_fleet import SimulatedFleet
from windfall.simulation.engine_journal import JournalRows, SaveRecords
from windfall.simulation.engine_run import SimulatedRun, TimeBreakdown
from windfall.simulation.engine_runtime import CheckpointMachines, FleetCalls
from windfall.simulation.engine_worker import SHARD_BYTES, SavingRule, TrialContext
from windfall.simulation.machine_chances import MachineChances
from windfall.simulation.market_evictions import ByTheJob
from windfall.simulation.outcomes import Trial
from windfall.simulation.sampling import Draws
from windfall.simulation.scenario import Scenario
from windfall.simulation.simulated_policies import UserPolicy, checked_interval_s, scheduled
from windfall.simulation.simulated_provider import SimulatedMarket
from windfall.simulation.value_series import ValueSeries
from windfall.simulation.virtual_time import Timeline
from windfall.simulation.world import ProviderMarket, SimulatedJob, World
from windfall.structs import Struct, replace
from windfall.terms import Bytes, Record, Reliability, RunOptions, SaveCosts, SaveTable, Seconds, Unit

_NO_GUARD: Final = 10**9


def saving_rule(scenario: Scenario, draws: Draws, policy: UserPolicy | None) -> SavingRule:
    """Return the saving rule of a job's machines.

    Args:
        scenario: with the name of a built-in policy.
        draws: of the trial; a user's function is called with its costs.
        policy: a user's own, in place of the scenario's.

    Raises:
        Misuse: the policy is unknown, or the job is too long for the optimal schedule.
        Infeasible: no machine lives long enough for any progress of the optimal schedule.
    """
    if policy is not None:
        return _user_rule(scenario, draws, policy)
    name = parse_policy(scenario.policy)
    if decision.saving_policy(name).scheduled:
        return _optimal(scenario, draws)
    fixed = name, None
    return lambda *_: fixed


def _user_rule(scenario: Scenario, draws: Draws, policy: UserPolicy) -> SavingRule:
    """Call a user's function once per machine; its result means `every:<s>s`."""
    estimates = scenario.estimates

    def rule(age_s: float, steps_left: int) -> tuple[str, SaveTable | None]:
        durable_s = draws.stall_s + draws.upload_s
        answer_s = policy.interval_s(
            age_s, steps_left * draws.step_s, draws.stall_s, durable_s, estimates.mttp_s, estimates.restart_s
        )
        interval_s = checked_interval_s(policy, answer_s)
        return (NEVER if interval_s == math.inf else decision.every_s(interval_s)), None

    return rule


def _optimal(scenario: Scenario, draws: Draws) -> SavingRule:
    found = scheduled(scenario)

    def rule(age_s: float, steps_left: int) -> tuple[str, SaveTable | None]:
        del age_s
        saves_at_s = tuple([step * draws.step_s for step in found.steps(steps_left)])
        return OPTIMAL, SaveTable(saves_at_s, math.inf, math.inf, "the optimal schedule of the simulated lifetimes")

    return rule


class History(Struct, frozen=True):
    """What happened in one trial.

    Attributes:
        trial: the sums, and every save.
        job_rows: journal of the driver, as the live controller writes it.
        run_rows: journals of the machines that held the run, term by term, as live agents write them.
        records: of the run's log, those that took and released it.
    """

    trial: Trial
    job_rows: tuple[Row, ...] = ()
    run_rows: tuple[Row, ...] = ()
    records: tuple[Record, ...] = ()


def scenario_markets(scenarios: Sequence[Scenario]) -> tuple[ProviderMarket, ...]:
    """Return the markets of some scenarios: each sells its machines at its own price, and their chances are the jobs' own."""
    pools: dict[tuple[str, float, float], SimulatedMarket] = {}
    for scenario in scenarios:
        key = scenario.provider, scenario.price_usd_per_hour, scenario.notice_s
        pools.setdefault(key, scenario_pool(scenario, f"machine-{len(pools)}"))
    providers = sorted({provider for provider, _, _ in pools})
    return tuple(
        ProviderMarket(name, tuple(pool for (provider, _, _), pool in pools.items() if provider == name))
        for name in providers
    )


def scenario_pool(
    scenario: Scenario, machine_type: str, zone: str = "simulated", on_demand_usd_per_hour: float | None = None
) -> SimulatedMarket:
    """Return the machines of a scenario as a market sells them; without an on-demand price, their own price is that too."""
    price = scenario.price_usd_per_hour
    return SimulatedMarket(
        machine_type,
        zone,
        Reliability.TRANSIENT,
        ValueSeries.constant(price),
        price if on_demand_usd_per_hour is None else on_demand_usd_per_hour,
        Seconds(scenario.notice_s),
        startup_s=Seconds(scenario.allocate_s.mean_s),
        eviction=ByTheJob(),
    )


def scenario_job(
    job_id: str,
    scenario: Scenario,
    markets: Sequence[ProviderMarket],
    *,
    seed: int = 0,
    trial: int = 0,
    policy: UserPolicy | None = None,
    journal: bool = True,
    after_s: float = 0.0,
) -> SimulatedJob:
    """Return the job of a scenario.

    Args:
        job_id: unique in its world.
        scenario: of the job and its machines.
        markets: one of them sells the scenario's machines.
        seed: of the simulation.
        trial: its number.
        policy: a user's own, in place of the scenario's.
        journal: whether to keep rows.
        after_s: delay of the submission [s].

    Raises:
        Misuse: the policy is unknown, or the job is too long for the optimal schedule.
        Infeasible: no machine lives long enough for any progress of the optimal schedule.
    """
    sold = scenario.price_usd_per_hour, scenario.notice_s
    (pool,) = [
        pool
        for market in markets
        for pool in market.pools
        if market.provider == scenario.provider and (pool.prices.at(0.0), pool.notice_s) == sold
    ]
    draws = Draws(scenario, seed, trial)
    job = Job(
        job_id,
        job_id,
        "simulated",
        f"simulated://{job_id}",
        ("train",),
        (Resources(machine_type=pool.machine_type),),
        nodes=scenario.machines,
        use=Use.SPOT,
        work=Work(float(scenario.steps), Unit.STEP),
        options=RunOptions(policy=scenario.policy),
        # Engine and kernels have bounds of their own; the guard against jobs without progress is for live jobs.
        recovery=Recovery(unproductive_machines_max=_NO_GUARD),
    )
    runtime = checkpoint_runtime(job_id, scenario, draws, policy=policy, journal=journal, after_s=after_s)
    chances = MachineChances(scenario, draws)
    return SimulatedJob(job, runtime, chances, (scenario.provider,), journal=journal, after_s=after_s)


def checkpoint_runtime(
    run: str,
    scenario: Scenario,
    draws: Draws,
    *,
    policy: UserPolicy | None = None,
    journal: bool = True,
    after_s: float = 0.0,
) -> Callable[[Timeline, FleetCalls], CheckpointMachines]:
    """Return what makes the machines of a checkpointed run; arguments as of `scenario_job`."""
    rule = saving_rule(scenario, draws, policy)

    def make(timeline: Timeline, calls: FleetCalls) -> CheckpointMachines:
        simulated = SimulatedRun(run, journal=journal)
        if scenario.estimates.costs_known:
            simulated.learn(_known_costs(scenario, draws))
        context = TrialContext(
            timeline,
            scenario,
            rule,
            draws,
            simulated,
            TimeBreakdown(scenario.machines, timeline.time + after_s),
            JournalRows() if journal else None,
            SaveRecords(),
        )
        return CheckpointMachines(context, calls)

    return make


def history(
    scenario: Scenario,
    *,
    seed: int = 0,
    trial: int = 0,
    policy: UserPolicy | None = None,
    journal: bool = True,
    job_id: str = "simulated",
    pool: SimulatedMarket | None = None,
) -> History:
    """Simulate one trial.

    Args:
        scenario: what is simulated.
        seed: of the simulation.
        trial: its number.
        policy: a user's own, in place of the scenario's.
        journal: whether to keep rows; without them it is faster, with the same result.
        job_id: what the journals call the job.
        pool: the machines with the names of a real offer (`scenario_pool`), of which the controller knows what the scenario
            says; None: machines with made-up names, of which it knows nothing.

    Raises:
        Infeasible: the job can never finish.
    """
    markets = scenario_markets((scenario,)) if pool is None else (ProviderMarket(scenario.provider, (pool,)),)
    job = scenario_job(job_id, scenario, markets, seed=seed, trial=trial, policy=policy, journal=journal)
    if pool is not None:
        job = replace(job, known=(_known_rate(scenario, pool),), measurements=(_measurement(scenario, pool),))
    world = World(markets, (job,))
    with _without_cycle_collector():
        world.run()
    return collected(world.fleets[job_id])


@contextlib.contextmanager
def _without_cycle_collector() -> Iterator[None]:
    """Pause the cycle collector: a trial makes no cycles, and the collector would scan all rows again and again."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def collected(fleet: SimulatedFleet) -> History:
    """Return the history of a checkpointed job that is over."""
    runtime = fleet.runtime
    assert isinstance(runtime, CheckpointMachines), "other runtimes have other sums"
    context = runtime.context
    if fleet.rows is not None:
        fleet.bill()
    assert fleet.finish_s is not None, "the job is done"
    breakdown = context.breakdown
    trial = Trial(
        fleet.finish_s - fleet.started_s,
        fleet.billed_s,
        breakdown.redo_s,
        breakdown.save_s,
        breakdown.allocate_s,
        breakdown.prepare_s,
        fleet.preemptions,
        context.saves.all(),
    )
    job_rows = () if fleet.rows is None else tuple(fleet.rows.rows)
    run_rows = () if context.rows is None else tuple(context.rows.rows)
    return History(trial, job_rows, run_rows, tuple(context.run.records or ()))


def _measurement(scenario: Scenario, pool: SimulatedMarket) -> Measurement:
    """Return the scenario's mean lengths as an earlier run would have measured them."""
    step_s = scenario.step_s.mean_s
    return Measurement(
        scenario.provider,
        pool.machine_type,
        Unit.STEP,
        1.0 / step_s,
        # A run measures its preparation until the end of the first step.
        prepare_s=Seconds(scenario.prepare_s.mean_s + step_s),
        allocate_s=Seconds(scenario.allocate_s.mean_s),
        runs=1,
        stall_s=Seconds(scenario.stall_s.mean_s),
        size_bytes=SHARD_BYTES * scenario.machines,
        upload_s=Seconds(scenario.upload_s.mean_s),
        commit_s=Seconds(0.0),
    )


def _known_rate(scenario: Scenario, pool: SimulatedMarket) -> EstimatesPooled:
    """Return the mean lifetime of one machine, as the controller's pool of estimates would have it."""
    estimates = scenario.estimates
    mttp_s = Seconds(estimates.mttp_s * scenario.machines)
    return EstimatesPooled(((scenario.provider, pool.machine_type, pool.zone, mttp_s, Seconds(estimates.restart_s)),))


def _known_costs(scenario: Scenario, draws: Draws) -> SaveCosts:
    return SaveCosts(
        Seconds(draws.stall_s), Bytes(SHARD_BYTES * scenario.machines), Seconds(draws.upload_s), Seconds(0.0)
    )
