"""The event engine: simulated jobs, decided by the reducers of the live system, event by event in virtual time.

`core.worker` decides when to save, `core.driver` what to buy; here are only the world around them (`scenario` says how it
behaves) and a clock.  A history is a function of (scenario, seed, trial, policy) and of nothing else, to the last byte of
its journals; jobs that share a timeline and a provider do not touch each other.

What the live world does because facts travel, and which here decides nothing, is left out: the second look after a
request to a single rank; the looks at the bill, but the last; the news that a point was stored, which the driver hears
with the next other fact.  A worker that would let the run go a moment before an announced end is asked at that end, and
an upload that is under way when the script is done arrives at once, so that the job is over with its last step.
"""

from __future__ import annotations

import contextlib
import gc
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from windfall.errors import Infeasible
from windfall.events import Row
from windfall.market import Boot, Machine, Order
from windfall.simulation.clock import Timeline
from windfall.simulation.engine_fleet import Fleet
from windfall.simulation.engine_holding import PART_BYTES, Ground
from windfall.simulation.engine_journal import Rows, Saves
from windfall.simulation.engine_rules import rule_of
from windfall.simulation.engine_run import Run
from windfall.simulation.engine_time import Division
from windfall.simulation.outcomes import Trial
from windfall.simulation.policies import Injected
from windfall.simulation.provider import Market, SimulatedProvider
from windfall.simulation.sampling import Draws
from windfall.simulation.scenario import Scenario
from windfall.terms import Bytes, NoticeLevel, Record, Reliability, SaveCosts, Seconds


@dataclass(frozen=True, slots=True)
class History:
    """What happened in one trial.

    Attributes:
        trial: the sums, and every save.
        job_rows: journal of the driver, as the live controller writes it.
        run_rows: journals of the machines that held the run, term after term, as live agents write them.
        records: of the run's log, those by which it was taken and let go.
    """

    trial: Trial
    job_rows: tuple[Row, ...] = ()
    run_rows: tuple[Row, ...] = ()
    records: tuple[Record, ...] = ()


class World:
    """Virtual time, the providers, and the jobs that buy from them.

    Attributes:
        timeline: of all jobs.
        providers: by name; a scenario's provider sells its machines.
    """

    def __init__(self, scenarios: Sequence[Scenario], timeline: Timeline | None = None) -> None:
        """Open the markets.

        Args:
            scenarios: of the jobs that may be submitted: their machines are for sale.
            timeline: a new one if None.
        """
        self.timeline = Timeline() if timeline is None else timeline
        self._types: dict[tuple[str, float, float], Market] = {}
        for scenario in scenarios:
            self._types.setdefault(_key(scenario), _market(scenario, len(self._types)))
        names = sorted({name for name, _, _ in self._types})
        self.providers = {
            name: SimulatedProvider(
                name,
                self.timeline,
                tuple(market for key, market in self._types.items() if key[0] == name),
                random.Random(0),  # noqa: S311 - nothing here is drawn from it
                tenant=self,
                allocate_s=self._allocate_s,
            )
            for name in names
        }
        self._fleets: dict[str, Fleet] = {}
        self._homes: dict[str, Fleet] = {}

    def submit(
        self,
        job_id: str,
        scenario: Scenario,
        *,
        seed: int = 0,
        trial: int = 0,
        policy: Injected | None = None,
        journal: bool = True,
        after_s: float = 0.0,
    ) -> Fleet:
        """Hand a job in.

        Args:
            job_id: unique in this world.
            scenario: one of those that the world was opened for.
            seed: of the simulation.
            trial: its number.
            policy: a user's own instead of the scenario's.
            journal: whether rows are kept.
            after_s: so much later than now [s].
        """
        timeline = self.timeline
        run = Run(job_id, keep=journal)
        draws = Draws(scenario, seed, trial)
        if scenario.believed.costs_known:
            run.learn(_known(scenario, draws))
        ground = Ground(
            timeline,
            scenario,
            rule_of(scenario, draws, policy),
            draws,
            run,
            Division(scenario.machines, timeline.time + after_s),
            Rows() if journal else None,
            Saves(),
        )
        fleet = Fleet(job_id, ground, self.providers[scenario.provider], Rows() if journal else None)
        self._fleets[job_id] = fleet
        timeline.at(after_s, partial(fleet.submit, self._types[_key(scenario)].machine_type))
        return fleet

    def run(self) -> None:
        """Let time pass until every job is over.

        Raises:
            Infeasible: a job can never be done.
        """
        timeline = self.timeline
        for job_id, fleet in self._fleets.items():
            while not fleet.over:
                if not timeline.step():
                    raise Infeasible(f"nothing will ever happen again, and {job_id} is not done")
        timeline.run(timeline.time)  # the providers close their bills

    # -------------------------------------------------------------------------------------------- the providers' tenant

    def _allocate_s(self, order: Order, which: int) -> float:
        return self._fleets[order.job_id].allocate_s(order, which)

    def started(self, machine: Machine, boot: Boot) -> None:
        """A machine runs."""
        del boot
        fleet = self._homes[machine.machine_id] = self._fleets[machine.job_id]
        fleet.started(machine)

    def noticed(self, machine_id: str, level: NoticeLevel, left_s: Seconds | None) -> None:
        """A machine hears of its end; nothing else is ever said here."""
        assert level is NoticeLevel.ANNOUNCED, "lives end, and nothing is called off"
        assert left_s is not None, "an announced end has a time"
        self._homes[machine_id].noticed(machine_id, left_s)

    def ended(self, machine: Machine) -> None:
        """A machine is gone."""
        self._homes.pop(machine.machine_id, None)
        self._fleets[machine.job_id].ended(machine)


