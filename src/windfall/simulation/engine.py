"""Simulate jobs event by event in virtual time, with the reducers of the live system.

`core.worker` decides when to save, `core.driver` what to buy; this package holds only the world around them (`scenario`
specifies its behaviour) and a clock.  A history is a function of (scenario, seed, trial, policy) and of nothing else, to
the last byte of its journals; jobs that share a timeline and a provider do not affect each other.

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
import random
from collections.abc import Iterator, Sequence
from functools import partial

from windfall.errors import Infeasible
from windfall.events import Row
from windfall.market import Boot, Machine, Order
from windfall.policies.checkpointing.decision import parse_policy
from windfall.simulation.engine_fleet import SimulatedFleet
from windfall.simulation.engine_journal import JournalRows, SaveRecords
from windfall.simulation.engine_run import SimulatedRun, TimeBreakdown
from windfall.simulation.engine_worker import SHARD_BYTES, SavingRule, TrialContext
from windfall.simulation.outcomes import Trial
from windfall.simulation.sampling import Draws
from windfall.simulation.scenario import Scenario
from windfall.simulation.simulated_policies import UserPolicy, checked_interval_s, scheduled
from windfall.simulation.simulated_provider import SimulatedMarket, SimulatedProvider
from windfall.simulation.virtual_time import Timeline
from windfall.structs import Struct
from windfall.terms import Bytes, NoticeLevel, Record, Reliability, SaveCosts, SaveTable, Seconds


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
    if name == "optimal":
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
        return ("never" if interval_s == math.inf else f"every:{interval_s:.12g}s"), None

    return rule


def _optimal(scenario: Scenario, draws: Draws) -> SavingRule:
    found = scheduled(scenario)

    def rule(age_s: float, steps_left: int) -> tuple[str, SaveTable | None]:
        del age_s
        saves_at_s = tuple([step * draws.step_s for step in found.steps(steps_left)])
        return "optimal", SaveTable(saves_at_s, math.inf, math.inf, "the optimal schedule of the simulated lifetimes")

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


class SimulatedWorld:
    """Virtual time, the providers, and the jobs that buy from them.

    Attributes:
        timeline: of all jobs.
        providers: by name; a scenario's provider sells its machines.
    """

    def __init__(self, scenarios: Sequence[Scenario], timeline: Timeline | None = None) -> None:
        """Open the markets.

        Args:
            scenarios: of the jobs to submit; the markets sell their machines.
            timeline: a new one if None.
        """
        self.timeline = Timeline() if timeline is None else timeline
        self._types: dict[tuple[str, float, float], SimulatedMarket] = {}
        for scenario in scenarios:
            self._types.setdefault(_key(scenario), _market(scenario, len(self._types)))
        names = sorted({name for name, _, _ in self._types})
        self.providers = {
            name: SimulatedProvider(
                name,
                self.timeline,
                tuple(market for key, market in self._types.items() if key[0] == name),
                random.Random(0),  # noqa: S311 - nothing here is drawn from it
                listener=self,
                allocate_s=self._allocate_s,
            )
            for name in names
        }
        self._fleets: dict[str, SimulatedFleet] = {}
        self._fleet_of_machine: dict[str, SimulatedFleet] = {}

    def submit(
        self,
        job_id: str,
        scenario: Scenario,
        *,
        seed: int = 0,
        trial: int = 0,
        policy: UserPolicy | None = None,
        journal: bool = True,
        after_s: float = 0.0,
    ) -> SimulatedFleet:
        """Submit a job.

        Args:
            job_id: unique in this world.
            scenario: one of those that the world was created with.
            seed: of the simulation.
            trial: its number.
            policy: a user's own, in place of the scenario's.
            journal: whether to keep rows.
            after_s: delay from now [s].
        """
        timeline = self.timeline
        run = SimulatedRun(job_id, journal=journal)
        draws = Draws(scenario, seed, trial)
        if scenario.estimates.costs_known:
            run.learn(_known_costs(scenario, draws))
        context = TrialContext(
            timeline,
            scenario,
            saving_rule(scenario, draws, policy),
            draws,
            run,
            TimeBreakdown(scenario.machines, timeline.time + after_s),
            JournalRows() if journal else None,
            SaveRecords(),
        )
        fleet = SimulatedFleet(job_id, context, self.providers[scenario.provider], JournalRows() if journal else None)
        self._fleets[job_id] = fleet
        timeline.at(after_s, partial(fleet.submit, self._types[_key(scenario)].machine_type))
        return fleet

    def run(self) -> None:
        """Advance time until every job is over.

        Raises:
            Infeasible: a job can never finish.
        """
        timeline = self.timeline
        for job_id, fleet in self._fleets.items():
            while not fleet.over:
                if not timeline.step():
                    raise Infeasible(f"the simulation has no more events, and {job_id} is not done")
        timeline.run(timeline.time)  # the providers close their bills

    # -------------------------------------------------------------------------------------------- the providers' listener

    def _allocate_s(self, order: Order, which: int) -> float:
        return self._fleets[order.job_id].allocate_s(order, which)

    def started(self, machine: Machine, boot: Boot) -> None:
        """Start a machine of a job."""
        del boot
        fleet = self._fleet_of_machine[machine.machine_id] = self._fleets[machine.job_id]
        fleet.started(machine)

    def noticed(self, machine_id: str, level: NoticeLevel, left_s: Seconds | None) -> None:
        """Deliver the notice of a machine's end; other notices do not occur here."""
        assert level is NoticeLevel.ANNOUNCED, "no notice is withdrawn here"
        assert left_s is not None, "an announced end has a time"
        self._fleet_of_machine[machine_id].noticed(machine_id, left_s)

    def ended(self, machine: Machine) -> None:
        """End a machine of a job."""
        self._fleet_of_machine.pop(machine.machine_id, None)
        self._fleets[machine.job_id].ended(machine)


def history(
    scenario: Scenario, *, seed: int = 0, trial: int = 0, policy: UserPolicy | None = None, journal: bool = True
) -> History:
    """Simulate one trial.

    Args:
        scenario: what is simulated.
        seed: of the simulation.
        trial: its number.
        policy: a user's own, in place of the scenario's.
        journal: whether to keep rows; without them it is faster, with the same result.

    Raises:
        Infeasible: the job can never finish.
    """
    world = SimulatedWorld((scenario,))
    fleet = world.submit("simulated", scenario, seed=seed, trial=trial, policy=policy, journal=journal)
    with _without_cycle_collector():
        world.run()
    return collected(fleet)


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
    """Return the history of a job that is over."""
    context = fleet.context
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


def _key(scenario: Scenario) -> tuple[str, float, float]:
    return scenario.provider, scenario.price_usd_per_hour, scenario.notice_s


def _market(scenario: Scenario, number: int) -> SimulatedMarket:
    price = scenario.price_usd_per_hour
    return SimulatedMarket(
        f"machine-{number}",
        "simulated",
        Reliability.TRANSIENT,
        ((0.0, price),),
        price,
        Seconds(scenario.notice_s),
        startup_s=Seconds(scenario.allocate_s.mean_s),
    )


def _known_costs(scenario: Scenario, draws: Draws) -> SaveCosts:
    return SaveCosts(
        Seconds(draws.stall_s), Bytes(SHARD_BYTES * scenario.machines), Seconds(draws.upload_s), Seconds(0.0)
    )
