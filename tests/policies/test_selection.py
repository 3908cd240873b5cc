"""SciSpot's choice of a machine type: the printed formula, the exact expectation, and the order of types."""

from __future__ import annotations

import csv
import math

import numpy as np
import pytest

from tests.simulation.shared_data import DATA, needs_data
from windfall.errors import Misuse
from windfall.models.exact.makespan import SurvivalTable, tabulate
from windfall.policies.planning import selection
from windfall.policies.planning.selection import MachineChoice

H = 3600.0


def choice(machine_type: str = "m", **given: float | SurvivalTable | None) -> MachineChoice:
    known = {"cores": 16.0, "usd_per_hour": 0.12, "mttp_s": 8.0 * H, "runtime_s": 2.0 * H} | given
    return MachineChoice(machine_type, **known)  # type: ignore[arg-type]


def test_the_printed_formula_is_the_printed_one_until_it_exceeds_one() -> None:
    """T/MTTF = 0.25; four machines; a job of 9 h on a mean of 8 h is lost with 1, not 1.125."""
    assert selection.published_failure(2.0 * H, 8.0 * H) == pytest.approx(0.25)
    assert selection.published_failure(2.0 * H, 8.0 * H, 4) == pytest.approx(1.0 - 0.75**4)
    assert selection.published_expected_s(2.0 * H, 8.0 * H, 4) == pytest.approx(2.0 * H * (1.0 + (1.0 - 0.75**4) / 2.0))
    assert selection.published_failure(9.0 * H, 8.0 * H) == 1.0


def played_s(law: str, runtime_s: float, machines: int, restart_s: float, age_s: float) -> float:
    """The mean of many jobs, each repeated until no machine of the gang is lost; nothing shared with the formula."""
    random = np.random.default_rng(5)
    total, jobs = 0.0, 40_000
    for _ in range(jobs):
        age = age_s
        while True:
            if law == "memoryless":
                left = random.exponential(8.0 * H, machines).min()
            else:
                uniform = random.uniform(age, 24.0 * H, machines)
                left = uniform.min() - age
            if left >= runtime_s:
                total += runtime_s
                break
            total += left + restart_s
            age = 0.0
    return total / jobs


@pytest.mark.parametrize(("machines", "restart_s", "age_s"), [(1, 0.0, 0.0), (4, 300.0, 0.0), (2, 1200.0, 6.0 * H)])
@pytest.mark.parametrize("law", ["memoryless", "uniform"])
def test_the_expected_time_is_that_of_jobs_played(law: str, machines: int, restart_s: float, age_s: float) -> None:
    """Within 1 % of 40,000 jobs: one machine and gangs, with a restart, on machines of an age."""
    with np.errstate(divide="ignore"):
        table = tabulate(lambda ages: np.log(np.maximum(1.0 - ages / (24.0 * H), 0.0)), until_s=24.0 * H, cell_s=60.0)
    one = choice(lifetimes=None if law == "memoryless" else table)
    found = selection.expected(one, machines, restart_s, age_s)[1]
    assert found == pytest.approx(played_s(law, 2.0 * H, machines, restart_s, age_s), rel=0.01)


def test_a_type_without_a_measured_time_gets_a_job_first() -> None:
    """Each type once, the cheapest gang first; then the cheapest by expected cost, with how many have the cores."""
    known = choice("known", cores=16.0, usd_per_hour=0.12)
    small = choice("small", cores=4.0, usd_per_hour=0.02, runtime_s=None)
    large = choice("large", cores=64.0, usd_per_hour=0.40, runtime_s=None)
    found = selection.score([known, large, small], 64.0)
    assert [(one.choice.machine_type, one.machines) for one in found] == [("small", 16), ("large", 1), ("known", 4)]
    assert found[0].usd is None
    assert found[2].usd == pytest.approx(4 * 0.12 * (found[2].expected_s or 0.0) / H)


def test_more_and_smaller_machines_are_lost_more_often() -> None:
    """The same price per core and the same time: the larger type is chosen, as the paper argues."""
    small, large = choice("small", cores=4.0, usd_per_hour=0.03), choice("large", cores=32.0, usd_per_hour=0.24)
    found = selection.score([small, large], 64.0)
    assert [one.choice.machine_type for one in found] == ["large", "small"]
    assert (found[0].fails or 0.0) < (found[1].fails or 0.0)