def history(
    scenario: Scenario, *, seed: int = 0, trial: int = 0, policy: Injected | None = None, journal: bool = True
) -> History:
    """Simulate one trial.

    Args:
        scenario: what is simulated.
        seed: of the simulation.
        trial: its number.
        policy: a user's own instead of the scenario's.
        journal: whether rows are kept; without them it is faster, and the same.

    Raises:
        Infeasible: the job can never be done.
    """
    world = World((scenario,))
    fleet = world.submit("simulated", scenario, seed=seed, trial=trial, policy=policy, journal=journal)
    with _no_cycles():
        world.run()
    return collected(fleet)


@contextlib.contextmanager
def _no_cycles() -> Iterator[None]:
    """Let the collector of cycles rest: a trial makes none, and it would look through all rows again and again."""
    rests = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if rests:
            gc.enable()


def collected(fleet: Fleet) -> History:
    """Return what happened to a job that is over."""
    ground = fleet.ground
    if fleet.rows is not None:
        fleet.bill()
    assert fleet.finish_s is not None, "the job is done"
    division = ground.division
    trial = Trial(
        fleet.finish_s - fleet.began_s,
        fleet.billed_s,
        division.redo_s,
        division.save_s,
        division.allocate_s,
        division.prepare_s,
        fleet.preemptions,
        ground.saves.all(),
    )
    job_rows = () if fleet.rows is None else tuple(fleet.rows.rows)
    run_rows = () if ground.rows is None else tuple(ground.rows.rows)
    return History(trial, job_rows, run_rows, tuple(ground.run.records or ()))


def _key(scenario: Scenario) -> tuple[str, float, float]:
    return scenario.provider, scenario.price_usd_per_hour, scenario.notice_s


def _market(scenario: Scenario, number: int) -> Market:
    price = scenario.price_usd_per_hour
    return Market(
        f"machine-{number}",
        "simulated",
        Reliability.TRANSIENT,
        ((0.0, price),),
        price,
        Seconds(scenario.notice_s),
        startup_s=Seconds(scenario.allocate_s.mean_s),
    )


def _known(scenario: Scenario, draws: Draws) -> SaveCosts:
    return SaveCosts(
        Seconds(draws.stall_s), Bytes(PART_BYTES * scenario.machines), Seconds(draws.upload_s), Seconds(0.0)
    )