def test_the_published_formula_chooses_another_type_for_long_jobs() -> None:
    """A cheap type that most long jobs are lost on, several times each: one loss after half of the job looks cheap."""
    cheap = choice("cheap", cores=64.0, usd_per_hour=0.30, mttp_s=4.0 * H, runtime_s=12.0 * H)
    safe = choice("safe", cores=64.0, usd_per_hour=0.60, mttp_s=100.0 * H, runtime_s=12.0 * H)
    published = {
        one.machine_type: one.usd_per_hour * selection.published_expected_s(12.0 * H, one.mttp_s)
        for one in (cheap, safe)
    }
    assert published["cheap"] < published["safe"]
    assert selection.score([cheap, safe], 64.0)[0].choice.machine_type == "safe"


def test_the_dearest_type_by_the_hour_is_the_cheapest_by_the_job() -> None:
    """2.00 USD/h and 12 minutes are 0.40 USD; 0.50 USD/h and an hour are 0.50: of three types the dearest is first."""
    dear = choice("dear", cores=16.0, usd_per_hour=2.0, mttp_s=math.inf, runtime_s=0.2 * H)
    cheap = choice("cheap", cores=16.0, usd_per_hour=0.5, mttp_s=math.inf, runtime_s=1.0 * H)
    middle = choice("middle", cores=16.0, usd_per_hour=1.0, mttp_s=math.inf, runtime_s=0.45 * H)
    found = selection.score([cheap, middle, dear], 16.0)

    assert [one.choice.machine_type for one in found] == ["dear", "middle", "cheap"]
    assert [one.usd for one in found] == pytest.approx([0.4, 0.45, 0.5])


def test_hazard_alone_reverses_the_choice() -> None:
    """Same time, 0.10 against 0.12 USD/h: cheap first while both last 100 h, last when it lasts 2 h."""
    safe = choice("safe", usd_per_hour=0.12, mttp_s=100.0 * H)
    calm, risky = (choice("cheap", usd_per_hour=0.10, mttp_s=hours * H) for hours in (100.0, 2.0))

    assert [one.choice.machine_type for one in selection.score([safe, calm], 16.0)] == ["cheap", "safe"]
    found = selection.score([safe, risky], 16.0)
    assert [one.choice.machine_type for one in found] == ["safe", "cheap"]
    assert found[1].usd == pytest.approx(0.10 * 2.0 * math.expm1(1.0))


def test_machines_that_no_job_fits_on_are_last_and_owned_ones_cost_nothing() -> None:
    """A job longer than any lifetime has no finite cost; a price of 0 divides nothing."""
    day = SurvivalTable.of(H, np.array([1.0, 0.5, 0.0]))
    never = choice("never", lifetimes=day, runtime_s=3.0 * H)
    owned = choice("owned", usd_per_hour=0.0, mttp_s=math.inf)
    found = selection.score([never, owned, choice()], 16.0)
    assert [one.choice.machine_type for one in found] == ["owned", "m", "never"]
    assert (found[0].usd, found[2].usd) == (0.0, math.inf)


@pytest.mark.parametrize("given", [{"cores": 0.0}, {"mttp_s": 0.0}, {"usd_per_hour": -1.0}, {"runtime_s": 0.0}])
def test_numbers_that_make_no_sense_are_refused_with_the_type(given: dict[str, float]) -> None:
    """One sentence that names the type."""
    with pytest.raises(Misuse, match="m: "):
        selection.score([choice(**given)], 16.0)
    with pytest.raises(Misuse, match="no machine type"):
        selection.score([], 16.0)


@needs_data
def test_real_lifetimes_and_prices_choose_the_same_type_for_short_jobs() -> None:
    """Per vCPU all preemptible types of 2019 cost the same, so lifetimes decide: the fewest machines, while T scales."""
    folder = DATA / "gcp_preemptible_lifetimes"
    with (folder / "lifetimes.csv").open() as file:
        rows = [(row["machine_type"], float(row["lifetime_s"])) for row in csv.DictReader(file)]
    with (folder / "prices_2019_us-central1.csv").open() as file:
        prices = {row["machine_type"]: row for row in csv.DictReader(file)}
    choices = []
    for name, price in prices.items():
        lived = [lifetime_s for kind, lifetime_s in rows if kind == name]
        if len(lived) >= 50:
            one = choice(
                name, cores=float(price["vcpus"]), usd_per_hour=float(price["preemptible_usd_per_hour"]),
                mttp_s=sum(lived) / len(lived), runtime_s=0.25 * H,
            )  # fmt: skip
            choices.append(one)
    found = selection.score(choices, 64.0)
    assert len(found) >= 3
    published = min(
        choices,
        key=lambda one: (
            selection.machines_for(64.0, one)
            * one.usd_per_hour
            * selection.published_expected_s(0.25 * H, one.mttp_s, selection.machines_for(64.0, one))
        ),
    )
    assert found[0].choice is published
    assert found[0].machines == min(one.machines for one in found)
